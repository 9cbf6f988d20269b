"""An operation on a workspace in a process of its own, which SIGKILL ends between two transactions."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from expunge.jobs import erasure
from expunge.jobs.batches import run_batch
from expunge.jobs.errors import VerifyError
from expunge.jobs.fold import InlineFold
from expunge.jobs.holds import lift_hold, place_hold
from expunge.jobs.ledger import Ledger
from expunge.jobs.request_life import cancel_request, extend_request
from expunge.jobs.requests import forget
from expunge.jobs.resuming import resume
from expunge.jobs.retrying import retry
from expunge.jobs.workspace import Workspace


def silent(*_: object) -> None:
    """Tell no progress."""


def batch(ws: Workspace) -> dict[str, Any]:
    """``batch run``."""
    return run_batch(ws, InlineFold(), silent)


def go_on(ws: Workspace, job: int) -> dict[str, Any]:
    """``job resume``."""
    return resume(ws, job, InlineFold(), silent)


def try_again(ws: Workspace, job: int) -> dict[str, Any]:
    """``job retry --method basel``."""
    return retry(ws, job, InlineFold(), silent, "basel")


OPERATIONS: tuple[Callable[..., Any], ...] = (
    *(forget, place_hold, lift_hold, cancel_request, extend_request, batch, go_on, try_again),
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def killed(
    root: Path,
    after: int,
    operation: Callable[..., Any],
    *given: Any,
    spoiled: bool = False,
    **more: Any,
) -> list[str]:
    """Start an operation and kill its process after so many transactions, unless it ends before.

    spoiled: nothing is erased, so that the job's verification fails. Returns the step of each
    transaction that was committed; "" for those of no step.
    """
    log = root.with_name("transactions")
    log.write_text("")
    process = _CONTEXT.Process(
        target=_run, args=(root, log, after, spoiled, OPERATIONS.index(operation), given, more)
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return log.read_text().split("\n")[:-1]


def _run(
    root: Path,
    log: Path,
    after: int,
    spoiled: bool,
    operation: int,
    given: tuple[Any, ...],
    more: dict[str, Any],
) -> None:
    _count_transactions(log, after)
    if spoiled:
        erasure.erase_slots = silent  # type: ignore[attr-defined, assignment]
    with Workspace.open(root) as ws, suppress(VerifyError):
        OPERATIONS[operation](ws, *given, **more)


def _count_transactions(log: Path, after: int) -> None:
    """Write the step of each transaction down, and end this process after so many of them."""
    steps = [""]
    done = 0
    transaction, step = Ledger.transaction, Ledger.step

    @contextmanager
    def counted(self: Ledger) -> Iterator[None]:
        nonlocal done
        with transaction(self):
            yield
        with log.open("a") as file:
            file.write(f"{steps[-1]}\n")
        done += 1
        if done == after:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def named(self: Ledger, job: int, name: str) -> Iterator[None]:
        steps.append(name)
        with step(self, job, name):
            yield
        steps.pop()

    Ledger.transaction = counted  # type: ignore[method-assign]
    Ledger.step = named  # type: ignore[method-assign]
