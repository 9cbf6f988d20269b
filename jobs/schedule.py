"""``batch schedule``: a batch at every due time, for as long as the process lives.

What is due follows from three things alone: the due times, the clock, and the last due time that
was carried out, which the ledger keeps. So a time that passed while the process was down, while the
machine slept or while somebody else held the workspace is found at the next look.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from .batches import faults, run_batch, worst
from .cron import Schedule, latest_due, parse_schedule
from .error_texts import told
from .errors import LockedError
from .fold import Fold
from .pending import WAITING
from .resuming import resume
from .workspace import Workspace

KEPT = "schedule"
"""Name of the ledger's setting that says which schedule is carried out, and until when."""
LOOK_SECONDS = 60
"""Between two looks at the clock, beside those at due times: one that was set, or a machine that
slept, is noticed; what could not be done since the workspace was in use is tried again."""
_INSTANT = timedelta(microseconds=1)
STOPPING = "ends after the batch that runs, if any; a second signal ends it at once"

Folds = Callable[[Workspace], AbstractContextManager[Fold]]
Tell = Callable[[str], None]
Work = Callable[[Workspace, Tell], dict[str, Any]]


def carry_out(ws: Workspace, tell: Tell, folds: Folds, method: str) -> dict[str, Any]:
    """Resume deletions that were interrupted, then run a batch; one line for each job.

    Returns the batch's report, and the jobs ``resumed``. LockedError where another process works.
    What goes wrong with one job, or with one data set, keeps nothing else from being done, and is
    raised at the end: PartlyDoneError while jobs wait for somebody to retry them.
    """
    resumed: list[int] = []
    wrong: list[Exception] = []
    for job in _interrupted(ws):
        started = monotonic()
        try:
            # Each takes the lock, and with it a fence, of its own: one that is cancelled ends its fence.
            with folds(ws) as fold:
                found = resume(ws, job, fold, _silent)
        except LockedError:
            raise
        except Exception as error:  # noqa: BLE001 - the batch runs all the same
            wrong.append(error)
            tell(f"job {job} was not resumed: {_said(error)}")
            continue
        resumed.append(job)
        tell(f"resumed {_line(found, [job], started)}")
    started = monotonic()
    try:
        with folds(ws) as fold:
            found = run_batch(ws, fold, _silent, method)
    except LockedError:
        raise
    except Exception as error:
        raise worst([*wrong, error]) from error
    tell(_line(found, found["jobs"], started))
    if wrong := [*wrong, *faults(ws.ledger, found)]:
        raise worst(wrong)
    return {**found, "resumed": resumed}


def _interrupted(ws: Workspace) -> list[int]:
    """The deletion jobs that wait to be resumed; whoever has the lock knows which have lost their driver."""
    with ws.lock("scheduled batch"):
        rows = ws.ledger.rows(
            "SELECT id FROM jobs WHERE kind = 'deletion' "
            f"AND state IN ({','.join('?' * len(WAITING))}) ORDER BY id",
            *WAITING,
        )
    return [row["id"] for row in rows]


def _said(error: Exception) -> str:
    """What a log may say of an error, in one line."""
    return " ".join(told(error).split())


def _silent(*_: object) -> None:
    """Progress that nobody watches."""


def _line(found: dict[str, Any], jobs: Sequence[int], started: float) -> str:
    """What jobs did, in counts alone: logs are kept."""
    seconds = f"{monotonic() - started:.1f} s"
    if not jobs:
        return f"nothing is queued, {seconds}"
    models = found["models"]
    parts = [
        f"job {', '.join(map(str, jobs))}: {found['requests']} requests",
        f"{found['rows']} rows",
        f"{len(models)} models",
        f"{len(found['receipts'])} receipts{'' if found['signed'] else ' (not signed)'}",
        seconds,
    ]
    retrain = [m["model"] for m in models if m.get("retrain_recommended")]
    advice = f"; a retrain is recommended for {', '.join(retrain)}" if retrain else ""
    return ", ".join(parts) + advice


