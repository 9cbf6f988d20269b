"""DC-k-means: delete(fit(D), R) equals fit(D minus R), bit for bit; leaves are drawn as they should."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import small_rows
from test_real_data_exact import FILES, differences, rows_of

from expunge import DCKMeans, KMeans
from expunge.pipeline.divided import (
    CUBE,
    DividedRecord,
    DividedSettings,
    rule_of_thumb_leaves,
    unit_hashes,
)
from expunge.pipeline.divided_estimator import by_leaf, fit_tree

TREES: list[dict[str, Any]] = [
    {"n_leaves": 1},
    {"n_leaves": 2},
    {"n_leaves": 4},
    {"n_leaves": 16},
    {"n_leaves": None},
    {"branching": [2, 2]},
    {"branching": [2, 1, 4]},
    {"n_leaves": 16, "branching": [8, 2]},
]


def refit(
    x: np.ndarray, units: np.ndarray, config: DividedSettings, hashes: np.ndarray | None = None
) -> DividedRecord:
    """Train from nothing with resolved settings; fewer rows than clusters are allowed."""
    placed = unit_hashes(units, config.plain.random_state) if hashes is None else hashes
    return fit_tree(*by_leaf(x.copy(), units.copy(), placed, config.n_leaves), config)[0]


def in_another_order(units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An order of the rows that keeps the rows of a unit in theirs."""
    names, number = np.unique(units, return_inverse=True)
    order: np.ndarray = np.argsort(rng.permutation(len(names))[number], kind="stable")
    return order


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, DCKMeans, list[list[int]]]:
    n = draw(st.integers(1, 200) if draw(st.booleans()) else st.integers(1, 12))
    d = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = draw(small_rows(n, d, rng))
    units = rng.permutation(n * 3)[:n] if draw(st.booleans()) else rng.integers(0, n, n)
    model = DCKMeans(
        draw(st.integers(1, min(6, n))),
        max_iter=draw(st.sampled_from([0, 1, 3, 10])),
        random_state=draw(st.integers(0, 10_000)),
        root=draw(st.sampled_from(["unweighted", "weighted"])),
        bounds=draw(st.sampled_from([None, None, None, (-1.0, 2.0)])),
    ).set_params(**draw(st.sampled_from(TREES)))
    batches = draw(
        st.lists(st.lists(st.integers(0, n * 3), min_size=0, max_size=40), min_size=1, max_size=4)
    )
    return x.astype(np.float32), units.astype(np.int64), model, batches


def chosen(model: DCKMeans, numbers: list[int]) -> np.ndarray:
    """Turn numbers into units to delete, with a leaning to seeds, extremes and whole leaves."""
    units, x, edges = model._rows.units, model._rows.x, model._edges
    live = units >= 0
    gone = np.array(numbers, np.int64)
    if not live.any() or not numbers:
        return gone
    kind = numbers[0] % 5
    leaf = numbers[-1] % model.n_leaves_
    if kind == 0:
        record = model.record_.leaves[leaf]
        if not record.empty:
            drawn = record.steps[0].centroids.drawn[:, 0]
            gone = drawn[drawn >= 0][: 1 + numbers[-1] % 3]
    elif kind == 1:
        gone = units[live][np.argmax(x[live, 0])][np.newaxis]
    elif kind == 2:
        gone = units[edges[leaf] : edges[leaf + 1]]
        gone = gone[gone >= 0]
    elif kind == 3 and len(numbers) > 20:
        gone = units[live]
    return gone


