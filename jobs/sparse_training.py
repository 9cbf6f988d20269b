"""First fits of logistic models on sparse rows, and BaseL, which is the same descent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.descent import DivergedError
from ..pipeline.losses import Loss
from ..pipeline.regression import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_ITERATIONS,
    DEFAULT_L2,
    NO_PROVENANCE,
    RegressionSettings,
    batch_slots,
    check_settings,
)
from ..pipeline.sparse_descent import SparseDescender, SparseStep
from ..pipeline.sparse_survey import largest_curvature, tally
from ..storage.dataset import DataSet
from ..storage.space import free_bytes, shown
from .errors import DivergenceError, JobError, UsageError
from .kmeans_models import parse_values
from .model_family import FirstVersion, Progress, Training
from .provenance_plan import MEMORY
from .regression_arrays import settings_to_json
from .regression_store import folder_size, version_attrs
from .regression_survey import refuse_merged
from .sparse_rows import SparseModelRows, sparse_window_cells
from .sparse_store import (
    COEFFICIENTS,
    Contents,
    SparseLineage,
    coefficient_bytes,
    write_sparse_version,
)

ALGORITHMS: tuple[str, ...] = ("sparse-logistic",)
KINDS = (COEFFICIENTS, NO_PROVENANCE)
VALIDATION = 0.1
VECTORS = 8
"""Vectors of all features that a training or an update holds at once, at most."""
_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "learning_rate": float,
    "l2": float,
    "batch_size": int,
    "iterations": int,
    "validation": float,
    "provenance": str,
}
Coefficients = dict[int, NDArray[np.float32]]


def parse(algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
    """See ``Family``."""
    return parse_values(algorithm, _PARAMETERS, given)


def _filled(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters with defaults; None is chosen from the data."""
    return {
        "learning_rate": None,
        "l2": DEFAULT_L2,
        "batch_size": DEFAULT_BATCH_SIZE,
        "iterations": DEFAULT_ITERATIONS,
        "validation": VALIDATION,
        "provenance": None,
        **parameters,
    }


def check(
    algorithm: str, parameters: Mapping[str, Any], data_set: DataSet, rows: int, seed: int
) -> None:
    """See ``Family``."""
    given = _filled(parameters)
    if given["provenance"] not in (None, *KINDS):
        raise UsageError(
            f"provenance is {given['provenance']!r}; for {algorithm} it is one of {', '.join(KINDS)}"
        )
    try:
        check_settings(**{**given, "provenance": None, "dtype": None}, random_state=seed)
        SparseStep(given["learning_rate"] or 0.0, given["l2"])
    except ValueError as error:
        raise UsageError(str(error)) from error
    needed = VECTORS * 8 * (data_set.features + 1)
    if needed > MEMORY:
        raise UsageError(
            f"the rows have columns up to {data_set.features:,}: a model of them takes "
            f"{shown(needed)} of memory, and {shown(MEMORY)} are allowed; number the columns anew, "
            "without gaps, or hash them"
        )


def first_version(training: Training) -> FirstVersion:
    """See ``Family``; a killed run starts anew, and what it wrote is swept."""
    started = perf_counter()
    training.progress("survey")
    rows, limit, why = _resolve(training)
    surveyed = perf_counter() - started
    started = perf_counter()
    w, coefficients = descend(rows, training.progress)
    descended = perf_counter() - started
    kept = rows.settings.provenance != NO_PROVENANCE
    count = int(rows.training.sum())
    contents = Contents(w, SparseLineage(count, count), coefficients if kept else {})
    path = training.ws.new_version_path(training.model, 1)
    settings, algorithm = rows.settings, training.asked["algorithm"]
    attrs = version_attrs(training.model, 1, algorithm, settings, training.data_row)
    digest = write_sparse_version(path, rows, contents, training.fence, attrs)
    summary: dict[str, Any] = {
        "iterations": settings.iterations,
        "parameters": len(w),
        "learning_rate": settings.learning_rate,
        "learning_rate_limit": limit,
        **scores(rows, w),
        "provenance": {"kind": settings.provenance, "why": why, "bytes": folder_size(path)},
        "seconds_survey": surveyed,
        "seconds_descent": descended,
        "warnings": _warnings(settings, limit),
    }
    return FirstVersion(path, digest, count, settings_to_json(settings), summary)


def _warnings(settings: RegressionSettings, limit: float) -> list[str]:
    if settings.learning_rate <= limit:
        return []
    rate = settings.learning_rate
    return [f"the learning rate {rate:.4g} exceeds 1/L = {limit:.4g}: the descent may not converge"]


