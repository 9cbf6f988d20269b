"""Jobs that are stopped before their commit leave the queue as it was, and nothing on the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from partly_done import (
    BATCH,
    end_state,
    last_job,
    leftovers,
    prepare_three,
    request_states,
    run_partly,
)
from partly_done import prepare as prepare_partly
from receipt_workspace import copied, prepared_by
from support import INLINE, Cli
from test_cluster import _already
from test_interrupted import Killed, kill_at

from expunge.jobs.fold import DaskFold, InlineFold, unchecked
from expunge.jobs.former_ranges import ranges_before
from expunge.jobs.workspace import Workspace
from expunge.storage.errors import NoSpaceError

WAITING = """
import sys, time
from pathlib import Path
from expunge.jobs import {family} as family
real = family.next_version
def wait(change):
    result = real(change)
    Path(sys.argv[1]).touch()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        {wait}
    return result
family.next_version = wait
from expunge.jobs.cli import run; sys.exit(run(sys.argv[2:]))
"""
TELLING = "change.progress('waiting'); time.sleep(0.05)"
IN_TASKS = "change.fold(time.sleep, [0.05] * 4, lambda one, other: one)"


prepared = prepared_by(prepare_three)
root = copied


def start_waiting(root: Path, wait: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a batch that waits in its update, when k-means' next version is written."""
    ready = root / "ready"
    script = WAITING.format(family="regression_models", wait=wait)
    given = [sys.executable, "-c", script, str(ready), "-w", str(root / "ws"), *arguments]
    child = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not ready.exists():
        assert child.poll() is None and time.monotonic() < until, child.communicate()
        time.sleep(0.05)
    return child


def as_before(root: Path, cli: Cli, wanted: dict[str, Any]) -> None:
    """The requests wait, the models stand, and no other folder is left; the next batch does it."""
    assert request_states(root) == {"queued"}
    found = end_state(cli)
    assert found.pop("state")[-1] == "cancelled"
    assert found == {name: value for name, value in wanted.items() if name != "state"}
    assert leftovers(root) == ["data/t.zarr", *(f"models/{m}/v000001" for m in ("km", "lg", "qk"))]
    assert not list((root / "ws/models").glob("*/*.partial"))
    assert len(cli(*BATCH)["receipts"]) == 2


