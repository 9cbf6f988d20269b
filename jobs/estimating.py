"""The estimate of an updated model's distance to BaseL, from a declared sample of live rows."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..pipeline.estimate import Estimate, estimate_distance, sample_size, strata, update_work
from ..pipeline.forces import Batches
from ..pipeline.regression import AVERAGED, held_out
from ..pipeline.remainders import Rows
from ..pipeline.visits import Leaving
from .regression_arrays import RegressionModel, StoredTrace
from .regression_rows import RegressionRows, encode
from .threads import one_blas_thread
from .update_regression import Outcome

PRECISION = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of the stored curvature."""


def estimate_update(
    model: RegressionModel, rows: RegressionRows, leaving: Leaving, outcome: Outcome
) -> tuple[Estimate, int, float]:
    """Return (the estimate of this deletion alone, live rows looked at, seconds)."""
    settings = model.settings
    started = perf_counter()
    if not len(outcome.when):
        return Estimate(0.0, 0.0, 0.0), 0, 0.0
    averaged = settings.provenance == AVERAGED
    with one_blas_thread():
        blocks = settings.composed
        work = update_work(blocks, model.parameters.size, outcome.when, averaged)
        count, places = sample_size(work, rows.width, rows.outputs)
        spans = strata(blocks, int(outcome.when[0]) // blocks.length, places, averaged)
        sample = sample_rows(rows, count)
        before = model.lineage.rows / rows.schedule.per_epoch
        after = before - len(leaving.rows) / rows.schedule.per_epoch
        found = estimate_distance(
            settings.descent,
            outcome.updated,
            spans,
            _trajectory(model, spans.middles),
            sample,
            Rows(leaving.rows, leaving.labels),
            Batches(before, after, rows.schedule.per_epoch),
            PRECISION[settings.dtype],
        )
    return found, len(sample.rows), perf_counter() - started


def sample_rows(rows: RegressionRows, count: int) -> Rows:
    """Return up to ``count`` live training rows: the first of as few cells as hold so many.

    Rows lie in the order of a keyed hash, so any run of them is a uniform sample. No other row is
    read.
    """
    data, settings = rows.data_set, rows.settings
    design, labels, missing = [], [], count
    for cell in range(data.cells):
        units = rows.units(cell)
        live = np.flatnonzero((units >= 0) & ~held_out(units, settings))[:missing]
        if len(live):
            design.append(rows.design.rows(data.read_slots(cell, live)))
            found = data.read_labels(cell, live)
            assert found is not None  # A regression is trained on data with labels only.
            labels.append(encode(settings.loss, rows.classes, found))
            missing -= len(live)
        if missing <= 0:
            break
    return Rows(np.concatenate(design), np.concatenate(labels))


def _trajectory(model: RegressionModel, iterations: NDArray[np.int64]) -> NDArray[np.float64]:
    """w_t (S, P) of some iterations."""
    found = np.empty((len(iterations), model.parameters.size))
    reader = StoredTrace(model.version)
    for place, iteration in enumerate(iterations.tolist()):
        reader.read("trajectory", iteration, found[place : place + 1])
    return found
