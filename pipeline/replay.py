"""Deletion by replay: ``fit`` on the remaining rows, less the passes whose result is known.

``Remembering`` answers the training loop's questions from a record wherever the answer cannot have
changed, and from the rows elsewhere. So a deletion equals a retrain bit for bit by construction
("Making AI Forget You", algorithm 5, corrected: see ``quantized``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fixedpoint import CENTROID_GRID, Extent, Scaling, shrunk
from .lloyd import Tally
from .quantized import RESEED, SEED, Centroids, Draw, Passes, Record, Settings, Step, fit
from .seeding import Winner

Races = dict[tuple[Draw, bytes], Winner | None]
"""The winner of a race, by its draw and the centres that it was run against."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows that leave a model."""

    units: NDArray[np.int64]
    """(m,)"""
    ordinals: NDArray[np.int64]
    """(m,)"""
    x: NDArray[np.float32]
    """(m, features) in the features' own units."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a deletion came to."""

    action: str
    """``unchanged``: every centroid stands. ``resumed``: kept up to a step, then passes over the
    rows. ``retrained``: from scratch, since a scaling bound moved or no row is left."""
    first_step: int | None
    """The first step that differs; None where the model stands."""
    passes: int
    """Passes over the remaining rows."""
    reason: str
    """Why the model did not stand, features by number; empty where it did."""


