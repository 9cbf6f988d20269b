"""What curvature in the principal components leaves out of C u, carried to the end (kind ``projected``).

A part of the estimate, beside the linearisation's own error and the mean's (see ``estimate``). For
rows whose curvature D_i has nothing to do with their x x^T the mean of H_i is D (x) the mean of
x x^T, which the components make diagonal: then the update leaves out nothing. So what it leaves out
is told by D_i - D alone, which is free of most of a sample's noise. That holds for the rows the
components are of. The x x^T of rows that leave is not diagonal in them, and Lambda and the update's D
are still of all rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .components import Basis
from .estimate import GONE_ROWS, Estimate
from .lanczos import carried
from .left_out import Course
from .losses import Loss
from .provenance import curvature
from .remainders import Rows, Vectors

DECAY_ROWS = 64
"""Rows of a sample that tell how an error decays."""
GROUPS = 6
"""Parts of a sample that are compared with each other."""


def projection_error(course: Course, basis: Basis, gone: Rows, rows: int) -> Estimate:
    """Return the error of what curvature in the basis leaves out alone, told from live rows.

    gone: the rows that leave. rows: how many are live in all. Their mean is what groups of the sample agree on, and what so
    many rows have besides by chance: their own sampling noise, which is far less than the sample's.
    """
    descent, u = course.descent, course.u
    thin = course.sample.thinned(DECAY_ROWS)
    ahead = _curvature(descent.loss, course.trajectory + u, thin)
    path = (int(descent.loss), descent.learning_rate, descent.l2, thin.rows, ahead)
    lengths, still = course.spans.lengths, np.zeros_like(u)
    stay = rows / (rows + len(gone.rows))
    leaving = (1.0 / stay - 1.0) * _leaving(course, basis, gone.thinned(GONE_ROWS), stay)
    means = (m + leaving for m in _left_out(course, basis))
    ends = np.stack([carried(*path, lengths, m, still) for m in means])
    square = _common(ends) + _noise(ends) * len(course.sample.rows) / max(1, rows)
    # An error beyond the change itself says only that the update failed.
    largest = float(np.linalg.norm(course.updated.starts[-2:], axis=1).max())
    return Estimate(min(float(np.sqrt(square)), largest), 0.0, 0.0)


def _common(ends: Vectors) -> float:
    """The square of what all groups' vectors (g, P) have in common, and its standard error."""
    pairs = (ends @ ends.T)[np.triu_indices(len(ends), 1)]
    return max(0.0, float(pairs.mean())) + float(pairs.std() / np.sqrt(len(pairs)))


def _noise(ends: Vectors) -> float:
    """The mean squared error of the groups' mean."""
    apart = float(np.square(ends - ends.mean(axis=0)).sum())
    return apart / (len(ends) * max(1, len(ends) - 1))


def _left_out(course: Course, basis: Basis) -> list[Vectors]:
    """What the update took for C u less C u (S, P), by each of some groups of the sample."""
    loss, sample, u = course.descent.loss, course.sample, course.u
    curved = _curvature(loss, course.trajectory, sample)
    whole, inner = (_scores(v, sample) for v in (u, basis.whole(basis.inside(u))))
    found = []
    groups = max(2, min(GROUPS, len(sample.rows) // 2))
    for k in range(groups):
        part = slice(k, None, groups)
        own = [sample.mean(_own(loss, curved, shift, part), part) for shift in (whole, inner)]
        found.append(basis.whole(basis.inside(own[1])) - own[0])
    return found


def _leaving(course: Course, basis: Basis, gone: Rows, stay: float) -> Vectors:
    """What leaving rows make of the components, times u (S, P); stay: the live rows' share.

    With G the mean of their x x^T and D' that of their curvature, outside of the basis:
    (D (x) G - (D + stay (D - D')) (x) Lambda) u.
    """
    loss, u, sample, w = course.descent.loss, course.u, course.sample, course.trajectory
    mean, their = (_mean(loss, _curvature(loss, w, rows)) for rows in (sample, gone))
    parts = (u, basis.whole(basis.inside(u)))
    whole, inner = (gone.mean(np.matmul(_scores(v, gone), mean)) for v in parts)
    outer = np.where(np.arange(len(basis.values)) < basis.rank, 0.0, basis.values)
    coordinates = u.reshape(len(u), -1, len(outer)) @ basis.vectors * outer
    mean += stay * (mean - their)
    taken = np.matmul(mean, coordinates @ basis.vectors.T).reshape(u.shape)
    found: Vectors = whole - basis.whole(basis.inside(inner)) - taken
    return found


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
    loss: Loss, curved: NDArray[np.float64], shift: NDArray[np.float64], part: slice
) -> NDArray[np.float64]:
    """(S, n, q): (D_i - D) U x_i with D the mean over a part of the rows; shift (S, n, q): U x_i."""
    bent: NDArray[np.float64] = curved * shift
    if loss == Loss.SOFTMAX:
        bent -= curved * bent.sum(axis=2, keepdims=True)
    bent -= np.matmul(shift, _mean(loss, curved[:, part]))
    return bent


def _mean(loss: Loss, curved: NDArray[np.float64]) -> NDArray[np.float64]:
    """(S, q, q): the rows' mean D."""
    mean: NDArray[np.float64] = np.eye(curved.shape[2]) * curved.mean(axis=1)[:, :, np.newaxis]
    if loss == Loss.SOFTMAX:
        mean -= np.matmul(curved.transpose(0, 2, 1), curved) / curved.shape[1]
    return mean
