"""DC-k-means on stored data sets: a leaf is one task over its cells, the nodes run in the driver.

Cells and leaves are both the top bits of a unit's hash: a leaf is a range of cells, or, where there
are more leaves than cells, a part of one. A task brings its leaf's rows into memory, where they fit
into a bound, and streams them cell by cell otherwise; the bits are the same either way, and those of
``DCKMeans`` with the data set's hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..pipeline import quantized
from ..pipeline.arrays import GridPasses, unit_extent
from ..pipeline.clusterer import delete_rows
from ..pipeline.divided import (
    DividedSettings,
    Upper,
    as_model,
    climb,
    leaf_of,
    on_cube,
    outcome,
    pooled,
)
from ..pipeline.fixedpoint import Extent, Scaling, merge_extents, shrunk, within
from ..pipeline.lloyd import Tally
from ..pipeline.quantized import Draw, Record, Settings
from ..pipeline.replay import Outcome, Removed, refit_reason
from ..pipeline.seeding import Winner
from ..storage.cells import hash_units
from ..storage.dataset import CellStatistics, DataSet
from .fold import Fold, InlineFold
from .memory import RESERVED, check_memory, pass_bytes
from .train_kmeans import CellGroup, Excluded, StoredPasses, check_live, run_ordinals

HELD_BYTES = 1 << 30
"""What a leaf's task may hold where workers have no limit."""
HELD_SHARE = 0.5
"""Of what a worker's limit leaves beside the worker itself."""


def leaf_bytes(rows: int, capacity: int, features: int, clusters: int) -> int:
    """Return the peak of a task that holds a leaf's rows in memory.

    Beside them it has a cell as stored, its live rows, and those on the row grid.
    """
    held = rows * (4 * features + 16)
    cell = 2 * 4 * capacity * features
    return held + cell + pass_bytes(capacity, features, clusters)


def held_bytes(limit: int | None) -> int:
    """Return what a leaf's task may hold on a worker that may use ``limit`` bytes."""
    return HELD_BYTES if limit is None else int(HELD_SHARE * max(0, limit - RESERVED))


