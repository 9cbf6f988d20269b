"""Incremental replay of a model in memory: the compiled loop over a history's steps.

Where a step's centroids move, its listed rows (``listed``) whose margins are used up are looked at:
gathered in groups, turned, and weighed in float32 lanes as a pass does. Where float32 can't tell, or
would lose most of a margin, integers decide. ``README.md`` has the proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .incremental import change_cluster, look_exactly, move_centroids, net_shrinkage, open_step
from .lanes import LANES, TILE, VECTOR, at_most, lowest_bit, nearest_lanes, turn_rows
from .limbs import loss_of
from .listed import SPAN, make_list, start_anew, until_of
from .lloyd import assign_rows, prefetch_row, relative_error, rounded_down
from .removal import CONTINUE, DONE, any_moved, close_step, drops, prepare

CLEAR = 3.0
"""A gap of two squared distances that is so many times float32's error gives a margin good enough."""


class Desk(NamedTuple):
    """Room for rows that are looked at together, and what is found of them."""

    rows: NDArray[np.int32]
    """(LANES, d)"""
    turned: NDArray[np.float32]
    """(d, LANES)"""
    centres: NDArray[np.int32]
    """(k, d) in 2^-24."""
    centres32: NDArray[np.float32]
    best: NDArray[np.float32]
    second: NDArray[np.float32]
    label: NDArray[np.int32]
    """(LANES,)"""
    far: NDArray[np.bool_]
    """(k,) room for marks."""
    none: NDArray[np.float64]
    """(k,) credits of 0: margins as they are."""
    found: NDArray[np.int64]
    margins: NDArray[np.float64]
    """(LANES,) labels, and lower bounds of margins in 2^-24."""
    places: NDArray[np.int64]
    entries: NDArray[np.int64]
    """(due,) rows that are due, and where in the list they are."""


@njit(cache=True)
def desk_for(k, d, due):  # type: ignore[no-untyped-def]
    """Return a desk for rows of d features and k centroids, so many of them due at a time."""
    return Desk(
        np.zeros((LANES, d), np.int32),
        np.zeros((d, LANES), np.float32),
        np.zeros((k, d), np.int32),
        np.zeros((k, d), np.float32),
        np.empty(LANES, np.float32),
        np.empty(LANES, np.float32),
        np.empty(LANES, np.int32),
        np.empty(k, np.bool_),
        np.zeros(k),
        np.empty(LANES, np.int64),
        np.empty(LANES),
        np.empty(due, np.int64),
        np.empty(due, np.int64),
    )


@njit(cache=True)
def put_centres(g, quantized):  # type: ignore[no-untyped-def]
    """Take centroids (k, d) in 2^-23 for the rows that are looked at from now on."""
    for j in range(quantized.shape[0]):
        for f in range(quantized.shape[1]):
            g.centres[j, f] = 2 * quantized[j, f]
            g.centres32[j, f] = g.centres[j, f]


@njit(cache=True)
def _weigh(g, count):  # type: ignore[no-untyped-def]
    """Fill best, second and label of a group's first rows: as ``lloyd.nearest_of_block``."""
    k, d = g.centres.shape
    for lane in range(0, count, TILE):
        if d < TILE:
            for other in range(lane, lane + TILE):
                for f in range(d):
                    g.turned[f, other] = np.float32(g.rows[other, f])
        else:
            turn_rows(g.rows.ctypes.data + 4 * lane * d, d, g.turned.ctypes.data + 4 * lane)
    for lane in range(0, count, VECTOR):
        shift = 4 * lane
        nearest_lanes(
            g.turned.ctypes.data + shift,
            d,
            g.centres32.ctypes.data,
            k,
            g.best.ctypes.data + shift,
            g.second.ctypes.data + shift,
            g.label.ctypes.data + shift,
        )


@njit(cache=True)
def look_at_group(g, fixed, places):  # type: ignore[no-untyped-def]
    """Fill found and margins for the rows at ``places`` (LANES at most) of fixed (n, d) int32, in 2^-24."""
    for lane in range(places.size):
        i = places[lane]
        for f in range(fixed.shape[1]):
            g.rows[lane, f] = fixed[i, f]
    _weigh(g, places.size)
    tolerance = relative_error(fixed.shape[1])
    clear = np.float32(CLEAR * tolerance)
    for lane in range(places.size):
        best, second = g.best[lane], g.second[lane]
        if second - best > clear * second:
            g.found[lane] = g.label[lane]
            far = np.sqrt(np.float64(second) * (1.0 - tolerance))
            near = np.sqrt(np.float64(best) * (1.0 + tolerance))
            g.margins[lane] = far - near
        else:
            found = look_exactly(g.rows[lane], g.centres, 0, g.none, g.far)
            g.found[lane], g.margins[lane] = found


@njit(cache=True)
def _find_due(t, span, m, g, count):  # type: ignore[no-untyped-def]
    """Append a span's rows that are to be looked at, and their entries in step t's list.

    count: how many there are already; returns how many then.
    """
    near, until = m.near[t], m.until[t]
    # Rounded up: until is float32.
    limit = -rounded_down(-m.drift[t])
    e, stop, start = m.starts[t, span], m.ends[t, span], span * SPAN
    before = count
    while e + LANES <= stop:
        bits = at_most(until.ctypes.data + 4 * e, limit)
        while bits != 0:
            g.entries[count] = e + lowest_bit(bits)
            count += 1
            bits &= bits - 1
        e += LANES
    for last in range(e, stop):
        g.entries[count] = last
        count += until[last] <= limit
    for a in range(before, count):
        g.places[a] = start + np.int64(near[g.entries[a]])
    return count


