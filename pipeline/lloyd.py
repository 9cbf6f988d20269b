"""The fused pass: nearest centroid, counts and sums of a block of rows in one go.

It works on blocks of 64 rows: the block is turned feature-major, squared distances accumulate for
16 rows at a time in float32 (``lanes``), and rows are then added to their cluster's integer sums.
float32 is a filter only: where the best two distances are too close to tell, the exact int64 squared
distances decide, ties to the lowest index. So labels, counts and sums are functions of the integers
alone.

Rows come either as float32 (a cell as stored; ``Scaling`` is applied block by block) or as int32 on
the row grid (in memory). A row whose unit is negative is a hole and is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from .fixedpoint import Scaling, scaling_arrays, to_grid
from .lanes import LANES, TILE, VECTOR, nearest_lanes, prefetch, turn_rows

PREFETCHED = 256
"""Features of the longest rows that are asked for ahead of their use."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one pass finds per centroid."""

    sizes: NDArray[np.int64]
    """(k,) rows."""
    sums: NDArray[np.int64]
    """(k, features) sums of rows, in 2^-24."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.sizes + other.sizes, self.sums + other.sums)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.sizes - other.sizes, self.sums - other.sums)


@register_jitable
def relative_error(features: int) -> float:
    """Return the share of the second distance below which float32 cannot tell two distances apart.

    A float32 sum of d squares errs by at most about (d + 3) 2^-24 of itself; 4 (d + 4) 2^-24 covers
    both distances twice over.
    """
    return 4.0 * (features + 4) * 2.0**-24


@njit(cache=True, inline="always")
def gather_block(x, units, start, rows):  # type: ignore[no-untyped-def]
    """Write the indices of the next LANES live rows to ``rows``; return (how many, next start)."""
    m = 0
    i = start
    while i < x.shape[0] and m < LANES:
        if units[i] >= 0:
            rows[m] = i
            m += 1
        i += 1
    return m, i


def load_block(x: Any, rows: Any, m: Any, lower: Any, factor: Any, fixed: Any) -> Any:
    """Return m rows of x on the row grid as (LANES, features) int32: ``fixed``, or a part of x.

    Compiled per type of x: float32 rows are scaled, int32 rows are on the grid already.
    """
    raise TypeError("for compiled callers only")


@overload(load_block, inline="always")
def _load_block(x, rows, m, lower, factor, fixed):  # type: ignore[no-untyped-def]
    if x.dtype == types.float32:

        def scale(x, rows, m, lower, factor, fixed):  # type: ignore[no-untyped-def]
            d = x.shape[1]
            for lane in range(m):
                i = rows[lane]
                for f in range(d):
                    fixed[lane, f] = to_grid(x[i, f], lower[f], factor[f])
            return fixed

        return scale

    def gather(x, rows, m, lower, factor, fixed):  # type: ignore[no-untyped-def]
        first = rows[0]
        if m == LANES and rows[m - 1] == first + m - 1:
            return x[first : first + m]
        for lane in range(m):
            fixed[lane] = x[rows[lane]]
        return fixed

    return gather


@njit(cache=True, inline="always")
def prefetch_row(x, i):  # type: ignore[no-untyped-def]
    """Ask for row i of x, which need not exist, to be in the cache soon."""
    width = x.shape[1] * x.itemsize
    start = x.ctypes.data + i * width
    for line in range(0, width, 64):
        prefetch(start + line)


@njit(cache=True, inline="always")
def turn_block(fixed, turned):  # type: ignore[no-untyped-def]
    """Turn a block (LANES, features) int32 feature-major: (features, LANES) float32."""
    d = fixed.shape[1]
    if d < TILE:
        for lane in range(LANES):
            for f in range(d):
                turned[f, lane] = np.float32(fixed[lane, f])
    else:
        for lane in range(0, LANES, TILE):
            turn_rows(fixed.ctypes.data + 4 * lane * d, d, turned.ctypes.data + 4 * lane)


@njit(cache=True, inline="always")
def nearest_of_block(x, start, turned, centres32, best, second, label):  # type: ignore[no-untyped-def]
    """Fill best and second (LANES,) float32 and label (LANES,) int32 for a turned block.

    Between the vectors, the memory is asked for the rows of x from ``start`` on: the next block's.
    Long rows stream well enough by themselves, and would push the block out of the cache.
    """
    k, d = centres32.shape
    ahead = VECTOR if d <= PREFETCHED else 0
    for lane in range(0, LANES, VECTOR):
        for i in range(start + lane, start + lane + ahead):
            prefetch_row(x, i)
        shift = 4 * lane
        nearest_lanes(
            turned.ctypes.data + shift,
            d,
            centres32.ctypes.data,
            k,
            best.ctypes.data + shift,
            second.ctypes.data + shift,
            label.ctypes.data + shift,
        )


@njit(cache=True)
def exact_distance(row, centre):  # type: ignore[no-untyped-def]
    """Return the exact squared distance (int64, 2^-48) of two grid points (features,)."""
    total = np.int64(0)
    for f in range(row.size):
        t = np.int64(row[f]) - centre[f]
        total += t * t
    return total


@njit(cache=True)
def _decide(row, centres):  # type: ignore[no-untyped-def]
    """Return the nearest centre (k, features) of a row in integers, the lowest of equals."""
    winner = 0
    least = exact_distance(row, centres[0])
    for j in range(1, centres.shape[0]):
        exact = exact_distance(row, centres[j])
        if exact < least:
            winner = j
            least = exact
    return winner


@njit(cache=True, inline="always")
def rounded_down(value):  # type: ignore[no-untyped-def]
    """Return a float32 that is not above a finite value."""
    near = np.float32(value)
    if np.float64(near) > value:
        near = np.float32(near - abs(near) * np.float32(2.0**-23) - np.float32(1e-37))
    return near


@njit(cache=True)
def _margins_of_block(best, second, tolerance, margin):  # type: ignore[no-untyped-def]
    """Fill margin (LANES,) with what is proved by two squared distances; all lanes, as vectors."""
    for lane in range(LANES):
        far = np.sqrt(np.float64(second[lane]) * (1.0 - tolerance))
        near = np.sqrt(np.float64(best[lane]) * (1.0 + tolerance))
        margin[lane] = rounded_down(far - near)


@njit(cache=True, nogil=True)
def assign_rows(x, units, lower, factor, centres, tolerance, labels, margins, sizes, sums):  # type: ignore[no-untyped-def]
    """Add each live row of x to its nearest centre's count and sum; write labels, margins if asked.

    x (n, features) float32 with lower/factor (features,), or int32 with empty lower/factor. centres
    (k, features) int64 in 2^-24. labels (n,) of integers or empty. margins (n,) float32 or empty:
    a lower bound of how much nearer a row's centre is than any other, in 2^-24; infinite in holes.
    """
    margins[:] = np.inf
    k, d = centres.shape
    rows = np.empty(LANES, np.int64)
    fixed = np.zeros((LANES, d), np.int32)
    turned = np.zeros((d, LANES), np.float32)
    best = np.empty(LANES, np.float32)
    second = np.empty(LANES, np.float32)
    label = np.empty(LANES, np.int32)
    margin = np.empty(LANES, np.float32)
    centres32 = centres.astype(np.float32)
    limit = np.float32(tolerance)
    start = 0
    while True:
        m, start = gather_block(x, units, start, rows)
        if m == 0:
            break
        block = load_block(x, rows, m, lower, factor, fixed)
        turn_block(block, turned)
        nearest_of_block(x, start, turned, centres32, best, second, label)
        if margins.size and k > 1:
            _margins_of_block(best, second, tolerance, margin)
        for lane in range(m):
            j = label[lane]
            close = k > 1 and second[lane] - best[lane] <= limit * second[lane]
            if close:
                j = _decide(block[lane], centres)
            if margins.size and k > 1:
                margins[rows[lane]] = np.float32(0.0) if close else margin[lane]
            if labels.size:
                labels[rows[lane]] = j
            sizes[j] += 1
            for f in range(d):
                sums[j, f] += block[lane, f]


def distinct_centres(
    centroids: NDArray[np.int64], present: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different present centroids in 2^-24 and the lowest index of each.

    Equal centroids are merged: every row ties between them, and the lowest index wins.
    """
    index = np.flatnonzero(present)
    _, first = np.unique(centroids[index], axis=0, return_index=True)
    keep = index[np.sort(first)]
    return np.ascontiguousarray(centroids[keep] * 2), keep


