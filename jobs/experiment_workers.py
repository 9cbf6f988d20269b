"""Pieces of an experiment in processes of one thread each, and what those processes are."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numba
from threadpoolctl import threadpool_limits

from .errors import JobError

Task = TypeVar("Task")
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Variables that say how many threads a library starts."""
UNSET = ("OPENBLAS_CORETYPE",)
"""Variables that would choose another kernel than the library's own choice."""
LIBRARIES = ("expunge", "numpy", "numba", "scipy", "scikit-learn", "matplotlib")
POLL_SECONDS = 0.5


def run_in_processes(
    work: Callable[[Task], None],
    tasks: Sequence[Task],
    workers: int,
    look: Callable[[], None],
    fresh: bool = False,
) -> None:
    """Run ``work`` on every task in ``workers`` processes of one thread each; ``look`` now and then.

    fresh: whether every task gets a process of its own.
    The processes end with this one, however it ends. The first error of a task is raised, and no
    further task begun. Raises JobError if a process dies.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    each = 1 if fresh else None
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=prepare, max_tasks_per_child=each
    )
    try:
        with _pinned():
            futures = [pool.submit(work, task) for task in tasks]
        _follow(futures, look)
    except BrokenProcessPool:
        raise JobError("a worker process died, perhaps for want of memory; run again") from None
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _follow(futures: Sequence[Future[None]], look: Callable[[], None]) -> None:
    """Wait for the tasks, looking now and then; raise the first error."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, POLL_SECONDS, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        look()


@contextmanager
def _pinned() -> Iterator[None]:
    """Let the processes that start inside the block have one thread in every library."""
    before = {name: os.environ.get(name) for name in (*THREADS, *UNSET)}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    for name in UNSET:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def prepare() -> None:
    """Make this process one of an experiment's: one thread, gone with its parent, deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    numba.set_num_threads(1)
    threadpool_limits(1)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def environment() -> dict[str, Any]:
    """Return what the numbers of this process depend on besides the settings."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": numba.get_num_threads(),
    }


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
