"""``expunge experiment kmeans-table``: the k-means paper's tables and figures, in memory.

A task is one replicate of one data set: it runs in one process of one thread, scikit-learn's
baseline included, and writes a piece for every series as it ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..pipeline.clusterers import KMeans, QKMeans
from ..pipeline.divided_estimator import DCKMeans
from ..pipeline.quantized import rule_of_thumb_epsilon
from . import experiment_baseline, experiment_sweeps
from .errors import UsageError
from .experiment_results import Pieces
from .experiment_rows import Left, Rows, stream
from .experiment_series import Model, Series, checkpoints
from .experiment_sets import ExperimentSet, MissingSet, load
from .experiment_settings import BASELINE, MAX_ITER, PROVENANCE, SWEEPS, Settings, piece_name
from .experiment_workers import environment

KINDS: dict[str, Callable[..., KMeans | DCKMeans]] = {
    "k-means": KMeans,
    "k-means-none": partial(KMeans, provenance=PROVENANCE["k-means-none"]),
    "q-kmeans": QKMeans,
    "q-kmeans-none": partial(QKMeans, provenance=PROVENANCE["q-kmeans-none"]),
    "dc-kmeans": DCKMeans,
}
RESOLVED = {
    "k-means": (),
    "k-means-none": (),
    "q-kmeans": ("epsilon",),
    "q-kmeans-none": ("epsilon",),
    "dc-kmeans": ("n_leaves",),
}
"""Hyper-parameters that the first fit resolves by the number of rows, and later ones keep."""
TIMED_VALUES = 4_000_000
"""Values (rows x features) of the largest sets on which sweeps time deletions as well."""
PROCESS = secrets.token_hex(8)
"""Tells pieces of one process from those of another."""


@dataclass(frozen=True, slots=True)
class Task:
    """One replicate of one data set."""

    pieces: Pieces
    settings: Settings
    data_dir: Path
    data: str
    replicate: int
    series: tuple[str, ...]


def describe_sets(
    pieces: Pieces, settings: Settings, data_dir: Path, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the sets are, and for those that are missing what was looked for.

    Raises UsageError where a set is not what it was when its first pieces were made, or has too few
    rows for the deletions.
    """
    found, missing = {}, {}
    for name in names:
        try:
            data = load(name, data_dir, rows=settings.rows, seed=settings.seed)
        except MissingSet as error:
            missing[name] = str(error)
            continue
        if settings.deletions > len(data.x) - 2 * data.n_clusters:
            raise UsageError(
                f"data set {name} has {len(data.x):,} rows: too few for {settings.deletions:,} "
                f"deletions from {data.n_clusters} clusters"
            )
        found[name] = _facts(data)
    # Nothing is kept before all that was asked for is known to be possible.
    for name, facts in found.items():
        _check_same(pieces, name, facts)
    return found, missing


def _facts(data: ExperimentSet) -> dict[str, Any]:
    rows, features = data.x.shape
    digest = blake2b(np.ascontiguousarray(data.x).data, digest_size=16)
    digest.update(np.ascontiguousarray(data.labels).data)
    return {
        "rows": rows,
        "features": features,
        "clusters": data.n_clusters,
        "classes": len(np.unique(data.labels)),
        "note": data.note,
        "digest": digest.hexdigest(),
    }


def _check_same(pieces: Pieces, name: str, facts: dict[str, Any]) -> None:
    """Keep what a set is, or compare with what it was."""
    before = pieces.find(f"{name}.set")
    if before is None:
        pieces.keep(f"{name}.set", facts, {})
    elif before != facts:
        raise UsageError(
            f"data set {name} is not what the results in {pieces.root} were made of: "
            f"{before['rows']:,} rows ({before['note']}, digest {before['digest']}) there, "
            f"{facts['rows']:,} ({facts['note']}, digest {facts['digest']}) here; name another --out"
        )


