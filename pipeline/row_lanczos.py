"""Lanczos steps on the mean Hessian H of few rows, in the coordinates of these rows.

All vectors that come of z (P,) by H are a z + X^T c, for rows X (n, m): a number, and coefficients
c (q, n). Their products with one another and with H need the scores X z, the rows' products
X X^T (n, n) and |z|^2, but no vector (P,). Scores and curvature stand by classes, (q, n).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .lanczos import factor, geometric
from .losses import dot

MOST_TURNS, EXACT = 30, 1e-32
"""Jacobi's sweeps at most, and the share of the squares that may stay beside the diagonal."""
ROUNDING = 1e-11
"""What is left of a vector in a new direction is rounding alone where its square is below this share."""


@njit(cache=True, nogil=True)
def bend_by_class(loss, curvature, scores, share, out):  # type: ignore[no-untyped-def]
    """Add share D scores to out, all (q, n)."""
    q, n = scores.shape
    if loss != 2:
        for i in range(n):
            out[0, i] += share * curvature[0, i] * scores[0, i]
        return
    mean = np.zeros(n)
    for k in range(q):
        for i in range(n):
            mean[i] += curvature[k, i] * scores[k, i]
    for k in range(q):
        for i in range(n):
            out[k, i] += share * curvature[k, i] * (scores[k, i] - mean[i])


@njit(cache=True, nogil=True)
def small_eigen(matrix):  # type: ignore[no-untyped-def]
    """Return eigenvalues (k,) and, by column, eigenvectors (k, k) of a small symmetric matrix.

    Jacobi's rotations (Golub and Van Loan, Matrix Computations, section 8.5): for a few rows many
    times faster than a call of LAPACK. The matrix becomes diagonal.
    """
    k = len(matrix)
    vectors, scale, rest = np.eye(k), 0.0, 0.0
    for i in range(k):
        for j in range(k):
            scale += matrix[i, j] ** 2
    for _ in range(MOST_TURNS):
        rest = 0.0
        for i in range(1, k):
            for j in range(i):
                rest += matrix[i, j] ** 2
        if not rest > EXACT * scale:
            break
        for i in range(1, k):
            for j in range(i):
                if matrix[j, i] != 0.0:
                    _rotate(matrix, vectors, j, i)
    return np.diag(matrix), vectors


@njit(cache=True, nogil=True)
def _rotate(matrix, vectors, i, j):  # type: ignore[no-untyped-def]
    """Make entry (i, j) zero by a rotation of rows and columns, and the vectors' columns with them."""
    theta = (matrix[j, j] - matrix[i, i]) / (2.0 * matrix[i, j])
    tangent = 1.0 / (abs(theta) + np.sqrt(theta * theta + 1.0))
    if theta < 0.0:
        tangent = -tangent
    cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    for l in range(len(matrix)):
        a, b = matrix[i, l], matrix[j, l]
        matrix[i, l], matrix[j, l] = cosine * a - sine * b, sine * a + cosine * b
    for l in range(len(matrix)):
        a, b = matrix[l, i], matrix[l, j]
        matrix[l, i], matrix[l, j] = cosine * a - sine * b, sine * a + cosine * b
        a, b = vectors[l, i], vectors[l, j]
        vectors[l, i], vectors[l, j] = cosine * a - sine * b, sine * a + cosine * b


