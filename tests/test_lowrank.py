"""Kind lowrank: the truncated SVD of every iteration's curvature, its update and its rebase."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from regression_problems import LOSSES, Problem, order, problem, relative, small_problems

from expunge.pipeline import truncation
from expunge.pipeline.losses import Loss
from expunge.pipeline.lowrank import LowRankBlocks, stacked, update_lowrank
from expunge.pipeline.provenance import add_curvature, curvature
from expunge.pipeline.regression_arrays import Rows, Trained, delete
from expunge.pipeline.truncation import Factor, LowRankCapture, hessian_times, leading, tolerance

CLASSIFIERS = LOSSES[1:]


def small(loss: Loss, q: int, **others: object) -> Problem:
    rate = 0.05 if loss == Loss.LINEAR else 0.3
    given = {"batch": 200, "iterations": 150, "rate": rate, "provenance": "lowrank"}
    return problem(loss, 4000, 6, q, **(given | others))  # type: ignore[arg-type]


def wide(loss: Loss, q: int, batch: int = 12, **others: object) -> Problem:
    """More parameters than a mini-batch has rank: C is never formed."""
    rate = 0.002 if loss == Loss.LINEAR else 0.02
    given = {"batch": batch, "iterations": 60, "rate": rate, "provenance": "lowrank"}
    return problem(loss, 300, 90, q, **(given | others))  # type: ignore[arg-type]


def factors(trained: Trained) -> list[Factor]:
    kept = trained.kept
    assert isinstance(kept, LowRankBlocks)
    return [part.factor(t) for part in kept.parts for t in range(len(part.ranks))]


def product(factor: Factor) -> np.ndarray:
    return np.asarray((factor.vectors.T * factor.values) @ factor.vectors)


def dense(here: Problem, trained: Trained, gone: np.ndarray | None = None) -> list[np.ndarray]:
    """Every iteration's whole C at the trajectory, by its definition, without some rows."""
    found = []
    schedule, d = here.schedule, here.design
    away = np.zeros(0, np.int64) if gone is None else gone
    for t, w in enumerate(trained.trace.trajectory):
        epoch, first, last = schedule.span(t)
        slots = np.setdiff1d(schedule.window_order(epoch, 0)[first:last], away)
        slots = slots[here.rows.units[slots] >= 0]
        found.append(hessian(here.settings.loss, w, d.take(here.rows.x, slots), here, slots))
    return found


def hessian(
    loss: Loss, w: np.ndarray, x: np.ndarray, here: Problem, slots: np.ndarray
) -> np.ndarray:
    """The sum of Hessians from textbook formulas."""
    if loss == Loss.LINEAR:
        return np.asarray(2.0 * x.T @ x)
    if loss == Loss.LOGISTIC:
        p = 1.0 / (1.0 + np.exp(-x @ w))
        return np.asarray((x.T * (p * (1.0 - p))) @ x)
    scores = x @ w.reshape(-1, x.shape[1]).T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    q = p.shape[1]
    inner = p[:, :, None] * np.eye(q) - p[:, :, None] * p[:, None, :]
    return np.asarray(np.block([[(x.T * inner[:, a, b]) @ x for b in range(q)] for a in range(q)]))


def recursion(
    here: Problem, trained: Trained, gone: np.ndarray, cs: list[np.ndarray]
) -> np.ndarray:
    """u at the end by the difference form, with any C_t."""
    loss, d = here.settings.loss, here.settings.descent
    trace = trained.trace
    visits = here.visits(trained, gone)
    u = np.zeros(trained.w.size)
    for t, c in enumerate(cs):
        own = visits.between(t, t + 1)
        before, after = trace.live[t], trace.live[t] - len(own.rows)
        step = d.decay * u
        if before:
            step -= d.learning_rate / before * trace.gradients[t]
        if after:
            left = trace.gradients[t] - (own.coefficients.T @ own.rows).ravel()
            away = np.zeros_like(c, order="F")
            if len(own.rows):
                add_curvature(away, loss, own.rows, own.curvature)
            away = np.tril(away) + np.tril(away, -1).T
            step += d.learning_rate / after * (left - (c - away) @ u)
        u = step
    return u


