"""Curvature in the rows' leading principal components (kind ``projected``), for models of many features.

Let V (m, d) hold the leading eigenvectors of the rows' mean x x^T. With the parameters as a matrix,
u (q, m) = A V^T + u_perp. A follows the update with averaged curvature on the rows V^T x. Outside of
V, curvature is small and is taken as D (x) Lambda, with D (q, q) the block's mean of a row's
curvature and Lambda the other eigenvalues: what it does to u in a block is summed up at its end, and
felt as a constant drift in its iterations. The deleted rows' own gradients are those at the full w_t.

The bias is V's first column: features have mean 0, so it is an eigenvector; and the mean curvature's
rows of the bias are D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .averaged import RebasedMean, rebase_averaged_block, update_averaged
from .components import Basis
from .descent import Descent, Trace
from .provenance import Blocks, Real
from .update import Updated
from .visits import Visits, add_gradients


class Projected(Protocol):
    """A basis, and the averaged curvature of the rows' coordinates in it."""

    @property
    def blocks(self) -> Blocks: ...

    @property
    def basis(self) -> Basis: ...

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        """Return a block's eigenvalues (q d,) and eigenvectors (q d, q d), in columns."""
        ...


@dataclass(frozen=True, slots=True)
class ProjectedBlocks:
    """Projected curvature in memory; implements ``Projected``."""

    blocks: Blocks
    basis: Basis
    parts: tuple[tuple[NDArray[Real], NDArray[Real]], ...]

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        return self.parts[block]


@dataclass(frozen=True, slots=True)
class Touched:
    """The iterations of a block that lose rows."""

    at: NDArray[np.int64]
    """(n,) counted from the block's first, ascending."""
    trace: Trace
    """Of these iterations alone."""
    visits: Visits
    """With iterations counted from the block's first."""


class Touches(Protocol):
    """Where a deletion touches a training; read block by block."""

    @property
    def when(self) -> NDArray[np.int64]:
        """(v,) the iterations that use deleted rows, ascending."""
        ...

    @property
    def parameters(self) -> int:
        """P"""
        ...

    def block(self, first: int, last: int) -> Touched:
        """Return what the iterations first <= t < last lose."""
        ...


@dataclass(frozen=True, slots=True)
class TracedTouches:
    """Those of a training whose trace is in memory; implements ``Touches``."""

    trace: Trace
    visits: Visits

    @property
    def when(self) -> NDArray[np.int64]:
        return self.visits.iteration

    @property
    def parameters(self) -> int:
        return int(self.trace.trajectory.shape[1])

    def block(self, first: int, last: int) -> Touched:
        own, part = self.visits.part(first, last), self.trace.part(first, last)
        at = np.unique(own.iteration)
        trace = Trace(part.trajectory[at], part.gradients[at], part.live[at])
        return Touched(at, trace, own)


# ------------------------------------------------------------------ outside of the basis


@dataclass(frozen=True, slots=True)
class _Rates:
    """eta / b' and eta / b of touched iterations (n,), and how many rows b' counts."""

    new: NDArray[np.float64]
    old: NDArray[np.float64]
    place: NDArray[np.int64]
    """(v,) each visit's touched iteration."""

    @classmethod
    def of(cls, descent: Descent, touched: Touched) -> _Rates:
        place = np.searchsorted(touched.at, touched.visits.iteration)
        live = touched.trace.live.astype(np.float64)
        left = live - np.bincount(place, minlength=len(live))
        new = np.where(left > 0, descent.learning_rate / np.maximum(left, 1.0), 0.0)
        return cls(new, descent.learning_rate / live, place)


def _pushes(descent: Descent, touched: Touched, length: int) -> NDArray[np.float64]:
    """(2, P): what the visits of a block add to u by its end with weight decay alone; and the same
    with each part times the share of the block that is still to come after it."""
    rates = _Rates.of(descent, touched)
    rest = length - 1 - touched.at
    weights = descent.decay**rest * np.stack([np.ones(len(rest)), rest / length])
    found: NDArray[np.float64] = (weights * (rates.new - rates.old)) @ touched.trace.gradients
    own = (weights * rates.new)[:, rates.place]
    visits = touched.visits
    for k in range(2):
        lost = (visits.coefficients * own[k, :, np.newaxis]).T @ visits.rows
        found[k] -= lost.ravel()
    return found


