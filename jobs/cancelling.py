"""``job cancel``: a job stops before its commit, and leaves the queue as it was.

The flag is a row of the ledger. The process that runs the job looks for it between tasks and where
progress is told, and once more inside the commit's transaction: so a job is either cancelled or
committed, whoever comes first.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..storage.fence import Fence, FenceHeldError, take_over
from .errors import JobError, LockedError, UsageError
from .fold import Fold, unchecked
from .ledger import Ledger, now
from .pending import PARTLY_DONE, cure
from .workspace import Workspace

CANCELLED = "cancelled"
LOOK_SECONDS = 0.2
"""How often a running job looks for its flag, at most."""
WAIT_SECONDS = 30.0
"""How long ``cancel`` waits for the job's process to stop."""
Progress = Callable[[str], None]
_signalled = threading.Event()
"""Set by a signal: the exception of one that comes inside a compiler's callback gets lost."""


class JobCancelledError(JobError):
    """Somebody asked for the end of the job."""


def check_not_cancelled(ledger: Ledger, job: int) -> None:
    """JobCancelledError if the end of a job was asked for, KeyboardInterrupt if by a signal."""
    if _signalled.is_set():
        raise KeyboardInterrupt
    if ledger.value("SELECT job FROM cancellations WHERE job = ?", job) is not None:
        raise JobCancelledError(f"job {job} was cancelled; its requests are back in the queue")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside the block Ctrl-C and SIGTERM both end the job in good order, by KeyboardInterrupt."""

    def stop(*_: object) -> None:
        _signalled.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signalled.clear()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _signalled.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def watched(ledger: Ledger, job: int, fold: Fold, progress: Progress) -> Iterator[Progress]:
    """Inside the block a job that is cancelled raises JobCancelledError between its tasks.

    Yields the progress to tell, which looks as well.
    """
    last = 0.0

    def look() -> None:
        nonlocal last
        if _signalled.is_set() or time.monotonic() - last >= LOOK_SECONDS:
            last = time.monotonic()
            check_not_cancelled(ledger, job)

    def told(what: str) -> None:
        look()
        progress(what)

    fold.check = look
    try:
        yield told
    finally:
        fold.check = unchecked


def end_cancelled(ws: Workspace, job: int) -> None:
    """Put a job's requests back in the queue and close it; call with the lock held."""
    with ws.ledger.transaction():
        ws.ledger.give_back(job, CANCELLED, {})


def leave_nothing(ws: Workspace, fence: Fence, fold: Fold) -> None:
    """Let go of the workers, keep those that still run from writing, and sweep what was written."""
    fold.close()
    # Where one does not end, whoever takes the lock next waits for it again.
    with suppress(FenceHeldError):
        take_over(fence.path)
    ws.sweep_garbage()


def cancel(ws: Workspace, job: int, wait: float = WAIT_SECONDS) -> dict[str, Any]:
    """Cancel a deletion job that runs in another process, or was interrupted; return its state.

    The state is ``cancelling`` where that process has not stopped within ``wait`` seconds. JobError
    after the commit, UsageError for other jobs and for those that have ended.
    """
    _check_cancellable(ws, job)
    try:
        with ws.lock(f"cancelling job {job}"):
            _check_cancellable(ws, job)
            end_cancelled(ws, job)
            return {"job": job, "state": CANCELLED}
    except LockedError:
        if ws.ledger.job(job)["state"] != "running":
            raise
    with ws.ledger.transaction():
        _check_cancellable(ws, job)
        ws.ledger.run("INSERT OR IGNORE INTO cancellations VALUES (?, ?)", job, now())
        ws.ledger.event("job", {"job": job, "state": "cancelling"})
    until = time.monotonic() + wait
    while ws.ledger.job(job)["state"] == "running" and time.monotonic() < until:
        time.sleep(LOOK_SECONDS / 2)
    state = ws.ledger.job(job)["state"]
    return {"job": job, "state": "cancelling" if state in ("running", "interrupted") else state}


def _check_cancellable(ws: Workspace, job: int) -> None:
    row = ws.ledger.job(job)
    if row["kind"] != "deletion":
        raise UsageError(
            f"job {job} is of kind {row['kind']}: only deletion jobs can be cancelled; Ctrl-C ends it"
        )
    if "committed" in row["report"] and row["state"] != "done":
        way = f"expunge job resume {job} finishes it"
        raise JobError(
            f"it is too late to cancel job {job}: its deletions are committed; "
            f"{cure(ws.ledger, job) if row['state'] == PARTLY_DONE else way}"
        )
    if row["state"] not in ("running", "interrupted"):
        raise UsageError(f"job {job} is {row['state']}: there is nothing to cancel")
