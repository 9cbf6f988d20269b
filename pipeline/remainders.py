"""What an update left out, row by row: terms of some rows at several places of a training.

All are coefficients (S, n, q) at S places: c stands for the vector c (x) x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .losses import PIECES, Loss, both, coefficients, dot

Vectors = NDArray[np.float64]


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
        return Rows(np.ascontiguousarray(self.rows[::step]), self.labels[::step])

    def scores(self, w: Vectors) -> NDArray[np.float64]:
        """Return W x (S, n, q) of the rows under models w (S, P)."""
        n, m = self.rows.shape
        products = self.rows @ w.reshape(-1, m).T
        return np.ascontiguousarray(products.reshape(n, len(w), -1).swapaxes(0, 1))

    def mean(self, values: NDArray[np.float64], part: slice = slice(None)) -> Vectors:
        """Return (S, P): the mean of values (S, n, q) (x) x over a part of the rows."""
        rows = self.rows[part]
        sums = np.matmul(values[:, part].transpose(0, 2, 1), rows)
        means: Vectors = sums.reshape(len(values), -1) / len(rows)
        return means

    def signed(self, values: NDArray[np.float64], seed: int) -> Vectors:
        """Return (S, P): a random vector whose second moment is that of one row's values (x) x."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(self.rows))
        combined: Vectors = self.mean(values * signs[:, np.newaxis]) * len(self.rows) ** 0.5
        return combined


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of some rows at w and w + u, all (S, n, q)."""

    shift: NDArray[np.float64]
    """U x, where U is u as a matrix (q, m)."""
    curvature: NDArray[np.float64]
    """At w."""
    ahead: NDArray[np.float64]
    """The curvature at w + u."""
    bent: NDArray[np.float64]
    """H_i u"""
    second: NDArray[np.float64]
    """g_i(w + u) - g_i(w) + H_i u"""


def gradients(loss: Loss, w: Vectors, rows: Rows) -> NDArray[np.float64]:
    """Return g_i(w) (S, n, q) of rows under models w (S, P)."""
    at = rows.scores(w)
    out = np.empty_like(at)
    _gradients(int(loss), at, rows.labels, out)
    return out


@njit(cache=True, nogil=True)
def _gradients(loss, at, labels, out):  # type: ignore[no-untyped-def]
    for s in range(len(at)):
        for i in range(len(labels)):
            coefficients(loss, at[s, i], labels[i], out[s, i])


def terms(loss: Loss, w: Vectors, u: Vectors, rows: Rows) -> Terms:
    """Return the terms of rows at models w (S, P) that move by u (S, P)."""
    at, shift = rows.scores(w), rows.scores(u)
    curvature, ahead, bent, second = (np.zeros_like(at) for _ in range(4))
    _fill(int(loss), at, shift, rows.labels, curvature, ahead, bent, second)
    return Terms(shift, curvature, ahead, bent, second)


@njit(cache=True, nogil=True)
def _fill(loss, at, shift, labels, curvature, ahead, bent, second):  # type: ignore[no-untyped-def]
    q = at.shape[2]
    here, step, moved, p, c, p_ahead, c_ahead, d = np.zeros((8, q))
    for s in range(len(at)):
        for i in range(len(labels)):
            for k in range(q):
                here[k], step[k] = at[s, i, k], shift[s, i, k]
                moved[k], d[k] = here[k] + step[k], 0.0
            both(loss, here, labels[i], PIECES, c, p)
            both(loss, moved, labels[i], PIECES, c_ahead, p_ahead)
            bend(loss, p, step, 1.0, d)
            for k in range(q):
                curvature[s, i, k], ahead[s, i, k] = p[k], p_ahead[k]
                bent[s, i, k] = d[k]
                second[s, i, k] = c_ahead[k] - c[k] + d[k]


@njit(cache=True, inline="always")
def bend(loss, curvature, scores, factor, out):  # type: ignore[no-untyped-def]
    """Add factor D scores to out (q,)."""
    mean = dot(curvature, scores) if loss == 2 else 0.0
    for k in range(len(scores)):
        out[k] += factor * curvature[k] * (scores[k] - mean)


def block_means(
    loss: Loss, found: Terms, block: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return (S, n, q): the mean of H_i over a place's block, times the place's own u.

    block: (S,) ascending. lengths: (S,) the iterations that a place stands for.
    """
    out = np.zeros_like(found.bent)
    _block_means(int(loss), found.curvature, found.shift, block, lengths, out)
    return out


@njit(cache=True, nogil=True)
def _block_means(loss, curvature, shift, block, lengths, out):  # type: ignore[no-untyped-def]
    for s in range(len(block)):
        first, last = np.searchsorted(block, block[s]), np.searchsorted(block, block[s] + 1)
        total = lengths[first:last].sum()
        for j in range(first, last):
            for i in range(curvature.shape[1]):
                bend(loss, curvature[j, i], shift[s, i], lengths[j] / total, out[s, i])
