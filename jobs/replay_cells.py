"""Writing a model's labels and margins, cell by cell: first, anew, or without the rows that go.

One task does all of it. It takes what the parent version has of a cell, enters what was found since,
labels the rows again at the steps that are new, and writes the cell's chunks without the rows that
leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.arrays import GridPasses
from ..pipeline.fixedpoint import Scaling
from ..pipeline.lloyd import Tally
from ..pipeline.stored_replay import STORED_BLOCK, Changes, least_of_blocks
from ..storage.blockchecks import block_checks
from ..storage.chunks import Index, read_chunk, write_chunk
from ..storage.fence import Fence
from ..storage.schema import ArraySpec
from .memory import SLACK, pass_bytes
from .replay_store import CELL_ARRAYS, ROW_ARRAYS, Layout, row_index
from .train_kmeans import CellGroup


@dataclass(frozen=True, slots=True)
class Earlier:
    """The parent version of what is written, as a task needs it."""

    path: Path
    specs: Mapping[str, ArraySpec]
    digests: Mapping[str, Mapping[Index, str]]
    """Those of the task's cells."""


@dataclass(frozen=True, slots=True)
class CellsTask:
    """Some cells to write."""

    group: CellGroup
    """With the rows that leave as excluded."""
    layout: Layout
    path: Path
    fence: Fence
    earlier: Earlier | None
    held: Mapping[int, Mapping[int, Changes]]
    """Steps that the parent has, and what changed since in each of the cells."""
    fresh: Mapping[int, NDArray[np.int64]]
    """Steps whose rows are labelled here, and their centroids (k, d) in 2^-23."""
    scaling: Scaling


@dataclass(slots=True)
class Written:
    """What the tasks did."""

    digests: dict[tuple[str, Index], str] = field(default_factory=dict)
    minima: dict[tuple[int, int], NDArray[np.float32]] = field(default_factory=dict)
    """Lower bounds (blocks,) by step and cell, of fresh steps."""
    tallies: dict[int, Tally] = field(default_factory=dict)
    """Of fresh steps."""

    def joined(self, other: Written) -> Written:
        """Return both, of different cells."""
        tallies = dict(self.tallies)
        for step, tally in other.tallies.items():
            tallies[step] = tallies[step] + tally if step in tallies else tally
        return Written(self.digests | other.digests, self.minima | other.minima, tallies)


def joined(one: Written, other: Written) -> Written:
    """Return what two tasks did."""
    return one.joined(other)


def cells_bytes(layout: Layout, features: int) -> int:
    """Return the peak of a task: a cell's rows, as stored and on the grid, and its chunks twice."""
    rows = 4 * layout.capacity * features
    chunks = layout.room * layout.slots * (layout.label.itemsize + 4)
    return rows + pass_bytes(layout.capacity, features, layout.n_clusters) + 2 * chunks + SLACK


def write_cells(task: CellsTask) -> Written:
    """Write labels and margins of some cells."""
    done, specs = Written(), task.layout.cell_specs()
    for cell in task.group.cells:
        labels, margins = _held(task, cell)
        if task.fresh:
            _label(task, cell, labels, margins, done)
        if cell in task.group.excluded:
            gone = task.group.excluded[cell]
            labels[:, gone] = 0
            margins[:, gone] = np.inf
        checks = block_checks(*blocked(labels, margins)).reshape(task.layout.room, -1)
        written: tuple[NDArray[Any], ...] = (labels, margins, checks)
        for name, values in zip(CELL_ARRAYS, written, strict=True):
            index = row_index(cell)
            with task.fence.writing():
                digest = write_chunk(task.path, name, specs[name], index, values[:, np.newaxis])
            done.digests[name, index] = digest
    return done


def _held(task: CellsTask, cell: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """A cell's labels and margins (room, slots) at the steps that are held; 0 and infinite elsewhere."""
    layout, earlier = task.layout, task.earlier
    labels = np.zeros((layout.room, layout.slots), layout.label)
    margins = np.full((layout.room, layout.slots), np.inf, np.float32)
    if earlier is None or not task.held:
        return labels, margins
    steps = list(task.held)
    arrays: tuple[NDArray[Any], ...] = (labels, margins)
    for name, values in zip(ROW_ARRAYS, arrays, strict=True):
        expected = earlier.digests[name][row_index(cell)]
        found = read_chunk(earlier.path, name, earlier.specs[name], row_index(cell), expected)
        values[steps] = found[steps, 0]
    for step, changes in task.held.items():
        if cell in changes:
            slots = changes[cell].places - cell * layout.slots
            labels[step, slots] = changes[cell].labels
            margins[step, slots] = changes[cell].margins
    return labels, margins


def _label(
    task: CellsTask,
    cell: int,
    labels: NDArray[Any],
    margins: NDArray[np.float32],
    done: Written,
) -> None:
    """Fill in a cell's labels and margins (room, slots) at the fresh steps."""
    layout, data = task.layout, task.group.data_set
    units = task.group.units(cell)
    x = data.read_cell(cell) if (units >= 0).any() else np.empty((0, data.features), np.float32)
    rows = GridPasses(task.scaling.fixed(x), units[: len(x)], units[: len(x)], threads=1)
    credit = np.zeros(layout.n_clusters)
    for step, centroids in task.fresh.items():
        here = labels[step, : len(x)], margins[step, : len(x)]
        tally = rows.label(task.scaling, centroids, *here)
        done.tallies[step] = done.tallies[step] + tally if step in done.tallies else tally
        cut = blocked(labels[step], margins[step])
        done.minima[step, cell] = least_of_blocks(*cut, credit, 0.0)


def blocked(
    labels: NDArray[Any], margins: NDArray[np.float32]
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return labels and margins of whole blocks block by block (n, STORED_BLOCK)."""
    return labels.reshape(-1, STORED_BLOCK), margins.reshape(-1, STORED_BLOCK)


def changes_in(changes: Changes, cells: Sequence[int], layout: Layout) -> dict[int, Changes]:
    """Return a step's changes by cell, of some cells (ascending)."""
    edges = np.array([[c, c + 1] for c in cells], np.int64) * layout.slots
    found = {}
    for cell, (a, b) in zip(cells, np.searchsorted(changes.places, edges).tolist(), strict=True):
        if a < b:
            part = slice(a, b)
            columns = changes.places[part], changes.labels[part], changes.margins[part]
            found[cell] = Changes(*columns)
    return found
