"""What curvature in the principal components leaves out of C u, carried to the end (kind ``projected``).

A part of the estimate, beside the linearisation's own error and the mean's (see ``estimate``). For
rows whose curvature D_i has nothing to do with their x x^T the mean of H_i is D (x) the mean of
x x^T, which the components make diagonal: then the update leaves out nothing. So what it leaves out
is told by D_i - D alone, which is free of most of a sample's noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .components import Basis
from .estimate import Estimate
from .lanczos import carried
from .left_out import Course
from .losses import Loss
from .provenance import curvature
from .remainders import Rows, Vectors

DECAY_ROWS = 64
"""Rows of a sample that tell how an error decays."""
HALVES = (slice(0, None, 2), slice(1, None, 2))


def projection_error(course: Course, basis: Basis) -> Estimate:
    """Return the error of what curvature in the basis leaves out alone, told from live rows."""
    descent, u = course.descent, course.u
    thin = course.sample.thinned(DECAY_ROWS)
    ahead = _curvature(descent.loss, course.trajectory + u, thin)
    path = (int(descent.loss), descent.learning_rate, descent.l2, thin.rows, ahead)
    ends = [
        carried(*path, course.spans.lengths, means, np.zeros_like(u))
        for means in _left_out(course, basis)
    ]
    # What both halves agree on is free of sampling noise.
    noise = float(np.square(ends[0] - ends[1]).sum()) / 4.0
    trend = max(noise / 4.0, float(ends[0] @ ends[1])) ** 0.5
    # An error beyond the change itself says only that the update failed.
    largest = float(np.linalg.norm(course.updated.starts[-2:], axis=1).max())
    return Estimate(min(trend, largest), 0.0, 0.0)


def _left_out(course: Course, basis: Basis) -> tuple[Vectors, Vectors]:
    """What the update took for C u less C u (S, P), by either half of the sample."""
    loss, sample, u = course.descent.loss, course.sample, course.u
    curved = _curvature(loss, course.trajectory, sample)
    whole, inner = (_scores(v, sample) for v in (u, basis.whole(basis.inside(u))))
    found = []
    for half in HALVES:
        own = [sample.mean(_own(loss, curved, shift, half), half) for shift in (whole, inner)]
        found.append(basis.whole(basis.inside(own[1])) - own[0])
    return found[0], found[1]


def _scores(u: Vectors, rows: Rows) -> NDArray[np.float64]:
    """U x_i (S, n, q) of rows, for u (S, P)."""
    n, m = rows.rows.shape
    products = rows.rows @ u.reshape(-1, m).T
    return np.ascontiguousarray(products.reshape(n, len(u), -1).swapaxes(0, 1))


def _curvature(loss: Loss, w: Vectors, rows: Rows) -> NDArray[np.float64]:
    """(S, n, q) of rows under models w (S, P)."""
    models = w.reshape(len(w), -1, rows.rows.shape[1])
    return np.stack([curvature(loss, model, rows.rows, rows.labels) for model in models])


def _own(
    loss: Loss, curved: NDArray[np.float64], shift: NDArray[np.float64], half: slice
) -> NDArray[np.float64]:
    """(S, n, q): (D_i - D) U x_i with D the mean over a half of the rows; shift (S, n, q): U x_i."""
    p = curved[:, half]
    mean = np.eye(p.shape[2]) * p.mean(axis=1)[:, :, np.newaxis]
    bent = curved * shift
    if loss == Loss.SOFTMAX:
        mean -= np.matmul(p.transpose(0, 2, 1), p) / p.shape[1]
        bent -= curved * bent.sum(axis=2, keepdims=True)
    found: NDArray[np.float64] = bent - np.matmul(shift, mean)
    return found
