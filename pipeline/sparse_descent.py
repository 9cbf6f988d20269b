"""Mini-batch descent of a binary logistic model on sparse rows: training and BaseL are this code.

    w_{t+1} = (1 - eta lambda) w_t + (eta / b_t) sum of c_i x_i,    c_i = y_i f(y_i w_t . x_i)

w is kept as scale times v, so that weight decay costs one product an iteration and a step touches the
columns of its rows alone. What training records is c_i, one number a visit: it gives the gradient
back, and the curvature |c| (1 - |c|), without w_t. A step takes c_i as it is recorded, in float32: so
the record tells the trajectory to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .descent import DivergedError
from .losses import falling

LIMIT = 1e100
"""A parameter beyond this means that the descent diverges: its square, times that of any float32, is
still finite. Rows come as they are, so no smaller one tells."""
LEAST_SCALE = 1e-60
"""Below this the scale is multiplied into v."""
ROUNDING = 2.0**-25
"""By how much a coefficient near 1, kept as a float32, may be wrong."""
FARTHEST = 700.0
"""A score that moves farther counts as moving so far: its exponential is finite."""


@dataclass(frozen=True, slots=True)
class SparseStep:
    """Hyper-parameters of a descent; ValueError unless the decay is positive."""

    rate: float
    """eta"""
    l2: float
    """lambda"""

    def __post_init__(self) -> None:
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(
                f"learning_rate times l2 is {self.rate * self.l2:.4g}; it must lie in [0, 1)"
            )

    @property
    def decay(self) -> float:
        """1 - eta lambda"""
        return 1.0 - self.rate * self.l2


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of some slots, with holes: what mini-batches are taken from."""

    values: NDArray[np.float32]
    columns: NDArray[np.int32]
    """(entries,) below the number of features."""
    pointers: NDArray[np.int64]
    """(slots + 1,) slot s has the entries pointers[s] to pointers[s + 1]."""
    labels: NDArray[np.float64]
    """(slots,) -1 or +1."""

    @property
    def entries(self) -> tuple[NDArray[np.float32], NDArray[np.uint32], NDArray[np.uint64]]:
        """(values, columns, pointers) for compiled loops, which take unsigned numbers faster."""
        return self.values, self.columns.view(np.uint32), self.pointers.view(np.uint64)


@dataclass(frozen=True, slots=True)
class SparseWindow:
    """Rows in the order in which consecutive mini-batches take them."""

    rows: SlotRows
    order: NDArray[np.int64]
    """(n,) the slots of the live rows visited."""
    edges: NDArray[np.int64]
    """(k + 1,) where each of k consecutive iterations' rows begin and end in ``order``."""
    closed: bool
    """Whether the last piece ends its iteration; else the next window goes on with it."""


FAST = {"reassoc", "contract", "nsz"}
"""Sums over a row's entries may be added in any order."""


@njit(cache=True, inline="always", fastmath=FAST)
def row_dot(w, values, columns, first, last):  # type: ignore[no-untyped-def]
    """Return the sum of the entries' values times w at their columns."""
    total = 0.0
    for e in range(first, last):
        total += w[columns[e]] * values[e]
    return total


@njit(cache=True, inline="always", fastmath=FAST)
def add_row(w, factor, values, columns, first, last):  # type: ignore[no-untyped-def]
    """Add factor times the entries' values to w at their columns."""
    for e in range(first, last):
        w[columns[e]] += factor * values[e]


@njit(cache=True, nogil=True, fastmath=FAST)
def _descend(  # type: ignore[no-untyped-def]
    rate,
    decay,
    v,
    scale,
    values,
    columns,
    pointers,
    labels,
    order,
    edges,
    closed,
    pending,
    count,
    c,
):
    """Run a window's iterations in place; c (slots,) gets the coefficients of the slots visited.

    v (m + 1,): the bias is last. scale, count (1,): the factor of v, and the rows of an open mini-batch,
    whose sum of c_i x_i so far is pending (m + 1,).
    """
    bias = len(v) - 1
    pieces = len(edges) - 1
    for k in range(pieces):
        start, stop = edges[k], edges[k + 1]
        total = 0.0
        for i in range(start, stop):
            s = order[i]
            z = row_dot(v, values, columns, pointers[s], pointers[s + 1]) + v[bias]
            c[s] = labels[s] * falling(labels[s] * (scale[0] * z))
            total += c[s]
        if k + 1 == pieces and not closed:
            for i in range(start, stop):
                s = order[i]
                add_row(pending, c[s], values, columns, pointers[s], pointers[s + 1])
            pending[bias] += total
            count[0] += stop - start
            return
        rows = count[0] + stop - start
        scale[0] *= decay
        if rows:
            factor = rate / rows / scale[0]
            for i in range(start, stop):
                s = order[i]
                add_row(v, factor * c[s], values, columns, pointers[s], pointers[s + 1])
            v[bias] += factor * total
            if count[0]:
                v += factor * pending
                pending[:] = 0.0
                count[0] = 0
        if scale[0] < LEAST_SCALE:
            v *= scale[0]
            scale[0] = 1.0


class SparseDescender:
    """A descent in progress: takes windows in order."""

    def __init__(self, step: SparseStep, w: NDArray[np.float64]) -> None:
        """w: (m + 1,) where to begin, the bias last."""
        self._step = step
        self._v = w.copy()
        self._scale = np.ones(1)
        self._pending = np.zeros_like(w)
        self._count = np.zeros(1, np.int64)
        self._done = 0
        """Iterations."""

    def take(self, window: SparseWindow, c: NDArray[np.floating]) -> None:
        """Run the iterations that a window completes; c (slots,) gets what was visited.

        DivergedError names the last of them where parameters are beyond LIMIT, or no numbers, after it.
        """
        _descend(
            self._step.rate,
            self._step.decay,
            self._v,
            self._scale,
            *window.rows.entries,
            window.rows.labels,
            window.order,
            window.edges,
            window.closed,
            self._pending,
            self._count,
            c,
        )
        self._done += len(window.edges) - 1 - (not window.closed)
        if not np.abs(self._v).max() * self._scale[0] <= LIMIT:
            raise DivergedError(self._done - 1)

    @property
    def w(self) -> NDArray[np.float64]:
        """(m + 1,) the parameters after the last whole iteration."""
        found: NDArray[np.float64] = self._scale[0] * self._v
        return found
