"""Functions of a descent's step A = (1 - eta lambda) I - eta H times a vector, by Lanczos steps.

H is the mean Hessian of some rows (n, m) with curvature (n, q), and never built.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .remainders import bend

STEPS = 6
"""Lanczos steps for one function of A times a vector, at most."""
LOWEST = -0.9
"""Factors of A below this come from too small a sample: a descent that ended has none below -1."""


@njit(cache=True, nogil=True)
def hessian_times(loss, rows, curvature, v):  # type: ignore[no-untyped-def]
    """Return H v (P,)."""
    (n, m), q = rows.shape, curvature.shape[1]
    scores = np.dot(rows, v.reshape(q, m).T)
    bent = np.zeros((n, q))
    for i in range(n):
        bend(loss, curvature[i], scores[i], 1.0 / n, bent[i])
    return np.dot(bent.T, rows).ravel()


@njit(cache=True, nogil=True)
def lanczos(loss, rows, curvature, z, most):  # type: ignore[no-untyped-def]
    """Return basis (k, P), Ritz values (k,) ascending, and weights W (k, k), for z not zero.

    most: Lanczos steps. f(H) z is about |z| (W (f W[0])) @ basis.
    """
    basis = np.zeros((most, len(z)))
    tri = np.zeros((most, most))
    norm = np.sqrt(np.dot(z, z))
    size = 0
    v = z
    while size < most and norm > 1e-10 * tri[0, 0]:
        if size:
            tri[size, size - 1] = norm
            tri[size - 1, size] = norm
        basis[size] = v / norm
        v = hessian_times(loss, rows, curvature, basis[size])
        tri[size, size] = np.dot(v, basis[size])
        size += 1
        if size < most:
            known = basis[:size]
            v -= np.dot(np.dot(known, v), known)
            norm = np.sqrt(np.dot(v, v))
    values, weights = np.linalg.eigh(tri[:size, :size].copy())
    return basis[:size], values, weights


@njit(cache=True, inline="always")
def geometric(a, length):  # type: ignore[no-untyped-def]
    """Return 1 + a + ... + a^(length - 1)."""
    gap = 1.0 - a
    if abs(gap) * length < 1e-6:
        return float(length)
    power = abs(a) ** length
    return (1.0 - (-power if a < 0.0 and length % 2 == 1 else power)) / gap


@njit(cache=True, inline="always")
def factor(rate, l2, value):  # type: ignore[no-untyped-def]
    """Return A's factor along an eigenvector of H."""
    return min(max(1.0 - rate * (l2 + value), LOWEST), 1.0 - 1e-12)


@njit(cache=True, nogil=True)
def summed(loss, rate, l2, rows, curvature, length, z, most):  # type: ignore[no-untyped-def]
    """Return (I + A + ... + A^(length - 1)) z, by so many Lanczos steps at most."""
    norm = np.sqrt(np.dot(z, z))
    if norm == 0.0:
        return z.copy()
    basis, values, weights = lanczos(loss, rows, curvature, z, most)
    inner = np.zeros(len(values))
    for j in range(len(values)):
        sums = geometric(factor(rate, l2, values[j]), length)
        inner += norm * sums * weights[0, j] * weights[:, j]
    return np.dot(inner, basis)


@njit(cache=True, nogil=True)
def carried(loss, rate, l2, rows, curvature, lengths, means, jumps):  # type: ignore[no-untyped-def]
    """Return e (P,) after L spans of e <- A e - eta mean at every iteration, e <- e + jump at the end.

    rows (n, m), curvature (L, n, q), lengths (L,) iterations, means and jumps (L, P).
    """
    error = np.zeros(means.shape[1])
    for s in range(len(means)):
        slope = means[s] + l2 * error + hessian_times(loss, rows, curvature[s], error)
        error += summed(loss, rate, l2, rows, curvature[s], lengths[s], -rate * slope, STEPS)
        error += jumps[s]
    return error


@njit(cache=True, nogil=True)
def scattered(loss, rate, l2, rows, curvature, edges, steps, wander, cycle, most):  # type: ignore[no-untyped-def]
    """Return the mean squared error at the end that a random step at every iteration causes.

    edges (S + 1,) iterations; steps (S, P). Steps times a constant add up to zero over ``cycle``
    iterations. wander (S, 2): how a step's factor moves, relative to itself: steadily an iteration,
    and the mean square at random.
    """
    total = 0.0
    for s in range(len(steps)):
        size = np.dot(steps[s], steps[s])
        if size == 0.0:
            continue
        _, values, weights = lanczos(loss, rows, curvature, steps[s], most)
        found = values, weights[0], rate, l2, edges[s : s + 2], edges[-1]
        total += size * scatter(*found, wander[s], cycle)
    return total


@njit(cache=True, nogil=True)
def scatter(values, shares, rate, l2, span, end, wander, cycle):  # type: ignore[no-untyped-def]
    """Return the mean square at the end, as ``scattered`` has it, of one span's steps of size one.

    values (k,) Ritz values, shares (k,) of a step along their vectors; span: (first, last) iteration.
    """
    total, length, rest = 0.0, span[1] - span[0], end - span[1]
    for j in range(len(values)):
        a = factor(rate, l2, values[j])
        memory = min(1.0 / (1.0 - a), cycle)
        kept = ((wander[0] * memory) ** 2 / 2.0 + wander[1] * memory) / 6.0
        kept += max(0.0, 1.0 - geometric(a, cycle) ** 2 / (cycle * geometric(a * a, cycle)))
        total += shares[j] ** 2 * kept * abs(a) ** (2 * rest) * geometric(a * a, length)
    return total


@njit(cache=True, nogil=True)
def smear(values, shares, rate, l2, span, end, reach, longest):  # type: ignore[no-untyped-def]
    """Return the mean square at the end of taking random steps of size one too early or too late.

    They move by up to reach / (eta H's largest eigenvalue) iterations, ``longest`` at most. Else as
    ``scatter`` has it.
    """
    total, length, rest = 0.0, span[1] - span[0], end - span[1]
    away = min(longest, int(min(1e9, reach / max(1e-12, rate * (l2 + values.max())))))
    for j in range(len(values)):
        a = factor(rate, l2, values[j])
        kept = (1.0 - a) ** 2 * away * (away + 1) / 3.0
        total += shares[j] ** 2 * kept * abs(a) ** (2 * rest) * geometric(a * a, length)
    return total
