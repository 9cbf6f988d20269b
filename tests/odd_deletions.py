"""Deletions that no random sample of rows resembles, from problems of all shapes: one a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from regression_problems import Problem

from expunge.pipeline.design import Design, Moments
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression import LOWRANK, PROJECTED, RegressionSettings, block_length
from expunge.pipeline.regression_arrays import Rows, Trained, train

SETS = ("row", "random", "cluster", "class", "extreme", "outlier", "dirty", "mislabelled")
"""What leaves: one row or some; the nearest to one; a class or half of it; those with the largest
scores; one row scaled by 10; rows scaled by 10; rows with wrong labels."""
STEEPEST = {Loss.LINEAR: 2.0, Loss.LOGISTIC: 0.25, Loss.SOFTMAX: 0.5}
"""A row's largest curvature over x x^T."""


@dataclass(frozen=True)
class Standardised(Problem):
    """Trained on features that are standardised by the first fit's rows, as models are."""

    standard: Design | None = None

    @property
    def design(self) -> Design:
        return self.standard or Design.of(Moments.of(self.rows.x))

    def trained(self) -> Trained:
        return train(self.settings, self.design, self.rows, self.q)

    def without(self, gone: np.ndarray) -> Standardised:
        return replace(self, standard=self.design, rows=self.rows.without(gone))


def odd_deletion(kind: str, seed: int, loss: Loss | None = None) -> tuple[Problem, np.ndarray, str]:
    """Return a problem, rows to delete, and what they are; loss: by default of a classifier."""
    rng = np.random.default_rng(seed)
    loss = loss or (Loss.LOGISTIC, Loss.SOFTMAX)[rng.integers(2)]
    q = int(rng.integers(3, 6)) if loss == Loss.SOFTMAX else 1
    n = 500 if kind == LOWRANK else int(rng.choice([500, 1000, 3000]))
    d = int(rng.integers(10, 30) if kind == PROJECTED else rng.integers(2, 9))
    x, group = _rows(rng, n, d)
    labels, scores = _labels(rng, loss, q, x, group)
    name = SETS[rng.integers(len(SETS))]
    count = max(1, int(rng.choice([0.002, 0.01, 0.05, 0.2]) * n))
    gone = _chosen(rng, name, count, x, scores, labels if loss != Loss.LINEAR else group)
    if name == "mislabelled" and loss != Loss.LINEAR:
        labels[gone] = -labels[gone] if q == 1 else (labels[gone] + 1) % q
    if name in ("outlier", "dirty"):
        x[gone] *= 10.0
    elif rng.random() < 0.3:
        largest = rng.integers(n)
        x[largest] *= 10.0
        gone, name = np.union1d(gone, [largest]), f"{name} and an outlier"
    rows = Rows(x.astype(np.float32), labels, np.arange(n))
    settings = _settings(rng, kind, loss, rows, seed)
    return Standardised(settings, rows, q), np.sort(gone).astype(np.int64), name


def _rows(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, d) in clusters, and which is whose."""
    clusters = int(rng.integers(2, 6))
    centres = rng.normal(size=(clusters, d)) * rng.uniform(0.3, 3.0)
    group = rng.integers(0, clusters, n)
    return centres[group] + rng.normal(size=(n, d)) * rng.uniform(0.3, 1.5, d), group


def _labels(
    rng: np.random.Generator, loss: Loss, q: int, x: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Labels, by a model or by the cluster, and the first scores (n,)."""
    n, d = x.shape
    scores = np.hstack([x, np.ones((n, 1))]) @ rng.normal(size=(d + 1, max(2, q)))
    scores = (scores - np.median(scores, axis=0)) * rng.uniform(0.3, 2.0)
    clustered = rng.random() < 0.5
    if loss == Loss.LINEAR:
        return scores[:, 0] + rng.normal(size=n), scores[:, 0]
    if loss == Loss.SOFTMAX:
        drawn = np.argmax(scores[:, :q] + rng.gumbel(size=(n, q)), axis=1)
        return (group % q if clustered else drawn).astype(np.float64), scores[:, 0]
    positive = group % 2 == 0 if clustered else scores[:, 0] + rng.logistic(size=n) > 0
    return np.where(positive ^ (rng.random(n) < 0.05), 1.0, -1.0), scores[:, 0]


def _chosen(
    rng: np.random.Generator,
    name: str,
    count: int,
    x: np.ndarray,
    scores: np.ndarray,
    classes: np.ndarray,
) -> np.ndarray:
    if name == "cluster":
        return np.argsort(np.linalg.norm(x - x[rng.integers(len(x))], axis=1))[:count]
    if name == "extreme":
        return np.argsort(-scores)[:count]
    if name == "class":
        own = rng.permutation(np.flatnonzero(classes == rng.choice(np.unique(classes))))
        return own[: max(1, len(own) // int(rng.integers(1, 3)))]
    single = name in ("row", "outlier")
    return rng.choice(len(x), 1 if single else count, replace=False)


def _settings(
    rng: np.random.Generator, kind: str, loss: Loss, rows: Rows, seed: int
) -> RegressionSettings:
    n, d = rows.x.shape
    design = Design.of(Moments.of(rows.x)).rows(rows.x)
    steepest = STEEPEST[loss] * float(np.linalg.eigvalsh(design.T @ design / n)[-1])
    l2, iterations = (
        float(rng.choice([0.001, 0.01, 0.1])),
        int(rng.choice([100, 300] if kind == LOWRANK else [100, 300, 600])),
    )
    return RegressionSettings(
        loss=loss,
        learning_rate=float(rng.choice([0.1, 0.3, 1.0])) / (steepest + l2),
        l2=l2,
        batch_slots=int(rng.choice([n // 10, n // 5, n // 2, n])),
        iterations=iterations,
        random_state=seed,
        window=1,
        validation=0.0,
        provenance=kind,
        dtype="float32",
        block=block_length(kind, iterations),
        rank=2 * (d + 1) // 3 if kind == PROJECTED else 0,
    )
