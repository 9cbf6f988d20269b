"""Deletion by incremental replay against scikit-learn's retrain, in one run, on one thread; prints JSON.

    python tests/bench/replay.py                                    all sets but the largest
    python tests/bench/replay.py covtype mnist --epsilons 0 0.01    some of them
    python tests/bench/replay.py noise-10m --deletions 200          ten million rows
    python tests/bench/replay.py --single 100000 1000000 10000000   deletions that change nothing

Of each set and epsilon: seconds of a single random deletion, on average over all that are made, and
scikit-learn's seconds for a fit on the rows that are left (lloyd, k-means++, n_init=1, tol=0), the median of
retrains spread over the deletions; ``times`` is their ratio. Epsilon 0 is k-means; "rule" is the rule of
thumb. ``loss_ratio`` is the loss a row over that of scikit-learn's retrains, both on min-max scaled rows, means
over as many starts as retrains: its k-means++ tries several rows for each seed and keeps the best, which
is another seeding. ``loss_ratio_same_start`` is over scikit-learn's Lloyd from the models' own seeds, on the same
rows with as many iterations at most: what the lattice costs, and gamma's pull on small clusters. ``looked_at`` is
rows looked at again a deletion, over all steps.
Refits for moved scaling bounds are counted in and shown apart, with ``times_without_refits``. Where losses
stop falling on a coarse lattice, training ends early: ``iterations`` are the model's own, and with
``--same-iterations`` scikit-learn makes no more than those.

With ``--single`` nothing is retrained: of so many overlapping rows x 28 features and 10 clusters, the
seconds of each single random deletion after which the model stands, over all of its 10 steps: the
median, and what a tenth of them is below and above. Before every second one all that is kept of the
row is read, without being counted (``read_before``): the first read of two megabytes that have not been asked
for lately may take a virtual machine's host a tenth of a millisecond, in any program. ``reading`` tells what two plain
reads of the row's features took then.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.pop("OPENBLAS_CORETYPE", None)

import numpy as np
from sklearn.cluster import KMeans as ReferenceKMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from expunge import KMeans, QKMeans
from expunge.storage.generators import GaussianMixture

DATA = Path(__file__).parents[3] / "shared" / "data"
STEPS = 10
Rows = np.ndarray


def _table(file: str, header: int = 0) -> Rows:
    return np.loadtxt(DATA / file, np.float32, delimiter=",", skiprows=header)[:, :-1]


def _gaussian(*deviation: float) -> Rows:
    return np.concatenate([b.x for b in GaussianMixture(100_000, 25, 5, 0, *deviation).blocks()])


def _mnist() -> Rows:
    pixels = gzip.decompress((DATA / "train-images-idx3-ubyte.gz").read_bytes())[16:]
    return np.frombuffer(pixels, np.uint8).reshape(60_000, 784).astype(np.float32)


def _noise(rows: int) -> Rows:
    return np.random.default_rng(0).random((rows, 28), np.float32)


SETS: dict[str, tuple[int, Callable[[], Rows]]] = {
    "covtype": (7, lambda: _table("covtype_92962.data.gz")),
    "covtype-15k": (7, lambda: _table("covtype_kaggle_15120.data.gz")),
    "celltype": (4, lambda: _table("celltype_12009.csv.gz", 1)),
    "gaussian": (5, _gaussian),
    "overlapping": (5, lambda: _gaussian(GaussianMixture.OVERLAPPING)),
    "mnist": (10, _mnist),
    "noise": (10, lambda: _noise(100_000)),
    "noise-1m": (10, lambda: _noise(1_000_000)),
    "noise-10m": (10, lambda: _noise(10_000_000)),
}
"""Clusters and rows."""
LARGE = ("noise-1m", "noise-10m")
SINGLE_EPSILON = 0.02
"""So coarse that most deletions change nothing, and so fine that training makes all its steps."""


@dataclass
class Taken:
    """What the deletions took, by what they came to."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    looked_at: int = 0
    passes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def delete(self, model: KMeans, unit: int) -> None:
        started = time.perf_counter()
        done = model.delete(unit)
        self.seconds[done.action].append(time.perf_counter() - started)
        self.looked_at += done.looked_at
        self.passes[done.action] += done.passes

    def mean(self, *without: str) -> float:
        kept = [s for action, found in self.seconds.items() if action not in without for s in found]
        return statistics.fmean(kept) if kept else float("nan")

    def shares(self) -> dict[str, dict[str, float]]:
        """Of each action: how often, the median and all seconds, and passes."""
        return {
            action: {
                "count": len(found),
                "median": statistics.median(found),
                "seconds": sum(found),
                "passes": self.passes[action],
            }
            for action, found in sorted(self.seconds.items())
        }


def retrain(
    x: Rows, clusters: int, number: int, most: int, seeds: str | Rows = "k-means++"
) -> tuple[float, float, int]:
    """Return scikit-learn's seconds, loss on x (n, features; scaled), and iterations, ``most`` at most.

    seeds: (clusters, features), scaled, or how scikit-learn finds its own.
    """
    options = {"init": seeds, "n_init": 1, "tol": 0, "max_iter": most, "random_state": number}
    theirs = ReferenceKMeans(clusters, **options)
    with threadpool_limits(1), warnings.catch_warnings():
        # After the last of T steps it says that it has not converged.
        warnings.simplefilter("ignore", ConvergenceWarning)
        started = time.perf_counter()
        theirs.fit(x)
        return time.perf_counter() - started, float(theirs.inertia_), int(theirs.n_iter_)


def scaled_of(x: Rows) -> Rows:
    low, high = x.min(axis=0), x.max(axis=0)
    scaled: Rows = (x - low) / np.where(high > low, high - low, 1)
    return scaled


