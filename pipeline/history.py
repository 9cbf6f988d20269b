"""What incremental replay remembers of a training, and how training and deletion fill it.

A ``History`` holds every step of a k-means model with each row's label and margin. Deleting rows runs
``nearby.delete_places`` as far as that goes; where a seed was deleted, a cluster ran empty or the
chain goes on beyond its old end, the training loop itself goes on from there (``quantized.fit`` with
remembered answers), so that one and the same code decides what a step is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import listed, quantized
from .arrays import THREAD_VALUES, ArrayPasses
from .fixedpoint import Extent, Scaling, within
from .incremental import Steps
from .limbs import joined, limbs_of
from .lloyd import Tally
from .nearby import run_steps
from .packed import Packed, delete_packed
from .quantized import SEED, Centroids, Draw, Record, Settings, Step
from .removal import CONTINUE, DONE, REFIT, RESCALE, RESEED
from .replay import UNCHANGED, Races, Replayed, known_races, refit_reason
from .seeding import Winner

PER_STEP = Steps._fields[: Steps._fields.index("drift") + 1]
"""The arrays that have a first axis of steps."""
FIRST_STEPS = 16
"""Steps that there is room for at first."""


def all_present(record: Record) -> bool:
    """Whether no step lacks a centroid."""
    return all(step.centroids.present.all() for step in record.steps)


def label_type(n_clusters: int) -> type[np.unsignedinteger]:
    """Return the least type that holds a label."""
    return np.uint8 if n_clusters <= 1 << 8 else np.uint16 if n_clusters <= 1 << 16 else np.uint32


def room(steps: int, rows: int, features: int, n_clusters: int) -> Steps:
    """Return the arrays of a history, unfilled."""
    t, k, d = steps, n_clusters, features
    near, spans = listed.list_room(rows)
    return Steps(
        np.zeros((t, k, d), np.int64),
        np.zeros((t, k, d)),
        np.zeros((t, d), np.int64),
        np.zeros((t, k), np.int64),
        np.zeros((t, k, d), np.int64),
        np.zeros((t, 2), np.int64),
        np.zeros(t, np.bool_),
        np.zeros((t, rows), label_type(k)),
        np.zeros((t, rows), np.float32),
        np.zeros((t, k)),
        np.zeros((t, near), np.uint16),
        np.zeros((t, near), np.float32),
        np.zeros((t, near), label_type(k)),
        np.zeros((t, spans), np.int64),
        np.zeros((t, spans), np.int64),
        np.zeros(t),
        np.zeros((t, k, d), np.int64),
        np.zeros(t),
        np.zeros(k, np.int64),
        np.zeros(d, np.float32),
        np.zeros(d, np.float32),
        np.zeros(d, np.int64),
        np.zeros(d, np.int64),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
    )


def enter_step(m: Steps, t: int, step: Step) -> None:
    """Write a step to a history's arrays, but for what they keep of single rows."""
    found = step.centroids
    m.quantized[t], m.analog[t], m.phase[t] = found.quantized, found.analog, found.phase
    m.sizes[t], m.sums[t], m.loss[t] = step.tally.sizes, step.tally.sums, limbs_of(step.loss)
    m.drawn[t] = t == 0 or bool((found.drawn[:, 0] >= 0).any())


def step_of(m: Steps, t: int, drawn: NDArray[np.int64]) -> Step:
    """Return a step of a history in arrays of its own; drawn (k, 2): which rows races gave it."""
    centroids = Centroids(
        m.analog[t].copy(),
        m.quantized[t].copy(),
        m.phase[t].copy(),
        np.ones(m.sizes.shape[1], np.bool_),
        drawn.copy(),
    )
    return Step(centroids, Tally(m.sizes[t].copy(), m.sums[t].copy()), joined(m.loss[t]))


def steps_extent(m: Steps, rows: int) -> Extent:
    """Return the extent that a history's arrays hold, of so many rows."""
    bounds = m.lower.copy(), m.upper.copy(), m.lower_count.copy(), m.upper_count.copy()
    return Extent(rows, *bounds)


