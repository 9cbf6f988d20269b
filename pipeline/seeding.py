"""k-means++ seeding as an exponential race.

The next seed is the row with the smallest E / D^2, where E is the row's own exponential draw of that
stage and D its distance to the nearest seed so far: the minimum of independent exponentials with
rates D^2 falls on a row with probability proportional to D^2, which is k-means++ (Arthur and
Vassilvitskii 2007). Removing a row that is not a seed cannot change the winner, so keeping the
seeds before a deleted one and racing again from its stage on gives exactly the law of a fresh
seeding; retraining only when a seed goes, as the paper has it (alg. 5), does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .fixedpoint import Scaling, scaling_arrays
from .keyed import exponential, keyed_bits, least_of_bits
from .lanes import LANES
from .lloyd import (
    exact_distance,
    gather_block,
    load_block,
    nearest_of_block,
    relative_error,
    require_contiguous,
    turn_block,
)

_DOUBT = 1.0 + 2.0**-40
"""Draws are computed to about 1e-15 of themselves: one is above its bound less this."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The row that wins a race."""

    key: float
    """E / D^2, D^2 in 2^-48."""
    unit: int
    ordinal: int
    row: NDArray[np.int32]
    """(features,) on the row grid."""

    def __lt__(self, other: Winner) -> bool:
        return (self.key, self.unit, self.ordinal) < (other.key, other.unit, other.ordinal)


def first_of(one: Winner | None, other: Winner | None) -> Winner | None:
    """Return the winner of two heats; None is a heat in which no row had weight."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


@njit(cache=True, inline="always")
def _comes_first(key, unit, ordinal, best):  # type: ignore[no-untyped-def]
    """Whether (key, unit, ordinal) comes before the best so far (a tuple of the same)."""
    if key != best[0]:
        return key < best[0]
    if unit != best[1]:
        return unit < best[1]
    return ordinal < best[2]


@njit(cache=True)
def _least_draws(key, stage, units, ordinals, rows, m, ids, places, least):  # type: ignore[no-untyped-def]
    """Fill least (LANES,) with what the draws of the rows at the first m of ``rows`` exceed, nearly.

    ids, places: (LANES,) room. All lanes are filled, so that they go as vectors.
    """
    for lane in range(m):
        ids[lane] = units[rows[lane]]
        places[lane] = ordinals[rows[lane]]
    for lane in range(LANES):
        least[lane] = least_of_bits(keyed_bits(key, ids[lane], places[lane], stage))


@njit(cache=True, nogil=True)
def _race_uniform(units, ordinals, key, stage):  # type: ignore[no-untyped-def]
    """The race in which all rows have weight 1: return (index, key), index -1 without rows."""
    rows, least = np.empty(LANES, np.int64), np.empty(LANES)
    ids, places = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    best = (np.inf, np.int64(0), np.int64(0))
    winner = -1
    start = 0
    while True:
        m, start = gather_block(units, units, start, rows)
        if m == 0:
            return winner, best[0]
        _least_draws(key, stage, units, ordinals, rows, m, ids, places, least)
        for lane in range(m):
            if least[lane] > best[0] * _DOUBT:
                continue
            i = rows[lane]
            e = exponential(key, units[i], ordinals[i], stage)
            if winner < 0 or _comes_first(e, units[i], ordinals[i], best):
                best = (e, units[i], ordinals[i])
                winner = i


@njit(cache=True, nogil=True)
def _race_rows(x, units, ordinals, lower, factor, centres, tolerance, key, stage):  # type: ignore[no-untyped-def]
    """The D^2 race over x as in ``assign_rows``: return (index, key), index -1 if all weights are 0.

    float32 distances, and what a draw is at least, rule rows out; whoever may still win is weighed in
    integers.
    """
    k, d = centres.shape
    ids, places = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    least = np.empty(LANES)
    rows = np.empty(LANES, np.int64)
    fixed = np.zeros((LANES, d), np.int32)
    turned = np.zeros((d, LANES), np.float32)
    nearest = np.empty(LANES, np.float32)
    second = np.empty(LANES, np.float32)
    label = np.empty(LANES, np.int32)
    centres32 = centres.astype(np.float32)
    best = (np.inf, np.int64(0), np.int64(0))
    winner = -1
    start = 0
    while True:
        m, start = gather_block(x, units, start, rows)
        if m == 0:
            return winner, best[0]
        block = load_block(x, rows, m, lower, factor, fixed)
        turn_block(block, turned)
        nearest_of_block(x, start, turned, centres32, nearest, second, label)
        _least_draws(key, stage, units, ordinals, rows, m, ids, places, least)
        for lane in range(m):
            if nearest[lane] == 0.0:
                continue
            limit = best[0] * (np.float64(nearest[lane]) * (1.0 + tolerance))
            if least[lane] > limit * _DOUBT:
                continue
            i = rows[lane]
            e = exponential(key, units[i], ordinals[i], stage)
            if e > limit:
                continue
            weight = exact_distance(block[lane], centres[0])
            for j in range(1, k):
                weight = min(weight, exact_distance(block[lane], centres[j]))
            ratio = e / np.float64(weight)
            if winner < 0 or _comes_first(ratio, units[i], ordinals[i], best):
                best = (ratio, units[i], ordinals[i])
                winner = i


def race_uniform(
    units: NDArray[np.int64], ordinals: NDArray[np.int64], key: int, stage: int
) -> tuple[int, float]:
    """Return (index, E) of the live row with the smallest draw; index -1 without live rows.

    The race of the first seed, in which all rows weigh the same: no feature is read.
    """
    index, ratio = _race_uniform(units, ordinals, np.uint64(key), stage)
    return int(index), float(ratio)


def race(
    x: NDArray[np.float32] | NDArray[np.int32],
    units: NDArray[np.int64],
    ordinals: NDArray[np.int64],
    scaling: Scaling | None,
    centres: NDArray[np.int64],
    key: int,
    stage: int,
) -> Winner | None:
    """Return the live row of x (n, features) with the smallest E / D^2; None if all D are 0.

    centres (s, features) int64 in 2^-24; with none of them all rows weigh the same. x and scaling
    as in ``lloyd.assign``; ordinals (n,) tell the rows of one unit apart.
    """
    key64 = np.uint64(key)
    if len(centres) == 0:
        index, ratio = race_uniform(units, ordinals, key, stage)
    else:
        require_contiguous(x)
        lower, factor = scaling_arrays(scaling)
        tolerance = relative_error(x.shape[1])
        index, ratio = _race_rows(
            x, units, ordinals, lower, factor, centres, tolerance, key64, stage
        )
    if index < 0:
        return None
    row = x[index : index + 1]
    fixed = row.astype(np.int32) if scaling is None else scaling.fixed(row.astype(np.float32))
    return Winner(float(ratio), int(units[index]), int(ordinals[index]), fixed[0])
