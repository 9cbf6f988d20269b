"""``batch schedule``: a batch at every due time, for as long as the process lives.

What is due follows from three things alone: the due times, the clock, and the last due time that
was carried out, which the ledger keeps. So a time that passed while the process was down, while the
machine slept or while somebody else held the workspace is found at the next look.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.interval import IntervalTrigger

from .cron import Schedule, Trigger, latest_due, parse_schedule
from .deletion import run_batch
from .errors import LockedError, PartlyDoneError
from .fold import Fold
from .pending import cure, models_behind
from .resuming import RESUMABLE, resume
from .workspace import Workspace

KEPT = "schedule"
"""Name of the ledger's setting that says which schedule is carried out, and until when."""
LOOK_SECONDS = 60
"""Between two looks at the clock, beside those at due times: one that was set, or a machine that
slept, is noticed; what could not be done since the workspace was in use is tried again."""
STOPPING = "ends after the batch that runs, if any; a second signal ends it at once"

Folds = Callable[[Workspace], AbstractContextManager[Fold]]
Tell = Callable[[str], None]
Work = Callable[[Workspace, Tell], dict[str, Any]]


def carry_out(ws: Workspace, tell: Tell, folds: Folds, method: str) -> dict[str, Any]:
    """Resume deletions that were interrupted, then run a batch; one line for each.

    Returns the batch's report, and the jobs ``resumed``. LockedError where another process works,
    PartlyDoneError where one of these jobs ended so: somebody has to retry it.
    """
    resumed, late = [], []
    with ws.lock("scheduled batch"):
        waiting = ws.ledger.rows(
            "SELECT id FROM jobs WHERE kind = 'deletion' "
            f"AND state IN ({','.join('?' * len(RESUMABLE))}) ORDER BY id",
            *RESUMABLE,
        )
        for job in (row["id"] for row in waiting):
            started = monotonic()
            with folds(ws) as fold:
                found = resume(ws, job, fold, _silent)
            resumed.append(job)
            late += [job] * bool(found["behind"])
            tell(f"resumed {_line(found, started)}")
        started = monotonic()
        with folds(ws) as fold:
            found = run_batch(ws, fold, _silent, method)
        tell(_line(found, started))
        late += [found["job"]] * bool(found["behind"])
        if late:
            raise PartlyDoneError(_waiting(ws, late))
    return {**found, "resumed": resumed}


def _waiting(ws: Workspace, jobs: list[int]) -> str:
    """What partly done jobs wait for, without the errors, which may quote a row."""
    parts = []
    for job in jobs:
        names = ", ".join(m["model"] for m in models_behind(ws.ledger, job))
        parts.append(f"job {job} is partly done, behind are {names}: {cure(ws.ledger, job)}")
    return "; ".join(parts)


def _silent(*_: object) -> None:
    """Progress that nobody watches."""


def _line(found: dict[str, Any], started: float) -> str:
    """What a job did, in counts alone: logs are kept."""
    seconds = f"{monotonic() - started:.1f} s"
    if found["job"] is None:
        return f"nothing is queued, {seconds}"
    models = found["models"]
    parts = [
        f"job {found['job']}: {found['requests']} requests",
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
        plain: tuple[type[Exception], ...],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """plain: errors whose text may be told; of others, which may quote a row, the kind is."""
        self.batches = self.failed = 0
        self._root = root
        self._schedule = schedule
        self._trigger = schedule.trigger()
        self._work = work
        self._tell = tell
        self._plain = plain
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
            self._tell(f"the ledger can't keep that this batch was run: {self._said(error)}")

    def stop(self) -> None:
        """Begin no further batch."""
        self._stopping = True

    def next_due(self) -> datetime | None:
        """The first due time to come."""
        return self._trigger.get_next_fire_time(None, self._clock())

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
            self._tell(f"failed: {self._said(error)}")
        self.batches += 1
        return True

    def _said(self, error: Exception) -> str:
        """An error in one line."""
        if isinstance(error, self._plain):
            return " ".join(str(error).split())
        return f"unexpected {type(error).__name__}; expunge --debug batch run shows where"

    def _keep(self) -> None:
        """Write down which schedule is carried out, and until when."""
        kept = {
            "cron": self._schedule.text,
            "timezone": self._schedule.zone_name,
            "carried": self._carried.astimezone(UTC).isoformat(),
        }
        with Workspace.open(self._root) as ws, ws.ledger.transaction():
            ws.ledger.set(KEPT, json.dumps(kept))


def serve(keeper: Keeper, trigger: Trigger) -> str:
    """Look now and at every due time, until SIGTERM or SIGINT; return the signal's name.

    A batch that runs then is ended first; a second signal ends the process at once, and the batch
    is one that was interrupted. APScheduler only wakes the calling thread, which must be the main
    one: batches run in it, one after the other, and start their workers as other commands do.
    """
    woken: SimpleQueue[str] = SimpleQueue()
    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.add_job(
        woken.put,
        OrTrigger([trigger, IntervalTrigger(seconds=LOOK_SECONDS, timezone=UTC)]),
        ("",),
        next_run_time=datetime.now(UTC),
        coalesce=True,
        misfire_grace_time=None,
    )
    with _signals(keeper, woken):
        scheduler.start()
        try:
            while not (name := woken.get()):
                keeper.look()
        finally:
            scheduler.shutdown()
    return name


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
