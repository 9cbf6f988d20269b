"""Linear, logistic and softmax models from a csv to receipts through the command line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from regression_workspace import (
    AVERAGED,
    EXACT,
    REPORT,
    D,
    arrays,
    chunks,
    delete,
    import_rows,
    norm,
    opened,
    start,
    stored_rows,
    train,
    visits_of,
)
from support import INLINE, Cli

from expunge.jobs.fold import InlineFold
from expunge.jobs.plan import gather
from expunge.jobs.regression_arrays import (
    PRODUCT,
    TRACE,
)
from expunge.jobs.regression_deletion import leaving_rows
from expunge.jobs.update_regression import update_stored
from expunge.jobs.workspace import Workspace
from expunge.pipeline.estimate import MOST_ROWS
from expunge.pipeline.provenance import packed_size
from expunge.pipeline.regression import held_out
from expunge.storage.files import metered

# ---- from a csv to receipts


MODELS = {
    "lin": ("linear", *EXACT),
    "lin-av": ("linear", *AVERAGED),
    "log": ("logistic", *EXACT),
    "log-av": ("logistic", *AVERAGED),
    "soft": ("softmax", *EXACT),
    "soft-av": ("softmax", *AVERAGED),
}


def test_all_kinds_of_models_in_one_batch(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "logistic")
    given = ("--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)
    cli("train", "km", "--data", "t", *given)
    digests = {name: train(cli, name, *how)["digest"] for name, how in MODELS.items()}
    reports = delete(cli, 5, 17, 400)
    assert set(reports) == {"km", *MODELS}
    assert reports["km"]["exactness"] == "exact"
    for name, (loss, *_) in MODELS.items():
        report = reports[name]
        assert set(report) >= REPORT
        kind = "averaged" if name.endswith("-av") else "exact"
        assert (report["algorithm"], report["kind"]) == (loss, kind)
        assert (report["action"], report["method"]) == ("updated", "delta")
        assert report["exactness"] == "approximate" and report["passes"] == 0
        assert report["digest_before"] == digests[name] != report["digest"]
        assert report["change"] > 0.0 and 0.0 <= report["estimate"] < report["change"]
        assert report["rows"] == report["rows_before"] - 3
        assert report["share_deleted"] == pytest.approx(3 / report["rows_before"])
        assert kind == "averaged" or not report["retrain_recommended"]
        assert len(list((tmp_path / "ws/models" / name).iterdir())) == 1
        shown = cli("model", "show", name)
        assert (shown["version"], shown["digest"]) == (2, report["digest"])
        checked = cli("verify", name, *INLINE)
        assert checked["intact"] and checked["against"] == "basel"
        assert checked["distance"] < 0.1 * checked["change"] and checked["cosine"] > 0.999999
    assert cli("verify", "km", *INLINE)["exact"]
    assert cli("scan", "--rows", only_rows(tmp_path, [5, 17, 400]))["matches"] == 0
    receipts = cli("receipt", "list")["receipts"]
    assert len(receipts) == 3
    receipt = cli("receipt", "show", receipts[0]["receipt"])
    assert "approximate" in receipt["statement"] and "residual" in receipt["statement"]


def only_rows(tmp_path: Path, units: list[int]) -> Path:
    """A csv file with some rows of data set t."""
    lines = (tmp_path / "t.csv").read_text().splitlines()
    path = tmp_path / "only.csv"
    path.write_text("\n".join([lines[0], *(lines[1 + unit] for unit in units)]) + "\n")
    return path


@pytest.mark.parametrize("kind", ["exact", "averaged"])
def test_the_arrays_of_a_version(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, "softmax", n=6400)
    # Few epochs: most blocks miss a row, so that products of blocks are kept.
    train(cli, "m", "softmax", "-p", f"provenance={kind}", "-p", "iterations=64")
    opened_ = xr.open_zarr(next((tmp_path / "ws/models/m").iterdir()))
    size, blocks = 3 * (D + 1), 8 if kind == "exact" else 10
    shapes = {
        "trajectory": (64, size),
        "G": (64, size),
        "live": (64,),
        "parameters": (3, D + 1),
        "mean": (D,),
        "scale": (D,),
        "classes": (3,),
        "rows": (3,),
        "distance": (4,),
    }
    if kind == "exact":
        shapes |= {"C": (64, packed_size(size)), "product": (blocks, size, size)}
    else:
        shapes |= {"eigenvalues": (blocks, size), "eigenvectors": (blocks, size, size)}
    assert {str(n): v.shape for n, v in opened_.items() if n != "digests"} == shapes
    assert opened_["live"].values.sum() == pytest.approx(64 * 150, rel=0.03)
    assert opened_["classes"].values.tolist() == [0, 10, 20]
    for name in shapes:
        np.testing.assert_array_equal(opened_[name].values, arrays(tmp_path, "m")[name])


# ---- the update


def test_a_linear_model_stays_what_a_retrain_gives(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    train(cli, "m", "linear")
    before = arrays(tmp_path, "m")["parameters"]
    for number, units in enumerate([(3, 4, 900), (11,), tuple(range(20, 320))]):
        report = delete(cli, *units)["m"]
        after = arrays(tmp_path, "m")["parameters"]
        assert norm(after - before) == pytest.approx(report["change"])
        assert report["change"] > 1e-8 and report["version"] == number + 2
        # The last deletion is of a quarter of the rows.
        assert report["retrain_recommended"] == (number == 2)
        assert cli("verify", "m", *INLINE)["distance"] <= 1e-10 * norm(after)
        before = after


def test_the_next_version_is_a_fresh_models_to_rounding(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, n=4800)
    train(cli, "m", "linear")
    gone = [3, 4, 900, 17]
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    old = arrays(tmp_path, "m")
    parent = next((tmp_path / "ws/models/m").iterdir())
    shutil.copytree(parent, tmp_path / "parent")
    first = int(visits_of(tmp_path, "m", gone).min())
    delete(cli, *gone)
    new = arrays(tmp_path, "m")
    shutil.rmtree(tmp_path / "ws")
    (tmp_path / "copy").rename(tmp_path / "ws")
    assert delete(cli, *gone, method="basel")["m"]["exactness"] == "exact"
    fresh = arrays(tmp_path, "m")
    assert set(fresh) == set(new) >= {*TRACE, "C", PRODUCT, "parameters"}
    for name in (*TRACE, "C", PRODUCT, "parameters"):
        np.testing.assert_allclose(new[name], fresh[name], rtol=1e-9, atol=1e-9 * norm(fresh[name]))
    # Nothing is left as it was from the first use of a deleted row on.
    assert 0 < first < 40
    assert (new["trajectory"][first + 1 :] != old["trajectory"][first + 1 :]).any(axis=1).all()
    assert (new["G"][first:] != old["G"][first:]).any(axis=1).all()


@pytest.mark.parametrize("kind", ["exact", "averaged"])
def test_touched_chunks_are_written_and_others_linked(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    start(cli, tmp_path, "logistic", n=4800)
    train(cli, "m", "logistic", "-p", f"provenance={kind}")
    settings = opened(tmp_path, "m").settings
    # A unit whose first use is late.
    starts = {unit: visits_of(tmp_path, "m", [unit]) for unit in range(60)}
    unit = max((u for u, v in starts.items() if len(v)), key=lambda u: int(starts[u][0]))
    touched = set((starts[unit] // settings.block).tolist())
    first = min(touched)
    assert first > 0 and len(touched) < settings.blocks.count - first
    parent = next((tmp_path / "ws/models/m").iterdir())
    before = {p.relative_to(parent): (p.stat().st_ino, p.read_bytes()) for p in chunks(parent)}
    delete(cli, unit)
    version = next((tmp_path / "ws/models/m").iterdir())
    assert version != parent
    for path in chunks(version):
        name, block = path.parent.name, int(path.name.split(".")[1])
        if name not in (*TRACE, "C", "eigenvalues", "eigenvectors"):
            continue
        inode, data = before[path.relative_to(version)]
        shared = block < first or (name not in TRACE and block not in touched)
        assert (path.stat().st_ino == inode) == shared, path
        # The retired version's links are gone.
        assert path.stat().st_nlink == 1
        assert (path.read_bytes() == data) == (shared or (name == "live" and block not in touched))


def test_what_is_deleted_was_kept_from_training(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    train(cli, "m", "linear", *EXACT)
    train(cli, "av", "linear", *AVERAGED)
    settings = opened(tmp_path, "m").settings
    units = np.flatnonzero(held_out(np.arange(1200), settings))[:5]
    before = {name: arrays(tmp_path, name) for name in ("m", "av")}
    reports = delete(cli, *units.tolist())
    for name, report in reports.items():
        assert (report["action"], report["change"]) == ("unchanged", 0.0)
        assert report["rows"] == report["rows_before"]
        after = arrays(tmp_path, name)
        assert all(after[n].tobytes() == values.tobytes() for n, values in before[name].items())
        assert report["digest"] == report["digest_before"]
        assert cli("verify", name, *INLINE)["distance"] == 0.0


def test_every_row_goes(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "logistic", n=40)
    for name in ("lin", "log-av", "soft"):
        train(cli, name, *MODELS[name], "-p", "batch_size=20")
    cli("forget", "--data", "t", "--sample", 1.0)
    plan = cli("batch", "run", "--dry-run", *INLINE)["models"]
    assert {m["action"] for m in plan} == {"retrained"}
    for report in cli("batch", "run", "--yes", *INLINE)["models"]:
        assert report["rows"] == 0 and report["empty"] and report["share_deleted"] == 1.0
        assert (report["action"], report["reason"]) == (
            "retrained",
            "only 0 training rows are left",
        )
        found = arrays(tmp_path, report["model"])
        assert not found["live"].any()
        # Without rows nothing but weight decay is left, from 0 on.
        assert norm(found["parameters"]) == 0.0
        shown = cli("model", "show", report["model"])
        assert shown["empty"] and shown["rows"] == 0 and shown["share_deleted"] == 1.0
        assert "empty" in cli("predict", report["model"], tmp_path / "t.csv", code=1)
        assert cli("verify", report["model"], *INLINE)["distance"] == 0.0


def test_one_row(cli: Cli, tmp_path: Path) -> None:
    import_rows(cli, tmp_path, np.array([[2.0, 3.0]]), np.array([5.0]))
    found = train(cli, "m", "linear", "-p", "validation=0", "-p", "iterations=400")
    assert found["rows"] == 1 and found["validation_rows"] == 0
    assert cli("predict", "m", tmp_path / "t.csv")["labels"] == pytest.approx([5.0], rel=0.01)
    report = delete(cli, 0)["m"]
    assert report["rows"] == 0 and norm(arrays(tmp_path, "m")["parameters"]) == 0.0


@pytest.mark.parametrize("kind", ["exact", "none"])
def test_empty_cells(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, n=20)
    train(cli, "m", "linear", "-p", f"provenance={kind}", "-p", "batch_size=2")
    rows = stored_rows(tmp_path, "m")
    assert any((rows.units(cell) < 0).all() for cell in range(16))
    assert (arrays(tmp_path, "m").get("live", np.zeros(1)) == 0).any()  # Mini-batches as well.
    delete(cli, 3, 4)
    checked = cli("verify", "m", *INLINE)
    assert checked["change"] > 0.0 and checked["distance"] <= 1e-10


def test_what_an_update_reads_is_what_it_touches(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "logistic", n=6400)
    given = ("-p", "iterations=100", "-p", "batch_size=64", *EXACT)
    train(cli, "m", "logistic", *given)
    model, unit = opened(tmp_path, "m"), 5
    visits = visits_of(tmp_path, "m", [unit])
    with Workspace.open(tmp_path / "ws") as ws:
        data_set = ws.ledger.open_data_set("t", ws.root)[1]
        gathered = gather(data_set, np.array([unit]), ws.ledger.salt, InlineFold())
    rows = replace(stored_rows(tmp_path, "m"), excluded=gathered.slots)
    leaving = leaving_rows(rows, gathered)
    with metered() as meter:
        outcome = update_stored(model, rows, leaving, "delta")
    assert outcome.when.tolist() == visits.tolist() != []
    size, length = model.parameters.size, model.settings.block
    block = length * (2 * 8 * size + 8 + 4 * packed_size(size))
    product = 8 * size * size * model.settings.blocks.count
    touched = len(set((visits // length).tolist()))
    assert touched < model.settings.blocks.count // 2
    assert meter.bytes_read <= touched * block + product
    # The whole batch: gathered, updated, rebased from the first visit on, read back.
    cli("forget", "--data", "t", "--unit", unit)
    done = cli("batch", "run", "--yes", *INLINE)
    version = sum(p.stat().st_size for p in chunks(next((tmp_path / "ws/models/m").iterdir())))
    cell = data_set.capacity * (8 + data_set.row_bytes)
    statistics = 16 * (D * 4 * 2 + D * 8 * 2 + 8)
    # An estimate of the error may look at a sample of the rows that stay, of this size at most.
    sample = MOST_ROWS * (8 + data_set.row_bytes) + 16 * 8 * data_set.capacity
    assert done["cells"] == 1
    assert done["bytes_read"] <= 4 * version + 4 * cell + 4 * statistics + sample
