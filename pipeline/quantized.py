"""Q-k-means and k-means: training, and deletion by replay, as one and the same loop.

"Making AI Forget You", section 4.1 and algorithms 4 and 5, with these corrections:
a deleted row leaves the partition that was really used (that of each step's *quantized*
centroids); the mean is the exact mean of the rows that remain; a deleted seed is redrawn from its
stage on; accept decisions and scaling bounds are checked as well.

The loop asks for four things only: the extent of the rows, their square sum, the winner of a race,
the tally of an assignment. ``Remembering`` answers from a record wherever the answer cannot have
changed, and from the rows elsewhere. So ``delete`` *is* ``fit`` on the remaining rows, less the
passes whose result is known: equal bit for bit by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .fixedpoint import CENTROID_GRID, Extent, Scaling, exact_loss
from .keyed import derive_key, lattice_phase
from .lloyd import Tally
from .seeding import Winner

SEED, RESEED, PHASE = "seed", "reseed", "phase"


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved hyper-parameters: fixed at the first fit, so that a deletion does not move them."""

    n_clusters: int
    spacing: int
    """epsilon in units of the centroid grid (2^-23); 1 means no quantization."""
    gamma: Fraction
    """Imbalance threshold: a cluster is small below gamma n / k rows."""
    max_iter: int
    random_state: int
    bounds: tuple[float, float] | None = None
    """User-given (lower, upper) of all features; None: the rows' own minima and maxima."""

    @property
    def phase_key(self) -> int:
        return derive_key(self.random_state, PHASE)

    def small_below(self, rows: int) -> int:
        """Return the size below which a cluster is pulled to its previous centroid.

        ceil(gamma n / k): the same clusters are small as with gamma n / k itself.
        """
        return ceil(self.gamma * rows / self.n_clusters)


def rule_of_thumb_epsilon(rows: int) -> float:
    """Return 2^(-floor(log10 n) - 3), a rule of thumb after the paper's app. D.1.2."""
    return float(2.0 ** (-(len(str(rows)) - 1) - 3))


def lattice_spacing(epsilon: float) -> int:
    """Return epsilon in units of the centroid grid, at least 1 (the grid itself)."""
    return max(1, round(epsilon * CENTROID_GRID))


@dataclass(frozen=True, slots=True)
class Draw:
    """Which race is run: its purpose and where in the algorithm it stands."""

    purpose: str
    step: int
    """Step of a re-seeding race; 0 for the seeds."""
    stage: int
    """Number of the seed, or of the cluster that is re-seeded."""

    def key(self, random_state: int) -> int:
        return derive_key(random_state, self.purpose, self.step)


class Passes(Protocol):
    """What training asks of the rows; every answer is a function of the set of rows alone."""

    def extent(self) -> Extent: ...

    def square_sum(self, scaling: Scaling) -> int: ...

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        """Centres (s, features) in 2^-24; None when no row has weight."""
        ...

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        """Centroids (k, features) in 2^-23."""
        ...


@dataclass(frozen=True, slots=True)
class Centroids:
    """The centroids of one step, before any row is looked at."""

    analog: NDArray[np.float64]
    """(k, features) in [0, 1]: means after the momentum rule; at step 0 the seed rows."""
    quantized: NDArray[np.int64]
    """(k, features) in 2^-23."""
    phase: NDArray[np.int64]
    """(features,) in 2^-23: epsilon theta."""
    present: NDArray[np.bool_]
    """(k,) False where there were fewer distinct rows than centroids."""
    drawn: NDArray[np.int64]
    """(k, 2) unit and ordinal of the row that a race put here at this step; -1 elsewhere."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its centroids and what the rows make of them."""

    centroids: Centroids
    tally: Tally
    loss: int
    """In 2^-48."""


@dataclass(frozen=True, slots=True)
class Record:
    """A trained model with all that a deletion needs; no array depends on a deleted row."""

    extent: Extent
    square_sum: int
    """In 2^-48."""
    steps: tuple[Step, ...]
    """Steps 0 (seeds) to the last, the rejected one included; empty without rows."""

    @property
    def empty(self) -> bool:
        return not self.steps

    @property
    def scaling(self) -> Scaling:
        return Scaling.between(self.extent.lower, self.extent.upper)

    @property
    def final_number(self) -> int:
        """The number of the last accepted step; of seeding alone, 0."""
        rejected = len(self.steps) > 1 and self.steps[-1].loss >= self.steps[-2].loss
        return len(self.steps) - (2 if rejected else 1)

    @property
    def final(self) -> Step:
        """The last accepted step."""
        return self.steps[self.final_number]


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


def fit(passes: Passes, settings: Settings) -> Record:
    """Train on the rows behind ``passes``; validation assumed. Without rows: an empty record."""
    extent = _bounded(passes.extent(), settings)
    if extent.rows == 0:
        return Record(extent, 0, ())
    scaling = Scaling.between(extent.lower, extent.upper)
    square_sum = passes.square_sum(scaling)
    threshold = settings.small_below(extent.rows)
    steps: list[Step] = []
    centroids = seed(passes, scaling, settings)
    while True:
        tally = passes.assign(scaling, centroids.quantized, centroids.present)
        loss = exact_loss(square_sum, centroids.quantized, tally.sizes, tally.sums)
        steps.append(Step(centroids, tally, loss))
        if len(steps) > 1 and loss >= steps[-2].loss:
            break
        if len(steps) > settings.max_iter:
            break
        centroids = _next_centroids(passes, scaling, settings, threshold, steps)
    return Record(extent, square_sum, tuple(steps))


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
    if len(removed.units) == record.extent.rows:
        return fit(counting, settings), Outcome("retrained", 0, 0, "no row is left")
    extent = _shrunk_extent(record.extent, removed, settings)
    ranged = settings.bounds is None
    moved = np.flatnonzero((extent.lower_count == 0) | (extent.upper_count == 0))
    if ranged and len(moved):
        new = fit(counting, settings)
        named = ", ".join(map(str, moved[:5])) + (", ..." if len(moved) > 5 else "")
        reason = f"the range of feature {named} lost its last row at one end"
        return new, Outcome("retrained", 0, counting.passes, reason)
    memory = Remembering(
        counting, record, removed, extent, assign_removed, record.square_sum - removed_square_sum
    )
    new = fit(memory, settings)
    first = _first_difference(record.steps, new.steps)
    if first is None:
        return new, Outcome("unchanged", None, counting.passes, "")
    reason = "a seed was deleted" if first == 0 else f"step {first} came out differently"
    return new, Outcome("resumed", first, counting.passes, reason)


