"""What drives the error of an update by averaged curvature, and what is left of it at the end.

Besides the second order: a Hessian is not its block's mean, be its row live or leaving. Blocks look
at groups of the sample in turns: together they see all of its rows, and a block costs little. All is
compiled, as an update of small models takes a few milliseconds. Scores and curvature stand by
classes, (q, n), and models as pairs (2, P) of w and u.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from numba import njit

from .averaged import SMEAR, SWEEPS
from .forces import TINY, Deletion, between, firsts
from .lanczos import STEPS, hessian_times, scatter, smear, summed
from .losses import PIECES, both, dot
from .remainders import SOFTMAX, signs
from .row_lanczos import bend_by_class, carry_by_rows, krylov
from .update import Updated

LIVE_GROUPS, LIVE_ROWS = 8, 32
LEAVING_GROUPS, LEAVING_ROWS = 4, 16
"""Blocks look in turns at so many groups of the rows, of these sizes or larger."""
DECAY_ROWS = 64
"""Rows of a group that tell how an error decays, at most."""
FEW_STEPS = 3
"""Lanczos steps, where updates are as cheap as with averaged curvature."""
NEGLIGIBLE = 0.05
"""A first sweep that corrects u by less leaves later ones nothing to correct."""
GROWTH = factorial(SWEEPS + 1) ** (1.0 / (SWEEPS + 1))
"""u grows from nothing in a block at worst, so that the k-th integral of it is about 1 / k! of a power."""


def averaged_error(deletion: Deletion, updated: Updated) -> tuple[float, float, float]:
    """Return (the two halves' mean errors' product, the square of their difference, the mean square of
    what is random), at the end; by either half of the rows looked at."""
    spans, batches, descent = deletion.spans, deletion.batches, deletion.descent
    live, labels = deletion.live.grouped(LIVE_GROUPS, LIVE_ROWS)
    gone, their = deletion.gone.grouped(LEAVING_GROUPS, LEAVING_ROWS)
    found: tuple[float, float, float] = _error(
        (int(descent.loss), descent.learning_rate, descent.l2),
        (batches.before, batches.after, batches.per_epoch),
        (deletion.per_row, deletion.lost),
        spans.blocks.length,
        firsts(spans.blocks),
        spans.edges,
        updated.starts,
        deletion.trajectory,
        (live, labels, signs(live.shape[1], 0)),
        (gone, their, signs(gone.shape[1], 1)),
    )
    return found


@njit(cache=True, nogil=True)
def _error(kind, batches, factors, length, starts, edges, known, w, sample, leaving):  # type: ignore[no-untyped-def]
    """Return what ``averaged_error`` does.

    kind: (loss, eta, lambda). batches: (live rows before, after, iterations an epoch). factors: of one
    live and of one leaving row's random term. length: iterations of a block. known (B + 1, P): u at
    the iterations ``starts``. edges (S + 1,), w (S, P). sample, leaving: groups of rows (G, n, m),
    labels (G, n), and signs (n,).
    """
    u, drift = between(known, starts, length, edges)
    models = _paired(w, u)
    bounds = _bounds(edges, length)
    count, first = len(bounds) - 1, edges[0] // length
    steps, wander = np.empty((2, count, w.shape[1])), np.empty((count, 2))
    errors, share = np.zeros((2, w.shape[1])), 1.0 - batches[1] / batches[0]
    for b in range(count):
        here, last = slice(bounds[b], bounds[b + 1]), bounds[b + 1] - 1
        live, labels = _group(sample, first + b)
        gone, their = _group(leaving, first + b)
        lengths = np.diff(edges[bounds[b] : bounds[b + 1] + 1]).astype(np.float64)
        kept = _live_terms(kind[0], models[here], lengths, live, labels)
        lost = _gone_terms(kind[0], models[here], lengths, gone, their)
        jump = _jump(kind, share, live, kept, gone, lost, u[last], lengths.sum())
        # Whole blocks but for the last: what differs within one is forgotten by the end, or adds up to
        # nothing.
        whole = b < count - 1
        _carry(kind, batches, lengths, whole, live, kept, gone, lost[0], jump, errors)
        bent = factors[1] * _flipped(lost[1], leaving[2], gone)
        steps[0, b] = factors[0] * _flipped(kept[2], sample[2], live) + bent
        steps[1, b] = factors[1] * _flipped(lost[2], leaving[2], gone)
        size = max(TINY, np.sqrt(dot(u[last], u[last])))
        wander[b, 0], wander[b, 1] = drift[last] / size, dot(steps[1, b], steps[1, b]) / size**2
    several = (batches[0] - batches[1]) * length >= 2.0
    reach = min(batches[2], length), length // 2 if several else 0
    squares = _squares(kind, reach, edges[bounds], live, kept[1][-1], steps, wander)
    gap = errors[0] - errors[1]
    return dot(errors[0], errors[1]), dot(gap, gap), squares


@njit(cache=True, nogil=True)
def _paired(w, u):  # type: ignore[no-untyped-def]
    """Return (S, 2, P): models w (S, P), and how they move."""
    out = np.empty((len(w), 2, w.shape[1]))
    out[:, 0], out[:, 1] = w, u
    return out


@njit(cache=True, nogil=True)
def _bounds(edges, length):  # type: ignore[no-untyped-def]
    """Return (B + 1,) the first span of each block that has any, and the number of spans."""
    found = [0]
    for s in range(1, len(edges) - 1):
        if edges[s] % length == 0:
            found.append(s)
    found.append(len(edges) - 1)
    return np.array(found)


@njit(cache=True, nogil=True)
def _group(groups, block):  # type: ignore[no-untyped-def]
    """Return the rows (n, m) and labels (n,) that a block looks at."""
    g = block % len(groups[0])
    return groups[0][g], groups[1][g]


@njit(cache=True, nogil=True)
def _answers(loss, scores, labels, gradient, curvature):  # type: ignore[no-untyped-def]
    """Fill g_i and the curvature (q, n) of rows with these scores (q, n)."""
    q, n = scores.shape
    if loss != SOFTMAX:
        for i in range(n):
            both(loss, scores[:, i], labels[i], PIECES, gradient[:, i], curvature[:, i])
        return
    top, total = scores[0].copy(), np.zeros(n)
    for k in range(1, q):
        for i in range(n):
            top[i] = max(top[i], scores[k, i])
    for k in range(q):
        for i in range(n):
            curvature[k, i] = np.exp(scores[k, i] - top[i])
            total[i] += curvature[k, i]
    for k in range(q):
        for i in range(n):
            curvature[k, i] /= total[i]
            gradient[k, i] = -curvature[k, i]
    for i in range(n):
        gradient[int(labels[i]), i] += 1.0


@njit(cache=True, nogil=True)
def _live_terms(loss, models, lengths, rows, labels):  # type: ignore[no-untyped-def]
    """Return what live rows (n, m) say of a block's k places, with models (k, 2, P) and lengths (k,).

    r (k, q, n) and the curvature at w + u (k, q, n) of each place; at the last place the gradients'
    move less its mean (q, n), and H u by the curvature of the first (q, n); and that curvature (q, n).
    """
    n, m = rows.shape
    places, q = len(models), models.shape[2] // m
    seen = np.dot(models.reshape(places * 2 * q, m), rows.T).reshape(places, 2, q, n)
    c, moved = np.empty((q, n)), np.empty((places, q, n))
    curvature, ahead = np.empty((places, q, n)), np.empty((places, q, n))
    for j in range(places):
        _answers(loss, seen[j, 0], labels, c, curvature[j])
        _answers(loss, seen[j, 0] + seen[j, 1], labels, moved[j], ahead[j])
        moved[j] -= c
    late, grown = moved[-1].copy(), np.zeros((q, n))
    for k in range(q):
        late[k] -= late[k].mean()
    bend_by_class(loss, curvature[0], seen[-1, 1], 1.0, grown)
    _bend_by_mean(loss, curvature, lengths, seen, moved)
    return moved, ahead, late, grown, curvature[0]


@njit(cache=True, nogil=True)
def _gone_terms(loss, models, lengths, rows, labels):  # type: ignore[no-untyped-def]
    """Return what leaving rows (n, m) say of a block's k places, as ``_live_terms`` does.

    H u by the block's mean less its own (k, q, n); at the last place H u and the gradients (q, n), and H
    u by the curvature of the first; and that curvature (q, n).
    """
    n, m = rows.shape
    places, q = len(models), models.shape[2] // m
    seen = np.dot(models.reshape(places * 2 * q, m), rows.T).reshape(places, 2, q, n)
    c, curvature = np.empty((q, n)), np.empty((places, q, n))
    lost, here, grown = np.zeros((places, q, n)), np.zeros((q, n)), np.zeros((q, n))
    for j in range(places):
        _answers(loss, seen[j, 0], labels, c, curvature[j])
        bend_by_class(loss, curvature[j], seen[j, 1], -1.0, lost[j])
    here[:] = -lost[-1]
    bend_by_class(loss, curvature[0], seen[-1, 1], 1.0, grown)
    _bend_by_mean(loss, curvature, lengths, seen, lost)
    return lost, here, c, grown, curvature[0]


@njit(cache=True, nogil=True)
def _bend_by_mean(loss, curvature, lengths, seen, out):  # type: ignore[no-untyped-def]
    """Add rows' mean Hessians over k places, weighted by lengths (k,), times u to out (k, q, n)."""
    whole = lengths.sum()
    for j in range(len(out)):
        for k in range(len(out)):
            bend_by_class(loss, curvature[k], seen[j, 1], lengths[k] / whole, out[j])


