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

import numpy as np
from numpy.typing import NDArray

from .averaged import SMEAR
from .descent import Descent
from .forces import Batches, Deletion, Forces, Strata, averaged_forces, exact_forces, firsts
from .lanczos import STEPS, carried_by, scattered, smeared
from .losses import Loss
from .provenance import Blocks
from .remainders import Rows, Vectors
from .update import Updated

SHARE = 0.1
"""Of the update's work that an estimate may cost, above the least size."""
LEAST_ROWS, MOST_ROWS = 256, 512
LEAST_STRATA, MOST_STRATA = 8, 32
GONE_ROWS = 64
"""Of the leaving rows, at most."""
DECAY_ROWS = 64
"""Rows of a sample that tell how an error decays, at most."""
FEW_STEPS = 3
"""Lanczos steps where updates are as cheap as with averaged curvature."""
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
        starts = firsts(blocks)[first:]
        inside = np.arange(1, parts + 1) / parts
        ends = starts[:-1, np.newaxis] + np.diff(starts)[:, np.newaxis] * inside
        edges = np.append(begin, ends)
    else:
        left = np.square(np.linspace(1.0, 0.0, count + 1))
        edges = blocks.iterations - (blocks.iterations - begin) * left
    return Strata(blocks, averaged, np.unique(np.rint(edges).astype(np.int64)))


def update_work(
    blocks: Blocks, parameters: int, visits: NDArray[np.int64], averaged: bool
) -> float:
    """Return an update's floating-point operations, rather too few.

    visits: (v,) their iterations, ascending.
    """
    if not len(visits):
        return 0.0
    touched = int(np.count_nonzero(np.diff(np.searchsorted(visits, firsts(blocks)))))
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
    count = int(np.clip(affordable / MOST_ROWS, LEAST_STRATA, MOST_STRATA))
    return int(np.clip(affordable / count, LEAST_ROWS, MOST_ROWS)), count


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
    rounding = _rounding(updated, trajectory, precision)
    exactly = descent.loss == Loss.LINEAR and not spans.averaged
    if exactly or not np.any(updated.starts):
        return Estimate(0.0, 0.0, rounding)
    gone = leaving.thinned(GONE_ROWS)
    forces = (averaged_forces if spans.averaged else exact_forces)(
        Deletion(descent, spans, trajectory, sample, gone, batches), updated
    )
    kind = int(descent.loss), descent.learning_rate, descent.l2
    steps = FEW_STEPS if spans.averaged else STEPS
    one, other = _ends(kind, spans, forces, steps)
    # What both halves agree on is free of sampling noise; below half of that noise nothing is seen.
    noise = float(np.square(one - other).sum()) / 4.0
    trend = max(noise / 4.0, float(one @ other))
    rows, ahead = forces.rows[forces.group[-1]], forces.ahead[-1]
    at = np.append(spans.edges[0], spans.edges[spans.coarse + 1])
    late = (*kind, rows[:DECAY_ROWS], ahead[:DECAY_ROWS], at)
    squares = float(scattered(*late, forces.steps, forces.wander, forces.cycle, steps))
    if spans.averaged and (batches.before - batches.after) * spans.blocks.length >= 2.0:
        longest = spans.blocks.length // 2
        squares += float(smeared(*late, forces.forcing, SMEAR, longest, steps))
    # An error beyond the change itself says only that the update failed.
    largest = float(np.linalg.norm(updated.starts[-2:], axis=1).max())
    return Estimate(min(trend**0.5, largest), min(squares**0.5, largest), rounding)


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
    kind: tuple[int, float, float], spans: Strata, forces: Forces, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the error (P,) at the end by either half of the rows looked at.

    How it decays is told by the other half: a few rows' own curvature is the steepest where they
    drive the error to. Far fewer rows tell that than what the error is.
    """
    half, size = forces.rows.shape[1] // 2, forces.rows.shape[1]
    parts = (half, min(size, half + DECAY_ROWS)), (0, min(half, DECAY_ROWS))
    lengths = np.diff(spans.edges[spans.legs])
    path = forces.group, forces.ahead, lengths
    one, other = (
        carried_by(*kind, forces.rows, part, *path, means, forces.jumps, steps)
        for part, means in zip(parts, forces.means, strict=True)
    )
    return one, other


def _rounding(updated: Updated, trajectory: Vectors, precision: float) -> float:
    """Float64's share, and the stored curvature's: its entries' errors are independent."""
    change = float(np.linalg.norm(updated.starts, axis=1).max())
    scale = change + float(np.linalg.norm(trajectory[-1]))
    stored = precision * change / float(np.sqrt(len(updated.change)))
    return 2.0 * float(np.finfo(np.float64).eps) * scale + stored
