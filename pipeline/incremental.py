"""Incremental replay: exact deletion in time proportional to what changes; what it keeps and bounds.

Where a step's centroids move, only rows near a boundary can change their cluster. So every step keeps
each row's label and margin: the distance to the second-nearest centroid less that to the nearest.
If centroid j moves by s_j, a row labelled l keeps its label while its margin exceeds s_l plus the
largest s of another, by the triangle inequality (Hamerly 2010, "Making k-means even faster"). Margins
are not rewritten: what centroids moved since accumulates in a credit per step and cluster, and a row
is looked at again once its margin plus the credit at its writing is used up. Rows are looked at in
integers, so labels, sums and the loss are those of a pass over all rows. ``nearby`` runs the steps
of a model in memory, ``stored_replay`` those of one on disk.

Everything here rounds to the safe side: margins down, credits up. ``pipeline/README.md`` has the
proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .lloyd import relative_error, rounded_down
from .removal import any_moved, take_out

LONG = 128
"""Features of the shortest rows that are worth a rough look first."""
_UP = 1.0 + 2.0**-48
"""Sums of a few float64 terms are at most this factor too small."""


class Steps(NamedTuple):
    """What replay keeps of every step (t), in arrays that are changed in place.

    k clusters, d features, n rows, l rows that a list has room for, s spans (``listed``).
    """

    quantized: NDArray[np.int64]
    """(t, k, d) centroids in 2^-23."""
    analog: NDArray[np.float64]
    """(t, k, d) in [0, 1]."""
    phase: NDArray[np.int64]
    """(t, d)"""
    sizes: NDArray[np.int64]
    """(t, k)"""
    sums: NDArray[np.int64]
    """(t, k, d) in 2^-24."""
    loss: NDArray[np.int64]
    """(t, 2): high and low limb (``limbs``), in 2^-48."""
    drawn: NDArray[np.bool_]
    """(t,) whether a race gave the step a centroid; step 0, the seeds, always."""
    labels: NDArray[Any]
    """(t, n) each row's nearest centroid."""
    margins: NDArray[np.float32]
    """(t, n) margin and credit at its writing, in 2^-24; infinite for rows that are gone. Of rows
    that are not listed: under the centroids ``listed_at``."""
    credit: NDArray[np.float64]
    """(t, k) by how much margins may have shrunk, in 2^-24."""
    near: NDArray[np.uint16]
    """(t, l) rows that may soon change cluster: places in their span, ascending."""
    until: NDArray[np.float32]
    """(t, l) the drift at which each is to be looked at, in 2^-24."""
    own: NDArray[Any]
    """(t, l) their labels."""
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    """(t, s) where the list has a span's rows."""
    reach: NDArray[np.float64]
    """(t,) by how much the margins of rows that are not listed may shrink, in 2^-24."""
    listed_at: NDArray[np.int64]
    """(t, k, d) the centroids when the list was made, in 2^-23."""
    drift: NDArray[np.float64]
    """(t,) the sum of each move's largest credit."""
    seeds: NDArray[np.int64]
    """(k,) places of the rows that are seeds."""
    lower: NDArray[np.float32]
    upper: NDArray[np.float32]
    """(d,) bounds."""
    lower_count: NDArray[np.int64]
    upper_count: NDArray[np.int64]
    """(d,) rows at the bounds; 0 where the user fixed them."""
    square_sum: NDArray[np.int64]
    """(2,) Q in limbs."""
    state: NDArray[np.int64]
    """(2,) how many steps hold, and how many there are."""


@njit(cache=True)
def _distance(row, centre):  # type: ignore[no-untyped-def]
    """Return the exact squared distance (int64, 2^-48) of two int32 grid points (features,)."""
    total = np.int64(0)
    for f in range(row.size):
        t = np.int64(row[f] - centre[f])
        total += t * t
    return total


