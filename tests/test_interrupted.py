"""Jobs that stop at any step boundary end, resumed, as if they had not been interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli

from expunge.jobs.ledger import Ledger

STEPS = ("plan", "gather", "update", "commit", "erase", "retire", "verify", "receipt")


class Killed(BaseException):
    """Stands for the end of the process: no handler of errors sees it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: str, when: str) -> None:
    """Make the named step kill the process before it starts or after its work is done."""
    real = Ledger.step

    @contextmanager
    def step_or_die(self: Ledger, job: int, name: str) -> Iterator[None]:
        with real(self, job, name):
            if name == step and when == "before":
                raise Killed
            yield
            if name == step and when == "after":
                raise Killed

    monkeypatch.setattr(Ledger, "step", step_or_die)


def digests(cli: Cli) -> dict[str, Any]:
    """What must not depend on interruptions."""
    models = {n: cli("model", "show", n) for n in ("km", "qk")}
    return {
        "digests": {n: m["digest"] for n, m in models.items()},
        "versions": {n: m["version"] for n, m in models.items()},
        "rows": cli("data", "show", "t")["rows"],
        "receipts": [r["unit_hash"] for r in cli("receipt", "list")["receipts"]],
    }


@pytest.fixture
def prepared(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A workspace with two models and queued requests; returns the rows that will go, as csv."""
    rng = np.random.default_rng(3)
    x = rng.normal(rng.integers(0, 3, (600, 1)), 0.3, (600, 3)).astype(np.float32)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(x), "--format", "csv")
    cli("train", "km", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)
    cli("train", "qk", "--data", "t", "--algorithm", "q-kmeans", "-p", "n_clusters=3", *INLINE)
    gone = [3, 44, 599, int(np.argmax(x[:, 0]))]
    cli("forget", "--data", "t", "--unit", ",".join(map(str, gone)))
    return csv_file(x[gone], "gone.csv")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_deletion_resumes_from_every_boundary(
    cli: Cli, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    cli("batch", "run", "--yes", *INLINE)
    undisturbed = digests(cli)
    shutil.rmtree(tmp_path / "ws")
    (tmp_path / "copy").rename(tmp_path / "ws")

    with monkeypatch.context() as patch:
        kill_at(patch, step, when)
        with pytest.raises(Killed):
            cli("batch", "run", "--yes", *INLINE)
    job = cli("job", "list")["jobs"][-1]["id"]
    if (step, when) == ("receipt", "after"):
        # The receipts' transaction was the job's end: nothing is left to resume.
        assert cli("job", "show", job)["state"] == "done"
    else:
        error = cli("batch", "run", "--yes", *INLINE, code=1)
        assert f"expunge job resume {job}" in error
        if (step, when) in {("commit", "after"), ("erase", "before")}:
            train = ["--data", "t", "--algorithm", "k-means", *INLINE]
            assert f"expunge job resume {job}" in cli("train", "z", *train, code=1)
        cli("job", "resume", job, *INLINE)
    assert digests(cli) == undisturbed
    assert cli("scan", "--rows", prepared)["matches"] == 0
    for model in ("km", "qk"):
        assert cli("verify", model, "--against", "retrain", *INLINE)["exact"]
    assert cli("batch", "run", "--yes", *INLINE)["job"] is None
    leftovers = [p.name for p in (tmp_path / "ws" / "models" / "qk").iterdir()]
    assert len(leftovers) == 1


def test_an_error_before_the_commit_puts_the_requests_back(
    cli: Cli, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cli("model", "show", "qk")["digest"]

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.kmeans_models.write_version", fail)
        assert "No space left" in cli("batch", "run", "--yes", *INLINE, code=1)
    assert cli("job", "list")["jobs"][-1]["state"] == "failed"
    assert cli("model", "show", "qk")["digest"] == before
    assert cli("batch", "run", "--yes", *INLINE)["requests"] == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_training_and_import_resume(
    cli: Cli,
    csv_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    path = csv_file(np.random.default_rng(0).random((200, 2)))
    cli("init", tmp_path / "ws")
    train = ["--data", "t", "--algorithm", "k-means", "-p", "n_clusters=2", *INLINE]
    with monkeypatch.context() as patch:
        kill_at(patch, "import", when)
        with pytest.raises(Killed):
            cli("data", "import", "t", path, "--format", "csv")
    cli("data", "import", "other", path, "--format", "csv")
    assert [p.name for p in (tmp_path / "ws" / "data").iterdir()] == ["other.zarr"]
    cli("job", "resume", 1, *INLINE)
    with monkeypatch.context() as patch:
        kill_at(patch, "train", when)
        with pytest.raises(Killed):
            cli("train", "a", *train)
    cli("train", "b", *train)
    assert cli("job", "resume", 3, *INLINE)["digest"] == cli("model", "show", "b")["digest"]
    assert cli("job", "show", 3)["state"] == "done"
    assert cli("model", "show", "a")["digest"] == cli("model", "show", "b")["digest"]


def test_a_failed_verification_keeps_the_requests_open(
    cli: Cli, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.erasure.erase_slots", lambda *_: None)
        assert "still hold data" in cli("batch", "run", "--yes", *INLINE, code=5)
    assert cli("receipt", "list")["receipts"] == []
    job = cli("job", "list")["jobs"][-1]
    assert job["state"] == "unverified"
    listed = cli("request", "list", "--state", "failed", "--overdue")
    assert listed["counts"] == {} and cli("request", "list")["counts"] == {"failed": 4}
    request = cli("request", "show", 1)
    assert request["rows"] == 1 and request["receipt"] is None and request["unit"] is not None
    assert "request 1 is failed in job" in cli("request", "cancel", 1, code=2)
    again = cli("forget", "--data", "t", "--unit", request["unit"])
    assert again["queued"] == 0 and again["existing"][0]["request"] == 1
    held = ("hold", "place", "--data", "t", "--unit", request["unit"], "--ground", "a law suit")
    assert "too late" in cli(*held, code=2)
    assert len(cli("job", "resume", job["id"], *INLINE)["receipts"]) == 4
    assert cli("request", "list")["counts"] == {"done": 4}
    assert cli("scan", "--rows", prepared)["matches"] == 0
