"""A regression whose verification failed is trained anew by ``job retry``, and the job ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from partly_done import BATCH, damage, last_job, leftovers, prepare_three
from receipt_workspace import checked_receipt, copied, prepared_by
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs import erasure
from expunge.jobs.verifying import verify_model
from expunge.jobs.workspace import Workspace

prepared = prepared_by(prepare_three)
root = copied


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def mended(root: Path, cli: Cli, version: int = 3) -> dict[str, Any]:
    """Check the receipt of a job whose regression was trained anew, and return the model's report."""
    found = checked_receipt(root, cli)
    assert found["verification"]["outcome"] == "passed"
    assert "lg" in found["verification"]["earlier_failures"][0]["problem"]
    report: dict[str, Any] = next(m for m in found["job"]["models"] if m["model"] == "lg")
    assert (report["action"], report["method"], report["exactness"]) == (
        *("retrained", "basel", "exact"),
    )
    assert (report["version_before"], report["version"]) == (1, version)
    assert report["digest"] == cli("model", "show", "lg")["digest"]
    assert report["rows_before"] > report["rows"]
    assert leftovers(root)[2] == f"models/lg/v{version:06d}" and len(leftovers(root)) == 4
    return report


@pytest.mark.parametrize("how", ["retrain", "sample"])
def test_an_approximate_model_that_is_too_far(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cli("settings", "--verify", how)
    # No approximate model is as near as that, for ever.
    monkeypatch.setattr("expunge.jobs.verifying_regression.FACTOR", 1e-9)
    monkeypatch.setattr("expunge.jobs.job_verifying._drawn", lambda *_: 1)
    assert "job retry" in cli(*BATCH, code=5)
    job = last_job(cli)["id"]
    (failure,) = cli("job", "show", job)["report"]["verification_failures"]
    assert failure["at_fault"] == ["lg"]
    cli("job", "resume", job, *INLINE, code=5)
    done = cli("job", "retry", job, *INLINE)
    assert done["state"] == "done" and len(done["receipts"]) == 2
    mended(root, cli)
    assert len(checked_receipt(root, cli)["verification"]["earlier_failures"]) == 2
    assert cli("verify", "lg", *INLINE)["distance"] == 0.0


@pytest.mark.parametrize("again", [False, True])
def test_a_damaged_version_is_written_anew(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Found by the comparison, or by reading back what was written."""
    cli("settings", "--verify", "retrain")
    real = erasure._read_back

    def read_back_and_damage(ws: Workspace, job: int) -> dict[str, int]:
        found = real(ws, job)
        damage(root)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(erasure, "_read_back", read_back_and_damage)
        cli(*BATCH, code=5)
    job = last_job(cli)["id"]
    if again:
        assert "job retry" in cli("job", "resume", job, *INLINE, code=5)
    cli("job", "retry", job, *INLINE)
    mended(root, cli)


def test_a_killed_mending_is_resumed(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("settings", "--verify", "retrain")
    monkeypatch.setattr("expunge.jobs.verifying_regression.FACTOR", 1e-9)
    cli(*BATCH, code=5)
    job = last_job(cli)["id"]
    with monkeypatch.context() as patch:
        kill_at(patch, "mend", "before")
        with pytest.raises(Killed):
            cli("job", "retry", job, *INLINE)
    assert "was interrupted" in cli(*BATCH, code=1)
    assert "resume" in cli("job", "retry", job, *INLINE, code=2)
    cli("job", "resume", job, *INLINE, code=5)
    with monkeypatch.context() as patch:
        kill_at(patch, "mend", "after")
        with pytest.raises(Killed):
            cli("job", "retry", job, *INLINE)
    cli("job", "resume", job, *INLINE)
    mended(root, cli)


def test_a_model_that_cannot_be_mended_is_retired(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("settings", "--verify", "retrain")
    with monkeypatch.context() as patch:
        # Exact models are not trained anew: what differs there is damage.
        wrong = ({"exact": False, "differing": ["sums"]}, "it is wrong")
        patch.setattr("expunge.jobs.job_verifying.verify_model", lambda *_: wrong)
        cli(*BATCH, code=5)
        job = last_job(cli)["id"]
        cli("model", "retire", "lg", "--yes")
        cli("job", "retry", job, *INLINE, code=5)
    assert cli("model", "show", "km")["version"] == 2
    done = cli("job", "retry", job, *INLINE)
    assert [m["model"] for m in done["verification"]["models"]] == ["km", "qk"]
    assert [m["model"] for m in checked_receipt(root, cli)["job"]["retired"]] == ["lg"]


def test_a_sparse_model_is_mended(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("settings", "--verify", "retrain")
    cli("data", "generate", "news", "--like", "rcv1", "--rows", 300, "--cells", 2)
    given = ("-p", "iterations=40", "-p", "batch_size=50")
    cli("train", "sp", "--data", "news", "--algorithm", "sparse-logistic", *given, *INLINE)
    cli("forget", "--data", "news", "--unit", ",".join(map(str, range(9))))
    wrong = ({"distance": 1.0, "change": 1.0, "estimate": 0.0}, "model sp is far")

    def verify(ws: Workspace, name: str, *rest: Any) -> Any:
        return wrong if name == "sp" else verify_model(ws, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.job_verifying.verify_model", verify)
        cli(*BATCH, code=5)
    (job,) = (j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "unverified")
    assert cli("request", "list", "--data", "news")["counts"] == {"failed": 9}
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.retrying._at_fault", _interrupt)
        cli("job", "retry", job, *INLINE, code=130)
    assert cli("job", "show", job)["state"] == "unverified"
    assert cli("request", "list", "--data", "news")["counts"] == {"failed": 9}
    done = cli("job", "retry", job, *INLINE)
    assert cli("request", "list", "--data", "news")["counts"] == {"done": 9}
    (report,) = (m for m in done["models"] if m["model"] == "sp")
    assert (report["action"], report["version"], report["exactness"]) == ("retrained", 3, "exact")
    assert cli("verify", "sp", *INLINE)["distance"] == 0.0
