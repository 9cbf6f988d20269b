"""``batch schedule``: what is due is done once, in real processes that are stopped and killed too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs import schedule
from expunge.jobs.console import open_fold
from expunge.jobs.cron import parse_schedule
from expunge.jobs.errors import JobError, LockedError
from expunge.jobs.schedule import KEPT, Keeper, Tell, carry_out, serve
from expunge.jobs.workspace import Workspace

EVENING = datetime(2026, 1, 1, 20, tzinfo=UTC)
NIGHTLY = "0 2 * * *"
DAY = timedelta(days=1)
PATIENCE = 300
"""Seconds that a process may take on a busy machine."""


class Night:
    """A workspace's scheduler whose clock the test sets; a batch is a call that is counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time = EVENING
        self.ran: list[datetime] = []
        self.log: list[str] = []
        self.fault: Exception | None = None
        self.keeper: Keeper

    def work(self, ws: Workspace, tell: Tell) -> dict[str, Any]:
        with ws.lock("test"):
            if self.fault is not None:
                raise self.fault
        self.ran.append(self.time)
        return {}

    def start(self, cron: str = NIGHTLY, zone: str = "UTC", catch_up: bool = True) -> None:
        """A new process begins."""
        due = parse_schedule(cron, zone)
        self.keeper = Keeper(self.root, due, self.work, self.log.append, lambda: self.time)
        self.keeper.begin(catch_up)

    def look(self, after: timedelta = timedelta()) -> int:
        """Let time pass and look; return how many batches that made."""
        before = len(self.ran)
        self.time += after
        self.keeper.look()
        return len(self.ran) - before

    def kept(self) -> Any:
        with Workspace.open(self.root) as ws:
            return json.loads(ws.ledger.setting(KEPT) or "null")


@pytest.fixture
def night(tmp_path: Path) -> Night:
    with Workspace.create(tmp_path / "ws"):
        return Night(tmp_path / "ws")


def test_each_due_time_is_carried_out_once(night: Night) -> None:
    night.start()
    assert night.look() == 0
    assert night.look(timedelta(hours=5, minutes=59)) == 0
    assert night.look(timedelta(minutes=1)) == 1
    assert night.kept()["carried"] == "2026-01-02T02:00:00+00:00"
    assert night.look() == 0
    assert night.look(timedelta(hours=23)) == 0
    # A machine that slept three days: once.
    assert night.look(3 * DAY) == 1
    assert night.look() == 0
    assert night.kept()["carried"] == "2026-01-05T02:00:00+00:00"
    assert night.keeper.batches == 2 and night.keeper.failed == 0


def test_times_missed_while_no_process_lived_are_made_up_for_once(night: Night) -> None:
    night.start()
    night.time += 5 * DAY
    night.start()
    assert "was due at 2026-01-06T02:00+00:00 while no scheduler ran" in night.log[-1]
    # Killed before it was done: still due for the next process.
    night.start()
    assert night.look() == 1
    assert night.look() == 0
    night.start()
    assert night.look() == 0
    assert night.look(DAY) == 1


def test_a_first_start_has_missed_nothing_and_no_catch_up_lets_go(night: Night) -> None:
    night.start()
    assert night.look() == 0
    night.time += 5 * DAY
    night.start(catch_up=False)
    assert night.look() == 0
    night.start()
    assert night.look() == 0


def test_what_was_missed_is_told_by_the_schedule_that_was_kept_then(night: Night) -> None:
    night.start()
    assert night.look(timedelta(hours=7)) == 1
    night.time += timedelta(hours=5)
    # At eight in the morning, five o'clock has passed: it was not due.
    night.start("0 5 * * *")
    assert night.look() == 0
    night.time += DAY
    # Here it was, though this schedule's time of day has not come.
    night.start("0 23 * * *", "Europe/Berlin")
    assert night.look() == 1
    assert night.kept()["cron"] == "0 23 * * *" and night.kept()["timezone"] == "Europe/Berlin"


def test_a_workspace_in_use_is_waited_for(night: Night) -> None:
    night.start()
    with Workspace.open(night.root) as other, other.lock("training of model z"):
        assert night.look(timedelta(hours=7)) == 0
        assert night.look(timedelta(minutes=1)) == 0
    told = [line for line in night.log if "training of model z" in line]
    assert len(told) == 1 and told[0].startswith("waits, and tries every 60 s")
    assert night.look(timedelta(minutes=1)) == 1
    assert night.look(timedelta(minutes=1)) == 0


@pytest.mark.parametrize("fault", [JobError("data set\nt is damaged"), ValueError("row 3.14159")])
def test_a_batch_that_fails_is_told_and_the_next_one_runs(night: Night, fault: Exception) -> None:
    night.start()
    night.fault = fault
    assert night.look(timedelta(hours=7)) == 0
    assert night.keeper.failed == 1
    if isinstance(fault, JobError):
        assert night.log[-1] == "failed: data set t is damaged"
    else:
        assert "unexpected ValueError" in night.log[-1] and "3.14159" not in str(night.log)
    night.fault = None
    # Not every minute anew: at the next due time.
    assert night.look(timedelta(minutes=1)) == 0
    assert night.look(DAY) == 1


