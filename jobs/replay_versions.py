"""The next version of what a k-means model keeps for replay: linked, written, sealed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.quantized import Record, Settings
from ..pipeline.stored_replay import Kept, no_changes, whole
from ..storage.chunks import Index, chunk_bytes, link_chunk, write_chunk
from ..storage.dataset import DataSet
from ..storage.fence import Fence
from ..storage.schema import ArraySpec
from ..storage.versions import create_version, seal_version
from .errors import JobError
from .fold import Fold, split_cells
from .memory import check_memory
from .replay_cells import (
    CellsTask,
    Earlier,
    Written,
    cells_bytes,
    changes_in,
    joined,
    write_cells,
)
from .replay_store import (
    CELL_ARRAYS,
    FOLDER,
    LABELS,
    ROW_ARRAYS,
    Layout,
    StoredReplay,
    all_bytes,
    row_index,
    small_arrays,
    specs_of,
)
from .train_kmeans import PASS_RATE, CellGroup, Excluded

CARRIED_SHARE = 1.0
"""Changes go to their cells once as many bytes of them were carried from version to version as writing
these cells costs, times this. Where every deletion looks at r rows, c bytes each, that is after
m = sqrt(2 W / (c r)) deletions for a cost of W: just where c r m / 2 + W / m, a deletion's, is least."""
FILE_COST = 1 << 18
"""A file that is written and synced costs as much as so many bytes more, roughly."""
CARRIED = "carried"
"""The attribute that says how many bytes of changes versions have carried since cells were written."""
WRITE_RATE = 3e8
"""Bytes of labels and margins that a thread reads and writes in a second, roughly."""
DRIVER_CELLS = 8
"""So many cells the driver writes itself, where no row is read for them."""


@dataclass(frozen=True, slots=True)
class Next:
    """What a version is to keep."""

    record: Record
    kept: Kept
    """Of the steps that are held from the parent: the first ones."""
    minima: Mapping[int, NDArray[np.float32]]
    """Lower bounds that changed, by step."""
    passed: frozenset[int] = frozenset()
    """Steps that are held and whose rows are labelled anew."""

    @property
    def fresh(self) -> list[int]:
        """Steps whose rows are labelled: those passed, and those that are new."""
        held = len(self.kept.changes)
        return sorted({*self.passed, *range(held, len(self.record.steps))})


def anew(record: Record) -> Next:
    """Return that everything is labelled."""
    k = len(record.steps[0].centroids.quantized) if record.steps else 0
    return Next(record, Kept(np.zeros((0, k)), np.zeros(0), ()), {})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a version is written, and who helps."""

    path: Path
    """The version's folder."""
    fence: Fence
    fold: Fold
    data_set: DataSet
    excluded: Excluded
    """Rows that leave."""


def nothing_kept(why: str) -> dict[str, Any]:
    """Return what is told of labels and margins where there are none, though they are wanted."""
    return {"kind": LABELS, "bytes": 0, "digest": None, "why": why}


def write_replay(
    place: Place, settings: Settings, wanted: Next, parent: StoredReplay | None
) -> dict[str, Any]:
    """Write a version's labels and margins below its folder; return what is told of them.

    parent: what the steps held are taken from. Nothing is kept where a centroid is absent.
    """
    if not whole(wanted.record):
        return nothing_kept("a centroid is absent" if wanted.record.steps else "no row is left")
    work = _Writing(place, settings, wanted, parent)
    digest = work.write()
    return {"kind": LABELS, "bytes": work.bytes, "digest": digest, "cells_written": len(work.cells)}


