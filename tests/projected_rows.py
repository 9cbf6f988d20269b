"""Regression problems whose rows lie near a subspace, for the tests of kind projected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from regression_problems import Problem, problem

from expunge.pipeline.losses import Loss
from expunge.pipeline.regression_arrays import Rows

FEATURES = 24


def spectral(
    loss: Loss,
    q: int,
    *,
    rank: int = 8,
    falling: float = 0.05,
    rest: float = 1.0,
    rows: int = 4000,
    batch: int = 200,
    iterations: int = 120,
    seed: int = 0,
) -> Problem:
    """Rows of mean 0 with spreads that fall from 1 by a factor in all, mixed by a rotation.

    rest: the spreads of all but the first ``rank - 1`` directions are multiplied by it. Tails are
    heavier than a normal one's, and a row's size has to do with its class: its curvature and its
    x x^T are not independent.
    """
    rate = 0.05 if loss == Loss.LINEAR else 0.3
    here = problem(
        loss,
        rows,
        FEATURES,
        q,
        batch=batch,
        iterations=iterations,
        rate=rate,
        provenance="projected",
        block=iterations // 10,
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    spreads = np.geomspace(1.0, falling, FEATURES)
    spreads[rank - 1 :] *= rest
    z = rng.normal(size=(rows, FEATURES)) * rng.uniform(0.5, 1.5, (rows, 1)) * spreads
    x = z @ np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
    x -= x.mean(axis=0)
    scores = x @ rng.normal(size=(FEATURES, max(2, q))) * 2.0
    if loss == Loss.LINEAR:
        labels = scores[:, 0] + rng.normal(size=rows)
    elif loss == Loss.LOGISTIC:
        labels = np.where(scores[:, 0] + rng.logistic(size=rows) > 0, 1.0, -1.0)
    else:
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.float64)
    return replace(
        here,
        rows=Rows(x.astype(np.float32), labels, np.arange(rows)),
        settings=replace(here.settings, rank=rank),
    )