@njit(cache=True)
def _floor_of(value, divisor):  # type: ignore[no-untyped-def]
    """Return value // divisor, exactly, of int64 whose quotient is below 2^50; divisor above 0.

    Float64's quotient is less than one off, and the remainder tells by how much. Processors divide
    whole numbers one at a time.
    """
    quotient = np.int64(np.floor(np.float64(value) / np.float64(divisor)))
    rest = value - quotient * divisor
    return quotient + np.int64(rest >= divisor) - np.int64(rest < 0)


@njit(cache=True, error_model="numpy")
def _next_centroid(t, j, m, spacing, threshold, row, analog):  # type: ignore[no-untyped-def]
    """Fill row and analog (d,) with centroid j of step t, from step t - 1; False if it has no rows.

    ``quantized.momentum`` and ``quantized.snap``.
    """
    size = m.sizes[t - 1, j]
    small = size < threshold
    weight = threshold if small else size
    if weight == 0:
        return False
    below = weight * 2
    sums, before, phases = m.sums[t - 1, j], m.quantized[t - 1, j], m.phase[t]
    pull = threshold - size if small else 0
    for f in range(row.size):
        total = min(max(sums[f] + pull * (2 * before[f]), 0), weight << 24)
        phase = phases[f]
        nearest = _floor_of(total - below * phase + weight * spacing, below * spacing)
        row[f] = nearest * spacing + phase
        analog[f] = np.float64(total) / (np.float64(weight) * 16777216.0)
    return True


@njit(cache=True)
def move_centroids(t, m, spacing, threshold, dirty, moved, row, analog):  # type: ignore[no-untyped-def]
    """Give step t its centroids after step t - 1; moved (k,) gets how far each went, in 2^-24.

    Only ``dirty`` ones can have moved. Returns whether all have rows, or momentum.
    """
    for j in range(dirty.size):
        moved[j] = 0.0
        if not dirty[j]:
            continue
        if not _next_centroid(t, j, m, spacing, threshold, row, analog):
            return False
        square = np.int64(0)
        now, mean = m.quantized[t, j], m.analog[t, j]
        for f in range(row.size):
            step = row[f] - now[f]
            square += step * step
            now[f] = row[f]
            mean[f] = analog[f]
        moved[j] = 2.0 * np.sqrt(np.float64(square)) * _UP
    return True


@njit(cache=True)
def shrinkage(moved, shrink):  # type: ignore[no-untyped-def]
    """Fill shrink (k,): by how much each cluster's margins shrink at most where centroids moved so far.

    How far the cluster's own centroid moved, and the farthest other one. Returns the largest.
    """
    first, second, at = 0.0, 0.0, -1
    for j in range(moved.size):
        if moved[j] > first:
            first, second, at = moved[j], first, j
        elif moved[j] > second:
            second = moved[j]
    largest = 0.0
    for j in range(moved.size):
        shrink[j] = (moved[j] + (second if j == at else first)) * _UP
        largest = max(largest, shrink[j])
    return largest


@njit(cache=True)
def _raise_credit(t, m, moved):  # type: ignore[no-untyped-def]
    """Add to each cluster's credit by how much its margins shrink."""
    shrink = np.empty(moved.size)
    largest = shrinkage(moved, shrink)
    for j in range(moved.size):
        m.credit[t, j] = (m.credit[t, j] + shrink[j]) * _UP
    m.drift[t] = (m.drift[t] + largest) * _UP


@njit(cache=True)
def net_shrinkage(t, m, shrink):  # type: ignore[no-untyped-def]
    """Fill shrink (k,) as ``shrinkage`` for where step t's centroids are now from ``listed_at``."""
    net = np.empty(shrink.size)
    now, then = m.quantized[t], m.listed_at[t]
    for j in range(net.size):
        square = np.int64(0)
        for f in range(now.shape[1]):
            step = now[j, f] - then[j, f]
            square += step * step
        net[j] = 2.0 * np.sqrt(np.float64(square)) * _UP
    return shrinkage(net, shrink)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _rough_distance(row, centre):  # type: ignore[no-untyped-def]
    """Return the squared distance of ``_distance`` to within ``relative_error``: a filter."""
    total = np.float32(0.0)
    for f in range(row.size):
        t = np.float32(row[f]) - np.float32(centre[f])
        total += t * t
    return total