class _Writing:
    """A version on its way."""

    def __init__(
        self, place: Place, settings: Settings, wanted: Next, parent: StoredReplay | None
    ) -> None:
        self._place = place
        self._wanted = wanted
        self._parent = parent
        self._record = wanted.record
        self._count = len(wanted.record.steps)
        self._fresh = wanted.fresh
        self._layout = self._laid_out(settings)
        self._carried = 0
        self.cells = self._cells_to_write()
        self._arrays = small_arrays(self._left())
        self._specs = specs_of(self._layout, self._arrays)
        self.bytes = all_bytes(self._specs)
        self._path = place.path / FOLDER

    def _laid_out(self, settings: Settings) -> Layout:
        """The parent's layout, as long as the steps fit."""
        parent = self._parent
        if parent is not None and parent.steps <= self._count <= parent.layout.room:
            return parent.layout
        k, most = settings.n_clusters, settings.max_iter
        return Layout.of(self._place.data_set, self._count, k, most)

    def _cells_to_write(self) -> list[int]:
        """The cells whose chunks can't be links."""
        parent, excluded = self._parent, sorted(self._place.excluded)
        every = list(range(self._layout.cells))
        # Steps that are no longer were those of a model that saw the rows that leave.
        if parent is None or self._fresh or self._layout != parent.layout:
            return every
        if self._count < parent.steps:
            return every
        changes = self._wanted.kept.changes
        places = np.concatenate([c.places for c in changes])
        touched = np.unique(places // self._layout.slots).tolist()
        carried = parent.version.attrs.get(CARRIED, 0)
        carried += sum(a.nbytes for c in changes for a in (c.places, c.labels, c.margins))
        cell = self._layout.row_bytes // self._layout.cells + len(CELL_ARRAYS) * FILE_COST
        if carried <= CARRIED_SHARE * len(touched) * cell:
            self._carried = carried
            return excluded
        return sorted({*excluded, *touched})

    def _left(self) -> Kept:
        """What is kept once the cells are written: no changes in them, and a place for new steps."""
        kept, k = self._wanted.kept, self._layout.n_clusters
        written = np.zeros(self._layout.cells, np.bool_)
        written[self.cells] = True
        changes = [c.at(~written[c.places // self._layout.slots]) for c in kept.changes]
        changes += [no_changes(self._layout.label)] * (self._count - len(changes))
        credits, drifts = np.zeros((self._count, k)), np.zeros(self._count)
        credits[: len(kept.credits)], drifts[: len(kept.drifts)] = kept.credits, kept.drifts
        return Kept(credits, drifts, tuple(changes))

    def write(self) -> str:
        """Write everything; return the digest."""
        specs = self._specs
        rows = len(self.cells) * sum(chunk_bytes(specs[name]) for name in CELL_ARRAYS)
        others = all_bytes({n: s for n, s in specs.items() if n not in CELL_ARRAYS})
        attrs = {"data_set": self._place.data_set.path.name, CARRIED: self._carried}
        create_version(self._path, specs, attrs, needed=rows + others)
        digests: dict[str, dict[Index, str]] = {name: {} for name in specs}
        for name, index, digest in [*self._linked(), *self._written(), *self._small()]:
            digests[name][index] = digest
        return seal_version(self._path, specs, digests)

    def _linked(self) -> Iterable[tuple[str, Index, str]]:
        """Share the other cells with the parent, and bounds that did not change."""
        parent, written = self._parent, set(self.cells)
        if parent is None:
            return
        version = parent.version
        wanted = [
            (name, row_index(cell))
            for name in CELL_ARRAYS
            for cell in range(self._layout.cells)
            if cell not in written
        ]
        same = set(range(self._count)) - {*self._fresh, *self._wanted.minima}
        wanted += [("minima", (step, 0, 0)) for step in same]
        for name, index in wanted:
            link_chunk(version.path, self._path, name, index)
            yield name, index, version.digests[name][index]

    def _written(self) -> Iterable[tuple[str, Index, str]]:
        """Write cells, and the bounds of the steps that were labelled."""
        if not self.cells:
            return
        done = self._run()
        self._check(done)
        yield from ((name, index, digest) for (name, index), digest in done.digests.items())
        for step in self._fresh:
            least = [done.minima[step, cell] for cell in range(self._layout.cells)]
            yield self._minima(step, np.stack(least))

    def _small(self) -> Iterable[tuple[str, Index, str]]:
        """Write small arrays, and bounds that changed."""
        for step, least in self._wanted.minima.items():
            if step not in self._fresh:
                yield self._minima(step, least)
        for name, array in self._arrays.items():
            spec, index = self._specs[name], (0,) * array.values.ndim
            if array.values.size:
                yield name, index, write_chunk(self._path, name, spec, index, array.values)

    def _minima(self, step: int, least: NDArray[np.float32]) -> tuple[str, Index, str]:
        values = least.reshape(1, self._layout.cells, self._layout.blocks)
        index = (step, 0, 0)
        digest = write_chunk(self._path, "minima", self._specs["minima"], index, values)
        return "minima", index, digest

    def _run(self) -> Written:
        """Write the cells, in tasks where there is enough to do."""
        if not self._fresh and len(self.cells) <= DRIVER_CELLS:
            return write_cells(self._task(self.cells))
        fold, layout, data = self._place.fold, self._layout, self._place.data_set
        needed = cells_bytes(layout, data.features)
        check_memory("writing labels and margins", needed, fold.memory_limit)
        terms = self._record.extent.rows * data.features * (layout.n_clusters + 4)
        seconds = terms * len(self._fresh) / PASS_RATE
        seconds += layout.row_bytes * len(self.cells) / layout.cells / WRITE_RATE
        parts = split_cells(self.cells, seconds, fold.workers)
        return fold(write_cells, [self._task(cells) for cells in parts], joined)

    def _task(self, cells: Sequence[int]) -> CellsTask:
        place, wanted = self._place, self._wanted
        slots = {c: place.excluded[c] for c in cells if c in place.excluded}
        return CellsTask(
            CellGroup(place.data_set, tuple(cells), slots),
            self._layout,
            self._path,
            place.fence,
            self._earlier(cells),
            {
                step: changes_in(changes, cells, self._layout)
                for step, changes in enumerate(wanted.kept.changes)
                if step not in self._fresh
            },
            {step: self._record.steps[step].centroids.quantized for step in self._fresh},
            self._record.scaling,
        )

    def _earlier(self, cells: Sequence[int]) -> Earlier | None:
        if self._parent is None:
            return None
        version = self._parent.version
        specs: dict[str, ArraySpec] = {name: version.specs[name] for name in ROW_ARRAYS}
        digests = {
            name: {row_index(c): version.digests[name][row_index(c)] for c in cells}
            for name in ROW_ARRAYS
        }
        return Earlier(version.path, specs, digests)

    def _check(self, done: Written) -> None:
        """JobError unless labelled rows add up to what training found."""
        for step, tally in done.tallies.items():
            found = self._record.steps[step].tally
            if (tally.sizes != found.sizes).any() or (tally.sums != found.sums).any():
                raise JobError(
                    f"{self._place.data_set.path}: the rows are no longer those that step {step} was "
                    "trained on: files were changed from outside; try again"
                )
