"""Fixed point: min-max scaled features on a grid of integers, so that sums have no order.

Rows lie on the grid of 2^-24 (0 .. 2^24, exact in float32), centroids on the grid of 2^-23 (exact
in float32 below 2). Integer addition is associative: results do not depend on cells or workers, and
subtracting a row is the exact inverse of adding it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

ROW_GRID = 1 << 24
CENTROID_GRID = 1 << 23
LOSS_UNIT = ROW_GRID * ROW_GRID
"""Losses and square sums are Python integers in units of 2^-48."""
MAX_FEATURES = 14_563
"""The most features for which a squared distance (coordinates within [-1/2, 3/2]) fits in int64."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How many rows there are, and the range of every feature with its multiplicities."""

    rows: int
    lower: NDArray[np.float32]
    """(features,) least value."""
    upper: NDArray[np.float32]
    """(features,) greatest value."""
    lower_count: NDArray[np.int64]
    """(features,) rows that have the least value; 0 where the user fixed the bounds."""
    upper_count: NDArray[np.int64]
    """(features,) rows that have the greatest value; 0 where the user fixed the bounds."""


def extent_of(x: NDArray[np.float32]) -> Extent:
    """Return the extent of live rows x (n, features); an empty one has infinite bounds."""
    rows, features = x.shape
    if rows == 0:
        zero = np.zeros(features, np.int64)
        infinite = np.full(features, np.inf, np.float32)
        return Extent(0, infinite, -infinite, zero, zero)
    # Adding zero turns -0.0 into 0.0, so that equal bounds have equal bits.
    lower = x.min(axis=0) + np.float32(0)
    upper = x.max(axis=0) + np.float32(0)
    return Extent(
        rows,
        lower,
        upper,
        np.count_nonzero(x == lower, axis=0).astype(np.int64),
        np.count_nonzero(x == upper, axis=0).astype(np.int64),
    )


def merge_extents(
    lower: NDArray[np.float32],
    upper: NDArray[np.float32],
    lower_count: NDArray[np.int64],
    upper_count: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> Extent:
    """Merge the extents of cells: bounds and counts are (cells, features), rows is (cells,).

    Cells without rows have infinite bounds and count for nothing.
    """
    low = lower.min(axis=0)
    high = upper.max(axis=0)
    return Extent(
        int(rows.sum()),
        low,
        high,
        np.where(lower == low, lower_count, 0).sum(axis=0),
        np.where(upper == high, upper_count, 0).sum(axis=0),
    )


def within(extent: Extent, bounds: tuple[float, float] | None) -> Extent:
    """Return the extent with the user's bounds, where there are any, in place of the rows' own."""
    if bounds is None or extent.rows == 0:
        return extent
    lower, upper = (np.full_like(extent.lower, bound) for bound in bounds)
    none = np.zeros_like(extent.lower_count)
    return Extent(extent.rows, lower, upper, none, none)


def shrunk(extent: Extent, x: NDArray[np.float32], bounds: tuple[float, float] | None) -> Extent:
    """Return the extent without rows x (m, features) that are in it.

    Where a count becomes 0 its bound does not hold any more.
    """
    left = extent.rows - len(x)
    if bounds is not None:
        return replace(extent, rows=left)
    lower_count = extent.lower_count - np.count_nonzero(x == extent.lower, axis=0)
    upper_count = extent.upper_count - np.count_nonzero(x == extent.upper, axis=0)
    return Extent(left, extent.lower, extent.upper, lower_count, upper_count)


@dataclass(frozen=True, slots=True)
class Scaling:
    """The map from a feature's values to the row grid: round((x - lower) * factor), clipped."""

    lower: NDArray[np.float64]
    """(features,)"""
    factor: NDArray[np.float64]
    """(features,) grid steps per unit of the feature; 0 for a constant feature."""

    @classmethod
    def between(cls, lower: NDArray[np.float32], upper: NDArray[np.float32]) -> Scaling:
        """Return the scaling that takes [lower, upper] to [0, 1]."""
        low = lower.astype(np.float64)
        width = upper.astype(np.float64) - low
        factor = np.zeros_like(width)
        np.divide(float(ROW_GRID), width, out=factor, where=width > 0)
        return cls(low, factor)

    def fixed(self, x: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return rows x (n, features) on the row grid."""
        out = np.empty(x.shape, np.int32)
        quantise(np.ascontiguousarray(x), self.lower, self.factor, out)
        return out

    def restore(self, scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scaled values ([0, 1] units) in the feature's own units."""
        width = np.zeros_like(self.factor)
        np.divide(float(ROW_GRID), self.factor, out=width, where=self.factor > 0)
        return self.lower + scaled * width


def scaling_arrays(scaling: Scaling | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (lower, factor) as compiled code takes them: empty for rows that are on the grid."""
    if scaling is None:
        return np.empty(0), np.empty(0)
    return scaling.lower, scaling.factor


@njit(cache=True, inline="always")
def to_grid(value, lower, factor):  # type: ignore[no-untyped-def]
    """Return one value on the row grid (int32), clipped to 0 .. 2^24."""
    t = np.rint((np.float64(value) - lower) * factor)
    return np.int32(min(max(t, 0.0), 16777216.0))


@njit(cache=True, nogil=True)
def quantise(x, lower, factor, out):  # type: ignore[no-untyped-def]
    """Write rows x (n, features) float32 to out (n, features) int32 on the row grid."""
    for i in range(x.shape[0]):
        for f in range(x.shape[1]):
            out[i, f] = to_grid(x[i, f], lower[f], factor[f])


def exact_loss(
    square_sum: int,
    centroids: NDArray[np.int64],
    sizes: NDArray[np.int64],
    sums: NDArray[np.int64],
) -> int:
    """Return sum over rows of |x - c|^2 = Q - 2 sum c_j.S_j + sum N_j |c_j|^2, exactly, in 2^-48.

    square_sum: Q = sum |x|^2. centroids (k, features) in 2^-23; sizes (k,); sums (k, features) in
    2^-24. The loss follows from counts and sums: no pass over the rows, no rounding.
    """
    doubled = centroids * 2
    cross: int = 0
    for shift, limb in ((0, sums & 0xFFFFF), (20, (sums >> 20) & 0xFFFFF), (40, sums >> 40)):
        cross += sum((doubled * limb).sum(axis=1).tolist()) << shift
    lengths = (doubled * doubled).sum(axis=1).tolist()
    lengths_sum: int = sum(n * c for n, c in zip(sizes.tolist(), lengths, strict=True))
    return square_sum - 2 * cross + lengths_sum
