"""What drives an update's error: what the update took for the rows' terms, less what they are.

The mean of that over all rows is told from a sample of live rows, and from the leaving rows where
their curvature was smeared; a mini-batch's deviation from the mean is a random vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import factorial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .averaged import SWEEPS
from .descent import Descent
from .lanczos import STEPS, hessian_times, summed
from .provenance import Blocks, curvature
from .remainders import (
    Rows,
    Terms,
    Vectors,
    bend,
    bent_by_mean,
    gradients,
    responses,
    scores,
    signs,
    terms,
)
from .update import Updated

TINY = 1e-100
"""Changes of the parameters below this count as none."""
LIVE_GROUPS, LIVE_ROWS = 8, 32
LEAVING_GROUPS, LEAVING_ROWS = 4, 16
"""Averaged curvature: blocks look in turns at so many groups of the rows, of these sizes or larger."""
NEGLIGIBLE = 0.05
"""A first sweep that corrects u by less leaves later ones nothing to correct."""
GROWTH = factorial(SWEEPS + 1) ** (1.0 / (SWEEPS + 1))
"""u grows from nothing in a block at worst, so that the k-th integral of it is about 1 / k! of a power."""


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

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """(B + 1,) the first place of each block, and the number of places."""
        return np.append(np.flatnonzero(np.diff(self.block, prepend=-1)), len(self.block))

    @cached_property
    def coarse(self) -> NDArray[np.int64]:
        """Places that stand for the random steps of all: the last of each averaged block, or all."""
        return self.bounds[1:] - 1 if self.averaged else np.arange(len(self.block))

    @cached_property
    def legs(self) -> NDArray[np.int64]:
        """(L + 1,) places between which an error is carried in one go, and their number.

        Whole averaged blocks but for the last: what differs within one is forgotten by the end, or
        adds up to nothing.
        """
        last = int(self.bounds[-2]) if self.averaged else 0
        return np.append(
            self.bounds[:-1][self.bounds[:-1] < last], np.arange(last, len(self.block) + 1)
        )


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
    """What drives the error, by the L legs of ``Strata.legs`` or the C places of ``Strata.coarse``."""

    means: tuple[Vectors, Vectors]
    """(L, P) r's mean over the first half of the rows looked at, and over the second."""
    jumps: Vectors
    """(L, P) what a block adds at its end."""
    rows: NDArray[np.float64]
    """(G, n, m) the sample, in groups."""
    group: NDArray[np.int64]
    """(L,) which of them is looked at."""
    ahead: NDArray[np.float64]
    """(L, n, q) their curvature at w + u."""
    steps: Vectors
    """(C, P) random steps of an iteration, less their mean."""
    wander: NDArray[np.float64]
    """(C, 2) how u moves, as ``scattered`` has it."""
    cycle: int
    """Iterations over which random steps cancel."""
    forcing: Vectors
    """(C, P) at random: what the leaving rows of a mini-batch add to u."""


def exact_forces(deletion: Deletion, updated: Updated) -> Forces:
    """Second order in u alone."""
    u, drift = _along(updated, deletion.spans)
    forcing = deletion.forcing()
    u = _with_pulses(deletion, u, forcing)
    live = deletion.terms(u, deletion.live)
    wander = np.stack([drift / _sizes(u), np.zeros(len(u))], axis=1)
    means, steps = deletion.halves(live.second), deletion.steps(live.second)
    cycle = deletion.batches.per_epoch
    rows, group = deletion.live.rows[np.newaxis], np.zeros(len(u), np.int64)
    jumps = np.zeros_like(u)
    return Forces(means, jumps, rows, group, live.ahead, steps, wander, cycle, forcing)


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
    """Besides the second order: a Hessian is not its block's mean, be its row live or leaving.

    Blocks look at groups of the sample in turns: together they see all of its rows, and a place
    costs little.
    """
    descent, spans, batches = deletion.descent, deletion.spans, deletion.batches
    loss, bounds, legs = int(descent.loss), spans.bounds, spans.legs
    u, drift = _along(updated, spans)
    live, labels = deletion.live.grouped(LIVE_GROUPS, LIVE_ROWS)
    gone, their = deletion.gone.grouped(LEAVING_GROUPS, LEAVING_ROWS)
    first = int(spans.block[0])
    path = first, deletion.trajectory, u, spans.lengths, bounds, legs
    means, ahead, curved, steps = _live_terms(loss, live, labels, signs(live.shape[1], 0), *path)
    shared, fewer, bent, forcing = _gone_terms(loss, gone, their, signs(gone.shape[1], 1), *path)
    forcing *= deletion.lost
    means += (batches.before / batches.after - 1.0) * shared
    steps *= deletion.per_row
    steps += deletion.lost * bent
    share = 1.0 - batches.after / batches.before
    rates = descent.learning_rate, descent.l2, share
    jumps = _jumps(loss, *rates, first, live, curved, gone, fewer, spans.edges, bounds, legs, u)
    at = spans.coarse
    sizes = _sizes(u[at])
    wander = np.stack([drift[at] / sizes, np.square(_sizes(forcing) / sizes)], axis=1)
    cycle = min(batches.per_epoch, spans.blocks.length)
    group = spans.block[legs[:-1]] % len(live)
    halves = means[0], means[1]
    return Forces(halves, jumps, live, group, ahead, steps, wander, cycle, forcing)


