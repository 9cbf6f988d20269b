"""First fits of linear, logistic and softmax models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..pipeline.losses import Loss
from ..pipeline.regression import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_ITERATIONS,
    DEFAULT_L2,
    LOWRANK,
    NO_PROVENANCE,
    PROJECTED,
    RegressionSettings,
    batch_slots,
    check_settings,
    chunk_length,
    keeps_products,
)
from ..storage import files
from ..storage.dataset import DataSet
from ..storage.schema import ArraySpec, open_group
from ..storage.space import free_bytes
from ..storage.versions import create_version
from .errors import UsageError
from .model_family import FirstVersion, Training
from .provenance_plan import MEMORY, ProvenancePlan, Shape, plan_provenance
from .regression_arrays import (
    Lineage,
    chunked_specs,
    settings_to_json,
    small_arrays,
    small_specs,
)
from .regression_projected import rank_of
from .regression_rows import RegressionRows, window_cells
from .regression_statistics import capture_statistics, check_hessian, statistics_specs
from .regression_store import folder_size, seal, version_attrs
from .regression_survey import (
    Survey,
    check_classes,
    design_of,
    largest_rates,
    rank_bound,
    scores,
    survey,
)
from .train_regression import Target, capture_stored, descend_stored

ALGORITHMS: tuple[str, ...] = ("linear", "logistic", "softmax")
VALIDATION = 0.1
_FLAGS = {"true": True, "false": False}


def _flag(text: str) -> bool:
    if text not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text]


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "learning_rate": float,
    "l2": float,
    "batch_size": int,
    "iterations": int,
    "validation": float,
    "provenance": str,
    "dtype": str,
    "hessian": _flag,
}


def parse(algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
    """See ``Family``."""
    parsed = {}
    for key, text in given.items():
        if key == "l1":
            raise UsageError(
                "l1 is not supported: its gradient is not continuous, so deletions could not be "
                "followed (PrIU, section 5.4); use l2"
            )
        if key not in _PARAMETERS:
            raise UsageError(
                f"{algorithm} has no parameter {key!r}; it has {', '.join(_PARAMETERS)}"
            )
        try:
            parsed[key] = _PARAMETERS[key](text)
        except ValueError:
            raise UsageError(f"{key} is {text!r}: not a value of that parameter") from None
    return parsed


def _filled(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters with defaults; None is chosen from the data."""
    return {
        "learning_rate": None,
        "l2": DEFAULT_L2,
        "batch_size": DEFAULT_BATCH_SIZE,
        "iterations": DEFAULT_ITERATIONS,
        "validation": VALIDATION,
        "provenance": None,
        "dtype": None,
        "hessian": False,
        **parameters,
    }


def check(
    algorithm: str, parameters: Mapping[str, Any], data_set: DataSet, rows: int, seed: int
) -> None:
    """See ``Family``."""
    if data_set.label_name is None:
        raise UsageError(
            f"{algorithm} needs a label, and the data set has none: import it with --label"
        )
    try:
        given = _filled(parameters)
        given.pop("hessian")
        check_settings(**given, random_state=seed)
    except ValueError as error:
        raise UsageError(str(error)) from error


def first_version(training: Training) -> FirstVersion:
    """See ``Family``; goes on with a version that a killed run of the job left."""
    started = perf_counter()
    training.progress("survey")
    rows, found, plan, limit = _resolve(training)
    surveyed = perf_counter() - started
    settings = rows.settings
    products = keeps_products(settings, rows.parameters, epochs(rows))
    settings = replace(settings, block=chunk_length(settings, rows.parameters, products))
    rows = replace(rows, settings=settings)
    traced = chunked_specs(settings, rows.parameters, products, rows.width)
    chunked = traced | statistics_specs(settings, rows.width, rows.parameters)
    lineage = Lineage.first(found.rows)
    empty = np.zeros((rows.outputs, rows.width))
    specs = chunked | small_specs(small_arrays(empty, rows.design, rows.classes, lineage))
    attrs = version_attrs(
        training.model, 1, training.asked["algorithm"], settings, training.data_row
    )
    path = _staged(training, specs, attrs)
    target = Target(path, chunked, training.fence)
    started = perf_counter()
    w, digests = descend_stored(rows, target if traced else None, training.progress)
    descended = perf_counter() - started
    digests |= capture_stored(rows, target, training.fold, training.progress)
    digests |= capture_statistics(rows, w, target, training.fold)
    captured = perf_counter() - started - descended
    training.progress("scores")
    validation = found.validation.total()
    summary: dict[str, Any] = {
        "iterations": settings.iterations,
        "parameters": rows.parameters,
        "learning_rate": settings.learning_rate,
        "learning_rate_limit": limit,
        **scores(rows, w, training.fold),
        "majority_rate": majority(settings.loss, found),
        "validation_rows": validation,
        "provenance": {"kind": plan.kind, "dtype": plan.dtype, "why": plan.why},
        "seconds_survey": surveyed,
        "seconds_descent": descended,
        "seconds_provenance": captured,
        "warnings": _warnings(settings, limit),
    }
    digest = seal(target, specs, digests, w, rows, lineage)
    summary["provenance"] |= {"bytes": folder_size(path)}
    return FirstVersion(path, digest, found.rows, settings_to_json(settings), summary)


