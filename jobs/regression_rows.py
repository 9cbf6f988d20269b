"""The rows of a stored data set as a regression takes them: windows of mini-batches, read ahead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..pipeline.descent import Window
from ..pipeline.design import Design
from ..pipeline.losses import Loss
from ..pipeline.regression import RegressionSettings, held_out
from ..pipeline.schedule import Schedule
from ..storage.dataset import DataSet

WINDOW_BYTES = 8 << 20
"""Raw rows whose slots are permuted together: enough for mixing, little enough for the caches."""


def window_cells(data_set: DataSet) -> int:
    """Return how many cells make a window."""
    cell = data_set.capacity * data_set.row_bytes
    return max(1, min(data_set.cells, WINDOW_BYTES // cell))


def encode(
    loss: Loss, classes: tuple[float, ...], labels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return labels as the losses take them: y itself, -1 and +1, or the class's number."""
    if loss == Loss.LINEAR:
        return labels
    numbers = np.searchsorted(classes, labels).astype(np.float64)
    return 2.0 * numbers - 1.0 if loss == Loss.LOGISTIC else numbers


@dataclass(frozen=True)
class RegressionRows:
    """What is needed to read a model's rows anywhere; small, holds no row."""

    data_set: DataSet
    settings: RegressionSettings
    design: Design
    classes: tuple[float, ...]
    excluded: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Slots by cell that count as deleted and still stand on the disk."""

    @cached_property
    def schedule(self) -> Schedule:
        """The mini-batches."""
        return self.settings.schedule(self.data_set.cells, self.data_set.capacity)

    @property
    def width(self) -> int:
        """Columns of the design matrix."""
        return self.data_set.features + 1

    @property
    def outputs(self) -> int:
        """Rows of the parameter matrix: q."""
        return len(self.classes) if self.settings.loss == Loss.SOFTMAX else 1

    @property
    def parameters(self) -> int:
        """q m"""
        return self.outputs * self.width

    def units(self, cell: int, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Return the unit of every slot, or of some, -1 where there is no row (any more)."""
        units = self.data_set.read_units(cell, first, last)
        if cell in self.excluded:
            gone = self.excluded[cell] - first
            units[gone[(gone >= 0) & (gone < len(units))]] = -1
        return units

    def cell(
        self, cell: int, validation: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return design rows (n, m) and encoded labels (n,) of a cell's training or validation rows."""
        units = self.units(cell)
        chosen = np.flatnonzero((units >= 0) & (held_out(units, self.settings) == validation))
        x, y = self.data_set.read_cell(cell), self._labels(cell)
        return self.design.take(x, chosen), encode(self.settings.loss, self.classes, y[chosen])

    def _labels(self, cell: int) -> NDArray[np.float64]:
        labels = self.data_set.read_labels(cell)
        assert labels is not None  # A regression is trained on data with labels only.
        return labels

    def windows(self, first: int, last: int) -> Iterator[Window]:
        """Yield the windows of iterations first <= t < last, each read while the last is worked on."""
        with ThreadPoolExecutor(1, thread_name_prefix="expunge-read") as reader:
            waiting = None
            for piece in self._pieces(first, last):
                # A copy of the context, so that what the reader reads is counted here.
                coming = reader.submit(copy_context().run, partial(self._window, *piece))
                if waiting is not None:
                    yield waiting.result()
                waiting = coming
            if waiting is not None:
                yield waiting.result()

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """(epoch, window, first and last position within the epoch) that the iterations need."""
        schedule = self.schedule
        size = schedule.window * schedule.capacity
        while first < last:
            epoch, begin, _ = schedule.span(first)
            until = min(last, (epoch + 1) * schedule.per_epoch)
            end = schedule.span(until - 1)[2]
            for window in range(begin // size, -(-end // size)):
                yield (
                    epoch,
                    window,
                    max(begin, window * size),
                    min(end, (window + 1) * size, schedule.slots),
                )
            first = until

    def _window(self, epoch: int, window: int, begin: int, end: int) -> Window:
        """Read a window and put the live rows of some positions in order."""
        schedule, data = self.schedule, self.data_set
        cells = schedule.window_cells(epoch, window).tolist()
        capacity = data.capacity
        x = np.empty((len(cells) * capacity, data.features), np.float32)
        y = np.empty(len(x))
        live = np.empty(len(x), np.bool_)
        for place, cell in enumerate(cells):
            here = slice(place * capacity, (place + 1) * capacity)
            units = self.units(cell)
            live[here] = (units >= 0) & ~held_out(units, self.settings)
            data.read_cell(cell, x[here])
            y[here] = self._labels(cell)
        offset = window * schedule.window * capacity
        order = schedule.window_order(epoch, window)[begin - offset : end - offset]
        kept = live[order]
        chosen = order[kept]
        batch = schedule.batch_slots
        cuts = [begin, *range((begin // batch + 1) * batch, end, batch), end]
        before = np.r_[0, np.cumsum(kept)]
        return Window(
            self.design.take(x, chosen),
            encode(self.settings.loss, self.classes, y[chosen]),
            before[np.array(cuts) - begin],
            epoch * schedule.per_epoch + begin // batch,
            end % batch == 0 or end == schedule.slots,
        )


def cut(window: Window) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64], bool]]:
    """Yield (iteration, rows, labels, whether the iteration ends) for each piece of a window."""
    pieces = len(window.edges) - 1
    for k, (start, stop) in enumerate(pairwise(window.edges.tolist())):
        ends = k + 1 < pieces or window.closed
        yield window.first + k, window.rows[start:stop], window.labels[start:stop], ends
