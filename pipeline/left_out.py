"""What kinds ``lowrank`` and ``frozen`` leave out of C u, carried to the end: a part of the estimate.

Besides the linearisation's own error (see ``estimate``) the update took C^_t for C_t, so that its
error is driven by eta / b (C_t - C^_t) u at every iteration:

- truncated: C_t - C^_t lives outside the singular vectors that are kept, and its trace is kept. It
  is taken for the same in all those directions.
- frozen: from t_s on, the mean over the rows that stay of H_i(w_t) - H_i(w_{t_s}), told from a sample
  of them; what the rows that C* counts have beside all rows' mean, where two epochs give them; and at
  random what a mini-batch's rows have beside it. The last cancels over whole epochs, but for what u
  changes in one, and for the epochs that t_s and the end cut in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .descent import Descent
from .estimate import GONE_ROWS, Estimate
from .forces import Batches, Deletion, Strata, sizes, with_pulses
from .frozen import Span
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
    return _bounded(
        course, float(np.linalg.norm(_carried(course, means, np.zeros_like(means)))), 0.0
    )


def frozen_error(
    course: Course, span: Span, w: NDArray[np.float64], gone: Rows, batches: Batches
) -> Estimate:
    """Return the error of frozen curvature alone; w: (P,) at t_s; gone: the rows that leave.

    Their visits make u jump, so that what mini-batches have beside the mean does not cancel.
    """
    spans, sample = course.spans, course.sample
    few = gone.thinned(GONE_ROWS)
    deletion = Deletion(course.descent, spans, course.trajectory, sample, few, batches)
    forcing = deletion.forcing()
    u, jumping = course.u, with_pulses(deletion, course.u, forcing)
    late = (spans.middles >= span.first)[:, np.newaxis]
    here = terms(course.descent.loss, course.trajectory, u, sample)
    there = terms(course.descent.loss, np.broadcast_to(w, u.shape).copy(), u, sample)
    stale, still = there.bent - here.bent, np.zeros_like(u)
    halves = (slice(0, None, 2), slice(1, None, 2))
    one, other = (_carried(course, sample.mean(stale, h) * late, still) for h in halves)
    # What both halves agree on is free of sampling noise.
    noise = float(np.square(one - other).sum()) / 4.0
    trend = max(noise / 4.0, float(one @ other))
    per_epoch = batches.per_epoch
    bent = terms(course.descent.loss, course.trajectory, jumping, sample).bent
    steps = deletion.steps(bent) * late
    own = there.bent - there.bent.mean(axis=1, keepdims=True)
    uneven = span.unevenness(per_epoch) / (batches.after * per_epoch)
    drawn = uneven**0.5 * sample.signed(own, 2) * late
    cut = _cut_epochs(spans, span.first, per_epoch)[:, np.newaxis] * steps
    trend += float(np.square(_carried(course, drawn, cut)).sum())
    random = np.square(sizes(forcing) / sizes(jumping)) * (1.0 - 1.0 / per_epoch)
    wander = np.stack([course.drift, random], axis=1)
    path = (*_path(course), course.ahead[-1], spans.edges)
    square = float(scattered(*path, steps, wander, per_epoch, STEPS))
    return _bounded(course, trend**0.5, square**0.5)


def _cut_epochs(spans: Strata, first: int, per_epoch: int) -> NDArray[np.float64]:
    """(S,) how many random steps are left of the epochs that t_s and the end cut in two.

    j of an epoch's c iterations hold steps whose sum has the square j (1 - j / c): c of them cancel.
    """
    left = np.zeros(len(spans.middles))
    late = min(int(np.searchsorted(spans.middles, first)), len(left) - 1)
    for place, part in ((late, -first % per_epoch), (-1, spans.blocks.iterations % per_epoch)):
        left[place] += part * (1.0 - part / per_epoch)
    root: NDArray[np.float64] = np.sqrt(left)
    return root


def _path(course: Course) -> tuple[int, float, float, NDArray[np.float64]]:
    descent = course.descent
    return int(descent.loss), descent.learning_rate, descent.l2, course.sample.rows


def _carried(course: Course, means: Vectors, jumps: Vectors) -> NDArray[np.float64]:
    """What drives the error (S, P), at the training's end (P,); jumps: at the spans' ends."""
    lengths = course.spans.lengths
    end: NDArray[np.float64] = carried(*_path(course), course.ahead, lengths, means, jumps)
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
