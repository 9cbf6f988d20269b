"""The lists of rows near a boundary: what is on them, what the rest is taken to have, what leaves."""

from __future__ import annotations

import copy
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_checks import (
    check_list,
    check_steps,
    compare,
    held_margins,
    listed,
    overlapping,
    steps_of,
)
from test_incremental_bounds import root_above

from expunge import KMeans, QKMeans
from expunge.pipeline import incremental
from expunge.pipeline.history import room
from expunge.pipeline.incremental import Steps
from expunge.pipeline.listed import SHORTEST, SPAN, make_list, start_anew, unlist

BIN = (1 << 20) - 1
"""The bits of a float32 that the edge of a bin has not."""


def a_step(rows: int, clusters: int, state: int) -> Steps:
    """One step's arrays, with random labels, margins of all magnitudes, and some rows gone."""
    rng = np.random.default_rng(state)
    m = room(1, rows, 2, clusters)
    m.labels[0] = rng.integers(0, clusters, rows)
    m.margins[0] = 10.0 ** rng.uniform(-3, 12, rows)
    m.margins[0][rng.random(rows) < 0.02] = 0.0
    m.margins[0][rng.random(rows) < 0.02] = 1e-41
    start_anew(0, m)
    take = rng.random(rows) < 0.1
    m.labels[0][take], m.margins[0][take] = 0, np.inf
    return m


def gone(m: Steps) -> np.ndarray:
    infinite: np.ndarray = np.isposinf(m.margins[0])
    return infinite


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 23), st.integers(0, 2**32 - 1))
def test_net_shrinkage_is_above_what_centroids_moved(k: int, d: int, bits: int, state: int) -> None:
    rng = np.random.default_rng(state)
    m = room(1, 1, d, k)
    m.quantized[0] = rng.integers(0, 1 << 23, (k, d))
    moves = rng.integers(-(1 << bits), (1 << bits) + 1, (k, d)) * (rng.random((k, 1)) < 0.6)
    m.listed_at[0] = m.quantized[0] + moves
    shrink = np.empty(k)
    largest = incremental.net_shrinkage(0, m, shrink)
    roots = [root_above(int(q)) if q else Fraction(0) for q in (4 * moves * moves).sum(axis=1)]
    exact = [roots[j] + max([Fraction(0), *roots[:j], *roots[j + 1 :]]) for j in range(k)]
    assert all(Fraction(float(s)) >= e for s, e in zip(shrink, exact, strict=True))
    assert largest == shrink.max()
    assert largest <= float(max(exact)) * (1 + 1e-12)


