"""Fixed point: the grid of rows, extents and their merging, and the loss from counts and sums."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from expunge.pipeline.fixedpoint import (
    CENTROID_GRID,
    LOSS_UNIT,
    MAX_FEATURES,
    ROW_GRID,
    Extent,
    Scaling,
    exact_loss,
    extent_of,
    merge_extents,
)

TINY, HUGE = float(np.float32(1e-45)), float(np.float32(3e38))

values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, TINY, -TINY, HUGE, -HUGE]),
    st.floats(-HUGE, HUGE, width=32),
    st.floats(-1, 1, width=32),
)
tables = hnp.array_shapes(min_dims=2, max_dims=2, max_side=12).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=values)
)


@settings(deadline=None)
@given(tables)
def test_rows_lie_on_the_grid_and_keep_their_order(x: np.ndarray) -> None:
    extent = extent_of(x)
    fixed = Scaling.between(extent.lower, extent.upper).fixed(x)
    assert fixed.dtype == np.int32
    assert fixed.min() >= 0 and fixed.max() <= ROW_GRID
    for f in range(x.shape[1]):
        order = np.argsort(x[:, f])
        assert (np.diff(fixed[order, f]) >= 0).all()
        assert (fixed[x[:, f] == extent.lower[f], f] == 0).all()
        top = 0 if extent.lower[f] == extent.upper[f] else ROW_GRID
        assert (fixed[x[:, f] == extent.upper[f], f] == top).all()


@settings(deadline=None)
@given(tables, tables)
def test_quantise_is_the_float64_formula_and_clips(x: np.ndarray, other: np.ndarray) -> None:
    d = min(x.shape[1], other.shape[1])
    extent = extent_of(x[:, :d])
    scaling = Scaling.between(extent.lower, extent.upper)
    wide = np.asarray(other[:, :d], np.float64)
    expected = np.clip(np.rint((wide - scaling.lower) * scaling.factor), 0, ROW_GRID)
    np.testing.assert_array_equal(scaling.fixed(other[:, :d]), expected)


@pytest.mark.parametrize(
    ("lower", "upper", "value", "expected"),
    [
        (0.0, 1.0, 0.5, 1 << 23),
        (0.0, 1.0, 2.0**-25, 0),  # half a step: rint goes to the even neighbour
        (0.0, 1.0, 3 * 2.0**-25, 2),
        (0.0, 1.0, -7.0, 0),
        (0.0, 1.0, 7.0, 1 << 24),
        (-2.0, 6.0, 0.0, 1 << 22),
        (5.0, 5.0, 5.0, 0),
        (5.0, 5.0, 9.0, 0),
        (0.0, TINY, TINY, 1 << 24),
        (0.0, TINY, HUGE, 1 << 24),
        (-HUGE, HUGE, 0.0, 1 << 23),
        (-0.0, 1.0, -0.0, 0),
    ],
)
def test_single_values_by_hand(lower: float, upper: float, value: float, expected: int) -> None:
    scaling = Scaling.between(np.array([lower], np.float32), np.array([upper], np.float32))
    assert scaling.fixed(np.array([[value]], np.float32))[0, 0] == expected


def test_rows_need_not_be_contiguous() -> None:
    x = np.random.default_rng(0).random((6, 8)).astype(np.float32)
    scaling = Scaling(np.zeros(4), np.full(4, float(ROW_GRID)))
    np.testing.assert_array_equal(scaling.fixed(x[::2, ::2]), scaling.fixed(x[::2, ::2].copy()))


def test_restore_undoes_the_scaling_and_gives_a_constant_feature_back() -> None:
    lower, upper = np.array([-3.0, 7.0], np.float32), np.array([5.0, 7.0], np.float32)
    restored = Scaling.between(lower, upper).restore(np.array([[0.0, 0.0], [1.0, 0.0], [0.25, 0]]))
    np.testing.assert_array_equal(restored, [[-3, 7], [5, 7], [-1, 7]])


@settings(deadline=None)
@given(st.data())
def test_the_loss_is_the_sum_over_rows(data: st.DataObject) -> None:
    """Any partition, any centroids within [-1/2, 3/2], any multiplicity up to 2^26 rows."""
    n, k, d = (data.draw(st.integers(1, top)) for top in (6, 4, 5))
    grid = st.one_of(st.sampled_from([0, ROW_GRID]), st.integers(0, ROW_GRID))
    wide = st.integers(-CENTROID_GRID // 2, 3 * CENTROID_GRID // 2)
    rows = data.draw(hnp.arrays(np.int64, (n, d), elements=grid))
    centroids = data.draw(hnp.arrays(np.int64, (k, d), elements=wide))
    labels = data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    copies = data.draw(hnp.arrays(np.int64, n, elements=st.integers(1, 1 << 26)))
    sizes, sums = np.zeros(k, np.int64), np.zeros((k, d), np.int64)
    np.add.at(sizes, labels, copies)
    np.add.at(sums, labels, rows * copies[:, np.newaxis])
    square_sum = loss = 0
    for row, label, count in zip(rows.tolist(), labels.tolist(), copies.tolist(), strict=True):
        square_sum += count * sum(v * v for v in row)
        centre = [2 * c for c in centroids[label].tolist()]
        loss += count * sum((v - c) ** 2 for v, c in zip(row, centre, strict=True))
    assert exact_loss(square_sum, centroids, sizes, sums) == loss


def test_the_loss_does_not_overflow_at_the_largest_shape() -> None:
    """2^26 rows at the far corner of 14,563 features, with the centroids farthest from them."""
    count, d = 1 << 26, MAX_FEATURES
    centroids = np.array([np.full(d, -CENTROID_GRID // 2), np.full(d, 3 * CENTROID_GRID // 2)])
    sizes = np.full(2, count)
    sums = np.array([np.full(d, count * ROW_GRID), np.zeros(d, np.int64)])
    # Each row is 3/2 off in every feature.
    expected = Fraction(9, 4) * d * 2 * count * LOSS_UNIT
    assert exact_loss(count * d * LOSS_UNIT, centroids, sizes, sums) == expected


def test_the_loss_of_nothing_is_zero() -> None:
    zero = np.zeros((2, 3), np.int64)
    assert exact_loss(0, zero + 5, zero[:, 0], zero) == 0


def same_extent(one: Extent, other: Extent) -> None:
    """Fail unless two extents agree in every bit."""
    assert one.rows == other.rows
    for name in ("lower", "upper", "lower_count", "upper_count"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), name


def merged(parts: list[Extent]) -> Extent:
    return merge_extents(
        np.stack([p.lower for p in parts]),
        np.stack([p.upper for p in parts]),
        np.stack([p.lower_count for p in parts]),
        np.stack([p.upper_count for p in parts]),
        np.array([p.rows for p in parts]),
    )


tied = hnp.array_shapes(min_dims=2, max_dims=2, max_side=12).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=st.sampled_from([-1.0, -0.0, 0.0, 2.0]))
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(tables, tied), st.lists(st.integers(0, 12), max_size=5), st.randoms())
def test_merged_extents_of_parts_are_the_extent_of_all(
    x: np.ndarray, cuts: list[int], random: Random
) -> None:
    """Cuts at the same place leave empty parts."""
    parts = [extent_of(part) for part in np.split(x, sorted(min(c, len(x)) for c in cuts))]
    whole = extent_of(x)
    same_extent(merged(parts), whole)
    random.shuffle(parts)
    same_extent(merged(parts), whole)


def test_extents_count_ties_and_take_negative_zero_for_zero() -> None:
    x = np.array([[-0.0, 3.0], [0.0, 3.0], [5.0, 3.0]], np.float32)
    extent = extent_of(x)
    assert extent.rows == 3
    assert extent.lower.tolist() == [0, 3] and extent.upper.tolist() == [5, 3]
    assert not np.signbit(extent.lower).any()
    assert extent.lower_count.tolist() == [2, 3] and extent.upper_count.tolist() == [1, 3]
    negative = extent_of(np.array([[-0.0]], np.float32))
    assert not np.signbit([negative.lower, negative.upper]).any()


def test_extents_of_empty_parts_merge_to_an_empty_extent() -> None:
    empty = extent_of(np.empty((0, 2), np.float32))
    same_extent(merged([empty, empty]), empty)
    assert empty.rows == 0 and np.isposinf(empty.lower).all() and np.isneginf(empty.upper).all()
    assert not empty.lower_count.any() and not empty.upper_count.any()