def _curved(
    descent: Descent,
    basis: Basis,
    eigen: tuple[NDArray[Real], NDArray[Real]],
    length: int,
    mass: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What curvature outside of the basis takes from u (P,) within a block.

    mass: (P,) u at the block's start as weight decay alone leaves it, and the second of ``_pushes``:
    what is curved for the whole block.
    """
    shares, turned = np.linalg.eigh(mean_output(basis, eigen))
    m, rest = len(basis.vectors), basis.vectors[:, basis.rank :]
    inner = turned.T @ (np.asarray(mass.reshape(-1, m), rest.dtype) @ rest)
    steps = descent.learning_rate * np.outer(np.maximum(shares, 0.0), basis.values[basis.rank :])
    kept = np.maximum(0.0, 1.0 - steps / descent.decay) ** length if descent.decay > 0.0 else 1.0
    outer = turned @ ((kept - 1.0) * inner)
    lost: NDArray[np.float64] = (np.asarray(outer, rest.dtype) @ rest.T).astype(np.float64)
    return lost.ravel()


def mean_output(basis: Basis, eigen: tuple[NDArray[Real], NDArray[Real]]) -> NDArray[np.float64]:
    """Return D (q, q): the mean curvature's rows and columns of the bias."""
    values, vectors = eigen
    bias = vectors[:: basis.rank].astype(np.float64)
    mean: NDArray[np.float64] = (bias * values) @ bias.T
    return mean


def _through(
    descent: Descent,
    basis: Basis,
    eigen: tuple[NDArray[Real], NDArray[Real]],
    start: NDArray[np.float64],
    pushes: NDArray[np.float64],
    length: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return u_perp (P,) after a block, and the drift (P,) that curvature adds at every iteration.

    start: u_perp (P,) before it.
    """
    slack = descent.decay**length * start
    now, later = basis.outside(np.stack([slack + pushes[0], slack + pushes[1]]))
    lost = _curved(descent, basis, eigen, length, later)
    return now + lost, lost / np.sum(descent.decay ** np.arange(length))


# ------------------------------------------------------------------ update


@np.errstate(over="ignore", invalid="ignore")
def update_projected(descent: Descent, kept: Projected, touches: Touches) -> Updated:
    """Return the change of the parameters (method ``delta`` on kind ``projected``).

    It may overflow where ``update_averaged`` may.
    """
    basis, blocks = kept.basis, kept.blocks
    starts = np.zeros((blocks.count + 1, touches.parameters))
    if not len(touches.when):
        return Updated(starts[-1], starts)
    begin = int(touches.when[0]) // blocks.length
    ats, traces, visits, pushes = [], [], [], []
    for block in range(begin, blocks.count):
        first, last = blocks.span(block)
        touched = touches.block(first, last)
        gradients = basis.inside(touched.trace.gradients)
        ats.append(touched.at + first)
        traces.append(Trace(gradients, gradients, touched.trace.live))
        visits.append(basis.visits(touched.visits))
        pushes.append(_pushes(descent, touched, last - first))
    inner = update_averaged(
        descent, _joined(traces), kept, _all(touches.when, visits), np.concatenate(ats)
    )
    starts += basis.whole(inner.starts)
    outside = np.zeros(touches.parameters)
    for block, pushed in enumerate(pushes, begin):
        first, last = blocks.span(block)
        eigen = kept.eigen(block)
        outside, _ = _through(descent, basis, eigen, outside, pushed, last - first)
        starts[block + 1] += outside
    return Updated(starts[-1], starts)


def _joined(traces: list[Trace]) -> Trace:
    parts = zip(*((t.trajectory, t.gradients, t.live) for t in traces), strict=True)
    return Trace(*(np.concatenate(part) for part in parts))


def _all(when: NDArray[np.int64], visits: list[Visits]) -> Visits:
    parts = zip(*((v.rows, v.coefficients, v.curvature) for v in visits), strict=True)
    return Visits(when, *(np.concatenate(part) for part in parts))


# ------------------------------------------------------------------ rebase


def rebase_projected_block(
    descent: Descent,
    trace: Trace,
    basis: Basis,
    eigen: tuple[NDArray[Real], NDArray[Real]],
    visits: Visits,
    start: NDArray[np.float64],
) -> RebasedMean:
    """Return a block without the deleted rows, as ``update.rebase_block`` does.

    G' is G less the deleted rows' gradients and C' u: in the basis as the averaged curvature's own
    steps have it, outside as the drift.
    """
    basis, length = basis.wide(), len(trace.live)
    still = np.zeros((length, basis.rank * (trace.trajectory.shape[1] // len(basis.vectors))))
    inner = rebase_averaged_block(
        descent,
        Trace(still, basis.inside(trace.gradients), trace.live),
        eigen,
        basis.visits(visits),
        basis.inside(start),
    )
    touched = TracedTouches(trace, visits).block(0, length)
    pushes = _pushes(descent, touched, length)
    outside = basis.outside(start)
    _, drift = _through(descent, basis, eigen, outside, pushes, length)
    lost, left = _lost(touched, length), inner.trace.live
    history = _history(descent, basis, touched, lost, outside, drift)
    history += basis.whole(inner.trace.trajectory)
    remaining = trace.gradients - lost
    remaining += basis.whole(inner.trace.gradients - basis.inside(remaining))
    remaining += (left / descent.learning_rate)[:, np.newaxis] * drift
    remaining[left == 0] = 0.0
    return RebasedMean(Trace(trace.trajectory + history, remaining, left), inner.eigen)


def _lost(touched: Touched, length: int) -> NDArray[np.float64]:
    """(length, P): the deleted rows' gradients in each iteration."""
    visits = touched.visits
    found = np.zeros((length, touched.trace.gradients.shape[1]))
    edges = np.searchsorted(visits.iteration, np.append(touched.at, length))
    for t, a, b in zip(touched.at, edges[:-1], edges[1:], strict=True):
        add_gradients(visits.rows[a:b], visits.coefficients[a:b], found[t])
    return found


def _history(
    descent: Descent,
    basis: Basis,
    touched: Touched,
    lost: NDArray[np.float64],
    start: NDArray[np.float64],
    drift: NDArray[np.float64],
) -> NDArray[np.float64]:
    """u_perp (n, P) before each iteration of a block; lost: the deleted rows' gradients there."""
    rates = _Rates.of(descent, touched)
    forcing = (rates.new - rates.old)[:, np.newaxis] * touched.trace.gradients
    forcing -= rates.new[:, np.newaxis] * lost[touched.at]
    forced = dict(zip(touched.at.tolist(), basis.outside(forcing), strict=True))
    found = np.empty_like(lost)
    u = start
    for t in range(len(found)):
        found[t] = u
        u = descent.decay * u + drift
        if t in forced:
            u += forced[t]
    return found
