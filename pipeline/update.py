"""PrIU in difference form with exact curvature: the parameters without the deleted rows.

With u_t = w'_t - w_t and primes for "less the deleted rows" (PrIU, equations 13 and 19, rearranged):

    u_{t+1} = (1 - eta lambda) u_t + (eta / b'_t) (G'_t - C'_t u_t) - (eta / b_t) G_t

The curvature multiplies the small u, not w, and the forcing is exact. An iteration that loses no row
is a linear map of u, so a block without visits is one product. A mini-batch that loses all its rows
takes the weight-decay step alone, as BaseL does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .descent import LIMIT, Descent, Trace
from .losses import Loss
from .provenance import Exact, Real, add_curvature, pack, packed_times
from .visits import Visits, add_curved, add_gradients

NONE = np.empty((0, 0))
FEW_ROWS = 4
"""An iteration that loses more rows takes them out of its curvature by matrix products."""


@dataclass(frozen=True, slots=True)
class Updated:
    """The outcome of an update."""

    change: NDArray[np.float64]
    """(P,) w' - w at the end."""
    starts: NDArray[np.float64]
    """(blocks + 1, P) u at each block's first iteration, and at the end."""


def strays(updated: Updated, w: NDArray[np.float64], exactly: bool) -> str | None:
    """Why an update can't be what a retrain gives; None where it may be.

    exactly: a linear model with exact curvature, where nothing was linearised. Elsewhere the
    expansion around the old trajectory holds for changes that are small against w.
    """
    if not np.abs(updated.starts).max() < LIMIT:
        return "the update does not converge on the rows left"
    farthest = float(np.linalg.norm(updated.starts, axis=1).max())
    if farthest > float(np.linalg.norm(w)) and not exactly:
        return "the update moves the parameters by more than their own size"
    return None


@dataclass(frozen=True, slots=True)
class RebasedBlock:
    """A block of the next version: nothing in it depends on the deleted rows' own terms."""

    trace: Trace
    packed: NDArray[Real]
    """C'_t"""


@njit(cache=True, nogil=True)
def step_through(  # type: ignore[no-untyped-def]
    loss,
    rate,
    decay,
    packed,
    live,
    gradients,
    edges,
    rows,
    coefficients,
    curvature,
    u,
    history,
    remaining,
):
    """Take u (P,) through consecutive iterations, in place.

    edges (n + 1,): which visits each iteration has. history (n, P) gets u before each iteration,
    remaining (n, P) gets G' - C' u, where they have room.
    """
    cu, lost = np.empty(len(u)), np.empty(len(u))
    moving = bool(np.any(u != 0.0))
    for t in range(len(live)):
        first, last = edges[t], edges[t + 1]
        before, after = live[t], live[t] - (last - first)
        moving = moving or last > first
        if len(history):
            history[t] = u
        if not moving:
            if len(remaining):
                remaining[t] = gradients[t]
            continue
        packed_times(packed[t], u, cu)
        if after == 0:
            factor = rate / before if before else 0.0
            for j in range(len(u)):
                u[j] = decay * u[j] - factor * gradients[t, j]
            if len(remaining):
                remaining[t] = 0.0
        elif last == first:
            factor = rate / before
            for j in range(len(u)):
                u[j] = decay * u[j] - factor * cu[j]
            if len(remaining):
                remaining[t] = gradients[t] - cu
        else:
            add_curved(loss, rows[first:last], curvature[first:last], u, -1.0, cu)
            lost[:] = 0.0
            add_gradients(rows[first:last], coefficients[first:last], lost)
            old, new = rate / before, rate / after
            for j in range(len(u)):
                left = gradients[t, j] - lost[j] - cu[j]
                u[j] = decay * u[j] + new * left - old * gradients[t, j]
                if len(remaining):
                    remaining[t, j] = left


def update(descent: Descent, trace: Trace, exact: Exact, visits: Visits) -> Updated:
    """Return the change of the parameters that deleting the visits' rows makes (method ``delta``).

    Reads the curvature of the blocks that have visits, and the products of the others.
    """
    blocks = exact.blocks
    size = trace.trajectory.shape[1]
    starts = np.zeros((blocks.count + 1, size))
    u = np.zeros(size)
    for first, last, touched in _runs(exact, visits):
        product = None if touched else exact.product(first)
        if product is None:
            a, b = blocks.span(first)[0], blocks.span(last - 1)[1]
            history = np.empty((b - a, size)) if last - first > 1 else NONE
            _step(descent, trace, exact.packed(first, last), visits, a, b, u, history, NONE)
            if last - first > 1:
                starts[first + 1 : last] = history[blocks.length :: blocks.length]
        else:
            u = product @ u
        starts[last] = u
    return Updated(u, starts)


