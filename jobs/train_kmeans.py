"""k-means and Q-k-means on stored data sets: the passes as folds over cells.

The algorithm itself is ``pipeline.quantized``, the same code as in memory; only where the rows are
differs. Since all merged statistics are integers or minima, the bits do not depend on the cells,
their grouping or the number of workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline import lloyd, seeding
from ..pipeline.fixedpoint import Extent, Scaling, merge_extents
from ..pipeline.lloyd import Tally
from ..pipeline.quantized import SEED, Draw
from ..pipeline.seeding import Winner
from ..storage.dataset import CellStatistics, DataSet
from .errors import JobError
from .fold import Fold, split_cells
from .memory import check_memory, pass_bytes

PASS_RATE = 2e9
"""Distance terms (row x feature x centroid) that a thread does in a second, roughly."""

Excluded = Mapping[int, NDArray[np.int64]]
"""Slots (ascending) by cell that are to be taken as erased."""


@dataclass(frozen=True, slots=True)
class CellGroup:
    """One task's share of a data set."""

    data_set: DataSet
    cells: tuple[int, ...]
    excluded: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def units(self, cell: int) -> NDArray[np.int64]:
        """The unit of every slot of a cell, excluded ones as holes."""
        units = self.data_set.read_units(cell)
        if cell in self.excluded:
            units[self.excluded[cell]] = -1
        return units

    def rows(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Yield (x, units) of each cell that has live rows; x is overwritten by the next."""
        buffer = _buffer(self.data_set.capacity, self.data_set.features)
        for cell in self.cells:
            units = self.units(cell)
            if (units >= 0).any():
                yield self.data_set.read_cell(cell, buffer), units


_buffers = threading.local()


def _buffer(capacity: int, features: int) -> NDArray[np.float32]:
    """A buffer that this thread reuses: fresh pages cost more than the read itself."""
    held: NDArray[np.float32] | None = getattr(_buffers, "cell", None)
    if held is None or held.shape != (capacity, features):
        held = np.empty((capacity, features), np.float32)
        _buffers.cell = held
    return held


def run_ordinals(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each slot's place among its unit's rows, which stand side by side in a cell."""
    place = np.arange(len(units))
    starts = np.where(np.r_[True, units[1:] != units[:-1]], place, 0)
    ordinals: NDArray[np.int64] = place - np.maximum.accumulate(starts)
    return ordinals


@dataclass(frozen=True, slots=True)
class PassTask:
    """One group's part of a pass: ``kind`` says which."""

    group: CellGroup
    scaling: Scaling
    centroids: NDArray[np.int64]
    present: NDArray[np.bool_]
    key: int = 0
    stage: int = 0


def assign_cells(task: PassTask) -> Tally:
    """The fused pass over a group of cells."""
    k, d = task.centroids.shape
    total = Tally(np.zeros(k, np.int64), np.zeros((k, d), np.int64))
    for x, units in task.group.rows():
        total += lloyd.assign(x, units, task.scaling, task.centroids, task.present)
    return total


def race_cells(task: PassTask) -> Winner | None:
    """One group's heat of a seeding race; ``centroids`` are the seeds so far, in 2^-24."""
    best: Winner | None = None
    if len(task.centroids) == 0:
        return _first_seed(task)
    for x, units in task.group.rows():
        ordinals = run_ordinals(units)
        heat = seeding.race(x, units, ordinals, task.scaling, task.centroids, task.key, task.stage)
        best = seeding.first_of(best, heat)
    return best


def _first_seed(task: PassTask) -> Winner | None:
    """The race in which all rows weigh the same: reads units, and one row."""
    best: Winner | None = None
    data_set = task.group.data_set
    for cell in task.group.cells:
        units = task.group.units(cell)
        ordinals = run_ordinals(units)
        index, ratio = seeding.race_uniform(units, ordinals, task.key, task.stage)
        if index < 0 or (best is not None and ratio > best.key):
            continue
        row = data_set.read_slots(cell, np.array([index], np.int64))
        heat = Winner(ratio, int(units[index]), int(ordinals[index]), task.scaling.fixed(row)[0])
        best = seeding.first_of(best, heat)
    return best


def square_cells(task: PassTask) -> int:
    """A group's sum of |x|^2."""
    return sum(lloyd.square_sum(x, units, task.scaling) for x, units in task.group.rows())


def check_live(data_set: DataSet, found: int, known: int) -> None:
    """JobError unless as many live rows were found on the disk as the statistics know."""
    if found != known:
        raise JobError(
            f"{data_set.path}: {found} live rows found where {known} are known: files were changed "
            "from outside (restored from a backup?); put back the newest state"
        )


def warm_up(data_set: DataSet, fold: Fold) -> None:
    """Make every worker load what a pass needs, so that times measured next are a pass's own."""
    scaling = Scaling(np.zeros(data_set.features), np.ones(data_set.features))
    centre = np.zeros((1, data_set.features), np.int64)
    group = CellGroup(data_set, (0,))
    task = PassTask(group, scaling, centre, np.ones(1, np.bool_))
    fold(assign_cells, [task] * (4 * fold.workers), _add)
    fold(race_cells, [task] * (4 * fold.workers), seeding.first_of)


def _add(one: Any, other: Any) -> Any:
    return one + other


class StoredPasses:
    """The rows of a stored data set; implements ``pipeline.quantized.Passes``.

    excluded: slots that are to be deleted and still stand on the disk. statistics: of all cells, or
    of just those named, without the excluded rows.
    """

    def __init__(
        self,
        data_set: DataSet,
        statistics: CellStatistics,
        fold: Fold,
        excluded: Excluded | None = None,
        progress: Callable[[str], None] = lambda what: None,
        cells: Sequence[int] | None = None,
    ) -> None:
        self._data_set = data_set
        self._statistics = statistics
        self._fold = fold
        self._excluded = excluded or {}
        self._progress = progress
        named = range(data_set.cells) if cells is None else cells
        self._cells = [c for c, live in zip(named, statistics.live, strict=True) if live]
        self.passes = 0

    def extent(self) -> Extent:
        s = self._statistics
        return merge_extents(s.minimum, s.maximum, s.minimum_count, s.maximum_count, s.live)

    def square_sum(self, scaling: Scaling) -> int:
        self._progress("square sum")
        empty = np.empty((0, self._data_set.features), np.int64)
        pass_ = PassTask(self._everything(), scaling, empty, np.empty(0, np.bool_))
        return int(self._run(square_cells, pass_, _add))

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        where = "" if draw.purpose == SEED else f" of step {draw.step}"
        self._progress(f"{draw.purpose} {draw.stage + 1}{where}")
        present = np.ones(len(centres), np.bool_)
        key = draw.key(random_state)
        pass_ = PassTask(self._everything(), scaling, centres, present, key, draw.stage)
        winner: Winner | None = self._run(race_cells, pass_, seeding.first_of)
        return winner

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        self._progress("assignment")
        pass_ = PassTask(self._everything(), scaling, centroids, present)
        tally: Tally = self._run(assign_cells, pass_, _add)
        check_live(self._data_set, int(tally.sizes.sum()), int(self._statistics.live.sum()))
        return tally

    def _everything(self) -> CellGroup:
        return CellGroup(self._data_set, tuple(self._cells))

    def _run(
        self, task: Callable[[PassTask], Any], pass_: PassTask, merge: Callable[[Any, Any], Any]
    ) -> Any:
        self.passes += 1
        data = self._data_set
        needed = pass_bytes(data.capacity, data.features, len(pass_.centroids))
        check_memory("a pass over the rows", needed, self._fold.memory_limit)
        terms = int(self._statistics.live.sum()) * self._data_set.features
        seconds = terms * (len(pass_.centroids) + 4) / PASS_RATE
        pieces = [
            replace(pass_, group=CellGroup(self._data_set, cells, self._excluded_in(cells)))
            for cells in split_cells(self._cells, seconds, self._fold.workers)
        ]
        return self._fold(task, pieces, merge)

    def _excluded_in(self, cells: tuple[int, ...]) -> dict[int, NDArray[np.int64]]:
        return {c: self._excluded[c] for c in cells if c in self._excluded}
