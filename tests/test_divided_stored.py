"""DC-k-means on stored data sets: the bits of memory, the cells of the leaves, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from test_cluster import _already
from test_real_data_exact import differences
from test_storage import SALT, Rows

from expunge import DCKMeans
from expunge.jobs import train_divided
from expunge.jobs.errors import JobError
from expunge.jobs.fold import DaskFold, Fold, InlineFold
from expunge.jobs.memory import RESERVED
from expunge.jobs.plan import Gathered, gather
from expunge.jobs.train_divided import (
    HELD_BYTES,
    StoredLeaves,
    StoredTree,
    cells_of_leaf,
    held_bytes,
    leaf_bytes,
)
from expunge.pipeline.divided import DividedRecord, DividedSettings, leaf_of
from expunge.storage import ingest
from expunge.storage.cells import hash_units
from expunge.storage.dataset import DataSet
from expunge.storage.files import metered
from expunge.storage.rows import RowBlock

TREES: list[dict[str, Any]] = [
    {"n_leaves": 1},
    {"n_leaves": 4, "root": "weighted"},
    {"n_leaves": 16},
    {"branching": [4, 2, 8]},
    {"n_leaves": 256},
]
Write = Callable[..., Path]


def blobs(n: int = 3000, d: int = 4) -> np.ndarray:
    rng = np.random.default_rng(4)
    x: np.ndarray = rng.normal(rng.integers(0, 5, (n, 1)), 0.3, (n, d)).astype(np.float32)
    return x


def stored(path: Path, x: np.ndarray, cells: int) -> DataSet:
    return ingest.import_rows(Rows(x, None), path, SALT, {}, cells=cells).data_set


def in_memory(x: np.ndarray, kept: np.ndarray | None = None, **arguments: Any) -> DCKMeans:
    """The model of the rows in memory, placed by the data set's hashes."""
    units = np.arange(len(x)) if kept is None else kept
    model = DCKMeans(random_state=7, **arguments)
    return model.fit(x[units], units=units, hashes=hash_units(units, SALT))


def leaves(
    data: DataSet, settings: DividedSettings, fold: Fold, gathered: Gathered | None = None
) -> StoredLeaves:
    if gathered is None:
        return StoredLeaves(data, data.statistics(), settings, SALT, fold)
    return StoredLeaves(data, gathered.statistics, settings, SALT, fold, gathered.slots)


def as_record(tree: StoredTree) -> DividedRecord:
    records = tuple(tree.records[leaf] for leaf in sorted(tree.records))
    return DividedRecord(tree.extent, records, tree.upper)


