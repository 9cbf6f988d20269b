"""What the estimate of a stored model reads: few files, and what the update had read is taken over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from regression_workspace import AVERAGED, EXACT, opened, start, stored_rows, train
from support import Cli

from expunge.jobs.estimating import estimate_update, sample_rows
from expunge.jobs.regression_rows import RegressionRows
from expunge.jobs.train_regression import descend_stored
from expunge.jobs.update_outcome import Outcome
from expunge.jobs.update_regression import update_stored
from expunge.pipeline.visits import Leaving
from expunge.storage.files import metered


def leaving(rows: RegressionRows, slots: np.ndarray) -> Leaving:
    """The rows at some slots of cell 0."""
    x = rows.data_set.read_cell(0)
    labels = rows.data_set.read_labels(0)
    assert labels is not None
    numbers = np.searchsorted(rows.classes, labels[slots]).astype(np.float64)
    cells = np.zeros(len(slots), np.int64)
    return Leaving(rows.design.take(x, slots), 2.0 * numbers - 1.0, cells, slots)


def excluded(rows: RegressionRows, which: str) -> dict[int, np.ndarray]:
    """Slots that count as deleted."""
    live = np.flatnonzero(rows.units(0) >= 0)
    whole = {cell: np.arange(rows.data_set.capacity) for cell in range(rows.data_set.cells - 1)}
    return {"none": {}, "some": {0: live[::3]}, "first": {0: live[:50]}, "all but one": whole}[
        which
    ]


@pytest.mark.parametrize("which", ["none", "some", "first", "all but one"])
@pytest.mark.parametrize("count", [3, 60, 300, 10_000])
def test_a_sample_is_the_first_live_rows(cli: Cli, tmp_path: Path, count: int, which: str) -> None:
    start(cli, tmp_path, "logistic")
    train(cli, "m", "logistic", *AVERAGED)
    rows = stored_rows(tmp_path, "m")
    rows = replace(rows, excluded=excluded(rows, which))
    parts = []
    for cell in range(rows.data_set.cells):
        live = np.flatnonzero(rows.units(cell) >= 0)
        parts.append(rows.design.take(rows.data_set.read_cell(cell), live))
    found = sample_rows(rows, count)
    np.testing.assert_array_equal(found.rows, np.concatenate(parts)[:count])
    assert len(found.labels) == len(found.rows)


def updated(cli: Cli, tmp_path: Path, count: int) -> tuple[RegressionRows, Leaving, Outcome]:
    start(cli, tmp_path, "logistic")
    train(cli, "m", "logistic", *AVERAGED)
    rows = stored_rows(tmp_path, "m")
    gone = leaving(rows, np.flatnonzero(rows.units(0) >= 0)[-count:])
    return rows, gone, update_stored(opened(tmp_path, "m"), rows, gone, "delta")


def test_the_trajectory_that_the_update_read_is_not_read_again(cli: Cli, tmp_path: Path) -> None:
    rows, gone, outcome = updated(cli, tmp_path, 40)
    model = opened(tmp_path, "m")
    assert outcome.known is not None
    with metered() as known:
        found = estimate_update(model, rows, gone, outcome)[0]
    with metered() as afresh:
        again = estimate_update(model, rows, gone, replace(outcome, known=None))[0]
    assert afresh.files - known.files == model.settings.blocks.count
    assert afresh.bytes_read > known.bytes_read
    assert again.distance > 0.0
    assert found.distance == pytest.approx(again.distance, rel=0.2)


def test_what_lies_far_from_a_middle_is_read(cli: Cli, tmp_path: Path) -> None:
    rows, gone, outcome = updated(cli, tmp_path, 40)
    model = opened(tmp_path, "m")
    assert outcome.known is not None
    at, trajectory = outcome.known
    # Only the first iteration is known: all the others are read from the middles themselves.
    few = replace(outcome, known=(at[:1], np.full_like(trajectory[:1], np.nan)))
    found = estimate_update(model, rows, gone, few)[0]
    again = estimate_update(model, rows, gone, replace(outcome, known=None))[0]
    assert found == again


def test_exact_curvature_of_a_linear_model_leaves_rounding_alone(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "linear")
    train(cli, "m", "linear", *EXACT)
    rows, model = stored_rows(tmp_path, "m"), opened(tmp_path, "m")
    slots = np.flatnonzero(rows.units(0) >= 0)[:9]
    x, labels = rows.data_set.read_cell(0), rows.data_set.read_labels(0)
    assert labels is not None
    y, cells = labels[slots].astype(np.float64), np.zeros(len(slots), np.int64)
    gone = Leaving(rows.design.take(x, slots), y, cells, slots)
    outcome = update_stored(model, rows, gone, "delta")
    assert len(outcome.when)
    with metered() as used:
        found, looked_at, _ = estimate_update(model, rows, gone, outcome)
    assert (looked_at, used.files, used.bytes_read) == (0, 0, 0)
    assert found.trend == found.fluctuation == 0.0
    w, _ = descend_stored(replace(rows, excluded={0: slots}), None, lambda _: None, fused=True)
    distance = np.linalg.norm(model.parameters + outcome.updated.change.reshape(w.shape) - w)
    assert 0.1 * distance <= found.distance <= 1e-10 * np.linalg.norm(w)
