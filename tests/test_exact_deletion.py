"""delete(fit(D), R) equals fit(D minus R), bit for bit, on thousands of small random problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refit, same, small_rows

from expunge.pipeline.clusterers import KMeans, QKMeans


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, KMeans, list[list[int]]]:
    n = draw(st.integers(1, 300) if draw(st.booleans()) else st.integers(1, 12))
    d = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = draw(small_rows(n, d, rng))
    if draw(st.booleans()):
        x[:, rng.integers(d)] = -1.5
    units = rng.permutation(n * 3)[:n] if draw(st.booleans()) else rng.integers(0, n, n)
    k = draw(st.integers(1, min(8, n)))
    state = draw(st.integers(0, 10_000))
    max_iter = draw(st.sampled_from([0, 1, 3, 10]))
    bounds = draw(st.sampled_from([None, None, None, (-1.0, 2.0)]))
    kept = draw(st.sampled_from(["labels", "labels", "none"]))
    model: KMeans
    if draw(st.booleans()):
        model = KMeans(k, max_iter, state, bounds=bounds, provenance=kept)
    else:
        epsilon = draw(st.sampled_from([None, 0.0, 1e-3, 0.05, 0.3, 1.0]))
        gamma = draw(st.sampled_from([0.0, 0.2, 1.0]))
        model = QKMeans(k, epsilon, gamma, max_iter, state, bounds=bounds, provenance=kept)
    batches = draw(
        st.lists(st.lists(st.integers(0, n * 3), min_size=0, max_size=40), min_size=1, max_size=4)
    )
    return x.astype(np.float32), units.astype(np.int64), model, batches


def kinds_of_units(
    model: KMeans, x: np.ndarray, units: np.ndarray, numbers: list[int]
) -> np.ndarray:
    """Turn numbers into units to delete, with a leaning to seeds, extremes and whole clusters."""
    live = model._rows.units >= 0
    chosen = np.array(numbers, np.int64)
    if not live.any() or not numbers:
        return chosen
    kind = numbers[0] % 5
    if kind == 0:
        drawn = model.record_.steps[0].centroids.drawn[:, 0]
        chosen = drawn[drawn >= 0][: 1 + numbers[-1] % 3]
    elif kind == 1:
        chosen = units[live][np.argmax(x[live, 0])][np.newaxis]
    elif kind == 2:
        labels = model.predict(x[live])
        chosen = units[live][labels == labels[numbers[-1] % len(labels)]]
    elif kind == 3 and len(numbers) > 20:
        chosen = units
    return chosen


@settings(max_examples=2000, deadline=None)
@given(problems())
def test_delete_equals_fit_without(
    problem: tuple[np.ndarray, np.ndarray, KMeans, list[list[int]]],
) -> None:
    x, units, model, batches = problem
    model.fit(x, units=units)
    for numbers in batches:
        gone = kinds_of_units(model, x, units, numbers)
        before = model.n_rows_
        done = model.delete(gone)
        kept = model._rows.units >= 0
        assert before - done.rows == kept.sum() == model.n_rows_
        assert not np.isin(units[kept], gone).any()
        same(model.record_, refit(x[kept], units[kept], model._settings))
        assert model.empty_ == (not kept.any())


@settings(max_examples=150, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_one_batch_equals_one_by_one_in_any_order(
    problem: tuple[np.ndarray, np.ndarray, KMeans, list[list[int]]], random: object
) -> None:
    x, units, model, batches = problem
    gone = sorted({u for numbers in batches for u in numbers})
    together = model.fit(x, units=units)
    together.delete(gone)
    record = together.record_
    order = list(gone)
    random.shuffle(order)  # type: ignore[attr-defined]
    single = model.fit(x, units=units)
    for unit in order:
        single.delete(unit)
    same(record, single.record_)


def test_most_deletions_leave_a_quantized_model_unchanged() -> None:
    """The point of the method: a delete that always refits would pass every other test."""
    rng = np.random.default_rng(5)
    x = (rng.integers(0, 4, (4000, 1)) + rng.normal(0, 0.15, (4000, 5))).astype(np.float32)
    model = QKMeans(4, epsilon=0.02, random_state=3).fit(x)
    done = [model.delete(int(u)) for u in rng.choice(4000, 200, replace=False)]
    actions = [d.action for d in done]
    assert actions.count("unchanged") >= 150
    assert all(d.passes == 0 and d.first_step is None for d in done if d.action == "unchanged")
    resumed = [d for d in done if d.action == "resumed"]
    assert all(d.first_step is not None for d in resumed)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_deleted_seed_is_drawn_again_from_its_stage_on(stage: int) -> None:
    rng = np.random.default_rng(11)
    x = rng.random((500, 3)).astype(np.float32)
    model = QKMeans(4, epsilon=0.1, random_state=1).fit(x)
    before = model.record_.steps[0].centroids.drawn.copy()
    done = model.delete(int(before[stage, 0]))
    after = model.record_.steps[0].centroids.drawn
    assert done.action == "resumed" and done.first_step == 0
    np.testing.assert_array_equal(after[:stage], before[:stage])
    assert after[stage, 0] != before[stage, 0]


def test_an_extreme_row_retrains_and_user_given_bounds_avoid_it() -> None:
    rng = np.random.default_rng(2)
    x = rng.random((300, 2)).astype(np.float32)
    extreme = int(np.argmax(x[:, 0]))
    assert QKMeans(3, 0.3, random_state=0).fit(x).delete(extreme).action == "retrained"
    fixed = QKMeans(3, 0.3, random_state=0, bounds=(0.0, 1.0)).fit(x)
    assert fixed.delete(extreme).action != "retrained"


def test_deleting_every_row_leaves_an_empty_model_that_says_so() -> None:
    x = np.random.default_rng(0).random((20, 2))
    model = KMeans(3, random_state=0).fit(x)
    assert model.delete(range(20)).rows == 20
    assert model.empty_ and model.n_rows_ == 0
    with pytest.raises(ValueError, match="empty"):
        model.predict(x)
    assert model.delete([1, 2]).ignored == 2


def test_deleted_rows_are_gone_from_the_models_own_memory() -> None:
    x = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    model = KMeans(3, random_state=0).fit(x)
    model.delete([4, 9, 0, 49])
    assert not model._rows.x[[4, 9]].any() and not model._rows._fixed[[4, 9]].any()
    assert not np.isin([0, 4, 9, 49], model._index._ids).any()
    assert model.delete([0, 4, 5, 48]).rows == 2


def test_an_interrupted_delete_is_completed_by_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(0).random((100, 2)).astype(np.float32)
    model = KMeans(3, random_state=0, provenance="none").fit(x)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("expunge.pipeline.clusterers.delete_rows", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.delete(5)
    assert model.delete(5).ignored == 1
    kept = np.delete(np.arange(100), 5)
    same(model.record_, refit(x[kept], kept, model._settings))


@pytest.mark.parametrize("which", ["seed", "bound"])
def test_an_interrupted_replay_is_completed_by_whatever_comes_next(
    monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    x = np.random.default_rng(0).random((100, 2)).astype(np.float32)
    model = KMeans(3, random_state=0).fit(x)
    drawn = model.record_.steps[0].centroids.drawn
    gone = int(drawn[1, 0]) if which == "seed" else int(np.argmax(x[:, 0]))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("expunge.pipeline.quantized.seed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.delete(gone)
    kept = np.delete(np.arange(100), gone)
    same(model.record_, refit(x[kept], kept, model._settings))
    assert model.delete(gone).ignored == 1
    assert not model._rows.x[gone].any()


@pytest.mark.parametrize(
    ("arguments", "rows", "message"),
    [
        ({"n_clusters": 5}, [[1.0], [2.0]], "only 2 rows"),
        ({"n_clusters": 0}, [[1.0]], "at least 1"),
        ({"n_clusters": 1, "epsilon": -0.1}, [[1.0]], "epsilon is -0.1"),
        ({"n_clusters": 1, "epsilon": float("nan")}, [[1.0]], "epsilon is nan"),
        ({"n_clusters": 1, "gamma": 2.0}, [[1.0]], "gamma"),
        ({"n_clusters": 1, "max_iter": -1}, [[1.0]], "max_iter"),
        ({"n_clusters": 1, "bounds": (1.0, 1.0)}, [[1.0]], "bounds"),
        ({"n_clusters": 1}, [[1.0], [float("nan")]], r"X\[1, 0\] is nan"),
        ({"n_clusters": 1}, [[1.0], [1e39]], r"X\[1, 0\] is 1e\+39"),
        ({"n_clusters": 1}, [1.0, 2.0], "dimensions"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, float], rows: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QKMeans(random_state=0, **arguments).fit(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("units", [[0], [-1, 2], [0.5, 1.0], [[0], [1]]])
def test_bad_units_are_refused(units: list[float]) -> None:
    with pytest.raises(ValueError, match="unit"):
        KMeans(1, random_state=0).fit([[1.0], [2.0]], units=units)


def test_an_unfitted_model_says_so() -> None:
    with pytest.raises(ValueError, match="not fitted"):
        KMeans().predict([[1.0]])
    with pytest.raises(ValueError, match="not fitted"):
        _ = KMeans().record_
