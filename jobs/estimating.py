"""The estimate of an updated model's distance to BaseL, from a declared sample of live rows."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..pipeline.estimate import (
    MOST_ROWS,
    Estimate,
    estimate_distance,
    rounding_error,
    sample_size,
    strata,
    update_work,
)
from ..pipeline.forces import Batches, Strata
from ..pipeline.left_out import Course, apart, frozen_error, together, truncation_error
from ..pipeline.losses import Loss
from ..pipeline.projection_error import projection_error
from ..pipeline.regression import EXACT, FROZEN, LOWRANK, MEANS, NO_PROVENANCE, PROJECTED
from ..pipeline.remainders import Rows
from ..pipeline.update import Updated
from ..pipeline.visits import Leaving
from ..storage.chunks import read_items
from ..storage.dataset import DataSet
from .regression_arrays import RegressionModel, StoredTrace
from .regression_curvature import StoredLowRank
from .regression_projected import StoredProjected
from .regression_rows import RegressionRows, encode
from .threads import one_blas_thread
from .update_outcome import Outcome

PIECE = 2
"""Slots looked at first, for each row of a sample."""
NEAR = 0.1
"""Of a span's length: iterations that are as good as its middle."""
PRECISION = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of the stored curvature."""


def estimate_update(
    model: RegressionModel, rows: RegressionRows, leaving: Leaving, outcome: Outcome
) -> tuple[Estimate, int, float]:
    """Return (the estimate of this deletion alone, live rows looked at, seconds)."""
    settings = model.settings
    started = perf_counter()
    if settings.provenance == NO_PROVENANCE:
        return _from_optimum(model, leaving), 0, perf_counter() - started
    if not len(outcome.when):
        return apart(Estimate(0.0, 0.0, 0.0), outcome.updated), 0, perf_counter() - started
    # As delta has it: its change is where its starts end.
    by_delta = Updated(outcome.updated.starts[-1], outcome.updated.starts)
    precision = PRECISION[settings.dtype]
    if settings.provenance == EXACT and settings.loss == Loss.LINEAR:
        w = model.parameters.reshape(1, -1)
        found = rounding_error(by_delta, w, precision)
        return apart(found, outcome.updated), 0, perf_counter() - started
    averaged = settings.provenance in MEANS
    with one_blas_thread():
        blocks = settings.composed
        projected = settings.provenance == PROJECTED
        followed = rows.outputs * settings.rank if projected else model.parameters.size
        work = update_work(blocks, followed, outcome.when, averaged)
        count, places = sample_size(work, rows.width, rows.outputs)
        # What rows of many columns have in common is small against what each has of its own.
        count = MOST_ROWS if projected else count
        spans = strata(blocks, int(outcome.when[0]) // blocks.length, places, averaged)
        sample = sample_rows(rows, count)
        before = model.lineage.rows / rows.schedule.per_epoch
        after = before - len(leaving.rows) / rows.schedule.per_epoch
        batches = Batches(before, after, rows.schedule.per_epoch)
        trajectory = _near_middles(model, spans, outcome)
        gone = Rows(leaving.rows, leaving.labels)
        found = estimate_distance(
            settings.descent,
            by_delta,
            spans,
            trajectory,
            sample,
            gone,
            batches,
            precision,
        )
        course = Course(settings.descent, spans, trajectory, by_delta, sample)
        if settings.provenance == LOWRANK:
            found = together(found, _truncation(model, course))
        if projected:
            basis = StoredProjected(model.version, settings).basis
            left = model.lineage.rows - len(leaving.rows)
            found = together(found, projection_error(course, basis, gone, left))
        if settings.provenance == FROZEN:
            span = settings.frozen(batches.per_epoch)
            w = _trajectory(model, np.array([span.first]))[0]
            found = together(found, frozen_error(course, span, w, gone, batches))
    return apart(found, outcome.updated), len(sample.rows), perf_counter() - started


def _from_optimum(model: RegressionModel, leaving: Leaving) -> Estimate:
    """Of method ``closed-form`` without provenance: how far from its optimum a descent stops.

    As far as the model did, or as a full gradient's would on the rows left, whichever is more: few
    rows may be left in a direction that many gave its curvature.
    """
    normal, settings = model.statistics().normal, model.settings
    if normal is None:
        return Estimate(0.0, 0.0, 0.0)
    left = normal.without(leaving.rows, leaving.labels)
    with one_blas_thread():
        ways = (
            model.parameters[0] - normal.solution(settings.l2),
            left.descended(settings.descent, settings.iterations) - left.solution(settings.l2),
        )
    return Estimate(max(float(np.linalg.norm(way)) for way in ways), 0.0, 0.0)


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
    """Return up to ``count`` live rows, validating ones too: the first of as few cells as hold so many.

    Rows lie in the order of a keyed hash, so any run of them is a uniform sample. Where most of a run's
    slots are live it is read in one go, with those of leaving rows; no other live row is read.
    """
    data, parts, missing = rows.data_set, [], count
    for cell, first, last in _pieces(data, count):
        live = first + np.flatnonzero(rows.units(cell, first, last) >= 0)[:missing]
        if len(live):
            begin, end = int(live[0]), int(live[-1]) + 1
            read = np.arange(begin, end) if end - begin <= 2 * len(live) else live
            labels = data.read_labels(cell, read)
            assert labels is not None  # A regression is trained on data with labels only.
            place = np.searchsorted(read, live)
            design = rows.design.take(data.read_slots(cell, read), place)
            parts.append(Rows(design, encode(rows.settings.loss, rows.classes, labels[place])))
            missing -= len(live)
        if missing <= 0:
            break
    if len(parts) == 1:
        return parts[0]
    return Rows(np.concatenate([p.rows for p in parts]), np.concatenate([p.labels for p in parts]))


def _pieces(data: DataSet, count: int) -> Iterator[tuple[int, int, int]]:
    """Yield (cell, first, last slot), in order: each piece larger than the last, as few rows may be left."""
    length = PIECE * count
    for cell in range(data.cells):
        first = 0
        while first < data.capacity:
            last = min(first + length, data.capacity)
            yield cell, first, last
            first, length = last, 2 * length


def _near_middles(model: RegressionModel, spans: Strata, outcome: Outcome) -> NDArray[np.float64]:
    """w_t (S, P) of the spans' middles, or of iterations soon after that the update has read."""
    if outcome.known is None:
        return _trajectory(model, spans.middles)
    at, trajectory = outcome.known
    middles = spans.middles
    places = np.minimum(np.searchsorted(at, middles), len(at) - 1)
    found = trajectory[places]
    far = np.abs(at[places] - middles) > NEAR * spans.lengths
    if far.any():
        found[far] = _trajectory(model, middles[far])
    return found


def _trajectory(model: RegressionModel, iterations: NDArray[np.int64]) -> NDArray[np.float64]:
    """w_t (S, P) of some iterations, ascending."""
    version = model.version
    found = np.empty((len(iterations), model.parameters.size))
    read_items(version.path, "trajectory", version.specs["trajectory"], iterations, found)
    return found
