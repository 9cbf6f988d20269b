"""The deleted rows' terms, iteration by iteration: recomputed from the trajectory, never stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .losses import PIECES, Loss, dot, row_coefficients
from .schedule import Schedule

TOGETHER = 1 << 16
"""Visits whose rows are gathered at a time."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rows that are deleted, as the model sees them."""

    rows: NDArray[np.float64]
    """(n, m) of the design matrix."""
    labels: NDArray[np.float64]
    """(n,)"""
    cells: NDArray[np.int64]
    slots: NDArray[np.int64]
    """(n,) where they stand."""


@dataclass(frozen=True, slots=True)
class Visits:
    """Every use of a deleted row in training, in the order of iterations."""

    iteration: NDArray[np.int64]
    """(v,) ascending."""
    rows: NDArray[np.float64]
    """(v, m), or (n, m) of which ``which`` tells the visits'."""
    coefficients: NDArray[np.float64]
    """(v, q) c at the iteration's w_t: the row's negative gradient is c (x) x."""
    curvature: NDArray[np.float64]
    """(v, q)"""
    which: NDArray[np.int64] | None = None
    """(v,) the row of each visit; None: every visit has its own."""

    def between(self, first: int, last: int) -> Visits:
        """Return the visits of iterations first <= t < last, each with its own row."""
        a, b = np.searchsorted(self.iteration, (first, last))
        rows = self.rows[a:b] if self.which is None else self.rows[self.which[a:b]]
        return Visits(self.iteration[a:b], rows, self.coefficients[a:b], self.curvature[a:b])

    def part(self, first: int, last: int) -> Visits:
        """Return ``between``, with iterations counted from ``first``."""
        own = self.between(first, last)
        return Visits(own.iteration - first, own.rows, own.coefficients, own.curvature)

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return how many rows each iteration first <= t < last loses."""
        a, b = np.searchsorted(self.iteration, (first, last))
        return np.bincount(self.iteration[a:b] - first, minlength=last - first).astype(np.int64)


def find_visits(
    loss: Loss, schedule: Schedule, leaving: Leaving, trajectory: NDArray[np.float64]
) -> Visits:
    """Return all visits of the leaving rows, their terms taken at the trajectory (iterations, P)."""
    when, which = schedule.visits(leaving.cells, leaving.slots)
    return visits_at(loss, when, leaving.rows, leaving.labels, trajectory, which)


def visits_at(
    loss: Loss,
    iteration: NDArray[np.int64],
    rows: NDArray[np.float64],
    labels: NDArray[np.float64],
    trajectory: NDArray[np.float64],
    which: NDArray[np.int64] | None = None,
) -> Visits:
    """Return the terms of rows that iterations (v,), ascending, of a trajectory visit.

    rows (v, m), labels (v,): the visits' own; or (n, m), (n,) of rows that visit again and again,
    ``which`` (v,) telling whose visit it is.
    """
    count, q = len(iteration), trajectory.shape[1] // rows.shape[1]
    coefficients, curved = np.empty((count, q)), np.empty((count, q))
    for first in range(0, count, TOGETHER):
        here = slice(first, first + TOGETHER)
        own = here if which is None else which[here]
        row_coefficients(
            int(loss),
            trajectory,
            iteration[here],
            rows[own],
            labels[own],
            coefficients[here],
            curved[here],
            PIECES,
        )
    return Visits(iteration, rows, coefficients, curved, which)


@njit(cache=True)
def add_gradients(rows, coefficients, out):  # type: ignore[no-untyped-def]
    """Add the sum of c (x) x over some visits to out (P,)."""
    m = rows.shape[1]
    for v in range(len(rows)):
        for k in range(coefficients.shape[1]):
            c = coefficients[v, k]
            for j in range(m):
                out[k * m + j] += c * rows[v, j]


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def add_curved(loss, rows, curvature, u, factor, out):  # type: ignore[no-untyped-def]
    """Add factor times the sum of the visits' Hessians times u (P,) to out (P,)."""
    m, q = rows.shape[1], curvature.shape[1]
    scores = np.empty(q)
    for v in range(len(rows)):
        for k in range(q):
            scores[k] = dot(u[k * m : (k + 1) * m], rows[v])
        if loss == 2:
            mean = dot(curvature[v], scores)
            for k in range(q):
                scores[k] = curvature[v, k] * (scores[k] - mean)
        else:
            scores[0] *= curvature[v, 0]
        for k in range(q):
            c = factor * scores[k]
            for j in range(m):
                out[k * m + j] += c * rows[v, j]
