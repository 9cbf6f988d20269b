"""PrIU in difference form with one averaged curvature a block, in its eigenvectors' coordinates.

There a step is a product with numbers, so an update costs the rotation of the forcing and little
else. The deleted rows' own curvature is not small where they are outliers: a second sweep corrects
for it, with the first sweep's u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .descent import Descent, Trace
from .provenance import Averaged, Real, add_curvature, decompose
from .update import Updated
from .visits import Visits, add_curved, add_gradients

SWEEPS = 2
"""Corrections for the deleted rows' own curvature."""
SMEAR = 0.02
"""Forcings of neighbouring iterations may be taken together while no eigenvalue of a step moves them
apart by more than this."""


@dataclass(frozen=True, slots=True)
class _Touched:
    """The iterations of a block that lose rows, and what drives u there."""

    at: NDArray[np.int64]
    """(n,) iterations counted from the block's first."""
    edges: NDArray[np.int64]
    """(n + 1,) their visits."""
    forcing: NDArray[np.float64]
    """(n, P) what is added to u, less the terms in u itself."""
    own: NDArray[np.float64]
    """(n,) eta / b', the factor of the deleted rows' curvature; 0 where no row is left."""
    extra: NDArray[np.float64]
    """(n,) what must be added to the factor of -eta C u, as b' is not b."""


