"""Jobs verify themselves before their receipts: every way, and what a failure leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from receipt_workspace import (
    GONE,
    KMEANS,
    checked_receipt,
    copied,
    gone_rows,
    prepare_batch,
    prepared_by,
    visits,
)
from support import INLINE, Cli

from expunge.jobs import erasure
from expunge.jobs.fold import InlineFold
from expunge.jobs.plan import gather
from expunge.jobs.receipt_page import page
from expunge.jobs.statements import STANDARD_LIMIT
from expunge.jobs.workspace import Workspace
from expunge.pipeline.fixedpoint import Scaling
from expunge.storage.cells import subject_units
from expunge.storage.dataset import DataSet

BATCH = ("batch", "run", "--yes", *INLINE)


prepared = prepared_by(prepare_batch)
root = copied


def test_the_setting_is_kept(root: Path, cli: Cli) -> None:
    assert cli("settings") == {"verify": "none"}
    assert cli("settings", "--verify", "scan") == {"verify": "scan"}
    assert cli("settings") == {"verify": "scan"}
    assert "none, sample, retrain, scan" in cli("settings", "--verify", "hope", code=2)


@pytest.mark.parametrize(
    ("how", "outcome", "models"),
    [("none", "not done", 0), ("sample", "passed", 1), ("retrain", "passed", 2)],
)
def test_models_are_compared_as_asked(
    root: Path, cli: Cli, how: str, outcome: str, models: int
) -> None:
    cli("settings", "--verify", how)
    plain = cli(*BATCH)
    found = checked_receipt(root, cli)["verification"]
    assert found == plain["verification"]
    assert (found["verify"], found["outcome"]) == (how, outcome)
    assert len(found["models"]) == models and all(m["exact"] for m in found["models"])
    assert found["read_back"]["versions"] == 2 and found["scan"] is None
    assert len(cli("receipt", "list")["receipts"]) == 2


@pytest.mark.parametrize("how", ["sample", "retrain"])
def test_each_data_set_is_judged_by_its_own_models(
    root: Path, cli: Cli, csv_file: Callable[..., Path], how: str
) -> None:
    """A sample is of every data set; where no model saw the rows, nothing was compared."""
    cli("settings", "--verify", how)
    path = csv_file(np.random.default_rng(2).normal(size=(60, 3)))
    for name in ("alone", "u"):
        cli("data", "import", name, path, "--format", "csv")
        cli("forget", "--data", name, "--unit", 4)
    cli("train", "ku", "--data", "u", *KMEANS[:4], *INLINE)
    done = cli(*BATCH)["verification"]
    found = [
        checked_receipt(root, cli, f"R0000000{number}")["verification"] for number in (1, 3, 4)
    ]
    assert [v["outcome"] for v in found] == ["passed", "not done", "passed"]
    count = 1 if how == "sample" else 2
    assert [len(v["models"]) for v in found] == [count, 0, 1]
    assert "no model that is there saw the rows" in found[1]["what"]
    assert found[2]["models"][0]["model"] == "ku"
    assert done["outcome"] == "passed" and len(done["models"]) == count + 1


def test_a_failure_of_another_data_set_is_not_told(
    root: Path, cli: Cli, csv_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("settings", "--verify", "retrain")
    cli("data", "import", "u", csv_file(np.eye(9)), "--format", "csv")
    cli("forget", "--data", "u", "--unit", 4)
    with monkeypatch.context() as patch:
        wrong = ({"exact": False}, "it is wrong")
        patch.setattr("expunge.jobs.job_verifying.verify_model", lambda *_: wrong)
        cli(*BATCH, code=5)
    cli("settings", "--verify", "none")
    (job,) = (j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "unverified")
    done = cli("job", "resume", job, *INLINE)
    told = [checked_receipt(root, cli, f"R0000000{n}")["verification"] for n in (1, 3)]
    assert [len(v["earlier_failures"]) for v in (*told, done["verification"])] == [1, 0, 1]
    assert told[0]["earlier_failures"][0]["problem"] == "it is wrong; it is wrong"


def test_verifying_is_no_part_of_what_a_deletion_touches(root: Path, cli: Cli) -> None:
    shutil.copytree(root / "ws", root / "kept")
    plain = cli(*BATCH)
    shutil.rmtree(root / "ws")
    (root / "kept").rename(root / "ws")
    cli("settings", "--verify", "retrain")
    verified = cli(*BATCH)
    for name in ("cells_read", "bytes_read", "bytes_written", "tasks"):
        assert plain[name] == verified[name]


def test_a_scan_in_the_job(root: Path, cli: Cli) -> None:
    cli("settings", "--verify", "scan")
    done = cli(*BATCH)
    found = checked_receipt(root, cli)["verification"]
    assert found["outcome"] == "passed" and found["scan"]["rows"] == done["rows"]
    assert found["scan"]["bytes"] > 50_000 and found["scan"]["rows_not_searched"] == 0


def test_rows_that_cannot_be_searched_are_told(
    root: Path, cli: Cli, csv_file: Callable[..., Path]
) -> None:
    """One feature is four bytes, and equal bytes are anywhere: neither is claimed as searched."""
    cli("settings", "--verify", "scan")
    narrow, zeros = np.arange(40.0).reshape(-1, 1), np.zeros((40, 3))
    cli("data", "import", "narrow", csv_file(narrow), "--format", "csv")
    cli("data", "import", "zeros", csv_file(zeros), "--format", "csv")
    cli("forget", "--data", "narrow", "--unit", "3,4")
    cli("forget", "--data", "zeros", "--unit", 7)
    done = cli(*BATCH)["verification"]
    assert done["outcome"] == "incomplete" and done["scan"]["rows_not_searched"] == 3
    assert checked_receipt(root, cli, "R00000004")["verification"]["outcome"] == "incomplete"
    own = checked_receipt(root, cli)["verification"]
    assert own["outcome"] == "passed" and own["scan"]["rows"] == len(gone_rows(root))


def test_a_row_in_a_corner_raises_no_alarm_and_is_told(
    root: Path, cli: Cli, csv_file: Callable[..., Path]
) -> None:
    """The extreme row in every feature is zeros and ones to its model: as labels are, and counts."""
    cli("settings", "--verify", "scan")
    x = np.random.default_rng(1).normal(size=(60, 3))
    x[7] = [9.25, -8.5, 7.75]
    path = csv_file(np.column_stack([x, np.arange(60) % 2]))
    cli("data", "import", "u", path, "--format", "csv", "--label", "f3")
    cli("train", "ku", "--data", "u", *KMEANS[:4], *INLINE)
    cli("forget", "--data", "u", "--unit", 7)
    done = cli(*BATCH)["verification"]
    assert done["outcome"] == "incomplete" and done["scan"]["rows_not_searched"] == 1
    # Its own bytes were searched for all the same.
    lost = csv_file(x[[7]], "lost.csv")
    (root / "ws" / "stray").write_bytes(x[7].astype(np.float32).tobytes())
    assert cli("scan", "--rows", lost, "--data", "u", code=5)["files"] == ["stray"]


def test_a_scan_takes_many_rows_in_parts(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.jobs.job_scanning.ROWS_AT_ONCE", 3)
    cli("settings", "--verify", "scan")
    shutil.copytree(root / "ws", root / "kept")
    (root / "ws" / "stray").write_bytes(gone_rows(root)[-1].tobytes())
    assert "bytes of 1 deleted rows" in cli(*BATCH, code=5)
    shutil.rmtree(root / "ws")
    (root / "kept").rename(root / "ws")
    done = cli(*BATCH)
    assert done["verification"]["scan"]["rows"] == done["rows"] > 3


@pytest.mark.parametrize("former", [True, False])
def test_what_models_made_of_a_row_is_searched_for(root: Path, cli: Cli, former: bool) -> None:
    """The range of a feature moves with its last row: models to come scale rows otherwise."""
    cli("settings", "--verify", "scan")
    x = visits(root / "again.csv")
    names = [line.rsplit(",", 1)[1] for line in (root / "again.csv").read_text().split()[1:]]
    assert names[int(np.argmax(x[:, 0]))] in GONE
    kept = x if former else x[~np.isin(names, GONE)]
    row = int(np.flatnonzero(np.isin(names, GONE))[0])
    fixed = Scaling.between(kept.min(axis=0), kept.max(axis=0)).fixed(x[[row]])
    (root / "ws" / "stray").write_bytes(fixed.tobytes())
    assert "stray" in cli(*BATCH, code=5)
    job = cli("job", "list")["jobs"][-1]["id"]
    assert "still stand" in cli("job", "resume", job, *INLINE, code=5)
    (root / "ws" / "stray").unlink()
    cli("job", "resume", job, *INLINE)
    assert "at 1 places" in checked_receipt(root, cli)["verification"]["what"]


@pytest.mark.slow
def test_retrains_on_local_workers(root: Path, cli: Cli) -> None:
    cli("settings", "--verify", "retrain")
    cli("batch", "run", "--yes", "--cluster", "local", "--workers", 2)
    assert checked_receipt(root, cli)["verification"]["outcome"] == "passed"
    assert not list((root / "ws" / "spill").iterdir())


def test_sparse_rows_are_scanned_for(root: Path, cli: Cli) -> None:
    cli("settings", "--verify", "scan")
    cli("data", "generate", "news", "--like", "rcv1", "--rows", 60, "--cells", 2)
    cli("forget", "--data", "news", "--unit", "3,40")
    with Workspace.open(root / "ws") as ws:
        data = DataSet.open(ws.data_path("news"))
        salt = ws.ledger.salt
    row = gather(data, np.array([3]), salt, InlineFold()).sparse.values
    assert len(row) > 4
    shutil.copytree(root / "ws", root / "kept")
    (root / "ws" / "stray").write_bytes(row.tobytes())
    # The data set t was done; what is wrong with the other is told beside it, and by the exit code.
    (wrong,) = cli(*BATCH, code=5)["skipped"]
    assert wrong["data"] == "news" and "deleted rows of data set news" in wrong["problem"]
    shutil.rmtree(root / "ws")
    (root / "kept").rename(root / "ws")
    assert cli(*BATCH)["verification"]["scan"]["rows"] > 2
    assert checked_receipt(root, cli, "R00000003")["data"] == "news"


@pytest.mark.slow
def test_approximate_models_are_compared_by_distance(root: Path, cli: Cli) -> None:
    cli("settings", "--verify", "retrain")
    given = ("-p", "iterations=60", "-p", "batch_size=100", "-p", "provenance=exact")
    cli("train", "lg", "--data", "t", "--algorithm", "logistic", *given, *INLINE)
    cli(*BATCH)
    found = checked_receipt(root, cli)
    (compared,) = (m for m in found["verification"]["models"] if m["model"] == "lg")
    assert compared["against"] == "basel" and compared["distance"] <= 10 * compared["estimate"]
    assert "residual" in found["statement"] and STANDARD_LIMIT in found["limits"]
    assert "estimated" in page(found)


# ---- failures


def nothing_personal(root: Path) -> None:
    """The ledger holds no deleted row, though its job failed because of one."""
    data = b"".join(f.read_bytes() for f in (root / "ws").glob("ledger.sqlite*"))
    for row in gone_rows(root):
        for encoded in (row, row.astype(float)):
            assert encoded.tobytes() not in data
        assert str(row[0]).encode() not in data
    assert b"Person-" not in data


def test_a_failed_retrain_keeps_the_receipts_back(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("settings", "--verify", "retrain")
    chunk = max((root / "ws/data/t.zarr/x").glob("c.*"))
    real = erasure._read_back

    def flip() -> None:
        data = bytearray(chunk.read_bytes())
        data[2] ^= 1
        chunk.write_bytes(data)

    def read_back_and_flip(ws: Workspace, job: int) -> dict[str, int]:
        found = real(ws, job)
        flip()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(erasure, "_read_back", read_back_and_flip)
        assert "no receipt is issued" in cli(*BATCH, code=5)
    job = cli("job", "list")["jobs"][-1]
    assert job["state"] == "unverified" and cli("receipt", "list")["receipts"] == []
    assert f"expunge job resume {job['id']}" in cli(*BATCH, code=1)
    (failure,) = cli("job", "show", job["id"])["report"]["verification_failures"]
    assert failure["verify"] == "retrain" and "not what a retrain gives" in failure["problem"]
    assert [m["exact"] for m in failure["models"]] == [False, False]
    nothing_personal(root)
    # The row is wrong still: it fails again. When it is right, the receipts tell of both.
    cli("job", "resume", job["id"], *INLINE, code=5)
    flip()
    cli("job", "resume", job["id"], *INLINE)
    found = checked_receipt(root, cli)["verification"]
    assert found["outcome"] == "passed" and len(found["earlier_failures"]) == 2
    assert cli("job", "show", job["id"])["report"].get("verification_failures") is None


def test_a_failure_cannot_be_hidden_by_another_setting(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("settings", "--verify", "retrain")
    wrong = {"exact": False, "differing": ["sums"]}
    with monkeypatch.context() as patch:
        patch.setattr(
            "expunge.jobs.job_verifying.verify_model", lambda *_: (wrong, "model km is wrong")
        )
        cli(*BATCH, code=5)
    cli("settings", "--verify", "none")
    cli("job", "resume", cli("job", "list")["jobs"][-1]["id"], *INLINE)
    found = checked_receipt(root, cli)["verification"]
    assert found["verify"] == "none" and found["outcome"] == "not done"
    (failure,) = found["earlier_failures"]
    assert failure["verify"] == "retrain" and "model km is wrong" in failure["problem"]
    assert "model km is wrong" in page(cli("receipt", "show", "R00000001"))


def test_a_failed_scan_remembers_where(root: Path, cli: Cli) -> None:
    cli("settings", "--verify", "scan")
    rows = gone_rows(root)
    stray, other = root / "ws" / "spill" / "stray", root / "ws" / "stray"
    stray.write_bytes(b"abc" + rows[0].tobytes())
    other.write_bytes(rows[1].astype(float).tobytes())
    error = cli(*BATCH, code=5)
    assert "2 deleted rows" in error and "spill/stray" in error
    job = cli("job", "list")["jobs"][-1]["id"]
    assert cli("receipt", "list")["receipts"] == []
    (failure,) = cli("job", "show", job)["report"]["verification_failures"]
    assert failure["files"] == ["spill/stray", "stray"] and failure["found"] == 2
    nothing_personal(root)
    # The rows are gone from memory; what was found is looked at again, place by place.
    stray.write_bytes(b"abc")
    assert "still stand at 1 of the 2 places" in cli("job", "resume", job, *INLINE, code=5)
    other.unlink()
    cli("job", "resume", job, *INLINE)
    found = checked_receipt(root, cli)["verification"]
    assert found["outcome"] == "not done" and found["what"].startswith("not scanned: resumed")
    assert "at 2 places" in found["what"] and len(found["earlier_failures"]) == 2
    nothing_personal(root)


def test_a_failed_read_back_is_evidence_too(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.erasure.erase_slots", lambda *_: None)
        cli(*BATCH, code=5)
    cli("job", "resume", cli("job", "list")["jobs"][-1]["id"], *INLINE)
    (failure,) = checked_receipt(root, cli)["verification"]["earlier_failures"]
    assert failure["verify"] == "read back" and "still hold data" in failure["problem"]
    assert str(root) not in failure["problem"]


def test_the_lock_is_held_once(root: Path) -> None:
    with Workspace.open(root / "ws") as ws:
        with ws.lock("outer") as outer:
            with ws.lock("inner") as inner:
                assert inner is outer
            assert "outer" in (root / "ws" / "lock").read_text()
        assert not (root / "ws" / "lock").read_text().strip()


def test_rows_of_a_unit_are_counted(root: Path, cli: Cli) -> None:
    cli(*BATCH)
    names = [line.rsplit(",", 1)[1] for line in (root / "visits.csv").read_text().split()[1:]]
    with Workspace.open(root / "ws") as ws:
        salt = ws.ledger.salt
        assert DataSet.open(ws.data_path("t")).attrs["subjects"]
    for name in GONE:
        unit = int(subject_units([name], salt)[0])
        (found,) = cli("receipt", "list", "--data", "t", "--unit", unit)["receipts"]
        assert found["rows"] == names.count(name)