def cells_of_leaf(leaf: int, n_leaves: int, cells: int) -> tuple[int, ...]:
    """Return the cells in which a leaf's rows are."""
    if n_leaves > cells:
        return (leaf // (n_leaves // cells),)
    width = cells // n_leaves
    return tuple(range(leaf * width, (leaf + 1) * width))


def leaves_of(removed: Removed, n_leaves: int, salt: bytes) -> dict[int, Removed]:
    """Return rows by their leaf, in order of the leaves."""
    homes = leaf_of(hash_units(removed.units, salt), n_leaves)
    found = {}
    for leaf in np.unique(homes).tolist():
        mine = homes == leaf
        found[leaf] = Removed(removed.units[mine], removed.ordinals[mine], removed.x[mine])
    return found


@dataclass(frozen=True, slots=True)
class LeafTask:
    """One leaf to be trained, or to be deleted from."""

    group: CellGroup
    statistics: CellStatistics
    """Of the group's cells, without the excluded rows."""
    leaf: int
    n_leaves: int
    salt: bytes | None
    """Tells the rows of a cell apart that leaves share; None where leaves have cells of their own."""
    scaling: Scaling
    """Of all rows."""
    settings: Settings
    held: int
    """Bytes that the rows may take in memory."""
    record: Record | None = None
    """What is known of the leaf; None trains from nothing."""
    removed: Removed | None = None
    """The rows that leave it, on the unit cube."""


@dataclass(frozen=True, slots=True)
class LeafDone:
    """What became of a leaf."""

    leaf: int
    record: Record
    passes: int
    """Over the leaf's rows."""


def run_leaf(task: LeafTask) -> list[LeafDone]:
    """Train a leaf or delete from it."""
    rows = LeafPasses(task)
    if task.record is None or task.removed is None:
        record = quantized.fit(rows, task.settings)
    else:
        record, _ = delete_rows(task.record, task.removed, rows, task.settings)
    return [LeafDone(task.leaf, record, rows.passes)]


class LeafPasses:
    """A stored leaf's rows on the unit cube; implements ``pipeline.quantized.Passes``.

    They are read when they are first asked for: a leaf that stands is not.
    """

    def __init__(self, task: LeafTask) -> None:
        self._task = task

    def extent(self) -> Extent:
        return unit_extent(self._rows.live, self._task.group.data_set.features)

    def square_sum(self, scaling: Scaling) -> int:
        return self._rows.passes.square_sum(self._task.scaling)

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        return self._rows.passes.race(self._task.scaling, draw, random_state, centres)

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        return self._rows.passes.assign(self._task.scaling, centroids, present)

    @property
    def passes(self) -> int:
        """Passes over the rows so far."""
        return self._rows.passes.passes if "_rows" in self.__dict__ else 0

    @cached_property
    def _rows(self) -> _LeafRows:
        task = self._task
        data = task.group.data_set
        if task.salt is not None:
            passes = _held(task, data.capacity)
            return _LeafRows(passes, len(passes.units))
        live = int(task.statistics.live.sum())
        if leaf_bytes(live, data.capacity, data.features, task.settings.n_clusters) <= task.held:
            return _LeafRows(_held(task, live), live)
        cells, excluded = task.group.cells, task.group.excluded
        streamed = StoredPasses(data, task.statistics, InlineFold(), excluded, cells=cells)
        return _LeafRows(streamed, live)


@dataclass(frozen=True, slots=True)
class _LeafRows:
    passes: GridPasses | StoredPasses
    live: int


def _held(task: LeafTask, most: int) -> GridPasses:
    """Read a leaf's rows, at most so many, into memory."""
    fixed = np.empty((most, task.group.data_set.features), np.int32)
    units, ordinals = np.empty(most, np.int64), np.empty(most, np.int64)
    done = 0
    for x, here, places in _live_rows(task):
        part = slice(done, done + len(here))
        fixed[part], units[part], ordinals[part] = task.scaling.fixed(x), here, places
        done += len(here)
    # Other tasks have the other cores.
    return GridPasses(fixed[:done], units[:done], ordinals[:done], threads=1)


def _live_rows(
    task: LeafTask,
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (x, units, ordinals) of the leaf's live rows, cell by cell, reading just these."""
    data = task.group.data_set
    for cell, known in zip(task.group.cells, task.statistics.live.tolist(), strict=True):
        if not known:
            continue
        units = task.group.units(cell)
        slots = np.flatnonzero(units >= 0)
        check_live(data, len(slots), known)
        if task.salt is not None:
            slots = slots[leaf_of(hash_units(units[slots], task.salt), task.n_leaves) == task.leaf]
        x = data.read_slots(cell, slots.astype(np.int64))
        yield x, units[slots], run_ordinals(units)[slots]


@dataclass(frozen=True, slots=True)
class StoredTree:
    """What training or a deletion came to."""

    extent: Extent
    records: dict[int, Record]
    """The leaves that were computed."""
    upper: Upper
    outcome: Outcome
    nodes: int
    """Nodes above the leaves that were run."""

    @property
    def model(self) -> Record:
        """The root, whose final centroids are the model, in the features' own units."""
        return as_model(self.extent, self.upper.root)


class StoredLeaves:
    """The leaves of a stored data set: runs tasks on them.

    statistics: of all cells, without the excluded rows, which still stand on the disk.
    """

    def __init__(
        self,
        data_set: DataSet,
        statistics: CellStatistics,
        settings: DividedSettings,
        salt: bytes,
        fold: Fold,
        excluded: Excluded | None = None,
        progress: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._data_set = data_set
        self._statistics = statistics
        self._settings = settings
        self._salt = salt
        self._fold = fold
        self._excluded = excluded or {}
        self._progress = progress

    def fit(self) -> StoredTree:
        """Train the whole tree."""
        settings, s = self._settings, self._statistics
        found = merge_extents(s.minimum, s.maximum, s.minimum_count, s.maximum_count, s.live)
        extent = within(found, settings.plain.bounds)
        scaling = Scaling.between(extent.lower, extent.upper)
        tasks = [self._task(leaf, scaling) for leaf in range(settings.n_leaves)]
        records, passes = self._run([t for t in tasks if t.statistics.live.any()])
        none = Record(unit_extent(0, self._data_set.features), 0, ())
        records = {leaf: records.get(leaf, none) for leaf in range(settings.n_leaves)}
        self._progress("root")
        upper, nodes = climb([pooled(r) for r in records.values()], settings)
        return StoredTree(extent, records, upper, Outcome("retrained", 0, passes, ""), nodes)

    def delete(
        self,
        extent: Extent,
        upper: Upper,
        leaf_record: Callable[[int], Record],
        removed: Removed,
    ) -> StoredTree:
        """Return the tree without these rows, all of them in it and excluded.

        extent, upper: the tree as it stands; leaf_record gives a leaf's record.
        """
        bounds = self._settings.plain.bounds
        left = shrunk(extent, removed.x, bounds)
        if reason := refit_reason(left, bounds):
            tree = self.fit()
            again = Outcome("retrained", 0, tree.outcome.passes, reason)
            return StoredTree(tree.extent, tree.records, tree.upper, again, tree.nodes)
        scaling = Scaling.between(extent.lower, extent.upper)
        by_leaf = leaves_of(on_cube(removed, scaling), self._settings.n_leaves, self._salt)
        tasks = [
            self._task(leaf, scaling, leaf_record(leaf), gone) for leaf, gone in by_leaf.items()
        ]
        records, passes = self._run(tasks)
        given = list(upper.leaves)
        for leaf, record in records.items():
            given[leaf] = pooled(record)
        self._progress("root")
        after, nodes = climb(given, self._settings, upper)
        return StoredTree(left, records, after, outcome(upper, after, passes), nodes)

    def _task(
        self,
        leaf: int,
        scaling: Scaling,
        record: Record | None = None,
        removed: Removed | None = None,
    ) -> LeafTask:
        data, n_leaves = self._data_set, self._settings.n_leaves
        cells = cells_of_leaf(leaf, n_leaves, data.cells)
        excluded = {c: self._excluded[c] for c in cells if c in self._excluded}
        return LeafTask(
            CellGroup(data, cells, excluded),
            self._statistics.at(np.array(cells)),
            leaf,
            n_leaves,
            self._salt if n_leaves > data.cells else None,
            scaling,
            self._settings.leaf_settings[leaf],
            self._held,
            record,
            removed,
        )

    @cached_property
    def _held(self) -> int:
        return held_bytes(self._fold.memory_limit)

    def _run(self, tasks: Sequence[LeafTask]) -> tuple[dict[int, Record], int]:
        """Return the leaves' records in order, and passes over their rows."""
        if not tasks:
            return {}, 0
        data, clusters = self._data_set, self._settings.plain.n_clusters
        needed = pass_bytes(data.capacity, data.features, clusters)
        if tasks[0].salt is not None:
            needed = leaf_bytes(data.capacity, data.capacity, data.features, clusters)
        check_memory("a leaf", needed, self._fold.memory_limit)
        self._progress(f"{len(tasks)} of {self._settings.n_leaves} leaves")
        done: list[LeafDone] = self._fold(run_leaf, tasks, _joined)
        return {d.leaf: d.record for d in done}, sum(d.passes for d in done)


def _joined(one: list[LeafDone], other: list[LeafDone]) -> list[LeafDone]:
    return one + other