@njit(cache=True, nogil=True)
def _averaged(values, lengths):  # type: ignore[no-untyped-def]
    """Return the mean (q, n) of values (k, q, n) at places, weighted by lengths (k,)."""
    out, whole = np.zeros(values.shape[1:]), lengths.sum()
    for j in range(len(values)):
        for k in range(out.shape[0]):
            for i in range(out.shape[1]):
                out[k, i] += lengths[j] / whole * values[j, k, i]
    return out


@njit(cache=True, nogil=True)
def _combined(values, rows):  # type: ignore[no-untyped-def]
    """Return (P,): the mean of values (q, n) (x) x over rows (n, m)."""
    return np.dot(values, rows).ravel() / len(rows)


@njit(cache=True, nogil=True)
def _flipped(values, flips, rows):  # type: ignore[no-untyped-def]
    """Return (P,): a random vector whose second moment is that of one row's values (q, n) (x) x."""
    return np.dot(values * flips, rows).ravel() / np.sqrt(len(rows))


@njit(cache=True, nogil=True)
def _carry(kind, batches, lengths, whole, live, kept, gone, lost, jump, errors):  # type: ignore[no-untyped-def]
    """Take the errors (2, P) by either half of the live rows through a block, in one go if ``whole``.

    How an error decays is told by the other half: a few rows' own curvature is the steepest where they
    drive the error to. Far fewer rows tell that than what the error is.
    """
    n, half = len(live), len(live) // 2
    more, still = batches[0] / batches[1] - 1.0, np.zeros(len(jump))
    parts = (0, half), (half, n)
    tells = (half, min(n, half + DECAY_ROWS)), (0, min(half, DECAY_ROWS))
    grams = [np.dot(live[a:b], live[a:b].T) for a, b in tells]
    places = len(lengths)
    for leg in range(1 if whole else places):
        a, b = (0, places) if whole else (leg, leg + 1)
        length = lengths[a:b].sum()
        left = _averaged(kept[0][a:b], lengths[a:b])
        shared = more * _combined(_averaged(lost[a:b], lengths[a:b]), gone)
        for h in range(2):
            first, last = parts[h]
            mean = _combined(np.ascontiguousarray(left[:, first:last]), live[first:last]) + shared
            first, last = tells[h]
            curved = np.ascontiguousarray(kept[1][b - 1][:, first:last])
            told = live[first:last], grams[h], curved
            end = jump if b == places else still
            carry_by_rows(kind, *told, length, mean, end, errors[h], FEW_STEPS)


