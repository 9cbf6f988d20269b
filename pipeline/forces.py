"""What drives an update's error: what the update took for the rows' terms, less what they are.

The mean of that over all rows is told from a sample of live rows, and from the leaving rows where
their curvature was smeared; a mini-batch's deviation from the mean is a random vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial

import numpy as np
from numpy.typing import NDArray

from .averaged import SWEEPS
from .descent import Descent
from .lanczos import hessian_times, summed
from .provenance import Blocks, curvature
from .remainders import Rows, Terms, Vectors, block_means, gradients, terms
from .update import Updated

TINY = 1e-100
"""Changes of the parameters below this count as none."""
NEGLIGIBLE = 0.05
"""A first sweep that corrects u by less leaves later ones nothing to correct."""


@dataclass(frozen=True, slots=True)
class Batches:
    """What the mini-batches hold on average."""

    before: float
    """Live rows, the leaving ones included."""
    after: float
    """Live rows that stay."""
    per_epoch: int
    """Iterations that visit every row once."""


@dataclass(frozen=True, slots=True)
class Strata:
    """Consecutive spans of iterations, each judged at its middle."""

    blocks: Blocks
    averaged: bool
    """Whether the update used averaged curvature, not exact."""
    edges: NDArray[np.int64]
    """(S + 1,) where the spans begin, and the training's end."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.edges)

    @property
    def middles(self) -> NDArray[np.int64]:
        """(S,) the iterations whose w_t the estimate needs."""
        return (self.edges[:-1] + self.edges[1:]) // 2

    @property
    def block(self) -> NDArray[np.int64]:
        """(S,) the block of provenance that holds a span's middle."""
        return self.middles // self.blocks.length

    @property
    def coarse(self) -> NDArray[np.int64]:
        """Places that stand for the random steps of all: the last of each averaged block, or all."""
        last = np.append(np.diff(self.block) > 0, True)
        return np.flatnonzero(last | (not self.averaged))


@dataclass(frozen=True, slots=True)
class Deletion:
    """What an estimate knows of a deletion."""

    descent: Descent
    spans: Strata
    trajectory: Vectors
    """(S, P) w_t at the strata's middles."""
    live: Rows
    """Sample of the rows that stay."""
    gone: Rows
    """Sample of the rows that leave."""
    batches: Batches

    @property
    def lost(self) -> float:
        """The factor of one leaving row's random term in an iteration's step."""
        fewer = self.batches.before - self.batches.after
        return float(self.descent.learning_rate * fewer**0.5 / self.batches.after)

    def terms(self, u: Vectors, rows: Rows) -> Terms:
        return terms(self.descent.loss, self.trajectory, u, rows)

    def forcing(self) -> Vectors:
        """(S, P) at random: what the leaving rows of a mini-batch add to u."""
        terms_at_w = gradients(self.descent.loss, self.trajectory, self.gone)
        return self.lost * self.gone.signed(terms_at_w, 1)

    def steps(self, values: NDArray[np.float64]) -> Vectors:
        """(S, P) at random: eta times a mini-batch's deviation from the mean of live rows' values."""
        deviations = values - values.mean(axis=1, keepdims=True)
        factor = float(self.descent.learning_rate / self.batches.after**0.5)
        return factor * self.live.signed(deviations, 0)

    def halves(self, values: NDArray[np.float64]) -> tuple[Vectors, Vectors]:
        """(S, P) the mean of live rows' values over either half of the sample."""
        return self.live.mean(values, slice(0, None, 2)), self.live.mean(values, slice(1, None, 2))


@dataclass(frozen=True, slots=True)
class Forces:
    """What drives the error, (S, P) each but where noted."""

    means: tuple[Vectors, Vectors]
    """r's mean over either half of the sample."""
    jumps: Vectors
    """What a block adds at its end."""
    ahead: NDArray[np.float64]
    """(S, n, q) the sample's curvature at w + u."""
    steps: Vectors
    """Random steps of an iteration, less their mean."""
    wander: NDArray[np.float64]
    """(S, 2) how u moves, as ``scattered`` has it."""
    cycle: int
    """Iterations over which random steps cancel."""
    forcing: Vectors


def exact_forces(deletion: Deletion, updated: Updated) -> Forces:
    """Second order in u alone."""
    u, drift = _along(updated, deletion.spans)
    forcing = deletion.forcing()
    u = _with_pulses(deletion, u, forcing)
    live = deletion.terms(u, deletion.live)
    wander = np.stack([drift / _sizes(u), np.zeros(len(u))], axis=1)
    means, steps = deletion.halves(live.second), deletion.steps(live.second)
    cycle = deletion.batches.per_epoch
    return Forces(means, np.zeros_like(u), live.ahead, steps, wander, cycle, forcing)