@njit(cache=True, inline="always")
def _combined(values, rows):  # type: ignore[no-untyped-def]
    """Return (P,): the mean of values (n, q) (x) x over rows (n, m)."""
    return np.dot(values.T, rows).ravel() / len(rows)


@njit(cache=True, inline="always")
def _flipped(values, flips, rows):  # type: ignore[no-untyped-def]
    """Return (P,): a random vector whose second moment is that of one row's values (x) x."""
    flipped = np.empty(values.shape)
    for i in range(len(values)):
        for k in range(values.shape[1]):
            flipped[i, k] = flips[i] * values[i, k]
    return np.dot(flipped.T, rows).ravel() / np.sqrt(len(rows))


@njit(cache=True, nogil=True)
def _live_terms(loss, groups, labels, flips, block, w, u, lengths, bounds, legs):  # type: ignore[no-untyped-def]
    """Of live rows: r's means (2, L, P) over either half of a block's group, the curvature at w + u
    (L, n, q) and at w at each block's first place (B, n, q), and a random step (B, P).

    block: the first one's number.
    """
    (count, size, m), size_of_w = groups.shape, w.shape[1]
    q, half, leg = size_of_w // m, size // 2, 0
    means, ahead = np.empty((2, len(legs) - 1, size_of_w)), np.empty((len(legs) - 1, size, q))
    curved, steps = np.empty((len(bounds) - 1, size, q)), np.empty((len(bounds) - 1, size_of_w))
    for b in range(len(bounds) - 1):
        first, last = bounds[b], bounds[b + 1]
        rows, own = groups[(block + b) % count], labels[(block + b) % count]
        at, shift = scores(rows, w[first:last]), scores(rows, u[first:last])
        c, curvature = responses(loss, at, own)
        moved, ahead_here = responses(loss, at + shift, own)
        moved -= c
        weights = lengths[first:last] / lengths[first:last].sum()
        left, span = np.zeros((size, q)), 0
        for j in range(last - first):
            left += lengths[first + j] * (
                moved[j] + bent_by_mean(loss, curvature, weights, shift[j])
            )
            span += lengths[first + j]
            if first + j + 1 == legs[leg + 1]:
                left /= span
                means[0, leg] = _combined(left[:half], rows[:half])
                means[1, leg] = _combined(left[half:], rows[half:])
                ahead[leg] = ahead_here[j]
                left[:], span = 0.0, 0
                leg += 1
        curved[b] = curvature[0]
        late = moved[-1]
        for k in range(q):
            late[:, k] -= late[:, k].mean()
        steps[b] = _flipped(late, flips, rows)
    return means, ahead, curved, steps


@njit(cache=True, nogil=True)
def _gone_terms(loss, groups, labels, flips, block, w, u, lengths, bounds, legs):  # type: ignore[no-untyped-def]
    """Of leaving rows: the mean (L, P) of H u, averaged less its own; the curvature at each block's
    first place (B, n, q); and at random, of one row, H u and the gradient (B, P).

    block: the first one's number.
    """
    (count, size, m), size_of_w = groups.shape, w.shape[1]
    q, leg = size_of_w // m, 0
    means, fewer = np.empty((len(legs) - 1, size_of_w)), np.empty((len(bounds) - 1, size, q))
    bent, forcing = np.empty((len(bounds) - 1, size_of_w)), np.empty((len(bounds) - 1, size_of_w))
    here = np.empty((size, q))
    for b in range(len(bounds) - 1):
        first, last = bounds[b], bounds[b + 1]
        rows, own = groups[(block + b) % count], labels[(block + b) % count]
        shift = scores(rows, u[first:last])
        c, curvature = responses(loss, scores(rows, w[first:last]), own)
        weights = lengths[first:last] / lengths[first:last].sum()
        lost, span = np.zeros((size, q)), 0
        for j in range(last - first):
            here[:] = 0.0
            for i in range(size):
                bend(loss, curvature[j, i], shift[j, i], 1.0, here[i])
            lost += lengths[first + j] * (bent_by_mean(loss, curvature, weights, shift[j]) - here)
            span += lengths[first + j]
            if first + j + 1 == legs[leg + 1]:
                means[leg] = _combined(lost / span, rows)
                lost[:], span = 0.0, 0
                leg += 1
        fewer[b] = curvature[0]
        bent[b], forcing[b] = _flipped(here, flips, rows), _flipped(c[-1], flips, rows)
    return means, fewer, bent, forcing


