"""One model's failure does not stop the others: the job is partly done, until it is retried."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partly_done import (
    BATCH,
    SMALL,
    damage,
    end_state,
    last_job,
    leftovers,
    prepare,
    request_states,
    run_partly,
)
from receipt_workspace import GONE, checked_receipt, copied, forget, gone_rows, prepared_by, visits
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs import regression_models
from expunge.jobs.errors import LockedError
from expunge.jobs.model_family import Change
from expunge.jobs.receipt_page import page
from expunge.jobs.statements import RETIRED_TOO
from expunge.pipeline.fixedpoint import Scaling
from expunge.storage.errors import CorruptError, NoSpaceError
from expunge.storage.fence import StaleOrderError

prepared = prepared_by(prepare)
root = copied


@pytest.fixture
def gone(root: Path, csv_file: Callable[..., Path]) -> Path:
    """The rows that are to go, as csv with the data set's names."""
    path = csv_file(gone_rows(root), "gone.csv")
    path.write_text(path.read_text().replace("f0,f1,f2", "a,b,c"))
    return path


def test_the_others_commit_and_nothing_reads_the_rows(root: Path, cli: Cli, gone: Path) -> None:
    found, error = run_partly(root, *BATCH)
    job = found["job"]
    assert found["state"] == "partly done" and found["receipts"] == []
    assert [m["model"] for m in found["models"]] == ["km", "qk"]
    (late,) = found["behind"]
    assert late["model"] == "lg" and late["error"] == "CorruptError"
    assert f"job retry {job}" in error and "model retire lg" in error and "model lg" in error
    assert last_job(cli)["state"] == "partly done" and request_states(root) == {"partly done"}
    assert cli("receipt", "list")["receipts"] == []
    # The others' versions are current, and their old ones gone; lg's old one is there, and behind.
    behind = {m["name"]: (m["version"], m["behind"]) for m in cli("model", "list")["models"]}
    assert behind == {"km": (2, None), "qk": (2, None), "lg": (1, job)}
    assert leftovers(root) == [
        "data/t.zarr",
        *("models/km/v000002", "models/lg/v000001", "models/qk/v000002"),
    ]
    assert cli("model", "show", "lg")["behind"]["error"] == "CorruptError"
    assert cli("model", "show", "km")["behind"] is None
    assert cli("job", "show", job)["behind"][0]["model"] == "lg"
    states = {m["model"]: m["state"] for m in cli("data", "show", "t")["lineage"]}
    assert states == {"km": "current", "lg": "behind", "qk": "current"}
    # The rows are where they were: no scan may take them for living twins.
    assert cli("scan", "--rows", gone, "--data", "t", code=5)["matches"] >= len(gone_rows(root))
    for refused in (
        ("train", "z", "--data", "t", "--algorithm", "k-means", *INLINE),
        ("verify", "km", *INLINE),
        ("verify", "lg", *INLINE),
        ("predict", "lg", gone),
    ):
        assert f"expunge job retry {job}" in cli(*refused, code=1)
    assert len(cli("predict", "km", gone)["labels"]) == len(gone_rows(root))
    assert f"expunge job retry {job}" in cli("job", "resume", job, *INLINE, code=2)


def test_the_next_batch_waits_unless_it_is_about_other_rows(
    root: Path, cli: Cli, csv_file: Callable[..., Path]
) -> None:
    job = run_partly(root, *BATCH)[0]["job"]
    x = np.random.default_rng(0).normal(size=(50, 3))
    cli("data", "import", "u", csv_file(x), "--format", "csv")
    cli("forget", "--data", "u", "--unit", 3)
    # Done, and all the same told by the exit code: somebody has to do something for the other job.
    assert len(cli(*BATCH, code=3)["receipts"]) == 1
    forget(root, "Person-11")
    for way in ((), ("--dry-run",)):
        error = cli(*BATCH, *way, code=3)
        assert f"job retry {job}" in error and "model retire lg" in error
    cli("job", "retry", job, "--method", "basel", *INLINE)
    assert len(cli(*BATCH)["receipts"]) == 1


