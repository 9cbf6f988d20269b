"""What kinds ``lowrank`` and ``frozen`` leave out of C u, carried to the end: a part of the estimate.

Besides the linearisation's own error (see ``estimate``) the update took C^_t for C_t, so that its
error is driven by eta / b (C_t - C^_t) u at every iteration:

- truncated: C_t - C^_t lives outside the singular vectors that are kept, and its trace is kept. It
  is taken for the same in all those directions.
- frozen: from t_s on, the mean over all rows of H_i(w_t) - H_i(w_{t_s}), told from a sample of them;
  and at random what a mini-batch's rows have beside the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .descent import Descent
from .estimate import Estimate
from .forces import Batches, Strata
from .lanczos import STEPS, carried, scattered
from .remainders import Rows, Vectors, terms
from .truncation import Factor
from .update import Updated

TINY = 1e-100


@dataclass(frozen=True, slots=True)
class Course:
    """An update at some places of the training."""

    descent: Descent
    spans: Strata
    trajectory: Vectors
    """(S, P) w_t at the spans' middles."""
    updated: Updated
    """With u at the starts of ``spans.blocks``."""
    sample: Rows
    """Live rows that stay."""

    @property
    def u(self) -> Vectors:
        """(S, P) at the middles, between the blocks' starts."""
        blocks, block, starts = self.spans.blocks, self.spans.block, self.updated.starts
        firsts = np.minimum(np.arange(blocks.count + 1) * blocks.length, blocks.iterations)
        share = (self.spans.middles - firsts[block]) / (firsts[block + 1] - firsts[block])
        between: Vectors = starts[block] + share[:, np.newaxis] * (
            starts[block + 1] - starts[block]
        )
        return between

    @property
    def ahead(self) -> NDArray[np.float64]:
        """(S, n, q) the sample's curvature at w + u."""
        return terms(self.descent.loss, self.trajectory, self.u, self.sample).ahead

    @property
    def drift(self) -> NDArray[np.float64]:
        """(S,) |du| an iteration over |u|."""
        block, starts = self.spans.block, self.updated.starts
        steps = np.linalg.norm(starts[block + 1] - starts[block], axis=1)
        sizes = np.maximum(np.linalg.norm(self.u, axis=1), TINY)
        drift: NDArray[np.float64] = steps / self.spans.blocks.length / sizes
        return drift


def truncation_error(
    course: Course, factors: Sequence[Factor], rests: NDArray[np.float64]
) -> Estimate:
    """Return the error of truncated curvature alone.

    factors: of the spans' middle iterations. rests: (S,) the sum of C_t / b_t's eigenvalues that are
    left out, on average around them.
    """
    u = course.u
    means = np.zeros_like(u)
    for s, factor in enumerate(factors):
        outside = u[s] - factor.vectors.T @ (factor.vectors @ u[s])
        means[s] = -rests[s] / max(1, u.shape[1] - len(factor.values)) * outside
    return _bounded(course, float(np.linalg.norm(_carried(course, means))), 0.0)


def frozen_error(course: Course, first: int, w: NDArray[np.float64], batches: Batches) -> Estimate:
    """Return the error of frozen curvature alone; first: t_s, w: (P,) there."""
    u, spans, sample = course.u, course.spans, course.sample
    late = spans.middles >= first
    still = np.broadcast_to(w, u.shape).copy()
    here = terms(course.descent.loss, course.trajectory, u, sample)
    there = terms(course.descent.loss, still, u, sample)
    stale = there.bent - here.bent
    halves = (slice(0, None, 2), slice(1, None, 2))
    one, other = (_carried(course, sample.mean(stale, h) * late[:, np.newaxis]) for h in halves)
    # What both halves agree on is free of sampling noise.
    noise = float(np.square(one - other).sum()) / 4.0
    trend = max(noise / 4.0, float(one @ other)) ** 0.5
    own = here.bent - here.bent.mean(axis=1, keepdims=True)
    factor = course.descent.learning_rate / max(1.0, batches.after) ** 0.5
    steps = factor * sample.signed(own, 0) * late[:, np.newaxis]
    wander = np.stack([course.drift, np.zeros(len(steps))], axis=1)
    path = (*_path(course), course.ahead[-1], spans.edges)
    square = float(scattered(*path, steps, wander, batches.per_epoch, STEPS))
    return _bounded(course, trend, square**0.5)


def _path(course: Course) -> tuple[int, float, float, NDArray[np.float64]]:
    descent = course.descent
    return int(descent.loss), descent.learning_rate, descent.l2, course.sample.rows


def _carried(course: Course, means: Vectors) -> NDArray[np.float64]:
    """What drives the error (S, P), at the training's end (P,)."""
    lengths = course.spans.lengths
    end: NDArray[np.float64] = carried(
        *_path(course), course.ahead, lengths, means, np.zeros_like(means)
    )
    return end


def _bounded(course: Course, trend: float, fluctuation: float) -> Estimate:
    """An error beyond the change itself says only that the update failed."""
    largest = float(np.linalg.norm(course.updated.starts[-2:], axis=1).max())
    return Estimate(min(trend, largest), min(fluctuation, largest), 0.0)


def together(one: Estimate, other: Estimate) -> Estimate:
    """Return the estimate of two errors of the same update."""
    return Estimate(
        one.trend + other.trend,
        float(np.hypot(one.fluctuation, other.fluctuation)),
        one.rounding + other.rounding,
    )


def apart(found: Estimate, updated: Updated) -> Estimate:
    """Return the estimate of another method's change, from ``delta``'s: as far off as they are apart."""
    way = updated.change - updated.starts[-1]
    gap = float(way @ way) ** 0.5
    return Estimate(found.trend + gap, found.fluctuation, found.rounding)
