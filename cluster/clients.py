"""Clients of a local cluster of processes, or of a scheduler that runs somewhere."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, LocalCluster

CONNECT_SECONDS = 15
_ADDRESS = re.compile(r"(tcp|tls|ws|wss)://[^\s:/]+:\d+/?")
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B)?\s*", re.IGNORECASE)


class ClusterError(Exception):
    """The cluster can't be reached."""


class BadClusterError(ClusterError, ValueError):
    """The description of a cluster makes no sense."""


def check_cluster(cluster: str, workers: int | None, memory_limit: str | None) -> None:
    """Raise BadClusterError unless the description of a cluster makes sense; contacts nobody."""
    if cluster != "local" and not _ADDRESS.fullmatch(cluster):
        raise BadClusterError(
            f"--cluster is {cluster!r}; it is local, inline or an address like tcp://HOST:8786"
        )
    if workers is not None and workers < 1:
        raise BadClusterError(f"--workers is {workers}; it must be at least 1")
    if memory_limit is not None and not _MEMORY.fullmatch(memory_limit):
        raise BadClusterError(f"--memory-limit is {memory_limit!r}; give it like 1GiB or 512MB")


@contextmanager
def connect(
    cluster: str, workers: int | None, memory_limit: str | None, spill: Path
) -> Iterator[Client]:
    """Yield a client of ``local`` worker processes, one thread each, or of a scheduler's address.

    spill: where local workers put what exceeds their memory limit. Raises ClusterError when nobody
    answers at the address.
    """
    check_cluster(cluster, workers, memory_limit)
    if cluster == "local":
        with _local(workers, memory_limit, spill) as client:
            yield client
        return
    try:
        client = Client(cluster, timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ClusterError(f"no scheduler answers at {cluster}: {error}") from error
    with client:
        if not client.nthreads():
            raise ClusterError(f"the scheduler at {cluster} has no workers; start some first")
        yield client


@contextmanager
def _local(workers: int | None, memory_limit: str | None, spill: Path) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=workers or os.cpu_count() or 1,
            threads_per_worker=1,
            processes=True,
            memory_limit=memory_limit or "auto",
            local_directory=str(spill),
            # Any free port: a fixed one would warn where two clusters run on a machine.
            dashboard_address=":0",
            silence_logs=logging.ERROR,
        ) as local,
        Client(local) as client,
    ):
        yield client
