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


NORMAL_KURTOSIS = 3.0


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean (d,) and sums of the powers 2, 3 and 4 of the deviations (d,) of some rows."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    cubes: NDArray[np.float64]
    fourths: NDArray[np.float64]

    @classmethod
    def of(cls, x: NDArray[np.float32]) -> Self:
        """Return the moments of rows x (n, d)."""
        if not len(x):
            zero = np.zeros(x.shape[1])
            return cls(0, zero, zero, zero, zero)
        wide = x.astype(np.float64)
        mean = wide.mean(axis=0)
        wide -= mean
        square = np.square(wide)
        cubes = np.einsum("ij,ij->j", square, wide)
        fourths = np.einsum("ij,ij->j", square, square)
        return cls(len(x), mean, square.sum(axis=0), cubes, fourths)

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """Return the moments of all parts together, added in order (Pebay 2008, equation 3.1)."""
        total: Moments | None = None
        for part in parts:
            total = part if total is None else total._plus(part)
        if total is None:
            raise ValueError("no moments to merge: there are no rows")
        return total

    def _plus(self, other: Moments) -> Moments:
        a, b = self.count, other.count
        n = a + b
        if a == 0 or b == 0:
            return other if a == 0 else self
        shift = other.mean - self.mean
        step, ratio = shift / n, a * b / n
        between = shift * shift * ratio
        cubes = between * step * (a - b) + 3.0 * step * (a * other.squares - b * self.squares)
        fourths = (
            between * step * step * (a * a - a * b + b * b)
            + 6.0 * step * step * (a * a * other.squares + b * b * self.squares)
            + 4.0 * step * (a * other.cubes - b * self.cubes)
        )
        return Moments(
            n,
            self.mean + b * step,
            self.squares + other.squares + between,
            self.cubes + other.cubes + cubes,
            self.fourths + other.fourths + fourths,
        )


@dataclass(frozen=True, slots=True)
class Design:
    """How raw features become a row of the design matrix."""

    mean: NDArray[np.float64]
    """(d,)"""
    scale: NDArray[np.float64]
    """(d,) deviations, larger for heavy tails; 1 for a constant feature."""

    @classmethod
    def of(cls, moments: Moments) -> Self:
        """Standardise by these moments.

        A feature with heavier tails than a normal one is scaled by the deviation of a normal
        feature with its fourth moment. A rare indicator, say, would otherwise reach hundreds of
        deviations: the few rows that have it would decide its parameter alone, and no update by
        linearisation follows the deletion of one of them.
        """
        count = max(1, moments.count)
        deviation = np.sqrt(moments.squares / count)
        tail = (moments.fourths / (NORMAL_KURTOSIS * count)) ** 0.25
        constant = deviation <= 1e-12 * np.abs(moments.mean)
        return cls(moments.mean, np.where(constant, 1.0, np.maximum(deviation, tail)))

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
