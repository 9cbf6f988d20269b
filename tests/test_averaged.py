"""The update with one averaged curvature a block: near, and cheap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression_problems import Problem, problem, relative

from expunge.pipeline import averaged
from expunge.pipeline.averaged import update_averaged
from expunge.pipeline.losses import Loss
from expunge.pipeline.provenance import Blocks
from expunge.pipeline.regression_arrays import AveragedBlocks, Rows, Trained

CLASSIFIERS = [(Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]


def large(loss: Loss, q: int, **others: float) -> Problem:
    return problem(
        loss,
        20_000,
        6,
        q,
        batch=1000,
        iterations=400,
        rate=0.3,
        provenance="averaged",
        block=40,
        **others,  # type: ignore[arg-type]
    )


def change(here: Problem, trained: Trained, gone: np.ndarray) -> np.ndarray:
    kept = trained.kept
    assert isinstance(kept, AveragedBlocks)
    visits = here.visits(trained, gone)
    updated = update_averaged(here.settings.descent, trained.trace, kept, visits)
    np.testing.assert_array_equal(updated.starts[-1], updated.change)
    return updated.change


@pytest.mark.parametrize(("loss", "q"), [(Loss.LINEAR, 1), *CLASSIFIERS])
@pytest.mark.parametrize("count", [1, 20, 200])
def test_ten_blocks_are_near(loss: Loss, q: int, count: int) -> None:
    here = large(loss, q) if loss != Loss.LINEAR else replace_rate(large(loss, q), 0.05)
    trained = here.trained()
    w, gone = trained.w.ravel(), here.some(count)
    wanted = here.base_l(gone)
    assert relative(w + change(here, trained, gone), wanted, wanted - w) < 0.05


def replace_rate(here: Problem, rate: float) -> Problem:
    return replace(here, settings=replace(here.settings, learning_rate=rate))


def test_the_second_sweep_is_for_outliers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows ten times as long have a curvature of their own that the mean does not know."""
    calm = large(Loss.LOGISTIC, 1)
    gone = calm.some(100)
    x = calm.rows.x.copy()
    x[gone] *= 10
    here = replace(calm, rows=Rows(x, calm.rows.labels, calm.rows.units))
    trained = here.trained()
    w, wanted = trained.w.ravel(), here.base_l(gone)
    corrected = relative(w + change(here, trained, gone), wanted, wanted - w)
    monkeypatch.setattr(averaged, "SWEEPS", 0)
    without = relative(w + change(here, trained, gone), wanted, wanted - w)
    assert corrected < 0.5 * without


@pytest.mark.parametrize("block", [1, 3, 40])
def test_blocks_of_full_batches_of_a_linear_model_are_exact(block: int) -> None:
    """Every iteration has the same curvature, so its mean is exact; ten rows' own is corrected."""
    here = problem(
        Loss.LINEAR, 3000, 4, batch=3000, iterations=40, provenance="averaged", block=block
    )
    trained = here.trained()
    w, gone = trained.w.ravel(), here.some(10)
    wanted = here.base_l(gone)
    assert relative(w + change(here, trained, gone), wanted, wanted - w) < 1e-4


@pytest.mark.parametrize("eigenvalue", [1.0, 1.7])
def test_steps_may_be_zero_or_negative(eigenvalue: float) -> None:
    """Features that are columns of +-1 make C / b the identity times 2, and the step is chosen.

    1 - eta (2 + lambda): zero at eta (2 + lambda) = 1, negative beyond.
    """
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    x = np.tile(signs, (250, 1))
    here = problem(
        Loss.LINEAR, 1000, 2, batch=1000, iterations=30, provenance="averaged", l2=0.25, block=5
    )
    here = replace(here, rows=Rows(x, here.rows.labels, here.rows.units))
    here = replace_rate(here, eigenvalue / 2.25)
    trained = here.trained()
    assert isinstance(trained.kept, AveragedBlocks)
    factors = here.settings.descent.decay - here.settings.learning_rate * trained.kept.eigen(0)[0]
    np.testing.assert_allclose(factors, 1.0 - eigenvalue, atol=1e-12)
    gone = here.some(7)
    w, wanted = trained.w.ravel(), here.base_l(gone)
    assert relative(w + change(here, trained, gone), wanted, wanted - w) < 0.01


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_forcings_taken_together_are_near(
    loss: Loss, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring forcings move apart by SMEAR at most, so the change does by about as much."""
    here = replace_rate(large(loss, q), 0.01)
    trained = here.trained()
    gone = here.some(200)
    grains = []
    own = averaged._bands

    def recorded(*given: Any) -> Any:
        bands = own(*given)
        grains.append(max(band.grain for band in bands))
        return bands

    monkeypatch.setattr(averaged, "_bands", recorded)
    together = change(here, trained, gone)
    assert min(grains) > 1
    monkeypatch.setattr(averaged, "GRAINS", ())
    one_by_one = change(here, trained, gone)
    assert relative(together, one_by_one, one_by_one) < averaged.SMEAR


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.floats(1e-6, 1.9), st.integers(0, 2**32 - 1))
def test_how_many_forcings_are_taken_together(
    size: int, length: int, fastest: float, seed: int
) -> None:
    """Half a group of steps must not move a coordinate by more than SMEAR, nor leave the block."""
    rng = np.random.default_rng(seed)
    factors = 1.0 - np.sort(fastest * rng.random(size) ** 3)
    at = np.flatnonzero(rng.random(length) < 0.5)
    vectors = np.eye(size)
    bands = averaged._bands(factors, vectors, at, length)
    np.testing.assert_array_equal(np.concatenate([band.factors for band in bands]), factors)
    np.testing.assert_array_equal(np.hstack([band.vectors for band in bands]), vectors)
    for band in bands:
        assert band.grain % 2 == 1 and band.grain <= length
        assert (band.grain // 2) * np.abs(1.0 - band.factors).max() <= averaged.SMEAR
        np.testing.assert_array_equal(band.groups[band.group_of], at // band.grain)
        parts = rng.random((len(at), size))
        summed = np.zeros((len(band.groups), len(band.factors)))
        np.add.at(summed, band.group_of, parts @ band.vectors)
        np.testing.assert_allclose(band.gathered(parts), summed, atol=1e-12)


def test_deleting_nothing_changes_nothing() -> None:
    here = problem(Loss.LOGISTIC, 50, 3, batch=20, iterations=20, provenance="averaged")
    assert not change(here, here.trained(), np.empty(0, np.int64)).any()


def test_mini_batches_may_lose_all_rows() -> None:
    here = problem(Loss.LOGISTIC, 400, 3, batch=20, iterations=60, provenance="averaged", block=6)
    trained = here.trained()
    gone = np.sort(here.schedule.window_order(0, 0)[:20])
    w, wanted = trained.w.ravel(), here.base_l(gone)
    assert relative(w + change(here, trained, gone), wanted, wanted - w) < 0.2


def test_the_last_block_may_be_short() -> None:
    here = problem(
        Loss.LOGISTIC, 4000, 3, batch=1000, iterations=43, provenance="averaged", block=10
    )
    trained = here.trained()
    assert isinstance(trained.kept, AveragedBlocks)
    assert trained.kept.blocks == Blocks(43, 10) and len(trained.kept.parts) == 5
    gone = here.some(40)
    w, wanted = trained.w.ravel(), here.base_l(gone)
    assert relative(w + change(here, trained, gone), wanted, wanted - w) < 0.05
