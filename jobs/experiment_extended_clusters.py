"""The k-means family in an extended experiment: each subset's update and retrain, on one cluster.

An update is what a deletion job does from the rows in memory to the next version on the disk, synced;
a retrain is the first fit on the same stored rows less the subset, nothing written. Nothing is
committed: the version is swept. Deletions are exact, so subsets always leave the first model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline import quantized
from ..pipeline.clusterer import scaled_centroids
from ..pipeline.quantized import Record
from ..pipeline.regression import DELTA
from ..storage import files
from ..storage.dataset import DataSet
from ..storage.files import metered
from ..storage.versions import digest, load_version, open_version
from . import divided_arrays, divided_models, kmeans_arrays, kmeans_models
from .console import Update
from .experiment_clock import Clock, ending
from .experiment_extended_models import make_clusterings
from .experiment_extended_rows import random_subsets
from .experiment_extended_settings import ExtendedAsked, ExtendedSettings, cluster_piece
from .experiment_peaks import largest_peak, reset_peaks
from .experiment_priu_models import Folds, make_rows, naming
from .experiment_priu_rows import DATA, find_origin
from .experiment_results import Pieces
from .experiment_workers import environment
from .fold import Fold
from .model_family import Change
from .pending import open_readable
from .plan import Gathered, gather
from .train_divided import StoredLeaves
from .train_kmeans import StoredPasses, warm_up
from .training import family_of
from .workspace import Workspace

UPDATE, RETRAIN = "update", "retrain"
FEW, FEW_CLUSTERS = 1000, 4
"""Rows and clusters of the models that warm everything up."""


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """All subsets of all models of the family."""

    pieces: Pieces
    settings: ExtendedSettings
    asked: ExtendedAsked
    rows: int


def lacking(task: ClusterTask) -> list[tuple[int, str, str]]:
    """Return what is not there yet: (subset, algorithm, UPDATE or RETRAIN)."""
    subsets = task.settings.regression.subsets
    retrained = task.asked.retrained(subsets)
    return [
        (subset, algorithm, what)
        for subset in range(subsets)
        for algorithm in task.asked.algorithms
        for what in (UPDATE, RETRAIN)
        if (what == UPDATE or subset < retrained)
        and task.pieces.find(cluster_piece(task.asked, algorithm, what, subset)) is None
    ]


def measure_clusters(task: ClusterTask, ws: Workspace, folds: Folds, update: Update) -> None:
    """Measure what is lacking, subset by subset; every piece is kept as soon as it is measured."""
    todo = lacking(task)
    if not todo:
        return
    settings, data = task.settings.regression, task.asked.data_set
    units = random_subsets(task.asked.study, settings, task.rows)
    row, data_set = open_readable(ws.ledger, DATA, ws.root)
    clock, subset = Clock(update, data), -1
    gathered: Gathered | None = None
    gathering: dict[str, Any] = {}
    with ws.lock("an experiment's deletions") as fence, folds(ws) as fold:
        update(f"{data}: compiling what the k-means family runs")
        _compile(task, ws.root.parent / "few", fold)
        warm_up(data_set, fold)
        for done, (number, algorithm, what) in enumerate(todo):
            if number != subset or gathered is None:
                gathered, gathering = _gathered(data_set, units[number], ws.ledger.salt, fold)
                subset = number
            left = ending(clock.left("subsets", done / len(todo)))
            text = f"{algorithm}, {what} {number + 1} of {settings.subsets}{left}"
            update(f"{data}: {text}", done / len(todo))
            named = naming(task.asked.study, text, update)
            change = Change(ws, fence, fold, named, algorithm, row, gathered, DELTA)
            started = perf_counter()
            found = _update(change) if what == UPDATE else _retrain(change)
            found |= {**gathering, "subset": number, "deleted": len(units[number])}
            found["wall_seconds"] = perf_counter() - started
            name = cluster_piece(task.asked, algorithm, what, number)
            task.pieces.keep(name, found, environment())


def _compile(task: ClusterTask, root: Path, fold: Fold) -> None:
    """Update and retrain models of a few rows, so that no timing pays for a compiler."""
    shutil.rmtree(root, ignore_errors=True)
    study, settings = task.asked.study, replace(task.settings.regression, rows=FEW)
    with Workspace.create(root) as ws:
        make_rows(ws, study, settings, find_origin(study, settings, root), _silent)
        few = replace(task.settings, clusters=min(FEW_CLUSTERS, task.settings.clusters))
        make_clusterings(ws, few, task.asked, fold, _silent)
        row, data_set = open_readable(ws.ledger, DATA, ws.root)
        units = np.arange(FEW // 100, dtype=np.int64)
        with ws.lock("a warm-up") as fence:
            gathered = gather(data_set, units, ws.ledger.salt, fold)
            for algorithm in task.asked.algorithms:
                change = Change(ws, fence, fold, _silent, algorithm, row, gathered, DELTA)
                _update(change)
                _retrain(change)
    shutil.rmtree(root)


def _silent(what: str, share: float | None = None, /) -> None:
    """Show nothing."""


def _gathered(
    data_set: DataSet, units: NDArray[np.int64], salt: bytes, fold: Fold
) -> tuple[Gathered, dict[str, Any]]:
    """Read the rows that leave, timed."""
    started = perf_counter()
    with metered() as meter:
        gathered = gather(data_set, units, salt, fold)
    seconds = perf_counter() - started
    return gathered, {"gather_seconds": seconds, "gather_bytes": meter.bytes_read}


def _update(change: Change) -> dict[str, Any]:
    """Write the next version, look at it and sweep it."""
    reset_peaks(change.fold)
    started = perf_counter()
    with metered() as meter:
        version = family_of(change.model).next_version(change)
    seconds = perf_counter() - started
    peak = largest_peak(change.fold)
    row, path = change.ws.ledger.model(change.model), change.ws.root / version.folder
    before = _record(row, change.ws.root / row["folder"], row["digest"])
    after = _record(row, path, version.digest)
    files.sweep(path)
    report = version.report
    kept = ("action", "first_step", "reason", "passes", "looked_at", "leaves", "digest")
    return {
        **{name: report[name] for name in kept if name in report},
        "seconds": seconds,
        "peak_bytes": peak,
        "bytes_read": meter.bytes_read,
        "bytes_written": meter.bytes_written,
        "before": _centroids(before),
        "centroids": _centroids(after),
    }


def _record(row: Mapping[str, Any], path: Path, expected: str) -> Record:
    """The record of a version of a model; row: the ledger's."""
    settings = json.loads(row["settings"])
    if row["algorithm"] in divided_models.ALGORITHMS:
        resolved = divided_arrays.settings_from_json(settings)
        return divided_arrays.Tree(open_version(path, expected), resolved).model
    arrays, _ = load_version(path, expected)
    return kmeans_arrays.from_arrays(arrays, kmeans_arrays.settings_from_json(settings))


