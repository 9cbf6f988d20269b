"""Mini-batch gradient descent with L2 (PrIU, equations 5 and 6): training and BaseL are this code.

    w_{t+1} = (1 - eta lambda) w_t + (eta / b_t) G_t,    G_t = sum of the mini-batch's g_i(w_t)

Rows come in windows; a mini-batch may stretch over several. A mini-batch without live rows takes
the weight-decay step alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .losses import Loss, coefficients, dot, falling

_LINEAR, _SOFTMAX = int(Loss.LINEAR), int(Loss.SOFTMAX)
LIMIT = 1e10
"""A parameter beyond this means that the descent diverges; for linear models, times the largest label
met so far where that is above 1."""
FUSED_WIDTH = 1024
"""Design matrices up to this width take the fused loop, wider ones take BLAS."""


class DivergedError(ArithmeticError):
    """The parameters grew without bound."""

    def __init__(self, iteration: int) -> None:
        super().__init__(
            f"training diverged at iteration {iteration}: choose a smaller learning rate"
        )
        self.iteration = iteration


@dataclass(frozen=True, slots=True)
class Window:
    """Live rows in the order in which consecutive mini-batches take them."""

    rows: NDArray[np.float64]
    """(n, m) of the design matrix."""
    labels: NDArray[np.float64]
    """(n,) y, +-1 or the class's number."""
    edges: NDArray[np.int64]
    """(k + 1,) where each of k consecutive iterations' rows begin and end."""
    first: int
    """The iteration of the first piece."""
    closed: bool
    """Whether the last piece ends its iteration; else the next window goes on with it."""

    def shifted(self, by: int) -> Window:
        """Return the window with iterations counted from ``by``."""
        return Window(self.rows, self.labels, self.edges, self.first - by, self.closed)


@dataclass(frozen=True, slots=True)
class Descent:
    """Hyper-parameters of a descent."""

    loss: Loss
    learning_rate: float
    l2: float

    @property
    def decay(self) -> float:
        """1 - eta lambda."""
        return 1.0 - self.learning_rate * self.l2


@dataclass(frozen=True, slots=True)
class Trace:
    """What training records: the state before each iteration, its gradient sum and rows."""

    trajectory: NDArray[np.float64]
    """(iterations, P) w_t."""
    gradients: NDArray[np.float64]
    """(iterations, P) G_t."""
    live: NDArray[np.int64]
    """(iterations,) b_t."""

    @classmethod
    def empty(cls, iterations: int, parameters: int) -> Trace:
        """Room for a trace."""
        return cls(
            np.zeros((iterations, parameters)),
            np.zeros((iterations, parameters)),
            np.zeros(iterations, np.int64),
        )

    def part(self, first: int, last: int) -> Trace:
        """Return the iterations first <= t < last, shared."""
        return Trace(self.trajectory[first:last], self.gradients[first:last], self.live[first:last])


@njit(cache=True, inline="always")
def _coefficient(loss, score, label):  # type: ignore[no-untyped-def]
    if loss == _LINEAR:
        return 2.0 * (label - score)
    return label * falling(label * score)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _add_fused(loss, w, rows, labels, start, stop, gradient):  # type: ignore[no-untyped-def]
    """Add the rows' negative gradients in one pass, four rows at a time; q = 1."""
    m = rows.shape[1]
    weights, total = w[0], gradient[0]
    whole = start + (stop - start) // 4 * 4
    for i in range(start, whole, 4):
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for j in range(m):
            s0 += weights[j] * rows[i, j]
            s1 += weights[j] * rows[i + 1, j]
            s2 += weights[j] * rows[i + 2, j]
            s3 += weights[j] * rows[i + 3, j]
        c0 = _coefficient(loss, s0, labels[i])
        c1 = _coefficient(loss, s1, labels[i + 1])
        c2 = _coefficient(loss, s2, labels[i + 2])
        c3 = _coefficient(loss, s3, labels[i + 3])
        for j in range(m):
            total[j] += (c0 * rows[i, j] + c1 * rows[i + 1, j]) + (
                c2 * rows[i + 2, j] + c3 * rows[i + 3, j]
            )
    for i in range(whole, stop):
        c = _coefficient(loss, dot(weights, rows[i]), labels[i])
        for j in range(m):
            total[j] += c * rows[i, j]


