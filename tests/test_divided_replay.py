"""DC-k-means in memory whose leaves keep labels and margins: the same trees, with fewer passes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from test_divided import problems, refit
from test_real_data_exact import differences

from expunge import DCKMeans
from expunge.pipeline.divided_leaves import KeptLeaf
from expunge.pipeline.history import History


def apart(rows: int, state: int = 0) -> np.ndarray:
    rng = np.random.default_rng(state)
    x: np.ndarray = rng.integers(0, 4, (rows, 1)) + rng.normal(0, 0.12, (rows, 3))
    return x.astype(np.float32)


def through_joblib(model: DCKMeans) -> DCKMeans:
    joblib = pytest.importorskip("joblib")
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)  # type: ignore[no-any-return]


def leaves_of(model: DCKMeans) -> list[KeptLeaf]:
    assert model._leaves is not None
    return model._leaves._leaves


def check(model: DCKMeans, x: np.ndarray) -> None:
    """Fail unless the tree is that of a fit on its rows, and its leaves stand on the model's rows."""
    kept = np.sort(model._rows.units[model._rows.units >= 0])
    assert list(differences(model.record_, refit(x[kept], kept, model._settings))) == []
    for leaf in leaves_of(model):
        assert np.shares_memory(leaf._rows.units, model._rows.units) or not len(leaf._rows.units)
        if leaf._history:
            assert leaf._history._rows is leaf._rows
            assert np.shares_memory(leaf._history._fixed, model._rows._fixed)


@settings(max_examples=30, deadline=None)
@given(problems())
def test_without_labels_the_trees_are_the_same(
    problem: tuple[np.ndarray, np.ndarray, DCKMeans, list[list[int]]],
) -> None:
    x, units, model, batches = problem
    plain = copy.copy(model).set_params(provenance="none").fit(x, units)
    model.fit(x, units)
    for batch in batches:
        ours, theirs = model.delete(batch), plain.delete(batch)
        assert list(differences(model.record_, plain.record_)) == []
        assert (ours.leaves, ours.nodes) == (theirs.leaves, theirs.nodes)
        changed = {ours.action, theirs.action} <= {"replayed", "resumed"}
        assert changed or ours.action == theirs.action


def test_leaves_are_replayed_without_a_pass() -> None:
    x = apart(4000)
    model = DCKMeans(4, 4, random_state=0, bounds=(-1, 4)).fit(x)
    plain = DCKMeans(4, 4, random_state=0, bounds=(-1, 4), provenance="none").fit(x)
    order = np.random.default_rng(1).permutation(4000)[:40].tolist()
    ours, theirs = ([m.delete(u) for u in order] for m in (model, plain))
    replayed = [done for done in ours if done.action == "replayed"]
    assert len(replayed) >= 35 and not any(done.passes for done in replayed)
    assert sum(d.passes for d in ours) < sum(d.passes for d in theirs) / 5
    assert all(leaf._history for leaf in leaves_of(model))
    check(model, x)
    check_gone(model, order)


def check_gone(model: DCKMeans, gone: list[int]) -> None:
    """Deleted rows' labels and margins are those of nobody."""
    assert not np.isin(model._rows.units, gone).any()
    for leaf in leaves_of(model):
        steps, hole = history_of(leaf)._steps, leaf._rows.units < 0
        assert not steps.labels[:, hole].any()
        count = int(steps.state[1])
        assert np.isposinf(steps.margins[:count, hole]).all()


def history_of(leaf: KeptLeaf) -> History:
    assert leaf._history is not None
    return leaf._history


def test_labels_that_do_not_pay_are_dropped() -> None:
    x = np.random.default_rng(0).random((400, 6)).astype(np.float32)
    model = DCKMeans(8, 4, random_state=0, bounds=(0, 1)).fit(x)
    order = np.random.default_rng(1).permutation(400)[:60].tolist()
    for unit in order:
        model.delete(unit)
    assert not any(leaf._history for leaf in leaves_of(model))
    check(model, x)


@pytest.mark.parametrize(
    "through", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), through_joblib]
)
def test_copies_have_rows_of_their_own(through: Callable[[DCKMeans], DCKMeans]) -> None:
    x = apart(2000)
    model = DCKMeans(4, 4, random_state=0, bounds=(-1, 4)).fit(x)
    model.delete(3)
    twin = through(model)
    for unit in range(4, 20):
        twin.delete(unit)
    check(twin, x)
    check(model, x)
    assert (model.n_rows_, twin.n_rows_) == (1999, 1983)
    # Rows are pickled once: beside them and the records there is what is kept of each row.
    kept = sum(array.nbytes for leaf in leaves_of(model) for array in history_of(leaf)._steps)
    plain = DCKMeans(4, 4, random_state=0, bounds=(-1, 4), provenance="none").fit(x)
    assert len(pickle.dumps(model)) - kept < 1.2 * len(pickle.dumps(plain))


def test_leaves_with_fewer_rows_than_centroids(monkeypatch: pytest.MonkeyPatch) -> None:
    x = apart(30)
    model = DCKMeans(4, 16, random_state=0, bounds=(-1, 4)).fit(x)
    assert not all(leaf._history for leaf in leaves_of(model))
    for unit in range(29):
        model.delete(unit)
        check(model, x)
    model.delete(29)
    assert model.empty_


@pytest.mark.parametrize("where", ["history.delete_packed", "divided_estimator.climb"])
def test_interrupted_it_is_completed_by_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    x = apart(1000)
    model = DCKMeans(4, 4, random_state=0, bounds=(-1, 4)).fit(x)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"expunge.pipeline.{where}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.delete(5)
    assert model.delete(6).rows == 1 and model.n_rows_ == 998
    check(model, x)


@pytest.mark.parametrize("given", ["all", None, 1])
def test_other_provenances_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="must be labels or none"):
        DCKMeans(4, provenance=given).fit(apart(100))
