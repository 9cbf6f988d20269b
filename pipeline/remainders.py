"""What an update left out, row by row: terms of some rows at several places of a training.

All are coefficients (S, n, q) at S places: c stands for the vector c (x) x.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .losses import PIECES, Loss, both, dot, softmax

Vectors = NDArray[np.float64]
SOFTMAX = int(Loss.SOFTMAX)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the design matrix with their labels: live ones as a sample, or those that leave."""

    rows: NDArray[np.float64]
    """(n, m)"""
    labels: NDArray[np.float64]
    """(n,) y, +-1 or the class's number."""

    def thinned(self, count: int) -> Rows:
        """Return about ``count`` of the rows at most, at equal distances."""
        step = max(1, -(-len(self.rows) // count))
        # Contiguous both, so that what is compiled for them is compiled once.
        some = np.ascontiguousarray(self.rows[::step]), np.ascontiguousarray(self.labels[::step])
        return Rows(*some)

    def grouped(self, most: int, least: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the rows (G, n, m) and labels (G, n) as up to ``most`` groups of ``least`` or more.

        All groups have as many rows; up to G - 1 rows are left over.
        """
        groups = max(1, min(most, len(self.rows) // least))
        size = len(self.rows) // groups
        rows = self.rows[: groups * size].reshape(groups, size, -1)
        return rows, self.labels[: groups * size].reshape(groups, size)

    def mean(self, values: NDArray[np.float64], part: slice = slice(None)) -> Vectors:
        """Return (S, P): the mean of values (S, n, q) (x) x over a part of the rows."""
        rows = self.rows[part]
        sums = np.matmul(values[:, part].transpose(0, 2, 1), rows)
        means: Vectors = sums.reshape(len(values), -1) / len(rows)
        return means

    def signed(self, values: NDArray[np.float64], seed: int) -> Vectors:
        """Return (S, P): a random vector whose second moment is that of one row's values (x) x."""
        combined: Vectors = self.mean(values * signs(len(self.rows), seed)[:, np.newaxis])
        combined *= len(self.rows) ** 0.5
        return combined


@cache
def signs(count: int, seed: int) -> NDArray[np.float64]:
    """Return (count,) random signs, not to be written to."""
    found = np.random.default_rng(seed).choice([-1.0, 1.0], count)
    found.flags.writeable = False
    return found


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of some rows at w and w + u, all (S, n, q)."""

    ahead: NDArray[np.float64]
    """The curvature at w + u."""
    bent: NDArray[np.float64]
    """H_i u"""
    second: NDArray[np.float64]
    """g_i(w + u) - g_i(w) + H_i u"""


def gradients(loss: Loss, w: Vectors, rows: Rows) -> NDArray[np.float64]:
    """Return g_i(w) (S, n, q) of rows under models w (S, P)."""
    found: NDArray[np.float64] = responses(int(loss), scores(rows.rows, w), rows.labels)[0]
    return found


def terms(loss: Loss, w: Vectors, u: Vectors, rows: Rows) -> Terms:
    """Return the terms of rows at models w (S, P) that move by u (S, P)."""
    at, shift = scores(rows.rows, w), scores(rows.rows, u)
    c, curvature = responses(int(loss), at, rows.labels)
    c_ahead, ahead = responses(int(loss), at + shift, rows.labels)
    bent = np.zeros_like(shift)
    _bend_all(int(loss), curvature, shift, bent)
    return Terms(ahead, bent, c_ahead - c + bent)


@njit(cache=True, nogil=True)
def scores(rows, vectors):  # type: ignore[no-untyped-def]
    """Return V x (S, n, q) of rows (n, m) under vectors (S, P)."""
    (n, m), count = rows.shape, len(vectors)
    q = vectors.shape[1] // m
    products = np.dot(rows, vectors.reshape(count * q, m).T)
    out = np.empty((count, n, q))
    for s in range(count):
        for i in range(n):
            for k in range(q):
                out[s, i, k] = products[i, s * q + k]
    return out


@njit(cache=True, nogil=True)
def responses(loss, at, labels):  # type: ignore[no-untyped-def]
    """Return g_i and the curvature, (S, n, q) each, of rows with scores ``at`` (S, n, q)."""
    gradient, curvature = np.empty_like(at), np.empty_like(at)
    for s in range(len(at)):
        for i in range(len(labels)):
            if loss == SOFTMAX:
                softmax(at[s, i], curvature[s, i])
            else:
                both(loss, at[s, i], labels[i], PIECES, gradient[s, i], curvature[s, i])
    if loss == SOFTMAX:
        gradient[:] = -curvature
        for s in range(len(at)):
            for i in range(len(labels)):
                gradient[s, i, int(labels[i])] += 1.0
    return gradient, curvature


@njit(cache=True, inline="always")
def bend(loss, curvature, scores, factor, out):  # type: ignore[no-untyped-def]
    """Add factor D scores to out (q,)."""
    mean = dot(curvature, scores) if loss == 2 else 0.0
    for k in range(len(scores)):
        out[k] += factor * curvature[k] * (scores[k] - mean)


@njit(cache=True, nogil=True)
def _bend_all(loss, curvature, shift, out):  # type: ignore[no-untyped-def]
    for s in range(len(out)):
        for i in range(out.shape[1]):
            bend(loss, curvature[s, i], shift[s, i], 1.0, out[s, i])


@njit(cache=True, nogil=True)
def longest(vectors):  # type: ignore[no-untyped-def]
    """Return the largest norm of vectors (S, P)."""
    found = 0.0
    for s in range(len(vectors)):
        found = max(found, dot(vectors[s], vectors[s]))
    return np.sqrt(found)