@njit(cache=True, nogil=True)
def _jump(kind, share, live, kept, gone, lost, u, length):  # type: ignore[no-untyped-def]
    """Return (P,), at a block's end: the correction that one more sweep would make.

    A sweep integrates (eta / b) sum of (H_i - H) u over the leaving rows. share: of the rows that
    leave. u (P,) at the last place; length: iterations.
    """
    loss, rate, l2 = kind
    length /= GROWTH
    v = rate * share * (_combined(lost[3], gone) - _combined(kept[3], live))
    if length * np.sqrt(dot(v, v)) < NEGLIGIBLE * np.sqrt(dot(u, u)):
        return np.zeros(len(u))
    curved, fewer = np.ascontiguousarray(kept[4].T), np.ascontiguousarray(lost[4].T)
    rows, joint = _together(live, curved, gone, fewer, share)
    for _ in range(SWEEPS):
        v = summed(loss, rate, l2, rows, joint, length, v, STEPS)
        v = hessian_times(loss, gone, fewer, v) - hessian_times(loss, live, curved, v)
        v *= rate * share
    return summed(loss, rate, l2, rows, joint, length, v, STEPS)


@njit(cache=True, nogil=True)
def _together(live, curved, gone, fewer, share):  # type: ignore[no-untyped-def]
    """Return rows and curvature whose mean Hessian is both kinds', the leaving ones' by their share."""
    a, n = len(live), len(live) + len(gone)
    rows, joint = np.empty((n, live.shape[1])), np.empty((n, curved.shape[1]))
    rows[:a] = live * np.sqrt((1.0 - share) * n / a)
    rows[a:] = gone * np.sqrt(share * n / len(gone))
    joint[:a], joint[a:] = curved, fewer
    return rows, joint


@njit(cache=True, nogil=True)
def _squares(kind, reach, edges, rows, curvature, steps, wander):  # type: ignore[no-untyped-def]
    """Return the mean square at the end of random steps (2, B, P), an iteration's and the leaving rows'.

    reach: (iterations over which they cancel, and by which the leaving rows' may be taken too early or
    too late).
    """
    (loss, rate, l2), (cycle, longest) = kind, reach
    some = rows[:DECAY_ROWS]
    n, m = some.shape
    q = len(curvature)
    curved, gram = np.ascontiguousarray(curvature[:, :n]), np.dot(some, some.T)
    seen = np.dot(steps.reshape(-1, m), some.T).reshape(2, -1, q, n)
    total = 0.0
    for which in range(2 if longest else 1):
        for b in range(steps.shape[1]):
            step = steps[which, b]
            square = dot(step, step)
            if square == 0.0:
                continue
            _, _, values, weights = krylov(loss, gram, curved, seen[which, b], square, FEW_STEPS)
            found = values, weights[0], rate, l2, edges[b : b + 2], edges[-1]
            if which:
                total += square * smear(*found, SMEAR, longest)
            else:
                total += square * scatter(*found, wander[b], cycle)
    return total