def require_contiguous(x: NDArray[Any]) -> None:
    """ValueError unless rows lie one after the other: compiled code computes their addresses."""
    if not x.flags.c_contiguous:
        raise ValueError("rows must be C-contiguous: use numpy.ascontiguousarray")


def assign(
    x: NDArray[np.float32] | NDArray[np.int32],
    units: NDArray[np.int64],
    scaling: Scaling | None,
    centroids: NDArray[np.int64],
    present: NDArray[np.bool_],
    labels: NDArray[np.int32] | None = None,
) -> Tally:
    """Run the fused pass over x (n, features); validation assumed.

    scaling is None where x is on the row grid already. centroids (k, features) int64 in 2^-23;
    labels (n,) int32, if given, receives each live row's centroid.
    """
    require_contiguous(x)
    centres, keep = distinct_centres(centroids, present)
    k, d = centroids.shape
    sizes = np.zeros(len(keep), np.int64)
    sums = np.zeros((len(keep), d), np.int64)
    lower, factor = scaling_arrays(scaling)
    found = np.empty(0, np.int32) if labels is None else labels
    none = np.empty(0, np.float32)
    assign_rows(x, units, lower, factor, centres, relative_error(d), found, none, sizes, sums)
    if labels is not None:
        live = units >= 0
        labels[live] = keep[labels[live]]
    tally = Tally(np.zeros(k, np.int64), np.zeros((k, d), np.int64))
    tally.sizes[keep] = sizes
    tally.sums[keep] = sums
    return tally


@njit(cache=True, nogil=True)
def _square_sum(x, units, lower, factor):  # type: ignore[no-untyped-def]
    high = np.int64(0)
    low = np.int64(0)
    for i in range(x.shape[0]):
        if units[i] < 0:
            continue
        total = np.int64(0)
        for f in range(x.shape[1]):
            q = (
                np.int64(to_grid(x[i, f], lower[f], factor[f]))
                if factor.size
                else np.int64(x[i, f])
            )
            total += q * q
        high += total >> 32
        low += total & 0xFFFFFFFF
    return high, low


def square_sum(
    x: NDArray[np.float32] | NDArray[np.int32], units: NDArray[np.int64], scaling: Scaling | None
) -> int:
    """Return sum |x|^2 over live rows, exactly, in 2^-48 (two int64 limbs inside)."""
    lower, factor = scaling_arrays(scaling)
    high, low = _square_sum(x, units, lower, factor)
    return (int(high) << 32) + int(low)
