"""The rows of a sparse data set as a logistic model takes them: mini-batches of slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import RegressionSettings, held_out
from ..pipeline.schedule import Schedule
from ..pipeline.sparse_descent import SlotRows, SparseStep, SparseWindow
from ..storage.dataset import DataSet
from ..storage.sparse import ENTRY_BYTES, SparseRows, read_sparse_cell

HELD_BYTES = 256 << 20
"""Rows that are held in memory from epoch to epoch; larger data sets are read window by window."""


def sparse_window_cells(data_set: DataSet) -> int:
    """Return how many cells make a window: all of them, if they can be held in memory."""
    return max(1, min(data_set.cells, HELD_BYTES // (data_set.entries * ENTRY_BYTES)))


@dataclass(frozen=True)
class SparseModelRows:
    """A model's rows; holds them once they were read, if all cells are one window."""

    data_set: DataSet
    settings: RegressionSettings
    classes: tuple[float, ...]
    """The smaller label, which counts as -1, and the larger one."""
    excluded: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Slots by cell that count as deleted and still stand on the disk."""

    @cached_property
    def schedule(self) -> Schedule:
        """The mini-batches."""
        return self.settings.schedule(self.data_set.cells, self.data_set.capacity)

    @property
    def step(self) -> SparseStep:
        """Learning rate and weight decay."""
        return SparseStep(self.settings.learning_rate, self.settings.l2)

    @property
    def slots(self) -> int:
        """Slots of all cells."""
        return self.data_set.cells * self.data_set.capacity

    @property
    def epochs(self) -> int:
        """Epochs; the last one may be cut short."""
        return -(-self.settings.iterations // self.schedule.per_epoch)

    @cached_property
    def _units(self) -> NDArray[np.int64]:
        """(slots,) the unit of every slot, -1 where there is no row (any more)."""
        units = np.stack([self.data_set.read_units(c) for c in range(self.data_set.cells)])
        for cell, slots in self.excluded.items():
            units[cell, slots] = -1
        return units.ravel()

    @cached_property
    def training(self) -> NDArray[np.bool_]:
        """(slots,) whether a training row stands there."""
        return (self._units >= 0) & ~held_out(self._units, self.settings)

    @cached_property
    def validation(self) -> NDArray[np.bool_]:
        """(slots,) whether a row stands there that training never sees."""
        return (self._units >= 0) & held_out(self._units, self.settings)

    @cached_property
    def labels(self) -> NDArray[np.float64]:
        """(slots,) -1 and +1; holes have either."""
        read = (self.data_set.read_labels(c) for c in range(self.data_set.cells))
        found = np.concatenate([y for y in read if y is not None])
        return np.where(found == self.classes[1], 1.0, -1.0)

    def cells(self, cells: NDArray[np.int64]) -> SlotRows:
        """Read the rows of some cells, in that order."""
        x = SparseRows.joined(read_sparse_cell(self.data_set, c) for c in cells.tolist())
        labels = self.labels.reshape(self.data_set.cells, -1)[cells].ravel()
        return SlotRows(x.values, x.columns, x.pointers, labels)

    @cached_property
    def _all(self) -> SlotRows:
        return self.cells(np.arange(self.data_set.cells))

    @property
    def held(self) -> bool:
        """Whether all rows are held in memory, as one window."""
        return self.settings.window >= self.data_set.cells

    def hold(self) -> None:
        """Read what is held from now on, if anything."""
        if self.held:
            assert len(self._all.labels) == len(self.training)

    def pieces(self) -> Iterator[tuple[int, SlotRows]]:
        """Yield all rows, in the order of the cells: (number of the first slot, rows)."""
        if self.held:
            yield 0, self._all
            return
        for first in range(0, self.data_set.cells, self.settings.window):
            last = min(first + self.settings.window, self.data_set.cells)
            yield first * self.data_set.capacity, self.cells(np.arange(first, last))

    def epoch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (slots of the training rows visited (n,), edges (iterations + 1,)) of an epoch."""
        schedule = self.schedule
        order = np.concatenate(
            [self._ordered(number, window)[0] for window in range(schedule.windows)]
        )
        first = number * schedule.per_epoch
        last = min(first + schedule.per_epoch, schedule.iterations)
        ends = np.array([schedule.span(t)[2] for t in range(first, last)])
        order = order[: ends[-1]]
        kept = self.training[order]
        edges = np.r_[0, np.cumsum(kept)][np.r_[0, ends]]
        return order[kept], edges.astype(np.int64)

    def _ordered(self, epoch: int, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slots of a window in the order of its positions, and its cells."""
        cells = self.schedule.window_cells(epoch, window)
        place, slot = np.divmod(self.schedule.window_order(epoch, window), self.schedule.capacity)
        return cells[place] * self.schedule.capacity + slot, cells

    def windows(self, number: int) -> Iterator[tuple[SparseWindow, NDArray[np.int64]]]:
        """Yield an epoch's windows, each with the slot that every slot of its rows is."""
        schedule = self.schedule
        if self.held:
            order, edges = self.epoch(number)
            yield SparseWindow(self._all, order, edges, True), np.arange(self.slots)
            return
        first = number * schedule.per_epoch
        last = min(first + schedule.per_epoch, schedule.iterations)
        until = schedule.span(last - 1)[2]
        size, batch = schedule.window * schedule.capacity, schedule.batch_slots
        for window in range(-(-until // size)):
            begin, end = window * size, min((window + 1) * size, until)
            cells = schedule.window_cells(number, window)
            order = schedule.window_order(number, window)[: end - begin]
            inside = np.arange(schedule.capacity)
            slots = (cells[:, np.newaxis] * schedule.capacity + inside).ravel()
            kept = self.training[slots[order]]
            cuts = [begin, *range((begin // batch + 1) * batch, end, batch), end]
            edges = np.r_[0, np.cumsum(kept)][np.array(cuts) - begin].astype(np.int64)
            closed = end % batch == 0 or end == schedule.slots
            yield SparseWindow(self.cells(cells), order[kept], edges, closed), slots