def test_a_workspace_that_is_away_for_a_night_ends_nothing(night: Night, tmp_path: Path) -> None:
    night.start()
    night.root.rename(tmp_path / "away")
    assert night.look(timedelta(hours=7)) == 0
    assert "is not a workspace" in night.log[-2] and "can't keep" in night.log[-1]
    (tmp_path / "away").rename(night.root)
    assert night.look(DAY) == 1


def test_a_clock_that_was_wrong_puts_off_no_batch(night: Night) -> None:
    night.start()
    assert night.look(3650 * DAY) == 1
    night.time = EVENING + DAY
    assert night.look() == 0
    assert night.look(timedelta(hours=7)) == 1
    night.start()
    night.time = EVENING
    night.start()
    assert night.look(timedelta(hours=7)) == 1


def test_a_second_scheduler_is_refused_until_the_first_is_gone(night: Night) -> None:
    with (
        Workspace.scheduling(night.root, "scheduler one"),
        pytest.raises(LockedError, match=f"scheduler one, process {os.getpid()} on .* since 20"),
        Workspace.scheduling(night.root, "scheduler two"),
    ):
        pass
    for _ in range(2):
        with Workspace.scheduling(night.root, "scheduler two"):
            holder = json.loads((night.root / "schedule.lock").read_text())
            assert holder["purpose"] == "scheduler two"


