"""Next versions of logistic models on sparse rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import (
    BASEL,
    DELTA,
    FEWEST_ROWS,
    NO_PROVENANCE,
    PRIU,
    RegressionSettings,
    held_out,
)
from ..pipeline.sparse_linear import LinearisedUpdate
from ..pipeline.sparse_survey import sum_size
from ..pipeline.sparse_update import SparseUpdated, update_sparse
from .errors import UsageError
from .model_family import Change, NextVersion
from .plan import Gathered
from .regression_arrays import settings_from_json
from .regression_store import version_attrs
from .sparse_rows import SparseModelRows
from .sparse_store import (
    Contents,
    SparseLineage,
    SparseModel,
    open_sparse_model,
    write_sparse_version,
)
from .sparse_training import Coefficients, descend
from .workspace import Workspace

METHODS = (DELTA, PRIU, BASEL)
HOLDS = 0.02
"""An update whose estimated error is a larger share of the change is replaced by a retrain."""
ROUNDED = 2.0**-24
"""Coefficients are kept as float32: of the parameters an update knows no smaller share than this."""
RETRAIN_SHARE, RETRAIN_DISTANCE = 0.2, 0.03
"""A retrain is recommended beyond this share of deleted rows, or this estimate over the change."""


def _why_retrain(settings: RegressionSettings, method: str, left: int) -> str | None:
    """Why a model is trained again; None where it may be updated. UsageError for other methods."""
    if method not in METHODS:
        raise UsageError(f"method {method} is not for sparse models; use {', '.join(METHODS)}")
    if method == BASEL:
        return "asked for"
    if settings.provenance == NO_PROVENANCE:
        return "the model keeps no provenance"
    return f"only {left} training rows are left" if left < FEWEST_ROWS else None


def update_stored_sparse(
    model: SparseModel, rows: SparseModelRows, stays: NDArray[np.bool_], method: str
) -> tuple[SparseUpdated, Coefficients]:
    """Return the change of the parameters, and the coefficients to go on from.

    rows: as the model was trained, the deleted ones (stays (slots,) False) among them. UsageError where
    ``priu`` can't hold all rows in memory.
    """
    changed: Coefficients = {}
    features = rows.data_set.features
    if method == DELTA:
        found = update_sparse(
            rows.step, rows, stays, features, model.coefficients, changed.__setitem__
        )
        return found, changed
    if not rows.held:
        raise UsageError("method priu holds all rows in memory, and there are too many: use delta")
    linear = LinearisedUpdate(rows.step, features, rows.slots)
    for number in range(rows.epochs):
        c = model.coefficients(number)
        changed[number] = np.zeros_like(c)
        for window, _ in rows.windows(number):
            linear.take(window, stays, c, changed[number])
    return SparseUpdated(linear.change, sum_size(rows, linear.left), rows.epochs), changed


@dataclass(frozen=True, slots=True)
class _Work:
    """A deletion from one model, on its way."""

    change: Change
    model: SparseModel
    before: SparseModelRows
    after: SparseModelRows
    gone: int
    """Training rows that leave."""

    @property
    def left(self) -> int:
        return self.model.lineage.rows - self.gone


@dataclass(frozen=True, slots=True)
class _Made:
    """What a version is to hold, and what is told of it."""

    contents: Contents
    told: dict[str, Any]


def next_version(change: Change) -> NextVersion:
    """See ``Family``. An update that does not hold is replaced by a retrain; ``basel`` always trains."""
    started = perf_counter()
    row, model = open_sparse_model(change.ws, change.model)
    work = _work(change, model)
    reason = _why_retrain(model.settings, change.method, work.left)
    if not work.gone and change.method != BASEL:
        made = _unchanged(work)
    else:
        made = _updated(work) if reason is None else _retrained(work, reason)
    number = row["version"] + 1
    path = change.ws.new_version_path(change.model, number)
    parent, method = Path(row["folder"]).name, made.told["method"]
    attrs = version_attrs(
        change.model, number, row["algorithm"], model.settings, change.data_row, parent, method
    )
    writing = perf_counter()
    digest = write_sparse_version(path, work.after, made.contents, change.fence, attrs)
    lineage = made.contents.lineage
    report = {
        "model": change.model,
        "data": change.data_row["name"],
        "algorithm": row["algorithm"],
        "kind": model.settings.provenance,
        **made.told,
        "sync_seconds": perf_counter() - writing,
        "seconds": perf_counter() - started,
        "first_step": None,
        "share_deleted": lineage.share_deleted,
        "estimate": lineage.estimate,
        "retrain_recommended": retrain_recommended(lineage),
        "version_before": row["version"],
        "version": number,
        "digest_before": row["digest"],
        "digest": digest,
        "rows_before": row["rows"],
        "rows": work.left,
        "empty": work.left == 0,
    }
    return NextVersion(change.model, number, change.ws.relative(path), digest, work.left, report)


def _work(change: Change, model: SparseModel) -> _Work:
    data, settings = change.gathered.data_set, model.settings
    before = SparseModelRows(data, settings, model.classes)
    after = SparseModelRows(data, settings, model.classes, change.gathered.slots)
    return _Work(change, model, before, after, _leaving(change.gathered, settings))


def _leaving(gathered: Gathered, settings: RegressionSettings) -> int:
    """How many of the rows gathered are training rows."""
    return int((~held_out(gathered.removed.units, settings)).sum())


def _unchanged(work: _Work) -> _Made:
    """Training never used the rows."""
    kept = work.model.settings.provenance != NO_PROVENANCE
    epochs = range(work.before.epochs if kept else 0)
    contents = Contents(
        work.model.parameters,
        work.model.lineage,
        {number: work.model.coefficients(number) for number in epochs},
    )
    exact = work.model.lineage.estimate == 0.0
    told = _told("unchanged", work.change.method, "training never used the rows", 0.0, 0.0)
    return _Made(contents, {**told, "passes": 0, "exactness": _exactness(exact)})


def _updated(work: _Work) -> _Made:
    """Update if that holds, else retrain; the coefficients come with the update, ready for the next."""
    change, model, before = work.change, work.model, work.before
    change.progress(f"update {change.model}")
    started = perf_counter()
    stays = ~before.training | work.after.training
    found, coefficients = update_stored_sparse(model, before, stays, change.method)
    seconds = perf_counter() - started
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.linalg.norm(found.change))
    if not found.estimate <= HOLDS * size < np.inf:
        return _retrained(work, f"the update's estimated error is above {HOLDS:.0%} of the change")
    lineage, parameters = model.lineage, model.parameters + found.change
    rounding = ROUNDED * float(np.linalg.norm(parameters))
    lineage = replace(
        lineage,
        rows=work.left,
        estimate=lineage.estimate + found.estimate + rounding,
        change=lineage.change + size,
    )
    contents = Contents(parameters, lineage, coefficients)
    reason = f"{work.gone} training row{' was' if work.gone == 1 else 's were'} deleted"
    told = _told("updated", change.method, reason, size, seconds)
    return _Made(contents, {**told, "passes": found.readings, "exactness": _exactness(False)})


def _retrained(work: _Work, reason: str) -> _Made:
    """BaseL: train on the rows that are left, on the same mini-batches; exact."""
    started = perf_counter()
    w, coefficients = descend(work.after, work.change.progress)
    seconds = perf_counter() - started
    moved = float(np.linalg.norm(w - work.model.parameters))
    lineage = work.model.lineage
    lineage = SparseLineage(lineage.rows_at_fit, work.left, 0.0, lineage.change + moved)
    told = _told("retrained", BASEL, reason, moved, seconds)
    passes = work.after.epochs
    contents = Contents(w, lineage, coefficients)
    return _Made(contents, {**told, "passes": passes, "exactness": _exactness(True)})


def _told(action: str, method: str, reason: str, size: float, seconds: float) -> dict[str, Any]:
    """What every deletion reports; reading the rows and the rebase are parts of the update."""
    return {
        "action": action,
        "method": method,
        "reason": reason,
        "change": size,
        "update_seconds": seconds,
        "rebase_seconds": 0.0,
    }


def _exactness(exact: bool) -> str:
    return "exact" if exact else "approximate"


def retrain_recommended(lineage: SparseLineage) -> bool:
    """Whether so much was deleted, or the estimate is so large, that a retrain is due."""
    much = lineage.share_deleted > RETRAIN_SHARE and lineage.estimate > 0.0
    return much or lineage.estimate > RETRAIN_DISTANCE * lineage.change


def forecast(ws: Workspace, model: str, gathered: Gathered, method: str) -> dict[str, Any]:
    """See ``Family``."""
    row: Mapping[str, Any] = ws.ledger.model(model)
    settings = settings_from_json(row["settings"])
    gone = _leaving(gathered, settings)
    retrained = _why_retrain(settings, method, row["rows"] - gone) is not None
    stands = not gone and method != BASEL
    action = "unchanged" if stands else "retrained" if retrained else "updated"
    return {"action": action, "first_step": None}
