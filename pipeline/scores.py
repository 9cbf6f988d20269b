"""How good a clustering is: its loss against a baseline's, its silhouette, its agreement with classes.

The three measures of the k-means paper's tables ("Making AI Forget You", section 5). They judge a
result and decide nothing, so they may use floating-point sums and scikit-learn.
"""

from __future__ import annotations

import numpy as np
import sklearn
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import normalized_mutual_info_score, silhouette_score

from .keyed import derive_key

SILHOUETTE_ROWS = 10_000
"""Rows that a silhouette is computed on, at most (the paper's number)."""
_ROWS_AT_A_TIME = 1 << 22
"""Differences of rows and a centroid held at the same time, at most, in numbers."""
_DISTANCES_MIB = 64
"""Memory for distances between rows."""


def mean_loss(x: ArrayLike, centroids: ArrayLike) -> float:
    """Return the mean squared distance of rows to their nearest centroids.

    x : (n, d) rows, n >= 1, in scaled units, i.e. each feature min-max scaled to [0, 1].
    centroids : (k, d), k >= 1, in the same units.

    Raises ValueError for other shapes.
    """
    rows, centres = np.asarray(x), np.asarray(centroids, np.float64)
    if rows.ndim != 2 or centres.ndim != 2 or rows.shape[1] != centres.shape[1]:
        raise ValueError(
            f"rows have shape {rows.shape} and centroids {centres.shape}; "
            "(n, d) and (k, d) are needed"
        )
    if not len(rows) or not len(centres):
        raise ValueError(f"{len(rows)} rows and {len(centres)} centroids; at least 1 is needed")
    step = max(1, _ROWS_AT_A_TIME // rows.shape[1])
    total = 0.0
    for first in range(0, len(rows), step):
        part = rows[first : first + step].astype(np.float64)
        sq_dists = [np.square(part - centre).sum(axis=1) for centre in centres]
        total += float(np.minimum.reduce(sq_dists).sum())
    return total / len(rows)


def loss_ratio(loss: float, baseline: float) -> float:
    """Return a loss divided by a baseline's: 1 is as good, less is better.

    Both are of the same rows, scaled alike (`mean_loss`, or sums over the same rows). Two losses of
    0 are as good as each other (1); any other loss is infinitely worse than 0. Raises ValueError
    where one is negative or not finite.
    """
    for name, value in (("loss", loss), ("baseline", baseline)):
        if not 0.0 <= value < np.inf:
            raise ValueError(f"{name} is {value}; a finite number, not negative, is needed")
    if baseline == 0.0:
        return 1.0 if loss == 0.0 else float("inf")
    return loss / baseline


def silhouette(x: ArrayLike, labels: ArrayLike, *, seed: int = 0) -> float | None:
    """Return the mean silhouette of at most SILHOUETTE_ROWS rows, from -1 to 1, more is better.

    x : (n, d) rows in scaled units.
    labels : (n,) each row's cluster, an integer.
    seed : of the rows' choice. The same seed and n choose the same rows, whatever the clusters, so
        that clusterings are compared on the same ones; up to SILHOUETTE_ROWS rows all are taken.

    None where it is not defined: where the rows chosen lie in one cluster, or each in its own. A
    row alone in its cluster counts 0. Distances come in pieces of 64 MiB: at 10,000 x 784 it takes some 100 MB in all. Raises ValueError where
    labels and rows differ in number.
    """
    rows, clusters = np.asarray(x), _labels(labels, "labels")
    if rows.ndim != 2 or len(rows) != len(clusters):
        raise ValueError(f"rows have shape {rows.shape}, but there are {len(clusters)} labels")
    chosen = subsample(len(rows), seed)
    rows, clusters = rows[chosen].astype(np.float32), clusters[chosen]
    if not 2 <= len(np.unique(clusters)) < len(clusters):
        return None
    with sklearn.config_context(working_memory=_DISTANCES_MIB):
        return float(silhouette_score(rows, clusters))


def subsample(rows: int, seed: int) -> NDArray[np.int64]:
    """Return the increasing positions of at most SILHOUETTE_ROWS out of so many rows."""
    if rows <= SILHOUETTE_ROWS:
        return np.arange(rows)
    stream = np.random.Generator(np.random.Philox(key=derive_key(seed, "silhouette")))
    return np.sort(stream.choice(rows, SILHOUETTE_ROWS, replace=False))


def normalized_mutual_information(classes: ArrayLike, labels: ArrayLike) -> float:
    """Return the normalized mutual information of two labellings of the same rows, from 0 to 1.

    Normalized by the mean of both entropies. 1 where each tells the other; 0 where one says nothing
    of the other, as where one labelling alone puts all rows together (where both do: 1). The
    labels' values and order do not matter. Raises ValueError without rows, or for labellings of
    different length.
    """
    one, other = _labels(classes, "classes"), _labels(labels, "labels")
    if len(one) != len(other) or not len(one):
        raise ValueError(f"{len(one)} classes and {len(other)} labels; as many, and 1 at least")
    return float(normalized_mutual_info_score(one, other))


def _labels(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Integers in one dimension, or ValueError."""
    found = np.asarray(values)
    if found.ndim != 1 or found.dtype.kind not in "biu":
        raise ValueError(
            f"{name} have shape {found.shape} and type {found.dtype}; integers (n,) are needed"
        )
    return found.astype(np.int64)
