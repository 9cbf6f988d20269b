"""Training jobs and models: from parameters to a model version in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline import quantized
from ..pipeline.clusterers import nearest, scaled_centroids
from ..pipeline.fixedpoint import LOSS_UNIT
from ..pipeline.quantized import Record, Settings
from ..pipeline.validation import DEFAULT_GAMMA, DEFAULT_MAX_ITER, resolve_settings
from ..storage.versions import load_version, write_version
from .errors import JobError, UsageError
from .fold import Fold
from .kmeans_arrays import from_arrays, settings_from_json, settings_to_json, to_arrays
from .train_kmeans import StoredPasses
from .workspace import Workspace

ALGORITHMS = ("k-means", "q-kmeans")
_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "n_clusters": int,
    "epsilon": float,
    "gamma": float,
    "max_iter": int,
    "bounds": lambda text: tuple(float(part) for part in text.split(":")),
}
_ALLOWED = {
    "k-means": ("n_clusters", "max_iter", "bounds"),
    "q-kmeans": ("n_clusters", "epsilon", "gamma", "max_iter", "bounds"),
}


def parse_parameters(algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Turn ``-p key=value`` texts into values; UsageError names what is allowed."""
    if algorithm not in ALGORITHMS:
        raise UsageError(f"there is no algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}")
    allowed = _ALLOWED[algorithm]
    parsed = {}
    for key, text in given.items():
        if key not in allowed:
            raise UsageError(f"{algorithm} has no parameter {key!r}; it has {', '.join(allowed)}")
        try:
            parsed[key] = _PARAMETERS[key](text)
        except ValueError:
            raise UsageError(f"{key} is {text!r}: not a value of that parameter") from None
    if "bounds" in parsed and len(parsed["bounds"]) != 2:
        raise UsageError(f"bounds is {given['bounds']!r}; give LOWER:UPPER, e.g. 0:1")
    return parsed


def resolve(
    algorithm: str, parameters: Mapping[str, Any], rows: int, features: int, seed: int
) -> Settings:
    """Return the settings of a first fit on ``rows`` rows; UsageError for bad values."""
    defaults = {"n_clusters": 8, "max_iter": DEFAULT_MAX_ITER}
    if algorithm == "k-means":
        defaults |= {"epsilon": 0.0, "gamma": 0.0}  # type: ignore[dict-item]
    else:
        defaults |= {"epsilon": None, "gamma": DEFAULT_GAMMA}  # type: ignore[dict-item]
    try:
        return resolve_settings(rows, features, random_state=seed, **{**defaults, **parameters})
    except ValueError as error:
        raise UsageError(str(error)) from error


def train(
    ws: Workspace,
    model: str,
    asked: Mapping[str, Any],
    fold: Fold,
    progress: Callable[[str], None] = lambda what: None,
    job: int | None = None,
) -> dict[str, Any]:
    """Train ``model`` and enter its first version in the ledger; return a summary.

    asked: ``data``, ``algorithm``, ``parameters`` (parsed) and ``seed``. job: one to repeat.
    """
    ws.check_name("model", model)
    with ws.lock(f"training of model {model}"):
        ws.check_name("model", model)
        ledger = ws.ledger
        ledger.check_nothing_pending(asked["data"])
        row, data_set = ledger.open_data_set(asked["data"], ws.root)
        if row["rows"] == 0:
            raise UsageError(f"data set {asked['data']} is empty: all its rows were deleted")
        settings = resolve(
            asked["algorithm"],
            asked["parameters"],
            row["rows"],
            data_set.features,
            asked["seed"],
        )
        if job is None:
            job = ledger.begin_job("train", {"model": model, **asked})
        else:
            ledger.restart_job(job)
        started = perf_counter()
        with ledger.failing(job), ledger.step(job, "train"):
            passes = StoredPasses(data_set, data_set.statistics(), fold, progress=progress)
            record = quantized.fit(passes, settings)
            path = ws.new_version_path(model, 1)
            arrays = to_arrays(record, settings)
            attrs = version_attrs(model, 1, asked["algorithm"], settings, record, row, None)
            digest = write_version(path, arrays, attrs)
        summary = {
            "job": job,
            "model": model,
            "version": 1,
            "digest": digest,
            "rows": record.extent.rows,
            "steps": len(record.steps) - 1,
            "loss": record.final.loss / LOSS_UNIT,
            "passes": passes.passes,
            "seconds": perf_counter() - started,
            "settings": settings_to_json(settings),
        }
        with ledger.transaction():
            ledger.run(
                "INSERT INTO models VALUES (?, ?, ?, ?, ?, 1, ?)",
                model,
                asked["data"],
                row["generation"],
                asked["algorithm"],
                json.dumps(settings_to_json(settings)),
                record.extent.rows,
            )
            ledger.add_version(model, 1, ws.relative(path), digest, job)
            ledger.event("model", {"model": model, "version": 1, "digest": digest})
            ledger.end_job(job, "done", summary)
    return summary


def version_attrs(
    model: str,
    number: int,
    algorithm: str,
    settings: Settings,
    record: Record,
    data_set: Mapping[str, Any],
    parent: str | None,
) -> dict[str, Any]:
    """Return the attributes of a model version's group."""
    return {
        "final_step": None if record.empty else record.final_number,
        "model": model,
        "version": number,
        "algorithm": algorithm,
        "settings": settings_to_json(settings),
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


def describe_model(ws: Workspace, name: str) -> dict[str, Any]:
    """Return what ``model show`` tells, centres in the features' own units."""
    row, record, _ = load_model(ws, name)
    found = {
        key: row[key]
        for key in (
            "name",
            "algorithm",
            "data_set",
            "generation",
            "version",
            "rows",
            "digest",
            "created",
        )
    }
    found |= {"path": row["folder"], "settings": json.loads(row["settings"])}
    found |= {"empty": record.empty, "steps": max(0, len(record.steps) - 1)}
    if record.empty:
        return {**found, "loss": None, "centroids": 0, "cluster_centers": [], "sizes": []}
    final = record.final
    present = final.centroids.present
    centres = record.scaling.restore(scaled_centroids(record))
    return {
        **found,
        "loss": final.loss / LOSS_UNIT,
        "centroids": int(present.sum()),
        "cluster_centers": centres.tolist(),
        "sizes": final.tally.sizes[present].tolist(),
    }


def predict(ws: Workspace, name: str, x: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the cluster (n,) of rows x under a model's current version."""
    _, record, _ = load_model(ws, name)
    if record.empty:
        raise JobError(f"model {name} is empty: all its rows were deleted")
    return nearest(record, x)[0]
