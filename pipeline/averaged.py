"""PrIU in difference form with one averaged curvature a block, in its eigenvectors' coordinates.

There a step is a product with numbers, so an update costs the rotation of the forcing and little
else. The deleted rows' own curvature is not small where they are outliers: a second sweep corrects
for it, with the first sweep's u.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .descent import Descent, Trace
from .provenance import Averaged, Real, add_curvature, decompose
from .update import Updated
from .visits import Visits, add_curved, add_gradients

SWEEPS = 8
"""Corrections for the deleted rows' own curvature, at most."""
SETTLED = 0.01
"""A correction that moves u by less than this share needs no other after it."""
GRAINS = (3, 5, 9, 17, 33, 65, 129)
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


@np.errstate(over="ignore", invalid="ignore")
def update_averaged(
    descent: Descent,
    trace: Trace,
    averaged: Averaged,
    visits: Visits,
    at: NDArray[np.int64] | None = None,
) -> Updated:
    """Return the change of the parameters (method ``delta`` on kind ``averaged``).

    at: the iterations that the trace has, ascending; by default all. It needs those with visits
    alone. The result may overflow where the rows left have other curvature altogether: ``strays``
    tells.
    """
    blocks = averaged.blocks
    size = trace.trajectory.shape[1]
    at = np.arange(blocks.iterations) if at is None else at
    starts = np.zeros((blocks.count + 1, size))
    if not len(visits.iteration):
        return Updated(np.zeros(size), starts)
    u = np.zeros(size)
    for block in range(int(visits.iteration[0]) // blocks.length, blocks.count):
        first, last = blocks.span(block)
        a, b = np.searchsorted(at, (first, last))
        own = visits.part(first, last)
        touched = _touched(descent, trace.part(a, b), at[a:b] - first, own)
        u, _ = _through_block(descent, touched, averaged.eigen(block), own, u, last - first, False)
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
    length = len(trace.live)
    touched = _touched(descent, trace, np.arange(length), visits)
    end, history = _through_block(descent, touched, eigen, visits, start, length, True)
    after = np.vstack([history[1:], end])
    left = trace.live - visits.counts(0, length)
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


@dataclass(frozen=True, slots=True)
class _Band:
    """Some eigenvectors, and how many neighbouring iterations' forcings they take together.

    Where a step hardly moves a coordinate, a few iterations more or less make no difference to it.
    """

    factors: NDArray[np.float64]
    """(p,) of a step."""
    vectors: NDArray[Real]
    """(P, p)"""
    grain: int
    """Odd."""
    groups: NDArray[np.int64]
    """(g,) which groups of iterations are touched."""
    group_of: NDArray[np.int64]
    """(n,) each touched iteration's place among them."""

    def gathered(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (g, p): forcings (n, P) summed by group, in this band's coordinates."""
        if len(self.groups) < len(parts):
            firsts = np.searchsorted(self.group_of, np.arange(len(self.groups)))
            parts = np.add.reduceat(parts, firsts, axis=0)
        rotated = np.asarray(parts, self.vectors.dtype) @ self.vectors
        found: NDArray[np.float64] = rotated.astype(np.float64)
        return found


def _bands(
    factors: NDArray[np.float64], vectors: NDArray[Real], at: NDArray[np.int64], length: int
) -> list[_Band]:
    """Split the coordinates into those that take every iteration by itself and those that don't.

    Eigenvalues ascend, so the slow coordinates come first. The grain is the one that makes the
    rotations cheapest.
    """
    speed = np.abs(1.0 - factors)
    slow_below = np.maximum.accumulate(speed)
    choices = []
    for grain in (1, *GRAINS):
        slow = int(np.searchsorted(slow_below, SMEAR / (grain // 2), "right")) if grain > 1 else 0
        groups = len(np.unique(at // grain)) if slow else 0
        if grain <= length:
            choices.append((groups * slow + len(at) * (len(factors) - slow), grain, slow))
    _, grain, slow = min(choices)
    bands = []
    for part, own in ((slice(0, slow), grain), (slice(slow, None), 1)):
        if len(factors[part]):
            touched, place = np.unique(at // own, return_inverse=True)
            bands.append(_Band(factors[part], vectors[:, part], own, touched, place))
    return bands


def _through_block(
    descent: Descent,
    touched: _Touched,
    eigen: tuple[NDArray[Real], NDArray[Real]],
    visits: Visits,
    start: NDArray[np.float64],
    length: int,
    whole: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return u (P,) after a block, and u (n, P) before each of its iterations if ``whole``.

    Iterations without live rows count as if they had some: they are few, and u small there.
    """
    values, vectors = eigen
    if whole:
        vectors = vectors.astype(np.float64)
    kind = vectors.dtype
    factors = descent.decay - descent.learning_rate * values.astype(np.float64)
    v = (np.asarray(start, kind) @ vectors).astype(np.float64)
    if not len(visits.iteration) and not whole:
        _raise_to(factors, length, v)
        return vectors @ v.astype(kind), np.empty((0, len(start)))
    if whole:
        every = np.arange(len(touched.at))
        bands = [_Band(factors, vectors, 1, touched.at, every)]
    else:
        bands = _bands(factors, vectors, touched.at, length)
    end, forcings = _swept(descent, touched, visits, bands, v, length)
    history = np.empty((0, len(start)))
    if whole:
        full = np.empty((length, len(start)))
        _history(factors, v, touched.at, forcings[0], full)
        history = full @ vectors.T
    return (vectors @ end.astype(kind)).astype(np.float64), history


def _swept(
    descent: Descent,
    touched: _Touched,
    visits: Visits,
    bands: list[_Band],
    start: NDArray[np.float64],
    length: int,
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Return v (P,) after a block, and each band's forcing (g, p) with the last correction in it."""
    edges = np.cumsum([0, *(len(band.factors) for band in bands)])
    starts = [start[a:b] for a, b in pairwise(edges)]
    plain = [band.gathered(touched.forcing) for band in bands]
    total, end = plain, start
    for sweep in range(SWEEPS + 1):
        before = [np.empty_like(part) for part in total]
        last, ends = end, []
        for band, v, forcing, seen in zip(bands, starts, total, before, strict=True):
            ends.append(_sweep(band.factors, v, band.groups, band.grain, length, forcing, seen))
        end = np.concatenate(ends)
        settled = sweep > 0 and np.linalg.norm(end - last) <= SETTLED * np.linalg.norm(end)
        if sweep == SWEEPS or not len(touched.at) or settled:
            break
        total = _corrected(descent, touched, visits, bands, plain, before)
    return end, total


def _corrected(
    descent: Descent,
    touched: _Touched,
    visits: Visits,
    bands: list[_Band],
    plain: list[NDArray[np.float64]],
    before: list[NDArray[np.float64]],
) -> list[NDArray[np.float64]]:
    """The forcings with what the deleted rows' own curvature, and b' instead of b, do to u."""
    u = np.zeros_like(touched.forcing)
    for band, seen in zip(bands, before, strict=True):
        u += (np.asarray(seen, band.vectors.dtype) @ band.vectors.T)[band.group_of]
    own = np.zeros_like(u)
    _own_curvature(
        int(descent.loss), touched.edges, touched.own, visits.rows, visits.curvature, u, own
    )
    found = []
    for band, forcing, seen in zip(bands, plain, before, strict=True):
        shift = np.bincount(band.group_of, touched.extra, len(band.groups))[:, np.newaxis]
        found.append(forcing + band.gathered(own) - shift * (descent.decay - band.factors) * seen)
    return found


def _touched(descent: Descent, trace: Trace, known: NDArray[np.int64], visits: Visits) -> _Touched:
    """What the visits do; known (n,): the iterations that the trace has."""
    at, starts, counts = np.unique(visits.iteration, return_index=True, return_counts=True)
    places = np.searchsorted(known, at)
    live = trace.live[places].astype(np.float64)
    left = live - counts
    edges = np.append(starts, len(visits.iteration)).astype(np.int64)
    rate = descent.learning_rate
    with np.errstate(divide="ignore"):
        new = np.where(left > 0, rate / left, 0.0)
        ratio = np.where(left > 0, live / left, 0.0)
    forcing = np.empty((len(at), trace.trajectory.shape[1]))
    _force(
        trace.gradients, places, edges, visits.rows, visits.coefficients, new, rate / live, forcing
    )
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


@njit(cache=True, nogil=True)
def _own_curvature(loss, edges, factors, rows, curvature, u, out):  # type: ignore[no-untyped-def]
    """Add each touched iteration's deleted Hessians times u (n, P), times a factor, to out."""
    for i in range(len(factors)):
        a, b = edges[i], edges[i + 1]
        add_curved(loss, rows[a:b], curvature[a:b], u[i], factors[i], out[i])


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
