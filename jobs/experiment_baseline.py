"""scikit-learn's retrain on the rows that are left: what deletions are compared with."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans

from .experiment_rows import Left, Rows
from .experiment_settings import BASELINE_RUNS, RETRAINS

LEAST_RETRAINS = 3
BUDGETS = 2
"""Retrains may take twice the budget of a series: 30 of MNIST's do not fit in the default one."""


def retrain(left: Left, clusters: int, max_iter: int, random_state: int) -> tuple[float, Any]:
    """Train scikit-learn's k-means on scaled rows; return seconds, without the scaling, and it."""
    model = ScikitKMeans(
        clusters,
        init="k-means++",
        n_init=1,
        max_iter=max_iter,
        tol=0.0,
        algorithm="lloyd",
        random_state=random_state,
    )
    rows = left.scaled
    started = perf_counter()
    model.fit(rows)
    return perf_counter() - started, model


def run_baseline(
    rows: Rows, places: list[int], max_iter: int, budget: float, random: np.random.Generator
) -> dict[str, Any]:
    """Time retrains spread over the deletions and measure BASELINE_RUNS of them at every checkpoint.

    Fewer than RETRAINS run where they would take longer than BUDGETS budgets, but LEAST_RETRAINS do.
    """
    clusters = rows.data.n_clusters
    quality, trained = [], []
    for place in places:
        left = rows.left(place)
        runs = [retrain(left, clusters, max_iter, _state(random)) for _ in range(BASELINE_RUNS)]
        quality.append({"deletions": place, **_quality(left, [model for _, model in runs])})
        if place == 0:
            trained = [seconds for seconds, _ in runs]
    asked = len(rows.order)
    affordable = int(BUDGETS * budget / max(trained)) if trained else 0
    count = min(RETRAINS, asked, max(LEAST_RETRAINS, affordable))
    spots = np.linspace(1, asked, count).astype(int).tolist()
    timed = [retrain(rows.left(spot), clusters, max_iter, _state(random)) for spot in spots]
    return {
        "deletions": asked,
        "ran": count,
        "extrapolated": count < asked,
        "train_seconds": float(np.median(trained)),
        "retrain_seconds": float(np.median([seconds for seconds, _ in timed])),
        "seconds": [seconds for seconds, _ in timed],
        "n_iter": [int(model.n_iter_) for _, model in timed],
        "quality": quality,
    }


def _quality(left: Left, models: list[Any]) -> dict[str, Any]:
    """The losses of all, their mean, and the first one's silhouette and NMI."""
    first = left.quality(models[0].cluster_centers_.astype(np.float64))
    others = [left.loss(model.cluster_centers_.astype(np.float64)) for model in models[1:]]
    losses = [first["loss"], *others]
    return {**first, "loss": float(np.mean(losses)), "losses": losses}


def _state(random: np.random.Generator) -> int:
    return int(random.integers(2**31))