@settings(max_examples=2000, deadline=None)
@given(problems())
def test_delete_equals_fit_without(
    problem: tuple[np.ndarray, np.ndarray, DCKMeans, list[list[int]]],
) -> None:
    x, units, model, batches = problem
    model.fit(x, units=units)
    kept = np.ones(len(units), np.bool_)
    for numbers in batches:
        gone = chosen(model, numbers)
        missing = len(np.setdiff1d(gone, units[kept]))
        left = kept & ~np.isin(units, gone)
        done = model.delete(gone)
        assert (done.rows, done.ignored) == (kept.sum() - left.sum(), missing)
        kept = left
        assert model.n_rows_ == kept.sum()
        order = np.flatnonzero(kept)[in_another_order(units[kept], np.random.default_rng(0))]
        expected = refit(x[order], units[order], model._settings)
        assert list(differences(model.record_, expected)) == []
        assert model.empty_ == (not kept.any())
        if not model.empty_:
            assert model.inertia_ == pytest.approx(-model.score(x[kept]), rel=1e-12, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_one_batch_equals_one_by_one_in_any_order(
    problem: tuple[np.ndarray, np.ndarray, DCKMeans, list[list[int]]], random: Any
) -> None:
    x, units, model, batches = problem
    gone = sorted({u for numbers in batches for u in numbers})
    model.fit(x, units=units).delete(gone)
    record = model.record_
    random.shuffle(gone)
    model.fit(x, units=units)
    for unit in gone:
        model.delete(unit)
    assert list(differences(record, model.record_)) == []


def blobs(n: int, d: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x: np.ndarray = rng.integers(0, 4, (n, 1)) + rng.normal(0, 0.3, (n, d))
    return x.astype(np.float32)


@pytest.mark.parametrize(
    "tree", [{"n_leaves": 32}, {"n_leaves": 16, "root": "weighted"}, {"branching": [4, 4]}]
)
@pytest.mark.parametrize("name", ["celltype", "covtype"])
def test_real_data(name: str, tree: dict[str, Any]) -> None:
    """Twenty batches, each against a refit; about two rows in three share their unit."""
    x = rows_of(name)
    rng = np.random.default_rng(len(x))
    units = rng.integers(0, len(x), len(x))
    model = DCKMeans(FILES[name][-1], random_state=1).set_params(**tree).fit(x, units=units)
    kept = np.ones(len(x), np.bool_)
    leaves = []
    for number in range(20):
        live = np.unique(units[kept])
        size = 1 if number % 3 == 0 else min(round(500 ** rng.random()), len(live))
        gone = rng.choice(live, size, replace=False)
        if number % 5 == 3:
            gone = np.append(gone, units[kept][np.argmax(x[kept, rng.integers(x.shape[1])])])
        done = model.delete(gone)
        kept &= ~np.isin(units, gone)
        assert list(differences(model.record_, refit(x[kept], units[kept], model._settings))) == []
        leaves.append(done.leaves)
    assert 1 in leaves


def test_the_root_is_k_means_of_the_leaves_centroids() -> None:
    """One leaf's centroids, clustered again, are themselves: the tree adds nothing of its own."""
    x = blobs(400)
    model = DCKMeans(4, 1, random_state=3).fit(x)
    leaf = model.record_.leaves[0].final.centroids.quantized
    root = model.record_.upper.root.final.centroids.quantized
    assert sorted(map(tuple, leaf.tolist())) == sorted(map(tuple, root.tolist()))
    assert model.inertia_ == pytest.approx(model.record_.leaves[0].final.loss / 2.0**48)


def test_it_clusters_nearly_as_well_as_k_means() -> None:
    x = blobs(5000)
    plain = KMeans(4, random_state=0).fit(x).inertia_
    for root in ("unweighted", "weighted"):
        assert DCKMeans(4, 16, random_state=0, root=root).fit(x).inertia_ < 1.1 * plain


# The estimator


def test_settings_are_resolved_at_fit_and_kept() -> None:
    assert [rule_of_thumb_leaves(n) for n in (1, 100, 7000, 100_000, 40_000_000)] == [
        1,
        4,
        16,
        32,
        256,
    ]
    x = np.random.default_rng(0).random((2000, 2))
    model = DCKMeans(2, random_state=0).fit(x)
    assert model.n_leaves_ == 8 and model.n_leaves is None
    model.delete(range(1900))
    assert model.n_leaves_ == 8
    kept = np.arange(1900, 2000)
    expected = refit(x[kept].astype(np.float32), kept, model._settings)
    assert list(differences(model.record_, expected)) == []
    assert model._settings.leaf_settings[3].bounds == CUBE
    states = {s.random_state for s in (*model._settings.leaf_settings, model._settings.node(0, 0))}
    assert len(states) == 9


def test_nodes_of_a_tree_have_randomness_of_their_own() -> None:
    tree = DCKMeans(1, branching=[2, 4], random_state=0).fit(np.eye(8))._settings
    nodes = [tree.node(0, 0), *(tree.node(1, i) for i in range(2)), *tree.leaf_settings]
    assert len({n.random_state for n in nodes}) == 11
    # A node's path names it: the leaf (1, 2) of [2, 4] is that of [2, 8] as well.
    other = DCKMeans(1, branching=[2, 8], random_state=0).fit(np.eye(8))._settings
    assert tree.node(2, 1 * 4 + 2) == other.node(2, 1 * 8 + 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_leaves": 12}, "n_leaves is 12; a power of two"),
        ({"n_leaves": 0}, "n_leaves is 0; a power of two"),
        ({"n_leaves": 8.0}, "n_leaves is 8.0; a whole number"),
        ({"n_leaves": 1 << 17}, "131072 leaves"),
        ({"branching": [4, 3]}, "branching is 3; a power of two"),
        ({"branching": []}, "branching is empty"),
        ({"n_leaves": 8, "branching": [2, 2]}, r"branching \[2, 2\] makes 4"),
        ({"root": "heavy"}, "root is 'heavy'; it must be unweighted or weighted"),
        ({"n_clusters": 21}, "only 20 rows"),
        ({"max_iter": -1}, "max_iter"),
        ({"bounds": (1.0, 0.0)}, "bounds"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"n_clusters": 2, "random_state": 0, **arguments}
    with pytest.raises(ValueError, match=message):
        DCKMeans(**given).fit(np.zeros((20, 1)))


def test_it_has_the_face_of_the_other_estimators() -> None:
    x = blobs(300)
    model = DCKMeans(4, 8, random_state=0).fit(x)
    assert DCKMeans(**model.get_params()).fit(x).inertia_ == model.inertia_
    assert model.n_rows_ == 300 and not model.empty_ and model.n_iter_ >= 1
    labels = model.predict(x)
    low, high = x.min(axis=0), x.max(axis=0)
    gap = ((x - low) / (high - low))[:, np.newaxis] - (model.cluster_centers_ - low) / (high - low)
    distances = (gap**2).sum(axis=2)
    np.testing.assert_array_equal(labels, distances.argmin(axis=1))
    assert model.inertia_ == pytest.approx(distances.min(axis=1).sum(), rel=1e-5)
    with pytest.raises(ValueError, match="not fitted"):
        DCKMeans().predict(x)
    with pytest.raises(ValueError, match="not fitted"):
        _ = DCKMeans().n_leaves_
    with pytest.raises(ValueError, match="not fitted"):
        _ = DCKMeans().record_


def test_deleted_rows_are_gone_from_the_models_own_memory() -> None:
    x = np.random.default_rng(0).random((60, 2)).astype(np.float32) + 1
    model = DCKMeans(2, 4, random_state=0).fit(x)
    twin = copy.copy(model)
    gone = [4, 9, 0, 59]
    model.delete(gone)
    rows = model._rows
    assert not np.isin(rows.units, gone).any() and not np.isin(model._index._ids, gone).any()
    assert (rows.x[rows.units < 0] == 0).all() and (rows._fixed[rows.units < 0] == 0).all()
    assert not np.isin(x[gone], rows.x).any()
    assert twin.n_rows_ == 60 and twin.delete(gone).rows == 4


def test_an_interrupted_delete_is_completed_by_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(0).random((100, 2)).astype(np.float32)
    model = DCKMeans(3, 4, random_state=0).fit(x)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("expunge.pipeline.divided_estimator.climb", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.delete(5)
    assert model.delete(5).ignored == 1 and not model._rows.x[model._rows.units < 0].any()
    kept = np.delete(np.arange(100), 5)
    assert list(differences(model.record_, refit(x[kept], kept, model._settings))) == []


def test_an_extreme_row_retrains_and_user_given_bounds_avoid_it() -> None:
    x = np.random.default_rng(2).random((300, 2)).astype(np.float32)
    extreme = int(np.argmax(x[:, 0]))
    done = DCKMeans(3, 4, random_state=0).fit(x).delete(extreme)
    assert (done.action, done.leaves, done.nodes) == ("retrained", 4, 1)
    assert "feature 0" in done.reason and done.passes > 4 * 5
    for provenance, action in (("labels", "replayed"), ("none", "resumed")):
        fixed = DCKMeans(3, 4, random_state=0, bounds=(0.0, 1.0), provenance=provenance).fit(x)
        done = fixed.delete(extreme)
        assert (done.action, done.leaves, done.passes > 0) == (action, 1, action == "resumed")


def test_several_rows_of_a_unit_share_a_leaf_and_go_together() -> None:
    x = blobs(90)
    units = np.arange(90) % 30
    model = DCKMeans(2, 8, random_state=0).fit(x, units=units)
    here = model._rows.units == 7
    np.testing.assert_array_equal(model._rows.ordinals[here], [0, 1, 2])
    np.testing.assert_array_equal(model._rows.x[here], x[[7, 37, 67]])
    done = model.delete(7)
    assert (done.rows, done.leaves) == (3, 1)