def test_a_scheduled_batch_says_so(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    once = ("batch", "schedule", "--once", *INLINE)
    with monkeypatch.context() as patch:
        kill_at(patch, "update", "before")
        with pytest.raises(Killed):
            cli(*once)
    # The killed job is resumed first, and ends so; then nothing is queued.
    error = cli(*once, code=3)
    job = last_job(cli)["id"]
    assert f"job {job} is partly done, behind are lg: expunge job retry {job}" in error
    assert "digest" not in error
    # Every later night, too, for as long as it stands.
    assert f"job retry {job}" in cli(*once, code=3)
    forget(root, "Person-11")
    assert f"job retry {job}" in cli(*once, code=3)
    assert f"job retry {job}" in cli(*BATCH, code=3)


def test_a_retry_fails_again_and_then_does_it(root: Path, cli: Cli, gone: Path) -> None:
    first, _ = run_partly(root, *BATCH)
    again, error = run_partly(root, "job", "retry", first["job"], *INLINE)
    assert again["state"] == "partly done" and "model retire lg" in error
    assert leftovers(root)[2] == "models/lg/v000001" and len(leftovers(root)) == 4
    assert "use delta" in cli("job", "retry", first["job"], "--method", "infl", *INLINE, code=2)
    assert last_job(cli)["state"] == "partly done"
    done = cli("job", "retry", first["job"], "--method", "basel", *INLINE)
    assert done["state"] == "done" and len(done["receipts"]) == 2
    assert [m["model"] for m in done["models"]] == ["km", "lg", "qk"]
    assert [m["model"] for m in first["models"]] == ["km", "qk"]
    assert {m["model"]: m["action"] for m in done["models"]}["lg"] == "retrained"
    found = checked_receipt(root, cli)
    assert [f["model"] for f in found["job"]["update_failures"]] == ["lg", "lg"]
    assert "CorruptError" in page(found) and found["rows"] > 0
    assert cli("scan", "--rows", gone, "--data", "t")["matches"] == 0
    for name in ("km", "qk", "lg"):
        cli("verify", name, *INLINE)
    assert leftovers(root)[1:] == [f"models/{m}/v000002" for m in ("km", "lg", "qk")]
    assert [m["behind"] for m in cli("model", "list")["models"]] == [None] * 3
    assert request_states(root) == {"done"}
    assert "nothing to retry" in cli("job", "retry", first["job"], *INLINE, code=2)


def test_models_are_what_they_would_be_without_the_failure(
    root: Path, cli: Cli, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(root)  # Twice flipped is whole again.
    shutil.copytree(root / "ws", root / "whole")
    cli(*BATCH)
    wanted = end_state(cli)
    shutil.rmtree(root / "ws")
    (root / "whole").rename(root / "ws")
    with monkeypatch.context() as patch:
        patch.setattr(regression_models, "next_version", failing(ValueError("odd")))
        run_partly(root, *BATCH)
    cli("job", "retry", last_job(cli)["id"], *INLINE)
    assert end_state(cli) == wanted


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_any_model_may_fail(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both k-means models fail with an error that nobody foresaw; the regression is updated."""
    damage(root)
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.kmeans_models.next_version", failing(ZeroDivisionError("x")))
        found, _ = run_partly(root, *BATCH)
    assert [m["model"] for m in found["models"]] == ["lg"]
    assert [m["model"] for m in found["behind"]] == ["km", "qk"]
    cli("model", "retire", "km", "--yes")
    done = cli("job", "retry", found["job"], *INLINE)
    assert [m["model"] for m in done["models"]] == ["lg", "qk"]
    assert cli("verify", "qk", *INLINE)["exact"]


def test_where_all_models_fail_nothing_is_committed(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = end_state(cli)["digests"]
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.kmeans_models.next_version", failing(ValueError("no")))
        assert "unexpected ValueError in jobs." in cli(*BATCH, code=1)
    assert last_job(cli)["state"] == "failed" and request_states(root) == {"queued"}
    assert end_state(cli)["digests"] == before


@pytest.mark.parametrize(
    "error",
    [
        NoSpaceError(28, "too full"),
        OSError(28, "No space left on device"),
        MemoryError(),
        StaleOrderError("replaced"),
        LockedError("busy"),
        ConnectionError("the scheduler is gone"),
        CorruptError("WS/data/t.zarr/x/c.0.0.0: 3 bytes found"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_concerns_all_models_fails_the_job(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    before = end_state(cli)
    if "WS" in str(error):
        error = CorruptError(str(error).replace("WS", str(root / "ws")))
    with monkeypatch.context() as patch:
        patch.setattr(regression_models, "next_version", failing(error))
        cli(*BATCH, code=75 if isinstance(error, LockedError) else 1)
    assert last_job(cli)["state"] == "failed" and request_states(root) == {"queued"}
    after = end_state(cli)
    assert (after["digests"], after["rows"]) == (before["digests"], before["rows"])
    assert len(leftovers(root)) == 4


def test_a_retry_that_cannot_be_made_leaves_the_job_partly_done(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_partly(root, *BATCH)[0]["job"]
    for error, code in ((MemoryError(), 1), (KeyboardInterrupt(), 130)):
        with monkeypatch.context() as patch:
            patch.setattr(regression_models, "next_version", failing(error))
            cli("job", "retry", job, *INLINE, code=code)
        assert last_job(cli)["state"] == "partly done" and request_states(root) == {"partly done"}
    x = max((root / "ws/data/t.zarr/unit").glob("c.*"), key=lambda p: np.fromfile(p, "<i8").max())
    kept = x.read_bytes()
    x.write_bytes(np.full(len(kept) // 8, -1, "<i8").tobytes())
    cli("job", "retry", job, "--method", "basel", *INLINE, code=1)
    x.write_bytes(kept)
    assert cli("job", "retry", job, "--method", "basel", *INLINE)["state"] == "done"


@pytest.mark.parametrize("known", [True, False])
def test_a_scan_of_a_retried_job_says_what_it_could_not_look_for(
    root: Path, cli: Cli, known: bool
) -> None:
    """Ranges of models that the first attempt updated are told by marks, if a scan was wanted then."""
    if known:
        cli("settings", "--verify", "scan")
    first = run_partly(root, *BATCH)[0]
    assert "former_ranges" not in first
    marks = cli("job", "show", first["job"])["report"].get("former_ranges")
    assert (marks is not None) == known and (not known or set(marks["t"]) == {"km", "qk"})
    cli("settings", "--verify", "scan")
    cli("job", "retry", first["job"], "--method", "basel", *INLINE)
    receipt = checked_receipt(root, cli)
    found = receipt["verification"]
    assert found["outcome"] == ("passed" if known else "incomplete")
    assert found["scan"]["rows"] == len(gone_rows(root))
    assert ("encodings of km, qk as before" in found["what"]) != known
    assert "former_ranges" not in receipt["job"]


def test_a_retried_job_scans_for_what_former_models_made_of_rows(root: Path, cli: Cli) -> None:
    """The range moved with the rows that the first attempt deleted; the retry knows it all the same."""
    cli("settings", "--verify", "scan")
    x = visits(root / "again.csv")
    names = [line.rsplit(",", 1)[1] for line in (root / "again.csv").read_text().split()[1:]]
    assert names[int(np.argmax(x[:, 0]))] in GONE
    fixed = Scaling.between(x.min(axis=0), x.max(axis=0)).fixed(gone_rows(root)[:1])
    job = run_partly(root, *BATCH)[0]["job"]
    (root / "ws" / "stray").write_bytes(fixed.tobytes())
    assert "in stray" in cli("job", "retry", job, "--method", "basel", *INLINE, code=5)


def test_a_scan_does_not_let_one_damaged_model_stop_the_others(root: Path, cli: Cli) -> None:
    """Neither in the batch nor in a retry; what can't be known of a model that is gone is said."""
    cli("settings", "--verify", "scan")
    damage(root)
    (max((root / "ws/models/km").glob("v*.zarr")) / "lower" / "c.0").unlink()
    found, _ = run_partly(root, *BATCH)
    assert [m["model"] for m in found["behind"]] == ["km"]
    assert [
        m["model"] for m in run_partly(root, "job", "retry", found["job"], *INLINE)[0]["behind"]
    ] == ["km"]
    cli("model", "retire", "km", "--yes")
    cli("job", "retry", found["job"], *INLINE)
    told = checked_receipt(root, cli)["verification"]
    assert told["outcome"] == "incomplete" and "encodings of km as before" in told["what"]


@pytest.mark.parametrize("way", ["queued", "partly", "committed"])
def test_an_unexpected_error_is_not_quoted(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its text may be a row's value; those of the program's own types are, and so is the file."""
    if way == "queued":
        monkeypatch.setattr("expunge.jobs.deletion.gather", failing(IndexError("secret 7.25")))
        error = str(cli(*BATCH, code=1))
        assert "error: unexpected IndexError in jobs.deletion, line" in error
    elif way == "partly":
        monkeypatch.setattr(regression_models, "next_version", failing(ValueError("secret 7.25")))
        found, error = run_partly(root, *BATCH)
        assert found["behind"][0]["problem"].startswith(
            "unexpected ValueError in jobs.updating, line"
        )
    else:
        damage(root)
        monkeypatch.setattr("expunge.jobs.erasure.erase_slots", failing(KeyError("secret 7.25")))
        error = str(cli(*BATCH, code=1))
        assert "unexpected KeyError in jobs.erasure, line" in error and "job resume" in error
    assert "secret" not in error and "7.25" not in error


def test_rows_that_cannot_be_read_are_no_models_failure(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad block of the data set's file: reading by its descriptor, the system names no file."""
    real = os.preadv
    reading: list[str] = []

    def preadv(descriptor: int, *given: Any) -> int:
        file = os.readlink(f"/proc/self/fd/{descriptor}")
        if reading and "/t.zarr/x/" in file:
            raise OSError(5, "Input/output error")
        return real(descriptor, *given)

    def next_version(change: Change) -> Any:
        reading.append(change.model)
        change.gathered.data_set.read_slots(0, np.arange(1))

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(regression_models, "next_version", next_version)
    error = str(cli(*BATCH, code=1))
    assert "Input/output error" in error and "t.zarr/x/c.0" in error
    assert last_job(cli)["state"] == "failed" and request_states(root) == {"queued"}


def test_a_data_set_does_not_wait_for_the_model_of_another(
    root: Path, cli: Cli, csv_file: Callable[..., Path]
) -> None:
    """It is done; and a receipt has the models of its own data set only, whatever is told of them."""
    cli("settings", "--verify", "retrain")
    x = np.random.default_rng(0).normal(size=(80, 3))
    cli("data", "import", "u", csv_file(x), "--format", "csv")
    cli("train", "ku", "--data", "u", "--algorithm", "k-means", "-p", "n_clusters=2", *INLINE)
    cli("forget", "--data", "u", "--unit", 3)
    job, done = run_partly(root, *BATCH)[0]["jobs"]
    assert cli("job", "show", job)["state"] == "partly done"
    assert cli("job", "show", done)["state"] == "done"
    assert cli("verify", "ku", *INLINE)["exact"]
    assert [r["data"] for r in cli("receipt", "list")["receipts"]] == ["u"]
    cli("model", "retire", "lg", "--yes")
    cli("job", "retry", job, *INLINE)
    own, other = checked_receipt(root, cli), checked_receipt(root, cli, "R00000003")
    for found, models in ((own, ["km", "qk"]), (other, ["ku"])):
        assert [m["model"] for m in found["job"]["models"]] == models
        assert [m["model"] for m in found["verification"]["models"]] == models
    assert [m["model"] for m in own["job"]["retired"]] == ["lg"]
    assert not {"retired", "update_failures"} & set(other["job"])
    assert RETIRED_TOO in own["statement"] and RETIRED_TOO not in other["statement"]


# ---- retirement


def test_a_retired_model_is_gone_and_its_job_can_end(root: Path, cli: Cli, gone: Path) -> None:
    job = run_partly(root, *BATCH)[0]["job"]
    (version,) = (root / "ws/models/lg").glob("v*")
    with min((version / "trajectory").glob("c.*")).open("rb") as file:
        assert any(file.read())
        assert "--yes" in cli("model", "retire", "lg", code=2)
        found = cli("model", "retire", "lg", "--yes")
        file.seek(0)
        # The file's name is gone; its bytes were overwritten before.
        assert not any(file.read())
    assert (found["versions"], found["jobs"]) == (1, [job])
    assert not (root / "ws/models/lg").exists()
    assert "no model" in cli("model", "show", "lg", code=2)
    assert last_job(cli)["state"] == "partly done"
    assert f"expunge job retry {job} finishes it" in cli("verify", "km", *INLINE, code=1)
    done = cli("job", "retry", job, *INLINE)
    assert done["state"] == "done" and len(done["receipts"]) == 2
    receipt = checked_receipt(root, cli)
    assert [m["model"] for m in receipt["job"]["retired"]] == ["lg"]
    assert RETIRED_TOO in receipt["statement"] and "Retired at" in page(receipt)
    assert cli("scan", "--rows", gone, "--data", "t")["matches"] == 0
    cli("train", "lg", "--data", "t", "--algorithm", "logistic", *SMALL, *INLINE)
    assert cli("model", "show", "lg")["version"] == 1
    states = [(m["model"], m["state"]) for m in cli("data", "show", "t")["lineage"]]
    assert states == [("km", "current"), ("lg", "current"), ("qk", "current"), ("lg", "retired")]


def test_a_model_that_nothing_waits_for_is_retired(root: Path, cli: Cli) -> None:
    assert cli("model", "retire", "lg", "--yes")["jobs"] == []
    assert leftovers(root)[1:] == ["models/km/v000001", "models/qk/v000001"]
    done = cli(*BATCH)
    assert len(done["receipts"]) == 2 and [m["model"] for m in done["models"]] == ["km", "qk"]
    assert "retired" not in checked_receipt(root, cli)["job"]
    assert "no model" in cli("model", "retire", "lg", "--yes", code=2)


def test_the_last_model_of_a_data_set_is_retired(root: Path, cli: Cli) -> None:
    job = run_partly(root, *BATCH)[0]["job"]
    for name in ("km", "qk", "lg"):
        assert cli("model", "retire", name, "--yes")["jobs"] == [job]
    cli("job", "retry", job, *INLINE)
    found = checked_receipt(root, cli)
    assert found["job"]["models"] == [] and len(found["job"]["retired"]) == 3
    assert found["statement"].endswith(RETIRED_TOO)


# ---- lineage


def test_versions_and_what_they_saw_are_told(root: Path, cli: Cli) -> None:
    damage(root)
    # Trained while the requests wait: the batch is about this model too.
    cli("train", "late", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=2", *INLINE)
    done = cli(*BATCH)
    assert {m["model"] for m in done["models"]} == {"km", "qk", "lg", "late"}
    shown = cli("model", "show", "late")
    assert (shown["data_set"], shown["generation"]) == ("t", 1)
    first, second = shown["versions"]
    jobs = {j["id"]: j["kind"] for j in cli("job", "list")["jobs"]}
    assert (first["version"], first["state"], jobs[first["job"]]) == (1, "retired", "train")
    assert (second["version"], second["state"], second["job"]) == (2, "live", done["job"])
    (line,) = (m for m in cli("data", "show", "t")["lineage"] if m["model"] == "late")
    assert (line["generation"], line["version"], line["job"]) == (1, 2, first["job"])
    assert cli("verify", "late", *INLINE)["exact"]