@njit(cache=True, nogil=True)
def krylov(loss, gram, curvature, start, square, most):  # type: ignore[no-untyped-def]
    """Return the basis as numbers (k,) and coefficients (k, q n), Ritz values (k,) and weights W (k, k).

    gram: (n, n) X X^T. start: (q, n) scores of z. square: |z|^2 > 0. most: Lanczos steps. f(H) z is
    about |z| (W (f W[0])) @ basis.
    """
    q, n = start.shape
    seen, parts = np.empty((most, q * n)), np.zeros((most, q * n))
    numbers, tri = np.zeros(most), np.zeros((most, most))
    numbers[0] = 1.0 / np.sqrt(square)
    seen[0] = start.ravel() * numbers[0]
    size, largest = 0, 0.0
    while True:
        bent = np.zeros((q, n))
        bend_by_class(loss, curvature, seen[size].reshape(q, n), 1.0 / n, bent)
        force = bent.ravel()
        tri[size, size] = dot(seen[size], force)
        size += 1
        if size == most:
            break
        _next(seen, parts, numbers, size, force, np.dot(bent, gram).ravel())
        # What is left is at right angles to the basis, so that this is its square.
        left = dot(seen[size], force)
        largest = max(largest, tri[size - 1, size - 1] ** 2 + left)
        if not left > ROUNDING * largest:
            break
        norm = np.sqrt(left)
        tri[size, size - 1], tri[size - 1, size] = norm, norm
        numbers[size] /= norm
        for c in range(q * n):
            seen[size, c] /= norm
            parts[size, c] /= norm
    values, weights = small_eigen(tri[:size, :size].copy())
    return numbers[:size], parts[:size], values, weights


@njit(cache=True, nogil=True)
def _next(seen, parts, numbers, size, force, turned):  # type: ignore[no-untyped-def]
    """Fill place ``size`` with X^T force (q n,), of scores ``turned``, less what is along the places before."""
    new, part = seen[size], parts[size]
    for c in range(len(force)):
        new[c], part[c] = turned[c], force[c]
    for i in range(size):
        along, known, old = dot(seen[i], force), seen[i], parts[i]
        numbers[size] -= along * numbers[i]
        for c in range(len(force)):
            new[c] -= along * known[c]
            part[c] -= along * old[c]


@njit(cache=True, nogil=True)
def summed_by_rows(loss, rate, l2, gram, curvature, length, start, square, most):  # type: ignore[no-untyped-def]
    """Return (I + A + ... + A^(length - 1)) z as a number and coefficients (q, n); see ``krylov``."""
    numbers, parts, values, weights = krylov(loss, gram, curvature, start, square, most)
    norm, number, part = np.sqrt(square), 0.0, np.zeros(parts.shape[1])
    sums = np.empty(len(values))
    for j in range(len(values)):
        sums[j] = norm * weights[0, j] * geometric(factor(rate, l2, values[j]), length)
    for i in range(len(values)):
        share, old = dot(weights[i], sums), parts[i]
        number += share * numbers[i]
        for c in range(len(part)):
            part[c] += share * old[c]
    return number, part.reshape(start.shape)


@njit(cache=True, nogil=True)
def carry_by_rows(kind, rows, gram, curvature, length, mean, jump, error, most):  # type: ignore[no-untyped-def]
    """Take the error (P,) through a span as ``lanczos.carried`` does, in place.

    kind: (loss, eta, lambda). rows (n, m), gram (n, n), curvature (q, n), length: iterations; mean and
    jump (P,).
    """
    loss, rate, l2 = kind
    q, m = curvature.shape[0], rows.shape[1]
    both = np.empty((2, q * m))
    for j in range(q * m):
        both[0, j], both[1, j] = error[j], mean[j] + l2 * error[j]
        error[j] += jump[j]
    seen = np.dot(both.reshape(2 * q, m), rows.T)
    own = np.zeros(curvature.shape)
    bend_by_class(loss, curvature, seen[:q], 1.0 / len(rows), own)
    slope = np.dot(own, gram)
    square = dot(both[1], both[1])
    for k in range(q):
        for i in range(len(rows)):
            square += own[k, i] * seen[q + k, i]
            slope[k, i] += seen[q + k, i]
            square += own[k, i] * slope[k, i]
    if not square > 0.0:
        return
    number, part = summed_by_rows(loss, rate, l2, gram, curvature, length, slope, square, most)
    for k in range(q):
        for i in range(len(rows)):
            part[k, i] += number * own[k, i]
    step = np.dot(part, rows).ravel()
    for j in range(q * m):
        error[j] -= rate * (step[j] + number * both[1, j])
