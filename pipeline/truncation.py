"""The leading eigenvectors of an iteration's curvature, from its rows: what kind ``lowrank`` keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from .descent import Descent
from .losses import Loss
from .provenance import add_curvature

LEFT_OUT = 0.01
DENSE_SIZE = 64
"""Models of up to so many parameters have C formed, whatever the mini-batch."""
POWERS = 2
"""Times that a random basis is multiplied by C before it is looked at."""
SPARE = 8
"""Columns of the random basis beyond the rank that is expected."""
SEED = 20
"""Of the random basis: the same rows give the same factors."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One iteration's C, truncated: about vectors^T diag(values) vectors."""

    values: NDArray[np.float64]
    """(r,) descending, positive."""
    vectors: NDArray[np.float64]
    """(r, P) orthonormal rows."""
    trace: float
    """Of the whole C."""


def tolerance(descent: Descent, iterations: int) -> float:
    """Return the eigenvalues of C / b that may be left out."""
    return LEFT_OUT * max(descent.l2, 1.0 / (descent.learning_rate * iterations))


def hessian_times(
    loss: Loss, rows: NDArray[np.float64], curved: NDArray[np.float64], basis: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return C Y (P, k) by products with the rows (n, m) alone; curved (n, q), basis Y (P, k)."""
    (m, q), k = (rows.shape[1], curved.shape[1]), basis.shape[1]
    scores = np.matmul(rows, basis.reshape(q, m, k))
    if loss == Loss.SOFTMAX:
        scores -= np.einsum("nq,qnk->nk", curved, scores)
    scores *= curved.T[:, :, np.newaxis]
    product: NDArray[np.float64] = np.matmul(rows.T, scores).reshape(q * m, k)
    return product


def hessian_trace(rows: NDArray[np.float64], curved: NDArray[np.float64], loss: Loss) -> float:
    """Return the trace of the rows' summed Hessians."""
    own = curved.sum(axis=1)
    if loss == Loss.SOFTMAX:
        own = own - np.square(curved).sum(axis=1)
    return float(own @ np.einsum("ij,ij->i", rows, rows))


def leading(
    times: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    size: int,
    bound: int,
    least: float,
    guess: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the eigenvalues (r,) above ``least``, descending, and vectors (r, P) of a positive C.

    A randomised subspace iteration: times multiplies C by some columns; bound: C's rank at most;
    guess: the columns to begin with. The basis grows until its smallest value is half of ``least``.
    """
    random = np.random.default_rng(SEED)
    basis = np.empty((size, 0))
    columns = min(bound, max(1, guess))
    while True:
        more = random.normal(size=(size, columns - basis.shape[1]))
        basis = np.hstack([basis, more])
        for _ in range(POWERS):
            basis = qr(times(basis), mode="economic", check_finite=False)[0]
        product = times(basis)
        small = basis.T @ product
        values, turned = eigh((small + small.T) / 2.0)
        if columns == bound or values[0] <= 0.5 * least:
            break
        columns = min(bound, 2 * columns)
    kept = values > least
    vectors = (basis @ turned[:, kept]).T
    return values[kept][::-1], np.ascontiguousarray(vectors[::-1])


def _above(total: NDArray[np.float64], least: float) -> tuple[NDArray[np.float64], ...]:
    """The eigenvalues above ``least``, descending, and vectors in rows, of a lower triangle."""
    values, vectors = eigh(total, lower=True, subset_by_value=(least, np.inf), check_finite=False)
    return values[::-1], np.ascontiguousarray(vectors.T[::-1])


class LowRankCapture:
    """Takes the rows of iterations piece by piece and gives each one's truncated curvature.

    Where the rows of an iteration have a smaller rank than C could, they are held until it ends and C
    is never formed; else C is summed up and decomposed.
    """

    def __init__(self, loss: Loss, parameters: int, left_out: float) -> None:
        """left_out: as ``tolerance`` gives."""
        self._loss, self._size, self._left_out = loss, parameters, left_out
        self._total: NDArray[np.float64] | None = None
        self._held: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        self._trace = 0.0
        self._guess = SPARE

    def add(
        self, rows: NDArray[np.float64], curved: NDArray[np.float64], live: int, ends: bool
    ) -> Factor | None:
        """Add some rows of an iteration that has ``live`` in all; its factors, if it ends there."""
        wide = self._size > DENSE_SIZE and self._bound(live, curved) <= self._size
        if len(rows):
            self._trace += hessian_trace(rows, curved, self._loss)
            if wide:
                self._held.append((rows, curved))
            else:
                if self._total is None:
                    self._total = np.zeros((self._size, self._size), order="F")
                add_curvature(self._total, self._loss, rows, curved)
        return self._ended(live, wide) if ends else None

    def _ended(self, live: int, wide: bool) -> Factor:
        values, vectors = np.empty(0), np.empty((0, self._size))
        if live and wide:
            values, vectors = self._products(live)
        elif self._total is not None and live:
            values, vectors = _above(self._total, self._left_out * live)
            self._total[:] = 0.0
        found = Factor(values, vectors, self._trace)
        self._held, self._trace = [], 0.0
        self._guess = len(values) + SPARE
        return found

    def _products(self, live: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows, curved = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        bound = self._bound(live, curved)
        return leading(
            lambda basis: hessian_times(self._loss, rows, curved, basis),
            self._size,
            bound,
            self._left_out * live,
            self._guess,
        )

    def _bound(self, live: int, curved: NDArray[np.float64]) -> int:
        """The rank of the sum of so many rows' Hessians, at most."""
        return live * (curved.shape[1] - 1 if self._loss == Loss.SOFTMAX else 1)
