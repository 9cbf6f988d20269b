"""Random stored problems: after every batch the model is a retrain, and what is kept tells the truth."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.jobs import replay_versions
from expunge.jobs.batches import run_batch
from expunge.jobs.fold import InlineFold
from expunge.jobs.importing import make_data_set
from expunge.jobs.kmeans_models import load_model
from expunge.jobs.replay_store import open_replay
from expunge.jobs.requests import forget
from expunge.jobs.training import train
from expunge.jobs.verifying import verify_model
from expunge.jobs.workspace import Workspace
from expunge.pipeline.stored_replay import STORED_BLOCK, whole
from expunge.storage.dataset import DataSet
from expunge.storage.versions import check_version


def nothing(*_: object) -> None:
    """Progress that is not shown."""


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any], list[int], float, int]:
    n = draw(st.sampled_from([12, 300, 2000, 5000]))
    d = draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 0.4]))
    x = rng.integers(0, 4, (n, 1)) + rng.normal(0, spread, (n, d))
    parameters: dict[str, Any] = {
        "n_clusters": draw(st.integers(1, 6)),
        "max_iter": draw(st.sampled_from([0, 2, 10])),
        "provenance": "labels",
    }
    if draw(st.booleans()):
        parameters["bounds"] = (-2.0, 5.0)
    if draw(st.booleans()):
        parameters["epsilon"] = draw(st.sampled_from([0.002, 0.05, 0.3]))
    batches = draw(st.lists(st.sampled_from([1, 1, 5, 200]), min_size=1, max_size=4))
    share = draw(st.sampled_from([0.0, 1e-4, 1e9]))
    return x.astype(np.float32), parameters, batches, share, draw(st.integers(0, 1000))


def check_kept(ws: Workspace) -> None:
    """Fail unless labels are those of int64 distances and no bound on disk is too high."""
    row, record, _ = load_model(ws, "m")
    data_set = DataSet.open(ws.data_path("t"))
    stored = open_replay(ws, row, data_set)
    assert (stored is not None) == whole(record)
    if stored is None:
        return
    check_version(stored.version)
    labels, margins = stored.version.read("labels"), stored.version.read("margins")
    for t, step in enumerate(record.steps):
        changes, slots = stored.kept.changes[t], stored.layout.slots
        labels[t].reshape(-1)[changes.places] = changes.labels
        margins[t].reshape(-1)[changes.places] = changes.margins
        least = stored.minima(t).reshape(data_set.cells, -1).astype(np.longdouble)
        for cell in range(data_set.cells):
            live = np.flatnonzero(data_set.read_units(cell) >= 0)
            hole = np.setdiff1d(np.arange(slots), live)
            assert np.isposinf(margins[t, cell, hole]).all() and not labels[t, cell, hole].any()
            fixed = record.scaling.fixed(data_set.read_cell(cell)[live]).astype(np.int64)
            centres = 2 * step.centroids.quantized
            squares = np.stack([((fixed - c) ** 2).sum(axis=1) for c in centres], axis=1)
            now = labels[t, cell, live]
            np.testing.assert_array_equal(now, squares.argmin(axis=1))
            if len(centres) == 1:
                continue
            ordered = np.sqrt(np.sort(squares, axis=1)[:, :2].astype(np.longdouble))
            true = ordered[:, 1] - ordered[:, 0]
            held = margins[t, cell, live].astype(np.longdouble) - stored.kept.credits[t][now]
            assert (held <= true).all()
            assert (least[cell, live // STORED_BLOCK] - stored.kept.drifts[t] <= true).all()
    assert not margins[len(record.steps) :][np.isfinite(margins[len(record.steps) :])].any()


def run(
    root: Path, x: np.ndarray, parameters: dict[str, Any], batches: list[int], state: int
) -> None:
    """Import, train, delete batch by batch, and check after each."""
    file = root / "rows.csv"
    header = ",".join(f"f{i}" for i in range(x.shape[1]))
    np.savetxt(file, x, fmt="%.9g", delimiter=",", header=header, comments="")
    asked: dict[str, Any] = {"kind": "import", "files": [str(file)], "format": "csv", "label": None}
    asked |= {"drop": [], "header": True, "cells": None, "drop_invalid": False}
    asked |= {"subject": None, "one_hot": []}
    fold, rng = InlineFold(), np.random.default_rng(state)
    algorithm = "q-kmeans" if "epsilon" in parameters else "k-means"
    with Workspace.create(root / "ws") as ws:
        make_data_set(ws, "t", asked, nothing)
        made = {"data": "t", "algorithm": algorithm, "parameters": parameters, "seed": state}
        train(ws, "m", made, fold, nothing)
        check_kept(ws)
        left = rng.permutation(len(x))
        for size in batches:
            gone, left = left[:size], left[size:]
            if len(gone):
                forget(ws, "t", gone)
                run_batch(ws, fold, nothing)
            assert verify_model(ws, "m", None, fold, nothing)[1] is None
            check_kept(ws)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(problems())
def test_stored_deletions_are_retrains(
    problem: tuple[np.ndarray, dict[str, Any], list[int], float, int],
) -> None:
    x, parameters, batches, share, state = problem
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_versions, "CARRIED_SHARE", share)
        run(Path(folder), x, parameters, batches, state)


@pytest.mark.parametrize("epsilon", [None, 0.002])
def test_one_stored_problem(tmp_path: Path, epsilon: float | None) -> None:
    rng = np.random.default_rng(4)
    x = (rng.integers(0, 4, (4000, 1)) + rng.normal(0, 0.4, (4000, 3))).astype(np.float32)
    parameters = {"n_clusters": 5, "max_iter": 6, "provenance": "labels", "bounds": (-2.0, 5.0)}
    if epsilon:
        parameters["epsilon"] = epsilon
    run(tmp_path, x, parameters, [1, 1, 20], 5)
