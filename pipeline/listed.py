"""The rows of a step that may soon change cluster, listed so that no other row need be asked.

Of each step the rows with the least margins are listed, one in ``LISTED_SHARE`` at most, with the
drift at which each must be looked at: ``until``. All others have margins of ``reach`` or more under
the centroids ``listed_at``, so they stand while the centroids are near those, however long their way
was (Newling and Fleuret 2016, "Fast k-means with accurate bounds", ns-bounds). Then the list is made
anew. It is cut by spans of ``SPAN`` places, so that a row is found, and leaves, by moving few others.
``reach`` is one of fixed numbers and no row's own margin.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .lloyd import rounded_down

SPAN = 4096
"""Places that are listed together; places in a span are uint16."""
LISTED_SHARE = 8
"""One row in so many is listed at most."""
SHORTEST = 64
"""Rows that a list has always room for."""
_SHIFT = 20
"""Margins are counted by the bits of their float32 above these: eight bins from 2^j to 2^(j + 1)."""
_INFINITE = 0x7F800000 >> _SHIFT
"""The bin of infinity: rows that are gone, and all rows where there is one cluster."""


def list_room(rows: int) -> tuple[int, int]:
    """Return (rows that a list has room for, spans) of a step of so many rows."""
    return min(rows, max(rows // LISTED_SHARE, SHORTEST)), -(-rows // SPAN)


@njit(cache=True, inline="always")
def until_of(left, drift):  # type: ignore[no-untyped-def]
    """Return the drift (float32, rounded down) at which a row is to be looked at.

    left: what is left of its margin at the present drift; finite.
    """
    return rounded_down(left + drift - (abs(left) + drift) * 2.0**-48)


@njit(cache=True, inline="always")
def _less(margin, taken):  # type: ignore[no-untyped-def]
    """Return margin - taken as float32, rounded down; margin may be infinite."""
    left = np.float64(margin) - taken
    return rounded_down(left - abs(left) * 2.0**-50) if left < np.inf else np.float32(np.inf)


@njit(cache=True)
def _write_anew(t, m, shrink):  # type: ignore[no-untyped-def]
    """Write step t's margins as they are left now, of rows that are listed and of others."""
    labels, margins, drift = m.labels[t], m.margins[t], m.drift[t]
    for i in range(labels.size):
        margins[i] = _less(margins[i], shrink[labels[i]])
    for span in range(m.starts.shape[1]):
        for e in range(m.starts[t, span], m.ends[t, span]):
            margins[span * SPAN + np.int64(m.near[t, e])] = _less(m.until[t, e], drift)


@njit(cache=True)
def _first_bin_beyond(margins, most):  # type: ignore[no-untyped-def]
    """Return the first bin that, with those below it, has more than ``most`` rows."""
    counts = np.zeros(_INFINITE + 1, np.int64)
    for bits in margins.view(np.int32):
        counts[max(bits, 0) >> _SHIFT] += 1
    total = 0
    for b in range(_INFINITE):
        total += counts[b]
        if total > most:
            return b
    return _INFINITE


@njit(cache=True)
def make_list(t, m, shrink):  # type: ignore[no-untyped-def]
    """List the rows of step t that have the least margins; return whether all that are due fit.

    shrink (k,): ``incremental.net_shrinkage``. Credits and drift start anew.
    """
    near, until, own = m.near[t], m.until[t], m.own[t]
    labels, margins, starts, ends = m.labels[t], m.margins[t], m.starts[t], m.ends[t]
    _write_anew(t, m, shrink)
    start_anew(t, m)
    bits = margins.view(np.int32)
    beyond = _first_bin_beyond(margins, near.size)
    if beyond == 0:
        return False
    edge = np.full(1, beyond << _SHIFT, np.int32)
    count = 0
    for span in range(starts.size):
        start = span * SPAN
        starts[span] = count
        for i in range(start, min(start + SPAN, margins.size)):
            if bits[i] < edge[0]:
                near[count] = i - start
                until[count] = margins[i]
                own[count] = labels[i]
                margins[i] = 0.0
                count += 1
        ends[span] = count
    m.reach[t] = np.float64(edge.view(np.float32)[0])
    return True


@njit(cache=True)
def start_anew(t, m):  # type: ignore[no-untyped-def]
    """Begin step t's credits with its margins, all of them under its centroids; its list is empty."""
    m.credit[t] = 0.0
    m.drift[t] = 0.0
    m.listed_at[t] = m.quantized[t]
    m.near[t] = 0
    m.until[t] = 0.0
    m.own[t] = 0
    m.starts[t] = 0
    m.ends[t] = 0
    m.reach[t] = 0.0


@njit(cache=True)
def unlist(t, m, i):  # type: ignore[no-untyped-def]
    """Take row i off step t's list, if it is there, and leave nothing of it."""
    span, place = i // SPAN, i % SPAN
    near, until, own = m.near[t], m.until[t], m.own[t]
    low, stop = m.starts[t, span], m.ends[t, span]
    high = stop
    while low < high:
        middle = (low + high) // 2
        if near[middle] < place:
            low = middle + 1
        else:
            high = middle
    if low == stop or near[low] != place:
        return
    for e in range(low, stop - 1):
        near[e] = near[e + 1]
        until[e] = until[e + 1]
        own[e] = own[e + 1]
    near[stop - 1] = 0
    until[stop - 1] = 0.0
    own[stop - 1] = 0
    m.ends[t, span] = stop - 1
