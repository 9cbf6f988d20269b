"""DC-k-means' deletions against scikit-learn's retrain, both sides in one run; prints JSON.

    python tests/bench/divided.py

One thread on both sides. The retrain is scikit-learn's ``KMeans`` (lloyd, k-means++, n_init = 1,
tol = 0, the same number of iterations) on the same rows, scaled alike; it is timed every tenth
deletion, so that both sides meet the same machine. Ratios are scikit-learn's median over ours:
``ratio`` of the amortised (mean) time of 200 random single deletions, refits of the whole tree
included, ``ratio_of_medians`` of the median one. Leaves keep labels and margins, or don't: ``provenance``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
import warnings
from collections import Counter
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from expunge import DCKMeans
from expunge.storage.generators import GaussianMixture

ROWS, FEATURES, CLUSTERS, LEAVES, ITERATIONS = 100_000, 25, 5, 32, 10
DELETIONS = 200
DEVIATIONS = (GaussianMixture.OVERLAPPING, 0.15, GaussianMixture.DEVIATION)
"""Of the clusters: the paper's, which overlap; in between; apart."""


def rows(deviation: float) -> np.ndarray:
    """Gaussian rows as the generator makes them."""
    source = GaussianMixture(ROWS, FEATURES, CLUSTERS, 0, deviation)
    return np.concatenate([block.x for block in source.blocks()])


def bench(deviation: float, root: str, provenance: str) -> dict[str, Any]:
    """Time random single deletions from one model, and retrains between them."""
    x = rows(deviation)
    low, high = x.min(axis=0), x.max(axis=0)
    scaled = (x - low) / (high - low)
    theirs = KMeans(CLUSTERS, n_init=1, max_iter=ITERATIONS, tol=0, random_state=0)
    model = DCKMeans(CLUSTERS, LEAVES, ITERATIONS, 0, root, provenance=provenance).fit(x)
    model.delete(ROWS - 1)
    theirs.fit(scaled)
    loss_ratio = model.inertia_ / theirs.inertia_
    ours: list[float] = []
    retrains: list[float] = []
    actions: Counter[str] = Counter()
    for number, unit in enumerate(np.random.default_rng(1).permutation(ROWS - 1)[:DELETIONS]):
        if number % 10 == 0:
            started = time.perf_counter()
            theirs.fit(scaled)
            retrains.append(time.perf_counter() - started)
        started = time.perf_counter()
        done = model.delete(int(unit))
        ours.append(time.perf_counter() - started)
        actions[done.action] += 1
    retrain = statistics.median(retrains)
    return {
        "shape": [ROWS, FEATURES, CLUSTERS],
        "leaves": LEAVES,
        "root": root,
        "provenance": provenance,
        "deviation": deviation,
        "scikit_learn_retrain": retrain,
        "scikit_learn_iterations": int(theirs.n_iter_),
        "delete_mean": statistics.fmean(ours),
        "delete_median": statistics.median(ours),
        "ratio": retrain / statistics.fmean(ours),
        "ratio_of_medians": retrain / statistics.median(ours),
        "actions": dict(actions),
        "loss_ratio": loss_ratio,
    }


def main() -> None:
    """Run all of them."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    for deviation, root, provenance in itertools.product(
        DEVIATIONS, ("unweighted", "weighted"), ("labels", "none")
    ):
        sys.stdout.write(json.dumps(bench(deviation, root, provenance)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
