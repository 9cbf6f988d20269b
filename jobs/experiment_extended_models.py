"""The workspace of an extended experiment: one data set, and all models on it, made by usual jobs.

What a killed run left of a job is gone on with; what is there is used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..pipeline.regression import INFL
from ..storage.errors import BadInputError
from . import kmeans_models
from .console import Update
from .errors import JobError
from .experiment_extended_settings import (
    PLANNED,
    ExtendedAsked,
    ExtendedSettings,
    facts_piece,
    regression_name,
)
from .experiment_priu_models import (
    Folds,
    for_influence,
    make_model,
    make_rows,
    naming,
    study_workspace,
    workspace_of,
)
from .experiment_priu_rows import Origin
from .experiment_priu_sets import SETS
from .experiment_priu_settings import VALIDATION
from .experiment_results import Pieces
from .experiment_workers import environment
from .fold import Fold
from .kmeans_models import PROVENANCE
from .replay_store import LABELS
from .workspace import Workspace

_TOLD = (
    *("rows", "steps", "loss", "passes", "leaves", "iterations", "parameters", "learning_rate"),
    *("objective", "accuracy", "majority_rate", "validation_rows", "provenance", "warnings"),
    *("seconds", "seconds_survey", "seconds_descent", "seconds_provenance", "settings"),
)
"""What is told of a training, where its job's report has it."""


@dataclass(frozen=True, slots=True)
class Made:
    """What there is to be measured."""

    workspace: Path
    rows: int
    kinds: Mapping[str, tuple[str, ...]]
    """By preset: the kinds of which there is a regression."""


def make_models(
    pieces: Pieces,
    settings: ExtendedSettings,
    asked: ExtendedAsked,
    origin: Origin,
    folds: Folds,
    update: Update,
) -> Made:
    """Make what is not there yet; keeps what rows and models are as a piece.

    Raises JobError, or BadInputError, where the rows or a k-means model can't be made.
    """
    root, study = pieces.root, asked.study
    salt = _salt(settings.regression.seed)
    with study_workspace(root, study, settings.identity(), origin, salt) as ws:
        data = make_rows(ws, study, settings.regression, origin, update)
        kinds: dict[str, tuple[str, ...]] = {}
        left_out: dict[str, str] = {}
        with folds(ws) as fold:
            for preset in asked.presets:
                kinds[preset], why = _regressions(ws, settings, asked, preset, fold, update)
                left_out |= why
            make_clusterings(ws, settings, asked, fold, update)
        facts = {"data": {**data, **_import_facts(ws)}, "left_out": left_out, "models": _facts(ws)}
    pieces.keep(facts_piece(asked), facts, environment())
    return Made(workspace_of(root, study), data["rows"], kinds)


def _salt(seed: int) -> bytes:
    """The salt of a workspace: the same again where it is made again for what is still to be measured,
    so that a retrain can be compared with an update that was measured in an earlier one."""
    return blake2b(f"extended experiment {seed}".encode(), digest_size=16).digest()


def _regressions(
    ws: Workspace,
    settings: ExtendedSettings,
    asked: ExtendedAsked,
    preset: str,
    fold: Fold,
    update: Update,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Train a regression of each kind; also returns why some can't be trained."""
    setting, kinds, left_out = SETS[asked.data_set], [], {}
    for kind in settings.kinds:
        name = regression_name(preset, kind)
        parameters = {**setting.parameters(preset), "validation": VALIDATION}
        if kind != PLANNED:
            parameters["provenance"] = kind
        if INFL in settings.regression.methods:
            parameters |= for_influence(setting)
        told = naming(asked.study, name, update)
        try:
            make_model(ws, name, setting.algorithm, parameters, settings.regression, fold, told)
        except (JobError, BadInputError) as error:
            left_out[name] = str(error)
            continue
        kinds.append(kind)
    return tuple(kinds), left_out


def make_clusterings(
    ws: Workspace, settings: ExtendedSettings, asked: ExtendedAsked, fold: Fold, update: Update
) -> None:
    """Train the models of the k-means family; each is named as its algorithm."""
    for algorithm in asked.algorithms:
        parameters: dict[str, Any] = {"n_clusters": settings.clusters}
        if settings.labels and algorithm in kmeans_models.ALGORITHMS:
            parameters[PROVENANCE] = LABELS
        told = naming(asked.study, algorithm, update)
        make_model(ws, algorithm, algorithm, parameters, settings.regression, fold, told)


def _import_facts(ws: Workspace) -> dict[str, Any]:
    """How long the rows took, in the run that completed them."""
    row = ws.ledger.rows(
        "SELECT id FROM jobs WHERE kind IN ('import', 'generate') AND state = 'done' ORDER BY id"
    )[-1]
    step = ws.ledger.job(row["id"])["steps"][-1]
    began, ended = (datetime.fromisoformat(step[name]) for name in ("started", "finished"))
    return {"seconds": (ended - began).total_seconds()}


def _facts(ws: Workspace) -> dict[str, Any]:
    """What every model's training told, by the model."""
    found = {}
    for row in ws.ledger.rows("SELECT name, version FROM models ORDER BY name"):
        query = "SELECT job FROM versions WHERE model = ? AND number = 1"
        report = ws.ledger.job(ws.ledger.value(query, row["name"]))["report"]
        found[row["name"]] = {name: report[name] for name in _TOLD if name in report}
    return found
