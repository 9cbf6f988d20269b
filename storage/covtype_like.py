"""The joint law of rows that resemble UCI Covertype: in each class, a Gaussian copula.

A row is made from eleven independent standard normals g and one uniform number:

1. the uniform number picks the class by its prior;
2. scores = L g, with L the Cholesky factor of the class's correlation matrix;
3. ten measures: the class's quantile function of the score, piecewise linear between knots at
   equally spaced scores, kept within the measure's limits and rounded, as UCI's are integers;
4. the ground: the eleventh score falls between two of the class's thresholds, and so picks a
   wilderness area and a soil type together; each gives a block of zeros with a single one.

The constants are in covtype_like.json, which says how each was found.
"""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from .constants import read_constants

MEASURES = 10
"""The features that are no part of a one-hot block; they come first."""
SCORES = MEASURES + 1
"""Normals that a row is made from."""
_AREAS = 4
"""Wilderness areas; their features follow the measures, then those of the soil types."""


class CovtypeLaw(NamedTuple):
    """The constants in the form that the compiled loop reads (7 classes, g grounds at most)."""

    labels: NDArray[np.float64]
    """(7,) the classes."""
    cumulative: NDArray[np.float64]
    """(7,) the uniform numbers below which a row is of this class or an earlier one."""
    factors: NDArray[np.float32]
    """(7, SCORES, SCORES) lower triangular Cholesky factors."""
    knots: NDArray[np.float32]
    """(7, MEASURES, knots) values of the quantile functions."""
    first_score: float
    """Score of the first knot."""
    knots_per_score: float
    """Number of knots in one unit of score."""
    lowest: NDArray[np.float32]
    """(MEASURES,) smallest value of each measure."""
    highest: NDArray[np.float32]
    """(MEASURES,) largest value of each measure."""
    thresholds: NDArray[np.float32]
    """(7, g) scores up to which the ground is this one; infinite from the class's last one on."""
    columns: NDArray[np.int64]
    """(7, g, 2) the features that a ground sets to one."""


class CovtypeConstants(NamedTuple):
    """What covtype_like.json holds."""

    feature_names: tuple[str, ...]
    """The features in UCI's order."""
    law: CovtypeLaw
    """The numbers."""
    digest: str
    """Names the constants in a provenance."""


@functools.cache
def load_constants() -> CovtypeConstants:
    """The package's constants (read once a process)."""
    table, digest = read_constants("covtype_like.json")
    return CovtypeConstants(tuple(table["feature_names"]), _law(table), digest)


def _law(table: dict[str, Any]) -> CovtypeLaw:
    """Unpack the file's classes into arrays with one entry a class."""
    classes = table["classes"]
    factors = np.zeros((len(classes), SCORES, SCORES), np.float32)
    for factor, one in zip(factors, classes, strict=True):
        factor[np.tril_indices(SCORES)] = [v for row in one["factor"] for v in row]
    grounds = max(len(one["grounds"]) for one in classes)
    thresholds = np.full((len(classes), grounds), np.inf, np.float32)
    columns = np.zeros((len(classes), grounds, 2), np.int64)
    for i, one in enumerate(classes):
        areas, soils, shares = zip(*one["grounds"], strict=True)
        thresholds[i, : len(shares) - 1] = _normal_quantiles(shares)
        columns[i, : len(areas), 0] = np.array(areas) + MEASURES - 1
        columns[i, : len(soils), 1] = np.array(soils) + MEASURES + _AREAS - 1
    return CovtypeLaw(
        labels=np.array([one["label"] for one in classes], np.float64),
        cumulative=np.cumsum([one["prior"] for one in classes]),
        factors=factors,
        knots=np.array([one["knots"] for one in classes], np.float32),
        first_score=table["first_score"],
        knots_per_score=table["knots_per_score"],
        lowest=np.array(table["limits"]["lowest"], np.float32),
        highest=np.array(table["limits"]["highest"], np.float32),
        thresholds=thresholds,
        columns=columns,
    )


def _normal_quantiles(shares: tuple[float, ...]) -> list[float]:
    """The scores that cut a standard normal into parts of these shares, without the last end."""
    normal, ends = NormalDist(), np.cumsum(shares)
    return [normal.inv_cdf(float(end / ends[-1])) for end in ends[:-1]]


@numba.njit(nogil=True, cache=True)  # fastmath would let rows depend on the processor
def fill_rows(
    normals: NDArray[np.float32],
    uniforms: NDArray[np.float64],
    x: NDArray[np.float32],
    labels: NDArray[np.float64],
    law: CovtypeLaw,
) -> None:
    """Make rows and their classes; validation assumed.

    normals: (n, SCORES) independent standard normals.
    uniforms: (n,) independent uniform numbers in [0, 1).
    x: (n, 54) overwritten with the features.
    labels: (n,) overwritten with the classes, 1 to 7.
    """
    scores = np.empty(SCORES, np.float32)
    for row in range(normals.shape[0]):
        kind = 0
        while kind < law.cumulative.size - 1 and uniforms[row] >= law.cumulative[kind]:
            kind += 1
        labels[row] = law.labels[kind]
        x[row] = np.float32(0.0)
        for i in range(SCORES):
            scores[i] = np.float32(0.0)
            for k in range(i + 1):
                scores[i] += law.factors[kind, i, k] * normals[row, k]
        _apply_quantiles(scores, kind, law, x[row])
        ground = 0
        while scores[MEASURES] > law.thresholds[kind, ground]:
            ground += 1
        x[row, law.columns[kind, ground, 0]] = np.float32(1.0)
        x[row, law.columns[kind, ground, 1]] = np.float32(1.0)


@numba.njit(nogil=True, cache=True)
def _apply_quantiles(
    scores: NDArray[np.float32], kind: int, law: CovtypeLaw, out: NDArray[np.float32]
) -> None:
    """Map the measures' scores through the class's quantile functions, and round."""
    last_piece = law.knots.shape[2] - 2
    first, per_score = np.float32(law.first_score), np.float32(law.knots_per_score)
    for j in range(MEASURES):
        position = (scores[j] - first) * per_score
        piece = min(max(int(position), 0), last_piece)
        low, high = law.knots[kind, j, piece], law.knots[kind, j, piece + 1]
        value = low + (position - np.float32(piece)) * (high - low)
        # Adding zero turns a negative zero into a positive one.
        out[j] = np.rint(min(max(value, law.lowest[j]), law.highest[j])) + np.float32(0.0)
