"""Incremental replay: exact deletion in time proportional to what changes.

Where a step's centroids move, only rows near a boundary can change their cluster. So every step keeps
each row's label and margin: the distance to the second-nearest centroid less that to the nearest.
If centroid j moves by s_j, a row labelled l keeps its label while its margin exceeds s_l plus the
largest s of another, by the triangle inequality (Hamerly 2010, "Making k-means even faster"). Margins
are not rewritten: what centroids moved since accumulates in a credit per step and cluster, and a row
is looked at again once its margin plus the credit at its writing is used up. Rows are looked at in
integers, so labels, sums and the loss are those of a pass over all rows.

Everything here rounds to the safe side: margins down, credits up. ``pipeline/README.md`` has the
proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .lloyd import assign_rows, prefetch_row, relative_error, rounded_down
from .removal import CONTINUE, DONE, close_step, prepare, take_out

LONG = 128
"""Features of the shortest rows that are worth a rough look first."""
BLOCK = 64
"""Rows that share one lower bound of their margins."""
_UP = 1.0 + 2.0**-48
"""Sums of a few float64 terms are at most this factor too small."""
PASS_SHARE = 6
"""A step in which more than one row in so many is looked at takes a pass over all of them."""


class Steps(NamedTuple):
    """What replay keeps of every step (t), in arrays that are changed in place.

    k clusters, d features, n rows, nb blocks of BLOCK rows.
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
    """(t, n) margin and credit at its writing, in 2^-24; infinite for rows that are gone."""
    credit: NDArray[np.float64]
    """(t, k) by how much margins may have shrunk, in 2^-24."""
    least: NDArray[np.float64]
    """(t, nb) the least of margin less credit in a block, and ``drift`` at its writing."""
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
    for f in range(row.size):
        total = m.sums[t - 1, j, f]
        if small:
            total += (threshold - size) * (2 * m.quantized[t - 1, j, f])
        total = min(max(total, 0), weight << 24)
        phase = m.phase[t, f]
        nearest = (total - below * phase + weight * spacing) // (below * spacing)
        row[f] = nearest * spacing + phase
        analog[f] = np.float64(total) / (np.float64(weight) * 16777216.0)
    return True


@njit(cache=True)
def _move(t, m, spacing, threshold, dirty, moved, row, analog):  # type: ignore[no-untyped-def]
    """Give step t its centroids after step t - 1; moved (k,) gets how far each went, in 2^-24.

    Only ``dirty`` ones can have moved. Returns whether all have rows, or momentum.
    """
    moved[:] = 0.0
    for j in range(dirty.size):
        if not dirty[j]:
            continue
        if not _next_centroid(t, j, m, spacing, threshold, row, analog):
            return False
        square = np.int64(0)
        for f in range(row.size):
            step = row[f] - m.quantized[t, j, f]
            square += step * step
            m.quantized[t, j, f] = row[f]
            m.analog[t, j, f] = analog[f]
        moved[j] = 2.0 * np.sqrt(np.float64(square)) * _UP
    return True


@njit(cache=True)
def _raise_credit(t, m, moved):  # type: ignore[no-untyped-def]
    """Add to each cluster's credit how far its centroid and the farthest other one moved."""
    first, second, at = 0.0, 0.0, -1
    for j in range(moved.size):
        if moved[j] > first:
            first, second, at = moved[j], first, j
        elif moved[j] > second:
            second = moved[j]
    largest = 0.0
    for j in range(moved.size):
        step = (moved[j] + (second if j == at else first)) * _UP
        m.credit[t, j] = (m.credit[t, j] + step) * _UP
        largest = max(largest, step)
    m.drift[t] = (m.drift[t] + largest) * _UP


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
def _look_again(row, centres, label, credit, far):  # type: ignore[no-untyped-def]
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
def _change_cluster(row, old, new, sizes, sums, dirty):  # type: ignore[no-untyped-def]
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
    new, margins[i] = _look_again(row, centres, old, credit, far)
    if new != old:
        labels[i] = new
        _change_cluster(row, old, new, sizes, sums, dirty)


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
def _look_near(t, fixed, m, centres, dirty, most):  # type: ignore[no-untyped-def]
    """Look again at the rows of step t that may have changed cluster; return how many they are.

    Stops once there were ``most``: a pass over all rows is cheaper then. Rows are found some ahead
    of being looked at, so that the memory has time to bring them.
    """
    labels, margins, least = m.labels[t], m.margins[t], m.least[t]
    credit, drift = m.credit[t], m.drift[t]
    far = np.empty(dirty.size, np.bool_)
    waiting, blocks = np.empty(2 * BLOCK, np.int64), np.empty(BLOCK, np.int64)
    waiting_count, block_count, seen = 0, 0, 0
    for b in range(least.size):
        if least[b] <= drift:
            for i in range(b * BLOCK, min((b + 1) * BLOCK, labels.size)):
                if margins[i] <= credit[labels[i]]:
                    prefetch_row(fixed, i)
                    waiting[waiting_count] = i
                    waiting_count += 1
            blocks[block_count] = b
            block_count += 1
        if waiting_count >= BLOCK or block_count == BLOCK or b == least.size - 1:
            for i in waiting[:waiting_count]:
                tally = m.sizes[t], m.sums[t], dirty
                look_at(fixed[i], i, labels, margins, centres, credit, far, *tally)
            for done in blocks[:block_count]:
                start, stop = done * BLOCK, min((done + 1) * BLOCK, labels.size)
                least[done] = least_left(labels, margins, credit, drift, start, stop)
            seen += waiting_count
            waiting_count, block_count = 0, 0
            if seen > most:
                return seen
    return seen