def update_averaged(descent: Descent, trace: Trace, averaged: Averaged, visits: Visits) -> Updated:
    """Return the change of the parameters (method ``delta`` on kind ``averaged``)."""
    blocks = averaged.blocks
    size = trace.trajectory.shape[1]
    starts = np.zeros((blocks.count + 1, size))
    if not len(visits.iteration):
        return Updated(np.zeros(size), starts)
    u = np.zeros(size)
    for block in range(int(visits.iteration[0]) // blocks.length, blocks.count):
        first, last = blocks.span(block)
        here = _part(trace, first, last)
        own = visits.between(first, last)
        u, _ = _through_block(descent, here, averaged.eigen(block), _shifted(own, first), u, False)
        starts[block + 1] = u
    return Updated(u, starts)


@dataclass(frozen=True, slots=True)
class RebasedMean:
    """A block of the next version: nothing in it depends on the deleted rows' own terms."""

    trace: Trace
    eigen: tuple[NDArray[Real], NDArray[Real]]


def rebase_averaged_block(
    descent: Descent,
    trace: Trace,
    eigen: tuple[NDArray[Real], NDArray[Real]],
    visits: Visits,
    start: NDArray[np.float64],
) -> RebasedMean:
    """Return a block without the deleted rows, as ``update.rebase_block`` does.

    G' is what the new trajectory's own steps say: (eta / b') G' = u_{t+1} - (1 - eta lambda) u_t +
    (eta / b) G.
    """
    end, history = _through_block(descent, trace, eigen, visits, start, True)
    after = np.vstack([history[1:], end])
    left = trace.live - visits.counts(0, len(trace.live))
    ratio = left / np.maximum(trace.live, 1)
    moved = (left / descent.learning_rate)[:, np.newaxis] * (after - descent.decay * history)
    remaining = moved + ratio[:, np.newaxis] * trace.gradients
    fewer = eigen
    if len(visits.iteration):
        fewer = _without(descent, trace.live, left, eigen, visits)
    return RebasedMean(Trace(trace.trajectory + history, remaining, left), fewer)


def _without(
    descent: Descent,
    live: NDArray[np.int64],
    left: NDArray[np.int64],
    eigen: tuple[NDArray[Real], NDArray[Real]],
    visits: Visits,
) -> tuple[NDArray[Real], NDArray[Real]]:
    """The mean of C'_t / b'_t, as far as the mean of C_t / b_t tells, decomposed."""
    values, vectors = (part.astype(np.float64) for part in eigen)
    some = left > 0
    count = max(1, int(some.sum()))
    mean = (vectors * (values * (live[some] / left[some]).sum())) @ vectors.T
    lost = np.zeros_like(mean, order="F")
    kept = some[visits.iteration]
    weights = np.sqrt(1.0 / np.maximum(left[visits.iteration], 1)) * kept
    rows = visits.rows * weights[:, np.newaxis]
    add_curvature(lost, descent.loss, rows, visits.curvature)
    found = decompose((np.tril(mean) - np.tril(lost)) / count)
    kind = eigen[1].dtype
    return found[0].astype(kind), found[1].astype(kind)


def _part(trace: Trace, first: int, last: int) -> Trace:
    return Trace(trace.trajectory[first:last], trace.gradients[first:last], trace.live[first:last])


def _shifted(visits: Visits, first: int) -> Visits:
    return Visits(visits.iteration - first, visits.rows, visits.coefficients, visits.curvature)


def _through_block(
    descent: Descent,
    trace: Trace,
    eigen: tuple[NDArray[Real], NDArray[Real]],
    visits: Visits,
    start: NDArray[np.float64],
    whole: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return u (P,) after a block, and u (n, P) before each of its iterations if ``whole``.

    Iterations without live rows count as if they had some: they are few, and u small there.
    """
    values, vectors = eigen
    length = len(trace.live)
    if whole:
        vectors = vectors.astype(np.float64)
    kind = vectors.dtype
    factors = descent.decay - descent.learning_rate * values.astype(np.float64)
    v = np.asarray(start, kind) @ vectors
    v = v.astype(np.float64)
    if not len(visits.iteration) and not whole:
        powers = np.ones_like(factors)
        _raise_to(factors, length, powers)
        return vectors @ (powers * v).astype(kind), np.empty((0, len(start)))
    touched = _touched(descent, trace, visits)
    grain = 1 if whole else _grain(factors, len(touched.at), length)
    groups, group_of = np.unique(touched.at // grain, return_inverse=True)
    rotated = np.asarray(_gathered(touched.forcing, group_of, len(groups)), kind) @ vectors
    rotated = rotated.astype(np.float64)
    before = np.empty((len(groups), len(start)))
    total = rotated
    end = v
    for sweep in range(SWEEPS + 1):
        end = _sweep(factors, v, groups, grain, length, total, before)
        if sweep == SWEEPS or not len(groups):
            break
        correction = _correction(descent, touched, visits, before @ vectors.T, group_of)
        total = rotated + np.asarray(correction, kind) @ vectors
        shift = np.bincount(group_of, touched.extra, len(groups))[:, np.newaxis]
        total -= shift * (descent.learning_rate * values) * before
    history = np.empty((0, len(start)))
    if whole:
        full = np.empty((length, len(start)))
        _history(factors, v, groups, total, full)
        history = np.asarray(full, kind) @ vectors.T
    return vectors @ end.astype(kind), history.astype(np.float64)


def _touched(descent: Descent, trace: Trace, visits: Visits) -> _Touched:
    at, starts, counts = np.unique(visits.iteration, return_index=True, return_counts=True)
    live = trace.live[at].astype(np.float64)
    left = live - counts
    edges = np.append(starts, len(visits.iteration)).astype(np.int64)
    rate = descent.learning_rate
    with np.errstate(divide="ignore"):
        new = np.where(left > 0, rate / left, 0.0)
        ratio = np.where(left > 0, live / left, 0.0)
    forcing = np.empty((len(at), trace.trajectory.shape[1]))
    _force(trace.gradients, at, edges, visits.rows, visits.coefficients, new, rate / live, forcing)
    return _Touched(at, edges, forcing, new, ratio - 1.0)


@njit(cache=True, nogil=True)
def _force(gradients, at, edges, rows, coefficients, new, old, out):  # type: ignore[no-untyped-def]
    """(eta / b') G' - (eta / b) G of each touched iteration."""
    lost = np.empty(out.shape[1])
    for i in range(len(at)):
        lost[:] = 0.0
        add_gradients(rows[edges[i] : edges[i + 1]], coefficients[edges[i] : edges[i + 1]], lost)
        for j in range(out.shape[1]):
            out[i, j] = (new[i] - old[i]) * gradients[at[i], j] - new[i] * lost[j]


def _grain(factors: NDArray[np.float64], touched: int, length: int) -> int:
    """Return how many neighbouring iterations' forcings may be taken together (odd)."""
    if touched < 2:
        return 1
    fastest = float(np.abs(1.0 - factors).max())
    reach = int(SMEAR / fastest) if fastest > 0.0 else length
    return 2 * min(reach, length // 2) + 1


def _gathered(
    parts: NDArray[np.float64], group_of: NDArray[np.int64], groups: int
) -> NDArray[np.float64]:
    """Sum rows by group; groups ascend."""
    if groups == len(parts) or not groups:
        return parts
    return np.add.reduceat(parts, np.searchsorted(group_of, np.arange(groups)), axis=0)


def _correction(
    descent: Descent,
    touched: _Touched,
    visits: Visits,
    u: NDArray[np.float64],
    group_of: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The deleted rows' own curvature times u (groups, P), summed by group."""
    out = np.zeros_like(u)
    _own_curvature(
        int(descent.loss),
        touched.edges,
        group_of,
        touched.own,
        visits.rows,
        visits.curvature,
        np.ascontiguousarray(u, np.float64),
        out,
    )
    return out


@njit(cache=True, nogil=True)
def _own_curvature(loss, edges, group_of, factors, rows, curvature, u, out):  # type: ignore[no-untyped-def]
    for i in range(len(factors)):
        a, b, g = edges[i], edges[i + 1], group_of[i]
        add_curved(loss, rows[a:b], curvature[a:b], u[g], factors[i], out[g])


@njit(cache=True, nogil=True)
def _raise_to(factors, power, out):  # type: ignore[no-untyped-def]
    """Multiply out (P,) by factors to a whole power; they may be zero or negative."""
    square = factors.copy()
    while power:
        if power & 1:
            out *= square
        power >>= 1
        if power:
            square *= square


@njit(cache=True, nogil=True)
def _sweep(factors, start, groups, grain, length, forcing, before):  # type: ignore[no-untyped-def]
    """Return v (P,) after a block; before (groups, P) gets v at the middle of each group."""
    v = start.copy()
    at = 0
    for g in range(len(groups)):
        middle = min(groups[g] * grain + grain // 2, length - 1)
        _raise_to(factors, middle - at, v)
        for j in range(len(v)):
            before[g, j] = v[j]
            v[j] = factors[j] * v[j] + forcing[g, j]
        at = middle + 1
    _raise_to(factors, length - at, v)
    return v


@njit(cache=True, nogil=True)
def _history(factors, start, at, forcing, out):  # type: ignore[no-untyped-def]
    """Fill out (n, P) with v before each iteration; forcing at the iterations ``at``."""
    v = start.copy()
    g = 0
    for t in range(len(out)):
        for j in range(len(v)):
            out[t, j] = v[j]
            v[j] *= factors[j]
        if g < len(at) and at[g] == t:
            for j in range(len(v)):
                v[j] += forcing[g, j]
            g += 1