def _with_pulses(deletion: Deletion, u: Vectors, forcing: Vectors) -> Vectors:
    """Stretch u (S, P) by the mean square that visits add between the iterations where u is known."""
    descent, live = deletion.descent, deletion.live
    out = u.copy()
    for s, force in enumerate(forcing):
        square = float(force @ force)
        if square > 0.0:
            w = deletion.trajectory[s].reshape(-1, live.rows.shape[1])
            curved = curvature(descent.loss, w, live.rows, live.labels)
            bent = force @ hessian_times(int(descent.loss), live.rows, curved, force)
            memory = 0.5 / (descent.learning_rate * (descent.l2 + bent / square) + TINY)
            square *= min(memory, deletion.spans.blocks.length / 6.0)
            out[s] *= (1.0 + square / max(TINY, float(u[s] @ u[s]))) ** 0.5
    return out


def averaged_forces(deletion: Deletion, updated: Updated) -> Forces:
    """Besides the second order: a Hessian is not its block's mean, be its row live or leaving."""
    loss, spans, batches = deletion.descent.loss, deletion.spans, deletion.batches
    u, drift = _along(updated, spans)
    forcing = deletion.forcing()
    live, gone = deletion.terms(u, deletion.live), deletion.terms(u, deletion.gone)
    own = live.second - live.bent
    steps = deletion.steps(own) + deletion.lost * deletion.gone.signed(gone.bent, 1)
    own += block_means(loss, live, spans.block, spans.lengths)
    lost = block_means(loss, gone, spans.block, spans.lengths) - gone.bent
    shared = (batches.before / batches.after - 1.0) * deletion.gone.mean(lost)
    first, second = deletion.halves(own)
    wander = np.stack([drift / _sizes(u), np.square(_sizes(forcing) / _sizes(u))], axis=1)
    return Forces(
        (first + shared, second + shared),
        _unswept(deletion, live, gone, u),
        live.ahead,
        steps,
        wander,
        min(batches.per_epoch, spans.blocks.length),
        forcing,
    )


def _unswept(deletion: Deletion, live: Terms, gone: Terms, u: Vectors) -> Vectors:
    """(S, P) at each block's end: the correction that one more sweep would make.

    A sweep integrates (eta / b) sum of (H_i - H) u over the leaving rows; u grows from nothing in
    a block at worst, so that the k-th integral is about 1 / k! of a power.
    """
    descent, spans = deletion.descent, deletion.spans
    loss, rate = int(descent.loss), descent.learning_rate
    share = 1.0 - deletion.batches.after / deletion.batches.before
    a, b = deletion.live.rows, deletion.gone.rows
    weights = [((1.0 - share) / len(a)) ** 0.5, (share / len(b)) ** 0.5]
    both = np.vstack([weights[0] * a, weights[1] * b]) * (len(a) + len(b)) ** 0.5
    out = np.zeros_like(u)
    for places in np.split(np.arange(len(u)), np.flatnonzero(np.diff(spans.block)) + 1):
        first, last = places[0], places[-1]
        length = float(spans.lengths[places].sum()) / factorial(SWEEPS + 1) ** (1.0 / (SWEEPS + 1))
        curved, fewer = live.curvature[first], gone.curvature[first]
        joint = np.concatenate([curved, fewer])
        v = u[last]
        for sweep in range(SWEEPS + 1):
            v = hessian_times(loss, b, fewer, v) - hessian_times(loss, a, curved, v)
            v *= rate * share
            if sweep == 0 and length * np.linalg.norm(v) < NEGLIGIBLE * np.linalg.norm(u[last]):
                break
            v = summed(loss, rate, descent.l2, both, joint, length, v)
        else:
            out[last] = v
    return out


def _along(updated: Updated, spans: Strata) -> tuple[Vectors, NDArray[np.float64]]:
    """Return u (S, P) at the middles, between the blocks' starts, and |du| an iteration (S,)."""
    blocks, block = spans.blocks, spans.block
    starts = np.minimum(np.arange(blocks.count + 1) * blocks.length, blocks.iterations)
    length = (starts[block + 1] - starts[block]).astype(np.float64)
    share = ((spans.edges[:-1] + spans.edges[1:]) / 2.0 - starts[block]) / length
    step = updated.starts[block + 1] - updated.starts[block]
    u = updated.starts[block] + share[:, np.newaxis] * step
    sizes = _sizes(updated.starts)
    before, after = sizes[block], sizes[block + 1]
    falling = np.where(after < before, before ** (1.0 - share) * after**share, np.inf)
    return u * np.minimum(1.0, falling / _sizes(u))[:, np.newaxis], _sizes(step) / length


def _sizes(vectors: Vectors) -> NDArray[np.float64]:
    sizes: NDArray[np.float64] = np.maximum(np.linalg.norm(vectors, axis=1), TINY)
    return sizes
