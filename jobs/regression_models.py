"""Linear, logistic and softmax models in jobs: implements ``model_family.Family``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.losses import Loss
from .errors import JobError
from .regression_arrays import settings_to_json
from .regression_deletion import forecast, next_version, retrain_recommended
from .regression_store import folder_size, open_model
from .regression_training import ALGORITHMS, check, first_version, parse
from .workspace import Workspace

FAILED = "training diverged on the rows that a deletion left; train a new model"
__all__ = [
    "ALGORITHMS",
    "check",
    "describe",
    "first_version",
    "forecast",
    "next_version",
    "parse",
    "predict",
]


def describe(ws: Workspace, model: str) -> dict[str, Any]:
    """See ``Family``; coefficients in the features' own units."""
    _, found = open_model(ws, model)
    w, design = found.parameters, found.design
    slopes = w[:, :-1] / design.scale
    return {
        "settings": settings_to_json(found.settings),
        "empty": found.lineage.rows == 0,
        "failed": found.lineage.failed,
        "classes": list(found.classes),
        "coefficients": slopes.tolist(),
        "intercepts": (w[:, -1] - slopes @ design.mean).tolist(),
        "rows_at_fit": found.lineage.rows_at_fit,
        "share_deleted": found.lineage.share_deleted,
        "estimate": found.lineage.estimate.distance,
        "retrain_recommended": retrain_recommended(found.lineage, w),
        "bytes": folder_size(found.version.path),
    }


def predict(ws: Workspace, model: str, x: NDArray[np.float32]) -> NDArray[Any]:
    """See ``Family``: values of a linear model, else the classes as the data set has them."""
    _, found = open_model(ws, model)
    if found.lineage.rows == 0:
        raise JobError(f"model {model} is empty: all its rows were deleted")
    if found.lineage.failed:
        raise JobError(f"model {model} has no parameters: {FAILED}")
    values: NDArray[Any] = found.design.rows(x) @ found.parameters.T
    if found.settings.loss == Loss.LINEAR:
        return values[:, 0]
    classes: NDArray[Any] = np.array(found.classes)
    chosen = values.argmax(axis=1) if values.shape[1] > 1 else (values[:, 0] > 0).astype(np.int64)
    predicted: NDArray[Any] = classes[chosen]
    return predicted
