"""What the lattice's spacing, the number of leaves and the number of rows do to loss and deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from .experiment_rows import Rows
from .experiment_series import Fit, Log
from .experiment_sets import ExperimentSet

EPSILONS = tuple(2.0**-power for power in (*range(11), 12, 14))
LEAVES = tuple(2**power for power in range(1, 11))
ROWS_A_CENTROID = 4
"""Rows that a leaf holds at least on average, for every centroid: no more leaves are tried."""
HALVINGS = 4
"""How often the number of rows is halved."""
DELETIONS = 100
"""Deletions at every value, where deletions are timed."""
BUDGET_SHARE = 0.1
"""Share of a series' budget that the deletions at one value may take."""

Fitter = Callable[..., Fit]
"""Makes a fit, given hyper-parameters by name."""


def sweep_epsilon(rows: Rows, fitter: Fitter, timed: bool, budget: float) -> list[dict[str, Any]]:
    """Train Q-k-means at every spacing; time deletions too if asked."""
    return [
        _point(epsilon, rows, fitter(epsilon=epsilon), timed, budget * BUDGET_SHARE)
        for epsilon in EPSILONS
    ]


def sweep_leaves(rows: Rows, fitter: Fitter, timed: bool, budget: float) -> list[dict[str, Any]]:
    """Train DC-k-means with every number of leaves; time deletions too if asked."""
    most = len(rows.units) / (ROWS_A_CENTROID * rows.data.n_clusters)
    return [
        _point(leaves, rows, fitter(n_leaves=leaves), timed, budget * BUDGET_SHARE)
        for leaves in LEAVES
        if leaves <= most
    ]


def sweep_rows(
    rows: Rows, fitter: Fitter, epsilon: float, budget: float, seed: int
) -> list[dict[str, Any]]:
    """Delete from Q-k-means of ever larger random parts of the rows, with one and the same epsilon."""
    return [
        _point(len(part.units), part, fitter(epsilon=epsilon), True, budget * BUDGET_SHARE)
        for part in _nested(rows, seed)
    ]


def _nested(rows: Rows, seed: int) -> Iterator[Rows]:
    """Random parts of the rows, each twice the last, up to all of them."""
    data = rows.data
    shuffled = np.random.default_rng(seed).permutation(len(data.x))
    for halvings in range(HALVINGS, -1, -1):
        chosen = np.sort(shuffled[: len(data.x) >> halvings])
        if len(chosen) < ROWS_A_CENTROID * data.n_clusters:
            continue
        part = ExperimentSet(
            data.name, data.x[chosen], data.labels[chosen], data.n_clusters, data.note
        )
        yield Rows.of(part, min(DELETIONS, len(chosen) // ROWS_A_CENTROID), seed, 0)


def _point(value: float, rows: Rows, fit: Fit, timed: bool, budget: float) -> dict[str, Any]:
    """Train at one value of what is swept, and delete if asked, for at most ``budget`` seconds."""
    left = rows.left(0)
    started = perf_counter()
    model = fit(left)
    train_seconds = perf_counter() - started
    loss = left.loss(left.in_scale(model.cluster_centers_))
    log, asked = Log(), min(DELETIONS, len(rows.order)) if timed else 0
    spent = 0.0
    for unit in rows.units[rows.order[:asked]].tolist():
        log.run(model, [unit])
        spent += log.seconds[-1]
        if spent > budget:
            break
    return {
        "value": value,
        "rows": len(left.x),
        "loss": loss,
        "train_seconds": train_seconds,
        "deletions": asked,
        "ran": len(log.seconds),
        "deletion_seconds": spent,
        "changed": log.changed,
    }
