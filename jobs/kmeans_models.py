"""k-means and Q-k-means in jobs: implements ``model_family.Family``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline import quantized
from ..pipeline.clusterer import nearest, scaled_centroids
from ..pipeline.fixedpoint import LOSS_UNIT
from ..pipeline.quantized import Record, Settings
from ..pipeline.replay import Outcome
from ..pipeline.validation import DEFAULT_GAMMA, DEFAULT_MAX_ITER, resolve_settings
from ..storage.dataset import DataSet
from ..storage.versions import load_version, write_version
from .errors import JobError, UsageError
from .kmeans_arrays import from_arrays, settings_from_json, settings_to_json, to_arrays
from .model_family import Change, FirstVersion, NextVersion, Training
from .plan import Gathered
from .provenance_plan import ProvenancePlan, plan_labels
from .replay_cells import cells_bytes
from .replay_kmeans import delete_stored, forecast_stored
from .replay_store import LABELS, PROVENANCES, Layout
from .replay_versions import Place, anew, write_replay
from .train_kmeans import StoredPasses
from .workspace import Workspace

ALGORITHMS: tuple[str, ...] = ("k-means", "q-kmeans")
PROVENANCE = "provenance"
"""The parameter, and the setting, that says whether labels and margins are kept."""


def parse_bounds(text: str) -> tuple[float, ...]:
    """Return the numbers of LOWER:UPPER."""
    return tuple(float(part) for part in text.split(":"))


def parse_provenance(text: str) -> str:
    """Return what is kept for deletions; ValueError for a kind that there is not."""
    if text not in PROVENANCES:
        raise ValueError(text)
    return text


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "n_clusters": int,
    "epsilon": float,
    "gamma": float,
    "max_iter": int,
    "bounds": parse_bounds,
    PROVENANCE: parse_provenance,
}
_ALLOWED = {
    "k-means": ("n_clusters", "max_iter", "bounds", PROVENANCE),
    "q-kmeans": ("n_clusters", "epsilon", "gamma", "max_iter", "bounds", PROVENANCE),
}


def parse(algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
    """See ``Family``."""
    allowed = _ALLOWED[algorithm]
    return parse_values(algorithm, {name: _PARAMETERS[name] for name in allowed}, given)


def parse_values(
    algorithm: str, parsers: Mapping[str, Callable[[str], Any]], given: Mapping[str, str]
) -> dict[str, Any]:
    """Turn texts into values by an algorithm's parameters; UsageError names what is allowed."""
    parsed = {}
    for key, text in given.items():
        if key not in parsers:
            raise UsageError(f"{algorithm} has no parameter {key!r}; it has {', '.join(parsers)}")
        try:
            parsed[key] = parsers[key](text)
        except ValueError:
            raise UsageError(f"{key} is {text!r}: not a value of that parameter") from None
    if "bounds" in parsed and len(parsed["bounds"]) != 2:
        raise UsageError(f"bounds is {given['bounds']!r}; give LOWER:UPPER, e.g. 0:1")
    return parsed


def resolve(
    algorithm: str, parameters: Mapping[str, Any], rows: int, features: int, seed: int
) -> Settings:
    """Return the settings of a first fit on ``rows`` rows; UsageError for bad values."""
    defaults: dict[str, Any] = {"n_clusters": 8, "max_iter": DEFAULT_MAX_ITER}
    if algorithm == "k-means":
        defaults |= {"epsilon": 0.0, "gamma": 0.0}
    else:
        defaults |= {"epsilon": None, "gamma": DEFAULT_GAMMA}
    given = {name: value for name, value in parameters.items() if name != PROVENANCE}
    try:
        return resolve_settings(rows, features, random_state=seed, **{**defaults, **given})
    except ValueError as error:
        raise UsageError(str(error)) from error


def check(
    algorithm: str, parameters: Mapping[str, Any], data_set: DataSet, rows: int, seed: int
) -> None:
    """See ``Family``."""
    resolve(algorithm, parameters, rows, data_set.features, seed)


def first_version(training: Training) -> FirstVersion:
    """See ``Family``."""
    asked, data = training.asked, training.data_set
    algorithm, row = asked["algorithm"], training.data_row
    settings = resolve(algorithm, asked["parameters"], row["rows"], data.features, asked["seed"])
    plan = _plan(asked["parameters"].get(PROVENANCE), data, settings)
    passes = StoredPasses(data, data.statistics(), training.fold, progress=training.progress)
    record = quantized.fit(passes, settings)
    path = training.ws.new_version_path(training.model, 1)
    made = {**settings_to_json(settings), PROVENANCE: plan.kind}
    attrs = version_attrs(training.model, 1, algorithm, made, record, row, None)
    digest = write_version(path, to_arrays(record, settings), attrs)
    steps = len(record.steps) - 1
    kept: dict[str, Any] = {"kind": plan.kind, "bytes": 0}
    if plan.kind == LABELS:
        training.progress("labels and margins")
        place = Place(path, training.fence, training.fold, data, {})
        kept = write_replay(place, settings, anew(record), None)
    summary = {
        "steps": steps,
        "loss": record.final.loss / LOSS_UNIT,
        "passes": passes.passes + bool(kept["bytes"]),
        PROVENANCE: {"why": plan.why, **kept, "deletion_passes": 0 if kept["bytes"] else steps},
    }
    return FirstVersion(path, digest, record.extent.rows, made, summary)


