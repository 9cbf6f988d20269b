"""How far an update's parameters are from BaseL's, estimated from a small sample of live rows.

The error e_t = w'_t - w^B_t obeys, with H the live rows' mean Hessian at w'_t,

    e_{t+1} = A e_t - eta r_t,    A = (1 - eta lambda) I - eta H

where r_t is the mini-batch's mean of g_i(w_t + u_t) - g_i(w_t) + C^ u_t, and C^ what the update took
for the row's Hessian at w_t. The mean of r over all rows is the trend: it adds up iteration by
iteration. What a mini-batch adds to that mean is the fluctuation: it adds up in squares, and over
iterations that visit every row once it cancels, but for what A and u change meanwhile. Any live rows
are a uniform sample, as rows are hash-placed. What rows share that are rarer than one in a sample, a
rare category say, it does not see: where such rows leave, the estimate may be ten times too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .averaged_error import DECAY_ROWS, averaged_error
from .descent import Descent
from .forces import Batches, Deletion, Forces, Strata, exact_forces, firsts
from .lanczos import STEPS, carried, scattered
from .losses import Loss
from .provenance import Blocks
from .remainders import Rows, Vectors, longest
from .update import Updated

SHARE = 0.1
"""Of the update's work that an estimate may cost, above the least size."""
LEAST_ROWS, MOST_ROWS = 256, 512
LEAST_STRATA, MOST_STRATA = 8, 32
GONE_ROWS = 64
"""Of the leaving rows, at most."""
EPSILON = 2.0**-52
"""The step from 1 to the next number."""
ALIGNMENT = 0.4
"""Supposed cosine of the changes that two deletions make."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated distance |w' - w^B| and its parts, in the parameters' units."""

    trend: float
    fluctuation: float
    rounding: float
    """Of floating-point numbers alone: all there is for a linear model with exact curvature."""

    @property
    def distance(self) -> float:
        return float(np.sqrt(self.trend**2 + self.fluctuation**2 + self.rounding**2))


def strata(blocks: Blocks, first: int, count: int, averaged: bool) -> Strata:
    """Return about ``count`` spans from block ``first`` (the first with a visit) to the end.

    Averaged curvature: equal parts of every block, two or more. Exact: spans that shorten towards
    the end, as late errors have no time left to decay.
    """
    begin = blocks.span(first)[0]
    if averaged:
        parts = max(2, round(count / (blocks.count - first)))
        ends = pairwise(firsts(blocks)[first:].tolist())
        edges = {round(a + (b - a) * (k / parts)) for a, b in ends for k in range(1, parts + 1)}
        return Strata(blocks, averaged, np.array(sorted({begin, *edges})))
    left = np.square(np.linspace(1.0, 0.0, count + 1))
    places = blocks.iterations - (blocks.iterations - begin) * left
    return Strata(blocks, averaged, np.unique(np.rint(places).astype(np.int64)))


def update_work(
    blocks: Blocks, parameters: int, visits: NDArray[np.int64], averaged: bool
) -> float:
    """Return an update's floating-point operations, rather too few.

    visits: (v,) their iterations, ascending.
    """
    if not len(visits):
        return 0.0
    edges = np.searchsorted(visits, firsts(blocks))
    touched = int(np.count_nonzero(edges[1:] != edges[:-1]))
    seen = blocks.count - int(visits[0]) // blocks.length
    products = 2.0 * seen + 6.0 * touched if averaged else float(seen)
    if not averaged:
        products += float(touched * blocks.length)
    return 2.0 * parameters**2 * products + 6.0 * parameters * len(visits)


def sample_size(work: float, columns: int, classes: int) -> tuple[int, int]:
    """Return (live rows, strata) whose estimate costs at most SHARE of an update, from a least size.

    work: the update's floating-point operations. columns: m. classes: q.
    """
    unit = 4.0 * (4 * STEPS + 8) * columns * classes
    affordable = SHARE * work / unit
    count = int(min(max(affordable / MOST_ROWS, LEAST_STRATA), MOST_STRATA))
    return int(min(max(affordable / count, LEAST_ROWS), MOST_ROWS)), count


