"""What must be known of the rows before and after a regression is trained, as folds over cells."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..pipeline.design import Design, Moments
from ..pipeline.losses import Loss, evaluate, smoothness
from ..pipeline.regression import SMOOTHNESS_ROWS, RegressionSettings, held_out
from ..pipeline.truncation import tolerance
from ..storage.dataset import DataSet
from .errors import UsageError
from .fold import Fold, split_cells
from .regression_rows import RegressionRows

SURVEY_RATE = 2e8
"""Values (rows x features) that a thread surveys in a second, roughly."""
MAX_CLASSES = 1000
CLASS_LIST = 12
GREATEST = {Loss.LINEAR: 2.0, Loss.LOGISTIC: 0.25, Loss.SOFTMAX: 0.5}
"""The greatest curvature of each loss."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Training and validation rows of a data set."""

    moments: Moments
    """Of the training rows' features."""
    training: Counter[float]
    validation: Counter[float]
    """Rows by label; for linear models all under 0."""

    @property
    def rows(self) -> int:
        """Training rows."""
        return self.training.total()

    @property
    def classes(self) -> tuple[float, ...]:
        """The labels that occur, ascending."""
        return tuple(sorted({*self.training, *self.validation}))


@dataclass(frozen=True, slots=True)
class _SurveyTask:
    data_set: DataSet
    cells: tuple[int, ...]
    settings: RegressionSettings


def _survey_cells(task: _SurveyTask) -> dict[int, Survey]:
    found = {}
    for cell in task.cells:
        units = task.data_set.read_units(cell)
        x, y = task.data_set.read_cell(cell), task.data_set.read_labels(cell)
        assert y is not None  # Checked before.
        if task.settings.loss == Loss.LINEAR:
            y = np.zeros_like(y)
        held = held_out(units, task.settings)
        training, validation = (units >= 0) & ~held, (units >= 0) & held
        found[cell] = Survey(
            Moments.of(x[training]), _counted(y[training]), _counted(y[validation])
        )
    return found