def bench(
    name: str, epsilon: float | None, deletions: int, retrains: int, same_iterations: bool
) -> dict[str, Any]:
    """Delete random rows one by one, with retrains between them."""
    clusters, load = SETS[name]
    x = load()
    start = KMeans if epsilon == 0 else QKMeans
    options: dict[str, Any] = {} if epsilon == 0 else {"epsilon": epsilon}
    order = np.random.default_rng(1).permutation(len(x))[:deletions]
    losses = [_fresh_losses(start, options, x, clusters, number) for number in range(retrains)]
    ours, same_start = (statistics.fmean(found) for found in zip(*losses, strict=True))
    model = start(clusters, max_iter=STEPS, random_state=0, **options).fit(x)
    model.delete(int(order[0]))
    taken, theirs = Taken(), []
    for number, part in enumerate(np.array_split(order[1:], retrains)):
        for unit in part.tolist():
            taken.delete(model, unit)
        # The rows that are left, but for the time of what scales and copies them.
        kept = scaled_of(x[model._rows.units >= 0])
        most = max(model.n_iter_, 1) if same_iterations else STEPS
        seconds, loss, iterations = retrain(kept, clusters, number, most)
        theirs.append((seconds, loss / len(kept), iterations))
    seconds = statistics.median(found[0] for found in theirs)
    return {
        "set": name,
        "shape": [*x.shape, clusters],
        "epsilon": model.epsilon_,
        "iterations": model.n_iter_,
        "deletions": deletions - 1,
        "scikit-learn": seconds,
        "scikit-learn iterations": [found[2] for found in theirs],
        "expunge": taken.mean(),
        "times": seconds / taken.mean(),
        "times_without_refits": seconds / taken.mean("retrained"),
        "loss_ratio": ours / statistics.fmean(found[1] for found in theirs),
        "loss_ratio_same_start": ours / same_start,
        "looked_at": taken.looked_at / (deletions - 1),
        "actions": taken.shares(),
    }


def single(rows: int, deletions: int) -> dict[str, Any]:
    """Delete random rows one by one from a coarse model; seconds of those that change nothing."""
    x = np.empty((rows, 28), np.float32)
    start = 0
    for block in GaussianMixture(rows, 28, 10, 0, GaussianMixture.OVERLAPPING).blocks():
        x[start : start + len(block.x)] = block.x
        start += len(block.x)
    order = np.random.default_rng(1).permutation(rows)[:deletions].tolist()
    model = QKMeans(10, SINGLE_EPSILON, max_iter=STEPS, random_state=0).fit(x)
    del x
    model.delete(order[0])
    as_it_is, read_before = Taken(), Taken()
    reading: list[float] = []
    for number, unit in enumerate(order[1:]):
        if number % 2:
            reading.append(_read(model, unit))
        (read_before if number % 2 else as_it_is).delete(model, unit)
    return {
        "shape": [rows, 28, 10],
        "epsilon": model.epsilon_,
        "iterations": model.n_iter_,
        "deletions": deletions - 1,
        "as_it_is": _spread(as_it_is.seconds["unchanged"]),
        "read_before": _spread(read_before.seconds["unchanged"]),
        "reading": _spread(reading),
    }


def _read(model: KMeans, unit: int) -> float:
    """Read all that is kept of a row, whose place is its unit; return the seconds that its features took.

    Two plain reads: what they take beyond a microsecond is the machine's.
    """
    rows, index = model._rows, model._index
    assert model._history
    steps = model._history._steps
    started = time.perf_counter()
    rows.x.item(unit, 0), rows._fixed.item(unit, 0)
    seconds = time.perf_counter() - started
    by_row: list[Rows] = [rows.x, rows._fixed, rows.units, index._ids, index._order]
    for array in (*by_row, steps.labels.T, steps.margins.T):
        array[unit].sum()
    return seconds


def _spread(seconds: list[float]) -> dict[str, float]:
    tenth, median, ninetieth = np.percentile(seconds, [10, 50, 90]).tolist()
    return {"count": len(seconds), "tenth": tenth, "median": median, "ninetieth": ninetieth}


def _fresh_losses(
    start: type[KMeans], options: dict[str, Any], x: Rows, clusters: int, number: int
) -> tuple[float, float]:
    """Return a new model's loss a row, and that of scikit-learn's Lloyd from the model's seeds."""
    model = start(clusters, max_iter=STEPS, random_state=number, provenance="none", **options)
    seeds = model.fit(x).record_.steps[0].centroids.analog
    _, loss, _ = retrain(scaled_of(x), clusters, number, STEPS, seeds.astype(x.dtype))
    return model.inertia_ / len(x), loss / len(x)


def _epsilon(text: str) -> float | None:
    return None if text == "rule" else float(text)


def main() -> None:
    """Run the sets that are named, or all but the large ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sets", nargs="*", default=[s for s in SETS if s not in LARGE])
    parser.add_argument("--epsilons", nargs="+", type=_epsilon, default=[0.0, None])
    parser.add_argument("--deletions", type=int, default=1000)
    parser.add_argument("--retrains", type=int, default=5)
    parser.add_argument("--same-iterations", action="store_true")
    parser.add_argument("--single", nargs="+", type=int, metavar="ROWS")
    given = parser.parse_args()
    unknown = [name for name in given.sets if name not in SETS]
    if unknown:
        parser.error(f"there is no set {unknown[0]}; there are {', '.join(SETS)}")
    if given.deletions < 2 or given.retrains < 1:
        parser.error("2 deletions and 1 retrain are the least")
    for rows in given.single or []:
        _print(single(rows, given.deletions))
    for name in [] if given.single else given.sets:
        for epsilon in given.epsilons:
            options = given.deletions, given.retrains, given.same_iterations
            _print(bench(name, epsilon, *options))


def _print(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
