"""Q-k-means and k-means: training, and deletion by replay, as one and the same loop.

"Making AI Forget You", section 4.1 and algorithms 4 and 5, with these corrections:
a deleted row leaves the partition that was really used (that of each step's *quantized*
centroids); the mean is the exact mean of the rows that remain; a deleted seed is redrawn from its
stage on; accept decisions and scaling bounds are checked as well.

The loop asks for four things only: the extent of the rows, their square sum, the winner of a race,
the tally of an assignment. ``replay`` answers from a record wherever the answer cannot have changed:
so a deletion *is* ``fit`` on the remaining rows, less the passes whose result is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .fixedpoint import CENTROID_GRID, Extent, Scaling, exact_loss, within
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
        gamma = self.gamma
        return -(-gamma.numerator * rows // (gamma.denominator * self.n_clusters))


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


def fit(passes: Passes, settings: Settings) -> Record:
    """Train on the rows behind ``passes``; validation assumed. Without rows: an empty record."""
    extent = within(passes.extent(), settings.bounds)
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


def phase_of(settings: Settings, step: int, features: int) -> NDArray[np.int64]:
    """Return a step's lattice phase (features,) in 2^-23: 0 without quantization."""
    if settings.spacing == 1:
        return np.zeros(features, np.int64)
    phase: NDArray[np.int64] = lattice_phase(settings.phase_key, step, settings.spacing, features)
    return phase


def _next_centroids(
    passes: Passes, scaling: Scaling, settings: Settings, threshold: int, steps: Sequence[Step]
) -> Centroids:
    """Means, momentum, snap (algorithm 4); clusters without rows or momentum are drawn again."""
    last = steps[-1]
    number = len(steps)
    d = last.centroids.quantized.shape[1]
    phase = phase_of(settings, number, d)
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
