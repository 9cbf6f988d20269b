"""A batch of several data sets: one job each, and none waits for the trouble of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs.batches import faults, joined, run_batch, worst
from expunge.jobs.cancelling import JobCancelledError
from expunge.jobs.console import open_fold
from expunge.jobs.errors import JobError, PartlyDoneError, VerifyError
from expunge.jobs.fold import InlineFold
from expunge.jobs.requests import forget
from expunge.jobs.schedule import carry_out
from expunge.jobs.workspace import Workspace

BATCH = ("batch", "run", "--yes", *INLINE)
FOLDS = partial(open_fold, cluster="inline", workers=None, memory_limit=None)


@pytest.fixture
def root(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A workspace with data sets a, b and c, a model of each, and requests on all."""
    rows = csv_file(np.random.default_rng(0).normal(size=(60, 2)))
    cli("init", tmp_path / "ws")
    for name in "abc":
        cli("data", "import", name, rows, "--format", "csv", "--cells", "1")
        settings = ("--algorithm", "k-means", "-p", "n_clusters=2", *INLINE)
        cli("train", f"m{name}", "--data", name, *settings)
        cli("forget", "--data", name, "--unit", "3,7")
    return tmp_path / "ws"


def states(cli: Cli) -> dict[str, set[str]]:
    """The states of each data set's requests."""
    found: dict[str, set[str]] = {}
    for request in cli("request", "list")["requests"]:
        found.setdefault(request["data"], set()).add(request["state"])
    return found


def damage(root: Path, name: str) -> None:
    """Lose the units of a data set's cell."""
    (root / "data" / f"{name}.zarr" / "unit" / "c.0.0").write_bytes(b"")


def test_each_data_set_has_a_job_of_its_own(root: Path, cli: Cli) -> None:
    found = cli(*BATCH)
    assert len(found["jobs"]) == 3 and found["job"] is None and found["skipped"] == []
    assert (found["requests"], found["rows"], len(found["receipts"])) == (6, 6, 6)
    assert [model["model"] for model in found["models"]] == ["ma", "mb", "mc"]
    assert states(cli) == {name: {"done"} for name in "abc"}
    assert cli(*BATCH)["jobs"] == []
    cli("forget", "--data", "b", "--unit", "9")
    alone = cli(*BATCH)
    assert alone["jobs"] == [alone["job"]]


def test_a_damaged_data_set_is_skipped_and_its_requests_wait(root: Path, cli: Cli) -> None:
    chunk = root / "data" / "a.zarr" / "unit" / "c.0.0"
    before = chunk.read_bytes()
    damage(root, "a")
    found = cli(*BATCH, code=1)
    assert [one["data"] for one in found["skipped"]] == ["a"] and len(found["jobs"]) == 2
    assert states(cli) == {"a": {"queued"}, "b": {"done"}, "c": {"done"}}
    # Where nothing else is queued, what is wrong is the whole answer.
    assert "a.zarr" in cli(*BATCH, code=1)
    chunk.write_bytes(before)
    assert len(cli(*BATCH)["receipts"]) == 2
    assert states(cli) == {name: {"done"} for name in "abc"}


def test_an_interrupted_job_keeps_only_its_own_data_set_waiting(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "erase", "after")
        with pytest.raises(Killed):
            cli(*BATCH)
    job = cli("job", "list")["jobs"][-1]["id"]
    cli("forget", "--data", "a", "--unit", "11")
    found = cli(*BATCH, code=1)
    assert [one["data"] for one in found["skipped"]] == ["a"]
    assert f"job resume {job}" in found["skipped"][0]["problem"]
    assert [model["model"] for model in found["models"]] == ["mb", "mc"]
    # Told as long as it stands, whatever else is done.
    cli("request", "cancel", 7)
    cli("forget", "--data", "b", "--unit", "11")
    assert len(cli(*BATCH, code=1)["receipts"]) == 1
    cli("forget", "--data", "a", "--unit", "12")
    cli("job", "resume", job, *INLINE)
    assert len(cli(*BATCH)["receipts"]) == 1


def test_late_arrivals_wait_for_the_next_batch(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request on the last data set, asked for while the first one's job runs."""

    def late(what: str) -> None:
        with Workspace.open(root) as other:
            forget(other, "c", np.array([20]))

    with Workspace.open(root) as ws:
        found = run_batch(ws, InlineFold(), late)
    assert found["requests"] == 6
    assert states(cli)["c"] == {"done", "queued"}


def test_a_cancelled_job_ends_the_batch(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(*_: object) -> None:
        raise JobCancelledError("cancelled")

    monkeypatch.setattr("expunge.jobs.deletion.check_not_cancelled", cancelled)
    cli(*BATCH, code=1)
    assert [job["state"] for job in cli("job", "list")["jobs"][-1:]] == ["cancelled"]
    assert states(cli) == {name: {"queued"} for name in "abc"}


@pytest.mark.parametrize(
    "fault", [JobCancelledError("cancelled"), OSError("disk"), ValueError("x")]
)
def test_a_resume_that_fails_keeps_no_batch_from_running(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "update", "after")
        with pytest.raises(Killed):
            cli(*BATCH)
    log: list[str] = []

    def failing(*_: object) -> Any:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.schedule.resume", failing)
        with (
            Workspace.open(root) as ws,
            pytest.raises(Exception, match="disk|cancelled|x"),
        ):
            carry_out(ws, log.append, FOLDS, "delta")
    assert "was not resumed" in log[0] and log[1].startswith("job ")
    assert states(cli) == {"a": {"running"}, "b": {"done"}, "c": {"done"}}
    assert len(cli("batch", "schedule", "--once", *INLINE)["resumed"]) == 1
    assert states(cli) == {name: {"done"} for name in "abc"}


def test_a_job_cancelled_while_it_is_resumed_lets_the_batch_write(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end takes the fence anew: what runs after it must write under that one."""
    with monkeypatch.context() as patch:
        kill_at(patch, "update", "after")
        with pytest.raises(Killed):
            cli(*BATCH)
    job = cli("job", "list")["jobs"][-1]["id"]
    with Workspace.open(root) as ws:
        with ws.ledger.transaction():
            ws.ledger.run("INSERT INTO cancellations VALUES (?, '')", job)
        with pytest.raises(JobCancelledError):
            carry_out(ws, lambda line: None, FOLDS, "delta")
    assert cli("job", "show", job)["state"] == "cancelled"
    assert states(cli) == {name: {"done"} for name in "abc"}


def test_the_worst_of_several_errors_gives_the_exit_code() -> None:
    late, failed, wrong = PartlyDoneError("late"), JobError("failed"), VerifyError("wrong")
    assert worst([late]) is late
    assert type(worst([late, ValueError("3.14")])) is JobError
    assert str(worst([late, ValueError("3.14")])) == "late; unexpected ValueError"
    assert worst([late, failed, wrong]).exit_code == 5  # type: ignore[attr-defined]
    assert worst([late, PartlyDoneError("later")]).exit_code == 3  # type: ignore[attr-defined]


def test_no_job_at_all_is_a_report_too(root: Path) -> None:
    found = joined([])
    assert (found["jobs"], found["requests"], found["state"]) == ([], 0, "done")
    with Workspace.open(root) as ws:
        assert faults(ws.ledger, found | {"skipped": []}) == []
    json.dumps(found)
