"""Stored k-means with labels and margins: a deletion is exact, and looks only where it must."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_interrupted import STEPS, Killed, kill_at

from expunge.jobs import replay_versions, train_kmeans
from expunge.jobs.forecast import ForecastPasses
from expunge.jobs.kmeans_models import load_model
from expunge.jobs.replay_store import FOLDER, StoredRows, open_replay
from expunge.jobs.workspace import Workspace
from expunge.storage.chunks import chunk_indices, hash_chunk
from expunge.storage.dataset import DataSet
from expunge.storage.errors import CorruptError
from expunge.storage.schema import chunk_path
from expunge.storage.versions import check_version

KEEP = ("-p", "provenance=labels")
EPSILON = ("-p", "epsilon=0.02")
BOUNDS = ("-p", "bounds=-2:5")
WRITING = ("update", "commit", "erase", "retire")
BOUNDARIES = [pytest.param(s, marks=[] if s in WRITING else [pytest.mark.slow]) for s in STEPS]


def overlapping(rows: int, features: int, state: int) -> np.ndarray:
    rng = np.random.default_rng(state)
    return (rng.integers(0, 4, (rows, 1)) + rng.normal(0, 0.4, (rows, features))).astype(np.float32)


@pytest.fixture
def prepared(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> np.ndarray:
    """A workspace with a data set, k-means and q-kmeans that keep labels, and k-means without."""
    x = overlapping(3000, 4, 5)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(x), "--format", "csv")
    train = ["--data", "t", "-p", "n_clusters=4", *BOUNDS, *INLINE]
    cli("train", "km", "--algorithm", "k-means", *KEEP, *train)
    cli("train", "qk", "--algorithm", "q-kmeans", *KEEP, *EPSILON, *train)
    cli("train", "plain", "--algorithm", "k-means", *train)
    return x


def forget(cli: Cli, *units: int) -> dict[str, dict[str, Any]]:
    """Delete units in one batch; return the report of each model."""
    cli("forget", "--data", "t", "--unit", ",".join(map(str, units)))
    report = cli("batch", "run", "--yes", *INLINE)
    return {m["model"]: {**m, "batch": report} for m in report["models"]}


def verify_all(cli: Cli) -> None:
    for model in cli("model", "list")["models"]:
        assert cli("verify", model["name"], "--against", "retrain", *INLINE)["exact"]


@contextmanager
def opened(tmp_path: Path, model: str) -> Iterator[Any]:
    """What a model keeps, checked; yields (workspace, data set, kept)."""
    with Workspace.open(tmp_path / "ws") as ws:
        row = ws.ledger.model(model)
        data_set = DataSet.open(ws.data_path("t"))
        stored = open_replay(ws, row, data_set)
        assert stored is not None
        check_version(stored.version)
        yield ws, data_set, stored


def test_what_is_kept_does_not_change_the_model(
    cli: Cli, prepared: np.ndarray, tmp_path: Path
) -> None:
    km, plain = cli("model", "show", "km"), cli("model", "show", "plain")
    assert km["digest"] == plain["digest"]
    assert (km["settings"]["provenance"], plain["settings"]["provenance"]) == ("labels", "none")
    with opened(tmp_path, "km") as (_, data_set, stored):
        steps, room = stored.steps, stored.layout.room
        assert steps == km["steps"] + 1 <= room <= 11
        labels, margins = stored.version.read("labels"), stored.version.read("margins")
        units = np.stack([data_set.read_units(c) for c in range(data_set.cells)])
        live = np.zeros(labels.shape[1:], np.bool_)
        live[:, : units.shape[1]] = units >= 0
        assert live.sum() == 3000
        assert np.isfinite(margins[:steps][:, live]).all() and (margins[:steps][:, live] >= 0).all()
        assert np.isposinf(margins[:, ~live]).all() and not labels[:, ~live].any()
        assert not labels[steps:].any()


@pytest.mark.parametrize("batches", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_one_by_one_and_in_batches_it_is_a_retrain(
    cli: Cli, prepared: np.ndarray, batches: int
) -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(3000).tolist()
    found: dict[str, Counter[str]] = {"km": Counter(), "qk": Counter()}
    for number in range(batches):
        done = forget(cli, *order[3 * number : 3 * number + 1 + number % 3])
        for model, actions in found.items():
            actions[done[model]["action"]] += 1
            if done[model]["action"] == "replayed":
                assert done[model]["passes"] == 0 and done[model]["looked_at"] > 0
        assert done["km"]["digest"] == done["plain"]["digest"]
    # A seed may be among those deleted: then training goes on by passes.
    assert found["km"]["replayed"] >= 0.8 * batches, found
    assert found["qk"]["unchanged"] >= 0.5 * batches, found
    verify_all(cli)


def test_an_unchanged_deletion_reads_no_row(
    cli: Cli,
    csv_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(overlapping(3000, 4, 6)), "--format", "csv")
    coarse = ("--algorithm", "q-kmeans", "-p", "epsilon=0.05", "-p", "n_clusters=4")
    cli("train", "qk", "--data", "t", *coarse, *KEEP, *BOUNDS, *INLINE)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows are read")

    unchanged = 0
    for unit in range(6):
        cli("forget", "--data", "t", "--unit", unit)
        plan = cli("batch", "run", "--dry-run", *INLINE)["models"][0]
        with monkeypatch.context() as patch:
            if plan["action"] == "unchanged":
                patch.setattr(train_kmeans.StoredPasses, "_run", refuse)
                patch.setattr(StoredRows, "grid", refuse)
            report = cli("batch", "run", "--yes", *INLINE)
        done = report["models"][0]
        assert (done["action"], done["first_step"]) == (plan["action"], plan["first_step"])
        if done["action"] == "unchanged":
            unchanged += 1
            assert done["looked_at"] == done["passes"] == 0
            assert done["provenance"]["cells_written"] == report["cells"] == 1
            assert report["cells_read"] == 1
    assert unchanged >= 4
    verify_all(cli)


def test_what_is_kept_of_deleted_rows_is_gone(
    cli: Cli, prepared: np.ndarray, tmp_path: Path
) -> None:
    gone = [5, 77, 1234, 2999]
    places: dict[int, tuple[int, int]] = {}
    with opened(tmp_path, "km") as (ws, data_set, _):
        for cell in range(data_set.cells):
            units = data_set.read_units(cell)
            places |= {u: (cell, s) for s, u in enumerate(units.tolist()) if u in gone}
        folder = ws.root / ws.ledger.model("km")["folder"] / FOLDER
    cells = {cell for cell, _ in places.values()}
    before = {c: (folder / "margins" / f"c.0.{c}.0").open("rb") for c in range(data_set.cells)}
    forget(cli, *gone)
    with opened(tmp_path, "km") as (_, _, stored):
        labels, margins = stored.version.read("labels"), stored.version.read("margins")
        for cell, slot in places.values():
            assert not labels[:, cell, slot].any() and np.isposinf(margins[:, cell, slot]).all()
            place = cell * stored.layout.slots + slot
            assert not any((c.places == place).any() for c in stored.kept.changes)
        for cell, file in before.items():
            old, now = os.fstat(file.fileno()), stored.chunk("margins", cell).stat()
            # Cells of deleted rows were written anew and the old file overwritten; others are links.
            assert (old.st_ino == now.st_ino) == (cell not in cells)
            assert any(file.read()) == (cell not in cells)
            file.close()
    assert [p.name for p in folder.parents[1].iterdir()] == [stored.version.path.parent.name]


def test_changes_are_written_to_their_cells_once_they_are_many(
    cli: Cli, csv_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(overlapping(3000, 2, 5)), "--format", "csv")
    # So few steps that the chain never ends early: otherwise all cells are written when it does.
    short = ("-p", "max_iter=4", "-p", "n_clusters=7", "-p", "bounds=-3:6")
    cli("train", "km", "--data", "t", "--algorithm", "k-means", *short, *KEEP, *INLINE)
    for unit in range(0, 9, 3):
        done = forget(cli, unit)["km"]
        assert (done["action"], done["provenance"]["cells_written"]) == ("replayed", 1)
    with opened(tmp_path, "km") as (_, _, stored):
        changed = sum(len(c.places) for c in stored.kept.changes)
        assert 20 < changed <= 3000
        last = changed * 13
        assert last < stored.version.attrs["carried"] < 3 * last
        cells = stored.layout.row_bytes + 3 * 16 * replay_versions.FILE_COST
        # What was carried so far is not enough, and the next deletion adds to it.
        share = stored.version.attrs["carried"] / cells
    monkeypatch.setattr(replay_versions, "CARRIED_SHARE", share)
    assert forget(cli, 100)["km"]["provenance"]["cells_written"] > 8
    with opened(tmp_path, "km") as (_, _, stored):
        assert sum(len(c.places) for c in stored.kept.changes) == 0
        assert stored.version.attrs["carried"] == 0
    forget(cli, 101, 102)
    verify_all(cli)


@pytest.mark.parametrize("what", ["seed", "bound", "most", "all but few"])
def test_where_replay_ends_training_goes_on(
    cli: Cli, csv_file: Callable[..., Path], tmp_path: Path, what: str
) -> None:
    x = overlapping(600, 3, 7)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(x), "--format", "csv")
    train = ["--data", "t", "-p", "n_clusters=5", *KEEP, *INLINE]
    cli("train", "km", "--algorithm", "k-means", *train)
    cli("train", "qk", "--algorithm", "q-kmeans", *train, *EPSILON)
    version = tmp_path / "ws" / cli("model", "show", "km")["path"]
    seed = int(np.fromfile(chunk_path(version, "seeds", 0, 0), np.int64)[2])
    units = {
        "seed": [seed],
        "bound": [int(np.argmax(x[:, 0]))],
        "most": range(500),
        "all but few": range(597),
    }[what]
    done = forget(cli, *units)
    if what == "seed":
        assert (done["km"]["action"], done["km"]["reason"]) == ("resumed", "a seed was deleted")
    if what == "bound":
        assert done["km"]["action"] == done["qk"]["action"] == "retrained"
    if what == "all but few":
        assert done["km"]["provenance"]["digest"] is None
    verify_all(cli)
    # What is kept afterwards is as good as what a training keeps.
    forget(cli, *([597] if what == "all but few" else [598, 599]))
    verify_all(cli)
    if what == "all but few":
        forget(cli, 598, 599)
        assert cli("model", "show", "km")["empty"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", BOUNDARIES)
def test_a_batch_resumes_from_every_boundary(
    cli: Cli,
    prepared: np.ndarray,
    csv_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    when: str,
) -> None:
    gone = [3, 44, 599]
    cli("forget", "--data", "t", "--unit", ",".join(map(str, gone)))
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    cli("batch", "run", "--yes", *INLINE)
    undisturbed = _kept_digests(cli, tmp_path)
    shutil.rmtree(tmp_path / "ws")
    (tmp_path / "copy").rename(tmp_path / "ws")
    with monkeypatch.context() as patch:
        kill_at(patch, step, when)
        with pytest.raises(Killed):
            cli("batch", "run", "--yes", *INLINE)
    if (step, when) != ("receipt", "after"):
        cli("job", "resume", cli("job", "list")["jobs"][-1]["id"], *INLINE)
    assert _kept_digests(cli, tmp_path) == undisturbed
    assert cli("scan", "--rows", csv_file(prepared[gone], "gone.csv"))["matches"] == 0
    assert forget(cli, 700)["km"]["action"] == "replayed"
    verify_all(cli)


def _kept_digests(cli: Cli, tmp_path: Path) -> dict[str, Any]:
    """The bits of models and of what they keep, which must not depend on interruptions."""
    found = {}
    for model in ("km", "qk"):
        with opened(tmp_path, model) as (_, _, stored):
            found[model] = (cli("model", "show", model)["digest"], stored.version.digests)
    return found


@pytest.mark.parametrize("array", ["margins", "minima", "drifts", "digests"])
def test_damage_shows_before_the_commit(
    cli: Cli, prepared: np.ndarray, tmp_path: Path, array: str
) -> None:
    with opened(tmp_path, "km") as (_, data_set, stored):
        for cell in range(data_set.cells):
            if 17 in data_set.read_units(cell):
                break
        index = {"margins": (0, cell, 0), "minima": (1, 0, 0), "drifts": (0,), "digests": (0, 0)}
        path = chunk_path(stored.version.path, array, *index[array])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cli("forget", "--data", "t", "--unit", 17)
    (late,) = cli("batch", "run", "--yes", *INLINE, code=3)["behind"]
    assert late["model"] == "km" and "digest is" in late["problem"]
    assert cli("model", "show", "km")["version"] == 1


@pytest.mark.parametrize(("array", "value"), [("labels", b"\xff"), ("margins", b"\xff" * 4)])
def test_labels_that_were_never_written_are_refused(
    cli: Cli, prepared: np.ndarray, tmp_path: Path, array: str, value: bytes
) -> None:
    with opened(tmp_path, "km") as (ws, data_set, stored):
        record = load_model(ws, "km")[1]
        passes = ForecastPasses(data_set.statistics())
        rows = StoredRows(stored, data_set, record.scaling, passes)
        every = np.arange(stored.layout.cells * stored.layout.blocks)
        labels, margins = rows.blocks(1, every)
        assert labels.shape == margins.shape and labels.max() == 3
        path = stored.chunk(array, 5)
        data = path.read_bytes()
        at = stored.layout.slots * len(value)
        path.write_bytes(data[:at] + value + data[at + len(value) :])
        with pytest.raises(CorruptError, match="never written"):
            rows.blocks(1, every)
        assert len(rows.blocks(0, every)) == 2


def test_a_failed_job_leaves_nothing_behind(
    cli: Cli, prepared: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cli("model", "show", "km")["digest"]

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cli("forget", "--data", "t", "--unit", 17)
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.replay_cells.write_chunk", fail)
        assert "No space left" in cli("batch", "run", "--yes", *INLINE, code=1)
        train = ["--data", "t", "--algorithm", "k-means", *KEEP, *INLINE]
        assert "No space left" in cli("train", "new", *train, code=1)
    assert cli("model", "show", "km")["digest"] == before
    assert not list((tmp_path / "ws" / "models").glob("new/*"))
    assert len(list((tmp_path / "ws" / "models").glob("km/*"))) == 1
    assert cli("batch", "run", "--yes", *INLINE)["requests"] == 1


def test_links_share_chunks_and_digests_are_the_files_own(
    cli: Cli, prepared: np.ndarray, tmp_path: Path
) -> None:
    forget(cli, 1, 2)
    for model in ("km", "qk"):
        with opened(tmp_path, model) as (_, _, stored):
            version = stored.version
            for name, spec in version.specs.items():
                for index in chunk_indices(spec):
                    found = hash_chunk(version.path, name, spec, index)
                    assert found == version.digests[name][index]


def test_the_kind_is_checked_and_what_it_costs_is_told(cli: Cli, prepared: np.ndarray) -> None:
    train = ["--data", "t", "--algorithm", "k-means", *INLINE]
    assert "provenance is 'all'" in cli("train", "z", *train, "-p", "provenance=all", code=2)
    kept = cli("train", "z", *train, *KEEP)["provenance"]
    assert kept["kind"] == "labels" and kept["bytes"] > 3000 * 5 * 2 and "at most" in kept["why"]
    none = cli("train", "y", *train)["provenance"]
    assert none["kind"] == "none" and none["bytes"] == 0 and "provenance=labels" in none["why"]
    steps = cli("model", "show", "y")["steps"]
    assert (kept["deletion_passes"], none["deletion_passes"]) == (0, steps) and steps > 1
    assert (
        "nearly every deletion takes a pass over the rows for each step it repeats, 10 at most"
        in none["why"]
    )
    assert "no pass a deletion" in kept["why"] and "10 at most" in kept["why"]
    few = cli("train", "x", "--data", "t", "--algorithm", "q-kmeans", *EPSILON, *INLINE)[
        "provenance"
    ]
    assert (
        "as few do, takes a pass over the rows for each step it repeats, 10 at most" in few["why"]
    )


def test_a_forecast_replays_as_far_as_it_goes_without_a_pass(
    cli: Cli, prepared: np.ndarray
) -> None:
    cli("forget", "--data", "t", "--unit", 9)
    plan = {m["model"]: m for m in cli("batch", "run", "--dry-run", *INLINE)["models"]}
    done = {m["model"]: m for m in cli("batch", "run", "--yes", *INLINE)["models"]}
    assert plan["km"]["action"] == done["km"]["action"] == "replayed"
    for name in ("first_step", "looked_at"):
        assert plan["km"][name] == done["km"][name]
    assert (plan["plain"]["action"], done["plain"]["action"]) == ("resumed", "resumed")
    cli("forget", "--data", "t", "--sample", 0.6)
    plan = {m["model"]: m for m in cli("batch", "run", "--dry-run", *INLINE)["models"]}
    done = {m["model"]: m for m in cli("batch", "run", "--yes", *INLINE)["models"]}
    assert plan["km"]["action"] == done["km"]["action"] == "resumed"


@pytest.mark.slow
def test_workers_give_the_same_bits(cli: Cli, prepared: np.ndarray, tmp_path: Path) -> None:
    local = ("--cluster", "local", "--workers", "2")
    train = ["--data", "t", "-p", "n_clusters=4", *BOUNDS, *KEEP]
    cli("train", "far", "--algorithm", "k-means", *train, *local)
    with opened(tmp_path, "km") as (_, _, here), opened(tmp_path, "far") as (_, _, there):
        assert here.version.digests == there.version.digests
    cli("forget", "--data", "t", "--sample", "0.02")
    cli("batch", "run", "--yes", *local)
    with opened(tmp_path, "km") as (_, _, here), opened(tmp_path, "far") as (_, _, there):
        assert here.version.digests == there.version.digests
    verify_all(cli)