NOTHING = Outcome("unchanged", None, 0, "")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a deletion came to."""

    action: str
    """``unchanged``, ``replayed`` (without a pass), ``resumed`` (with passes) or ``retrained``."""
    first_step: int | None
    passes: int
    looked_at: int
    """How often a row was looked at again, over all steps."""
    reason: str


UNCHANGED = Replayed("unchanged", None, 0, 0, "")


def delete(
    record: Record,
    removed: Removed,
    remaining: Passes,
    settings: Settings,
    assign_removed: Callable[[Scaling, Centroids], Tally],
    removed_square_sum: int,
) -> tuple[Record, Outcome]:
    """Return the record that ``fit(remaining)`` gives, and how it came about.

    removed: rows that are all in the model. assign_removed gives their tally under a step's
    quantized centroids; removed_square_sum is their share of Q (in 2^-48).
    """
    counting = _Counting(remaining)
    extent = shrunk(record.extent, removed.x, settings.bounds)
    reason = refit_reason(extent, settings.bounds)
    if reason:
        return fit(counting, settings), Outcome("retrained", 0, counting.passes, reason)
    memory = Remembering(
        counting, record, removed, extent, assign_removed, record.square_sum - removed_square_sum
    )
    new = fit(memory, settings)
    first = _first_difference(record.steps, new.steps)
    if first is None:
        return new, Outcome("unchanged", None, counting.passes, "")
    reason = "a seed was deleted" if first == 0 else f"step {first} came out differently"
    return new, Outcome("resumed", first, counting.passes, reason)


def go_on(
    held: Record, removed: Removed, remaining: Passes, settings: Settings
) -> tuple[Record, int]:
    """Return the record that ``fit(remaining)`` gives, and the passes that it took.

    held: its extent, its square sum and its first steps, the removed rows' share taken out.
    """
    counting = _Counting(remaining)
    rest = Remembering(counting, held, removed, held.extent, _nothing_of, held.square_sum)
    return fit(rest, settings), counting.passes


def _nothing_of(_: Scaling, centroids: Centroids) -> Tally:
    """The tally of no rows."""
    k = len(centroids.quantized)
    return Tally(np.zeros(k, np.int64), np.zeros_like(centroids.quantized))


def refit_reason(extent: Extent, bounds: tuple[float, float] | None) -> str:
    """Tell why a shrunk extent has everything fitted anew; empty where it does not."""
    if extent.rows == 0:
        return "no row is left"
    moved = np.flatnonzero((extent.lower_count == 0) | (extent.upper_count == 0))
    if bounds is not None or not len(moved):
        return ""
    return f"the range of feature {listed_numbers(moved)} lost its last row at one end"


def listed_numbers(numbers: Sequence[int] | NDArray[np.intp]) -> str:
    """Return the first five numbers for a person."""
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


def _first_difference(old: Sequence[Step], new: Sequence[Step]) -> int | None:
    """The first step whose quantized centroids, or drawn rows, or existence differ."""
    for number, (a, b) in enumerate(zip(old, new, strict=False)):
        if not (
            np.array_equal(a.centroids.quantized, b.centroids.quantized)
            and np.array_equal(a.centroids.drawn, b.centroids.drawn)
            and np.array_equal(a.centroids.present, b.centroids.present)
        ):
            return number
    return None if len(old) == len(new) else min(len(old), len(new))


class _Counting:
    """Passes that count how often the rows are read."""

    def __init__(self, inner: Passes) -> None:
        self.inner = inner
        self.passes = 0

    def extent(self) -> Extent:
        return self.inner.extent()

    def square_sum(self, scaling: Scaling) -> int:
        self.passes += 1
        return self.inner.square_sum(scaling)

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        self.passes += 1
        return self.inner.race(scaling, draw, random_state, centres)

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        self.passes += 1
        return self.inner.assign(scaling, centroids, present)


class Remembering:
    """Passes over the remaining rows that answer from a record where the answer is known.

    A race is known when it was run against the same centres and its winner stays: removing losers
    changes nothing. A tally is known when it was taken under the same centroids: it loses the
    removed rows' share. Everything else is asked of the rows.
    """

    def __init__(
        self,
        rows: Passes,
        record: Record,
        removed: Removed,
        extent: Extent,
        assign_removed: Callable[[Scaling, Centroids], Tally],
        square_sum: int,
    ) -> None:
        self._rows = rows
        self._extent = extent
        self._square_sum = square_sum
        self._assign_removed = assign_removed
        self._steps = {_fingerprint(s.centroids): s for s in record.steps}
        gone = set(zip(removed.units.tolist(), removed.ordinals.tolist(), strict=True))
        self._winners = {
            race: winner
            for race, winner in known_races(record.steps).items()
            if winner is None or (winner.unit, winner.ordinal) not in gone
        }

    def extent(self) -> Extent:
        return self._extent

    def square_sum(self, scaling: Scaling) -> int:
        return self._square_sum

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        known = (draw, np.ascontiguousarray(centres).tobytes())
        if known in self._winners:
            return self._winners[known]
        return self._rows.race(scaling, draw, random_state, centres)

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        step = self._steps.get((centroids.tobytes(), present.tobytes()))
        if step is None:
            return self._rows.assign(scaling, centroids, present)
        return step.tally - self._assign_removed(scaling, step.centroids)


def _fingerprint(centroids: Centroids) -> tuple[bytes, bytes]:
    return centroids.quantized.tobytes(), centroids.present.tobytes()


def known_races(steps: Sequence[Step]) -> Races:
    """Return the races that steps were made of, in order: draw and centres, and who won."""
    return {(draw, centres.tobytes()): winner for draw, centres, winner in _races(steps)}


def _races(
    steps: Sequence[Step],
) -> Iterable[tuple[Draw, NDArray[np.int64], Winner | None]]:
    """The races that a record was made of: which draw, against which centres, who won.

    A race that no row could win is recorded as None: fewer rows cannot win it either.
    """
    first = steps[0].centroids
    rows = np.rint(first.analog * (2.0 * CENTROID_GRID)).astype(np.int64)
    for stage in range(len(rows)):
        yield Draw(SEED, 0, stage), rows[:stage], _winner(first, rows, stage)
        if not first.present[stage]:
            break
    for number in range(1, len(steps)):
        step, before = steps[number].centroids, steps[number - 1]
        empty = before.centroids.present & ((step.drawn[:, 0] >= 0) | ~step.present)
        present = step.present & ~empty
        rows = np.rint(step.analog * (2.0 * CENTROID_GRID)).astype(np.int64)
        for cluster in np.flatnonzero(empty):
            yield (
                Draw(RESEED, number, int(cluster)),
                step.quantized[present] * 2,
                _winner(step, rows, int(cluster)),
            )
            present[cluster] = step.present[cluster]


def _winner(centroids: Centroids, rows: NDArray[np.int64], index: int) -> Winner | None:
    if not centroids.present[index]:
        return None
    unit, ordinal = centroids.drawn[index].tolist()
    return Winner(0.0, unit, ordinal, rows[index].astype(np.int32))