@pytest.mark.parametrize("rows", [1, 63, 700, SPAN, 3 * SPAN + 17])
def test_a_list_has_the_least_margins_and_reach_is_no_row_s(rows: int) -> None:
    m = a_step(rows, 5, rows)
    before = m.margins[0].copy()
    live = ~gone(m)
    shrink = np.random.default_rng(1).random(5) * 1e-3
    assert make_list(0, m, shrink)
    check_list(m, 0, live)
    places, entries = listed(m, 0)
    assert len(entries) <= max(SHORTEST, rows // 8)
    assert not np.float32(m.reach[0]).view(np.int32) & BIN
    exact = before.astype(np.longdouble) - shrink[m.labels[0]]
    assert (held_margins(m, 0)[live] <= exact[live]).all()
    assert (held_margins(m, 0)[live] >= exact[live] - 1e-6 * (abs(exact[live]) + 1e-30)).all()
    rest = np.setdiff1d(np.flatnonzero(live), places)
    if len(rest) and len(places):
        assert exact[places].max() < exact[rest].min()
    assert not m.credit.any() and not m.drift.any()


def test_lists_made_again_and_again_never_gain() -> None:
    """Listed rows and others go by different bounds: both hold over rounds of moves and looks."""
    rng = np.random.default_rng(0)
    m = a_step(2 * SPAN, 4, 7)
    live = ~gone(m)
    true = np.where(live, m.margins[0].astype(np.longdouble), np.inf)
    make_list(0, m, np.zeros(4))
    for _ in range(12):
        shrink = rng.random(4) * 10.0 ** rng.uniform(-6, 9)
        # Each row's true margin shrinks by its cluster's; the drift follows the largest.
        true -= shrink[m.labels[0]].astype(np.longdouble)
        m.drift[0] += shrink.max() * (1 + 1e-12)
        fits = make_list(0, m, shrink)
        assert (m.margins[0][live] <= true[live]).all() or fits
        if not fits:
            assert (true[live] <= m.margins[0].max()).all()
            break
        check_list(m, 0, live)
        assert (held_margins(m, 0)[live] <= true[live]).all()


def test_a_list_that_cannot_hold_what_is_due_is_not_made() -> None:
    m = a_step(4000, 3, 0)
    m.margins[0][:600] = 0.0
    assert not make_list(0, m, np.zeros(3))
    assert not m.ends.any() and not m.near.any() and m.reach[0] == 0.0


@pytest.mark.parametrize("rows", [70, 3 * SPAN + 17])
def test_a_row_leaves_its_list_without_a_trace(rows: int) -> None:
    m = a_step(rows, 3, 3)
    make_list(0, m, np.zeros(3))
    live = ~gone(m)
    places, entries = listed(m, 0)
    expected = dict(zip(places.tolist(), m.until[0][entries].tolist(), strict=True))
    unlisted = np.setdiff1d(np.arange(rows), places)[:5].tolist()
    order = np.random.default_rng(2).permutation(places)[:200].tolist()
    for i in [*unlisted, int(places[0]), int(places[-1]), *order]:
        before = copy.deepcopy(m)
        unlist(0, m, i)
        if i not in expected:
            for name in m._fields:
                assert np.array_equal(getattr(before, name), getattr(m, name)), name
            continue
        del expected[i]
        live[i] = False
        check_list(m, 0, live)
        places, entries = listed(m, 0)
        assert dict(zip(places.tolist(), m.until[0][entries].tolist(), strict=True)) == expected


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_models_of_several_spans(epsilon: float) -> None:
    model = QKMeans(6, epsilon, random_state=1, bounds=(-2.0, 5.0)).fit(
        overlapping(2 * SPAN + 500, 3, 4)
    )
    for number, unit in enumerate(np.random.default_rng(0).permutation(8000)[:50].tolist()):
        model.delete(unit)
        if number % 10 == 0:
            check_steps(model)
    check_steps(model)
    compare(model)


def test_far_moves_take_passes_and_lists_start_anew() -> None:
    model = QKMeans(4, 0.1, random_state=0, bounds=(-2.0, 5.0)).fit(overlapping(3000, 4, 2))
    passes = 0
    for unit in range(0, 1500, 5):
        done = model.delete(unit)
        passes += done.passes
        if done.action not in ("unchanged", "replayed"):
            check_steps(model)
    assert passes > 5
    compare(model)


def test_rows_that_swing_are_looked_at_less_often_than_their_way_is_long() -> None:
    """Lists last while centroids stay near where they were, however often they moved."""
    model = KMeans(5, random_state=0, bounds=(-2.0, 5.0)).fit(overlapping(6000, 6, 1))
    made = moves = 0
    for unit in np.random.default_rng(0).permutation(6000)[:200].tolist():
        before = copy.deepcopy(steps_of(model))
        model.delete(unit)
        m = steps_of(model)
        for t in range(1, int(m.state[1])):
            moves += (m.quantized[t] != before.quantized[t]).any()
            made += m.drift[t] <= before.drift[t] and (m.quantized[t] != before.quantized[t]).any()
    assert moves > 500 and made < 0.2 * moves, (made, moves)


@pytest.mark.parametrize("forget", [False, True])
def test_where_lists_were_made_is_needed(forget: bool) -> None:
    """Rows go from one side on, so that centroids drift farther than their lists reach."""
    x = np.random.default_rng(0).random((3000, 2)).astype(np.float32)
    model = KMeans(5, random_state=0, bounds=(0.0, 1.0)).fit(x)
    for unit in np.argsort(x[:, 0])[:500].tolist():
        model.delete(unit)
        if forget:
            steps_of(model).listed_at[:] = steps_of(model).quantized
    model._history._record = None  # type: ignore[union-attr]
    if not forget:
        compare(model)
        return
    with pytest.raises(AssertionError):
        compare(model)