def _plan(asked: str | None, data: DataSet, settings: Settings) -> ProvenancePlan:
    """What is kept for deletions, and what it costs."""
    k, most = settings.n_clusters, settings.max_iter
    layout = Layout.of(data, most + 1, k, most)
    disk, memory = layout.row_bytes, cells_bytes(layout, data.features)
    return plan_labels(asked, settings.spacing > 1, most, disk, memory)


def next_version(change: Change) -> NextVersion:
    """See ``Family``; the same bits as training without the gathered rows."""
    started = perf_counter()
    gathered, model = change.gathered, change.model
    row, record, settings = load_model(change.ws, model)
    passes = StoredPasses(
        gathered.data_set,
        gathered.statistics,
        change.fold,
        gathered.slots,
        lambda what: change.progress(f"update {model}: {what}"),
    )
    change.progress(f"update {model}")
    made = json.loads(row["settings"])
    done = delete_stored(change, row, record, settings, passes)
    record, outcome = done.record, done.outcome
    path, attrs = next_attrs(change, row, made, record)
    digest = write_version(path, to_arrays(record, settings), attrs, change.ws.root / row["folder"])
    more: dict[str, Any] = {}
    if made.get(PROVENANCE) == LABELS:
        change.progress(f"update {model}: labels and margins")
        place = Place(path, change.fence, change.fold, gathered.data_set, gathered.slots)
        kept = write_replay(place, settings, done.wanted, done.parent)
        more = {"looked_at": done.looked_at, PROVENANCE: kept}
        labelling = bool(done.wanted.fresh and kept["bytes"])
        outcome = replace(outcome, passes=outcome.passes + labelling)
    more["seconds"] = perf_counter() - started
    return next_entry(change, row, path, digest, record, outcome, more)


def next_attrs(
    change: Change, row: Mapping[str, Any], settings: Mapping[str, Any], model: Record
) -> tuple[Path, dict[str, Any]]:
    """Return the path and attributes of a model's next version."""
    number = row["version"] + 1
    parent = Path(row["folder"]).name
    attrs = version_attrs(
        change.model, number, row["algorithm"], settings, model, change.data_row, parent
    )
    return change.ws.new_version_path(change.model, number), attrs


def next_entry(
    change: Change,
    row: Mapping[str, Any],
    path: Path,
    digest: str,
    model: Record,
    outcome: Outcome,
    more: Mapping[str, Any],
) -> NextVersion:
    """Return what a deletion job learns of a version that was written; more: for its report."""
    number, rows = row["version"] + 1, model.extent.rows
    report = {
        "model": change.model,
        "data": change.data_row["name"],
        "algorithm": row["algorithm"],
        "action": outcome.action,
        "first_step": outcome.first_step,
        "reason": outcome.reason,
        "passes": outcome.passes,
        **more,
        "exactness": "exact",
        "version_before": row["version"],
        "version": number,
        "digest_before": row["digest"],
        "digest": digest,
        "rows_before": row["rows"],
        "rows": rows,
        "empty": model.empty,
    }
    return NextVersion(change.model, number, change.ws.relative(path), digest, rows, report)


def forecast(ws: Workspace, model: str, gathered: Gathered, method: str) -> dict[str, Any]:
    """See ``Family``."""
    row, record, settings = load_model(ws, model)
    return forecast_stored(ws, row, record, settings, gathered)


def version_attrs(
    model: str,
    number: int,
    algorithm: str,
    settings: Mapping[str, Any],
    record: Record,
    data_set: Mapping[str, Any],
    parent: str | None,
) -> dict[str, Any]:
    """Return the attributes of a model version's group; settings as JSON values."""
    return {
        "final_step": None if record.empty else record.final_number,
        "model": model,
        "version": number,
        "algorithm": algorithm,
        "settings": dict(settings),
        "data_set": data_set["name"],
        "generation": data_set["generation"],
        "parent": parent,
    }


def load_model(ws: Workspace, name: str) -> tuple[dict[str, Any], Record, Settings]:
    """Return a model's ledger row, record and settings, its digest checked."""
    row = ws.ledger.model(name)
    arrays, _ = load_version(ws.root / row["folder"], row["digest"])
    settings = settings_from_json(json.loads(row["settings"]))
    return row, from_arrays(arrays, settings), settings


def describe(ws: Workspace, model: str) -> dict[str, Any]:
    """See ``Family``; centres in the features' own units."""
    row, record, _ = load_model(ws, model)
    found = describe_record(record, json.loads(row["settings"]))
    return found if record.empty else {**found, "loss": record.final.loss / LOSS_UNIT}


def describe_record(record: Record, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``model show`` tells of a record, but for its loss."""
    found: dict[str, Any] = {"settings": settings, "empty": record.empty}
    found |= {"steps": max(0, len(record.steps) - 1), "loss": None}
    if record.empty:
        return {**found, "centroids": 0, "cluster_centers": [], "sizes": []}
    final = record.final
    present = final.centroids.present
    centres = record.scaling.restore(scaled_centroids(record))
    return {
        **found,
        "centroids": int(present.sum()),
        "cluster_centers": centres.tolist(),
        "sizes": final.tally.sizes[present].tolist(),
    }


def predict(ws: Workspace, model: str, x: NDArray[np.float32]) -> NDArray[Any]:
    """See ``Family``: the cluster of each row."""
    return labels_of(model, load_model(ws, model)[1], x)


def labels_of(model: str, record: Record, x: NDArray[np.float32]) -> NDArray[Any]:
    """Return the cluster (n,) of each row; JobError where the model is empty."""
    if record.empty:
        raise JobError(f"model {model} is empty: all its rows were deleted")
    return nearest(record, x)[0]
