"""The design matrix: features standardised by the training rows' moments, and a bias column last.

The moments are those of the first fit and stay as they are: a deletion and BaseL use the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

SPLIT = "validation"


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean (d,) and sum of squared deviations (d,) of some rows' features."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, x: NDArray[np.float32]) -> Self:
        """Return the moments of rows x (n, d)."""
        if not len(x):
            zero = np.zeros(x.shape[1])
            return cls(0, zero, zero)
        wide = x.astype(np.float64)
        mean = wide.mean(axis=0)
        return cls(len(x), mean, np.square(wide - mean).sum(axis=0))

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """Return the moments of all parts together, added in order (Chan et al. 1983)."""
        total: Moments | None = None
        for part in parts:
            total = part if total is None else total._plus(part)
        if total is None:
            raise ValueError("no moments to merge: there are no rows")
        return total

    def _plus(self, other: Moments) -> Moments:
        count = self.count + other.count
        if count == 0:
            return self
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        between = np.square(shift) * (self.count * other.count / count)
        return Moments(count, mean, self.squares + other.squares + between)


@dataclass(frozen=True, slots=True)
class Design:
    """How raw features become a row of the design matrix."""

    mean: NDArray[np.float64]
    """(d,)"""
    scale: NDArray[np.float64]
    """(d,) deviations; 1 for a constant feature."""

    @classmethod
    def of(cls, moments: Moments) -> Self:
        """Standardise by these moments."""
        deviation = np.sqrt(moments.squares / max(1, moments.count))
        constant = deviation <= 1e-12 * np.abs(moments.mean)
        return cls(moments.mean, np.where(constant, 1.0, deviation))

    @property
    def width(self) -> int:
        """Columns of the design matrix: the features and the bias."""
        return len(self.mean) + 1

    def rows(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the design matrix (n, d + 1) of raw rows x (n, d)."""
        return self.take(x, np.arange(len(x)))

    def take(self, x: NDArray[np.float32], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the design matrix of the rows of x with the numbers ``chosen``, in that order."""
        out = np.empty((len(chosen), self.width))
        _standardised(x, chosen, self.mean, 1.0 / self.scale, out)
        return out


@njit(cache=True, nogil=True)
def _standardised(x, chosen, mean, factor, out):  # type: ignore[no-untyped-def]
    d = x.shape[1]
    for i in range(len(chosen)):
        row = chosen[i]
        for j in range(d):
            out[i, j] = (np.float64(x[row, j]) - mean[j]) * factor[j]
        out[i, d] = 1.0
