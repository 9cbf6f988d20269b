"""DC-k-means: leaves are drawn as they should, only those that lost a row are read, pooled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_divided import blobs, refit
from test_real_data_exact import differences

from expunge import DCKMeans
from expunge.pipeline.arrays import GridPasses
from expunge.pipeline.divided import Pooled, PooledPasses, leaf_of, unit_hashes
from expunge.pipeline.fixedpoint import ROW_GRID, Scaling
from expunge.pipeline.quantized import SEED, Draw


def test_leaves_follow_the_multinomial_law() -> None:
    """Counts over leaves are multinomial: neither lumpy nor an equal split."""
    n, w = 4096, 16
    units = np.arange(n)
    found = []
    for state in range(300):
        counts = np.bincount(leaf_of(unit_hashes(units, state), w), minlength=w)
        assert counts.sum() == n
        found.append(((counts - n / w) ** 2 / (n / w)).sum())
    assert stats.kstest(found, stats.chi2(w - 1).cdf).pvalue > 0.01
    # An equal split has 0; a law with too little spread would fail the test above as well.
    assert min(found) > 1


def test_leaves_of_neighbouring_units_are_independent() -> None:
    w = 4
    leaf = leaf_of(unit_hashes(np.arange(80_001), 5), w)
    table = np.zeros((w, w))
    np.add.at(table, (leaf[:-1], leaf[1:]), 1)
    assert stats.chi2_contingency(table).pvalue > 0.01
    other = leaf_of(unit_hashes(np.arange(80_001), 6), w)
    table[:] = 0
    np.add.at(table, (leaf, other), 1)
    assert stats.chi2_contingency(table).pvalue > 0.01


def test_a_leaf_is_a_function_of_the_unit_alone() -> None:
    units = np.array([7, 3, 2**62, 0, 99])
    leaf = leaf_of(unit_hashes(units, 1), 1 << 16)
    for i, unit in enumerate(units):
        assert leaf_of(unit_hashes(np.array([unit]), 1), 1 << 16)[0] == leaf[i]
    # More leaves split leaves: the top bits stay.
    assert (leaf >> 12 == leaf_of(unit_hashes(units, 1), 16)).all()
    assert (leaf_of(unit_hashes(units, 1), 1) == 0).all()


def test_given_hashes_place_the_rows() -> None:
    x = blobs(100)
    hashes = (np.arange(100, dtype=np.uint64) % 4) << np.uint64(62)
    model = DCKMeans(3, 4, random_state=0).fit(x, hashes=hashes)
    assert [r.extent.rows for r in model.record_.leaves] == [25] * 4
    assert model.delete([5, 6]).leaves == 2
    kept = np.delete(np.arange(100), [5, 6])
    expected = refit(x[kept], kept, model._settings, hashes[kept])
    assert list(differences(model.record_, expected)) == []
    with pytest.raises(ValueError, match="different hashes"):
        DCKMeans(3, 4).fit(x, units=np.zeros(100, int), hashes=hashes)
    with pytest.raises(ValueError, match="uint64"):
        DCKMeans(3, 4).fit(x, hashes=np.arange(100))


def test_only_leaves_that_lost_a_row_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((4000, 3))
    model = DCKMeans(3, 16, random_state=0, provenance="none").fit(x)
    read: list[int] = []
    run = GridPasses._map

    def noted(self: GridPasses, work: Any) -> Any:
        start = (self.units.ctypes.data - model._rows.units.ctypes.data) // 8
        assert len(self.units) < 1000
        read.append(int(np.searchsorted(model._edges, start, "right")) - 1)
        return run(self, work)

    monkeypatch.setattr(GridPasses, "_map", noted)
    before = model.record_
    gone = [17, 18, 2000]
    homes = set(leaf_of(unit_hashes(np.array(gone), 0), 16).tolist())
    done = model.delete(gone)
    assert set(read) == homes and done.leaves == len(homes) and done.nodes == 1
    assert done.passes == len(read) > 0 and done.action == "resumed"
    for leaf, record in enumerate(model.record_.leaves):
        assert (record is before.leaves[leaf]) == (leaf not in homes)
    read.clear()
    assert model.delete([17, 5000]).ignored == 2 and not read


def test_only_nodes_above_a_changed_leaf_are_run() -> None:
    x = np.random.default_rng(0).random((4000, 3))
    model = DCKMeans(3, branching=[4, 2, 2], random_state=0).fit(x)
    before = model.record_.upper
    leaf = int(leaf_of(unit_hashes(np.array([17]), 0), 16)[0])
    done = model.delete(17)
    after = model.record_.upper
    assert (done.leaves, done.nodes) == (1, 3)
    for depth, index in ((1, leaf // 4), (2, leaf // 2)):
        for i, (old, new) in enumerate(zip(before.levels[depth], after.levels[depth], strict=True)):
            assert (old is new) == (i != index)


def test_a_leaf_whose_centroids_stand_leaves_the_root_alone() -> None:
    """Rows of few distinct values: each is a centroid, whichever copy of it goes."""
    x = np.repeat(np.arange(3.0), 100)[:, np.newaxis]
    model = DCKMeans(3, 2, random_state=0).fit(x)
    root = model.record_.upper.root
    done = model.delete(int(np.argmax(~np.isin(np.arange(300), seeds_of(model)))))
    assert (done.action, done.leaves, done.nodes) == ("unchanged", 1, 0)
    assert model.record_.upper.root is root
    weighted = DCKMeans(3, 2, random_state=0, root="weighted").fit(x)
    done = weighted.delete(int(np.argmax(~np.isin(np.arange(300), seeds_of(weighted)))))
    assert (done.action, done.nodes) == ("unchanged", 1)


def seeds_of(model: DCKMeans) -> np.ndarray:
    return np.concatenate([r.steps[0].centroids.drawn[:, 0] for r in model.record_.leaves])


# Pooled rows


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Pooled], np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d, w = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    children = []
    for _ in range(w):
        m = int(rng.integers(0, 5))
        grid = rng.integers(0, 3 if draw(st.booleans()) else 1 << 23, (m, d)) * 2
        ordinals = np.sort(rng.permutation(6)[:m])
        children.append(Pooled(grid.astype(np.int32), ordinals, rng.integers(0, 5, m)))
    k = draw(st.integers(1, 5))
    centroids = rng.integers(0, 3 if draw(st.booleans()) else 1 << 23, (k, d))
    return children, centroids


CUBE_SCALING = Scaling.between(np.zeros(1, np.float32), np.ones(1, np.float32))


@settings(max_examples=500, deadline=None)
@given(pools(), st.integers(0, 50))
def test_unweighted_pooled_rows_are_rows_like_others(
    pool: tuple[list[Pooled], np.ndarray], state: int
) -> None:
    children, centroids = pool
    passes = PooledPasses(children, weighted=False)
    rows = GridPasses(passes._rows, passes._units, passes._ordinals)
    present = np.random.default_rng(state).random(len(centroids)) < 0.8
    present[0] = True
    assert list(differences(passes.extent(), rows.extent())) == []
    assert passes.square_sum(CUBE_SCALING) == rows.square_sum(CUBE_SCALING)
    for centres in (centroids[:0], centroids * 2):
        draw = Draw(SEED, 0, 3)
        first = passes.race(CUBE_SCALING, draw, state, centres)
        assert list(differences(first, rows.race(CUBE_SCALING, draw, state, centres))) == []
    one, other = (p.assign(CUBE_SCALING, centroids, present) for p in (passes, rows))
    assert list(differences(one, other)) == []


@settings(max_examples=200, deadline=None)
@given(pools())
def test_weighted_pooled_rows_count_as_often(pool: tuple[list[Pooled], np.ndarray]) -> None:
    children, centroids = pool
    passes = PooledPasses(children, weighted=True)
    many = np.repeat(passes._rows, passes._weights, axis=0)
    none = np.zeros(len(many), np.int64)
    rows = GridPasses(many, none, none)
    present = np.ones(len(centroids), np.bool_)
    assert list(differences(passes.extent(), rows.extent())) == []
    assert passes.square_sum(CUBE_SCALING) == rows.square_sum(CUBE_SCALING)
    one, other = (p.assign(CUBE_SCALING, centroids, present) for p in (passes, rows))
    assert list(differences(one, other)) == []


@pytest.mark.parametrize("stage", [0, 1])
def test_a_weighted_race_follows_its_law(stage: int) -> None:
    """P = w D^2 / sum of w D^2; weight 0 never wins."""
    grid = np.array([0, 1, 2, 3, 4], np.int32)[:, np.newaxis] << 20
    weights = np.array([3, 0, 2, 1, 5])
    passes = PooledPasses([Pooled(grid, np.arange(5), weights)], weighted=True)
    centres = grid[:stage].astype(np.int64)
    rates = weights * (np.arange(5.0) ** 2 if stage else 1)
    winners = []
    for state in range(4000):
        winner = passes.race(CUBE_SCALING, Draw(SEED, 0, stage), state, centres)
        assert winner is not None
        winners.append(winner.ordinal)
    counts = np.bincount(winners, minlength=5)
    assert not counts[rates == 0].any()
    expected = rates[rates > 0] / rates.sum() * 4000
    assert stats.chisquare(counts[rates > 0], expected).pvalue > 0.01


def test_weights_of_huge_clusters_do_not_overflow() -> None:
    d = 784
    rows = np.array([np.zeros(d), np.full(d, ROW_GRID)], np.int32)
    weights = np.array([40_000_000, 40_000_000])
    passes = PooledPasses([Pooled(rows, np.arange(2), weights)], weighted=True)
    assert passes.square_sum(CUBE_SCALING) == 40_000_000 * d * ROW_GRID**2
    winner = passes.race(CUBE_SCALING, Draw(SEED, 0, 1), 0, rows[:1].astype(np.int64))
    assert winner is not None and winner.ordinal == 1 and winner.key > 0
    tally = passes.assign(CUBE_SCALING, np.zeros((1, d), np.int64), np.ones(1, np.bool_))
    assert tally.sums[0, 0] == 40_000_000 * ROW_GRID
