"""Whole numbers beyond int64 in compiled code: two limbs, high and low, value = high 2^40 + low."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

LIMB = 40
_MASK = (1 << LIMB) - 1


def limbs_of(value: int) -> tuple[int, int]:
    """Return (high, low) of a whole number, low from 0."""
    return value >> LIMB, value & _MASK


def joined(limbs: NDArray[np.int64]) -> int:
    """Return the number of two limbs (2,)."""
    return (int(limbs[0]) << LIMB) + int(limbs[1])


@njit(cache=True, inline="always")
def added(high, low, value, shift):  # type: ignore[no-untyped-def]
    """Return (high, low) plus value 2^shift; shift is 0, 20 or 40."""
    if shift == 40:
        return high + value, low
    if shift == 20:
        high += value >> 20
        low += (value & 0xFFFFF) << 20
    else:
        high += value >> LIMB
        low += value & _MASK
    return high + (low >> LIMB), low & _MASK


@njit(cache=True)
def loss_of(high, low, centroids, sizes, sums):  # type: ignore[no-untyped-def]
    """Return Q - 2 sum c.S + sum N |c|^2 as limbs, from Q's; see ``fixedpoint.exact_loss``."""
    for j in range(centroids.shape[0]):
        cross0, cross1, cross2, length = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for f in range(centroids.shape[1]):
            c, s = centroids[j, f] * 2, sums[j, f]
            cross0 += c * (s & 0xFFFFF)
            cross1 += c * ((s >> 20) & 0xFFFFF)
            cross2 += c * (s >> 40)
            length += c * c
        high, low = added(high, low, -2 * cross0, 0)
        high, low = added(high, low, -2 * cross1, 20)
        high, low = added(high, low, -2 * cross2, 40)
        high, low = added(high, low, sizes[j] * (length & 0xFFFFF), 0)
        high, low = added(high, low, sizes[j] * ((length >> 20) & 0xFFFFF), 20)
        high, low = added(high, low, sizes[j] * (length >> 40), 40)
    return high, low