@pytest.mark.parametrize(
    ("wait", "cluster"),
    [
        (TELLING, INLINE),
        (IN_TASKS, INLINE),
        pytest.param(IN_TASKS, ("--cluster", "local", "--workers", "1"), marks=pytest.mark.slow),
    ],
)
def test_a_job_is_cancelled_from_another_process(
    root: Path, cli: Cli, wait: str, cluster: tuple[str, ...]
) -> None:
    wanted = end_state(cli)
    child = start_waiting(root, wait, "batch", "run", "--yes", *cluster)
    job = last_job(cli)["id"]
    assert len(leftovers(root)) > 4
    assert cli("job", "cancel", job) == {"job": job, "state": "cancelled"}
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 1 and f"job {job} was cancelled" in errors
    assert "nothing to cancel" in cli("job", "cancel", job, code=2)
    as_before(root, cli, wanted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_commit(root: Path, cli: Cli, number: int) -> None:
    wanted = end_state(cli)
    child = start_waiting(root, TELLING, "batch", "run", "--yes", *INLINE)
    os.kill(child.pid, number)
    child.communicate(timeout=60)
    assert child.returncode == 130
    as_before(root, cli, wanted)


def test_a_signal_that_a_callback_swallows(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the compiler's does: what is left looks like the failure of one model."""
    wanted = end_state(cli)

    def swallow(_: object) -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        raise RuntimeError("no compiled object yet")

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.regression_models.next_version", swallow)
        cli(*BATCH, code=130)
    as_before(root, cli, wanted)


def test_an_interrupted_job_is_cancelled(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = end_state(cli)
    with monkeypatch.context() as patch:
        kill_at(patch, "update", "after")
        with pytest.raises(Killed):
            cli(*BATCH)
    assert request_states(root) == {"running"}
    job = last_job(cli)["id"]
    assert cli("job", "cancel", job)["state"] == "cancelled"
    as_before(root, cli, wanted)


def test_a_driver_that_died_while_it_was_asked_is_cancelled_when_resumed(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = end_state(cli)
    with monkeypatch.context() as patch:
        kill_at(patch, "gather", "after")
        with pytest.raises(Killed):
            cli(*BATCH)
    job = last_job(cli)["id"]
    ask(root, job)
    assert "was cancelled" in cli("job", "resume", job, *INLINE, code=1)
    as_before(root, cli, wanted)


def ask(root: Path, job: int) -> None:
    """Set a job's flag, as ``job cancel`` does."""
    with Workspace.open(root / "ws") as ws, ws.ledger.transaction():
        ws.ledger.run("INSERT INTO cancellations VALUES (?, 'now')", job)


def test_the_commit_looks_for_the_flag_too(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the commit nobody is told that a job was cancelled which was not."""
    wanted = end_state(cli)
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.cancelling.LOOK_SECONDS", 1e9)

        def asked_now(ws: Workspace, data_sets: list[str]) -> Any:
            ask(root, last_job(cli)["id"])
            return ranges_before(ws, data_sets)

        patch.setattr("expunge.jobs.deletion.ranges_before", asked_now)
        assert "was cancelled" in cli(*BATCH, code=1)
    as_before(root, cli, wanted)


def test_a_flag_ends_with_a_job_that_fails(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.cancelling.LOOK_SECONDS", 1e9)

        def asked_and_failing(*_: object) -> None:
            ask(root, last_job(cli)["id"])
            raise NoSpaceError(28, "too full")

        patch.setattr("expunge.jobs.deletion.ranges_before", asked_and_failing)
        cli(*BATCH, code=1)
    assert last_job(cli)["state"] == "failed" and request_states(root) == {"queued"}
    with Workspace.open(root / "ws") as ws:
        assert ws.ledger.rows("SELECT * FROM cancellations") == []


@pytest.mark.parametrize("step", ["commit", "erase", "receipt"])
def test_after_the_commit_it_is_too_late(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, step, "before" if step == "receipt" else "after")
        with pytest.raises(Killed):
            cli(*BATCH)
    job = last_job(cli)["id"]
    error = cli("job", "cancel", job, code=1)
    assert "too late" in error and f"job resume {job}" in error
    assert len(cli("job", "resume", job, *INLINE)["receipts"]) == 2
    assert "nothing to cancel" in cli("job", "cancel", job, code=2)


def test_other_jobs_are_not_cancelled(root: Path, cli: Cli) -> None:
    assert "kind train" in cli("job", "cancel", 2, code=2)
    assert "no job 99" in cli("job", "cancel", 99, code=2)


def test_a_partly_done_job_is_not_cancelled(tmp_path: Path, cli: Cli) -> None:
    prepare_partly(tmp_path)
    job = run_partly(tmp_path, *BATCH)[0]["job"]
    error = cli("job", "cancel", job, code=1)
    assert "too late" in error and f"job retry {job}" in error


# ---- folds


class Unwanted(Exception):
    """What the check of these tests raises."""


def nap(path: str) -> int:
    """A task that leaves a trace."""
    with Path(path).open("a") as file:
        file.write("x")
    time.sleep(0.2)
    return 1


def test_an_inline_fold_checks_between_tasks(tmp_path: Path) -> None:
    fold, left = InlineFold(), [2]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Unwanted

    fold.check = check
    trace = tmp_path / "trace"
    with pytest.raises(Unwanted):
        fold(nap, [str(trace)] * 5, lambda one, other: one + other)
    assert trace.read_text() == "xx"


def test_a_cluster_drops_tasks_that_have_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.jobs.fold.CHECK_SECONDS", 0.05)
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(n_workers=1, **options) as local, Client(local) as client:
        fold = DaskFold(lambda: _already(client))
        trace = tmp_path / "trace"

        def check() -> None:
            if trace.exists():
                raise Unwanted

        fold.check = check
        with pytest.raises(Unwanted):
            fold(nap, [str(trace)] * 50, lambda one, other: one + other)
        time.sleep(1.0)
        assert len(trace.read_text()) < 10
        fold.check = unchecked
        assert fold(nap, [str(trace)] * 3, lambda one, other: one + other) == 3
