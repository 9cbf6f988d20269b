"""The three objectives of PrIU (equations 2 to 4), row by row: gradients, curvature, interpolant.

A model is a matrix W (q, m): q = 1 for linear and binary logistic regression, the classes for
softmax. A row's negative gradient is c (x) x with c (q,), and its Hessian times V (q, m) is
d (x) x with d = D (V x), where D (q, q) is 2, minus the interpolant's slope, or diag(p) - p p^T.
"""

from __future__ import annotations

from enum import IntEnum
from math import exp, log1p

import numpy as np
from numba import njit
from numpy.typing import NDArray

SPAN = 20.0
"""The interpolant of f covers [-SPAN, SPAN] and is constant outside (PrIU, section 4.2)."""
PIECES = 1_000_000
"""Equal pieces of the interpolant."""


class Loss(IntEnum):
    """Which objective; the numbers are what compiled code gets."""

    LINEAR = 0
    LOGISTIC = 1
    SOFTMAX = 2


_LINEAR, _LOGISTIC, _SOFTMAX = (int(kind) for kind in Loss)


@njit(cache=True)
def falling(z):  # type: ignore[no-untyped-def]
    """Return f(z) = 1 / (1 + e^z), without overflow."""
    if z >= 0.0:
        e = exp(-z)
        return e / (1.0 + e)
    return 1.0 / (1.0 + exp(z))


@njit(cache=True)
def slope(z, pieces):  # type: ignore[no-untyped-def]
    """Return the slope at z of f's piecewise linear interpolant on equal pieces of [-20, 20]."""
    if z < -SPAN or z >= SPAN:
        return 0.0
    length = 2.0 * SPAN / pieces
    left = -SPAN + np.floor((z + SPAN) / length) * length
    # f(left + h) - f(left) = -f(left) f(-left - h) (1 - e^-h) without cancellation.
    return falling(left) * falling(-left - length) * np.expm1(-length) / length


@njit(cache=True)
def interpolated(z, pieces):  # type: ignore[no-untyped-def]
    """Return the interpolant of f at z: a z + b of PrIU, section 4.2."""
    length = 2.0 * SPAN / pieces
    inside = min(max(z, -SPAN), SPAN)
    left = -SPAN + np.floor((inside + SPAN) / length) * length
    # Not the slope at left: rounding may put a knot into the piece before it.
    return falling(left) + slope(inside, pieces) * (inside - left)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, inline="always")
def dot(a, b):  # type: ignore[no-untyped-def]
    """Return the sum of a[i] b[i], in any order of addition."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(cache=True)
def coefficients(loss, scores, label, c):  # type: ignore[no-untyped-def]
    """Fill c (q,) of a row with scores W x (q,); label: y, +-1 or the class's number."""
    if loss == _LINEAR:
        c[0] = 2.0 * (label - scores[0])
    elif loss == _LOGISTIC:
        c[0] = label * falling(label * scores[0])
    else:
        softmax(scores, c)
        for k in range(len(scores)):
            c[k] = -c[k]
        c[int(label)] += 1.0


@njit(cache=True)
def softmax(scores, p):  # type: ignore[no-untyped-def]
    """Fill p (q,) with the classes' probabilities."""
    top = scores[0]
    for k in range(1, len(scores)):
        top = max(top, scores[k])
    total = 0.0
    for k in range(len(scores)):
        p[k] = exp(scores[k] - top)
        total += p[k]
    for k in range(len(scores)):
        p[k] /= total


@njit(cache=True)
def curvatures(loss, scores, label, pieces, curvature):  # type: ignore[no-untyped-def]
    """Fill the curvature (q,) of a row: 2, minus the interpolant's slope, or the probabilities."""
    if loss == _LINEAR:
        curvature[0] = 2.0
    elif loss == _LOGISTIC:
        curvature[0] = -slope(label * scores[0], pieces)
    else:
        softmax(scores, curvature)


@njit(cache=True)
def both(loss, scores, label, pieces, c, curvature):  # type: ignore[no-untyped-def]
    """Fill c (q,) as ``coefficients`` does, and the curvature (q,) as ``curvatures`` does."""
    curvatures(loss, scores, label, pieces, curvature)
    if loss == _SOFTMAX:
        for k in range(len(scores)):
            c[k] = -curvature[k]
        c[int(label)] += 1.0
    else:
        coefficients(loss, scores, label, c)


@njit(cache=True)
def row_coefficients(loss, w, at, x, labels, c, curvature, pieces):  # type: ignore[no-untyped-def]
    """Fill c (n, q) and curvature (n, q) of rows x (n, m), row i under the model w[at[i]] (q m,)."""
    q, m = c.shape[1], x.shape[1]
    scores = np.empty(q)
    for i in range(len(x)):
        own = w[at[i]]
        for k in range(q):
            scores[k] = dot(own[k * m : (k + 1) * m], x[i])
        both(loss, scores, labels[i], pieces, c[i], curvature[i])


@njit(cache=True)
def _evaluate(loss, w, x, labels):  # type: ignore[no-untyped-def]
    q = len(w)
    total, right = 0.0, 0
    scores = np.empty(q)
    for i in range(len(x)):
        for k in range(q):
            scores[k] = dot(w[k], x[i])
        if loss == _LINEAR:
            total += (labels[i] - scores[0]) ** 2
        elif loss == _LOGISTIC:
            z = labels[i] * scores[0]
            total += log1p(exp(-abs(z))) + max(-z, 0.0)
            right += (scores[0] > 0.0) == (labels[i] > 0.0)
        else:
            top = scores.max()
            own = int(labels[i])
            total += np.log(np.exp(scores - top).sum()) + top - scores[own]
            right += np.argmax(scores) == own
    return total, right


def evaluate(
    loss: Loss, w: NDArray[np.float64], x: NDArray[np.float64], labels: NDArray[np.float64]
) -> tuple[float, int]:
    """Return (sum of the rows' losses, rows whose class is predicted right) of w (q, m).

    x (n, m) design rows; the L2 term is not in the sum; linear models predict no class.
    """
    total, right = _evaluate(int(loss), w, x, labels)
    return float(total), int(right)


def smoothness(loss: Loss, gram: NDArray[np.float64], l2: float, batch: float = np.inf) -> float:
    """Return L, the Lipschitz constant of the objective's gradient: of one mini-batch's, if given.

    gram: (m, m) mean of x x^T. The largest eigenvalue times 2, 1/4 or 1/2, plus the L2 rate. A mean
    over ``batch`` rows is steeper, by their mean |x|^2 over ``batch`` (expected smoothness: Gower et
    al., SGD: General Analysis and Improved Rates, 2019, with the mean for their maximum).
    """
    top = float(np.linalg.eigvalsh(gram)[-1]) + float(np.trace(gram)) / batch
    return {Loss.LINEAR: 2.0, Loss.LOGISTIC: 0.25, Loss.SOFTMAX: 0.5}[loss] * top + l2