def estimate_distance(
    descent: Descent,
    updated: Updated,
    spans: Strata,
    trajectory: Vectors,
    sample: Rows,
    leaving: Rows,
    batches: Batches,
    precision: float = 0.0,
) -> Estimate:
    """Return the estimated distance of an update's parameters to BaseL's.

    updated: with u at the starts of ``spans.blocks``. trajectory: (S, P) w_t at ``spans.middles``.
    sample: live rows that stay, LEAST_ROWS or more; no other live row is looked at. leaving: the
    deleted rows, or a sample of them. precision: unit roundoff of the stored curvature. Raises
    ValueError for a sample that cannot be halved.
    """
    if len(sample.rows) < 2:
        raise ValueError(
            f"the sample has {len(sample.rows)} live rows; it needs 2, better {LEAST_ROWS}"
        )
    rounding = rounding_error(updated, trajectory, precision)
    exactly = descent.loss == Loss.LINEAR and not spans.averaged
    if exactly or not updated.starts.any():
        return rounding
    gone = leaving.thinned(GONE_ROWS)
    deletion = Deletion(descent, spans, trajectory, sample, gone, batches)
    found = averaged_error if spans.averaged else exact_error
    product, gap, squares = found(deletion, updated)
    # What both halves agree on is free of sampling noise; below half of that noise nothing is seen.
    trend = max(gap / 16.0, product)
    # An error beyond the change itself says only that the update failed.
    largest = float(longest(updated.starts[-2:]))
    return Estimate(min(trend**0.5, largest), min(squares**0.5, largest), rounding.rounding)


def rounding_error(updated: Updated, trajectory: Vectors, precision: float = 0.0) -> Estimate:
    """Return what numbers' rounding alone makes: all there is for linear models, exact curvature.

    trajectory: (S, P) w_t, the last of them near the end. precision: as ``estimate_distance`` has it.
    Float64's share, and the stored curvature's: its entries' errors are independent.
    """
    change = float(longest(updated.starts))
    scale = change + float(longest(trajectory[-1:]))
    stored = precision * change / float(np.sqrt(trajectory.shape[1]))
    return Estimate(0.0, 0.0, 2.0 * EPSILON * scale + stored)


def exact_error(deletion: Deletion, updated: Updated) -> tuple[float, float, float]:
    """Return what ``averaged_error`` does, for exact curvature."""
    descent, spans, rows = deletion.descent, deletion.spans, deletion.live.rows
    forces = exact_forces(deletion, updated)
    kind = int(descent.loss), descent.learning_rate, descent.l2
    one, other = _ends(kind, deletion, forces)
    late = rows[:DECAY_ROWS], forces.ahead[-1, :DECAY_ROWS], spans.edges
    cycle = deletion.batches.per_epoch
    squares = scattered(*kind, *late, forces.steps, forces.wander, cycle, STEPS)
    return float(one @ other), float(np.square(one - other).sum()), float(squares)


def accumulated(before: Estimate, new: Estimate) -> Estimate:
    """Return the estimate after another deletion, from that after all before it and its own.

    The trend is quadratic in u, so that trends add up to e1 + e2 + 2 c sqrt(e1 e2) with c the cosine
    of the two changes: 0 for unrelated rows, 1 where all pull the same way. This takes ALIGNMENT, as
    the first training's linearisation, which would tell, is gone. Fluctuations add up in squares.
    """
    cross = 2.0 * ALIGNMENT * float(np.sqrt(before.trend * new.trend))
    return Estimate(
        before.trend + new.trend + cross,
        float(np.hypot(before.fluctuation, new.fluctuation)),
        before.rounding + new.rounding,
    )


def _ends(
    kind: tuple[int, float, float], deletion: Deletion, forces: Forces
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the error (P,) at the end by either half of the rows looked at.

    How it decays is told by the other half: a few rows' own curvature is the steepest where they
    drive the error to. Far fewer rows tell that than what the error is.
    """
    rows, lengths = deletion.live.rows, deletion.spans.lengths
    half, size = len(rows) // 2, len(rows)
    parts = slice(half, min(size, half + DECAY_ROWS)), slice(0, min(half, DECAY_ROWS))
    one, other = (
        carried(*kind, rows[p], forces.ahead[:, p], lengths, means, np.zeros_like(means))
        for p, means in zip(parts, forces.means, strict=True)
    )
    return one, other