@njit(cache=True)
def _look_at_due(t, fixed, m, g, count, dirty):  # type: ignore[no-untyped-def]
    """Look at the first so many rows that are due.

    The memory is asked for a group's rows while the one before is weighed.
    """
    own, until, drift = m.own[t], m.until[t], m.drift[t]
    places = g.places[:count]
    for i in places[:LANES]:
        prefetch_row(fixed, i)
    for start in range(0, count, LANES):
        group = places[start : start + LANES]
        for i in places[start + LANES : start + 2 * LANES]:
            prefetch_row(fixed, i)
        look_at_group(g, fixed, group)
        for lane in range(group.size):
            e = g.entries[start + lane]
            until[e] = until_of(g.margins[lane], drift)
            old, new = np.int64(own[e]), g.found[lane]
            if new != old:
                own[e] = new
                m.labels[t, group[lane]] = new
                change_cluster(g.rows[lane], old, new, m.sizes[t], m.sums[t], dirty)


@njit(cache=True)
def _look_near(t, fixed, m, g, dirty):  # type: ignore[no-untyped-def]
    """Look again at the listed rows of step t that may have changed cluster; return how many they are."""
    put_centres(g, m.quantized[t])
    spans = m.starts.shape[1]
    count, seen = 0, 0
    for span in range(spans):
        count = _find_due(t, span, m, g, count)
        if count >= SPAN or span == spans - 1:
            _look_at_due(t, fixed, m, g, count, dirty)
            seen += count
            count = 0
    return seen


@njit(cache=True)
def _pass_over(t, fixed, units, m):  # type: ignore[no-untyped-def]
    m.sizes[t] = 0
    m.sums[t] = 0
    none = np.empty(0)
    tally = m.labels[t], m.margins[t], m.sizes[t], m.sums[t]
    limit = relative_error(fixed.shape[1])
    assign_rows(fixed, units, none, none, m.quantized[t] * 2, limit, *tally)
    start_anew(t, m)


@njit(cache=True)
def _follow(t, fixed, units, m, g, dirty):  # type: ignore[no-untyped-def]
    """Bring step t's rows up to its moved centroids; return (rows looked at, passes over all)."""
    shrink = np.empty(dirty.size)
    if net_shrinkage(t, m, shrink) < m.reach[t] or make_list(t, m, shrink):
        return _look_near(t, fixed, m, g, dirty), 0
    _pass_over(t, fixed, units, m)
    dirty[:] = True
    return 0, 1


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
def _replay(m, fixed, units, removed, spacing, before, threshold, max_iter):  # type: ignore[no-untyped-def]
    """Go through the steps: see ``delete_places``."""
    k, d = m.quantized.shape[1:]
    count = m.state[1]
    dirty, moved = np.zeros(k, np.bool_), np.zeros(k)
    row, analog = np.empty(d, np.int64), np.empty(d)
    for t in range(count):
        if not open_step(t, m, fixed, removed, spacing, threshold, dirty, moved, row, analog):
            return CONTINUE, t, 0, 0
        if any_moved(moved):
            given = dirty, moved, row, analog, spacing, before, threshold, max_iter
            return _replay_from(t, m, fixed, units, removed, *given)
        if not close_step(t, m, moved, dirty, threshold, before):
            return DONE, t + 1 if t + 1 < count else -1, 0, 0
    if count > max_iter:
        return DONE, -1, 0, 0
    return CONTINUE, count, 0, 0


@njit(cache=True)
def _replay_from(  # type: ignore[no-untyped-def]
    first, m, fixed, units, removed, dirty, moved, row, analog, spacing, before, threshold, max_iter
):
    """Go on from a step that is open, the first one whose centroids moved."""
    k, d = m.quantized.shape[1:]
    count = m.state[1]
    g = desk_for(k, d, min(2 * SPAN, m.near.shape[1]))
    seen, passes = 0, 0
    for t in range(first, count):
        opened = t == first or open_step(
            t, m, fixed, removed, spacing, threshold, dirty, moved, row, analog
        )
        if not opened:
            return CONTINUE, first, seen, passes
        if any_moved(moved):
            near, whole_pass = _follow(t, fixed, units, m, g, dirty)
            seen += near
            passes += whole_pass
        if not close_step(t, m, moved, dirty, threshold, before):
            return DONE, first, seen, passes
    return DONE if count > max_iter else CONTINUE, first, seen, passes


@njit(cache=True, nogil=True)
def run_steps(m, fixed, units, spacing, threshold, max_iter):  # type: ignore[no-untyped-def]
    """Train by passes from the seeds that step 0 has, over as many steps as there were before.

    ``quantized.fit`` in one compiled call, as far as no race and no new step is needed; lattice phases are the
    steps' own. Returns DONE or CONTINUE; ``m.state`` as in ``delete_places``.
    """
    k, d = m.quantized.shape[1:]
    dirty, moved = np.ones(k, np.bool_), np.zeros(k)
    row, analog = np.empty(d, np.int64), np.empty(d)
    count = m.state[1]
    for t in range(count):
        m.state[0] = t
        m.drawn[t] = t == 0
        if t > 0 and not move_centroids(t, m, spacing, threshold, dirty, moved, row, analog):
            return CONTINUE
        _pass_over(t, fixed, units, m)
        m.loss[t, 0], m.loss[t, 1] = loss_of(
            m.square_sum[0], m.square_sum[1], m.quantized[t], m.sizes[t], m.sums[t]
        )
        m.state[0] = t + 1
        if t > 0 and not drops(m, t):
            m.state[1] = t + 1
            return DONE
    return DONE if count > max_iter else CONTINUE
