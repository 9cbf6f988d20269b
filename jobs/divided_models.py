"""DC-k-means in jobs: implements ``model_family.Family``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.clusterer import delete_rows
from ..pipeline.divided import (
    DividedSettings,
    PooledPasses,
    climb,
    on_cube,
    outcome,
    pooled,
)
from ..pipeline.fixedpoint import LOSS_UNIT, exact_loss, shrunk
from ..pipeline.replay import refit_reason
from ..pipeline.validation import resolve_divided
from ..storage.dataset import DataSet
from ..storage.versions import open_version
from .divided_arrays import Tree, settings_from_json, settings_to_json, write_tree
from .errors import UsageError
from .forecast import LeafForecast, PassNeeded
from .kmeans_models import (
    describe_record,
    labels_of,
    next_attrs,
    next_entry,
    parse_bounds,
    parse_values,
    version_attrs,
)
from .model_family import Change, FirstVersion, NextVersion, Training
from .plan import Gathered
from .train_divided import StoredLeaves, StoredTree, leaves_of
from .train_kmeans import StoredPasses
from .workspace import Workspace

ALGORITHMS: tuple[str, ...] = ("dc-kmeans",)


def _branching(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "n_clusters": int,
    "n_leaves": int,
    "max_iter": int,
    "root": str,
    "branching": _branching,
    "bounds": parse_bounds,
}


def parse(algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
    """See ``Family``."""
    return parse_values(algorithm, _PARAMETERS, given)


def resolve(parameters: Mapping[str, Any], rows: int, features: int, seed: int) -> DividedSettings:
    """Return the settings of a first fit on ``rows`` rows; UsageError for bad values."""
    try:
        return resolve_divided(rows, features, random_state=seed, **parameters)
    except ValueError as error:
        raise UsageError(str(error)) from error


def check(
    algorithm: str, parameters: Mapping[str, Any], data_set: DataSet, rows: int, seed: int
) -> None:
    """See ``Family``."""
    resolve(parameters, rows, data_set.features, seed)


def first_version(training: Training) -> FirstVersion:
    """See ``Family``."""
    asked, data, row = training.asked, training.data_set, training.data_row
    settings = resolve(asked["parameters"], row["rows"], data.features, asked["seed"])
    statistics, salt, fold = data.statistics(), training.ws.ledger.salt, training.fold
    progress = training.progress
    tree = StoredLeaves(data, statistics, settings, salt, fold, progress=progress).fit()
    passes = StoredPasses(data, statistics, fold, progress=progress)
    loss = _loss(tree, passes)
    path, made = training.ws.new_version_path(training.model, 1), settings_to_json(settings)
    attrs = version_attrs(training.model, 1, asked["algorithm"], made, tree.model, row, None)
    digest = write_tree(path, attrs, tree, settings)
    summary = {
        "steps": len(tree.model.steps) - 1,
        "loss": loss,
        "passes": passes.passes,
        "leaves": settings.n_leaves,
        "leaf_passes": tree.outcome.passes,
        "nodes": tree.nodes,
        "warnings": _warnings(settings.n_leaves, tree.extent.rows),
    }
    return FirstVersion(path, digest, tree.extent.rows, made, summary)


def _warnings(leaves: int, rows: int) -> list[str]:
    if leaves <= rows:
        return []
    return [f"{leaves:,} leaves for {rows:,} rows: most are empty, and each is a task; take fewer"]


def _loss(tree: StoredTree, passes: StoredPasses) -> float:
    """The sum of squared distances of all rows, scaled, to the model's centroids."""
    scaling, final = tree.model.scaling, tree.model.final.centroids
    tally = passes.assign(scaling, final.quantized, final.present)
    square_sum = passes.square_sum(scaling)
    return exact_loss(square_sum, final.quantized, tally.sizes, tally.sums) / LOSS_UNIT


def next_version(change: Change) -> NextVersion:
    """See ``Family``; the same bits as training without the gathered rows."""
    started = perf_counter()
    gathered = change.gathered
    change.progress(f"update {change.model}")
    row, before = load_tree(change.ws, change.model)
    tree = _leaves(change, before.settings).delete(
        before.extent, before.upper, before.leaf, gathered.removed
    )
    updated = perf_counter() - started
    made = settings_to_json(before.settings)
    path, attrs = next_attrs(change, row, made, tree.model)
    digest = write_tree(path, attrs, tree, before.settings, before)
    more = {
        "leaves": len(tree.records),
        "nodes": tree.nodes,
        "update_seconds": updated,
        "seconds": perf_counter() - started,
    }
    return next_entry(change, row, path, digest, tree.model, tree.outcome, more)


def _leaves(change: Change, settings: DividedSettings) -> StoredLeaves:
    gathered = change.gathered
    return StoredLeaves(
        gathered.data_set,
        gathered.statistics,
        settings,
        change.ws.ledger.salt,
        change.fold,
        gathered.slots,
        lambda what: change.progress(f"update {change.model}: {what}"),
    )


def forecast(ws: Workspace, model: str, gathered: Gathered, method: str) -> dict[str, Any]:
    """See ``Family``; also how many leaves would be recomputed."""
    _, before = load_tree(ws, model)
    settings, removed = before.settings, gathered.removed
    bounds = settings.plain.bounds
    if refit_reason(shrunk(before.extent, removed.x, bounds), bounds):
        return {"action": "retrained", "first_step": None, "leaves": settings.n_leaves}
    by_leaf = leaves_of(on_cube(removed, before.model.scaling), settings.n_leaves, ws.ledger.salt)
    given = list(before.upper.leaves)
    action = None
    for leaf, gone in by_leaf.items():
        passes, of_leaf = LeafForecast(gathered.statistics), settings.leaf_settings[leaf]
        try:
            record, _ = delete_rows(before.leaf(leaf), gone, passes, of_leaf)
            given[leaf] = pooled(record)
        except PassNeeded as needed:
            action = needed.action
    if action is None:
        upper, _ = climb(given, settings, before.upper)
        action = outcome(before.upper, upper, 0).action
    return {"action": action, "first_step": None, "leaves": len(by_leaf)}


def load_tree(ws: Workspace, name: str) -> tuple[dict[str, Any], Tree]:
    """Return a model's ledger row and its opened version, the arrays that are read checked."""
    row = ws.ledger.model(name)
    version = open_version(ws.root / row["folder"], row["digest"])
    return row, Tree(version, settings_from_json(json.loads(row["settings"])))


def describe(ws: Workspace, model: str) -> dict[str, Any]:
    """See ``Family``; ``sizes`` counts the rows of the leaves' clusters by their centroid.

    ``loss`` is unknown without a pass over the rows; ``root_loss`` is that of the pooled centroids.
    """
    row, tree = load_tree(ws, model)
    found = describe_record(tree.model, json.loads(row["settings"]))
    if tree.model.empty:
        return {**found, "root_loss": None}
    final = tree.model.final
    passes = PooledPasses(tree.upper.leaves, weighted=True)
    tally = passes.assign(tree.model.scaling, final.centroids.quantized, final.centroids.present)
    sizes = tally.sizes[final.centroids.present].tolist()
    return {**found, "sizes": sizes, "root_loss": final.loss / LOSS_UNIT}


def predict(ws: Workspace, model: str, x: NDArray[np.float32]) -> NDArray[Any]:
    """See ``Family``: the cluster of each row."""
    return labels_of(model, load_tree(ws, model)[1].model, x)
