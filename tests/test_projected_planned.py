"""The planner's price of kind projected, when it is chosen, and the estimators' default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from projected_rows import spectral
from regression_workspace import import_rows, opened, train
from support import Cli

from expunge import LogisticRegression, SoftmaxRegression
from expunge.jobs.errors import JobError
from expunge.jobs.provenance_plan import Shape, memory_bytes, plan_provenance
from expunge.jobs.regression_arrays import BASIS, EIGEN, TRACE
from expunge.pipeline import regression_estimator
from expunge.pipeline.components import MOST_INSIDE
from expunge.pipeline.losses import Loss
from expunge.storage.chunks import chunk_bytes

GIB = 1 << 30
IMAGES = Shape(Loss.SOFTMAX, 30_730, 1000, 500, None, 3073)
"""CIFAR-10: ten classes, 3,072 pixels and the bias."""
DISK = 100 * GIB


def test_images_get_it_where_no_other_kind_fits() -> None:
    plan = plan_provenance(IMAGES, None, None, GIB, DISK)
    assert plan.kind == "projected" and plan.memory < GIB < 2 * GIB and plan.disk < 7e8
    assert plan.why.startswith("exact needs 1.89 TB of disk") and "averaged 38.3 GB" in plan.why
    found = plan_provenance(replace(IMAGES, basis=100, neglected=0.012), None, None, GIB, DISK)
    assert found.disk < plan.disk and found.memory < plan.memory
    told = "follows 100 of 3,073 components, the others change an update by 1.2% of itself, about"
    assert told in found.why
    asked = plan_provenance(replace(IMAGES, basis=100, neglected=0.2), "projected", None, GIB, DISK)
    assert asked.why == "asked for; " + told.replace("1.2%", "20.0%")


def test_rows_that_lie_near_no_subspace_do_not_get_it_unasked() -> None:
    with pytest.raises(JobError, match="no provenance fits"):
        plan_provenance(replace(IMAGES, basis=150, neglected=0.1), None, None, GIB, DISK)


def test_what_does_not_fit_is_told_that_it_would() -> None:
    for kind in ("exact", "averaged", "lowrank", "frozen"):
        with pytest.raises(JobError, match=f"provenance={kind} needs") as caught:
            plan_provenance(IMAGES, kind, None, GIB, DISK)
        assert "provenance=projected fits" in str(caught.value)
    with pytest.raises(JobError, match="provenance=projected needs .* provenance=none fits"):
        plan_provenance(IMAGES, "projected", None, GIB // 8, DISK)


def test_too_many_columns_can_not_be_decomposed() -> None:
    wide = replace(IMAGES, parameters=50_000, columns=5000)
    with pytest.raises(JobError, match="up to 4,096 columns; these have 5,000"):
        plan_provenance(wide, "projected", None, GIB, DISK)
    with pytest.raises(JobError, match="no provenance fits"):
        plan_provenance(wide, None, None, GIB, DISK)


def test_memory_grows_with_what_is_followed() -> None:
    few = replace(IMAGES, basis=20)
    assert memory_bytes("projected", few, "float32") < memory_bytes("projected", IMAGES, "float32")
    assert memory_bytes("projected", few, "float32") < memory_bytes("projected", few, "float64")
    assert IMAGES.inside == MOST_INSIDE and few.inside == 200


def test_the_price_is_what_is_written(cli: Cli, tmp_path: Path) -> None:
    here = spectral(Loss.SOFTMAX, 3, rows=900)
    import_rows(cli, tmp_path, here.rows.x, here.rows.labels)
    train(cli, "p", "softmax", "-p", "provenance=projected")
    found = opened(tmp_path, "p")
    specs, q = found.version.specs, found.parameters.shape[0]
    names = (*TRACE, *EIGEN, *BASIS)
    written = sum(int(np.prod(specs[n].shape)) * specs[n].dtype.itemsize for n in names)
    shape = Shape(
        Loss.SOFTMAX, found.parameters.size, 60, 150, None, found.design.width, found.settings.rank
    )
    assert shape.inside == q * found.settings.rank == specs["eigenvalues"].shape[1]
    assert written == plan_provenance(shape, "projected", "float32", GIB, GIB).disk
    assert all(chunk_bytes(specs[n]) > 0 for n in names)


# ------------------------------------------------------------------ in memory


def test_estimators_take_it_and_stay_near_a_retrain() -> None:
    here = spectral(Loss.SOFTMAX, 3)
    x, y = here.rows.x, here.rows.labels.astype(int)
    model, other = (
        SoftmaxRegression(
            batch_size=200, iterations=120, random_state=1, provenance=kind, learning_rate=0.1
        ).fit(x, y)
        for kind in ("projected", "none")
    )
    before = other.coef_.copy()
    for gone in (range(4), range(4, 20)):
        found = model.delete(gone)
        other.delete(gone)
        assert (found.method, found.kind, found.rows) == ("delta", "projected", len(gone))
    moved = np.linalg.norm(other.coef_ - before)
    assert np.linalg.norm(model.coef_ - other.coef_) < 0.05 * moved
    with pytest.raises(ValueError, match="method 'priu' needs provenance 'exact'"):
        model.delete([30], "priu")


def test_the_default_is_projected_beyond_what_averages_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = spectral(Loss.LOGISTIC, 1, rows=300)
    monkeypatch.setattr(regression_estimator, "EXACT_BYTES", 0)
    for allowed, kind in ((1 << 30, "averaged"), (0, "projected")):
        monkeypatch.setattr(regression_estimator, "AVERAGED_BYTES", allowed)
        model = LogisticRegression(batch_size=50, iterations=20, random_state=0)
        assert model.fit(here.rows.x, here.rows.labels).provenance_ == kind


def test_estimators_refuse_too_many_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression_estimator, "MOST_COLUMNS", 10)
    here = spectral(Loss.LOGISTIC, 1, rows=100)
    model = LogisticRegression(provenance="projected", batch_size=50, iterations=20)
    with pytest.raises(ValueError, match="for rows of up to 9 features; X has 24"):
        model.fit(here.rows.x, here.rows.labels)
