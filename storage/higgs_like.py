"""The joint law of rows that resemble UCI HIGGS: a Gaussian copula with a planted logistic label.

A row is made from 28 independent standard normals and one uniform number:

1. scores = L g, with L the Cholesky factor of the copula's correlation matrix;
2. continuous features: the quantile function of the score, piecewise linear between knots at
   equally spaced scores and continued linearly outside them (so no value piles up at an end);
3. b-tags: the two jets with the highest of the four b-tag scores gain a shift and the other two
   lose it, then two thresholds give one of three values. The shift is there because an event has
   two b quarks: no Gaussian copula reaches correlations as negative as those of four such tags;
4. label = 1 with probability sigmoid(intercept + sum of weight * (x - mean) / scale).

The constants are in higgs_like.json, which says how each was found.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from .constants import read_constants


class HiggsLaw(NamedTuple):
    """The constants in the form that the compiled loop reads (d = 28 features)."""

    columns_of_factor: NDArray[np.float32]
    """(d, d) transposed Cholesky factor: row k holds what normal k adds to every score."""
    knots: NDArray[np.float32]
    """(d, knots) values of the features' quantile functions; zeros for b-tags."""
    first_score: float
    """Score of the first knot."""
    knots_per_score: float
    """Number of knots in one unit of score."""
    tags: NDArray[np.int64]
    """(4,) columns of the b-tags."""
    tag_thresholds: NDArray[np.float32]
    """(4, 2) shifted scores at which a tag takes its second and third value."""
    tag_values: NDArray[np.float32]
    """(4, 3) values of the tags."""
    tag_shift: float
    """What the two jets with the highest tag scores gain and the other two lose."""
    intercept: float
    """Log-odds of label 1 at x = 0."""
    slopes: NDArray[np.float64]
    """(d,) change of the log-odds per unit of each feature."""


class HiggsConstants(NamedTuple):
    """What higgs_like.json holds."""

    feature_names: tuple[str, ...]
    """The features in UCI's order."""
    law: HiggsLaw
    """The numbers."""
    digest: str
    """Names the constants in a provenance."""


@functools.cache
def load_constants() -> HiggsConstants:
    """The package's constants (read once a process)."""
    table, digest = read_constants("higgs_like.json")
    names = tuple(table["feature_names"])
    return HiggsConstants(names, _law(names, table), digest)


def _law(names: tuple[str, ...], table: dict[str, Any]) -> HiggsLaw:
    """Unpack the file's triangle, named knots and standardised weights into plain arrays."""
    features = len(names)
    factor = np.zeros((features, features), np.float32)
    factor[np.tril_indices(features)] = [v for row in table["copula_factor"] for v in row]
    quantiles, tags, label = table["quantile_knots"], table["b_tags"], table["label"]
    no_knots = [0.0] * len(quantiles[names[0]])
    slopes = np.array(label["weights"]) / np.array(label["scale"])
    return HiggsLaw(
        columns_of_factor=np.ascontiguousarray(factor.T),
        knots=np.array([quantiles.get(name, no_knots) for name in names], np.float32),
        first_score=table["first_score"],
        knots_per_score=table["knots_per_score"],
        tags=np.array([names.index(name) for name in tags["values"]], np.int64),
        tag_thresholds=np.array(list(tags["thresholds"].values()), np.float32),
        tag_values=np.array(list(tags["values"].values()), np.float32),
        tag_shift=tags["shift"],
        intercept=label["intercept"] - float(slopes @ np.array(label["mean"])),
        slopes=slopes,
    )


def planted_probabilities(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """P(label = 1 | x) for rows of shape (n, 28), as the labels were drawn; shape (n,)."""
    law = load_constants().law
    log_odds = law.intercept + x.astype(np.float64) @ law.slopes
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))


@numba.njit(nogil=True, cache=True)  # fastmath would let rows depend on the processor
def fill_rows(
    x: NDArray[np.float32],
    uniforms: NDArray[np.float64],
    labels: NDArray[np.float64],
    law: HiggsLaw,
) -> None:
    """Turn normals into rows, in place, and draw the labels; validation assumed.

    x: (n, 28) independent standard normals, overwritten with the features.
    uniforms: (n,) independent uniform numbers in [0, 1).
    labels: (n,) overwritten with 0 or 1.
    """
    scores = np.empty(x.shape[1], np.float32)
    for row in range(x.shape[0]):
        _correlate(x[row], law.columns_of_factor, scores)
        _apply_quantiles(scores, law, x[row])
        _apply_tags(scores, law, x[row])
        log_odds = law.intercept
        for j in range(x.shape[1]):
            log_odds += law.slopes[j] * x[row, j]
        labels[row] = 1.0 if uniforms[row] < 1.0 / (1.0 + math.exp(-log_odds)) else 0.0


@numba.njit(nogil=True, cache=True)
def _correlate(
    normals: NDArray[np.float32], columns: NDArray[np.float32], scores: NDArray[np.float32]
) -> None:
    """scores = L normals, column by column: independent sums, so the order of adding is fixed."""
    scores[:] = np.float32(0.0)
    for k in range(normals.size):
        for j in range(normals.size):
            scores[j] += columns[k, j] * normals[k]


@numba.njit(nogil=True, cache=True)
def _apply_quantiles(scores: NDArray[np.float32], law: HiggsLaw, out: NDArray[np.float32]) -> None:
    """Map every score through its feature's quantile function."""
    last_piece = law.knots.shape[1] - 2
    first, per_score = np.float32(law.first_score), np.float32(law.knots_per_score)
    for j in range(scores.size):
        position = (scores[j] - first) * per_score
        piece = min(max(int(position), 0), last_piece)
        low, high = law.knots[j, piece], law.knots[j, piece + 1]
        out[j] = low + (position - np.float32(piece)) * (high - low)


@numba.njit(nogil=True, cache=True)
def _apply_tags(scores: NDArray[np.float32], law: HiggsLaw, out: NDArray[np.float32]) -> None:
    """Overwrite the b-tag columns with one of their three values."""
    shift = np.float32(law.tag_shift)
    for t in range(law.tags.size):
        score = scores[law.tags[t]]
        higher = 0
        for other in law.tags:
            higher += scores[other] > score
        score += shift if higher < 2 else -shift
        level = int(score >= law.tag_thresholds[t, 0]) + int(score >= law.tag_thresholds[t, 1])
        out[law.tags[t]] = law.tag_values[t, level]