def _centroids(record: Record) -> list[list[float]]:
    """The final centroids (k, features) in [0, 1] units; none of an empty model."""
    return [] if record.empty else scaled_centroids(record).tolist()


def _retrain(change: Change) -> dict[str, Any]:
    """Fit on the rows left with the model's resolved settings."""
    row = change.ws.ledger.model(change.model)
    settings = json.loads(row["settings"])
    reset_peaks(change.fold)
    started = perf_counter()
    with metered() as meter:
        record, passes, signed = _RETRAINS[row["algorithm"]](change, settings)
    seconds = perf_counter() - started
    return {
        "seconds": seconds,
        "passes": passes,
        "peak_bytes": largest_peak(change.fold),
        "bytes_read": meter.bytes_read,
        "bytes_written": meter.bytes_written,
        "digest": signed(),
        "centroids": _centroids(record),
    }


Retrained = tuple[Record, int, Callable[[], str]]
"""A model, the passes it took, and what gives the digest of its version."""


def _retrain_kmeans(change: Change, settings: Mapping[str, Any]) -> Retrained:
    gathered, resolved = change.gathered, kmeans_arrays.settings_from_json(settings)
    passes = StoredPasses(
        gathered.data_set, gathered.statistics, change.fold, gathered.slots, change.progress
    )
    record = quantized.fit(passes, resolved)

    def signed() -> str:
        return digest({n: a.values for n, a in kmeans_arrays.to_arrays(record, resolved).items()})

    return record, passes.passes, signed


def _retrain_divided(change: Change, settings: Mapping[str, Any]) -> Retrained:
    gathered, resolved = change.gathered, divided_arrays.settings_from_json(settings)
    tree = StoredLeaves(
        gathered.data_set,
        gathered.statistics,
        resolved,
        change.ws.ledger.salt,
        change.fold,
        gathered.slots,
        change.progress,
    ).fit()

    def signed() -> str:
        arrays = divided_arrays.stored_arrays(tree, resolved)
        return divided_arrays.digest_of({name: array.values for name, array in arrays.items()})

    return tree.model, tree.outcome.passes, signed


_RETRAINS: dict[str, Callable[[Change, Mapping[str, Any]], Retrained]] = {
    **dict.fromkeys(kmeans_models.ALGORITHMS, _retrain_kmeans),
    **dict.fromkeys(divided_models.ALGORITHMS, _retrain_divided),
}
