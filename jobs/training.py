"""Training jobs and models of any family: from parameters to a model version in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.dataset import DataSet
from . import divided_models, kmeans_models, regression_models, sparse_models
from .errors import UsageError
from .fold import Fold
from .lineage import versions_of
from .model_family import Family, Training
from .pending import behind, open_readable, refuse_behind
from .workspace import Workspace

FAMILIES: tuple[Family, ...] = (
    kmeans_models,
    divided_models,
    regression_models,
    sparse_models,
)
ALGORITHMS = tuple(name for family in FAMILIES for name in family.ALGORITHMS)
SPARSE_ALGORITHMS = sparse_models.ALGORITHMS
"""Those for sparse data sets, and for no other."""
_SHOWN = (
    "name",
    "algorithm",
    "data_set",
    "generation",
    "version",
    "rows",
    "digest",
    "created",
)


def family_of(algorithm: str) -> Family:
    """Return the family that an algorithm belongs to; UsageError names those there are."""
    for family in FAMILIES:
        if algorithm in family.ALGORITHMS:
            return family
    raise UsageError(f"there is no algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}")


def parse_parameters(algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Turn ``-p key=value`` texts into values; UsageError names what is allowed."""
    return family_of(algorithm).parse(algorithm, given)


def train(
    ws: Workspace,
    model: str,
    asked: Mapping[str, Any],
    fold: Fold,
    progress: Callable[[str], None] = lambda what: None,
    job: int | None = None,
) -> dict[str, Any]:
    """Train ``model`` and enter its first version in the ledger; return a summary.

    asked: ``data``, ``algorithm``, ``parameters`` (parsed), ``seed``, and for regressions, where
    given, ``memory`` and ``disk`` in bytes. job: one to repeat.
    """
    family = family_of(asked["algorithm"])
    ws.check_name("model", model)
    with ws.lock(f"training of model {model}") as fence:
        ws.check_name("model", model)
        ledger = ws.ledger
        row, data_set = open_readable(ledger, asked["data"], ws.root)
        if row["rows"] == 0:
            raise UsageError(f"data set {asked['data']} is empty: all its rows were deleted")
        _check_layout(asked["algorithm"], asked["data"], data_set)
        family.check(asked["algorithm"], asked["parameters"], data_set, row["rows"], asked["seed"])
        if job is None:
            job = ledger.begin_job("train", {"model": model, **asked})
        else:
            ledger.restart_job(job)
        started = perf_counter()
        try:
            with ledger.failing(job), ledger.step(job, "train"):
                training = Training(ws, fence, fold, progress, model, job, asked, row, data_set)
                first = family.first_version(training)
        except Exception:
            # What a failed training wrote knows the rows that may go next.
            ws.sweep_garbage()
            raise
        summary = {
            "job": job,
            "model": model,
            "version": 1,
            "digest": first.digest,
            "rows": first.rows,
            **first.summary,
            "seconds": perf_counter() - started,
            "settings": first.settings,
        }
        with ledger.transaction():
            ledger.run(
                "INSERT INTO models VALUES (?, ?, ?, ?, ?, 1, ?)",
                model,
                asked["data"],
                row["generation"],
                asked["algorithm"],
                json.dumps(first.settings),
                first.rows,
            )
            ledger.add_version(model, 1, ws.relative(first.path), first.digest, job)
            ledger.event("model", {"model": model, "version": 1, "digest": first.digest})
            ledger.end_job(job, "done", summary)
    return summary


def _check_layout(algorithm: str, data: str, data_set: DataSet) -> None:
    """UsageError for an algorithm that can't read a data set's layout."""
    if data_set.sparse and algorithm not in SPARSE_ALGORITHMS:
        raise UsageError(
            f"{algorithm} needs dense rows, and those of data set {data} are kept sparse; train "
            f"{', '.join(SPARSE_ALGORITHMS)} on it"
        )
    if not data_set.sparse and algorithm in SPARSE_ALGORITHMS:
        raise UsageError(
            f"{algorithm} is for sparse data sets, and the rows of {data} are dense; train one of "
            f"{', '.join(name for name in ALGORITHMS if name not in SPARSE_ALGORITHMS)}"
        )


def describe_model(ws: Workspace, name: str) -> dict[str, Any]:
    """Return what ``model show`` tells."""
    row = ws.ledger.model(name)
    found = {key: row[key] for key in _SHOWN}
    return {
        **found,
        "path": row["folder"],
        "behind": behind(ws.ledger, name),
        "versions": versions_of(ws.ledger, name),
        **family_of(row["algorithm"]).describe(ws, name),
    }


def predict(ws: Workspace, name: str, x: NDArray[np.float32]) -> NDArray[Any]:
    """Return the predictions (n,) for rows x under a model's current version.

    JobError where that version has seen rows whose deletion is committed.
    """
    refuse_behind(ws.ledger, name)
    return family_of(ws.ledger.model(name)["algorithm"]).predict(ws, name, x)
