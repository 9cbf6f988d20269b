"""Deleting rows from a sparse logistic model: BaseL's steps in difference form, features lazily.

With u_t = w'_t - w_t, c_i the recorded coefficients and primes for "less the deleted rows":

    u_{t+1} = (1 - eta lambda) u_t + (eta / b'_t) sum' c'_i x_i - (eta / b_t) sum c_i x_i

c'_i follows from c_i and x_i . u_t exactly: with f = |c_i|, it is +-f / (f + (1 - f) e^(+-x_i . u_t)),
so nothing is linearised and w_t is not needed. What an iteration adds to u is a number a row times
that row. The bias, which every row feels at once, is kept up to date at each iteration. The features,
each of which few rows have, are brought up to date every few epochs: until then each row owes its
number, and x_i . u_t of the features is what the row itself owes, times its squared norm, plus what the
others add, along the line through the last two times. So an iteration reads no row, and all rows are
read once in some epochs instead of once in each.

The estimate comes from the lines' errors, each seen at its line's end. What a row owes wrongly adds up,
with its sign, while the row's own curvature takes it back by and by; rows count as orthogonal. The bias
forgets within some iterations, so that the last errors, which all rows' visits share, are what it has.
A curvature is that at the score as the line has it, times e^|error|, and 1/4 at most: so it is never
below the logistic function's greatest slope between that score and the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .sparse_descent import (
    FARTHEST,
    FAST,
    LEAST_SCALE,
    ROUNDING,
    SlotRows,
    SparseStep,
    add_row,
    row_dot,
)

LEAST_EPOCHS, MOST_EPOCHS = 1, 8
"""Epochs between two updates of the features."""
GOOD, POOR = 0.05, 0.2
"""The line's error, as a share of what it predicts, below which the epochs are doubled and above
which they are halved."""
BIAS_SHARE = 0.6
"""What the bias has of the rows' mean error at a line's end, about: the line erred less before."""
_FELT, _SLOPE, _OWED, _CURVED, _VISITED, _ROUNDED, _SQUARE = range(7)


class SparseVisits(Protocol):
    """A training's visits, and the rows that it saw."""

    @property
    def epochs(self) -> int:
        """How many epochs there are; the last one may be cut short."""
        ...

    def epoch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (slots visited (n,), edges (iterations + 1,)) of an epoch, as it was trained."""
        ...

    def pieces(self) -> Iterator[tuple[int, SlotRows]]:
        """Yield all rows, deleted ones too: (the number of the first slot, rows)."""
        ...


@dataclass(frozen=True, slots=True)
class SparseUpdated:
    """The outcome of an update."""

    change: NDArray[np.float64]
    """(m + 1,) w' - w at the end, the bias last."""
    estimate: float
    """Of the distance to BaseL; it comes from the features' lag."""
    readings: int
    """How often all rows were read."""


@njit(cache=True, nogil=True, fastmath=FAST)
def _run_epoch(rate, decay, order, edges, stays, c, changed, state, since, u):  # type: ignore[no-untyped-def]
    """Take the bias through an epoch; rows owe their parts of the features' change.

    u (2,): the bias's change over the scale, and the scale. state (slots, 7), over the scale: x_i . u of
    the features ``since`` iterations ago, its growth an iteration by the other rows, and the number
    owed; besides, the curvature of the visits, what it can be at most times four, how wrong c' may be
    since c is rounded, and x_i . x_i. changed (slots,) gets c'.
    """
    for k in range(len(edges) - 1):
        first, last = edges[k], edges[k + 1]
        lost = 0
        for i in range(first, last):
            lost += not stays[order[i]]
        rows = last - first
        old = rate / rows if rows else 0.0
        new = rate / (rows - lost) if rows > lost else 0.0
        scale = u[1]
        u[1] *= decay
        later = 1.0 / u[1]
        elapsed = float(since + k)
        total = 0.0
        for i in range(first, last):
            s = order[i]
            before = float(c[s])
            if stays[s]:
                own = state[s, _SQUARE] * state[s, _OWED]
                moved = scale * (state[s, _FELT] + state[s, _SLOPE] * elapsed + own + u[0])
                f = abs(before)
                sign = 1.0 if before > 0.0 else -1.0
                power = min(max(sign * moved, -FARTHEST), FARTHEST)
                grown = exp(power)
                after = f / (f + (1.0 - f) * grown)
                changed[s] = sign * after
                step = (new * sign * after - old * before) * later
                state[s, _CURVED] += new * max(after * (1.0 - after), ROUNDING)
                state[s, _VISITED] += new
                state[s, _ROUNDED] += new * min(ROUNDING * max(grown - 1.0, 0.0), 1.0)
            else:
                changed[s] = 0.0
                step = -old * before * later
            state[s, _OWED] += step
            total += step
        u[0] += total


@njit(cache=True, nogil=True, fastmath=FAST)
def _pay(values, columns, pointers, state, features):  # type: ignore[no-untyped-def]
    """Add what some slots owe to the features (m,) of u over its scale; they feel it themselves."""
    for s in range(len(state)):
        if state[s, _OWED] != 0.0:
            add_row(features, state[s, _OWED], values, columns, pointers[s], pointers[s + 1])
            state[s, _FELT] += state[s, _SQUARE] * state[s, _OWED]
            state[s, _OWED] = 0.0


@njit(cache=True, nogil=True, fastmath=FAST)
def _measure(values, pointers, state):  # type: ignore[no-untyped-def]
    """Find the rows' squared norms."""
    for s in range(len(state)):
        total = 0.0
        for e in range(pointers[s], pointers[s + 1]):
            total += values[e] * values[e]
        state[s, _SQUARE] = total