def _bounded(extent: Extent, settings: Settings) -> Extent:
    """The extent with the user's bounds, where there are any, in place of the rows' own."""
    if settings.bounds is None or extent.rows == 0:
        return extent
    like, none = extent.lower, np.zeros_like(extent.lower_count)
    lower, upper = settings.bounds
    return Extent(extent.rows, np.full_like(like, lower), np.full_like(like, upper), none, none)


def _shrunk_extent(extent: Extent, removed: Removed, settings: Settings) -> Extent:
    """The extent after the removal; where a count becomes 0 its bound does not hold any more."""
    if settings.bounds is not None:
        lower_count, upper_count = extent.lower_count, extent.upper_count
    else:
        lower_count = extent.lower_count - np.count_nonzero(removed.x == extent.lower, axis=0)
        upper_count = extent.upper_count - np.count_nonzero(removed.x == extent.upper, axis=0)
    left = extent.rows - len(removed.units)
    return Extent(left, extent.lower, extent.upper, lower_count, upper_count)


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


def seed(passes: Passes, scaling: Scaling, settings: Settings) -> Centroids:
    """Return step 0: the seeds by k races; absent where no row with weight is left."""
    k = settings.n_clusters
    d = len(scaling.lower)
    rows = np.zeros((k, d), np.int64)
    drawn = np.full((k, 2), -1, np.int64)
    present = np.zeros(k, np.bool_)
    for stage in range(k):
        draw = Draw(SEED, 0, stage)
        winner = passes.race(scaling, draw, settings.random_state, rows[:stage])
        if winner is None:
            break
        rows[stage] = winner.row
        drawn[stage] = winner.unit, winner.ordinal
        present[stage] = True
    zero = np.zeros(d, np.int64)
    return Centroids(rows / (2.0 * CENTROID_GRID), (rows + 1) // 2, zero, present, drawn)


def _next_centroids(
    passes: Passes, scaling: Scaling, settings: Settings, threshold: int, steps: Sequence[Step]
) -> Centroids:
    """Means, momentum, snap (algorithm 4); clusters without rows or momentum are drawn again."""
    last = steps[-1]
    number = len(steps)
    d = last.centroids.quantized.shape[1]
    if settings.spacing > 1:
        phase = lattice_phase(settings.phase_key, number, settings.spacing, d)
    else:
        phase = np.zeros(d, np.int64)
    numerator, denominator = momentum(last.tally, last.centroids.quantized, threshold)
    analog = numerator / (np.maximum(denominator, 1) * (2.0 * CENTROID_GRID))
    quantized = snap(numerator, denominator, phase, settings.spacing)
    present = last.centroids.present & (denominator[:, 0] > 0)
    drawn = np.full((settings.n_clusters, 2), -1, np.int64)
    for cluster in np.flatnonzero(last.centroids.present & ~present):
        draw = Draw(RESEED, number, int(cluster))
        centres = quantized[present] * 2
        winner = passes.race(scaling, draw, settings.random_state, centres)
        if winner is None:
            continue
        row = winner.row[np.newaxis].astype(np.int64)
        analog[cluster] = row[0] / (2.0 * CENTROID_GRID)
        quantized[cluster] = snap(row, np.ones((1, 1), np.int64), phase, settings.spacing)[0]
        present[cluster] = True
        drawn[cluster] = winner.unit, winner.ordinal
    analog[~present] = 0.0
    quantized[~present] = 0
    return Centroids(analog, quantized, phase, present, drawn)


def momentum(
    tally: Tally, previous: NDArray[np.int64], threshold: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the new means as exact fractions: numerator (k, features), denominator (k, 1), 2^-24.

    A cluster of N < M = threshold rows becomes N/M mean + (1 - N/M) previous (app. B.1), kept
    within [0, 1]. Denominator 0: no rows and no momentum.
    """
    sizes = tally.sizes[:, np.newaxis]
    small = sizes < threshold
    pulled = tally.sums + (threshold - sizes) * (2 * previous)
    numerator = np.where(small, pulled, tally.sums)
    denominator = np.where(small, threshold, sizes)
    return np.clip(numerator, 0, denominator * (2 * CENTROID_GRID)), denominator


def snap(
    numerator: NDArray[np.int64],
    denominator: NDArray[np.int64],
    phase: NDArray[np.int64],
    spacing: int,
) -> NDArray[np.int64]:
    """Return the nearest lattice point spacing j + phase, in 2^-23, ties upward (app. B.1.2).

    The fraction numerator / denominator is in 2^-24; rows with denominator 0 give any value.
    """
    below = np.maximum(denominator, 1) * 2
    nearest = (numerator - below * phase + (below // 2) * spacing) // (below * spacing)
    points: NDArray[np.int64] = nearest * spacing + phase
    return points


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
            (draw, centres.tobytes()): winner
            for draw, centres, winner in _races(record.steps)
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
