"""Models in memory: nothing of a deleted row stays in them, and an interrupted deletion is completed."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
from regression_problems import fitted

from expunge import DCKMeans, KMeans, LinearRegression, LogisticRegression, QKMeans
from expunge.pipeline import (
    clusterer,
    clusterers,
    divided_estimator,
    regression_arrays,
    regression_estimator,
    unit_index,
)
from expunge.pipeline.fixedpoint import Scaling

CLUSTERERS: dict[str, Callable[[], Any]] = {
    "k-means": lambda: KMeans(3, random_state=0),
    "q-kmeans": lambda: QKMeans(3, random_state=0),
    "without labels": lambda: KMeans(3, random_state=0, provenance="none"),
    "dc-kmeans": lambda: DCKMeans(3, 4, random_state=0),
}
UNIT = 0x5EED_0000_0000_0000
"""Added to row numbers: ids whose bytes are nowhere by chance."""


@pytest.mark.parametrize("which", ["seed", "greatest"])
@pytest.mark.parametrize("kind", CLUSTERERS)
def test_no_pickle_has_anything_of_a_deleted_row(kind: str, which: str) -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    model = CLUSTERERS[kind]().fit(x, np.arange(len(x)) + UNIT)
    if which == "greatest":
        unit = UNIT + int(np.argmax(x[:, 0]))
    else:
        first = CLUSTERERS["without labels"]().fit(x, np.arange(len(x)) + UNIT)
        unit = int(first.record_.steps[0].centroids.drawn[0, 0])
    # Its id, and its first feature.
    traces = [np.int64(unit).tobytes(), x[unit - UNIT, 0].tobytes()]
    before = pickle.dumps(model)
    assert all(trace in before for trace in traces)
    assert model.delete(unit).rows == 1
    after = pickle.dumps(model)
    assert not any(trace in after for trace in traces)


def test_no_sums_of_before_a_deletion_stay() -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    model = KMeans(3, random_state=0, bounds=(-5.0, 5.0)).fit(x)
    before = [step.tally.sums.copy() for step in model.record_.steps]
    model.delete(17)
    after = pickle.dumps(model)
    assert not any(sums.tobytes() in after for sums in before)


def test_steps_are_bounded() -> None:
    x = np.zeros((4, 1), np.float32)
    with pytest.raises(ValueError, match=r"max_iter is 9223372036854775808; it must lie in \[0, "):
        KMeans(2, max_iter=2**63).fit(x)


@pytest.mark.parametrize("kind", CLUSTERERS)
def test_nothing_stays_when_all_rows_are_deleted(kind: str) -> None:
    x = np.random.default_rng(0).random((5, 9)).astype(np.float32)
    model = CLUSTERERS[kind]().fit(x)
    for unit in range(5):
        model.delete(unit)
    assert model.empty_
    kept = pickle.dumps(model)
    kinds = (np.float32, np.float64)
    assert not any(value.astype(k).tobytes() in kept for value in x.ravel() for k in kinds)


def test_a_deletion_that_leaves_a_centroid_absent_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Labels and margins are dropped then, and with them the sums of clusters of one row."""
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    model = KMeans(12, random_state=0, bounds=(-5.0, 5.0)).fit(x)
    extent = model.record_.extent
    row = Scaling.between(extent.lower, extent.upper).fixed(x[1:2])[0].astype(np.int64).tobytes()
    assert row in pickle.dumps(model)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("expunge.pipeline.history.quantized.fit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.delete(1)
    assert model.n_rows_ == 11
    assert row not in pickle.dumps(model)


class _Interrupt:
    """Raises KeyboardInterrupt at the n-th line that is run of some modules."""

    def __init__(self, number: int, modules: tuple[ModuleType, ...]) -> None:
        self.left = number
        self._files = {module.__file__ for module in modules}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(first: Any, ask: Callable[[Any], object], *modules: ModuleType) -> Iterator[Any]:
    """Yield copies of a model of which something was asked that was interrupted, at each line in turn."""
    number = 1
    while True:
        model, interrupt = copy.deepcopy(first), _Interrupt(number, modules)
        sys.settrace(interrupt)
        try:
            ask(model)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if interrupt.left > 0:
            return
        yield model
        number += 1


@pytest.mark.parametrize("kind", [LinearRegression, LogisticRegression])
def test_a_regression_completes_what_was_interrupted(kind: type[Any]) -> None:
    first = fitted(kind)
    units = np.arange(40)
    whole = copy.deepcopy(first)
    whole.delete(units)
    places = 0
    asked = interrupted(first, lambda m: m.delete(units), regression_arrays, regression_estimator)
    for model in asked:
        model.delete(units)
        assert model.n_rows_ == whole.n_rows_
        np.testing.assert_array_equal(model.coef_, whole.coef_)
        places += 1
    assert places > 30


@pytest.mark.parametrize("kind", CLUSTERERS)
def test_an_interrupted_deletion_leaves_nothing_in_a_pickle(kind: str) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    first = CLUSTERERS[kind]().fit(x, np.arange(len(x)) + UNIT)
    traces = [np.int64(UNIT + 17).tobytes(), *(value.tobytes() for value in x[17])]
    whole = copy.deepcopy(first)
    whole.delete(UNIT + 17)
    begun = 0
    for model in interrupted(
        first, lambda m: m.delete(UNIT + 17), clusterer, clusterers, unit_index
    ):
        kept = pickle.dumps(model)
        if model.n_rows_ == len(x):
            assert all(trace in kept for trace in traces)
            continue
        begun += 1
        assert not any(trace in kept for trace in traces)
        np.testing.assert_array_equal(model.cluster_centers_, whole.cluster_centers_)
        assert model.delete(UNIT + 17).rows == 0
    assert begun > 5


@pytest.mark.parametrize("kind", [*CLUSTERERS, LinearRegression, LogisticRegression])
def test_an_interrupted_fit_leaves_the_earlier_model(kind: Any) -> None:
    """Or the new one: no mixture of both."""
    rng = np.random.default_rng(1)
    x, other = rng.normal(size=(2, 200, 3)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(float)
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    if kind in CLUSTERERS:
        make, before, after = CLUSTERERS[kind], (x[:150],), (other,)
    else:
        make = partial(kind, iterations=20, batch_size=50, random_state=0)
        before, after = (x[:150], labels[:150]), (other, 1 - labels)
    one, two = make().fit(*before), make().fit(*after)
    for each in (one, two):
        each.delete([3, 4])
    ends = set()
    modules = (clusterer, clusterers, divided_estimator, regression_estimator)
    for model in interrupted(make().fit(*before), lambda m: m.fit(*after), *modules):
        model.delete([3, 4])
        wanted = one if model.n_rows_ == one.n_rows_ else two
        ends.add(wanted is two)
        np.testing.assert_array_equal(model.predict(x), wanted.predict(x))
    assert False in ends


def test_normal_equations_that_an_outlier_ruined_are_made_anew() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    y = x @ [1.0, 2.0, 3.0] + rng.normal(size=500)
    y[7] = 1e20
    given: dict[str, Any] = {"batch_size": 100, "iterations": 100, "random_state": 0}
    given["provenance"] = "none"
    model, other = (LinearRegression(**given).fit(x, y) for _ in range(2))
    other.delete(7, "basel")
    assert model.delete(7, "closed-form").method == "basel"
    np.testing.assert_array_equal(model.coef_, other.coef_)
    model.delete(8, "closed-form")
    np.testing.assert_allclose(model.coef_, other.coef_, atol=0.1)


def test_basel_with_no_unit_trains_again() -> None:
    model = fitted(LogisticRegression)
    model.delete(np.arange(60))
    other = fitted(LogisticRegression)
    other.delete(np.arange(60), "basel")
    assert (model.coef_ != other.coef_).any()
    assert model.delete([], "basel").change > 0.0
    np.testing.assert_array_equal(model.coef_, other.coef_)


@pytest.mark.parametrize("unit", [2**63, 2**64, -(2**70)])
def test_an_id_of_any_size_is_told_by_its_range(unit: int) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    for model in (KMeans(2).fit(x), LinearRegression(iterations=5).fit(x, x[:, 0])):
        with pytest.raises(ValueError, match=r"unit ids must lie in \[0, 2\^63\); found"):
            model.delete(unit)
