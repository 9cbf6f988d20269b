"""A deletion from linear, logistic and softmax models: the next version, and a forecast of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.design import Design
from ..pipeline.estimate import Estimate, accumulated
from ..pipeline.losses import Loss
from ..pipeline.regression import (
    BASEL,
    CLOSED_FORM,
    DELTA,
    EXACT,
    FEWEST_ROWS,
    INFL,
    NO_PROVENANCE,
    PRIU,
    PRIU_OPT,
    RegressionSettings,
    held_out,
    unusable,
)
from ..pipeline.update import Updated, strays
from ..pipeline.visits import Leaving
from ..storage import files
from ..storage.schema import ArraySpec
from ..storage.versions import create_version
from .errors import DivergenceError, UsageError
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
from .regression_statistics import capture_statistics
from .regression_store import open_model, seal, version_attrs
from .regression_training import epochs
from .train_regression import Target, capture_stored, descend_stored
from .update_outcome import Outcome
from .update_regression import rebase_stored, update_stored
from .workspace import Workspace

RETRAIN_SHARE = 0.2
RETRAIN_DISTANCE = 0.03
NEAR = 1e-6
"""A retrain is recommended beyond this share of deleted rows, or this estimate over the change, unless
the estimate is below a millionth of the parameters."""
HOLDS = 0.5
"""An update whose estimated error is a larger share of the change is replaced by a retrain."""
DIVERGES = (
    "training diverges on the rows left, with the settings of the first fit: train a new model"
)


def leaving_rows(rows: RegressionRows, gathered: Gathered) -> Leaving:
    """The training rows among those gathered."""
    chosen = ~held_out(gathered.removed.units, rows.settings)
    cells, slots = gathered.addresses
    labels = encode(rows.settings.loss, rows.classes, gathered.labels[chosen])
    design = rows.design.rows(gathered.removed.x[chosen])
    return Leaving(design, labels, cells[chosen], slots[chosen])


def _why_retrain(settings: RegressionSettings, method: str, left: int) -> str | None:
    """Why a model is trained again; None where it may be updated."""
    if method == BASEL:
        return "asked for"
    if settings.provenance == NO_PROVENANCE and method != CLOSED_FORM:
        return "the model keeps no provenance"
    # An update's error could be all that is left of such a model, and nothing would tell of it.
    return f"only {left} training rows are left" if left < FEWEST_ROWS else None


def check_method(model: str, settings: RegressionSettings, method: str) -> None:
    """UsageError where a model has not what the method needs."""
    reason = unusable(method, settings.loss, settings.provenance)
    if method == PRIU and settings.provenance == NO_PROVENANCE:
        reason = None
    if method == INFL and settings.loss != Loss.LINEAR and settings.provenance != NO_PROVENANCE:
        reason = None if settings.hessian else "needs hessian=true"
    if reason is not None:
        reason = reason.replace("provenance '", "provenance=").replace("'", "")
        raise UsageError(
            f"method {method} {reason}; model {model} is "
            f"{settings.loss.name.lower()} with provenance={settings.provenance}: use delta"
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """A deletion from one model, on its way."""

    change: Change
    model: RegressionModel
    rows: RegressionRows
    leaving: Leaving
    left: int
    """Training rows that stay."""


@dataclass(frozen=True, slots=True)
class _Update:
    """An update that holds, and how near it is thought to be."""

    outcome: Outcome
    estimate: Estimate
    sample: int
    estimating: float


@dataclass(frozen=True, slots=True)
class _Written:
    """A version's contents, chunks written, and what to report of it."""

    target: Target
    specs: Mapping[str, ArraySpec]
    digests: Digests
    w: NDArray[np.float64]
    rows: RegressionRows
    lineage: Lineage
    told: dict[str, Any]


