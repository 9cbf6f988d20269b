"""What jobs refuse, with the exit code that the command line gives.

JobError            1  the job failed, or what was asked for can't be done now
├── UsageError      2  the request itself is wrong
├── PartlyDoneError 3  some models have their next version, others don't
├── HeldError       4  a hold keeps it back
├── VerifyError     5  a verification failed
└── LockedError    75  somebody else holds the workspace; try again

ClusterLostError stands beside them: never what a model is at fault for.
"""

from __future__ import annotations


class JobError(Exception):
    """A job failed or can't be done; the message says what to do."""

    exit_code = 1


class UsageError(JobError, ValueError):
    """What was asked for is wrong in itself."""

    exit_code = 2


class PartlyDoneError(JobError):
    """A deletion is committed, and waits for the models that are behind."""

    exit_code = 3


class HeldError(JobError):
    """A hold keeps back all that was asked for."""

    exit_code = 4


class VerifyError(JobError):
    """What was verified does not hold."""

    exit_code = 5


class LockedError(JobError):
    """Another process holds the workspace's lock."""

    exit_code = 75


class DivergenceError(JobError):
    """A descent grew without bound on the rows and settings it was given."""


class ClusterLostError(ConnectionError):
    """The cluster's scheduler is gone, or gives no answer any more."""
