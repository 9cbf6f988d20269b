"""The regressions on arrays: what can't be used is named, and what can is."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from regression_problems import MODELS, N, data, fitted, parameters, small

from expunge import LinearRegression, LogisticRegression, SoftmaxRegression
from expunge.pipeline.clusterer import NotFittedError
from expunge.pipeline.descent import DivergedError
from expunge.pipeline.regression_estimator import Regression


def test_before_fit() -> None:
    model = LogisticRegression()
    for call in (
        lambda: model.predict(np.zeros((1, 3))),
        lambda: model.delete([1]),
        lambda: model.coef_,
        lambda: model.n_rows_,
        lambda: model.empty_,
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            call()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"learning_rate": np.nan}, "learning_rate is nan"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; a number is needed"),
        ({"l2": -1.0}, "l2 is -1.0; it must not be negative"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"iterations": 1.5}, "iterations is 1.5; a whole number is needed"),
        ({"random_state": "x"}, "random_state is 'x'"),
        ({"provenance": "all"}, "provenance is 'all'; it is one of exact, averaged, none"),
        ({"dtype": "float16"}, "dtype is 'float16'; it is one of float32, float64"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearRegression(**parameters).fit(*data(LinearRegression))


@pytest.mark.parametrize("kind", MODELS)
def test_bad_rows(kind: type[Regression]) -> None:
    x, y = data(kind)
    model = small(kind)
    bad = x.copy()
    bad[3, 1] = np.nan
    for rows, labels, units, message in (
        (bad, y, None, r"X\[3, 1\] is nan: not finite"),
        (x[:, 0], y, None, "X has 1 dimensions"),
        (x[:0], y[:0], None, r"X has shape \(0, 3\); at least one row"),
        (x[:, :0], y, None, r"X has shape \(600, 0\)"),
        (x, y[:-1], None, r"y has shape \(599,\); 600 labels are needed"),
        (x, y[:, np.newaxis], None, r"y has shape \(600, 1\)"),
        (x, y, np.arange(5), r"units have shape \(5,\); expected 600"),
        (x, y, np.full(N, -1), "unit ids must lie in"),
        (x, y, np.full(N, 0.5), "units are float64; whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(rows, labels, units)
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.fit(x, y)
    with pytest.raises(ValueError, match="X has 2 features; the model has 3"):
        model.predict(x[:, :2])
    with pytest.raises(ValueError, match="y has shape"):
        model.score(x, y[:-1])


def test_bad_labels() -> None:
    x = data(LinearRegression, 6)[0]
    for kind, labels, message in (
        (LinearRegression, list("abcdef"), "y holds <U1; numbers are needed"),
        (LinearRegression, [1, 2, 3, np.inf, 5, 6], r"y\[3\] is inf: not finite"),
        (LogisticRegression, [1, 2, 3, 1, 2, 3], "y has 3 classes; logistic regression takes exac"),
        (LogisticRegression, [4] * 6, "y has the one class .*4.*; at least 2 are needed"),
        (SoftmaxRegression, [4] * 6, "y has the one class"),
        (SoftmaxRegression, [0, 1, np.nan, 1, 0, 1], r"y\[2\] is nan"),
        (SoftmaxRegression, np.array([0, "a", 1, 2, 3, 4], object), "no common order"),
    ):
        with pytest.raises(ValueError, match=message):
            small(kind).fit(x, labels)


def test_labels_of_many_kinds() -> None:
    x, y = data(LogisticRegression)
    yes = y == "yes"
    wanted = fitted(LogisticRegression)
    for labels in (yes, yes.astype(int), np.where(yes, 2.5, -1.0), y.astype(object), y.tolist()):
        model = small(LogisticRegression).fit(x, labels)
        assert np.array_equal(model.coef_, wanted.coef_)
        assert set(model.predict(x).tolist()) == set(np.asarray(labels).tolist())


@pytest.mark.parametrize("kind", MODELS)
def test_a_large_learning_rate_warns(kind: type[Regression]) -> None:
    x, y = data(kind)
    with pytest.warns(RuntimeWarning) as told, suppress(DivergedError):
        small(kind, learning_rate=50.0).fit(x, y)
    limit = float(str(told[0].message).split("1/L = ")[1].split(":")[0])
    assert 0.45 * limit < small(kind).fit(x, y).learning_rate_ < 0.5 * limit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(kind, learning_rate=0.999 * limit).fit(x, y)
    with pytest.warns(RuntimeWarning, match=rf"above 1/L = {limit:.4g}") as caught:
        small(kind, learning_rate=1.001 * limit).fit(x, y)
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:learning_rate is 100")
def test_divergence_keeps_the_earlier_fit() -> None:
    model = fitted(LinearRegression)
    before = parameters(model)
    with pytest.raises(DivergedError, match="diverged at iteration [1-9]"):
        model.set_params(learning_rate=100.0).fit(*data(LinearRegression, seed=1))
    assert np.array_equal(parameters(model), before)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([1, np.nan] * 20, object), r"y\[1\] is nan: not finite"),
        (np.array(["2020-01-01", "NaT"] * 20, "M8[D]"), r"y\[1\] is NaT: not finite"),
        (np.array([complex(np.nan, 1), 2] * 20), r"y\[0\] is .*nan.*: not finite"),
        (np.ma.masked_array([0, 1] * 20, mask=np.arange(40) % 4 == 2), "y has masked values"),
    ],
)
def test_labels_that_are_missing_are_no_class(labels: np.ndarray, message: str) -> None:
    x = np.random.default_rng(1).normal(size=(40, 3))
    with pytest.raises(ValueError, match=message):
        SoftmaxRegression(iterations=5, random_state=0).fit(x, labels)
    model = SoftmaxRegression(iterations=5, random_state=0).fit(x, [0, 1] * 20)
    with pytest.raises(ValueError, match=message):
        model.score(x, labels)


def test_numbers_beyond_float32_are_refused() -> None:
    x = data(LinearRegression)[0]
    for large in (np.full(len(x), 1e39), np.full(len(x), np.longdouble("1e400"))):
        with pytest.raises(ValueError, match=r"y\[0\] is .*: beyond 3.4e\+38"):
            LinearRegression(random_state=0).fit(x, large)
    half = x[:, 0].astype(np.float16)
    assert np.isfinite(LinearRegression(iterations=5, random_state=0).fit(x, half).coef_).all()
    at_most = np.where(np.arange(len(x)) % 2, 1.0, -1.0) * np.finfo(np.float32).max
    model = LinearRegression(iterations=5, random_state=0).fit(x, at_most)
    assert np.isfinite(model.delete([1, 2]).change) and np.isfinite(model.score(x, at_most))


@pytest.mark.parametrize("kind", MODELS)
def test_a_score_needs_a_row(kind: type[Regression]) -> None:
    x, y = data(kind)
    with pytest.raises(ValueError, match="X has no row"):
        fitted(kind).score(x[:0], y[:0])


@pytest.mark.parametrize("provenance", ["exact", "none"])
def test_rows_go_where_training_diverges_on_those_that_are_left(provenance: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    x[5] *= 1e5
    y = rng.normal(size=200)
    model = LinearRegression(
        random_state=1, iterations=150, batch_size=20, provenance=provenance
    ).fit(x, y)
    others = [unit for unit in rng.permutation(200).tolist() if unit != 5]
    done = [model.delete(others[k : k + 20]) for k in range(0, 180, 20)]
    assert done[-1].failed and not done[0].failed and model.n_rows_ == 20 and not model.empty_
    with pytest.raises(NotFittedError, match="diverges on the rows that a deletion left"):
        model.predict(x)
    assert model.delete(others[180:]).rows == 19 and model.n_rows_ == 1
    assert not model.delete(5).failed and model.empty_