@njit(cache=True, nogil=True)
def _jumps(loss, rate, l2, share, block, groups, curved, leaving, fewer, edges, bounds, legs, u):  # type: ignore[no-untyped-def]
    """Return (L, P), at each block's end: the correction that one more sweep would make.

    A sweep integrates (eta / b) sum of (H_i - H) u over the leaving rows.
    """
    out = np.zeros((len(legs) - 1, u.shape[1]))
    for b in range(len(bounds) - 1):
        length = (edges[bounds[b + 1]] - edges[bounds[b]]) / GROWTH
        live = groups[(block + b) % len(groups)]
        gone = leaving[(block + b) % len(leaving)]
        grown = u[bounds[b + 1] - 1]
        v = rate * share * _excess(loss, live, curved[b], gone, fewer[b], grown)
        if length * np.sqrt(np.dot(v, v)) < NEGLIGIBLE * np.sqrt(np.dot(grown, grown)):
            continue
        rows, joint = _together(live, curved[b], gone, fewer[b], share)
        for _ in range(SWEEPS):
            v = summed(loss, rate, l2, rows, joint, length, v, STEPS)
            v = rate * share * _excess(loss, live, curved[b], gone, fewer[b], v)
        leg = np.searchsorted(legs, bounds[b + 1]) - 1
        out[leg] = summed(loss, rate, l2, rows, joint, length, v, STEPS)
    return out


@njit(cache=True, nogil=True)
def _excess(loss, live, curved, gone, fewer, v):  # type: ignore[no-untyped-def]
    """Return the leaving rows' mean Hessian less the live rows', times v (P,)."""
    return hessian_times(loss, gone, fewer, v) - hessian_times(loss, live, curved, v)


@njit(cache=True, nogil=True)
def _together(live, curved, gone, fewer, share):  # type: ignore[no-untyped-def]
    """Return rows and curvature whose mean Hessian is both kinds', the leaving ones' by their share."""
    a, n = len(live), len(live) + len(gone)
    rows, joint = np.empty((n, live.shape[1])), np.empty((n, curved.shape[1]))
    rows[:a] = live * np.sqrt((1.0 - share) * n / a)
    rows[a:] = gone * np.sqrt(share * n / len(gone))
    joint[:a], joint[a:] = curved, fewer
    return rows, joint


def _along(updated: Updated, spans: Strata) -> tuple[Vectors, NDArray[np.float64]]:
    """Return u (S, P) at the middles, between the blocks' starts, and |du| an iteration (S,)."""
    u = np.empty((len(spans.edges) - 1, updated.starts.shape[1]))
    drift = np.empty(len(u))
    _between(updated.starts, firsts(spans.blocks), spans.block, spans.edges, u, drift)
    return u, drift


@njit(cache=True, nogil=True)
def _between(known, starts, block, edges, u, drift):  # type: ignore[no-untyped-def]
    """Fill u (S, P) on straight lines through ``known`` (B, P) at the iterations ``starts``.

    Where u shrinks, it is as small as exponential decay has it.
    """
    for s in range(len(u)):
        b = block[s]
        length = float(starts[b + 1] - starts[b])
        share = ((edges[s] + edges[s + 1]) / 2.0 - starts[b]) / length
        step = known[b + 1] - known[b]
        u[s] = known[b] + share * step
        size = max(TINY, np.sqrt(np.dot(u[s], u[s])))
        before = max(TINY, np.sqrt(np.dot(known[b], known[b])))
        after = max(TINY, np.sqrt(np.dot(known[b + 1], known[b + 1])))
        if after < before:
            u[s] *= min(1.0, before ** (1.0 - share) * after**share / size)
        drift[s] = max(TINY, np.sqrt(np.dot(step, step))) / length


def _sizes(vectors: Vectors) -> NDArray[np.float64]:
    sizes: NDArray[np.float64] = np.maximum(np.linalg.norm(vectors, axis=1), TINY)
    return sizes
