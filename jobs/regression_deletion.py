"""A deletion from linear, logistic and softmax models: the next version, and a forecast of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.estimate import accumulated
from ..pipeline.regression import NO_PROVENANCE, RegressionSettings, held_out
from ..pipeline.visits import Leaving
from ..storage.versions import create_version
from .estimating import estimate_update
from .model_family import Change, NextVersion
from .plan import Gathered
from .regression_arrays import (
    Digests,
    Lineage,
    RegressionModel,
    settings_from_json,
    small_arrays,
)
from .regression_rows import RegressionRows, encode
from .regression_store import open_model, seal, version_attrs
from .regression_training import epochs
from .train_regression import Target, capture_stored, descend_stored
from .update_regression import BASEL, rebase_stored, update_stored
from .workspace import Workspace

RETRAIN_SHARE = 0.2
RETRAIN_DISTANCE = 0.03
NEAR = 1e-6
"""A retrain is recommended beyond this share of deleted rows, or this estimate over the change, unless
the estimate is below a millionth of the parameters."""
FEWEST_ROWS = 2
"""An update leaves so many training rows at least; fewer are trained anew."""
Written = tuple[NDArray[np.float64], Digests, Lineage, dict[str, Any]]


def leaving_rows(rows: RegressionRows, gathered: Gathered) -> Leaving:
    """The training rows among those gathered."""
    chosen = ~held_out(gathered.removed.units, rows.settings)
    cells, slots = gathered.addresses
    labels = encode(rows.settings.loss, rows.classes, gathered.labels[chosen])
    design = rows.design.rows(gathered.removed.x[chosen])
    return Leaving(design, labels, cells[chosen], slots[chosen])


def _why_retrain(settings: RegressionSettings, method: str, left: int) -> str | None:
    """Why a model is trained again; None where it is updated."""
    if method == BASEL:
        return "asked for"
    if settings.provenance == NO_PROVENANCE:
        return "the model keeps no provenance"
    # An update's error could be all that is left of such a model, and nothing would tell of it.
    return f"only {left} training rows are left" if left < FEWEST_ROWS else None


def next_version(change: Change) -> NextVersion:
    """See ``Family``."""
    started = perf_counter()
    row, model = open_model(change.ws, change.model)
    gathered, settings = change.gathered, model.settings
    rows = RegressionRows(gathered.data_set, settings, model.design, model.classes, gathered.slots)
    leaving = leaving_rows(rows, gathered)
    number = row["version"] + 1
    path = change.ws.new_version_path(change.model, number)
    parent = Path(row["folder"]).name
    left = model.lineage.rows - len(leaving.rows)
    retrain = _why_retrain(settings, change.method, left) is not None
    method = BASEL if retrain else change.method
    attrs = version_attrs(
        change.model, number, row["algorithm"], settings, change.data_row, parent, method
    )
    specs = dict(model.version.specs)
    small = small_arrays(model.parameters, model.design, model.classes, model.lineage)
    target = Target(path, {n: s for n, s in specs.items() if n not in small}, change.fence)
    create_version(path, specs, attrs)
    write = _retrained if retrain else _updated
    w, digests, lineage, told = write(change, model, rows, leaving, target, left)
    sealing = perf_counter()
    digest = seal(target, specs, digests, w, rows, lineage)
    report = {
        "model": change.model,
        "data": change.data_row["name"],
        "algorithm": row["algorithm"],
        "kind": settings.provenance,
        **told,
        "sync_seconds": perf_counter() - sealing,
        "seconds": perf_counter() - started,
        "first_step": None,
        "share_deleted": lineage.share_deleted,
        "estimate": lineage.estimate.distance,
        "retrain_recommended": retrain_recommended(lineage, w),
        "version_before": row["version"],
        "version": number,
        "digest_before": row["digest"],
        "digest": digest,
        "rows_before": row["rows"],
        "rows": left,
        "empty": left == 0,
    }
    return NextVersion(change.model, number, change.ws.relative(path), digest, left, report)


def _updated(
    change: Change,
    model: RegressionModel,
    rows: RegressionRows,
    leaving: Leaving,
    target: Target,
    left: int,
) -> Written:
    """Update and rebase; the version is approximate, except for linear models with exact C."""
    progress = change.progress
    progress(f"update {change.model}")
    outcome = update_stored(model, rows, leaving, change.method)
    started = perf_counter()
    digests = rebase_stored(model, target, rows, leaving, outcome, change.fold, progress)
    rebased = perf_counter() - started
    u = outcome.updated.change
    size = float(np.linalg.norm(u))
    found, sample, estimating = estimate_update(model, rows, leaving, outcome)
    lineage = replace(
        model.lineage,
        rows=left,
        estimate=accumulated(model.lineage.estimate, found),
        change=model.lineage.change + size,
    )
    told = {
        "action": "updated" if len(outcome.when) else "unchanged",
        "method": change.method,
        "reason": f"{len(outcome.when)} uses of the rows in training",
        "passes": 0,
        "exactness": "approximate",
        "change": size,
        "update_seconds": outcome.seconds,
        "rebase_seconds": rebased,
        "estimate_seconds": estimating,
        "estimate_rows": sample,
    }
    w = model.parameters + u.reshape(model.parameters.shape)
    return w, digests, lineage, told


def _retrained(
    change: Change,
    model: RegressionModel,
    rows: RegressionRows,
    leaving: Leaving,
    target: Target,
    left: int,
) -> Written:
    """BaseL: train on the rows that are left, on the same mini-batches; exact."""
    started = perf_counter()
    progress = change.progress
    w, digests = descend_stored(rows, target if target.specs else None, progress)
    descended = perf_counter() - started
    digests |= capture_stored(rows, target, change.fold, progress)
    size = float(np.linalg.norm(w - model.parameters))
    told = {
        "action": "retrained",
        "method": BASEL,
        "reason": _why_retrain(model.settings, change.method, left),
        "passes": epochs(rows),
        "exactness": "exact",
        "change": size,
        "update_seconds": descended,
        "rebase_seconds": perf_counter() - started - descended,
    }
    change_now = model.lineage.change + size
    lineage = replace(Lineage.first(model.lineage.rows_at_fit), rows=left, change=change_now)
    return w, digests, lineage, told


def retrain_recommended(lineage: Lineage, w: NDArray[np.float64]) -> bool:
    """Whether so much was deleted, or the estimate is so large, that a retrain is due."""
    estimate = lineage.estimate.distance
    near = estimate <= NEAR * float(np.linalg.norm(w))
    far = estimate > RETRAIN_DISTANCE * lineage.change and not near
    return lineage.share_deleted > RETRAIN_SHARE or far


def forecast(ws: Workspace, model: str, gathered: Gathered, method: str) -> dict[str, Any]:
    """See ``Family``."""
    row = ws.ledger.model(model)
    settings = settings_from_json(row["settings"])
    gone = int((~held_out(gathered.removed.units, settings)).sum())
    if _why_retrain(settings, method, row["rows"] - gone) is not None:
        return {"action": "retrained", "first_step": None}
    return {"action": "updated" if gone else "unchanged", "first_step": None}