@pytest.mark.parametrize("arguments", TREES)
@pytest.mark.parametrize("cells", [1, 16, 64])
def test_stored_equals_in_memory(
    cells: int, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = blobs()
    data = stored(tmp_path / "t.zarr", x, cells)
    model = in_memory(x, n_clusters=5, **arguments)
    found = leaves(data, model._settings, InlineFold()).fit()
    assert list(differences(as_record(found), model.record_)) == []
    # Streamed cell by cell, where leaves have cells of their own.
    monkeypatch.setattr(train_divided, "held_bytes", lambda limit: 0)
    streamed = leaves(data, model._settings, InlineFold()).fit()
    assert list(differences(as_record(streamed), model.record_)) == []
    assert streamed.outcome.passes == found.outcome.passes


@pytest.mark.parametrize("arguments", TREES)
@pytest.mark.parametrize(("cells", "held"), [(1, None), (16, None), (64, 0)])
def test_a_stored_deletion_equals_in_memory(
    cells: int,
    held: int | None,
    arguments: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = blobs(600)
    data = stored(tmp_path / "t.zarr", x, cells)
    model = in_memory(x, n_clusters=3, **arguments)
    fold = InlineFold()
    tree = leaves(data, model._settings, fold).fit()
    if held is not None:
        monkeypatch.setattr(train_divided, "held_bytes", lambda limit: held)
    rng = np.random.default_rng(0)
    extreme = int(np.argmax(x[:, 1]))
    for gone in ([17], rng.choice(600, 40, replace=False), [extreme], np.arange(600)):
        gathered = gather(data, np.asarray(gone), SALT, fold)
        after = leaves(data, model._settings, fold, gathered).delete(
            tree.extent, tree.upper, tree.records.__getitem__, gathered.removed
        )
        kept = np.setdiff1d(np.arange(600), gone)
        if len(kept):
            expected = in_memory(x, kept, n_clusters=3, **arguments)
            assert expected._settings.branching == model._settings.branching
            record = expected.record_
        else:
            model.delete(gone)
            record = model.record_
        whole = replace(after, records={**tree.records, **after.records})
        assert list(differences(as_record(whole), record)) == []


class PeoplesRows(Rows):
    """Rows of which some share a unit."""

    def blocks(self) -> Iterator[RowBlock]:
        for block in super().blocks():
            yield replace(block, units=block.rows // 3)


@pytest.mark.parametrize("arguments", [{"n_leaves": 4}, {"n_leaves": 64}])
def test_rows_of_a_unit_are_told_apart_and_go_together(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    x = blobs(600)
    units = np.arange(600) // 3
    source = PeoplesRows(x, None)
    data = ingest.import_rows(source, tmp_path / "t.zarr", SALT, {}, cells=16).data_set
    model = DCKMeans(3, random_state=7, **arguments)
    model.fit(x, units=units, hashes=hash_units(units, SALT))
    tree = leaves(data, model._settings, InlineFold()).fit()
    assert list(differences(as_record(tree), model.record_)) == []
    gathered = gather(data, np.array([7, 99]), SALT, InlineFold())
    after = leaves(data, model._settings, InlineFold(), gathered).delete(
        tree.extent, tree.upper, tree.records.__getitem__, gathered.removed
    )
    assert model.delete([7, 99]).rows == len(gathered.removed.units) == 6
    whole = replace(after, records={**tree.records, **after.records})
    assert list(differences(as_record(whole), model.record_)) == []


def test_a_leafs_cells() -> None:
    assert cells_of_leaf(3, 4, 16) == (12, 13, 14, 15)
    assert cells_of_leaf(3, 16, 16) == (3,)
    assert cells_of_leaf(7, 64, 16) == (1,)
    for n_leaves, cells in ((1, 8), (4, 8), (8, 8), (32, 8)):
        hashes = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64)
        cell, leaf = leaf_of(hashes, cells), leaf_of(hashes, n_leaves)
        assert all(
            c in cells_of_leaf(i, n_leaves, cells) for c, i in zip(cell, leaf.tolist(), strict=True)
        )


# What is read


@pytest.mark.parametrize("n_leaves", [16, 256])
def test_a_leaf_task_reads_its_cells_chunks_once(n_leaves: int, tmp_path: Path) -> None:
    """Exactly: the units of its cells, and its own rows, each once."""
    x = np.random.default_rng(0).random((4000, 4)).astype(np.float32)
    data = stored(tmp_path / "t.zarr", x, 64)
    settings = in_memory(x, n_clusters=3, n_leaves=n_leaves)._settings
    tree = leaves(data, settings, InlineFold()).fit()
    gathered = gather(data, np.array([17]), SALT, InlineFold())
    leaf = int(leaf_of(hash_units(np.array([17]), SALT), n_leaves)[0])
    fold = InlineFold()
    with metered() as meter:
        after = leaves(data, settings, fold, gathered).delete(
            tree.extent, tree.upper, tree.records.__getitem__, gathered.removed
        )
    cells = cells_of_leaf(leaf, n_leaves, 64)
    assert fold.tasks == 1 and list(after.records) == [leaf] and after.outcome.passes > 0
    assert meter.cells == {("t.zarr", cell) for cell in cells}
    assert meter.files == 2 * len(cells) and meter.bytes_written == 0
    rows = after.records[leaf].extent.rows
    assert meter.bytes_read == len(cells) * data.capacity * 8 + rows * data.row_bytes


def test_a_leaf_that_stands_is_not_read(tmp_path: Path) -> None:
    x = np.repeat(np.arange(3, dtype=np.float32), 100)[:, np.newaxis]
    data = stored(tmp_path / "t.zarr", x, 16)
    settings = in_memory(x, n_clusters=3, n_leaves=2)._settings
    tree = leaves(data, settings, InlineFold()).fit()
    seeds = [r.steps[0].centroids.drawn[:, 0] for r in tree.records.values()]
    unit = np.setdiff1d(np.arange(300), np.concatenate(seeds))[:1]
    gathered = gather(data, unit, SALT, InlineFold())
    with metered() as meter:
        after = leaves(data, settings, InlineFold(), gathered).delete(
            tree.extent, tree.upper, tree.records.__getitem__, gathered.removed
        )
    assert after.outcome.action == "unchanged" and not meter.files and not after.nodes


def test_rows_that_came_back_are_noticed(tmp_path: Path) -> None:
    x = blobs(300)
    data = stored(tmp_path / "t.zarr", x, 16)
    statistics = data.statistics()
    live = statistics.live.copy()
    live[3] -= 1
    wrong = replace(statistics, live=live)
    for n_leaves in (4, 64):
        settings = in_memory(x, n_clusters=3, n_leaves=n_leaves)._settings
        with pytest.raises(JobError, match="live rows found where"):
            StoredLeaves(data, wrong, settings, SALT, InlineFold()).fit()


# Memory


class Limited(InlineFold):
    """Workers with a limit."""

    memory_limit = RESERVED + (1 << 20)  # type: ignore[assignment]


def test_a_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    x = blobs()
    data = stored(tmp_path / "t.zarr", x, 16)
    settings = in_memory(x, n_clusters=3, n_leaves=4)._settings
    with pytest.raises(JobError, match="a leaf needs"):
        leaves(data, settings, Limited()).fit()
    assert held_bytes(None) == HELD_BYTES and held_bytes(RESERVED // 2) == 0
    assert held_bytes(RESERVED + 1000) == 500


MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from expunge.jobs import train_divided as td
from expunge.jobs.fold import InlineFold
from expunge.pipeline.validation import resolve_divided
from expunge.storage import ingest
from expunge.storage.generators import GaussianMixture

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith(name + ":")) * 1024

rows, features, cells, leaves = map(int, sys.argv[2:])
source = GaussianMixture(rows, features, 3, 0)
data = ingest.import_rows(source, Path(sys.argv[1]), bytes(16), {}, cells=cells).data_set
settings = resolve_divided(rows, features, n_clusters=5, n_leaves=leaves)
found = {}
runs = ("warm", 1 << 40), ("warm", 0), ("held", 1 << 40), ("streamed", 0)
for name, held in runs:
    td.held_bytes = lambda limit, held=held: held
    tree = td.StoredLeaves(data, data.statistics(), settings, bytes(16), InlineFold())
    tasks = []
    tree._run = lambda given: (tasks.extend(given), ({}, 0))[1]
    tree.fit()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    td.run_leaf(tasks[0])
    found[name] = status("VmHWM") - before
live = int(tasks[0].statistics.live.sum())
print(json.dumps({"live": live, "capacity": data.capacity, **found}))
"""


@pytest.mark.parametrize(("cells", "n_leaves"), [(16, 1), (4, 16)])
def test_measured_peaks_are_below_their_projections(
    cells: int, n_leaves: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "t"), "200000", "28"]
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [*command, str(cells), str(n_leaves)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **settings},
    )
    found = json.loads(done.stdout)
    if n_leaves > cells:
        # At worst all rows of the cell are the leaf's.
        assert found["held"] <= leaf_bytes(found["capacity"], found["capacity"], 28, 5)
        return
    projected = leaf_bytes(found["live"], found["capacity"], 28, 5)
    assert 0.6 * projected < found["held"] <= projected
    assert found["streamed"] < 0.4 * found["held"]


# A real cluster


@pytest.fixture(scope="module", params=[1, 2])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=request.param,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            local_directory=str(tmp_path_factory.mktemp("spill")),
        ) as local,
        Client(local) as client,
    ):
        yield client


@pytest.mark.parametrize("arguments", TREES)
def test_workers_give_the_same_bits(
    client: Client, arguments: dict[str, Any], tmp_path: Path
) -> None:
    x = blobs()
    data = stored(tmp_path / "t.zarr", x, 16)
    model = in_memory(x, n_clusters=5, **arguments)
    fold = DaskFold(lambda: _already(client))
    tree = leaves(data, model._settings, fold).fit()
    assert list(differences(as_record(tree), model.record_)) == []
    gathered = gather(data, np.arange(0, 3000, 100), SALT, fold)
    before = fold.tasks
    with metered() as meter:
        after = leaves(data, model._settings, fold, gathered).delete(
            tree.extent, tree.upper, tree.records.__getitem__, gathered.removed
        )
    assert fold.tasks - before == len(after.records)
    cells = {c for leaf in after.records for c in cells_of_leaf(leaf, model.n_leaves_, 16)}
    assert meter.cells == {("t.zarr", cell) for cell in cells}
    expected = in_memory(
        x, np.setdiff1d(np.arange(3000), gathered.removed.units), n_clusters=5, **arguments
    )
    whole = replace(after, records={**tree.records, **after.records})
    assert list(differences(as_record(whole), expected.record_)) == []