def next_version(change: Change) -> NextVersion:
    """See ``Family``. An update that does not hold is replaced by a retrain; a retrain that diverges on
    the rows left leaves a model without parameters, so that no deletion ever waits for a descent."""
    started = perf_counter()
    row, model = open_model(change.ws, change.model)
    gathered, settings = change.gathered, model.settings
    check_method(change.model, settings, change.method)
    rows = RegressionRows(gathered.data_set, settings, model.design, model.classes, gathered.slots)
    leaving = leaving_rows(rows, gathered)
    work = _Work(change, model, rows, leaving, model.lineage.rows - len(leaving.rows))
    written = _failed(work, row) if model.lineage.failed else _written(work, row)
    sealing = perf_counter()
    lineage = written.lineage
    digest = seal(written.target, written.specs, written.digests, written.w, written.rows, lineage)
    path = written.target.path
    report = {
        "model": change.model,
        "data": change.data_row["name"],
        "algorithm": row["algorithm"],
        "kind": settings.provenance,
        **written.told,
        "sync_seconds": perf_counter() - sealing,
        "seconds": perf_counter() - started,
        "first_step": None,
        "share_deleted": lineage.share_deleted,
        "estimate": lineage.estimate.distance,
        "retrain_recommended": retrain_recommended(lineage, written.w),
        "version_before": row["version"],
        "version": row["version"] + 1,
        "digest_before": row["digest"],
        "digest": digest,
        "rows_before": row["rows"],
        "rows": work.left,
        "empty": work.left == 0,
    }
    return NextVersion(
        change.model, row["version"] + 1, change.ws.relative(path), digest, work.left, report
    )


def _written(work: _Work, row: Mapping[str, Any]) -> _Written:
    """Update if that holds, else retrain, else give the parameters up."""
    change = work.change
    reason = _why_retrain(work.model.settings, change.method, work.left)
    if reason is None:
        change.progress(f"update {change.model}")
        outcome = update_stored(work.model, work.rows, work.leaving, change.method)
        reason = _why_not(work, outcome.updated)
        if reason is None:
            found = estimate_update(work.model, work.rows, work.leaving, outcome)
            reason = _why_not(work, outcome.updated, found[0])
            if reason is None:
                return _updated(work, row, _Update(outcome, *found))
    return _retrained(work, row, reason)


def _why_not(work: _Work, updated: Updated, found: Estimate | None = None) -> str | None:
    """Why an update can't be trusted; None where it can."""
    settings, w = work.model.settings, work.model.parameters
    exactly = settings.loss == Loss.LINEAR and settings.provenance == EXACT
    linear, opt = settings.loss == Loss.LINEAR, work.change.method == PRIU_OPT
    end = Updated(updated.change, updated.change[np.newaxis])
    reason = strays(updated, w, exactly) or strays(end, w, linear or not opt)
    if reason is not None:
        return reason
    error = 0.0 if found is None else float(np.hypot(found.trend, found.fluctuation))
    size, own = float(np.linalg.norm(updated.change)), float(np.linalg.norm(w))
    # The other methods are asked for whatever their error, which the report tells.
    judged = work.change.method in (DELTA, PRIU)
    if judged and not error <= max(NEAR * own, HOLDS * size):
        return "the update's estimated error is of the order of the change"
    return None


def _target(work: _Work, row: Mapping[str, Any], method: str, whole: bool = True) -> _Written:
    """Create the next version, with nothing in it yet; with its provenance's arrays if ``whole``."""
    change, model = work.change, work.model
    number = row["version"] + 1
    path = change.ws.new_version_path(change.model, number)
    parent = Path(row["folder"]).name
    attrs = version_attrs(
        change.model, number, row["algorithm"], model.settings, change.data_row, parent, method
    )
    small = small_arrays(model.parameters, model.design, model.classes, model.lineage)
    specs = {n: s for n, s in model.version.specs.items() if whole or n in small}
    create_version(path, specs, attrs)
    target = Target(path, {n: s for n, s in specs.items() if n not in small}, change.fence)
    return _Written(target, specs, {}, model.parameters, work.rows, model.lineage, {})


