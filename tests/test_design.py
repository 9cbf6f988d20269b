"""Standardisation: moments that merge, constant features, accuracy far from zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.pipeline.design import Design, Moments


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_moments_of_parts_merge_to_those_of_all(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(3.0, 2.0, (size, 4)).astype(np.float32) for size in sizes]
    merged = Moments.merged(Moments.of(part) for part in parts)
    every = np.concatenate(parts).astype(np.float64)
    assert merged.count == len(every)
    if len(every):
        np.testing.assert_allclose(merged.mean, every.mean(axis=0), rtol=0, atol=1e-13)
        deviations = every - every.mean(axis=0)
        for power, found in ((2, merged.squares), (3, merged.cubes), (4, merged.fourths)):
            wanted = (deviations**power).sum(axis=0)
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-10)


def test_the_same_order_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    parts = [Moments.of(rng.normal(size=(50, 3)).astype(np.float32)) for _ in range(9)]
    one, other = Moments.merged(parts), Moments.merged(iter(parts))
    assert one.mean.tobytes() == other.mean.tobytes()
    assert one.squares.tobytes() == other.squares.tobytes()


def test_no_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="no moments to merge"):
        Moments.merged([])


def test_rows_are_standardised_and_get_a_bias() -> None:
    """A uniform feature has lighter tails than a normal one: its deviation is the scale."""
    spread = np.array([0.1, 1.0, 30.0])
    x = (5.0 + spread * np.random.default_rng(1).random((4000, 3))).astype(np.float32)
    design = Design.of(Moments.of(x))
    rows = design.rows(x)
    assert design.width == 4 and rows.shape == (4000, 4)
    np.testing.assert_allclose(rows[:, :3].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(rows[:, :3].std(axis=0), 1.0, rtol=1e-12)
    assert (rows[:, 3] == 1.0).all()


@pytest.mark.parametrize("rare", [1, 10, 100])
def test_a_rare_indicator_is_scaled_by_its_fourth_moment(rare: int) -> None:
    """Else it would reach sqrt(n / rare) deviations."""
    x = np.zeros((10_000, 1), np.float32)
    x[:rare] = 1.0
    share = rare / len(x)
    fourth = share * (1 - share) ** 4 + (1 - share) * share**4
    rows = Design.of(Moments.of(x)).rows(x)[:, 0]
    np.testing.assert_allclose(rows.max() - rows.min(), (3.0 / fourth) ** 0.25, rtol=1e-12)
    assert rows.max() < 1.32 * share**-0.25


def test_some_rows_in_an_order() -> None:
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    design = Design.of(Moments.of(x))
    chosen = np.array([7, 0, 7, 19])
    assert np.array_equal(design.take(x, chosen), design.rows(x)[chosen])
    assert design.take(x, np.empty(0, np.int64)).shape == (0, 4)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, 1e30, 1e-30, 16_777_215.0])
def test_a_constant_feature_becomes_zero(value: float) -> None:
    x = np.full((1000, 2), value, np.float32)
    x[:, 1] = np.arange(1000)
    design = Design.of(Moments.of(x))
    rows = design.rows(x)
    assert np.isfinite(rows).all()
    assert np.abs(rows[:, 0]).max() <= 1e-12 * max(1.0, abs(value))


def test_one_row_is_all_constants() -> None:
    x = np.array([[3.0, -4.0]], np.float32)
    assert Design.of(Moments.of(x)).rows(x).tolist() == [[0.0, 0.0, 1.0]]


def test_a_large_offset_costs_no_accuracy() -> None:
    """Values around 2^20 whose spread is of the order of their own rounding: 1/8."""
    steps = np.random.default_rng(2).integers(-8, 9, (30_000, 1))
    x = (2.0**20 + steps / 8.0).astype(np.float32)
    merged = Moments.merged(Moments.of(part) for part in np.array_split(x, 7))
    design = Design.of(merged)
    exact = steps[:, 0] / 8.0
    np.testing.assert_allclose(design.mean[0] - 2.0**20, exact.mean(), rtol=0, atol=1e-8)
    np.testing.assert_allclose(design.scale[0], exact.std(), rtol=1e-8)
    wanted = (exact - exact.mean()) / exact.std()
    np.testing.assert_allclose(design.rows(x)[:, 0], wanted, rtol=0, atol=1e-7)
