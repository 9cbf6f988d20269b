"""Verification of a regression model against BaseL: a retrain on the same mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..pipeline.losses import Loss
from ..pipeline.regression import BASEL, RegressionSettings
from ..storage.dataset import DataSet
from ..storage.errors import CorruptError, MissingError
from ..storage.metadata import check_metadata
from ..storage.versions import Version, check_version
from .errors import DivergenceError, VerifyError
from .fold import Fold
from .pending import check_nothing_pending
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
Progress = Callable[[str], None]


class StoredLineage(Protocol):
    """What has happened to a model since its first fit."""

    @property
    def rows(self) -> int: ...

    @property
    def change(self) -> float: ...

    @property
    def share_deleted(self) -> float: ...


class StoredModel(Protocol):
    """A regression model, opened: on dense rows or on sparse ones."""

    @property
    def version(self) -> Version: ...

    @property
    def settings(self) -> RegressionSettings: ...

    @property
    def parameters(self) -> NDArray[np.float64]: ...

    @property
    def lineage(self) -> StoredLineage: ...


Model = TypeVar("Model", bound=StoredModel)


@dataclass(frozen=True, slots=True)
class Verified(Generic[Model]):
    """A model whose files were read back, and the rows to train it anew on."""

    found: Model
    data_set: DataSet
    fault: str | None
    """What is wrong with the files, if anything."""


def open_verified(
    ws: Workspace,
    model: str,
    opened: Callable[[Workspace, str], tuple[dict[str, Any], Model]],
    progress: Progress,
) -> Verified[Model]:
    """Open a model and check every bit of its files; the workspace's lock is held.

    JobError while requests wait for the data set, VerifyError where the model can't be opened.
    """
    check_nothing_pending(ws.ledger, ws.ledger.model(model)["data_set"])
    try:
        row, found = opened(ws, model)
    except (CorruptError, MissingError) as error:
        raise VerifyError(str(error)) from error
    _, data_set = ws.ledger.open_data_set(row["data_set"], ws.root)
    progress("reading the model")
    try:
        check_version(found.version)
        check_metadata(found.version.path, row["metadata"])
    except (CorruptError, MissingError) as error:
        return Verified(found, data_set, str(error))
    return Verified(found, data_set, None)


def distance_to(model: StoredModel, w: NDArray[np.float64]) -> float:
    """Return how far a model is from parameters ``w`` of its shape."""
    return float(np.linalg.norm(model.parameters - w))


def too_far(name: str, distance: float, allowed: float) -> str | None:
    """Return what is wrong with a model at this distance from BaseL, if anything."""
    if distance <= allowed:
        return None
    return (
        f"model {name} is {distance:.3g} from BaseL, beyond {allowed:.3g}: {FACTOR:g} times its "
        "estimate; train it again"
    )


def comparison(
    name: str, model: StoredModel, w: NDArray[np.float64], estimate: float
) -> dict[str, Any]:
    """Return what is told of a model beside BaseL, whose parameters are ``w``, but for scores."""
    norms = float(np.linalg.norm(model.parameters) * np.linalg.norm(w))
    return {
        "model": name,
        "against": BASEL,
        "method": model.version.attrs["method"],
        "kind": model.settings.provenance,
        "distance": distance_to(model, w),
        "change": model.lineage.change,
        "estimate": estimate,
        "cosine": float(np.vdot(model.parameters, w)) / norms if norms else 1.0,
        "rows": model.lineage.rows,
        "share_deleted": model.lineage.share_deleted,
    }


def verify_against_basel(
    ws: Workspace, model: str, fold: Fold, progress: Progress
) -> tuple[dict[str, Any], str | None]:
    """Train anew on the rows that are stored; return the comparison, and what is wrong if anything.

    BaseL gets settings, standardisation and classes of the model, and reads the rows from disk. A
    flipped bit anywhere in the model's files is a fault, and so is a distance far beyond the
    estimate.
    """
    with ws.lock(f"verification of model {model}"):
        opened = open_verified(ws, model, open_model, progress)
        found, data_set, fault = opened.found, opened.data_set, opened.fault
        rows = RegressionRows(data_set, found.settings, found.design, found.classes)
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
    estimate = found.lineage.estimate.distance
    score = "mse" if found.settings.loss == Loss.LINEAR else "accuracy"
    failed = found.lineage.failed
    if fault is None and failed:
        if not diverges:
            fault = f"model {model} has no parameters, but BaseL converges; train a new model"
    elif fault is None and diverges:
        fault = f"model {model} has parameters, but BaseL diverges; train a new model"
    elif fault is None:
        allowed = FACTOR * estimate + ROUNDING * float(np.linalg.norm(w))
        fault = too_far(model, distance_to(found, w), allowed)
    return {
        **comparison(model, found, w, estimate),
        f"{score}_model": own[score],
        f"{score}_basel": basel[score],
        "majority_rate": majority(found.settings.loss, seen),
        "basel_seconds": seconds,
        "basel_diverges": diverges,
        "intact": opened.fault is None,
    }, fault
