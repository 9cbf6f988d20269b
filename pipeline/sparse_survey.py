"""What is asked of all sparse rows: their largest curvature, and how a model does on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log1p
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .sparse_descent import SlotRows, add_row, row_dot

POWER_STEPS = 30
POWER_TOLERANCE = 1e-3


class SparsePieces(Protocol):
    """Rows that can be read again and again."""

    def pieces(self) -> Iterator[tuple[int, SlotRows]]:
        """Yield all rows: (the number of the first slot, rows)."""
        ...


@dataclass(frozen=True, slots=True)
class Tally:
    """How a model does on some rows."""

    rows: int
    positive: int
    right: int
    loss: float
    """Sum of the rows' losses."""


@njit(cache=True, nogil=True)
def _add_products(values, columns, pointers, chosen, v, out):  # type: ignore[no-untyped-def]
    """Add the sum of x (x . v) over the chosen slots to out (m + 1,); the bias is last."""
    bias = len(v) - 1
    for s in range(len(chosen)):
        if chosen[s]:
            z = row_dot(v, values, columns, pointers[s], pointers[s + 1]) + v[bias]
            add_row(out, z, values, columns, pointers[s], pointers[s + 1])
            out[bias] += z


@njit(cache=True, nogil=True)
def _tally(values, columns, pointers, labels, chosen, w):  # type: ignore[no-untyped-def]
    bias = len(w) - 1
    rows, positive, right, loss = 0, 0, 0, 0.0
    for s in range(len(chosen)):
        if chosen[s]:
            z = row_dot(w, values, columns, pointers[s], pointers[s + 1]) + w[bias]
            own = labels[s] * z
            rows += 1
            positive += labels[s] > 0.0
            right += (z > 0.0) == (labels[s] > 0.0)
            loss += log1p(exp(-abs(own))) + max(-own, 0.0)
    return rows, positive, right, loss


@njit(cache=True, nogil=True)
def _square_sum(values, pointers, factors):  # type: ignore[no-untyped-def]
    """Return the sum of squares of all of some slots' values, each times its row's factor."""
    total = 0.0
    for s in range(len(factors)):
        square = 0.0
        for e in range(pointers[s], pointers[s + 1]):
            square += values[e] * values[e]
        total += factors[s] * factors[s] * square
    return total


def largest_curvature(source: SparsePieces, chosen: NDArray[np.bool_], features: int) -> float:
    """Return the largest eigenvalue of the mean of x x^T, bias included, by power steps.

    chosen: (slots,) the rows that count. The steps begin with the bias, which every row has, and end
    once they change the value by less than a thousandth; it is approached from below.
    """
    v = np.zeros(features + 1)
    v[-1] = 1.0
    count, value = max(1, int(chosen.sum())), 0.0
    for _ in range(POWER_STEPS):
        out = np.zeros_like(v)
        for first, rows in source.pieces():
            here = chosen[first : first + len(rows.labels)]
            _add_products(*rows.entries, here, v, out)
        before, value = value, float(np.linalg.norm(out)) / count
        if value <= before * (1.0 + POWER_TOLERANCE):
            break
        v = out / np.linalg.norm(out)
    return value


def sum_size(source: SparsePieces, factors: NDArray[np.float64]) -> float:
    """Return the norm of the sum of factors (slots,) times rows, as if the rows were orthogonal."""
    total = 0.0
    for first, rows in source.pieces():
        values, _, pointers = rows.entries
        total += _square_sum(values, pointers, factors[first : first + len(rows.labels)])
    return float(np.sqrt(total))


def tally(source: SparsePieces, chosen: NDArray[np.bool_], w: NDArray[np.float64]) -> Tally:
    """Return how a model w (m + 1,) does on the chosen slots."""
    total = np.zeros(4)
    for first, rows in source.pieces():
        here = chosen[first : first + len(rows.labels)]
        total += _tally(*rows.entries, rows.labels, here, w)
    return Tally(int(total[0]), int(total[1]), int(total[2]), float(total[3]))


def decision(
    values: NDArray[np.float32],
    columns: NDArray[np.int32],
    pointers: NDArray[np.int64],
    w: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return w . x of some rows (n,), given as compressed sparse rows; columns beyond w count nothing."""
    known = columns < len(w) - 1
    terms = np.where(known, w[np.where(known, columns, 0)], 0.0) * values
    sums = np.r_[0.0, np.cumsum(terms)]
    found: NDArray[np.float64] = sums[pointers[1:]] - sums[pointers[:-1]] + w[-1]
    return found
