"""What the proof of incremental replay assumes of its bounds, each held against exact numbers."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_checks import steps_of
from support import refit
from test_lloyd import brute_labels, grid_centroids, grid_rows

from expunge import KMeans, QKMeans
from expunge.pipeline import incremental, limbs, nearby
from expunge.pipeline.fixedpoint import CENTROID_GRID, ROW_GRID, exact_loss
from expunge.pipeline.history import room
from expunge.pipeline.lanes import LANES
from expunge.pipeline.limbs import LIMB
from expunge.pipeline.lloyd import assign_rows, relative_error, rounded_down

KINDS = ["random", "tied", "near"]


def at_most(bound: Fraction, square: int, other: int) -> bool:
    """Whether bound <= sqrt(square) - sqrt(other), square >= other, without rounding."""
    if bound <= 0:
        return True
    left = square - other - bound * bound
    return left >= 0 and left * left >= 4 * bound * bound * other


def root_above(square: int) -> Fraction:
    """A number above sqrt(square), by 2^-100 at most."""
    return Fraction(isqrt(square << 200) + 1, 1 << 100)


def least_two(row: np.ndarray, centroids: np.ndarray) -> list[int]:
    """The squared distances of a row to its two nearest centroids, as Python integers."""
    gaps = row.astype(object) - 2 * centroids.astype(object)
    return sorted(int(square) for square in (gaps * gaps).sum(axis=1))[:2]


# ----------------------------------------------------------------------- margins


@pytest.mark.parametrize("d", [784, 3000])
@pytest.mark.parametrize("kind", KINDS)
def test_margins_of_long_rows_are_below_the_true_ones(kind: str, d: int) -> None:
    rng = np.random.default_rng(d)
    check_margins(grid_rows(rng, 130, d, kind), grid_centroids(rng, 5, d, kind))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 80),
    st.integers(1, 40),
    st.integers(1, 6),
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
)
def test_margins_are_below_the_true_ones(n: int, d: int, k: int, kind: str, state: int) -> None:
    rng = np.random.default_rng(state)
    centroids = grid_centroids(rng, k, d, kind)
    check_margins(grid_rows(rng, n, d, kind), centroids[rng.integers(0, k, k)])


@pytest.mark.parametrize("d", [1, 28, 784])
def test_margins_far_below_the_distances(d: int) -> None:
    """Far centroids a grid step apart: float64 roots lose more of the margin than float32 does."""
    rng = np.random.default_rng(d)
    fixed = grid_rows(rng, 120, d, "random")
    centroids = np.repeat(rng.integers(0, CENTROID_GRID, (1, d)), 3, axis=0)
    centroids[1, 0] += 1
    centroids[2, -1] -= 1
    check_margins(fixed, centroids)


def check_margins(fixed: np.ndarray, centroids: np.ndarray) -> None:
    """Margins of a pass, and of looking at a row again with some credit, against integers."""
    (n, d), k = fixed.shape, len(centroids)
    units, none = np.where(np.arange(n) % 7 == 3, -1, 0), np.empty(0)
    labels, margins = np.full(n, 9, np.uint16), np.zeros(n, np.float32)
    tally = np.zeros(k, np.int64), np.zeros((k, d), np.int64)
    limit = relative_error(d)
    assign_rows(fixed, units, none, none, 2 * centroids, limit, labels, margins, *tally)
    expected = brute_labels(fixed, centroids, np.ones(k, np.bool_))
    credit = np.random.default_rng(n).random(k) * 10.0 ** (n % 12)
    centres, far = (2 * centroids).astype(np.int32), np.empty(k, np.bool_)
    check_groups(fixed, centroids, expected)
    for i, row in enumerate(fixed):
        if units[i] < 0:
            assert np.isposinf(margins[i])
            continue
        assert labels[i] == expected[i]
        label, stored = incremental.look_exactly(row, centres, int(expected[i]), credit, far)
        assert label == expected[i]
        if k == 1:
            assert np.isposinf(margins[i]) and np.isposinf(stored)
            continue
        near, other = least_two(row, centroids)
        assert at_most(Fraction(float(margins[i])), other, near)
        left = Fraction(float(stored)) - Fraction(float(credit[label]))
        assert at_most(left, other, near)
        # Not too low either: what a look leaves is the margin, to float32.
        true = float(root_above(other) - root_above(near))
        assert left >= true - 2.0**-21 * (true + credit[label]) - 1


def check_groups(fixed: np.ndarray, centroids: np.ndarray, expected: np.ndarray) -> None:
    """Labels and margins of rows looked at together, against integers."""
    if len(centroids) == 1:
        return
    desk = nearby.desk_for(*centroids.shape, 0)
    nearby.put_centres(desk, centroids)
    order = np.random.default_rng(1).permutation(len(fixed))
    for start in range(0, len(order), LANES - 1):
        places = order[start : start + LANES - 1]
        nearby.look_at_group(desk, fixed, places)
        np.testing.assert_array_equal(desk.found[: len(places)], expected[places])
        for i, margin in zip(places, desk.margins, strict=False):
            near, other = least_two(fixed[i], centroids)
            assert at_most(Fraction(float(margin)), other, near)
            true = float(root_above(other) - root_above(near))
            assert margin >= 0.1 * true - 2.0**-21 * float(root_above(other)) - 1


@settings(max_examples=500, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30))
def test_rounding_down(value: float) -> None:
    found = float(rounded_down(value))
    assert found <= value and found >= value - abs(value) * 2.0**-21 - 1e-36


# ----------------------------------------------------------------------- credits


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(0, 2**32 - 1),
)
def test_credits_and_drift_are_above_the_sum_of_moves(
    k: int, moves: int, bits: int, state: int
) -> None:
    """Whatever part of the moves is looked at: from a row's writing on, or a block's."""
    rng = np.random.default_rng(state)
    m = room(1, 1, 1, k)
    exact = [Fraction(0)] * k
    whole = Fraction(0)
    for number in range(moves):
        if number == moves // 2:
            before, drift = m.credit[0].copy(), float(m.drift[0])
            exact, whole = [Fraction(0)] * k, Fraction(0)
        squares = (rng.random(k) * 2.0**bits * (rng.random(k) < 0.6)).astype(np.int64)
        moved = np.sqrt(squares.astype(np.float64)) * incremental._UP
        assert all(Fraction(float(s)) ** 2 >= int(q) for s, q in zip(moved, squares, strict=True))
        incremental._raise_credit(0, m, moved)
        roots = [root_above(int(q)) if q else Fraction(0) for q in squares]
        steps = [roots[j] + max([Fraction(0), *roots[:j], *roots[j + 1 :]]) for j in range(k)]
        exact = [e + step for e, step in zip(exact, steps, strict=True)]
        whole += max(steps)
    for j in range(k):
        assert Fraction(float(m.credit[0, j])) - Fraction(float(before[j])) >= exact[j]
    assert Fraction(float(m.drift[0])) - Fraction(drift) >= whole


@pytest.mark.parametrize("epsilon", [0.0, 1e-4])
def test_every_deletion_credits_what_its_centroids_moved(epsilon: float) -> None:
    rng = np.random.default_rng(0)
    model = QKMeans(4, epsilon, 0.2, random_state=1, bounds=(0.0, 1.0)).fit(rng.random((1500, 3)))
    credited = 0
    for unit in rng.permutation(1500)[:60].tolist():
        m = steps_of(model)
        old = [array.copy() for array in (m.quantized, m.credit, m.drift, m.listed_at)]
        count = int(m.state[1])
        done = model.delete(unit)
        if done.action == "resumed":
            continue
        m = steps_of(model)
        for t in range(min(count, int(m.state[1]))):
            if (m.listed_at[t] != old[3][t]).any():
                # Its list was made after the move: everything starts from these centroids.
                assert (m.listed_at[t] == m.quantized[t]).all()
                assert not m.credit[t].any() and not m.drift[t]
                continue
            gaps = 2 * (m.quantized[t].astype(object) - old[0][t])
            roots = [root_above(int(q)) if q else Fraction(0) for q in (gaps * gaps).sum(axis=1)]
            for j in range(4):
                step = roots[j] + max(roots[:j] + roots[j + 1 :])
                assert Fraction(m.credit[t, j]) - Fraction(old[1][t, j]) >= step
                assert Fraction(m.drift[t]) - Fraction(old[2][t]) >= step
            credited += any(roots)
    assert credited > 50


def test_a_move_of_many_features_does_not_overflow() -> None:
    """The longest rows, coarsest lattice: a centroid moves by 1.8 in all of 14,000 features."""
    d, spacing = 14_000, int(0.9 * CENTROID_GRID)
    m = room(2, 1, d, 1)
    phase = int(0.46 * CENTROID_GRID)
    m.phase[1], m.quantized[1] = phase, phase - spacing
    m.sizes[0], m.sums[0] = 1, ROW_GRID
    moved, row, analog = np.zeros(1), np.empty(d, np.int64), np.empty(d)
    assert incremental.move_centroids(1, m, spacing, 0, np.ones(1, np.bool_), moved, row, analog)
    exact = 2 * 2 * spacing
    assert (m.quantized[1] == phase + spacing).all()
    assert Fraction(float(moved[0])) ** 2 >= d * exact**2
    assert moved[0] == pytest.approx(exact * d**0.5, rel=1e-12)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 2**50),
    st.integers(-(2**24), 2**24),
    st.one_of(st.integers(-2, 2), st.floats(0, 1)),
)
def test_whole_quotients_are_python_s(divisor: int, quotient: int, beyond: float) -> None:
    """Values on and just beside multiples of the divisor, where float64's quotient is one off."""
    quotient = max(-(2**62) // divisor, min(quotient, 2**62 // divisor - 1))
    value = quotient * divisor + (beyond if isinstance(beyond, int) else int(beyond * divisor))
    assert incremental._floor_of(value, divisor) == value // divisor


# ----------------------------------------------------------------------- the loss


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 4),
    st.sampled_from([1, 28, 784, 14_563]),
    st.integers(0, 4 * 10**7),
    st.integers(0, 2**32 - 1),
)
def test_the_loss_in_limbs_is_the_loss(k: int, d: int, rows: int, state: int) -> None:
    rng = np.random.default_rng(state)
    centroids = rng.integers(-CENTROID_GRID // 2, 3 * CENTROID_GRID // 2 + 1, (k, d))
    sizes = rng.integers(0, rows + 1, k)
    sums = sizes[:, np.newaxis] * rng.integers(0, ROW_GRID + 1, (k, d))
    square = int(rng.integers(0, 2**62)) * 4 * 10**7
    high, low = limbs.loss_of(square >> LIMB, square & ((1 << LIMB) - 1), centroids, sizes, sums)
    assert 0 <= low < 1 << LIMB
    assert (int(high) << LIMB) + int(low) == exact_loss(square, centroids, sizes, sums)


# ----------------------------------------------------------------------- what may end a replay


def test_a_chain_grows_shorter_and_longer() -> None:
    """Accept decisions flip: the steps are those of a refit, and both ways occur."""
    rng = np.random.default_rng(3)
    x = rng.random((300, 2)).astype(np.float32)
    model = QKMeans(4, 0.01, 0.2, 30, 5, bounds=(0.0, 1.0)).fit(x)
    lengths = [len(model.record_.steps)]
    for unit in rng.permutation(300)[:150].tolist():
        model.delete(unit)
        kept = model._rows.units >= 0
        expected = refit(x[kept], np.flatnonzero(kept), model._settings)
        assert [s.loss for s in model.record_.steps] == [s.loss for s in expected.steps]
        lengths.append(len(expected.steps))
    changes = np.diff(lengths)
    assert (changes > 0).any() and (changes < 0).any(), lengths


def test_a_threshold_moves_clusters_that_lost_no_row() -> None:
    """One cluster is small; rows go from the other alone, and the small one's centroid moves."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random((400, 2)) * 0.3, 0.8 + rng.random((20, 2)) * 0.2])
    model = QKMeans(2, 0.0, 1.0, random_state=1, bounds=(0.0, 1.0)).fit(x)
    before = model.record_
    small = int(np.argmin(before.steps[1].tally.sizes))
    drawn = before.steps[0].centroids.drawn[:, 0]
    gone = [u for u in range(400) if u not in drawn][:40]
    model.delete(gone)
    after = model.record_
    assert after.steps[1].tally.sizes[small] == before.steps[1].tally.sizes[small]
    moved = after.steps[2].centroids.quantized[small] != before.steps[2].centroids.quantized[small]
    assert moved.any()
    kept = model._rows.units >= 0
    expected = refit(x[kept].astype(np.float32), np.flatnonzero(kept), model._settings)
    assert [s.loss for s in after.steps] == [s.loss for s in expected.steps]


def test_the_last_row_at_a_bound_alone_makes_a_refit() -> None:
    x = np.random.default_rng(0).random((200, 2)).astype(np.float32)
    top = x[:, 0].max()
    x[[3, 90], 0] = top
    x[np.argmax(np.where(np.isin(np.arange(200), [3, 90]), 0, x[:, 0])), 0] = 0.5
    model = KMeans(3, random_state=0).fit(x)
    drawn = model.record_.steps[0].centroids.drawn[:, 0]
    assert 3 not in drawn and 90 not in drawn
    assert model.delete(3).action != "retrained"
    assert model.record_.extent.upper_count[0] == 1
    assert model.delete(90).action == "retrained"
    assert model.record_.extent.upper[0] < top
