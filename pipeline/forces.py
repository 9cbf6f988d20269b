"""What drives an update's error: what the update took for the rows' terms, less what they are.

The mean of that over all rows is told from a sample of live rows; a mini-batch's deviation from the
mean is a random vector. ``averaged_error`` has the same for averaged curvature.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .descent import Descent
from .lanczos import hessian_times
from .losses import dot
from .provenance import Blocks, curvature
from .remainders import Rows, Terms, Vectors, gradients, terms
from .update import Updated

TINY = 1e-100
"""Changes of the parameters below this count as none."""


@dataclass(frozen=True, slots=True)
class Batches:
    """What the mini-batches hold on average."""

    before: float
    """Live rows, the leaving ones included."""
    after: float
    """Live rows that stay."""
    per_epoch: int
    """Iterations that visit every row once."""


def firsts(blocks: Blocks) -> NDArray[np.int64]:
    """Return (blocks + 1,) the blocks' first iterations, and the training's end."""
    return np.minimum(np.arange(blocks.count + 1) * blocks.length, blocks.iterations)


@dataclass(frozen=True)
class Strata:
    """Consecutive spans of iterations, each judged at its middle."""

    blocks: Blocks
    averaged: bool
    """Whether the update used averaged curvature, not exact."""
    edges: NDArray[np.int64]
    """(S + 1,) where the spans begin, and the training's end."""

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.edges)

    @cached_property
    def middles(self) -> NDArray[np.int64]:
        """(S,) the iterations whose w_t the estimate needs."""
        return (self.edges[:-1] + self.edges[1:]) // 2

    @cached_property
    def block(self) -> NDArray[np.int64]:
        """(S,) the block of provenance that holds a span's middle."""
        return self.middles // self.blocks.length


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

    @property
    def per_row(self) -> float:
        """The factor of one live row's random term in an iteration's step."""
        return float(self.descent.learning_rate / self.batches.after**0.5)

    def steps(self, values: NDArray[np.float64]) -> Vectors:
        """(S, P) at random: eta times a mini-batch's deviation from the mean of live rows' values."""
        deviations = values - values.mean(axis=1, keepdims=True)
        return self.per_row * self.live.signed(deviations, 0)

    def halves(self, values: NDArray[np.float64]) -> tuple[Vectors, Vectors]:
        """(S, P) the mean of live rows' values over the first half of the sample, and the second."""
        half = len(self.live.rows) // 2
        return self.live.mean(values, slice(half)), self.live.mean(values, slice(half, None))


@dataclass(frozen=True, slots=True)
class Forces:
    """What drives the error, by span."""

    means: tuple[Vectors, Vectors]
    """(S, P) r's mean over the first half of the rows looked at, and over the second."""
    ahead: NDArray[np.float64]
    """(S, n, q) the live rows' curvature at w + u."""
    steps: Vectors
    """(S, P) random steps of an iteration, less their mean."""
    wander: NDArray[np.float64]
    """(S, 2) how u moves, as ``scattered`` has it."""


def exact_forces(deletion: Deletion, updated: Updated) -> Forces:
    """Second order in u alone."""
    u, drift = _along(updated, deletion.spans)
    u = with_pulses(deletion, u, deletion.forcing())
    live = deletion.terms(u, deletion.live)
    wander = np.stack([drift / sizes(u), np.zeros(len(u))], axis=1)
    means, steps = deletion.halves(live.second), deletion.steps(live.second)
    return Forces(means, live.ahead, steps, wander)


def with_pulses(deletion: Deletion, u: Vectors, forcing: Vectors) -> Vectors:
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


def _along(updated: Updated, spans: Strata) -> tuple[Vectors, NDArray[np.float64]]:
    """Return u (S, P) at the middles, between the blocks' starts, and |du| an iteration (S,)."""
    u, drift = between(updated.starts, firsts(spans.blocks), spans.blocks.length, spans.edges)
    return u, drift


@njit(cache=True, nogil=True)
def between(known, starts, length, edges):  # type: ignore[no-untyped-def]
    """Return u (S, P) at the middles of spans, and |du| an iteration (S,).

    On straight lines through ``known`` (B + 1, P) at the iterations ``starts``, ``length`` apart.
    Where u shrinks, it is as small as exponential decay has it.
    """
    u, drift = np.empty((len(edges) - 1, known.shape[1])), np.empty(len(edges) - 1)
    for s in range(len(u)):
        b = (edges[s] + edges[s + 1]) // 2 // length
        whole = float(starts[b + 1] - starts[b])
        share = ((edges[s] + edges[s + 1]) / 2.0 - starts[b]) / whole
        here, old, new = u[s], known[b], known[b + 1]
        for j in range(len(here)):
            here[j] = new[j] - old[j]
        moved = dot(here, here)
        for j in range(len(here)):
            here[j] = old[j] + share * here[j]
        size = max(TINY, np.sqrt(dot(here, here)))
        before, after = max(TINY, np.sqrt(dot(old, old))), max(TINY, np.sqrt(dot(new, new)))
        if after < before:
            less = min(1.0, before ** (1.0 - share) * after**share / size)
            for j in range(len(here)):
                here[j] *= less
        drift[s] = max(TINY, np.sqrt(moved)) / whole
    return u, drift


def sizes(vectors: Vectors) -> NDArray[np.float64]:
    sizes: NDArray[np.float64] = np.maximum(np.linalg.norm(vectors, axis=1), TINY)
    return sizes
