"""The principal components of a design matrix's rows: the basis of kind ``projected``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .descent import Descent
from .losses import Loss
from .provenance import Real
from .visits import Visits

BASIS_ROWS = 20_000
"""Training rows that the basis is taken from, at most."""
MOST_COLUMNS = 4096
"""Columns of a design matrix whose principal components are looked for, at most."""
MOST_INSIDE = 1500
"""Parameters q d inside of the basis, at most."""
LEFT_OUT = 0.01
"""What the neglected curvature may change u by, as a share of it, as far as is known beforehand."""
START = {Loss.LINEAR: 2.0, Loss.LOGISTIC: 0.25}
"""A row's curvature at w = 0 over x x^T; 1 / q for softmax."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The principal components of a design matrix's rows."""

    vectors: NDArray[Real]
    """(m, m) orthonormal columns: the bias, then the features' components, the largest first."""
    values: NDArray[np.float64]
    """(m,) the mean square of the rows' coordinates."""
    rank: int
    """d: the leading columns, in which curvature is followed."""

    def wide(self) -> Basis:
        """Return the same in double precision."""
        return replace(self, vectors=self.vectors.astype(np.float64))

    def inside(self, full: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coordinates (..., q d) in V of vectors (..., q m); of rows too, with q = 1."""
        m = len(self.vectors)
        parts = np.asarray(full.reshape(-1, m), self.vectors.dtype)
        found = (parts @ self.vectors[:, : self.rank]).astype(np.float64)
        coordinates: NDArray[np.float64] = found.reshape(
            *full.shape[:-1], full.shape[-1] // m * self.rank
        )
        return coordinates

    def whole(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the vectors (..., q m) with coordinates (..., q d) in V."""
        parts = np.asarray(coordinates.reshape(-1, self.rank), self.vectors.dtype)
        found = (parts @ self.vectors[:, : self.rank].T).astype(np.float64)
        full: NDArray[np.float64] = found.reshape(
            *coordinates.shape[:-1], coordinates.shape[-1] // self.rank * len(self.vectors)
        )
        return full

    def outside(self, full: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return vectors (..., q m) less their part in V."""
        return full - self.whole(self.inside(full))

    def visits(self, visits: Visits) -> Visits:
        """Return visits with their rows' coordinates in V for the rows."""
        return replace(visits, rows=self.inside(visits.rows))


def basis_of(gram: NDArray[np.float64], rank: int, kind: type[Real]) -> Basis:
    """Return the basis of rows with a mean of x x^T (m, m), the bias last; rank: d, of 1 to m."""
    m = len(gram)
    values, vectors = np.linalg.eigh(gram[:-1, :-1])
    full = np.zeros((m, m), kind)
    full[-1, 0] = 1.0
    full[:-1, 1:] = vectors[:, ::-1]
    return Basis(full, np.concatenate([[gram[-1, -1]], np.maximum(values[::-1], 0.0)]), rank)


def spectrum(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values (m,) that ``basis_of`` gives, alone."""
    values = np.linalg.eigvalsh(gram[:-1, :-1])[::-1]
    return np.concatenate([gram[-1:, -1], np.maximum(values, 0.0)])


def choose_rank(
    values: NDArray[np.float64], descent: Descent, iterations: int, outputs: int
) -> tuple[int, float]:
    """Return d, and how much of u the curvature outside of V changes, about.

    values: (m,) as the basis has them. A coordinate with curvature c is driven in proportion to the
    rows' own spread there, and forgets within 1 / (eta c) iterations; without its curvature it would
    be off by half of what it forgets.
    """
    curvature = START.get(descent.loss, 1.0 / outputs) * values
    forgets = curvature * min(descent.learning_rate * iterations, 1.0 / max(descent.l2, 1e-300))
    driven = values * -np.expm1(-2.0 * forgets) / np.maximum(2.0 * forgets, 1e-300)
    off = driven * np.square(np.minimum(forgets / 2.0, 1.0))
    left = np.sqrt(np.append(np.cumsum(off[::-1])[::-1], 0.0) / driven.sum())
    rank = min(most_rank(len(values), outputs), max(1, int(np.argmax(left <= LEFT_OUT))))
    return rank, float(left[rank])


def most_rank(columns: int, outputs: int) -> int:
    """Return the largest d that is chosen."""
    return max(1, min(columns, MOST_INSIDE // outputs))


def projected_bytes(columns: int, inside: int, blocks: int, dtype: str) -> int:
    """Return the bytes of the basis and the blocks' curvature; inside: q d."""
    own = columns * columns + blocks * inside * (inside + 1)
    return np.dtype(dtype).itemsize * own + 8 * columns