class Fifths:
    """Due at every fifth of a second."""

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        since = now - EVENING
        return EVENING - (-since // timedelta(seconds=0.2)) * timedelta(seconds=0.2)


def test_batches_never_overlap_and_a_signal_waits_for_the_one_that_runs(
    night: Night, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Due every fifth of a second, while each batch takes three times as long."""
    running, most, ended = 0, 0, 0

    def slow(ws: Workspace, tell: Tell) -> dict[str, Any]:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        if ended == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.6)
        running -= 1
        ended += 1
        return {}

    monkeypatch.setattr(night, "work", slow)
    monkeypatch.setattr("expunge.jobs.cron.Schedule.trigger", lambda _: Fifths())
    night.time = datetime.now(UTC)
    night.start()
    night.keeper._clock = lambda: datetime.now(UTC)
    before = signal.getsignal(signal.SIGTERM)
    assert serve(night.keeper) == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before
    assert (most, ended, running) == (1, 3, 0)
    assert "SIGTERM: ends after the batch that runs" in capfd.readouterr().err


def test_a_clock_that_is_set_back_puts_off_no_look(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks go by the monotonic clock: here the other one goes back a day at every look."""
    monkeypatch.setattr(schedule, "LOOK_SECONDS", 0.02)
    night.start()
    looks: list[float] = []
    real = night.keeper.look

    def look() -> None:
        real()
        night.time -= DAY
        looks.append(time.monotonic())
        if len(looks) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(night.keeper, "look", look)
    assert serve(night.keeper) == "SIGTERM"
    assert len(looks) == 5


def test_the_pause_ends_at_the_next_due_time_or_look(night: Night) -> None:
    night.start()
    assert night.keeper.pause() == schedule.LOOK_SECONDS
    night.time = EVENING + timedelta(hours=6, seconds=-7)
    assert night.keeper.pause() == 7
    night.time = EVENING + timedelta(hours=6)
    assert night.keeper.pause() == schedule.LOOK_SECONDS


@pytest.fixture
def prepared(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A workspace with a model and three queued requests."""
    rng = np.random.default_rng(3)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(rng.normal(size=(300, 3))), "--format", "csv")
    cli("train", "m", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)
    cli("forget", "--data", "t", "--unit", "3,44,299")
    return tmp_path / "ws"


@pytest.mark.parametrize("step", ["update", "erase"])
def test_a_killed_job_is_resumed_before_the_batch(
    cli: Cli, prepared: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, step, "after")
        with pytest.raises(Killed):
            cli("batch", "run", "--yes", *INLINE)
    cli("forget", "--data", "t", "--unit", "5")
    log: list[str] = []
    folds = partial(open_fold, cluster="inline", workers=None, memory_limit=None)
    with Workspace.open(prepared) as ws:
        found = carry_out(ws, log.append, folds, "delta")
    assert found["resumed"] == [3] and found["job"] == 4
    assert log[0].startswith(
        "resumed job 3: 3 requests, 3 rows, 1 models, 3 receipts (not signed), "
    )
    assert log[1].startswith("job 4: 1 requests, 1 rows, 1 models, 1 receipts (not signed), ")
    assert len(cli("receipt", "list")["receipts"]) == 4
    assert cli("batch", "schedule", "--once", *INLINE)["job"] is None


GATED = """
import sys
import expunge.jobs.deletion as deletion
from expunge.jobs.cli import run
name, *command = sys.argv[1:]
real = getattr(deletion, name)
def gate(*arguments):
    print("running", flush=True)
    sys.stdin.readline()
    return real(*arguments)
if __name__ == "__main__":
    setattr(deletion, name, gate)
    sys.exit(run(command))
"""
"""The program, whose batches wait for a line on stdin before they call a function."""
DAEMON = ("batch", "schedule", "--cron", "0 2 1 1 *")
LOCAL = ("--cluster", "local", "--workers", "2")


def due_now(root: Path) -> None:
    """Leave the record of a scheduler that was stopped two years ago."""
    kept = {
        "cron": NIGHTLY,
        "timezone": "UTC",
        "carried": (datetime.now(UTC) - 730 * DAY).isoformat(),
    }
    with Workspace.open(root) as ws, ws.ledger.transaction():
        ws.ledger.set(KEPT, json.dumps(kept))


@contextmanager
def daemon(root: Path, gate: str = "gather", cluster: tuple[str, ...] = INLINE) -> Iterator[Any]:
    """A scheduler, its three streams piped, with a terminal's group of its own, at the moment in which its first batch runs."""
    command = [sys.executable, "-c", GATED, gate, "-w", str(root), "--json", *DAEMON, *cluster]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(  # type: ignore[call-overload]
        command, text=True, start_new_session=True, **pipes
    ) as child:
        watch = threading.Timer(PATIENCE, child.kill)
        watch.start()
        try:
            assert child.stdout.readline() == "running\n"
            yield child
        finally:
            watch.cancel()
            child.kill()


def test_a_stopped_scheduler_ends_its_batch_first(cli: Cli, prepared: Path) -> None:
    due_now(prepared)
    with daemon(prepared) as child:
        assert f"process {child.pid} on " in cli(*DAEMON, *INLINE, code=75)
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        out, log = child.communicate("go\n", timeout=PATIENCE)
        assert child.returncode == 0
    assert json.loads(out) == {"batches": 1, "failed": 0, "signal": "SIGTERM"}
    assert len(cli("receipt", "list")["receipts"]) == 3
    # Each line: the time, then what was done; nothing of who it was about.
    assert log.splitlines()[2].startswith("SIGTERM: ")
    lines = [line.split(" ", 1)[1] for line in log.splitlines()]
    assert len(lines) == 5 and lines[4] == "ended", log
    assert lines[3].startswith("job 3: 3 requests, 3 rows, 1 models, 3 receipts")
    with Workspace.open(prepared) as ws:
        kept = json.loads(ws.ledger.setting(KEPT) or "")
    assert kept["cron"] == "0 2 1 1 *"
    assert datetime.now(UTC) - datetime.fromisoformat(kept["carried"]) < DAY


def test_a_killed_scheduler_is_made_up_for_by_the_next(cli: Cli, prepared: Path) -> None:
    due_now(prepared)
    with daemon(prepared) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert cli("job", "list")["jobs"][-1]["state"] == "interrupted"
    cli("forget", "--data", "t", "--unit", "5")
    with daemon(prepared) as child:
        child.stdin.write("go\ngo\n")
        child.stdin.flush()
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGINT)
        out, log = child.communicate(timeout=PATIENCE)
        assert child.returncode == 0, log
    assert json.loads(out) == {"batches": 1, "failed": 0, "signal": "SIGINT"}
    assert "resumed job 3: 3 requests" in log and "job 4: 1 requests" in log
    assert len(cli("receipt", "list")["receipts"]) == 4


def test_a_second_signal_ends_at_once(cli: Cli, prepared: Path) -> None:
    due_now(prepared)
    with daemon(prepared) as child:
        child.send_signal(signal.SIGTERM)
        while "SIGTERM" not in child.stderr.readline():
            pass
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 128 + signal.SIGTERM
    assert cli("batch", "schedule", "--once", *INLINE)["resumed"] == [3]
    assert len(cli("receipt", "list")["receipts"]) == 3


@pytest.mark.slow
def test_ctrl_c_reaches_all_processes_and_the_batch_ends(cli: Cli, prepared: Path) -> None:
    """As a terminal sends it: to the driver, and to the workers that it still needs."""
    due_now(prepared)
    with daemon(prepared, "ranges_before", LOCAL) as child:
        before = {p.pid for p in psutil.Process(child.pid).children(recursive=True)}
        os.killpg(child.pid, signal.SIGINT)
        while "SIGINT" not in child.stderr.readline():
            pass
        time.sleep(1)
        assert {p.pid for p in psutil.Process(child.pid).children(recursive=True)} == before
        _, log = child.communicate("go\n", timeout=PATIENCE)
        assert child.returncode == 0
    assert len(before) >= 2 and "job 3: 3 requests" in log and "Traceback" not in log
    assert len(cli("receipt", "list")["receipts"]) == 3


def test_the_looks_are_frequent_enough_for_a_clock_that_jumps() -> None:
    assert schedule.LOOK_SECONDS <= 60
