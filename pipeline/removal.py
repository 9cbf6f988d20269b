"""Taking rows out of a k-means history: extent, tally, loss and the chain's own decisions.

What a removed row leaves behind is known without any other row: its share of the bounds, of Q, and,
under the label that it has at a step, of that step's sizes, sums and loss.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .lanes import prefetch
from .limbs import added, loss_of
from .listed import unlist

DONE, CONTINUE, RESEED, REFIT, RESCALE = 0, 1, 2, 3, 4
"""What a deletion has still to do: nothing; run steps from ``state[0]`` on; draw seeds again; fit anew;
fit anew where extent and Q are known, but for features whose bounds have lost their last row."""


@njit(cache=True)
def _ask_for(m, removed):  # type: ignore[no-untyped-def]
    """Ask the memory for what all steps keep of removed rows: it takes as long as for one step's."""
    labels, margins = m.labels, m.margins
    for i in removed:
        for t in range(m.state[1]):
            prefetch(labels.ctypes.data + (t * labels.shape[1] + i) * labels.itemsize)
            prefetch(margins.ctypes.data + (t * margins.shape[1] + i) * 4)


@njit(cache=True)
def prepare(m, x, fixed, removed):  # type: ignore[no-untyped-def]
    """Take removed rows out of the extent and Q; return RESCALE, RESEED, or DONE where neither."""
    code = DONE
    _ask_for(m, removed)
    lower, upper, lower_count, upper_count = m.lower, m.upper, m.lower_count, m.upper_count
    for i in removed:
        square = np.int64(0)
        for f in range(fixed.shape[1]):
            square += np.int64(fixed[i, f]) * fixed[i, f]
            if x[i, f] == lower[f] and lower_count[f] > 0:
                lower_count[f] -= 1
                code = RESCALE if lower_count[f] == 0 else code
            if x[i, f] == upper[f] and upper_count[f] > 0:
                upper_count[f] -= 1
                code = RESCALE if upper_count[f] == 0 else code
        high, low = added(m.square_sum[0], m.square_sum[1], -square, 0)
        m.square_sum[0], m.square_sum[1] = high, low
        for seed in m.seeds:
            if seed == i and code == DONE:
                code = RESEED
    return code


@njit(cache=True)
def take_out(t, fixed, removed, m, dirty):  # type: ignore[no-untyped-def]
    """Take removed rows out of step t: labels, margins, tally, and the loss under its centroids."""
    for i in removed:
        j = np.int64(m.labels[t, i])
        m.sizes[t, j] -= 1
        square = np.int64(0)
        row, sums, centroid = fixed[i], m.sums[t, j], m.quantized[t, j]
        for f in range(row.size):
            sums[f] -= row[f]
            gap = row[f] - 2 * centroid[f]
            square += gap * gap
        high, low = added(m.loss[t, 0], m.loss[t, 1], -square, 0)
        m.loss[t, 0], m.loss[t, 1] = high, low
        m.labels[t, i] = 0
        # Listed rows have margin 0.
        if m.margins[t, i] == 0.0:
            unlist(t, m, i)
        m.margins[t, i] = np.inf
        dirty[j] = True


@njit(cache=True)
def _mark_small(t, m, dirty, now, before):  # type: ignore[no-untyped-def]
    """Mark the clusters of step t that a new imbalance threshold pulls otherwise."""
    if now != before:
        for j in range(dirty.size):
            if m.sizes[t, j] < max(now, before):
                dirty[j] = True


@njit(cache=True)
def drops(m, t):  # type: ignore[no-untyped-def]
    """Whether step t's loss is below the one before."""
    high, before = m.loss[t, 0], m.loss[t - 1, 0]
    return high < before or (high == before and m.loss[t, 1] < m.loss[t - 1, 1])


@njit(cache=True)
def any_moved(moved):  # type: ignore[no-untyped-def]
    """Whether one of the centroids moved: moved (k,), from 0."""
    found = False
    for j in range(moved.size):
        found |= moved[j] > 0.0
    return found


@njit(cache=True)
def close_step(t, m, moved, dirty, now, before):  # type: ignore[no-untyped-def]
    """End step t, whose rows have their labels; return whether its loss drops, so that steps follow.

    moved (k,): how far its centroids went. dirty (k,): clusters whose rows are others than they
    were; gets those that step t + 1 must compute again. now, before: thresholds of small clusters.
    """
    if any_moved(moved):
        for j in range(moved.size):
            dirty[j] |= moved[j] > 0.0
        m.loss[t, 0], m.loss[t, 1] = loss_of(
            m.square_sum[0], m.square_sum[1], m.quantized[t], m.sizes[t], m.sums[t]
        )
    _mark_small(t, m, dirty, now, before)
    m.state[0] = t + 1
    if t > 0 and not drops(m, t):
        m.state[1] = t + 1
        return False
    return True