def deleted(here: Problem, trained: Trained, gone: np.ndarray, method: str = "delta") -> Trained:
    return delete(here.settings, here.schedule, trained, here.leaving(gone), method)


def flat(trained: Trained) -> np.ndarray:
    return trained.w.ravel()


# ------------------------------------------------------------------ truncation


@pytest.mark.parametrize("here", [small(*k) for k in LOSSES] + [wide(*k) for k in LOSSES])
def test_what_is_left_out_is_below_the_tolerance(here: Problem) -> None:
    trained = here.trained()
    wanted = dense(here, trained)
    left_out = tolerance(here.settings.descent, here.settings.iterations)
    assert left_out == 0.01 * max(0.01, 1.0 / (here.settings.learning_rate * len(wanted)))
    for t, factor in list(enumerate(factors(trained)))[::7]:
        c = wanted[t]
        live = trained.trace.live[t]
        # The interpolant's slope is not the derivative.
        slope = 1e-5 * np.linalg.norm(c, 2)
        np.testing.assert_allclose(
            factor.vectors @ factor.vectors.T, np.eye(len(factor.values)), atol=1e-9
        )
        assert np.linalg.norm(c - product(factor), 2) <= 1.1 * left_out * live + slope
        assert factor.trace == pytest.approx(np.trace(c), rel=1e-4)
        # And no more is kept than need be.
        assert len(factor.values) <= np.sum(np.linalg.eigvalsh(c) > 0.9 * left_out * live)