def _runs(exact: Exact, visits: Visits) -> Iterator[tuple[int, int, bool]]:
    """Yield (first block, one after the last, touched) from the first visit on."""
    if not len(visits.iteration):
        return
    count = exact.blocks.count
    touched = np.zeros(count + 1, np.bool_)
    touched[visits.iteration // exact.blocks.length] = True
    block = int(visits.iteration[0]) // exact.blocks.length
    while block < count:
        last = block + 1
        while touched[block] and touched[last] and last - block < exact.longest_run:
            last += 1
        yield block, last, bool(touched[block])
        block = last


def _step(
    descent: Descent,
    trace: Trace,
    packed: NDArray[Real],
    visits: Visits,
    first: int,
    last: int,
    u: NDArray[np.float64],
    history: NDArray[np.float64],
    remaining: NDArray[np.float64],
) -> None:
    """``step_through`` the iterations first <= t < last of a trace."""
    own = visits.between(first, last)
    step_through(
        int(descent.loss),
        descent.learning_rate,
        descent.decay,
        packed,
        trace.live[first:last],
        trace.gradients[first:last],
        np.searchsorted(own.iteration, np.arange(first, last + 1)),
        own.rows,
        own.coefficients,
        own.curvature,
        u,
        history,
        remaining,
    )


def rebase_block(
    descent: Descent,
    trace: Trace,
    packed: NDArray[Real],
    visits: Visits,
    start: NDArray[np.float64],
) -> RebasedBlock:
    """Return a block without the deleted rows: w + u, G' - C' u, C' and b'.

    trace: the block's own part. visits: the block's, with iterations counted from its first.
    start: (P,) u at its first iteration. Later deletions then add up: after R1 and R2 the parameters
    are those of their union to third order (exactly, for linear models).
    """
    length, size = trace.trajectory.shape
    history, remaining = np.empty((length, size)), np.empty((length, size))
    _step(descent, trace, packed, visits, 0, length, start.copy(), history, remaining)
    left = trace.live - visits.counts(0, length)
    fewer = packed.copy()
    _take_out(descent.loss, visits, left, fewer)
    return RebasedBlock(Trace(trace.trajectory + history, remaining, left), fewer)


def _take_out(loss: Loss, visits: Visits, live: NDArray[np.int64], packed: NDArray[Real]) -> None:
    """Take the visits' Hessians out of the packed curvature, in place; none left is exactly zero."""
    at, firsts, counts = np.unique(visits.iteration, return_index=True, return_counts=True)
    size = visits.rows.shape[1] * visits.curvature.shape[1]
    lost = np.empty(packed.shape[1], packed.dtype)
    for t, first, count in zip(at, firsts, counts, strict=True):
        rows, curved = (part[first : first + count] for part in (visits.rows, visits.curvature))
        if live[t] == 0:
            packed[t] = 0.0
        elif count <= FEW_ROWS:
            _subtract(int(loss), rows, curved, packed[t])
        else:
            total = np.zeros((size, size), packed.dtype, order="F")
            add_curvature(total, loss, rows, curved)
            pack(total, lost)
            packed[t] -= lost


@njit(cache=True, nogil=True)
def _subtract(loss, rows, curvature, packed):  # type: ignore[no-untyped-def]
    """Take the rows' Hessians out of the packed curvature of one iteration, in place."""
    m, q = rows.shape[1], curvature.shape[1]
    for v in range(len(rows)):
        place = 0
        for a in range(q):
            for i in range(m):
                for b in range(a + 1):
                    if loss == 2:
                        h = -curvature[v, a] * curvature[v, b]
                        if a == b:
                            h += curvature[v, a]
                    else:
                        h = curvature[v, 0]
                    factor = h * rows[v, i]
                    for j in range(m if b < a else i + 1):
                        packed[place + j] -= factor * rows[v, j]
                    place += m if b < a else i + 1


def update_priu(
    descent: Descent, trace: Trace, exact: Exact, visits: Visits, w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the updated parameters by the paper's own form (method ``priu``), from w (P,) on.

    Equations 13 (linear) and 19 (logistic), with the deleted sum inside the factor eta / b':
    w' <- (1 - eta lambda) w' + (eta / b') ((D - dD) - (C - dC) w'). D_t, which the paper stores, is
    G_t + C_t w_t; dD likewise.
    """
    w = w.copy()
    for block in range(exact.blocks.count):
        first, last = exact.blocks.span(block)
        own = visits.between(first, last)
        _priu(
            int(descent.loss),
            descent.learning_rate,
            descent.decay,
            exact.packed(block, block + 1),
            trace.trajectory[first:last],
            trace.gradients[first:last],
            trace.live[first:last],
            np.searchsorted(own.iteration, np.arange(first, last + 1)),
            own.rows,
            own.coefficients,
            own.curvature,
            w,
        )
    return w


@njit(cache=True, nogil=True)
def _priu(  # type: ignore[no-untyped-def]
    loss, rate, decay, packed, trajectory, gradients, live, edges, rows, coefficients, curvature, w
):
    cw, d = np.empty(len(w)), np.empty(len(w))
    for t in range(len(live)):
        first, last = edges[t], edges[t + 1]
        after = live[t] - (last - first)
        if after == 0:
            w *= decay
            continue
        packed_times(packed[t], w, cw)
        packed_times(packed[t], trajectory[t], d)
        d += gradients[t]
        if last > first:
            gone, curved = rows[first:last], curvature[first:last]
            add_curved(loss, gone, curved, w, -1.0, cw)
            add_gradients(gone, -coefficients[first:last], d)
            add_curved(loss, gone, curved, trajectory[t], -1.0, d)
        factor = rate / after
        for j in range(len(w)):
            w[j] = decay * w[j] + factor * (d[j] - cw[j])