def _resolve(training: Training) -> tuple[RegressionRows, Survey, ProvenancePlan, float]:
    """Read what the data say, and settle every hyper-parameter; also returns 1/L."""
    asked = training.asked
    given = _filled(asked["parameters"])
    loss = Loss[asked["algorithm"].upper()]
    data = training.data_set
    settings = RegressionSettings(
        loss=loss,
        learning_rate=given["learning_rate"] or 1.0,
        l2=given["l2"],
        batch_slots=1,
        iterations=given["iterations"],
        random_state=asked["seed"],
        window=window_cells(data),
        validation=given["validation"],
        provenance=NO_PROVENANCE,
        dtype="float64",
        block=1,
        hessian=given["hessian"],
    )
    found = survey(data, settings, training.fold)
    if not found.rows:
        raise UsageError(
            f"all rows of data set {data.path.stem!r} fall into the validation share; set -p validation=0"
        )
    classes = check_classes(loss, found, data)
    rows = RegressionRows(data, settings, design_of(found), classes)
    check_hessian(settings, rows.parameters)
    batch = min(given["batch_size"], found.rows)
    limit, steady = largest_rates(rows, batch)
    rate = given["learning_rate"] or 0.5 * steady
    settings = replace(
        settings,
        learning_rate=rate,
        batch_slots=batch_slots(given["batch_size"], data.cells * data.capacity, found.rows),
    )
    rows = replace(rows, settings=settings)
    rank = rank_bound(rows) if given["provenance"] in (LOWRANK, None) else None
    shape = Shape(loss, rows.parameters, given["iterations"], batch, rank, rows.width)
    memory, disk = asked.get("memory") or MEMORY, asked.get("disk") or free_bytes(data.path) // 2
    asked_for = (given["provenance"], given["dtype"], memory, disk)
    plan = plan_provenance(shape, *asked_for)
    if plan.kind == PROJECTED:
        basis, neglected = rank_of(rows)
        shape = replace(shape, basis=basis, neglected=neglected)
        plan = plan_provenance(shape, *asked_for)
    settings = replace(
        settings,
        provenance=plan.kind,
        dtype=plan.dtype,
        rank={LOWRANK: rank, PROJECTED: shape.basis}.get(plan.kind) or 0,
    )
    return replace(rows, settings=settings), found, plan, limit


def epochs(rows: RegressionRows) -> int:
    return -(-rows.settings.iterations // rows.schedule.per_epoch)


def _warnings(settings: RegressionSettings, limit: float) -> list[str]:
    if settings.learning_rate <= limit:
        return []
    text = (
        f"the learning rate {settings.learning_rate:.4g} exceeds 1/L = {limit:.4g}: the descent, and "
        "an update's errors with it, may not converge"
    )
    return [text]


def majority(loss: Loss, found: Survey) -> float | None:
    """The share of the most frequent class among the validation rows."""
    total = found.validation.total()
    if loss == Loss.LINEAR or not total:
        return None
    return max(found.validation.values()) / total


def _staged(training: Training, specs: Mapping[str, ArraySpec], attrs: Mapping[str, Any]) -> Path:
    """The folder to write into: a killed run's if it had the same settings, else a new one."""
    ledger, ws = training.ws.ledger, training.ws
    staged = ledger.job(training.job)["report"].get("staged")
    if staged is not None and (ws.root / staged).is_dir():
        path: Path = ws.root / str(staged)
        if open_group(path, "model version").attrs["settings"] == attrs["settings"]:
            return path
        files.sweep(path)
    path = ws.new_version_path(training.model, 1)
    with ledger.transaction():
        ledger.report_job(training.job, {"staged": ws.relative(path)})
    create_version(path, specs, attrs)
    return path
