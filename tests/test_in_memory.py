"""Models in memory: nothing of a deleted row stays in them, and an interrupted deletion is completed."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from regression_problems import fitted

from expunge import DCKMeans, KMeans, LinearRegression, LogisticRegression, QKMeans
from expunge.pipeline import regression_arrays, regression_estimator

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


class _Interrupt:
    """Raises KeyboardInterrupt at the n-th line that is run of some files."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._files = {regression_arrays.__file__, regression_estimator.__file__}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("kind", [LinearRegression, LogisticRegression])
def test_a_regression_completes_what_was_interrupted(kind: type[Any]) -> None:
    first = fitted(kind)
    units = np.arange(40)
    whole = copy.deepcopy(first)
    whole.delete(units)
    number, places = 1, 0
    while True:
        model, interrupt = copy.deepcopy(first), _Interrupt(number)
        sys.settrace(interrupt)
        try:
            model.delete(units)
        except KeyboardInterrupt:
            places += 1
        finally:
            sys.settrace(None)
        if interrupt.left > 0:
            break
        model.delete(units)
        assert model.n_rows_ == whole.n_rows_
        np.testing.assert_array_equal(model.coef_, whole.coef_)
        number += 1
    assert places > 30


def test_basel_with_no_unit_trains_again() -> None:
    model = fitted(LogisticRegression)
    model.delete(np.arange(60))
    other = fitted(LogisticRegression)
    other.delete(np.arange(60), "basel")
    assert (model.coef_ != other.coef_).any()
    assert model.delete([], "basel").change > 0.0
    np.testing.assert_array_equal(model.coef_, other.coef_)
