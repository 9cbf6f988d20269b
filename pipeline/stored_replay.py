"""Incremental replay of a model whose rows, labels and margins do not lie in memory.

The steps, credits and bounds are those of ``incremental``, and so is the proof (``README.md``). What
differs is where a row's label and margin stand: in *blocks* of ``STORED_BLOCK`` places that ``Rows``
brings. A place is a row's number, cells one after the other. Blocks are brought only where their
least margin is used up, rows only where their own is; what a look finds is kept aside as *changes*
by place, so that the blocks themselves stay as they are until somebody writes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .arrays import GridPasses
from .fixedpoint import Scaling
from .history import all_present, enter_step, room, step_of, steps_extent
from .incremental import Steps, least_left, look_at, open_step
from .limbs import joined, limbs_of
from .lloyd import Tally, rounded_down
from .quantized import Record, Settings
from .removal import CONTINUE, DONE, close_step, prepare
from .replay import Removed

STORED_BLOCK = 128
"""Places that share one lower bound of their margins."""
PASS_SHARE = 10
"""A step in which more than one row in so many is looked at takes a pass over all of them."""
BLOCKS_AT_ONCE = 1 << 13
"""Blocks that are held at a time."""


class Rows(Protocol):
    """What replay asks of the rows and of what is kept of them."""

    def minima(self, step: int) -> NDArray[np.float32]:
        """A copy of a step's lower bounds (blocks,), as ``least`` of ``incremental.Steps``."""
        ...

    def blocks(
        self, step: int, blocks: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Copies of labels and margins (n, STORED_BLOCK) of some blocks (ascending)."""
        ...

    def grid(self, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """Rows (n, features) on the row grid at some places (ascending)."""
        ...

    def assign(self, scaling: Scaling, centroids: NDArray[np.int64]) -> Tally:
        """A pass over the rows that stay."""
        ...


@dataclass(frozen=True, slots=True)
class Changes:
    """Labels and margins of one step that differ from what stands in the blocks."""

    places: NDArray[np.int64]
    """(n,) ascending, each once."""
    labels: NDArray[Any]
    margins: NDArray[np.float32]

    def under(self, newer: Changes) -> Changes:
        """Return these and newer ones, which win."""
        stay = self.without(newer.places)
        places = np.concatenate([stay.places, newer.places])
        order = np.argsort(places, kind="stable")
        labels = np.concatenate([stay.labels, newer.labels])
        margins = np.concatenate([stay.margins, newer.margins])
        return Changes(places[order], labels[order], margins[order])

    def without(self, places: NDArray[np.int64]) -> Changes:
        """Return those that are not at some places (ascending)."""
        if not len(places) or not len(self.places):
            return self
        near = np.minimum(np.searchsorted(places, self.places), len(places) - 1)
        return self.at(places[near] != self.places)

    def at(self, chosen: NDArray[np.bool_]) -> Changes:
        """Return those chosen (n,)."""
        return Changes(self.places[chosen], self.labels[chosen], self.margins[chosen])

    def enter(
        self, blocks: NDArray[np.int64], labels: NDArray[Any], margins: NDArray[np.float32]
    ) -> None:
        """Write what lies in some blocks (ascending) to their labels and margins (n, STORED_BLOCK)."""
        first, last = int(blocks[0]) * STORED_BLOCK, (int(blocks[-1]) + 1) * STORED_BLOCK
        a, b = np.searchsorted(self.places, [first, last])
        block, lane = np.divmod(self.places[a:b], STORED_BLOCK)
        row = np.searchsorted(blocks, block)
        here = blocks[row] == block
        labels[row[here], lane[here]] = self.labels[a:b][here]
        margins[row[here], lane[here]] = self.margins[a:b][here]


def no_changes(labels: np.dtype[Any]) -> Changes:
    """Return the changes of a step of which nothing was looked at; labels: their type."""
    return Changes(np.empty(0, np.int64), np.empty(0, labels), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept beside a record, but for what ``Rows`` brings; one item a step."""

    credits: NDArray[np.float64]
    """(steps, k)"""
    drifts: NDArray[np.float64]
    """(steps,)"""
    changes: tuple[Changes, ...]


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rows that leave."""

    removed: Removed
    places: NDArray[np.int64]
    """(m,) in any order."""


@dataclass(slots=True)
class Found:
    """How far replay went, and what it found."""

    todo: int
    """``removal.DONE``, or what has still to be done."""
    first: int
    """The first step that differs; -1 if none does."""
    looked_at: int
    record: Record
    """The steps that hold."""
    kept: Kept
    """Of as many steps."""
    minima: dict[int, NDArray[np.float32]]
    """Steps' lower bounds (blocks,) that changed."""
    fresh: set[int] = field(default_factory=set)
    """Steps that took a pass: all their labels and margins are to be written anew."""


@njit(cache=True)
def _near(labels, margins, credit):  # type: ignore[no-untyped-def]
    """Return the indices of the rows (n,) whose margin is used up."""
    found = np.empty(labels.size, np.int64)
    count = 0
    for i in range(labels.size):
        if margins[i] <= credit[labels[i]]:
            found[count] = i
            count += 1
    return found[:count]


@njit(cache=True)
def _look(fixed, near, labels, margins, centres, credit, sizes, sums, dirty):  # type: ignore[no-untyped-def]
    """Look at rows fixed (m, d), which are at ``near`` among labels and margins."""
    far = np.empty(dirty.size, np.bool_)
    for a in range(near.size):
        look_at(fixed[a], near[a], labels, margins, centres, credit, far, sizes, sums, dirty)


@njit(cache=True)
def least_of_blocks(labels, margins, credit, drift):  # type: ignore[no-untyped-def]
    """Return the lower bound (n,) float32 of each block of labels and margins (n, STORED_BLOCK)."""
    found = np.empty(labels.shape[0], np.float32)
    for b in range(labels.shape[0]):
        found[b] = rounded_down(
            least_left(labels[b], margins[b], credit, drift, 0, labels.shape[1])
        )
    return found


class _Chain:
    """A replay on its way through the steps."""

    def __init__(
        self, record: Record, settings: Settings, leaving: Leaving, kept: Kept, rows: Rows
    ) -> None:
        removed = leaving.removed
        self._settings = settings
        self._rows = rows
        self._scaling = record.scaling
        self._x = removed.x
        self._fixed = self._scaling.fixed(removed.x)
        self._gone = np.sort(leaving.places)
        self._before = settings.small_below(record.extent.rows)
        self._left = record.extent.rows - len(removed.units)
        self._threshold = settings.small_below(self._left)
        self._drawn = [step.centroids.drawn for step in record.steps]
        self._m = _steps(record, kept, self._fixed, seed_places(record, removed))
        self._changes = [c.without(self._gone) for c in kept.changes]
        self._minima: dict[int, NDArray[np.float32]] = {}
        self._fresh: set[int] = set()
        self._looked_at = 0

    def run(self) -> Found:
        """Go through the steps as ``nearby.delete_places`` does."""
        m = self._m
        m.state[0] = 0
        todo, first = int(prepare(m, self._x, self._fixed, np.arange(len(self._x)))), -1
        if todo == DONE:
            todo, first = self._go()
            self._bound_anew()
        return self._found(todo, first)

    def _go(self) -> tuple[int, int]:
        m, count = self._m, int(self._m.state[1])
        k, d = m.sums.shape[1:]
        dirty, moved = np.zeros(k, np.bool_), np.zeros(k)
        row, analog = np.empty(d, np.int64), np.empty(d)
        everyone = np.arange(len(self._x))
        spacing, now, before = self._settings.spacing, self._threshold, self._before
        first = -1
        for t in range(count):
            if not open_step(t, m, self._fixed, everyone, spacing, now, dirty, moved, row, analog):
                return CONTINUE, t if first < 0 else first
            if moved.max() > 0.0:
                first = t if first < 0 else first
                self._follow(t, dirty)
            if not close_step(t, m, moved, dirty, now, before):
                return DONE, t + 1 if first < 0 and t + 1 < count else first
        if count > self._settings.max_iter:
            return DONE, first
        return CONTINUE, count if first < 0 else first

    def _follow(self, t: int, dirty: NDArray[np.bool_]) -> None:
        """Bring step t's rows up to its moved centroids."""
        m = self._m
        sizes, sums = m.sizes[t].copy(), m.sums[t].copy()
        found = self._look_near(t, sizes, sums, dirty)
        if found is not None:
            m.sizes[t], m.sums[t] = sizes, sums
            self._changes[t] = self._changes[t].under(found)
            return
        tally = self._rows.assign(self._scaling, m.quantized[t])
        m.sizes[t], m.sums[t] = tally.sizes, tally.sums
        m.credit[t], m.drift[t] = 0.0, 0.0
        dirty[:] = True
        self._fresh.add(t)
        self._changes[t] = no_changes(m.labels.dtype)
        self._minima.pop(t, None)

    def _look_near(
        self, t: int, sizes: NDArray[np.int64], sums: NDArray[np.int64], dirty: NDArray[np.bool_]
    ) -> Changes | None:
        """Look again at step t's rows near a boundary; None where a pass over all is cheaper."""
        m, rows = self._m, self._rows
        credit, drift = m.credit[t], float(m.drift[t])
        centres = (m.quantized[t] * 2).astype(np.int32)
        least = rows.minima(t)
        blocks = np.flatnonzero(least.astype(np.float64) <= drift)
        parts, seen = [no_changes(m.labels.dtype)], 0
        for a in range(0, len(blocks), BLOCKS_AT_ONCE):
            part = blocks[a : a + BLOCKS_AT_ONCE]
            labels, margins = self._blocks(t, part)
            flat = labels.reshape(-1), margins.reshape(-1)
            near = _near(*flat, credit)
            seen += len(near)
            if seen > self._left // PASS_SHARE:
                return None
            places = part[near // STORED_BLOCK] * STORED_BLOCK + near % STORED_BLOCK
            if len(near):
                fixed = rows.grid(places)
                _look(fixed, near, *flat, centres, credit, sizes, sums, dirty)
            least[part] = least_of_blocks(labels, margins, credit, drift)
            parts.append(Changes(places, flat[0][near], flat[1][near]))
        self._looked_at += seen
        self._minima[t] = least
        return Changes(*(np.concatenate([getattr(p, n) for p in parts]) for n in _COLUMNS))

    def _blocks(
        self, t: int, blocks: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Some blocks' labels and margins as they are now: with changes, without rows that leave."""
        labels, margins = self._rows.blocks(t, blocks)
        self._changes[t].enter(blocks, labels, margins)
        count = len(self._gone)
        none = np.zeros(count, labels.dtype), np.full(count, np.inf, np.float32)
        Changes(self._gone, *none).enter(blocks, labels, margins)
        return labels, margins

    def _bound_anew(self) -> None:
        """Take rows that leave out of their blocks' lower bounds, which may be their own margins."""
        m, blocks = self._m, np.unique(self._gone // STORED_BLOCK)
        if not len(blocks):
            return
        for t in sorted(set(range(int(m.state[0]))) - self._fresh):
            least = self._minima[t] if t in self._minima else self._rows.minima(t)
            found = least_of_blocks(*self._blocks(t, blocks), m.credit[t], float(m.drift[t]))
            if (found != least[blocks]).any():
                least[blocks] = found
                self._minima[t] = least

    def _found(self, todo: int, first: int) -> Found:
        m = self._m
        holds = int(m.state[0])
        steps = tuple(step_of(m, t, self._drawn[t]) for t in range(holds))
        record = Record(steps_extent(m, self._left), joined(m.square_sum), steps)
        kept = Kept(m.credit[:holds], m.drift[:holds], tuple(self._changes[:holds]))
        minima = {t: least for t, least in self._minima.items() if t < holds}
        return Found(todo, first, self._looked_at, record, kept, minima, self._fresh)


_COLUMNS = ("places", "labels", "margins")


def seed_places(record: Record, removed: Removed) -> NDArray[np.int64]:
    """Return where each seed (k,) is among the removed rows; -1 for those that stay."""
    gone = zip(removed.units.tolist(), removed.ordinals.tolist(), strict=True)
    index: Mapping[tuple[int, int], int] = {key: i for i, key in enumerate(gone)}
    seeds = record.steps[0].centroids.drawn.tolist()
    return np.array([index.get((unit, ordinal), -1) for unit, ordinal in seeds], np.int64)


def _steps(record: Record, kept: Kept, fixed: NDArray[np.int32], seeds: NDArray[np.int64]) -> Steps:
    """Return a record's steps as ``incremental`` has them, of which the removed rows are all rows.

    fixed (m, d): those rows; their labels are found anew.
    """
    count, extent = len(record.steps), record.extent
    k, d = record.steps[0].tally.sums.shape
    m = room(count, len(fixed), d, k)
    none = np.zeros(len(fixed), np.int64)
    passes = GridPasses(fixed, none, none, threads=1)
    for t, step in enumerate(record.steps):
        enter_step(m, t, step)
        passes.label(record.scaling, step.centroids.quantized, m.labels[t], m.margins[t])
    m.credit[:], m.drift[:] = kept.credits, kept.drifts
    m.seeds[:] = seeds
    m.lower[:], m.upper[:] = extent.lower, extent.upper
    m.lower_count[:], m.upper_count[:] = extent.lower_count, extent.upper_count
    m.square_sum[:] = limbs_of(record.square_sum)
    m.state[:] = count
    return m


def replay(record: Record, settings: Settings, leaving: Leaving, kept: Kept, rows: Rows) -> Found:
    """Take rows out of a record whose steps have all their centroids; some rows must be left.

    Goes as far as no race and no new step is needed: where ``todo`` is CONTINUE the steps found hold
    and training goes on from there, where it is RESEED or RESCALE nothing found is of use.
    """
    return _Chain(record, settings, leaving, kept, rows).run()


def whole(record: Record) -> bool:
    """Whether there is a step, and no step lacks a centroid: then labels and margins can be kept."""
    return bool(record.steps) and all_present(record)
