"""Clients of a local cluster of processes, or of a scheduler that runs somewhere."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dask.utils import parse_bytes
from distributed import Client, LocalCluster

from .errors import BadClusterError, ClusterError

CONNECT_SECONDS = 15
START_TRIES = 4
_ADDRESS = re.compile(r"(tcp|tls|ws|wss)://[^\s:/]+:\d+/?")
LEAST_MEMORY = 320 << 20
"""Bytes below which a worker would be restarted for ever: libraries alone take about 250 MB."""


def check_cluster(cluster: str, workers: int | None, memory_limit: str | None) -> None:
    """Raise BadClusterError unless the description of a cluster makes sense; contacts nobody."""
    if cluster != "local" and not _ADDRESS.fullmatch(cluster):
        raise BadClusterError(
            f"--cluster is {cluster!r}; it is local, inline or an address like tcp://HOST:8786"
        )
    if workers is not None and workers < 1:
        raise BadClusterError(f"--workers is {workers}; it must be at least 1")
    if memory_limit is not None:
        try:
            size = parse_bytes(memory_limit)
        except (ValueError, OverflowError):
            size = -1
        if size < LEAST_MEMORY:
            raise BadClusterError(
                f"--memory-limit is {memory_limit!r}; give at least 320MiB, like 512MiB or 1GiB"
            )


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
    with _ignoring_interrupts():
        local = _start(workers or os.cpu_count() or 1, memory_limit, spill)
    with local, Client(local) as client:
        yield client


def _start(workers: int, memory_limit: str | None, spill: Path) -> LocalCluster:
    """Start local workers; again if one dies while it starts, and ClusterError after some tries."""
    reason = ""
    for _ in range(START_TRIES):
        try:
            return LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=memory_limit or "auto",
                local_directory=str(spill),
                # Any free port: a fixed one would warn where two clusters run on a machine.
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,
            )
        except RuntimeError as error:
            reason = str(error)
    raise ClusterError(f"the local workers can't be started: {reason}")


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside the block: processes started there inherit that.

    The terminal sends it to workers too, but only the driver is to decide what follows.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
