"""The paper's formulas against values computed by hand; power laws against their own points."""

from __future__ import annotations

from math import e

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.pipeline.theory import (
    divided_deletion_cost,
    fit_power_law,
    quantized_deletion_cost,
    quantized_loss_bound,
)


def test_power_law_by_hand() -> None:
    """The points (1, 1), (e, e), (e^2, 1): slope 0 through log y = 1/3, which explains nothing."""
    found = fit_power_law([1.0, e, e * e], [1.0, e, 1.0])
    assert found is not None
    assert found.exponent == pytest.approx(0.0, abs=1e-12)
    assert found.factor == pytest.approx(e ** (1 / 3))
    assert found.points == 3
    assert found.r2 == pytest.approx(0.0, abs=1e-12)


@given(st.floats(-3, 3), st.floats(0.01, 100))
def test_power_law_is_recovered(exponent: float, factor: float) -> None:
    x = [1.0, 2.0, 5.0, 10.0, 100.0]
    found = fit_power_law(x, [factor * value**exponent for value in x])
    assert found is not None
    assert found.exponent == pytest.approx(exponent, abs=1e-9)
    assert found.factor == pytest.approx(factor)
    assert found.r2 == pytest.approx(1.0) or abs(exponent) < 1e-6


def test_power_law_needs_two_places() -> None:
    assert fit_power_law([], []) is None
    assert fit_power_law([2.0, 2.0], [1.0, 3.0]) is None
    assert fit_power_law([1.0, 2.0], [0.0, 3.0]) is None
    found = fit_power_law([1.0, 2.0, 4.0], [0.0, 3.0, 12.0])
    assert found is not None and found.points == 2
    assert found.exponent == pytest.approx(2.0)


def test_costs_by_hand() -> None:
    assert quantized_deletion_cost(10, 4, 0.5) == pytest.approx(100 * 32 / 0.5)
    assert divided_deletion_cost(1024, 32) == 32
    assert divided_deletion_cost(1024, 8) == 128
    assert divided_deletion_cost(1024, 256) == 256


def test_loss_bound_by_hand() -> None:
    """k = 1: ln k = 0, so 16 L* + epsilon sqrt(16 n d L*) + n d epsilon^2 / 4."""
    assert quantized_loss_bound(4.0, 8, 2, 1, 0.5) == pytest.approx(64 + 0.5 * 32 + 1.0)
    assert quantized_loss_bound(2.0, 8, 2, 1, 0.0) == pytest.approx(32)
    # k = e would make the factor 24; k = 3: 8 * 1.0986 + 16 = 24.789.
    assert quantized_loss_bound(1.0, 1, 1, 3, 0.0) == pytest.approx(24.788898, abs=1e-5)
