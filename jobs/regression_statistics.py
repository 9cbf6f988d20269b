"""Sums over all training rows that some methods need: a stored model's Gram matrix and Hessian.

They are captured by one pass over the rows after the descent, and downdated with every deletion, so
that nothing of a deleted row's term stays in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..pipeline.closed_form import NormalEquations
from ..pipeline.frozen import leaving_terms
from ..pipeline.influence import add_hessians, downdated
from ..pipeline.losses import Loss
from ..pipeline.provenance import curvature
from ..pipeline.regression import RegressionSettings
from ..pipeline.visits import Leaving
from ..storage.schema import ArraySpec, whole
from .errors import UsageError
from .fold import Fold
from .regression_arrays import Digests, RegressionModel, Statistics
from .regression_rows import RegressionRows
from .threads import one_blas_thread
from .train_regression import Target

GROUPS = 16
"""Parts of the cells that are summed up each by itself, so that the bits don't depend on the workers."""
HESSIAN_SIZE = 2048
"""Parameters of a model whose Hessian may be kept, at most: a matrix of 32 MiB."""


def statistics_specs(
    settings: RegressionSettings, columns: int, parameters: int
) -> dict[str, ArraySpec]:
    """Return the specs of the statistics that a model with these settings keeps."""
    found = {}
    if settings.loss == Loss.LINEAR:
        found["gram"] = whole(("column", "other_column"), np.empty((columns, columns)))
        found["moment"] = whole(("column",), np.empty(columns))
    elif settings.hessian:
        size = np.empty((parameters, parameters))
        found["hessian"] = whole(("parameter", "other_parameter"), size)
    return found


def check_hessian(settings: RegressionSettings, parameters: int) -> None:
    """UsageError where a Hessian is asked for that is too large to be kept."""
    if settings.hessian and settings.loss != Loss.LINEAR and parameters > HESSIAN_SIZE:
        raise UsageError(
            f"hessian=true keeps a matrix of {parameters:,} x {parameters:,} numbers; it may be "
            f"{HESSIAN_SIZE:,} x {HESSIAN_SIZE:,} at most: leave it out, and use method delta"
        )


@dataclass(frozen=True, slots=True)
class _Task:
    rows: RegressionRows
    group: int
    w: NDArray[np.float64]


def _sum_cells(task: _Task) -> dict[int, Statistics]:
    """The statistics of a group of cells."""
    rows, loss = task.rows, task.rows.settings.loss
    normal = NormalEquations.none(rows.width)
    hessian = np.zeros((rows.parameters, rows.parameters) if loss != Loss.LINEAR else 0, order="F")
    cells = rows.data_set.cells
    with one_blas_thread():
        for cell in range(task.group * cells // GROUPS, (task.group + 1) * cells // GROUPS):
            x, y = rows.cell(cell)
            if loss == Loss.LINEAR:
                normal += NormalEquations.of(x, y)
            else:
                add_hessians(hessian, loss, x, curvature(loss, task.w, x, y))
    if loss == Loss.LINEAR:
        return {task.group: Statistics(normal)}
    return {task.group: Statistics(None, hessian)}


def capture_statistics(
    rows: RegressionRows, w: NDArray[np.float64], target: Target, fold: Fold
) -> Digests:
    """Sum up and write the statistics that ``target`` has room for; w: (q, m) the parameters."""
    if not any(name in target.specs for name in ("gram", "hessian")):
        return {}
    total: Statistics | None = None
    step = 2 * fold.workers
    for first in range(0, GROUPS, step):
        groups = range(first, min(first + step, GROUPS))
        tasks = [_Task(rows, group, w) for group in groups]
        found: dict[int, Statistics] = fold(_sum_cells, tasks, lambda one, other: one | other)
        for group in groups:
            total = found[group] if total is None else total + found[group]
    assert total is not None
    return write_statistics(target, total)


def write_statistics(target: Target, statistics: Statistics) -> Digests:
    """Write the statistics; return their chunks' digests."""
    found: Digests = {}
    for name, values in statistics.arrays().items():
        if name in target.specs:
            found |= target.write(name, 0, np.ascontiguousarray(values))
    return found


def statistics_without(model: RegressionModel, leaving: Leaving) -> Statistics:
    """Return a model's statistics without some rows; the Hessian's terms are those at its parameters."""
    now, settings = model.statistics(), model.settings
    normal, hessian = now.normal, now.hessian
    if normal is not None:
        normal = normal.without(leaving.rows, leaving.labels)
    if hessian is not None:
        gone = leaving_terms(settings.loss, leaving, model.parameters.ravel())
        hessian = downdated(settings.loss, hessian, model.lineage.rows, gone)
    return Statistics(normal, hessian)
