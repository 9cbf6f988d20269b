"""The estimate of an updated model's distance to BaseL, from a declared sample of live rows."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..pipeline.estimate import Estimate, estimate_distance, sample_size, strata, update_work
from ..pipeline.forces import Batches
from ..pipeline.left_out import Course, apart, frozen_error, together, truncation_error
from ..pipeline.regression import AVERAGED, FROZEN, LOWRANK, NO_PROVENANCE, held_out
from ..pipeline.remainders import Rows
from ..pipeline.update import Updated
from ..pipeline.visits import Leaving
from .regression_arrays import RegressionModel, StoredTrace
from .regression_curvature import StoredLowRank
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
    if settings.provenance == NO_PROVENANCE:
        return _from_optimum(model), 0, perf_counter() - started
    if not len(outcome.when):
        return apart(Estimate(0.0, 0.0, 0.0), outcome.updated), 0, perf_counter() - started
    averaged = settings.provenance == AVERAGED
    with one_blas_thread():
        blocks = settings.composed
        work = update_work(blocks, model.parameters.size, outcome.when, averaged)
        count, places = sample_size(work, rows.width, rows.outputs)
        spans = strata(blocks, int(outcome.when[0]) // blocks.length, places, averaged)
        sample = sample_rows(rows, count)
        before = model.lineage.rows / rows.schedule.per_epoch
        after = before - len(leaving.rows) / rows.schedule.per_epoch
        batches = Batches(before, after, rows.schedule.per_epoch)
        trajectory = _trajectory(model, spans.middles)
        # As delta has it: its change is where its starts end.
        by_delta = Updated(outcome.updated.starts[-1], outcome.updated.starts)
        found = estimate_distance(
            settings.descent,
            by_delta,
            spans,
            trajectory,
            sample,
            Rows(leaving.rows, leaving.labels),
            batches,
            PRECISION[settings.dtype],
        )
        course = Course(settings.descent, spans, trajectory, by_delta, sample)
        if settings.provenance == LOWRANK:
            found = together(found, _truncation(model, course))
        if settings.provenance == FROZEN:
            first = settings.frozen(1).first
            w = _trajectory(model, np.array([first]))[0]
            found = together(found, frozen_error(course, first, w, batches))
    return apart(found, outcome.updated), len(sample.rows), perf_counter() - started


def _from_optimum(model: RegressionModel) -> Estimate:
    """Of method ``closed-form`` without provenance: as far as the model was from its own optimum."""
    normal = model.statistics().normal
    if normal is None:
        return Estimate(0.0, 0.0, 0.0)
    way = model.parameters[0] - normal.solution(model.settings.l2)
    return Estimate(float(np.linalg.norm(way)), 0.0, 0.0)


def _truncation(model: RegressionModel, course: Course) -> Estimate:
    """What truncated curvature leaves out; the factors are those of the spans' middles."""
    kept = StoredLowRank(model.version, model.settings)
    reader = StoredTrace(model.version)
    factors, rests = [], np.zeros(len(course.spans.middles))
    for s, t in enumerate(course.spans.middles.tolist()):
        factors.append(kept.parts(t, t + 1).factor(0))
        first, last = model.settings.blocks.span(t // model.settings.block)
        rest, live = np.empty(last - first), np.empty(last - first, np.int64)
        reader.read("svd_rest", first, rest)
        reader.read("live", first, live)
        rests[s] = float(np.mean(rest / np.maximum(live, 1)))
    return truncation_error(course, factors, rests)


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