def unfinished_series(task: Task) -> list[str]:
    """Return the series of a task that have no piece yet."""
    return [name for name in task.series if task.pieces.find(_piece(task, name)) is None]


def run_replicate(task: Task) -> None:
    """Run every series of a task that has no piece yet, and keep its piece."""
    unfinished = unfinished_series(task)
    if not unfinished:
        return
    warm_up()
    data = _loaded(task.data, task.data_dir, task.settings.rows, task.settings.seed)
    rows = Rows.of(data, task.settings.deletions, task.settings.seed, task.replicate)
    for name in unfinished:
        started = perf_counter()
        result = _run(task, name, rows)
        result |= {"process": PROCESS, "wall_seconds": perf_counter() - started}
        task.pieces.keep(_piece(task, name), result, environment())


def _piece(task: Task, series: str) -> str:
    return piece_name(task.data, series, task.replicate)


@lru_cache(maxsize=1)
def _loaded(name: str, data_dir: Path, rows: int | None, seed: int) -> ExperimentSet:
    return load(name, data_dir, rows=rows, seed=seed)


def _run(task: Task, name: str, rows: Rows) -> dict[str, Any]:
    """Run one series."""
    settings = task.settings
    draw = partial(stream, data=task.data, seed=settings.seed, replicate=task.replicate)
    places = checkpoints(settings.deletions)
    if name == BASELINE:
        return experiment_baseline.run_baseline(
            rows, places, MAX_ITER, settings.budget, draw("baseline")
        )
    state = int(draw("model").integers(2**31))
    if name in SWEEPS:
        seed = int(draw("sweep").integers(2**31))
        return {"points": _sweep(name, rows, task, state, seed)}
    fit = fitting(name, rows.data.n_clusters, state)
    result = Series(rows, fit, settings.budget, places).run()
    return {**result, "parameters": fit.parameters, "random_state": state}


def _sweep(name: str, rows: Rows, task: Task, state: int, seed: int) -> list[dict[str, Any]]:
    make = partial(fitting, SWEEPS[name], rows.data.n_clusters, state)
    budget, timed = task.settings.budget, rows.data.x.size <= TIMED_VALUES
    if name == "sweep-epsilon":
        return experiment_sweeps.sweep_epsilon(rows, make, timed, budget)
    if name == "sweep-leaves":
        return experiment_sweeps.sweep_leaves(rows, make, timed, budget)
    if not timed:
        return []
    epsilon = rule_of_thumb_epsilon(len(rows.units))
    return experiment_sweeps.sweep_rows(rows, make, epsilon, budget, seed)


@dataclass(slots=True)
class Fitted:
    """Trains one algorithm; what the first fit resolves by the number of rows, later ones keep."""

    algorithm: str
    clusters: int
    random_state: int
    parameters: dict[str, float]

    def __call__(self, left: Left) -> Model:
        model = KINDS[self.algorithm](
            self.clusters, max_iter=MAX_ITER, random_state=self.random_state, **self.parameters
        )
        model.fit(left.x, left.units)
        for name in RESOLVED[self.algorithm]:
            self.parameters[name] = getattr(model, f"{name}_")
        return model


def fitting(algorithm: str, clusters: int, random_state: int, **parameters: float) -> Fitted:
    """Return what trains an algorithm with these hyper-parameters."""
    return Fitted(algorithm, clusters, random_state, parameters)


def warm_up() -> None:
    """Compile what this process times, so that no series pays for it."""
    data = ExperimentSet(
        "warm-up",
        np.random.default_rng(0).random((256, 4)).astype(np.float32),
        np.arange(256, dtype=np.int32) % 4,
        4,
        "",
    )
    rows = Rows.of(data, 8, 0, 0)
    for algorithm in KINDS:
        Series(rows, fitting(algorithm, 4, 0), 60.0, checkpoints(8)).run()
    experiment_baseline.run_baseline(rows, [0], MAX_ITER, 1.0, np.random.default_rng(0))
