"""The fused pass against brute force in integers: labels, counts and sums, ties and near-ties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from support import same

from expunge import KMeans
from expunge.pipeline import arrays, lloyd
from expunge.pipeline.fixedpoint import CENTROID_GRID, ROW_GRID, Scaling, extent_of
from expunge.pipeline.lanes import LANES
from expunge.pipeline.lloyd import Tally, assign, relative_error, square_sum


def brute_labels(fixed: np.ndarray, centroids: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The nearest present centroid of every row by int64 distances; ties to the lowest index."""
    labels = np.empty(len(fixed), np.int64)
    for i, row in enumerate(fixed.astype(np.int64)):
        distances = ((row - 2 * centroids) ** 2).sum(axis=1)
        distances[~present] = np.iinfo(np.int64).max
        labels[i] = np.argmin(distances)
    return labels


def check(
    fixed: np.ndarray, units: np.ndarray, centroids: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """Fail unless ``assign`` agrees with brute force on labels, counts and sums; return labels."""
    k, d = centroids.shape
    labels = np.full(len(fixed), -7, np.int32)
    tally = assign(fixed, units, None, centroids, present, labels)
    live = units >= 0
    expected = brute_labels(fixed[live], centroids, present)
    np.testing.assert_array_equal(labels[live], expected)
    assert (labels[~live] == -7).all(), "a hole got a label"
    np.testing.assert_array_equal(tally.sizes, np.bincount(expected, minlength=k))
    sums = np.zeros((k, d), np.int64)
    np.add.at(sums, expected, fixed[live].astype(np.int64))
    np.testing.assert_array_equal(tally.sums, sums)
    without = assign(fixed, units, None, centroids, present)
    same_tally(without, tally)
    return labels


def same_tally(one: Tally, other: Tally) -> None:
    np.testing.assert_array_equal(one.sizes, other.sizes)
    np.testing.assert_array_equal(one.sums, other.sums)


def grid_rows(rng: np.random.Generator, n: int, d: int, kind: str) -> np.ndarray:
    """Rows on the row grid: anywhere, on few values (ties), or within a few steps of the middle."""
    if kind == "random":
        return rng.integers(0, ROW_GRID + 1, (n, d), dtype=np.int32)
    if kind == "tied":
        return (rng.integers(0, 3, (n, d)) * (ROW_GRID // 2)).astype(np.int32)
    return (ROW_GRID // 2 + rng.integers(-3, 4, (n, d))).astype(np.int32)


def grid_centroids(rng: np.random.Generator, k: int, d: int, kind: str) -> np.ndarray:
    """Centroids of the same kind, some of them outside [0, 1]."""
    if kind == "random":
        return rng.integers(-CENTROID_GRID // 2, 3 * CENTROID_GRID // 2, (k, d))
    if kind == "tied":
        return rng.integers(0, 3, (k, d)) * (CENTROID_GRID // 2)
    return CENTROID_GRID // 2 + rng.integers(-2, 3, (k, d))


@pytest.mark.parametrize("kind", ["random", "tied", "near"])
@pytest.mark.parametrize(("n", "d"), [(150, 1), (200, 2), (129, 28), (70, 784)])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_assign_is_brute_force(kind: str, n: int, d: int, k: int) -> None:
    rng = np.random.default_rng([n, d, k])
    units = np.where(rng.random(n) < 0.2, -1, rng.integers(0, 9, n))
    present = np.ones(k, np.bool_)
    check(grid_rows(rng, n, d, kind), units, grid_centroids(rng, k, d, kind), present)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 140),
    st.integers(1, 5),
    st.integers(1, 8),
    st.sampled_from(["random", "tied", "near"]),
    st.integers(0, 2**32 - 1),
)
def test_assign_is_brute_force_with_equal_and_absent_centroids(
    n: int, d: int, k: int, kind: str, state: int
) -> None:
    rng = np.random.default_rng(state)
    centroids = grid_centroids(rng, k, d, kind)
    centroids = centroids[rng.integers(0, k, k)]
    present = rng.random(k) < 0.7
    present[rng.integers(k)] = True
    units = np.where(rng.random(n) < 0.3, -1, np.arange(n))
    check(grid_rows(rng, n, d, kind), units, centroids, present)


def test_ties_go_to_the_lowest_index_in_whatever_order_the_centroids_stand() -> None:
    row = np.array([[ROW_GRID // 2, ROW_GRID // 2]], np.int32)
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) * CENTROID_GRID
    for shift in range(4):
        centroids = np.roll(corners, shift, axis=0)
        labels = check(row, np.zeros(1, np.int64), centroids, np.ones(4, np.bool_))
        assert labels[0] == 0
    present = np.array([False, False, True, True])
    assert check(row, np.zeros(1, np.int64), corners, present)[0] == 2


def test_equal_centroids_leave_all_rows_to_the_first() -> None:
    rng = np.random.default_rng(0)
    rows = grid_rows(rng, 100, 3, "random")
    centroids = np.tile(grid_centroids(rng, 1, 3, "random"), (4, 1))
    present = np.array([False, True, True, True])
    assert (check(rows, np.arange(100), centroids, present) == 1).all()


def test_no_rows_and_only_holes_give_nothing() -> None:
    centroids, present = np.zeros((2, 3), np.int64), np.ones(2, np.bool_)
    check(np.empty((0, 3), np.int32), np.empty(0, np.int64), centroids, present)
    check(np.full((70, 3), 5, np.int32), np.full(70, -1), centroids, present)


def near_ties(cases: int, d: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Rows with two centroids at almost the same distance: (row, centroids, nearest).

    The second centroid has the first one's offsets in another order, so that float32 rounds the
    sum of the same squares otherwise; one offset is then moved by a grid step to decide.
    """
    rng = np.random.default_rng(7)
    made = []
    for _ in range(cases):
        row = rng.integers(ROW_GRID // 4, 3 * ROW_GRID // 4, d) // 2 * 2
        offsets = rng.integers(-CENTROID_GRID // 5, CENTROID_GRID // 5, d)
        other = rng.permutation(offsets)
        other[0] += 1 if rng.random() < 0.5 else -1
        centroids = row // 2 + np.stack([offsets, other])
        first, second = ((row - 2 * centroids) ** 2).sum(axis=1).tolist()
        made.append((row.astype(np.int32), centroids, int(second < first)))
    return made


@pytest.mark.parametrize("d", [28, 784])
def test_float32_alone_is_wrong_on_near_ties_and_assign_is_right(d: int) -> None:
    wrong = 0
    nothing = np.empty(0)
    for row, centroids, nearest in near_ties(100, d):
        labels = check(row[np.newaxis], np.zeros(1, np.int64), centroids, np.ones(2, np.bool_))
        assert labels[0] == nearest
        # A negative tolerance never calls for integers: what is left is the float32 filter.
        lloyd.assign_rows(
            row[np.newaxis],
            np.zeros(1, np.int64),
            nothing,
            nothing,
            centroids * 2,
            -1.0,
            labels,
            np.empty(0, np.float32),
            np.zeros(2, np.int64),
            np.zeros((2, d), np.int64),
        )
        wrong += labels[0] != nearest
    assert wrong >= 10


@njit
def nearest(turned, centres, best, second, label):  # type: ignore[no-untyped-def]
    """Call the inlined function from interpreted code."""
    lloyd.nearest_of_block(turned, 0, turned, centres, best, second, label)


@pytest.mark.parametrize("d", [1, 7, 8, 9, 15, 16, 17, 28])
@pytest.mark.parametrize("k", [1, 3, 4, 5, 17])
def test_lanes_find_the_two_least_distances(d: int, k: int) -> None:
    rng = np.random.default_rng(100 * d + k)
    rows = rng.integers(0, 50, (LANES, d)).astype(np.int32)
    centres = rng.integers(0, 50, (k, d))
    turned = np.zeros((d, LANES), np.float32)
    turn(rows, turned)
    np.testing.assert_array_equal(turned, rows.T.astype(np.float32))
    best, second = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    label = np.empty(LANES, np.int32)
    nearest(turned, centres.astype(np.float32), best, second, label)
    exact = ((rows[:, np.newaxis] - centres) ** 2).sum(axis=2)
    np.testing.assert_array_equal(label, exact.argmin(axis=1))
    ordered = np.sort(np.c_[exact, np.full((LANES, 1), np.inf)], axis=1)
    np.testing.assert_array_equal(best, ordered[:, 0])
    np.testing.assert_array_equal(second, ordered[:, 1])


@njit
def turn(rows, turned):  # type: ignore[no-untyped-def]
    """Call the inlined function from interpreted code."""
    lloyd.turn_block(rows, turned)


@pytest.mark.parametrize("d", [1, 2, 28, 784, 3000])
@pytest.mark.parametrize("kind", ["random", "near"])
def test_float32_distances_err_by_less_than_a_quarter_of_the_tolerance(d: int, kind: str) -> None:
    """Two distances err, in opposite directions at worst; the filter allows twice that."""
    rng = np.random.default_rng(d)
    rows = grid_rows(rng, LANES, d, kind)
    turned = np.ascontiguousarray(rows.T.astype(np.float32))
    found, second = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    label = np.empty(LANES, np.int32)
    for centre in grid_centroids(rng, 5, d, kind) * 2:
        single = centre[np.newaxis].astype(np.float32)
        nearest(turned, single, found, second, label)
        assert not label.any() and np.isinf(second).all()
        exact = [lloyd.exact_distance(row, centre) for row in rows]
        brute = ((rows - centre) ** 2).sum(axis=1)
        np.testing.assert_array_equal(exact, brute)
        assert (np.abs(found.astype(np.float64) - brute) <= relative_error(d) / 4 * brute).all()
        np.testing.assert_array_equal(found == 0, brute == 0)


def raw_problem() -> tuple[np.ndarray, np.ndarray, Scaling, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(777, 5)) * [1, 10, 1e-3, 1e6, 0] + 4).astype(np.float32)
    extent = extent_of(x[:600])
    units = np.where(rng.random(777) < 0.1, -1, np.arange(777))
    x[units < 0] = np.nan
    centroids = rng.integers(0, CENTROID_GRID, (6, 5))
    present = np.array([True, True, False, True, True, True])
    return x, units, Scaling.between(extent.lower, extent.upper), centroids, present


def test_rows_as_stored_give_what_rows_on_the_grid_give() -> None:
    x, units, scaling, centroids, present = raw_problem()
    fixed = scaling.fixed(np.nan_to_num(x))
    stored, known = np.empty(777, np.int32), np.empty(777, np.int32)
    tally = assign(x, units, scaling, centroids, present, stored)
    same_tally(tally, assign(fixed, units, None, centroids, present, known))
    live = units >= 0
    np.testing.assert_array_equal(stored[live], known[live])
    check(fixed, units, centroids, present)
    assert square_sum(x, units, scaling) == square_sum(fixed, units, None)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 777), max_size=6))
def test_a_cell_cut_anywhere_merges_to_the_same_tally(cuts: list[int]) -> None:
    x, units, scaling, centroids, present = raw_problem()
    whole = assign(x, units, scaling, centroids, present)
    parts = Tally(np.zeros(6, np.int64), np.zeros((6, 5), np.int64))
    squares = 0
    for a, b in pairwise([0, *sorted(cuts), 777]):
        parts = parts + assign(x[a:b], units[a:b], scaling, centroids, present)
        squares += square_sum(x[a:b], units[a:b], scaling)
    same_tally(parts, whole)
    assert squares == square_sum(x, units, scaling)
    rest = whole - assign(x[:100], units[:100], scaling, centroids, present)
    same_tally(rest, assign(x[100:], units[100:], scaling, centroids, present))


def test_the_order_of_rows_does_not_matter() -> None:
    x, units, scaling, centroids, present = raw_problem()
    whole = assign(x, units, scaling, centroids, present)
    order = np.random.default_rng(0).permutation(777)
    for index in (np.arange(777)[::-1], order):
        turned = np.ascontiguousarray(x[index])
        same_tally(assign(turned, units[index], scaling, centroids, present), whole)
        assert square_sum(turned, units[index], scaling) == square_sum(x, units, scaling)


def test_padding_lanes_do_not_matter() -> None:
    """The last block is seldom full; its spare lanes hold what the block before left there."""
    x, _, scaling, centroids, present = raw_problem()
    x = np.nan_to_num(x)
    labels = np.empty(777, np.int32)
    assign(x, np.arange(777), scaling, centroids, present, labels)
    for n in range(1, 2 * LANES + 2):
        some = np.empty(n, np.int32)
        tally = assign(x[:n], np.arange(n), scaling, centroids, present, some)
        np.testing.assert_array_equal(some, labels[:n])
        np.testing.assert_array_equal(tally.sizes, np.bincount(labels[:n], minlength=6))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 90), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_the_square_sum_is_exact(n: int, d: int, state: int) -> None:
    rng = np.random.default_rng(state)
    fixed = grid_rows(rng, n, d, "random" if state % 2 else "tied")
    units = np.where(rng.random(n) < 0.3, -1, 0)
    expected = sum(v * v for row in fixed[units >= 0].tolist() for v in row)
    assert square_sum(fixed, units, None) == expected


def test_the_square_sum_goes_beyond_64_bits() -> None:
    fixed = np.full((1000, 100), ROW_GRID, np.int32)
    assert square_sum(fixed, np.zeros(1000, np.int64), None) == 1000 * 100 * 2**48 > 2**64


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    x = rng.random((5000, 4)).astype(np.float32)
    one = KMeans(6, random_state=2).fit(x)
    monkeypatch.setattr(arrays, "THREAD_VALUES", 1000)
    monkeypatch.setattr(arrays, "get_num_threads", lambda: 3)
    three = KMeans(6, random_state=2).fit(x)
    same(one.record_, three.record_)
    gone = rng.choice(5000, 100, replace=False)
    one.delete(gone)
    three.delete(gone)
    same(one.record_, three.record_)
