"""Verification of a regression model against BaseL: a retrain on the same mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from ..pipeline.losses import Loss
from ..pipeline.regression import BASEL
from ..storage.errors import CorruptError, MissingError
from ..storage.versions import check_version
from .errors import DivergenceError, VerifyError
from .fold import Fold
from .regression_rows import RegressionRows
from .regression_store import open_model
from .regression_survey import scores, survey
from .regression_training import majority
from .train_regression import descend_stored
from .workspace import Workspace

FACTOR = 10.0
"""The true distance may be so many times the estimate."""
ROUNDING = 1e-12
"""A distance below this share of the parameters' norm is rounding."""


def verify_against_basel(
    ws: Workspace, model: str, fold: Fold, progress: Callable[[str], None]
) -> tuple[dict[str, Any], str | None]:
    """Train anew on the rows that are stored; return the comparison, and what is wrong if anything.

    BaseL gets settings, standardisation and classes of the model, and reads the rows from disk. A
    flipped bit anywhere in the model's files is a fault, and so is a distance far beyond the
    estimate.
    """
    with ws.lock(f"verification of model {model}"):
        ws.ledger.check_nothing_pending(ws.ledger.model(model)["data_set"])
        try:
            row, found = open_model(ws, model)
        except (CorruptError, MissingError) as error:
            raise VerifyError(str(error)) from error
        _, data_set = ws.ledger.open_data_set(row["data_set"], ws.root)
        rows = RegressionRows(data_set, found.settings, found.design, found.classes)
        fault = None
        try:
            progress("reading the model")
            check_version(found.version)
        except (CorruptError, MissingError) as error:
            fault = str(error)
        intact = fault is None
        started = perf_counter()
        w = found.parameters
        try:
            w, _ = descend_stored(rows, None, lambda what: progress(f"BaseL: {what}"))
            diverges = False
        except DivergenceError:
            diverges = True
        seconds = perf_counter() - started
        progress("scores")
        seen = survey(data_set, found.settings, fold)
        own, basel = scores(rows, found.parameters, fold), scores(rows, w, fold)
    distance = float(np.linalg.norm(found.parameters - w))
    norms = float(np.linalg.norm(found.parameters) * np.linalg.norm(w))
    lineage = found.lineage
    linear = found.settings.loss == Loss.LINEAR
    score = "mse" if linear else "accuracy"
    allowed = FACTOR * lineage.estimate.distance + ROUNDING * float(np.linalg.norm(w))
    failed = found.lineage.failed
    if intact and failed != diverges:
        fault = f"model {model} has parameters, but BaseL diverges; train a new model"
        if failed:
            fault = f"model {model} has no parameters, but BaseL converges; train a new model"
    elif intact and distance > allowed:
        fault = (
            f"model {model} is {distance:.3g} from BaseL, beyond {allowed:.3g}: {FACTOR:g} times its "
            "estimate; train it again"
        )
    return {
        "model": model,
        "against": BASEL,
        "method": found.version.attrs["method"],
        "kind": found.settings.provenance,
        "distance": distance,
        "change": lineage.change,
        "estimate": lineage.estimate.distance,
        "cosine": float(np.vdot(found.parameters, w)) / norms if norms else 1.0,
        f"{score}_model": own[score],
        f"{score}_basel": basel[score],
        "majority_rate": majority(found.settings.loss, seen),
        "rows": lineage.rows,
        "share_deleted": lineage.share_deleted,
        "basel_seconds": seconds,
        "basel_diverges": diverges,
        "intact": intact,
    }, fault