class Keeper:
    """Keeps a schedule: looks whether a batch is due, and carries it out."""

    def __init__(
        self,
        root: Path,
        schedule: Schedule,
        work: Work,
        tell: Tell,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.batches = self.failed = 0
        self._root = root
        self._schedule = schedule
        self._trigger = schedule.trigger()
        self._work = work
        self._tell = tell
        self._clock = clock
        self._carried = clock()
        self._due: datetime | None = None
        self._waited = False
        self._stopping = False

    def begin(self, catch_up: bool) -> None:
        """Take up what the ledger knows: times that were missed count as one that is due now.

        They are those of the schedule that was kept then. Without catch_up they are let go.
        """
        with Workspace.open(self._root) as ws:
            kept = ws.ledger.setting(KEPT)
        if kept is not None and catch_up:
            before = json.loads(kept)
            trigger = parse_schedule(before["cron"], before["timezone"]).trigger()
            last = datetime.fromisoformat(before["carried"])
            self._due = latest_due(trigger, last, self._carried)
        if self._due is None:
            self._keep()
        else:
            self._tell(f"a batch was due at {_time(self._due)} while no scheduler ran")

    def look(self) -> None:
        """Run a batch if a due time has passed since the last that was carried out.

        Where the workspace is in use, the next look tries again.
        """
        now = self._clock()
        # A clock that was set back must not put off batches until it is where it was.
        self._carried = min(self._carried, now)
        self._due = latest_due(self._trigger, self._carried, now) or self._due
        if self._due is None or self._stopping or not self._attempt():
            return
        self._carried, self._due = max(self._carried, self._due), None
        self._waited = False
        try:
            self._keep()
        except Exception as error:  # noqa: BLE001 - the scheduler lives on
            self._tell(f"the ledger can't keep that this batch was run: {_said(error)}")

    def stop(self) -> None:
        """Begin no further batch."""
        self._stopping = True

    def next_due(self) -> datetime | None:
        """The first due time to come."""
        return self._trigger.get_next_fire_time(None, self._clock())

    def pause(self) -> float:
        """Seconds to wait before the next look: to the first due time, and never many."""
        now = self._clock()
        due = self._trigger.get_next_fire_time(None, now + _INSTANT)
        left = float(LOOK_SECONDS) if due is None else (due - now).total_seconds()
        return min(float(LOOK_SECONDS), max(0.0, left))

    def _attempt(self) -> bool:
        """Carry out a batch; whether it was done, or failed, and need not be tried before the next."""
        try:
            with Workspace.open(self._root) as ws:
                self._work(ws, self._tell)
        except LockedError as error:
            if not self._waited:
                self._tell(f"waits, and tries every {LOOK_SECONDS} s: {error}")
            self._waited = True
            return False
        except Exception as error:  # noqa: BLE001 - the scheduler lives on
            self.failed += 1
            self._tell(f"failed: {_said(error)}")
        self.batches += 1
        return True

    def _keep(self) -> None:
        """Write down which schedule is carried out, and until when."""
        kept = {
            "cron": self._schedule.text,
            "timezone": self._schedule.zone_name,
            "carried": self._carried.astimezone(UTC).isoformat(),
        }
        with Workspace.open(self._root) as ws, ws.ledger.transaction():
            ws.ledger.set(KEPT, json.dumps(kept))


def serve(keeper: Keeper) -> str:
    """Look now and at every due time, until SIGTERM or SIGINT; return the signal's name.

    A batch that runs then is ended first; a second signal ends the process at once, and the batch
    is one that was interrupted. Batches run in the calling thread, which must be the main one, one
    after the other, and start their workers as other commands do. Between two looks it waits by the
    monotonic clock: one that is set back puts off no look.
    """
    woken: SimpleQueue[str] = SimpleQueue()
    with _signals(keeper, woken):
        while True:
            keeper.look()
            with suppress(Empty):
                return woken.get(timeout=keeper.pause())


@contextmanager
def _signals(keeper: Keeper, woken: SimpleQueue[str]) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT stop the keeper, and wake who waits; the second is the end.

    A handler may interrupt anything, so it takes no lock and no stream's buffer.
    """
    names: list[str] = []

    def handle(number: int, _: object) -> None:
        if names:
            os._exit(128 + number)
        names.append(signal.Signals(number).name)
        keeper.stop()
        woken.put(names[0])
        with suppress(OSError):
            os.write(2, f"{names[0]}: {STOPPING}\n".encode())

    before = {s: signal.signal(s, handle) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="minutes")
