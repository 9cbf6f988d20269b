"""What can be wrong with a cluster; apart from the clients, which take a second to import."""


class ClusterError(Exception):
    """The cluster can't be reached."""


class BadClusterError(ClusterError, ValueError):
    """The description of a cluster makes no sense."""
