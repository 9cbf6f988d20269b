"""Logistic models on sparse rows in jobs: implements ``model_family.Family``.

Features are used as they are, without standardisation, which would fill the zeros; the bias is one
more parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.sparse_survey import decision
from ..storage.dataset import DataSet
from ..storage.svmlight import SVMLIGHT
from .errors import JobError
from .regression_arrays import settings_to_json
from .regression_store import folder_size
from .sparse_deletion import forecast, next_version, retrain_recommended
from .sparse_rows import SparseModelRows
from .sparse_scanning import read_sparse_rows
from .sparse_store import SparseModel, open_sparse_model
from .sparse_training import ALGORITHMS, check, descend, first_version, parse, scores
from .verifying_regression import FACTOR, comparison, distance_to, open_verified, too_far
from .workspace import Workspace

ROUNDING = 1e-6
"""A distance below this share of the parameters' norm is rounding: coefficients are float32."""
__all__ = [
    "ALGORITHMS",
    "check",
    "describe",
    "first_version",
    "forecast",
    "next_version",
    "parse",
    "predict",
    "predict_file",
    "verify_sparse",
]


def describe(ws: Workspace, model: str) -> dict[str, Any]:
    """See ``Family``."""
    _, found = open_sparse_model(ws, model)
    w = found.parameters
    return {
        "settings": settings_to_json(found.settings),
        "empty": found.lineage.rows == 0,
        "failed": False,
        "classes": list(found.classes),
        "coefficients": [w[:-1].tolist()],
        "intercepts": [float(w[-1])],
        "rows_at_fit": found.lineage.rows_at_fit,
        "share_deleted": found.lineage.share_deleted,
        "estimate": found.lineage.estimate,
        "retrain_recommended": retrain_recommended(found.lineage),
        "bytes": folder_size(found.version.path),
    }


def _usable(ws: Workspace, model: str) -> SparseModel:
    _, found = open_sparse_model(ws, model)
    if found.lineage.rows == 0:
        raise JobError(f"model {model} is empty: all its rows were deleted")
    return found


def _classified(found: SparseModel, scores: NDArray[np.float64]) -> NDArray[Any]:
    classes: NDArray[Any] = np.array(found.classes)
    predicted: NDArray[Any] = classes[(scores > 0.0).astype(np.int64)]
    return predicted


def predict(ws: Workspace, model: str, x: NDArray[np.float32]) -> NDArray[Any]:
    """See ``Family``: the classes of dense rows x (n, features)."""
    found = _usable(ws, model)
    return _classified(found, x @ found.parameters[:-1] + found.parameters[-1])


def predict_file(
    ws: Workspace, model: str, file: Path, format: str | None, data_set: DataSet
) -> list[float]:
    """Return the class of every row of an svmlight file; BadInputError for another format."""
    found = _usable(ws, model)
    x = read_sparse_rows(file, format or SVMLIGHT, data_set)
    predicted = _classified(found, decision(x.values, x.columns, x.pointers, found.parameters))
    labels: list[float] = predicted.tolist()
    return labels


def verify_sparse(
    ws: Workspace, model: str, progress: Callable[[str], None]
) -> tuple[dict[str, Any], str | None]:
    """Train anew on the rows that are stored; return the comparison, and what is wrong if anything.

    As ``verify_against_basel``.
    """
    with ws.lock(f"verification of model {model}"):
        opened = open_verified(ws, model, open_sparse_model, progress)
        found, fault = opened.found, opened.fault
        rows = SparseModelRows(opened.data_set, found.settings, found.classes)
        started = perf_counter()
        w, _ = descend(rows, lambda what: progress(f"BaseL: {what}"))
        seconds = perf_counter() - started
        own, basel = scores(rows, found.parameters), scores(rows, w)
    estimate = found.lineage.estimate
    allowed = FACTOR * estimate
    if estimate:
        allowed += ROUNDING * float(np.linalg.norm(w))
    if fault is None:
        fault = too_far(model, distance_to(found, w), allowed)
    return {
        **comparison(model, found, w, estimate),
        "accuracy_model": own["accuracy"],
        "accuracy_basel": basel["accuracy"],
        "majority_rate": basel["majority_rate"],
        "basel_seconds": seconds,
        "basel_diverges": False,
        "intact": opened.fault is None,
    }, fault