@njit(cache=True)
def _add_blas(loss, w, rows, labels, start, stop, gradient):  # type: ignore[no-untyped-def]
    """Add the rows' negative gradients by two matrix products."""
    part = rows[start:stop]
    scores = np.dot(part, w.T)
    c = np.empty(w.shape[0])
    for i in range(stop - start):
        coefficients(loss, scores[i], labels[start + i], c)
        scores[i] = c
    gradient += np.dot(scores.T, part)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _add_fused_softmax(w, rows, labels, start, stop, gradient):  # type: ignore[no-untyped-def]
    """Add the rows' negative gradients in one pass, four rows at a time."""
    q, m = w.shape
    c = np.empty((q, 4))
    whole = start + (stop - start) // 4 * 4
    for i in range(start, whole, 4):
        for k in range(q):
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            for j in range(m):
                s0 += w[k, j] * rows[i, j]
                s1 += w[k, j] * rows[i + 1, j]
                s2 += w[k, j] * rows[i + 2, j]
                s3 += w[k, j] * rows[i + 3, j]
            c[k, 0], c[k, 1], c[k, 2], c[k, 3] = s0, s1, s2, s3
        for r in range(4):
            top = c[0, r]
            for k in range(1, q):
                top = max(top, c[k, r])
            total = 0.0
            for k in range(q):
                c[k, r] = exp(c[k, r] - top)
                total += c[k, r]
            factor = -1.0 / total
            for k in range(q):
                c[k, r] *= factor
            c[int(labels[i + r]), r] += 1.0
        for k in range(q):
            c0, c1, c2, c3 = c[k, 0], c[k, 1], c[k, 2], c[k, 3]
            for j in range(m):
                gradient[k, j] += (c0 * rows[i, j] + c1 * rows[i + 1, j]) + (
                    c2 * rows[i + 2, j] + c3 * rows[i + 3, j]
                )
    if whole < stop:
        _add_blas(_SOFTMAX, w, rows, labels, whole, stop, gradient)


@njit(cache=True, nogil=True)
def _descend(  # type: ignore[no-untyped-def]
    loss,
    fused,
    rate,
    decay,
    w,
    rows,
    labels,
    edges,
    first,
    closed,
    gradient,
    count,
    trajectory,
    gradients,
    live,
    limit,
):
    """Run a window's iterations; return the iteration that diverged, or -1."""
    pieces = len(edges) - 1
    for k in range(pieces):
        start, stop = edges[k], edges[k + 1]
        if stop > start:
            if fused and loss == _SOFTMAX:
                _add_fused_softmax(w, rows, labels, start, stop, gradient)
            elif fused:
                _add_fused(loss, w, rows, labels, start, stop, gradient)
            else:
                _add_blas(loss, w, rows, labels, start, stop, gradient)
            count[0] += stop - start
        if k + 1 < pieces or closed:
            t = first + k
            if len(live):
                trajectory[t] = w.ravel()
                gradients[t] = gradient.ravel()
                live[t] = count[0]
            factor = rate / count[0] if count[0] else 0.0
            bounded = True
            for i in range(w.shape[0]):
                for j in range(w.shape[1]):
                    w[i, j] = decay * w[i, j] + factor * gradient[i, j]
                    gradient[i, j] = 0.0
                    bounded = bounded and abs(w[i, j]) < limit
            count[0] = 0
            if not bounded:
                return t
    return -1


class Descender:
    """A descent in progress: takes windows in order, holds w (q, m) and an open mini-batch's sums."""

    def __init__(
        self,
        descent: Descent,
        w: NDArray[np.float64],
        trace: Trace | None = None,
        fused: bool | None = None,
    ) -> None:
        """w: (q, m) where to begin, overwritten. fused: which gradient; by shape if None."""
        self.w = w
        self._descent = descent
        self._trace = Trace.empty(0, w.size) if trace is None else trace
        self._fused = w.shape[1] <= FUSED_WIDTH if fused is None else fused
        self._gradient = np.zeros_like(w)
        self._count = np.zeros(1, np.int64)
        self._limit = LIMIT

    def take(self, window: Window) -> None:
        """Run the iterations that a window completes; DivergedError names the one that diverges."""
        trace, descent = self._trace, self._descent
        if descent.loss == Loss.LINEAR and len(window.labels):
            self._limit = max(self._limit, LIMIT * float(np.abs(window.labels).max()))
        diverged = _descend(
            int(descent.loss),
            self._fused,
            descent.learning_rate,
            descent.decay,
            self.w,
            window.rows,
            window.labels,
            window.edges,
            window.first,
            window.closed,
            self._gradient,
            self._count,
            trace.trajectory,
            trace.gradients,
            trace.live,
            self._limit,
        )
        if diverged >= 0:
            raise DivergedError(int(diverged))


def descend(
    descent: Descent,
    w: NDArray[np.float64],
    windows: Iterable[Window],
    trace: Trace | None = None,
    fused: bool | None = None,
) -> NDArray[np.float64]:
    """Return the parameters (q, m) after all windows, from a copy of w; BaseL where rows are fewer."""
    descender = Descender(descent, w.copy(), trace, fused)
    for window in windows:
        descender.take(window)
    return descender.w