def test_the_rank_is_bounded_by_the_mini_batch_s() -> None:
    for (loss, q), rank in zip(LOSSES, (12, 12, 24), strict=True):
        here = wide(loss, q)
        assert max(len(f.values) for f in factors(here.trained())) <= rank < here.rows.x.shape[1]


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("guess", [1, 10, 1000])
def test_a_random_basis_finds_what_is_above(decay: float, guess: int) -> None:
    rng = np.random.default_rng(0)
    size = 60
    vectors = np.linalg.qr(rng.normal(size=(size, size)))[0]
    values = 5.0 * decay ** np.arange(size)
    matrix = (vectors * values) @ vectors.T
    found, rows = leading(lambda y: matrix @ y, size, size, 1e-2, guess)
    assert np.linalg.norm(matrix - (rows.T * found) @ rows, 2) < 1.1e-2
    assert abs(len(found) - np.sum(values > 1e-2)) <= 1
    np.testing.assert_allclose(found[: len(found) // 2], values[: len(found) // 2], rtol=1e-6)


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_products_with_rows_are_products_with_their_hessian(loss: Loss, q: int) -> None:
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(20, 5)), np.ones(20)
    w = rng.normal(size=(q, 5))
    curved = curvature(loss, w, x, labels)
    total = np.zeros((5 * q, 5 * q), order="F")
    add_curvature(total, loss, x, curved)
    whole = np.tril(total) + np.tril(total, -1).T
    basis = rng.normal(size=(5 * q, 7))
    np.testing.assert_allclose(hessian_times(loss, x, curved, basis), whole @ basis, atol=1e-10)


def test_pieces_of_a_mini_batch_are_one() -> None:
    here = wide(Loss.SOFTMAX, 3, batch=20)
    rows, labels = here.design.rows(here.rows.x[:20]), here.rows.labels[:20]
    curved = curvature(Loss.SOFTMAX, np.zeros((3, 91)), rows, labels)
    whole = LowRankCapture(Loss.SOFTMAX, 273, 1e-3).add(rows, curved, 20, True)
    capture = LowRankCapture(Loss.SOFTMAX, 273, 1e-3)
    assert capture.add(rows[:7], curved[:7], 20, False) is None
    pieces = capture.add(rows[7:], curved[7:], 20, True)
    assert whole is not None and pieces is not None
    np.testing.assert_allclose(product(whole), product(pieces), atol=1e-12)


# ------------------------------------------------------------------ update


@pytest.mark.parametrize("here", [small(*k) for k in LOSSES] + [wide(*k) for k in LOSSES])
@pytest.mark.parametrize("count", [1, 40])
def test_the_update_is_the_difference_form_with_the_factors(here: Problem, count: int) -> None:
    trained, gone = here.trained(), here.some(count)
    assert isinstance(trained.kept, LowRankBlocks)
    visits = here.visits(trained, gone)
    found = update_lowrank(here.settings.descent, trained.trace, trained.kept, visits)
    wanted = recursion(here, trained, gone, [product(f) for f in factors(trained)])
    assert relative(found.change, wanted, wanted) < 1e-9
    np.testing.assert_array_equal(found.starts[-1], found.change)
    assert not found.starts[0].any()


@pytest.mark.parametrize("here", [small(*k) for k in LOSSES] + [wide(*k) for k in LOSSES])
def test_truncation_costs_little(here: Problem) -> None:
    """LEFT_OUT of u at most, against exact curvature; for small models against BaseL as well."""
    trained, gone = here.trained(), here.some(20)
    found = flat(deleted(here, trained, gone)) - flat(trained)
    exact = recursion(here, trained, gone, dense(here, trained))
    assert relative(found, exact, exact) < 0.01


@pytest.mark.parametrize(
    "here", [*(small(*k) for k in LOSSES), wide(Loss.LOGISTIC, 1, 60)], ids=lambda here: ""
)
def test_the_error_is_of_first_order_in_what_is_left_out(
    here: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C with a smooth spectrum, and thresholds that cut it at many places."""
    rng = np.random.default_rng(3)
    d = here.rows.x.shape[1]
    falling = np.geomspace(1.0, 1e-2 if d < 10 else 1e-3, d)
    x = (rng.normal(size=here.rows.x.shape) * falling).astype(np.float32)
    here = replace(here, rows=Rows(x, here.rows.labels, here.rows.units))
    gone = here.some(20)
    sizes, errors = [], []
    wanted = None
    for share in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003):
        monkeypatch.setattr(truncation, "LEFT_OUT", share)
        trained = here.trained()
        if wanted is None:
            wanted = recursion(here, trained, gone, dense(here, trained))
        found = flat(deleted(here, trained, gone)) - flat(trained)
        if (error := relative(found, wanted, wanted)) > 1e-9:
            sizes.append(share)
            errors.append(error)
            assert error <= share
    assert len(sizes) >= 4
    assert 0.8 <= order(sizes, errors) <= 2.0


@pytest.mark.parametrize("here", [small(*k) for k in CLASSIFIERS])
def test_the_paper_s_criterion_is_no_bound(here: Problem) -> None:
    """One singular value meets Theorem 1's criterion; what it leaves out is most of the change."""
    trained, gone = here.trained(), here.some(20)
    wanted = recursion(here, trained, gone, dense(here, trained))
    first = [replace(f, values=f.values[:1], vectors=f.vectors[:1]) for f in factors(trained)]
    for factor, whole in zip(first, factors(trained), strict=True):
        assert np.linalg.norm(product(factor), 2) == pytest.approx(whole.values[0])
    found = recursion(here, trained, gone, [product(f) for f in first])
    assert relative(found, wanted, wanted) > 0.1


def test_deleting_nothing_changes_nothing() -> None:
    here = small(Loss.LOGISTIC, 1)
    trained = here.trained()
    again = deleted(here, trained, np.empty(0, np.int64))
    np.testing.assert_array_equal(again.w, trained.w)


@pytest.mark.parametrize("here", [small(*k) for k in LOSSES] + [wide(*k) for k in LOSSES])
def test_a_deletion_is_near_base_l(here: Problem) -> None:
    trained, gone = here.trained(), here.some(5)
    w, wanted = flat(trained), here.base_l(gone)
    assert relative(flat(deleted(here, trained, gone)), wanted, wanted - w) < 0.02


# ------------------------------------------------------------------ rebase


@pytest.mark.parametrize("here", [small(*k) for k in LOSSES] + [wide(*k) for k in LOSSES])
def test_the_rebased_factors_are_those_of_the_rows_left(here: Problem) -> None:
    """To what both leave out: nothing of a deleted row's own term is there.

    At the same trajectory, so that its move does not count.
    """
    trained, gone = here.trained(), here.some(30)
    left_out = tolerance(here.settings.descent, here.settings.iterations)
    found, wanted = deleted(here, trained, gone), dense(here, trained, gone)
    touched = 0
    for t, factor in list(enumerate(factors(found)))[::4]:
        c = wanted[t]
        before, left = trained.trace.live[t], found.trace.live[t]
        slope = 1e-5 * np.linalg.norm(c, 2)
        assert np.linalg.norm(c - product(factor), 2) <= 2.2 * left_out * before + slope
        assert factor.trace == pytest.approx(np.trace(c), rel=1e-4)
        assert len(factor.values) <= len(factors(trained)[t].values)
        touched += int(left < before)
    assert touched > 3


@pytest.mark.parametrize("here", [small(*k) for k in LOSSES] + [wide(*k) for k in LOSSES])
def test_ten_deletions_are_their_union(here: Problem) -> None:
    """To third order (linear: exactly), and to what eleven truncations leave out."""
    trained, gone = here.trained(), here.some(30)
    parts = np.array_split(gone, 10)
    ten = flat(reduce(lambda model, part: deleted(here, model, part), parts, trained))
    union = flat(deleted(here, trained, gone))
    change = union - flat(trained)
    assert relative(ten, union, change) < 0.02
    wanted = here.base_l(gone)
    limit = 0.01 if here.settings.loss == Loss.LINEAR else 0.15
    assert relative(ten, wanted, wanted - flat(trained)) < limit


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_two_deletions_are_their_union_to_third_order(
    loss: Loss, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "LEFT_OUT", 1e-7)
    here = small(loss, q, batch=400)
    trained = here.trained()
    own = np.flatnonzero(here.rows.labels == here.rows.labels[0])
    rates, distances = [], []
    for count in (40, 80, 160, 320):
        once = deleted(here, trained, own[: count // 2])
        twice = flat(deleted(here, once, own[count // 2 : count]))
        union = flat(deleted(here, trained, own[:count]))
        rates.append(count / 4000)
        distances.append(float(np.linalg.norm(twice - union)))
    assert order(rates, distances) >= 2.5


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("features", [3, 80])
def test_a_mini_batch_without_rows_leaves_exact_zeros(loss: Loss, q: int, features: int) -> None:
    rate = 0.05 if features == 3 else 0.005
    here = problem(loss, 200, features, q, batch=20, iterations=30, rate=rate, provenance="lowrank")
    slots = here.schedule.window_order(1, 0)[40:60]
    iteration = here.schedule.per_epoch + 2
    found = reduce(
        lambda model, part: deleted(here, model, part), (slots[:9], slots[9:]), here.trained()
    )
    factor = factors(found)[iteration]
    assert found.trace.live[iteration] == 0 and not found.trace.gradients[iteration].any()
    assert not len(factor.values) and factor.trace == 0.0
    more = np.setdiff1d(here.some(30), slots)
    again, wanted = deleted(here, found, more), here.base_l(np.union1d(slots, more))
    assert relative(flat(again), wanted, wanted) < 0.1


@settings(deadline=None, max_examples=60)
@given(small_problems("lowrank"))
def test_any_small_problem_is_updated_by_its_factors(drawn: tuple[Problem, np.ndarray]) -> None:
    here, gone = drawn
    trained = here.trained()
    found = here.updated(trained, gone)
    wanted = recursion(here, trained, gone, [product(f) for f in factors(trained)])
    scale = max(1.0, float(np.linalg.norm(wanted)))
    assert np.linalg.norm(found.change - wanted) <= 1e-9 * scale


def test_a_block_keeps_so_many_at_most() -> None:
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    many = Factor(np.array([4.0, 3.0, 2.0]), vectors[:3], 9.5)
    none = Factor(np.empty(0), np.empty((0, 5)), 0.0)
    part = stacked([many, none], 5, np.float64, 2)
    assert part.scaled.shape == (2, 2, 5) and part.ranks.tolist() == [2, 0]
    np.testing.assert_allclose(part.factor(0).values, [4.0, 3.0])
    assert stacked([many, none], 5, np.float32).vectors.shape == (2, 3, 5)
