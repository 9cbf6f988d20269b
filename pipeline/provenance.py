"""What PrIU keeps of a training besides its trajectory: the curvature C_t = sum of H_i at w_t.

Given the trajectory, every iteration's C_t is independent of all others. It is kept either exactly
(`exact`: the lower triangle, row by row, one an iteration) or as one mean per block of iterations,
decomposed (`averaged`: eigenvalues and eigenvectors of the mean of C_t / b_t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import blas

from .losses import PIECES, Loss, curvatures

Real = np.floating


def packed_size(parameters: int) -> int:
    """Return the numbers in the lower triangle of a (P, P) matrix."""
    return parameters * (parameters + 1) // 2


@njit(cache=True)
def pack(matrix, out):  # type: ignore[no-untyped-def]
    """Write the lower triangle of a (P, P) matrix row by row into out."""
    place = 0
    for i in range(len(matrix)):
        for j in range(i + 1):
            out[place] = matrix[i, j]
            place += 1


@njit(cache=True)
def unpack(packed, out):  # type: ignore[no-untyped-def]
    """Fill the symmetric (P, P) matrix whose lower triangle is packed."""
    place = 0
    for i in range(len(out)):
        for j in range(i + 1):
            out[i, j] = packed[place]
            out[j, i] = packed[place]
            place += 1


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def packed_times(packed, u, out):  # type: ignore[no-untyped-def]
    """Fill out (P,) with C u, for the symmetric C whose lower triangle is packed."""
    place = 0
    for i in range(len(u)):
        total = 0.0
        factor = u[i]
        out[i] = 0.0
        for j in range(i):
            c = packed[place + j]
            total += c * u[j]
            out[j] += c * factor
        out[i] += total + packed[place + i] * factor
        place += i + 1


@njit(cache=True, nogil=True)
def _curvatures(loss, rows, labels, scores, out):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        curvatures(loss, scores[i], labels[i], PIECES, out[i])


def curvature(
    loss: Loss, w: NDArray[np.float64], rows: NDArray[np.float64], labels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the curvature (n, q) of rows (n, m) at w (q, m)."""
    out = np.empty((len(rows), len(w)))
    _curvatures(int(loss), rows, labels, rows @ w.T, out)
    return out


def add_curvature(
    total: NDArray[Real], loss: Loss, rows: NDArray[np.float64], curved: NDArray[np.float64]
) -> None:
    """Add the rows' Hessians to the lower triangle of total (P, P), a Fortran-ordered matrix.

    rows (n, m), curved (n, q) as ``curvature`` gives. Works in total's own precision.
    """
    m, q = rows.shape[1], curved.shape[1]
    kind = total.dtype
    add = blas.dsyrk if kind == np.float64 else blas.ssyrk
    if loss != Loss.SOFTMAX:
        weighted = np.asarray(rows * np.sqrt(curved), kind)
        add(1.0, weighted.T, beta=1.0, c=total, lower=1, overwrite_c=1)
        return
    wide = (curved[:, :, np.newaxis] * rows[:, np.newaxis, :]).reshape(len(rows), q * m)
    add(-1.0, np.asarray(wide, kind).T, beta=1.0, c=total, lower=1, overwrite_c=1)
    for k in range(q):
        weighted = np.asarray(rows * np.sqrt(curved[:, k : k + 1]), kind)
        here = slice(k * m, (k + 1) * m)
        gram = add(1.0, weighted.T, lower=1)
        total[here, here] += gram


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive iterations in blocks of equal length; the last may be shorter."""

    iterations: int
    length: int

    @property
    def count(self) -> int:
        return -(-self.iterations // self.length)

    def span(self, block: int) -> tuple[int, int]:
        """Return a block's first iteration and the one after its last."""
        first = block * self.length
        return first, min(first + self.length, self.iterations)


class Exact(Protocol):
    """Curvature kept for every iteration."""

    @property
    def blocks(self) -> Blocks: ...

    @property
    def longest_run(self) -> int:
        """How many consecutive blocks may be asked for at once."""
        ...

    def packed(self, first: int, last: int) -> NDArray[Real]:
        """Return C_t of the blocks first <= k < last, packed: (iterations, packed size)."""
        ...

    def product(self, block: int) -> NDArray[Real] | None:
        """Return the (P, P) product of a block's steps, the last on the left; None if not kept."""
        ...


class Averaged(Protocol):
    """One eigen-decomposed mean curvature a block: C_t / b_t is about Q diag(e) Q^T."""

    @property
    def blocks(self) -> Blocks: ...

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        """Return a block's eigenvalues e (P,) and eigenvectors Q (P, P), in columns."""
        ...


def block_product(
    packed: NDArray[Real], live: NDArray[np.int64], rate: float, decay: float
) -> NDArray[np.float64]:
    """Return the (P, P) product of a block's steps decay I - (rate / b_t) C_t, the last on the left."""
    size = int((np.sqrt(8 * packed.shape[1] + 1) - 1) / 2 + 0.5)
    product = np.eye(size)
    full = np.empty((size, size))
    for t in range(len(packed)):
        if live[t] == 0:
            product *= decay
            continue
        unpack(packed[t], full)
        product = decay * product - (rate / live[t]) * (full @ product)
    return product


def decompose(mean: NDArray[Real]) -> tuple[NDArray[Real], NDArray[Real]]:
    """Return eigenvalues (P,) and eigenvectors (P, P) of a symmetric matrix given below its diagonal."""
    values, vectors = np.linalg.eigh(mean, UPLO="L")
    return values, np.ascontiguousarray(vectors)


class MeanCurvature:
    """The mean of C_t / b_t over the iterations of a block that have live rows."""

    def __init__(self, loss: Loss, parameters: int, kind: type[Real]) -> None:
        self._loss = loss
        self.total = np.zeros((parameters, parameters), kind, order="F")
        self._iterations = 0

    def add(
        self, rows: NDArray[np.float64], curved: NDArray[np.float64], live: int, ends: bool
    ) -> None:
        """Add some rows of an iteration that has ``live`` in all; ends: no more rows of it follow."""
        if len(rows):
            add_curvature(self.total, self._loss, rows / np.sqrt(live), curved)
        self._iterations += int(ends and live > 0)

    def mean(self) -> NDArray[Real]:
        """Return the mean, valid in its lower triangle."""
        return self.total / max(1, self._iterations)
