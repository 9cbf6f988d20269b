"""The regressions on arrays: scikit-learn's face, bad input, deletion by unit, the optimum."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from regression_problems import MODELS, N, data, fitted, parameters, small
from sklearn.linear_model import LogisticRegression as ReferenceLogistic
from sklearn.linear_model import Ridge

import expunge
from expunge import LinearRegression, LogisticRegression, SoftmaxRegression
from expunge.pipeline import regression_arrays, regression_estimator
from expunge.pipeline.clusterer import NotFittedError
from expunge.pipeline.regression_estimator import Regression


def without(kind: type[Regression], gone: np.ndarray, **others: Any) -> Any:
    """BaseL: the same fit, then trained again without some rows."""
    model = fitted(kind, **others)
    model.delete(gone, "basel")
    return model


# ------------------------------------------------------------------------------ the face


@pytest.mark.parametrize("kind", MODELS)
def test_shapes(kind: type[Regression]) -> None:
    x, _ = data(kind)
    model = fitted(kind)
    rows = {LinearRegression: (), LogisticRegression: (1,), SoftmaxRegression: (3,)}[kind]
    assert model.coef_.shape == (*rows, 3) and np.shape(model.intercept_) == rows
    assert model.n_iter_ == 120 and model.n_rows_ == N and not model.empty_
    assert model.n_features_in_ == 3 and model.random_state_ == 1
    assert model.predict(x[:7]).shape == (7,) and model.predict(x[:0]).shape == (0,)
    assert model.provenance_ == "exact" and model.learning_rate_ > 0


def test_linear_predictions() -> None:
    x, y = data(LinearRegression)
    model = fitted(LinearRegression)
    np.testing.assert_allclose(model.predict(x), x @ model.coef_ + model.intercept_, rtol=1e-9)
    residual = np.square(y - model.predict(x)).sum() / np.square(y - y.mean()).sum()
    assert model.score(x, y) == pytest.approx(1 - residual) and model.score(x, y) > 0.95
    one = model.predict(x[:1])
    assert model.score(x[:1], one) == 1.0 and model.score(x[:1], one + 1) == 0.0


def test_logistic_predictions() -> None:
    x, y = data(LogisticRegression)
    model = fitted(LogisticRegression)
    assert model.classes_.tolist() == ["no", "yes"]
    odds = model.decision_function(x)
    np.testing.assert_allclose(odds, x @ model.coef_[0] + model.intercept_[0], rtol=1e-7, atol=1e-9)
    chances = model.predict_proba(x)
    np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-odds)), rtol=1e-12)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, rtol=1e-12)
    assert np.array_equal(model.predict(x) == "yes", odds > 0)
    assert model.score(x, y) == np.mean(model.predict(x) == y) > 0.7
    far = model.predict_proba(np.array([[1e6, -1e9, 50.0], [-1e6, 1e9, -50.0]]))
    assert np.isfinite(far).all()


def test_softmax_predictions() -> None:
    x, y = data(SoftmaxRegression)
    model = fitted(SoftmaxRegression)
    assert model.classes_.tolist() == [10, 20, 40]
    scores = model.decision_function(x)
    np.testing.assert_allclose(scores, x @ model.coef_.T + model.intercept_, rtol=1e-6, atol=1e-8)
    chances = model.predict_proba(x)
    np.testing.assert_allclose(chances, np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    assert np.array_equal(model.predict(x), model.classes_[np.argmax(chances, axis=1)])
    assert model.score(x, y) == np.mean(model.predict(x) == y) > 0.6


def test_parameters_are_kept_as_given() -> None:
    model = LogisticRegression(0.1, 0.2, 10, 20, 3, provenance="averaged", dtype="float64")
    given = {
        "learning_rate": 0.1,
        "l2": 0.2,
        "batch_size": 10,
        "iterations": 20,
        "random_state": 3,
        "provenance": "averaged",
        "dtype": "float64",
    }
    assert model.get_params() == given
    assert model.set_params(l2=0.5, batch_size=7) is model
    assert model.get_params() == given | {"l2": 0.5, "batch_size": 7}
    with pytest.raises(ValueError, match="no parameter 'eta'; it has learning_rate, l2"):
        model.set_params(eta=1)


def test_a_random_state_is_drawn_and_kept() -> None:
    x, y = data(LinearRegression)
    model = small(LinearRegression, random_state=None).fit(x, y)
    again = small(LinearRegression, random_state=model.random_state_).fit(x, y)
    assert model.random_state is None and np.array_equal(model.coef_, again.coef_)
    assert small(LinearRegression, random_state=None).fit(x, y).random_state_ != model.random_state_


@pytest.mark.parametrize("kind", MODELS)
def test_copies_are_apart(kind: type[Regression]) -> None:
    model = fitted(kind)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = parameters(model)
        other.delete(range(50))
        assert model.n_rows_ == N and other.n_rows_ == N - 50
        assert np.array_equal(parameters(model), before)
        assert model._rows.x[:50].all()


def test_what_is_given_is_not_changed() -> None:
    x, y = data(LinearRegression)
    units, first, second = np.arange(N), x.copy(), y.copy()
    small(LinearRegression).fit(x, y, units).delete(range(10))
    assert np.array_equal(x, first) and np.array_equal(y, second)
    assert np.array_equal(units, np.arange(N))


# -------------------------------------------------------------------------------- deletion


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("provenance", "method"), [("exact", "delta"), ("exact", "priu"), ("averaged", "delta")]
)
def test_deletion_is_near_base_l(kind: type[Regression], provenance: str, method: str) -> None:
    model = fitted(kind, provenance=provenance, batch_size=N)
    before, gone = parameters(model), np.array([3, 17, 300, 599, 42])
    done = model.delete(gone, method)
    assert (done.method, done.kind, done.rows, done.ignored) == (method, provenance, 5, 0)
    assert done.change > 0 and done.share_deleted == pytest.approx(5 / N)
    other = without(kind, gone, provenance=provenance, batch_size=N)
    wanted = parameters(other)
    bound = 1e-9 if kind is LinearRegression and provenance == "exact" else 0.05
    moved = np.abs(wanted - before).max()
    np.testing.assert_allclose(parameters(model), wanted, rtol=0, atol=bound * moved)
    assert model.n_rows_ == N - 5


@pytest.mark.parametrize("kind", MODELS)
def test_base_l_and_no_provenance_are_one(kind: type[Regression]) -> None:
    gone = np.arange(20, 40)
    wanted = without(kind, gone)
    model = fitted(kind, provenance="none")
    done = model.delete(gone)
    assert done.method == "basel" and done.kind == "none" and done.change > 0
    assert np.array_equal(parameters(model), parameters(wanted))
    # After BaseL the provenance is that of its own training: deletions go on from there.
    further = np.arange(100, 103)
    wanted.delete(further)
    model.delete(further)
    moved = np.abs(parameters(model) - parameters(fitted(kind))).max()
    np.testing.assert_allclose(parameters(wanted), parameters(model), rtol=0, atol=0.05 * moved)


def test_methods_that_can_t_be() -> None:
    model = fitted(LogisticRegression, provenance="averaged")
    with pytest.raises(ValueError, match="'priu' needs provenance 'exact'; this model's is 'ave"):
        model.delete([1], "priu")
    with pytest.raises(ValueError, match="method is 'magic'; it is one of delta, priu, basel"):
        model.delete([1], "magic")
    assert model.n_rows_ == N


def test_units_that_can_t_be() -> None:
    model = fitted(LogisticRegression)
    for units, message in (("17", "units are text"), ([0.5], "whole numbers"), ([-1], "must lie")):
        with pytest.raises(ValueError, match=message):
            model.delete(units)
    assert model.n_rows_ == N


@pytest.mark.parametrize("kind", MODELS)
def test_units_of_several_rows(kind: type[Regression]) -> None:
    x, y = data(kind)
    units = np.arange(N) // 3 * 7
    model = small(kind).fit(x, y, units)
    done = model.delete([7, 7, 14, 3, 10**12])
    assert (done.rows, done.ignored, done.share_deleted) == (6, 2, pytest.approx(6 / N))
    other = fitted(kind)
    other.delete([3, 4, 5, 6, 7, 8])
    assert np.array_equal(parameters(model), parameters(other))
    again = model.delete([7, 14])
    assert (again.rows, again.ignored, again.change) == (0, 2, 0.0)
    assert again.share_deleted == pytest.approx(6 / N)
    assert np.array_equal(parameters(model), parameters(other))


@pytest.mark.parametrize("units", [5, np.int64(5), [5], {5}, (u for u in [5]), np.array([5])])
def test_one_unit_many_ways(units: Any) -> None:
    assert fitted(LinearRegression).delete(units).rows == 1


def test_no_units() -> None:
    model = fitted(LinearRegression)
    before = parameters(model)
    done = model.delete([])
    assert (done.rows, done.ignored, done.change, done.share_deleted) == (0, 0, 0.0, 0.0)
    assert np.array_equal(parameters(model), before)


def test_linear_deletions_add_up() -> None:
    model = fitted(LinearRegression)
    gone = np.random.default_rng(0).permutation(N)[:500]
    for part in np.array_split(gone, 9):
        model.delete(part)
    wanted = parameters(without(LinearRegression, gone))
    np.testing.assert_allclose(parameters(model), wanted, rtol=1e-8)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("provenance", ["exact", "averaged", "none"])
def test_the_last_row_empties_the_model(kind: type[Regression], provenance: str) -> None:
    x, y = data(kind)
    model = fitted(kind, provenance=provenance)
    model.delete(range(N - 1))
    assert model.n_rows_ == 1 and not model.empty_
    done = model.delete(range(N))
    assert (done.rows, done.ignored, done.share_deleted) == (1, N - 1, 1.0)
    assert model.empty_ and model.n_rows_ == 0 and done.change >= 0
    calls: list[Callable[[], Any]] = [
        lambda: model.predict(x),
        lambda: model.score(x, y),
        lambda: model.coef_,
        lambda: model.n_iter_,
    ]
    for call in calls:
        with pytest.raises(NotFittedError, match="the model is empty"):
            call()
    assert model.delete([1]).rows == 0
    assert model.fit(x, y).n_rows_ == N and not model.empty_


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("provenance", ["exact", "averaged", "lowrank", "frozen", "projected"])
def test_a_single_row_is_trained_anew(kind: type[Regression], provenance: str) -> None:
    """As stored models are: an update's error would tell of those that are gone."""
    model = fitted(kind, provenance=provenance)
    done = model.delete(range(1, N))
    wanted = fitted(kind, provenance="none")
    wanted.delete(range(1, N))
    assert done.method == "basel"
    assert np.array_equal(parameters(model), parameters(wanted))