def _counted(labels: NDArray[np.float64]) -> Counter[float]:
    values, counts = np.unique(labels, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def survey(data_set: DataSet, settings: RegressionSettings, fold: Fold) -> Survey:
    """Return moments and labels of all rows; merged in the cells' order, so the bits are the same."""
    seconds = data_set.cells * data_set.capacity * data_set.features / SURVEY_RATE
    tasks = [
        _SurveyTask(data_set, cells, settings)
        for cells in split_cells(range(data_set.cells), seconds, fold.workers)
    ]
    found: dict[int, Survey] = fold(_survey_cells, tasks, lambda one, other: one | other)
    parts = [found[cell] for cell in range(data_set.cells)]
    training, validation = Counter[float](), Counter[float]()
    for part in parts:
        training.update(part.training)
        validation.update(part.validation)
    moments = Moments.merged(part.moments for part in parts)
    return Survey(moments, training, validation)


def check_classes(loss: Loss, found: Survey, data: DataSet) -> tuple[float, ...]:
    """Return the classes of a classifier, or none for a linear model; UsageError if unfit."""
    if loss == Loss.LINEAR:
        return ()
    label = data.label_name
    refuse_merged(data)
    classes = found.classes
    named = ", ".join(f"{c:g}" for c in classes[:CLASS_LIST])
    named += ", ..." if len(classes) > CLASS_LIST else ""
    if loss == Loss.LOGISTIC and len(classes) != 2:
        raise UsageError(
            f"label {label} has {len(classes)} different values ({named}); logistic needs two: use "
            "softmax, or linear"
        )
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise UsageError(
            f"label {label} has {len(classes)} different values ({named}); softmax takes 2 to "
            f"{MAX_CLASSES}"
        )
    return classes


def refuse_merged(data: DataSet) -> None:
    """UsageError where labels that differed in the file would be one class."""
    if data.attrs.get("labels_merged"):
        raise UsageError(
            f"label {data.label_name} has values that float32, as which labels are kept unless all are "
            "whole numbers below 2^31, can't tell apart: classes would be merged; number the classes "
            "from 0 and import again"
        )


def largest_rates(rows: RegressionRows, batch: int) -> tuple[float, float]:
    """Return 1/L of the objective and of a mini-batch of ``batch`` rows.

    Estimated from the first cells' training rows, a uniform sample.
    """
    mean = _mean_gram(rows)
    loss, l2 = rows.settings.loss, rows.settings.l2
    return 1.0 / smoothness(loss, mean, l2), 1.0 / smoothness(loss, mean, l2, batch)


def _mean_gram(rows: RegressionRows) -> NDArray[np.float64]:
    """The mean of x x^T over the first cells' training rows."""
    total = np.zeros((rows.width, rows.width))
    count = 0
    for cell in range(rows.data_set.cells):
        x, _ = rows.cell(cell)
        x = x[: SMOOTHNESS_ROWS - count]
        total += x.T @ x
        count += len(x)
        if count >= SMOOTHNESS_ROWS:
            break
    return total / max(1, count)


def rank_bound(rows: RegressionRows) -> int:
    """Return how many singular vectors of an iteration's curvature kind ``lowrank`` keeps at most.

    A row's Hessian is at most 2, 1/4 or 1/2 times x x^T in each of 1 or classes - 1 directions, so
    that C_t / b has no more eigenvalues above the tolerance than these bounds have; nor more than
    the mini-batch's rows allow. Half the tolerance, as a mini-batch is not the sample.
    """
    settings = rows.settings
    least = 0.5 * tolerance(settings.descent, settings.iterations)
    values = np.linalg.eigvalsh(_mean_gram(rows)) * GREATEST[settings.loss]
    directions = max(1, rows.outputs - 1)
    found = min(int(np.sum(values > least)), settings.batch_slots) * directions
    return max(1, min(rows.parameters, found))


@dataclass(frozen=True, slots=True)
class _ScoreTask:
    rows: RegressionRows
    cells: tuple[int, ...]
    w: NDArray[np.float64]


def _score_cells(task: _ScoreTask) -> dict[int, NDArray[np.float64]]:
    """Training loss and rows; validation loss, rows, right ones, sum and squares of the labels."""
    found = {}
    loss = task.rows.settings.loss
    for cell in task.cells:
        x, y = task.rows.cell(cell)
        v, z = task.rows.cell(cell, validation=True)
        (trained, _), (validated, right) = (
            evaluate(loss, task.w, x, y),
            evaluate(loss, task.w, v, z),
        )
        found[cell] = np.array([trained, len(x), validated, len(v), right, z.sum(), z @ z])
    return found


def scores(rows: RegressionRows, w: NDArray[np.float64], fold: Fold) -> dict[str, float | None]:
    """Return the objective on the training rows, and accuracy or MSE and R^2 on the others.

    w: (q, m). None where there are no rows to tell from.
    """
    data = rows.data_set
    seconds = 2 * data.cells * data.capacity * data.features / SURVEY_RATE
    tasks = [
        _ScoreTask(rows, cells, w)
        for cells in split_cells(range(data.cells), seconds, fold.workers)
    ]
    found: dict[int, NDArray[np.float64]] = fold(_score_cells, tasks, lambda a, b: a | b)
    sums = np.sum([found[cell] for cell in range(data.cells)], axis=0).tolist()
    trained, n, validated, v, right, first, second = sums
    penalty = rows.settings.l2 / 2 * float(np.square(w).sum())
    result: dict[str, float | None] = {"objective": trained / n + penalty if n else None}
    if rows.settings.loss != Loss.LINEAR:
        return {**result, "accuracy": right / v if v else None}
    spread = second - first * first / v if v else 0.0
    r2 = 1.0 - validated / spread if spread > 0 else None
    return {**result, "mse": validated / v if v else None, "r2": r2}


def design_of(found: Survey) -> Design:
    """Return the standardisation by the training rows' moments."""
    return Design.of(found.moments)
