"""The first two steps of a deletion job: which rows, where they are, what they hold.

The tasks touch the cells of the wanted units only; each returns the rows to delete and what the
cell's statistics will be without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..pipeline.replay import Removed
from ..storage.cells import fingerprints, units_by_cell
from ..storage.dataset import CellStatistics, DataSet
from ..storage.erase import measure_cell
from ..storage.sparse import SparseRows, read_sparse_slots, sparse_fingerprints
from .fold import Fold, split_cells
from .memory import check_memory, gather_bytes
from .train_kmeans import check_live, run_ordinals

CELL_SECONDS = 0.01
"""One thread's rough time to find and read some rows of a cell."""


@dataclass(frozen=True, slots=True)
class CellRows:
    """The rows of one cell that are to be deleted."""

    cell: int
    slots: NDArray[np.int64]
    """(m,) ascending."""
    units: NDArray[np.int64]
    ordinals: NDArray[np.int64]
    x: NDArray[np.float32]
    """(m, features)"""
    y: NDArray[np.float64] | None
    """(m,) labels, where the data set has them."""
    statistics: CellStatistics
    """Of the cell without these rows (one row)."""
    sparse: SparseRows | None = None
    """The rows of a sparse data set; ``x`` has no feature then."""


@dataclass(frozen=True, slots=True)
class GatherTask:
    """The wanted units of some cells, and those cells' statistics as they stand."""

    data_set: DataSet
    wanted: dict[int, NDArray[np.int64]]
    statistics: dict[int, CellStatistics]


def gather_cells(task: GatherTask) -> list[CellRows]:
    """Read the units of some cells and just the rows that are to be deleted."""
    found = []
    for cell, wanted in task.wanted.items():
        units = task.data_set.read_units(cell)
        known = int(task.statistics[cell].live[0])
        check_live(task.data_set, int(np.count_nonzero(units >= 0)), known)
        slots = np.flatnonzero(np.isin(units, wanted)).astype(np.int64)
        if not len(slots):
            continue
        sparse = None
        if task.data_set.sparse:
            sparse = read_sparse_slots(task.data_set, cell, slots)
            x = np.empty((len(slots), 0), np.float32)
        else:
            x = task.data_set.read_slots(cell, slots)
        statistics = task.statistics[cell].without(0, x)
        if statistics is None:
            statistics = measure_cell(task.data_set, cell, without=slots)
        y = task.data_set.read_labels(cell, slots)
        ordinals = run_ordinals(units)[slots]
        found.append(CellRows(cell, slots, units[slots], ordinals, x, y, statistics, sparse))
    return found


@dataclass(frozen=True)
class Gathered:
    """All rows of one data set that a job deletes."""

    data_set: DataSet
    statistics: CellStatistics
    """Of all cells, as they will be."""
    parts: tuple[CellRows, ...]

    @cached_property
    def removed(self) -> Removed:
        """The rows as the models take them; of a sparse data set without features."""
        features = 0 if self.data_set.sparse else self.data_set.features
        none = np.empty(0, np.int64)
        return Removed(
            np.concatenate([none, *(p.units for p in self.parts)]),
            np.concatenate([none, *(p.ordinals for p in self.parts)]),
            np.concatenate([np.empty((0, features), np.float32), *(p.x for p in self.parts)]),
        )

    @cached_property
    def sparse(self) -> SparseRows:
        """The rows of a sparse data set, in the order of ``removed``."""
        return SparseRows.joined(p.sparse for p in self.parts if p.sparse is not None)

    def fingerprints(self, salt: bytes) -> list[bytes]:
        """Return the keyed hash of each row, in the order of ``removed``."""
        if self.data_set.sparse:
            return sparse_fingerprints(self.sparse, salt)
        return fingerprints(self.removed.x, salt)

    @cached_property
    def labels(self) -> NDArray[np.float64]:
        """(n,) labels of the rows, in the order of ``removed``; empty where there are none."""
        none = np.empty(0)
        return np.concatenate([none, *(p.y for p in self.parts if p.y is not None)])

    @cached_property
    def addresses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(cells, slots) of the rows (n,), in the order of ``removed``."""
        none = np.empty(0, np.int64)
        cells = [np.full(len(p.slots), p.cell, np.int64) for p in self.parts]
        return (
            np.concatenate([none, *cells]),
            np.concatenate([none, *(p.slots for p in self.parts)]),
        )

    @property
    def slots(self) -> dict[int, NDArray[np.int64]]:
        """The deleted slots by cell."""
        return {p.cell: p.slots for p in self.parts}


def gather(data_set: DataSet, units: NDArray[np.int64], salt: bytes, fold: Fold) -> Gathered:
    """Read the rows of these units; nothing is written anywhere."""
    width = data_set.features
    if data_set.sparse:
        # As wide as rows would be that fill a cell.
        width = 2 * -(-data_set.entries // data_set.capacity)
    needed = gather_bytes(data_set.capacity, width, len(units))
    check_memory("gathering the rows", needed, fold.memory_limit)
    statistics = data_set.statistics()
    wanted = units_by_cell(units, data_set.cells, salt)
    tasks = []
    for cells in split_cells(list(wanted), len(wanted) * CELL_SECONDS, fold.workers):
        here = {c: statistics.at(np.array([c])) for c in cells}
        tasks.append(GatherTask(data_set, {c: wanted[c] for c in cells}, here))
    parts: list[CellRows] = fold(gather_cells, tasks, _joined)
    cells_hit = np.array([p.cell for p in parts], np.int64)
    after = statistics.replaced(cells_hit, [p.statistics for p in parts])
    return Gathered(data_set, after, tuple(parts))


def _joined(one: list[CellRows], other: list[CellRows]) -> list[CellRows]:
    return one + other