@njit(cache=True, nogil=True, fastmath=FAST)
def _feel(values, columns, pointers, stays, state, features, scale, elapsed, wrong):  # type: ignore[no-untyped-def]
    """Take x_i . u of the features (m,), over the scale, anew, and draw a new line.

    wrong (slots,), over the scale: what the lines' errors made rows owe. Returns the sums of squares of
    the errors and of the lines' ends, of the rows' curvatures, and of these times errors.
    """
    missed, size, curvature, common = 0.0, 0.0, 0.0, 0.0
    for s in range(len(state)):
        if stays[s]:
            found = row_dot(features, values, columns, pointers[s], pointers[s + 1])
            error = found - state[s, _FELT] - state[s, _SLOPE] * elapsed
            grown = exp(min(abs(scale * error), FARTHEST))
            curved = min(0.25 * state[s, _VISITED], state[s, _CURVED] * grown)
            wrong[s] *= exp(-state[s, _CURVED] / grown * state[s, _SQUARE])
            rounded = state[s, _ROUNDED] / scale
            wrong[s] += curved * error
            wrong[s] += rounded if wrong[s] > 0.0 else -rounded
            missed += error * error
            size += found * found
            curvature += curved
            common += curved * error
            state[s, _SLOPE] = (found - state[s, _FELT]) / elapsed
            state[s, _FELT] = found
            state[s, _CURVED] = 0.0
            state[s, _VISITED] = 0.0
            state[s, _ROUNDED] = 0.0
    return missed, size, curvature, common


class _Features:
    """The features of u, over its scale, and what the rows owe and feel."""

    def __init__(self, visits: SparseVisits, stays: NDArray[np.bool_], features: int) -> None:
        self.state = np.zeros((len(stays), 7))
        self.values = np.zeros(features)
        self.readings = 0
        self._visits, self._stays = visits, stays
        self._wrong = np.zeros(len(stays))
        self._bias = 0.0
        """Over the scale squared: the mean square of the bias's last errors."""

    def pay(self) -> None:
        """Let all rows pay what they owe."""
        for first, rows in self._visits.pieces():
            state = self.state[first : first + len(rows.labels)]
            if not self.readings:
                values, _, pointers = rows.entries
                _measure(values, pointers, state)
            _pay(*rows.entries, state, self.values)
        self.readings += 1

    def feel(self, scale: float, elapsed: int) -> float:
        """Let all rows feel the features anew; return the lines' error as a share."""
        sums = np.zeros(4)
        for first, rows in self._visits.pieces():
            here = slice(first, first + len(rows.labels))
            state, stays, wrong = self.state[here], self._stays[here], self._wrong[here]
            sums += _feel(*rows.entries, stays, state, self.values, scale, float(elapsed), wrong)
        missed, size, curvature, common = sums
        self.readings += 1
        bias = BIAS_SHARE * common / curvature if curvature else 0.0
        self._bias = (self._bias + bias * bias) / 2.0
        return float(np.sqrt(missed / size)) if size else 0.0

    def rescale(self, u: NDArray[np.float64]) -> None:
        """Multiply the scale u[1] into all that is over it, once it is small."""
        if u[1] < LEAST_SCALE:
            for array in (self.values, self.state[:, : _OWED + 1], self._wrong, u[:1]):
                array *= u[1]
            self._bias *= u[1] * u[1]
            u[1] = 1.0

    def error(self) -> float:
        """Return the size of what the lines' errors made, over the scale."""
        features = float(self._wrong**2 @ self.state[:, _SQUARE])
        return float(np.sqrt(features + self._bias))


@np.errstate(over="ignore", invalid="ignore")
def update_sparse(
    step: SparseStep,
    visits: SparseVisits,
    stays: NDArray[np.bool_],
    features: int,
    coefficients: Callable[[int], NDArray[np.float32]],
    keep: Callable[[int, NDArray[np.float32]], None],
) -> SparseUpdated:
    """Return the change of the parameters that deleting rows makes.

    stays (slots,): False for the deleted rows. coefficients gives an epoch's c (slots,), 0 where a
    slot was not visited; keep takes an epoch's c', from which the next update starts. Where numbers
    overflow, the estimate is infinite or no number.
    """
    lazy = _Features(visits, stays, features)
    u = np.array([0.0, 1.0])
    epochs, elapsed, waited = LEAST_EPOCHS, 0, 0
    stretch = _iterations(step.decay)
    for number in range(visits.epochs):
        order, edges = visits.epoch(number)
        c = coefficients(number)
        changed = np.zeros_like(c)
        for a in range(0, len(edges) - 1, stretch):
            part = edges[a : a + stretch + 1]
            _run_epoch(
                step.rate, step.decay, order, part, stays, c, changed, lazy.state, elapsed, u
            )
            lazy.rescale(u)
            elapsed += len(part) - 1
        keep(number, changed)
        waited += 1
        if waited >= epochs or number == visits.epochs - 1:
            lazy.pay()
            error = lazy.feel(float(u[1]), elapsed)
            epochs = _next_wait(epochs, error)
            elapsed = waited = 0
    change = u[1] * np.r_[lazy.values, u[0]]
    return SparseUpdated(change, float(u[1]) * lazy.error(), lazy.readings)


def _iterations(decay: float) -> int:
    """Over how many iterations the decay's power can be a divisor."""
    return 1 << 30 if decay == 1.0 else max(1, int(log(LEAST_SCALE) / log(decay)))


def _next_wait(epochs: int, error: float) -> int:
    """How many epochs the features may wait next, after a line has erred by a share."""
    if error > POOR:
        return max(LEAST_EPOCHS, epochs // 2)
    return min(MOST_EPOCHS, 2 * epochs) if error < GOOD else epochs