def _longer(array: NDArray[Any], steps: int) -> NDArray[Any]:
    """Return a per-step array with zeros added up to so many steps."""
    new = np.zeros((steps, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new


class _Passes:
    """Passes that write labels and margins into a history, and know its first steps already."""

    def __init__(
        self,
        rows: ArrayPasses,
        room_for: Callable[[int], Steps],
        known: int,
        races: Races,
        extent: Extent,
        square_sum: int | None,
    ) -> None:
        self._rows = rows
        self._room_for = room_for
        self._known = known
        self._races = races
        self._extent = extent
        self._square_sum = square_sum
        self._step = 0
        self.passes = 0

    def extent(self) -> Extent:
        return self._extent

    def square_sum(self, scaling: Scaling) -> int:
        if self._square_sum is None:
            self.passes += 1
            return self._rows.square_sum(scaling)
        return self._square_sum

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        asked = (draw, np.ascontiguousarray(centres).tobytes())
        if asked in self._races:
            return self._races[asked]
        self.passes += 1
        return self._rows.race(scaling, draw, random_state, centres)

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        t = self._step
        m = self._room_for(t)
        self._step += 1
        if t < self._known:
            return Tally(m.sizes[t].copy(), m.sums[t].copy())
        self.passes += 1
        if not present.all():
            return self._rows.assign(scaling, centroids, present)
        tally = self._rows.label(scaling, centroids, m.labels[t], m.margins[t])
        m.quantized[t], m.sizes[t], m.sums[t] = centroids, tally.sizes, tally.sums
        listed.start_anew(t, m)
        return tally


class History:
    """The steps of a model, kept for deletion; training fills them.

    rows and settings are the model's. ``usable`` is False where a step lacks a centroid: then
    ``record`` is all there is.
    """

    def __init__(self, rows: ArrayPasses, settings: Settings) -> None:
        self._rows = rows
        self._settings = settings
        steps, k = min(settings.max_iter + 1, FIRST_STEPS), settings.n_clusters
        self._steps = room(steps, len(rows.units), rows.x.shape[1], k)
        self._drawn = np.full((steps, k, 2), -1, np.int64)
        self._fixed = np.empty((0, rows.x.shape[1]), np.int32)
        self._packed = Packed()
        self._live = 0
        self._threshold = 0
        self._races: Races = {}
        self._record: Record | None = None
        self._todo = REFIT
        self._complete()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not every pickler keeps an array that two objects share in one piece: joblib's does not.
        self.__dict__.update(state)
        self._fixed = self._rows._fixed

    @property
    def rows(self) -> int:
        """Rows that the model depends on."""
        self._complete()
        return self._live

    @property
    def usable(self) -> bool:
        """Whether rows can be deleted by ``delete``."""
        self._complete()
        return not self._record or all_present(self._record)

    @property
    def record(self) -> Record:
        """The model, in arrays of its own."""
        self._complete()
        if self._record is None:
            steps = tuple(self._step(t) for t in range(int(self._steps.state[1])))
            self._record = Record(self._extent(), joined(self._steps.square_sum), steps)
        return self._record

    def delete(self, removed: NDArray[np.int64]) -> Replayed:
        """Take the live rows at these places out of the model, and overwrite them; some must be left.

        The model is exactly that of a fit on the rows left. If this is interrupted, whatever is
        asked next completes it.
        """
        self._complete()
        m, before, count = self._steps, self._threshold, int(self._steps.state[1])
        table = self._packed.of(m, self._rows.x, self._fixed, self._rows.units)
        self._todo, self._record = REFIT, None
        self._live -= len(removed)
        self._threshold = self._settings.small_below(self._live)
        todo, first, looked_at, passes = delete_packed(
            table,
            m.labels,
            removed,
            self._settings.spacing,
            before,
            self._threshold,
            self._settings.max_iter,
        )
        if todo == DONE and m.state[1] < count:
            self._forget_steps()
        self._todo = todo
        if todo == DONE and first < 0:
            return UNCHANGED
        if todo == DONE:
            action = "resumed" if passes else "replayed"
            reason = f"step {first} came out differently"
            return Replayed(action, first, passes, looked_at, reason)
        if todo == RESEED:
            gone = set(removed.tolist())
            self._races = self._seed_races(gone)
            passes += self._complete()
            return Replayed("resumed", 0, passes, looked_at, "a seed was deleted")
        if todo == RESCALE:
            reason = refit_reason(self._extent(), self._settings.bounds)
            return Replayed("retrained", 0, passes + self._complete(), looked_at, reason)
        passes += self._complete()
        return Replayed("resumed", first, passes, looked_at, f"step {first} came out differently")

    def _complete(self) -> int:
        """Do what a deletion, or the first training, has still to do; return the passes."""
        if self._todo == DONE:
            return 0
        m, before = self._steps, 0
        if self._todo == RESCALE:
            self._rescale()
        elif self._todo == REFIT and not self._record and not m.state[1]:
            before = self._survey()
        # Where passes are short, what is not compiled between them takes as long as they do.
        if self._todo == RESEED and self._rows.x.size < 2 * THREAD_VALUES:
            before = self._run_steps()
        if self._todo == DONE:
            return before
        known = int(m.state[0]) if self._todo == CONTINUE else 0
        if self._todo == REFIT:
            extent, square_sum, self._races = self._rows.extent(), None, {}
        else:
            extent, square_sum = self._extent(), joined(m.square_sum)
            self._races |= self._step_races(known) if known else {}
        passes = _Passes(self._rows, self._room_for, known, self._races, extent, square_sum)
        self._adopt(quantized.fit(passes, self._settings), known)
        self._todo = DONE
        return before + passes.passes

    def _survey(self) -> int:
        """Look at the rows before the first training; return the passes.

        What is to be done then are the seeds.
        """
        m, settings = self._steps, self._settings
        extent = within(self._rows.extent(), settings.bounds)
        scaling = Scaling.between(extent.lower, extent.upper)
        self._enter_extent(extent, self._rows.square_sum(scaling))
        for t in range(1, len(m.phase)):
            m.phase[t] = quantized.phase_of(settings, t, m.phase.shape[1])
        self._live, self._threshold = extent.rows, settings.small_below(extent.rows)
        m.state[1] = len(m.phase)
        self._todo = RESEED
        return 1

    def _enter_extent(self, extent: Extent, square_sum: int) -> None:
        m = self._steps
        m.lower[:], m.upper[:] = extent.lower, extent.upper
        m.lower_count[:], m.upper_count[:] = extent.lower_count, extent.upper_count
        m.square_sum[:] = limbs_of(square_sum)

    def _rescale(self) -> None:
        """Put the rows on the grid of the bounds that are left; what is to be done then are the seeds.

        The first race asks for no feature: its winner stays, if its row does.
        """
        # What is interrupted from here on is done from the rows alone.
        self._todo = REFIT
        m, rows = self._steps, self._rows
        extent, grown = rows.rescale(self._extent())
        self._enter_extent(extent, joined(m.square_sum) + grown)
        first = int(m.seeds[0])
        unit, ordinal = self._drawn[0, 0].tolist()
        known = Winner(0.0, unit, ordinal, rows._fixed[first].copy())
        self._races = {(Draw(SEED, 0, 0), b""): known} if rows.units[first] >= 0 else {}
        self._todo = RESEED

    def _run_steps(self) -> int:
        """Draw the seeds, and run the steps from there on in one go; return the passes."""
        self._todo = REFIT
        m, rows, settings = self._steps, self._rows, self._settings
        extent = self._extent()
        scaling = Scaling.between(extent.lower, extent.upper)
        passes = _Passes(rows, self._room_for, 0, self._races, extent, None)
        seeds = quantized.seed(passes, scaling, settings)
        if not seeds.present.all():
            self._todo = RESEED
            return passes.passes
        m.quantized[0], m.analog[0], m.phase[0] = seeds.quantized, seeds.analog, seeds.phase
        self._drawn[0], self._drawn[1:] = seeds.drawn, -1
        m.seeds[:] = [rows.place(*key) for key in seeds.drawn.tolist()]
        self._fixed = rows.fixed(scaling)
        given = settings.spacing, self._threshold, settings.max_iter
        todo = int(run_steps(m, self._fixed, rows.units, *given))
        if todo == DONE:
            self._races = {}
            self._forget_steps()
        self._todo = todo
        ran = int(m.state[0])
        rows.passes += ran
        return passes.passes + ran

    def _adopt(self, record: Record, known: int) -> None:
        """Enter what training found from step ``known`` on."""
        m = self._steps
        extent = record.extent
        self._races, self._record, self._live = {}, record, extent.rows
        if not all_present(record):
            return
        for t, step in enumerate(record.steps[known:], known):
            enter_step(m, t, step)
            self._drawn[t] = step.centroids.drawn
        m.state[:] = len(record.steps)
        self._enter_extent(extent, record.square_sum)
        self._forget_steps()
        self._threshold = self._settings.small_below(extent.rows)
        self._fixed = self._rows.fixed(record.scaling)
        m.seeds[:] = [self._rows.place(*key) for key in self._drawn[0].tolist()]

    def _room_for(self, step: int) -> Steps:
        """The arrays, with room for this step; as chains are short, it is made where needed."""
        steps = min(2 * step, self._settings.max_iter + 1)
        if step >= len(self._steps.drift):
            longer = {name: _longer(getattr(self._steps, name), steps) for name in PER_STEP}
            self._drawn = _longer(self._drawn, steps)
            self._steps = self._steps._replace(**longer)
        return self._steps

    def _forget_steps(self) -> None:
        """Overwrite what is kept of steps that are no longer: rows deleted since are part of it."""
        count = int(self._steps.state[1])
        for name in PER_STEP:
            getattr(self._steps, name)[count:] = 0
        self._drawn[count:] = -1

    def _extent(self) -> Extent:
        return steps_extent(self._steps, self._live)

    def _step(self, t: int) -> Step:
        return step_of(self._steps, t, self._drawn[t])

    def _step_races(self, count: int) -> Races:
        """The races of the first steps."""
        return known_races([self._step(t) for t in range(count)])

    def _seed_races(self, gone: set[int]) -> Races:
        """The races of the seeds before the first one that is at one of these places."""
        places = self._steps.seeds.tolist()
        stage = next(s for s, place in enumerate(places) if place in gone)
        return dict(list(self._step_races(1).items())[:stage])