@njit(cache=True)
def _rule_out(row, centres, far):  # type: ignore[no-untyped-def]
    """Mark in far (k,) the centres that are neither the nearest nor the second; long rows only."""
    far[:] = False
    if row.size < LONG:
        return
    rough = np.empty(far.size, np.float32)
    first, second = np.float32(np.inf), np.float32(np.inf)
    for j in range(far.size):
        rough[j] = _rough_distance(row, centres[j])
        if rough[j] < first:
            first, second = rough[j], first
        elif rough[j] < second:
            second = rough[j]
    limit = second * np.float32(1.0 + relative_error(row.size))
    for j in range(far.size):
        far[j] = rough[j] > limit


@njit(cache=True)
def look_exactly(row, centres, label, credit, far):  # type: ignore[no-untyped-def]
    """Return the nearest centre of a row in integers, and its margin with the centre's credit.

    row (d,) and centres (k, d) int32 in 2^-24; of equals the lowest. far (k,): room for marks.
    """
    _rule_out(row, centres, far)
    nearest, runner = np.int64(-1), np.int64(-1)
    winner = label
    for j in range(far.size):
        if far[j]:
            continue
        square = _distance(row, centres[j])
        if nearest < 0 or square < nearest:
            runner = nearest
            nearest, winner = square, j
        elif runner < 0 or square < runner:
            runner = square
    if runner < 0:
        return winner, np.float32(np.inf)
    beyond, near = np.sqrt(np.float64(runner)), np.sqrt(np.float64(nearest))
    margin = beyond - near - (beyond + near) * 2.0**-50
    return winner, rounded_down(margin + credit[winner] - (beyond + credit[winner]) * 2.0**-50)


@njit(cache=True)
def change_cluster(row, old, new, sizes, sums, dirty):  # type: ignore[no-untyped-def]
    """Count a row for another cluster."""
    sizes[old] -= 1
    sizes[new] += 1
    for f in range(row.size):
        sums[old, f] -= row[f]
        sums[new, f] += row[f]
    dirty[old] = True
    dirty[new] = True


@njit(cache=True)
def look_at(row, i, labels, margins, centres, credit, far, sizes, sums, dirty):  # type: ignore[no-untyped-def]
    """Decide again to which centre a row belongs that has place i among labels and margins.

    row (d,) and centres (k, d) int32 in 2^-24; sizes, sums and dirty follow; far (k,): room for marks.
    """
    old = np.int64(labels[i])
    new, margins[i] = look_exactly(row, centres, old, credit, far)
    if new != old:
        labels[i] = new
        change_cluster(row, old, new, sizes, sums, dirty)


@njit(cache=True, inline="always")
def least_left(labels, margins, credit, drift, start, stop):  # type: ignore[no-untyped-def]
    """Return the least margin less credit of rows start <= i < stop, and the drift at this moment."""
    least = np.inf
    for i in range(start, stop):
        least = min(least, np.float64(margins[i]) - credit[labels[i]])
    if least < np.inf:
        least = least + drift
        least -= (abs(least) + drift) * 2.0**-48
    return least


@njit(cache=True)
def open_step(t, m, fixed, removed, spacing, threshold, dirty, moved, row, analog):  # type: ignore[no-untyped-def]
    """Begin step t: its centroids after step t - 1, and the removed rows out of it.

    dirty (k,): clusters of step t - 1 to compute again; gets those of step t that lost a row. moved
    (k,) gets how far each centroid went, in 2^-24; credits rise by it. Returns False, and changes
    nothing that counts, where a race decides.
    """
    if t > 0 and (
        m.drawn[t] or not move_centroids(t, m, spacing, threshold, dirty, moved, row, analog)
    ):
        return False
    for j in range(dirty.size):
        dirty[j] = False
    take_out(t, fixed, removed, m, dirty)
    if any_moved(moved):
        _raise_credit(t, m, moved)
    return True