def test_rows_are_overwritten() -> None:
    model = fitted(LogisticRegression)
    gone = np.array([0, 5, 599])
    values = model._rows.x[gone].tobytes()
    assert all(values[12 * row : 12 * row + 12] in pickle.dumps(model) for row in range(3))
    model.delete(gone)
    rows = model._rows
    assert not rows.x[gone].any() and not rows.labels[gone].any()
    assert (rows.units[gone] == -1).all() and (np.delete(rows.units, gone) >= 0).all()
    for row in range(3):
        assert values[12 * row : 12 * row + 12] not in pickle.dumps(model)


@pytest.mark.parametrize("kind", MODELS)
def test_a_failed_deletion_leaves_the_model(
    kind: type[Regression], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(kind)
    before = parameters(model)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(regression_arrays, "rebased", fail)
    with pytest.raises(KeyboardInterrupt):
        model.delete(range(10))
    assert model.n_rows_ == N and np.array_equal(parameters(model), before)
    monkeypatch.undo()
    assert model.delete(range(10)).rows == 10


def test_one_row_and_one_constant_feature() -> None:
    one = LinearRegression(random_state=0, iterations=300).fit([[2.0, 3.0]], [5.0])
    assert one.predict([[2.0, 3.0]])[0] == pytest.approx(5.0, rel=0.01)
    x, y = data(LogisticRegression)
    x[:, 1] = 7.0
    model = small(LogisticRegression).fit(x, y)
    model.delete(range(30))
    assert model.coef_[0, 1] == 0.0


def test_provenance_is_chosen_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(LogisticRegression).provenance_ == "exact"
    monkeypatch.setattr(regression_estimator, "EXACT_BYTES", 1000)
    assert fitted(LogisticRegression).provenance_ == "averaged"


@pytest.mark.parametrize("piece", [37, 50, 100, 250])
def test_many_pieces_are_one(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces may end within a mini-batch of 100 rows, at its end, or hold several."""
    wanted = fitted(SoftmaxRegression)
    models = {}
    monkeypatch.setattr(regression_arrays, "PIECE", piece)
    for provenance in ("exact", "averaged"):
        model = models[provenance] = fitted(SoftmaxRegression, provenance=provenance)
        np.testing.assert_allclose(parameters(model), parameters(wanted), rtol=1e-9)
        assert (model._state.trained.trace.live == 100).all()
    wanted.delete(range(6))
    models["exact"].delete(range(6))
    np.testing.assert_allclose(parameters(models["exact"]), parameters(wanted), rtol=1e-4)
    assert models["averaged"].delete(range(6)).rows == 6


# ------------------------------------------------------------------------------- the optimum


def standardised(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64) - x.astype(np.float64).mean(axis=0)
    tail = (np.mean(wide**4, axis=0) / 3.0) ** 0.25
    return np.asarray(wide / np.maximum(wide.std(axis=0), tail))


def test_the_linear_optimum_is_ridge_s() -> None:
    """The mean of (y - w x)^2 plus (l2 / 2) |w|^2; a column of ones, penalised like the others."""
    x, y = data(LinearRegression)
    design = np.hstack([standardised(x), np.ones((N, 1))])
    ridge = Ridge(alpha=N * 0.1 / 2, fit_intercept=False, tol=1e-12).fit(design, y)
    model = LinearRegression(l2=0.1, batch_size=N, iterations=400, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.predict(x), design @ ridge.coef_, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", [LogisticRegression, SoftmaxRegression])
def test_the_logistic_optimum_is_scikit_learn_s(kind: type[Regression]) -> None:
    x, y = data(kind)
    design = np.hstack([standardised(x), np.ones((N, 1))])
    reference = ReferenceLogistic(C=1 / (N * 0.1), fit_intercept=False, tol=1e-12, max_iter=1000)
    reference.fit(design, y)
    model: Any = kind(l2=0.1, batch_size=N, iterations=3000, random_state=0, provenance="none")
    model.fit(x, y)
    wanted = reference.decision_function(design)
    np.testing.assert_allclose(model.decision_function(x), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["LinearRegression", "LogisticRegression", "SoftmaxRegression"])
def test_names_are_exported(name: str) -> None:
    assert name in expunge.__all__ and issubclass(getattr(expunge, name), Regression)


@pytest.mark.parametrize("kind", [LogisticRegression, SoftmaxRegression])
@pytest.mark.parametrize("provenance", ["exact", "averaged"])
def test_an_update_that_strays_is_a_retrain(kind: type[Regression], provenance: str) -> None:
    """Two rows far out make the scale; without the others' curvature no expansion holds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(101, 2))
    x[:2] = [[1000, 1000], [1000, -1000]]
    y = rng.normal(size=101) > 0
    y[:2] = [True, False]
    made = {name: kind(provenance=name, random_state=0).fit(x, y) for name in (provenance, "none")}
    done = {name: model.delete(range(2, 101)) for name, model in made.items()}
    assert done[provenance].method == "basel"
    one, other = (parameters(model) for model in made.values())
    np.testing.assert_array_equal(one, other)
