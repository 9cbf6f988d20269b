"""Kinds of provenance and methods by name, in memory: which go together, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from regression_problems import MODELS, N, data, fitted, parameters, small

from expunge import LinearRegression, LogisticRegression, SoftmaxRegression
from expunge.pipeline.regression import BASEL, KINDS, METHODS
from expunge.pipeline.regression_estimator import Regression

LACKS = "needs provenance 'exact'|needs provenance 'frozen', or a linear model|needs a linear model"


def allowed(kind: type[Regression], provenance: str, method: str) -> bool:
    """The table of the README."""
    linear = kind is LinearRegression
    return {
        "delta": True,
        "basel": True,
        "infl": True,
        "priu": provenance == "exact",
        "priu-opt": linear or provenance == "frozen",
        "closed-form": linear,
    }[method]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("provenance", KINDS)
def test_every_method_works_or_says_why_not(kind: type[Regression], provenance: str) -> None:
    for method in METHODS:
        model = fitted(kind, provenance=provenance)
        before = parameters(model)
        if not allowed(kind, provenance, method):
            with pytest.raises(ValueError, match=f"method '{method}' ({LACKS}); this model's is"):
                model.delete([1, 2], method)
            np.testing.assert_array_equal(parameters(model), before)
            continue
        found = model.delete([1, 2], method)
        retrains = provenance == "none" and method != "closed-form"
        assert found.method == (BASEL if retrains else method)
        assert found.kind == provenance == model.provenance_ and found.rows == 2
        assert found.change > 0.0 and model.n_rows_ == N - 2
        assert np.isfinite(parameters(model)).all()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("provenance", ["lowrank", "frozen"])
def test_the_new_kinds_are_near_a_retrain(kind: type[Regression], provenance: str) -> None:
    model, other = fitted(kind, provenance=provenance), fitted(kind, provenance="none")
    before = parameters(model)
    for gone in (range(3), range(3, 12)):
        model.delete(gone)
        other.delete(gone)
    moved = np.linalg.norm(parameters(other) - before)
    # A frozen curvature knows nothing of what a mini-batch of 100 rows has of its own.
    limit = 0.2 if provenance == "frozen" else 0.05
    assert np.linalg.norm(parameters(model) - parameters(other)) < limit * moved


@pytest.mark.parametrize("kind", [LogisticRegression, SoftmaxRegression])
def test_all_rows_of_a_class_may_leave(kind: type[Regression]) -> None:
    x, y = data(kind)
    gone = np.flatnonzero(y == y[0])
    for provenance in ("lowrank", "frozen"):
        model: Any = small(kind, provenance=provenance).fit(x, y)
        found = model.delete(gone)
        assert found.rows == len(gone) and np.isfinite(parameters(model)).all()
        assert found.method in ("delta", "basel")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("provenance", ["lowrank", "frozen"])
def test_every_row_may_leave(kind: type[Regression], provenance: str) -> None:
    model = fitted(kind, provenance=provenance)
    assert model.delete(range(N)).rows == N and model.empty_


@pytest.mark.parametrize("provenance", ["lowrank", "frozen"])
def test_one_row_and_no_penalty(provenance: str) -> None:
    model = LinearRegression(provenance=provenance, random_state=0, iterations=300, l2=0.0)
    model.fit([[2.0, 3.0]], [5.0])
    assert model.predict([[2.0, 3.0]])[0] == pytest.approx(5.0, rel=0.01)
    assert model.delete([0]).rows == 1 and model.empty_


def test_infl_in_a_row_uses_the_rows_that_are_left() -> None:
    """The Hessian is of the model at hand: two halves are near the whole, to second order."""
    one, two = fitted(LogisticRegression), fitted(LogisticRegression)
    before = parameters(one)
    one.delete(range(10), "infl")
    two.delete(range(5), "infl")
    two.delete(range(5, 10), "infl")
    moved = np.linalg.norm(parameters(one) - before)
    assert 0.0 < np.linalg.norm(parameters(one) - parameters(two)) < 0.1 * moved


@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
def test_frozen_updates_beyond_the_parameters_size_are_trained_again(model: Any) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 3))
    y = (x[:, 0] + rng.normal(size=40) > 0).astype(int)
    given = {"provenance": "frozen", "batch_size": 7, "iterations": 20, "random_state": 0}
    updated, retrained = model(**given).fit(x, y), model(**given).fit(x, y)
    assert updated.delete(range(38), "priu-opt").method == "basel"
    retrained.delete(range(38), "basel")
    np.testing.assert_array_equal(updated.coef_, retrained.coef_)
    assert model(**given).fit(x, y).delete([3], "priu-opt").method == "priu-opt"