def _updated(work: _Work, row: Mapping[str, Any], update: _Update) -> _Written:
    """Rebase; the version is approximate, though for linear models with exact C by rounding only."""
    change, lineage = work.change, work.model.lineage
    begun = _target(work, row, change.method)
    outcome = update.outcome
    started = perf_counter()
    digests = rebase_stored(
        work.model, begun.target, work.leaving, outcome, change.fold, change.progress
    )
    rebased = perf_counter() - started
    u = outcome.updated.change
    size = float(np.linalg.norm(u))
    idle = not len(outcome.when) and not u.any()
    exact = idle and lineage.estimate.distance == 0.0
    lineage = replace(
        lineage,
        rows=work.left,
        estimate=accumulated(lineage.estimate, update.estimate),
        change=lineage.change + size,
    )
    told = {
        "action": "unchanged" if idle else "updated",
        "method": change.method,
        "reason": f"{len(outcome.when)} uses of the rows in training",
        "passes": 0,
        "exactness": "exact" if exact else "approximate",
        "change": size,
        "update_seconds": outcome.seconds,
        "rebase_seconds": rebased + outcome.preparing,
        "estimate_seconds": update.estimating,
        "estimate_rows": update.sample,
    }
    w = begun.w + u.reshape(begun.w.shape)
    return replace(begun, digests=digests, w=w, lineage=lineage, told=told)


def _retrained(work: _Work, row: Mapping[str, Any], reason: str | None) -> _Written:
    """BaseL: train on the rows that are left, on the same mini-batches; exact. Where it diverges, the
    model is given up. The standardisation is that of the first fit; it goes with the last training row.
    """
    begun = _target(work, row, BASEL)
    started = perf_counter()
    rows, progress = work.rows, work.change.progress
    if work.left == 0:
        rows = _without_standard(rows)
    try:
        keeps = "trajectory" in begun.target.specs
        w, digests = descend_stored(rows, begun.target if keeps else None, progress)
    except DivergenceError:
        files.sweep(begun.target.path)
        return _failed(work, row)
    descended = perf_counter() - started
    digests |= capture_stored(rows, begun.target, work.change.fold, progress)
    digests |= capture_statistics(rows, w, begun.target, work.change.fold)
    moved = float(np.linalg.norm(w - work.model.parameters))
    told = {
        "action": "retrained",
        "method": BASEL,
        "reason": reason,
        "passes": epochs(rows),
        "exactness": "exact",
        "change": moved,
        "update_seconds": descended,
        "rebase_seconds": perf_counter() - started - descended,
    }
    lineage = work.model.lineage
    lineage = replace(
        Lineage.first(lineage.rows_at_fit), rows=work.left, change=lineage.change + moved
    )
    return replace(begun, digests=digests, w=w, rows=rows, lineage=lineage, told=told)


def _failed(work: _Work, row: Mapping[str, Any]) -> _Written:
    """A version without parameters and provenance: the descent diverges on the rows that are left."""
    begun = _target(work, row, BASEL, whole=False)
    empty = work.left == 0
    told = {
        "action": "retrained" if empty else "failed",
        "method": BASEL,
        "reason": "no training row is left" if empty else DIVERGES,
        "passes": 0,
        "exactness": "exact" if empty else "none",
        "change": 0.0,
        "update_seconds": 0.0,
        "rebase_seconds": 0.0,
    }
    lineage = Lineage.first(work.model.lineage.rows_at_fit)
    lineage = replace(lineage, rows=work.left, failed=not empty)
    rows = _without_standard(work.rows) if empty else work.rows
    return replace(begun, w=np.zeros_like(begun.w), rows=rows, lineage=lineage, told=told)


def _without_standard(rows: RegressionRows) -> RegressionRows:
    """The rows with a standardisation that tells nothing of those that are gone."""
    size = len(rows.design.mean)
    return replace(rows, design=Design(np.zeros(size), np.ones(size)))


def retrain_recommended(lineage: Lineage, w: NDArray[np.float64]) -> bool:
    """Whether so much was deleted, or the estimate is so large, that a retrain is due."""
    estimate = lineage.estimate.distance
    near = estimate <= NEAR * float(np.linalg.norm(w))
    far = estimate > RETRAIN_DISTANCE * lineage.change and not near
    much = lineage.share_deleted > RETRAIN_SHARE and estimate > 0.0
    return much or far or lineage.failed


def forecast(ws: Workspace, model: str, gathered: Gathered, method: str) -> dict[str, Any]:
    """See ``Family``."""
    row = ws.ledger.model(model)
    settings = settings_from_json(row["settings"])
    check_method(model, settings, method)
    gone = int((~held_out(gathered.removed.units, settings)).sum())
    if _why_retrain(settings, method, row["rows"] - gone) is not None:
        return {"action": "retrained", "first_step": None}
    return {"action": "updated" if gone else "unchanged", "first_step": None}