@njit(cache=True)
def settle(m, t):  # type: ignore[no-untyped-def]
    """Start step t's credits and lower bounds anew, after ``lloyd.assign_rows``."""
    m.credit[t] = 0.0
    m.drift[t] = 0.0
    labels, margins, credit = m.labels[t], m.margins[t], m.credit[t]
    for b in range(m.least.shape[1]):
        start, stop = b * BLOCK, min((b + 1) * BLOCK, labels.size)
        m.least[t, b] = least_left(labels, margins, credit, 0.0, start, stop)


@njit(cache=True)
def _pass_over(t, fixed, units, m):  # type: ignore[no-untyped-def]
    m.sizes[t] = 0
    m.sums[t] = 0
    none = np.empty(0)
    tally = m.labels[t], m.margins[t], m.sizes[t], m.sums[t]
    limit = relative_error(fixed.shape[1])
    assign_rows(fixed, units, none, none, m.quantized[t] * 2, limit, *tally)
    settle(m, t)


@njit(cache=True)
def open_step(t, m, fixed, removed, spacing, threshold, dirty, moved):  # type: ignore[no-untyped-def]
    """Begin step t: its centroids after step t - 1, and the removed rows out of it.

    dirty (k,): clusters of step t - 1 to compute again; gets those of step t that lost a row. moved
    (k,) gets how far each centroid went, in 2^-24; credits rise by it. Returns False, and changes
    nothing that counts, where a race decides.
    """
    if t > 0:
        d = fixed.shape[1]
        row, analog = np.empty(d, np.int64), np.empty(d)
        if m.drawn[t] or not _move(t, m, spacing, threshold, dirty, moved, row, analog):
            return False
    dirty[:] = False
    take_out(t, fixed, removed, m, dirty)
    if moved.max() > 0.0:
        _raise_credit(t, m, moved)
    return True


@njit(cache=True, nogil=True)
def delete_places(m, x, fixed, units, removed, spacing, before, threshold, max_iter):  # type: ignore[no-untyped-def]
    """Take the rows at ``removed`` places out of the model, and overwrite them with zeros.

    x (n, d) float32 and fixed (n, d) int32: the rows; units (n,): -1 for holes. threshold: below so
    many rows a cluster is small; ``before`` the deletion. Goes as far as no race and no new step is
    needed, and returns (what is still to be done, first step that differs or -1, rows looked at,
    passes over all rows); ``m.state`` holds how many steps hold, and how many there were.
    """
    for i in removed:
        units[i] = -1
    m.state[0] = 0
    found = (prepare(m, x, fixed, removed), 0, 0, 0)
    if found[0] == DONE:
        found = _replay(m, fixed, units, removed, spacing, before, threshold, max_iter)
    for i in removed:
        x[i] = 0.0
        fixed[i] = 0
        if found[0] != DONE:
            m.labels[:, i] = 0
    return found


@njit(cache=True)
def _follow(t, fixed, units, m, dirty):  # type: ignore[no-untyped-def]
    """Bring step t's rows up to its moved centroids; return (rows looked at, passes over all)."""
    centres = (m.quantized[t] * 2).astype(np.int32)
    most = fixed.shape[0] // PASS_SHARE
    seen = _look_near(t, fixed, m, centres, dirty, most)
    if seen <= most:
        return seen, 0
    _pass_over(t, fixed, units, m)
    dirty[:] = True
    return seen, 1


@njit(cache=True)
def _replay(m, fixed, units, removed, spacing, before, threshold, max_iter):  # type: ignore[no-untyped-def]
    """Go through the steps: see ``delete_places``."""
    k = m.quantized.shape[1]
    count = m.state[1]
    dirty, moved = np.zeros(k, np.bool_), np.zeros(k)
    first, seen, passes = -1, 0, 0
    for t in range(count):
        if not open_step(t, m, fixed, removed, spacing, threshold, dirty, moved):
            return CONTINUE, t if first < 0 else first, seen, passes
        if moved.max() > 0.0:
            first = t if first < 0 else first
            near, whole_pass = _follow(t, fixed, units, m, dirty)
            seen += near
            passes += whole_pass
        if not close_step(t, m, moved, dirty, threshold, before):
            return DONE, t + 1 if first < 0 and t + 1 < count else first, seen, passes
    if count > max_iter:
        return DONE, first, seen, passes
    return CONTINUE, count if first < 0 else first, seen, passes