def _resolve(training: Training) -> tuple[SparseModelRows, float, str]:
    """Settle every hyper-parameter; also returns 1/L and why the provenance is kept or not."""
    given, data = _filled(training.asked["parameters"]), training.data_set
    settings = RegressionSettings(
        loss=Loss.LOGISTIC,
        learning_rate=given["learning_rate"] or 1.0,
        l2=given["l2"],
        batch_slots=1,
        iterations=given["iterations"],
        random_state=training.asked["seed"],
        window=sparse_window_cells(data),
        validation=given["validation"],
        provenance=NO_PROVENANCE,
        dtype="float32",
        block=1,
    )
    rows = SparseModelRows(data, settings, _classes(data))
    count = int(rows.training.sum())
    if not count:
        raise UsageError(
            f"all rows of data set {data.path.stem!r} fall into the validation share; set -p validation=0"
        )
    limit = 1.0 / (largest_curvature(rows, rows.training, data.features) / 4.0 + given["l2"])
    settings = replace(
        settings,
        learning_rate=given["learning_rate"] or 0.5 * limit,
        batch_slots=batch_slots(given["batch_size"], rows.slots, count),
    )
    kind, why = _provenance(training, replace(rows, settings=settings), given["provenance"])
    return SparseModelRows(data, replace(settings, provenance=kind), rows.classes), limit, why


def _classes(data: DataSet) -> tuple[float, ...]:
    """The two labels; UsageError where there are others."""
    refuse_merged(data)
    found: set[float] = set()
    for cell in range(data.cells):
        labels = data.read_labels(cell)
        assert labels is not None  # Sparse data sets have one.
        found |= set(np.unique(labels[data.read_units(cell) >= 0]).tolist())
        if len(found) > 2:
            break
    if len(found) != 2:
        shown = ", ".join(f"{value:g}" for value in sorted(found)[:5])
        raise UsageError(f"a logistic model needs two different labels, and there are: {shown}")
    return tuple(sorted(found))


def _provenance(training: Training, rows: SparseModelRows, asked: str | None) -> tuple[str, str]:
    """The kind of provenance, and why; JobError where the one asked for does not fit."""
    if asked == NO_PROVENANCE:
        return NO_PROVENANCE, "asked for"
    size = coefficient_bytes(rows.epochs, rows.slots)
    memory = training.asked.get("memory") or MEMORY
    disk = training.asked.get("disk") or free_bytes(rows.data_set.path) // 2
    needs = f"{shown(size)} of disk and {shown(2 * size)} of memory"
    room = f"{shown(memory)} of memory and {shown(disk)} of disk are allowed"
    if 2 * size <= memory and size <= disk:
        return COEFFICIENTS, "fits" if asked is None else "asked for"
    if asked is not None:
        raise JobError(
            f"provenance={asked} needs {needs}; {room}: raise --memory, "
            f"--disk, or give -p provenance={NO_PROVENANCE}, with which every deletion trains anew"
        )
    return NO_PROVENANCE, f"{COEFFICIENTS} needs {needs}, but {room}"


def descend(rows: SparseModelRows, progress: Progress) -> tuple[NDArray[np.float64], Coefficients]:
    """Train on stored rows; return the parameters (m + 1,) and the coefficients by epoch.

    DivergenceError where the parameters grow without bound; it tells by which iteration they had.
    """
    descender = SparseDescender(rows.step, np.zeros(rows.data_set.features + 1))
    coefficients: Coefficients = {}
    kept = rows.settings.provenance != NO_PROVENANCE
    for number in range(rows.epochs):
        c = np.zeros(rows.slots, np.float32)
        for window, slots in rows.windows(number):
            own = np.zeros(len(slots), np.float32)
            try:
                descender.take(window, own)
            except DivergedError as error:
                raise DivergenceError(
                    f"training diverged by iteration {error.iteration}: choose a smaller learning_rate"
                ) from error
            c[slots] = own
        if kept:
            coefficients[number] = c
        progress(f"epoch {number + 1} of {rows.epochs}")
    return descender.w, coefficients


def scores(rows: SparseModelRows, w: NDArray[np.float64]) -> dict[str, Any]:
    """Return the objective on the training rows, and the accuracy on the validation rows."""
    trained, held = tally(rows, rows.training, w), tally(rows, rows.validation, w)
    objective = trained.loss / trained.rows if trained.rows else 0.0
    penalty = 0.5 * rows.settings.l2 * float(w @ w)
    return {
        "objective": objective + penalty,
        "accuracy": held.right / held.rows if held.rows else None,
        "majority_rate": max(held.positive, held.rows - held.positive) / held.rows
        if held.rows
        else None,
        "validation_rows": held.rows,
    }
