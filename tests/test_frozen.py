"""Kind frozen and its two methods: exact until t_s, one eigen-decomposed curvature from there on."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from regression_problems import LOSSES, Problem, order, problem, relative, small_problems

from expunge.pipeline import frozen
from expunge.pipeline.frozen import FrozenBlocks, FrozenMean, frozen_span
from expunge.pipeline.losses import Loss
from expunge.pipeline.provenance import Blocks, add_curvature, curvature, unpack
from expunge.pipeline.regression_arrays import ExactBlocks, Trained, delete

CLASSIFIERS = LOSSES[1:]


def small(loss: Loss, q: int, **others: object) -> Problem:
    rate = 0.05 if loss == Loss.LINEAR else 0.3
    given = {"batch": 200, "iterations": 150, "rate": rate, "provenance": "frozen", "block": 12}
    return problem(loss, 4000, 5, q, **(given | others))  # type: ignore[arg-type]


def kept(trained: Trained) -> FrozenBlocks:
    assert isinstance(trained.kept, FrozenBlocks)
    return trained.kept


def deleted(here: Problem, trained: Trained, gone: np.ndarray, method: str = "delta") -> Trained:
    return delete(here.settings, here.schedule, trained, here.leaving(gone), method)


def flat(trained: Trained) -> np.ndarray:
    return trained.w.ravel()


def full(loss: Loss, rows: np.ndarray, curved: np.ndarray) -> np.ndarray:
    """The sum of some rows' Hessians."""
    size = rows.shape[1] * curved.shape[1]
    total = np.zeros((size, size), order="F")
    if len(rows):
        add_curvature(total, loss, rows, curved)
    return np.asarray(np.tril(total) + np.tril(total, -1).T)


def gradients(rows: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    return np.asarray((coefficients.T @ rows).ravel())


def sampled(here: Problem, trained: Trained) -> np.ndarray:
    """The slots, with repetition, whose rows make C*."""
    span = here.settings.frozen(here.schedule.per_epoch)
    slots = []
    for t in range(span.first, span.sampled):
        epoch, first, last = here.schedule.span(t)
        slots.append(here.schedule.window_order(epoch, 0)[first:last])
    every = np.concatenate(slots)
    return every[here.rows.units[every] >= 0]


def terms(here: Problem, w: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(summed Hessian, summed negative gradient) of some rows at w, from their formulas."""
    x, y, loss = here.design.take(here.rows.x, slots), here.rows.labels[slots], here.settings.loss
    q = here.q
    c = np.zeros((len(x), q))
    scores = x @ w.reshape(q, -1).T
    if loss == Loss.LINEAR:
        c = 2.0 * (y[:, None] - scores)
    elif loss == Loss.LOGISTIC:
        c = y[:, None] / (1.0 + np.exp(y[:, None] * scores))
    else:
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        c = -p / p.sum(axis=1, keepdims=True)
        c[np.arange(len(x)), y.astype(int)] += 1.0
    return full(loss, x, curvature(loss, w.reshape(q, -1), x, y)), gradients(x, c)


def recursion(here: Problem, trained: Trained, gone: np.ndarray) -> np.ndarray:
    """u before every iteration and at the end: the difference form with C_t, then (b' / n') C*'."""
    loss, d, trace = here.settings.loss, here.settings.descent, trained.trace
    mean, begin = kept(trained).mean, kept(trained).exact.blocks.iterations
    slots = sampled(here, trained)
    lost, _ = terms(here, trace.trajectory[begin], slots[np.isin(slots, gone)])
    remaining = (mean.vectors * mean.values) @ mean.vectors.T * mean.rows - lost
    remaining /= max(1, mean.rows - np.isin(slots, gone).sum())
    visits = here.visits(trained, gone)
    us = np.zeros((len(trace.live) + 1, trained.w.size))
    c = np.zeros((trained.w.size, trained.w.size))
    for t in range(len(trace.live)):
        u = us[t]
        own = visits.between(t, t + 1)
        before, after = trace.live[t], trace.live[t] - len(own.rows)
        if t < begin:
            exact = kept(trained).exact
            assert isinstance(exact, ExactBlocks)
            block, place = divmod(t, exact.blocks.length)
            unpack(exact.parts[block][place], c)
            fewer = c - full(loss, own.rows, own.curvature)
        else:
            fewer = after * remaining
        step = d.decay * u
        if before:
            step = step - d.learning_rate / before * trace.gradients[t]
        if after:
            left = trace.gradients[t] - gradients(own.rows, own.coefficients)
            step = step + d.learning_rate / after * (left - fewer @ u)
        us[t + 1] = step
    return us


# ------------------------------------------------------------------ what is frozen


def test_what_is_frozen() -> None:
    assert frozen_span(Blocks(100, 10), 7) == frozen.Span(70, 77)
    assert frozen_span(Blocks(100, 10), 1000) == frozen.Span(70, 100)
    assert frozen_span(Blocks(100, 12), 5) == frozen.Span(72, 77)
    # The last block is frozen at least; one block is frozen whole.
    assert frozen_span(Blocks(100, 60), 5).first == 60
    assert frozen_span(Blocks(1, 1), 1) == frozen.Span(0, 1)


@pytest.mark.parametrize(("first", "sampled"), [(70, 80), (75, 85), (73, 83), (70, 75), (78, 82)])
def test_rows_of_two_epochs_are_counted_unevenly(first: int, sampled: int) -> None:
    """Against rows in random order, a tenth of them an iteration."""
    rng = np.random.default_rng(0)
    counts = np.zeros(20_000)
    for epoch in (7, 8):
        order = rng.permutation(len(counts)).reshape(10, -1)
        for t in range(max(first, 10 * epoch), min(sampled, 10 * epoch + 10)):
            counts[order[t - 10 * epoch]] += 1
    wanted = len(counts) * np.square(counts / counts.sum() - 1.0 / len(counts)).sum()
    assert frozen.Span(first, sampled).unevenness(10) == pytest.approx(wanted, rel=0.05, abs=1e-12)


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("batch", [30, 200, 4000])
def test_the_mean_is_that_of_one_epoch_s_rows_at_the_freeze(loss: Loss, q: int, batch: int) -> None:
    here = small(loss, q, batch=batch)
    trained = here.trained()
    mean, begin = kept(trained).mean, kept(trained).exact.blocks.iterations
    assert begin == 108 and np.diff(mean.values).min() >= 0.0
    slots = sampled(here, trained)
    assert mean.rows == len(slots) == {30: 41 * 30 + 10, 200: 4000, 4000: 4000}[batch]
    c, g = terms(here, trained.trace.trajectory[begin], slots)
    found = (mean.vectors * mean.values) @ mean.vectors.T * mean.rows
    assert relative(found, c, c) < 1e-4
    np.testing.assert_allclose(mean.gradient, g, atol=1e-8 * len(slots))


# ------------------------------------------------------------------ delta


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("count", [1, 40, 1000])
def test_delta_is_the_difference_form_with_one_curvature(loss: Loss, q: int, count: int) -> None:
    here = small(loss, q)
    trained, gone = here.trained(), here.some(count)
    found = here.updated(trained, gone)
    wanted = recursion(here, trained, gone)
    assert relative(found.change, wanted[-1], wanted[-1]) < 1e-9
    np.testing.assert_allclose(found.starts, np.vstack([wanted[:-1:12], wanted[-1]]), atol=1e-9)


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("method", ["delta", "priu-opt"])
def test_frozen_is_near_base_l(loss: Loss, q: int, method: str) -> None:
    here = small(loss, q, iterations=400, block=20)
    trained, gone = here.trained(), here.some(40)
    w, wanted = flat(trained), here.base_l(gone)
    found = relative(flat(deleted(here, trained, gone, method)), wanted, wanted - w)
    assert found < (0.02 if method == "delta" else 0.5)


@settings(deadline=None, max_examples=60)
@given(small_problems("frozen", 4))
def test_any_small_problem_is_updated_by_its_curvature(drawn: tuple[Problem, np.ndarray]) -> None:
    here, gone = drawn
    trained = here.trained()
    found = here.updated(trained, gone)
    wanted = recursion(here, trained, gone)
    scale = max(1.0, float(np.abs(wanted).max()))
    assert np.abs(found.change - wanted[-1]).max() <= 1e-9 * scale


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_the_error_grows_with_what_is_frozen(
    loss: Loss, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curvature is stale by (t - t_s) steps, so the first part of the error is of second order
    in tau - t_s; what mini-batches have of their own adds to it. Full batches have none."""
    here = small(loss, q, batch=4000, iterations=200, block=10, rate=0.1)
    gone = here.some(200)
    span = frozen.frozen_span
    sizes, errors = [], []
    exact = None
    for share in (1.0, 0.95, 0.9, 0.8, 0.6):
        monkeypatch.setattr(
            "expunge.pipeline.regression.frozen_span", lambda b, e, share=share: span(b, e, share)
        )
        if share == 1.0:
            whole = replace(here, settings=replace(here.settings, provenance="exact"))
            exact = flat(deleted(whole, whole.trained(), gone)) - flat(whole.trained())
            continue
        trained = here.trained()
        assert exact is not None
        found = flat(deleted(here, trained, gone)) - flat(trained)
        sizes.append(200 * (1.0 - share))
        errors.append(relative(found, exact, exact))
    assert errors[0] < 1e-3
    assert order(sizes, errors) == pytest.approx(2.0, abs=0.5)


# ------------------------------------------------------------------ priu-opt


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_priu_opt_is_two_descents_with_frozen_terms(loss: Loss, q: int, l2: float) -> None:
    """Step by step from t_s on: all rows, their terms at w_{t_s}, the new eigenvalues on the diagonal."""
    here = small(loss, q, l2=l2)
    trained, gone = here.trained(), here.some(60)
    begin, mean = kept(trained).exact.blocks.iterations, kept(trained).mean
    d, n, left = here.settings.descent, 4000, 4000 - 60
    w = trained.trace.trajectory[begin]
    u = recursion(here, trained, gone)[begin]
    vectors = mean.vectors.astype(np.float64)
    c = (vectors * mean.values) @ vectors.T * n
    g = mean.gradient / mean.rows * n
    lost_c, lost_g = terms(here, w, gone)
    turned = vectors.T @ (c - lost_c) @ vectors
    fewer = (vectors * np.diag(turned)) @ vectors.T
    one, other = w.copy(), w + u
    for _ in range(here.settings.iterations - begin):
        one = d.decay * one + d.learning_rate / n * (g - c @ (one - w))
        other = d.decay * other + d.learning_rate / left * (g - lost_g - fewer @ (other - w))
    wanted = other - one
    found = flat(deleted(here, trained, gone, "priu-opt")) - flat(trained)
    assert relative(found, wanted, wanted) < 1e-4


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_priu_opt_of_full_batches_is_near(loss: Loss, q: int) -> None:
    """Where mini-batches are all rows, nothing but the freeze is approximate."""
    here = small(loss, q, batch=4000, iterations=200, block=10)
    trained, gone = here.trained(), here.some(40)
    w, wanted = flat(trained), here.base_l(gone)
    ours = relative(flat(deleted(here, trained, gone, "priu-opt")), wanted, wanted - w)
    assert ours < 0.03


def test_priu_opt_moves_nothing_where_nothing_leaves() -> None:
    here = small(Loss.LOGISTIC, 1)
    trained = here.trained()
    again = deleted(here, trained, np.empty(0, np.int64), "priu-opt")
    np.testing.assert_array_equal(again.w, trained.w)


def test_eigenvalues_of_a_step_may_be_zero_or_negative() -> None:
    rng = np.random.default_rng(0)
    here = small(Loss.LOGISTIC, 1)
    vectors = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    visits = here.visits(here.trained(), np.empty(0, np.int64))
    for factor in (0.0, -0.8, 1.0):
        descent = replace(here.settings.descent, l2=0.0)
        values = np.full(6, (1.0 - factor) / descent.learning_rate)
        mean = FrozenMean(values, vectors, rng.normal(size=6), 10)
        w, u = rng.normal(size=6), rng.normal(size=6)
        found = frozen.priu_opt_change(descent, w, mean, u, 9, 10, visits)
        np.testing.assert_allclose(found, factor**9 * u, atol=1e-12)


# ------------------------------------------------------------------ rebase


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_the_rebased_mean_is_that_of_the_rows_left(loss: Loss, q: int) -> None:
    """C* and G* as captured at the same place without the rows, then moved along: no term stays."""
    here = small(loss, q, dtype="float64")
    trained, gone = here.trained(), here.some(300)
    found = deleted(here, trained, gone)
    begin = kept(trained).exact.blocks.iterations
    u = recursion(here, trained, gone)[begin]
    slots = sampled(here.without(gone), trained)
    c, g = terms(here, trained.trace.trajectory[begin], slots)
    mean = kept(found).mean
    assert mean.rows == len(slots) < kept(trained).mean.rows
    whole = (mean.vectors * mean.values) @ mean.vectors.T * mean.rows
    assert relative(whole, c, c) < 1e-4
    assert relative(mean.gradient, g - c @ u, g) < 1e-4


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_the_rebased_steps_still_make_the_trajectory(loss: Loss, q: int) -> None:
    here = small(loss, q)
    trained, gone = here.trained(), here.some(100)
    found = deleted(here, trained, gone)
    trace, d = found.trace, here.settings.descent
    np.testing.assert_allclose(
        trace.trajectory, trained.trace.trajectory + recursion(here, trained, gone)[:-1], atol=1e-9
    )
    after = np.vstack([trace.trajectory[1:], flat(found)])
    step = d.learning_rate / trace.live[:, np.newaxis] * trace.gradients
    np.testing.assert_allclose(after, d.decay * trace.trajectory + step, atol=1e-10)


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("method", ["delta", "priu-opt"])
def test_ten_deletions_are_their_union(loss: Loss, q: int, method: str) -> None:
    here = small(loss, q, iterations=400, block=20)
    trained, gone = here.trained(), here.some(100)
    parts = np.array_split(gone, 10)
    ten = flat(reduce(lambda model, part: deleted(here, model, part, method), parts, trained))
    union, wanted = flat(deleted(here, trained, gone, method)), here.base_l(gone)
    change = union - flat(trained)
    assert relative(ten, union, change) < 0.03
    assert relative(ten, wanted, wanted - flat(trained)) < (0.03 if method == "delta" else 0.3)


def test_a_frozen_mini_batch_without_rows_leaves_exact_zeros() -> None:
    here = problem(
        Loss.SOFTMAX, 200, 3, 3, batch=20, iterations=40, provenance="frozen", block=5, rate=0.05
    )
    iteration = 36
    epoch, first, last = here.schedule.span(iteration)
    slots = here.schedule.window_order(epoch, 0)[first:last]
    found = reduce(
        lambda model, part: deleted(here, model, part), (slots[:9], slots[9:]), here.trained()
    )
    assert found.trace.live[iteration] == 0
    assert not found.trace.gradients[iteration].any()
    more = np.setdiff1d(here.some(20), slots)
    again, wanted = deleted(here, found, more), here.base_l(np.union1d(slots, more))
    assert not again.trace.gradients[iteration].any()
    assert relative(flat(again), wanted, wanted) < 0.1


def test_all_rows_of_the_freeze_may_leave() -> None:
    here = problem(
        Loss.LOGISTIC, 400, 2, batch=20, iterations=20, provenance="frozen", block=6, rate=0.05
    )
    trained = here.trained()
    slots = np.unique(sampled(here, trained))
    found = deleted(here, trained, slots)
    mean = kept(found).mean
    assert mean.rows == 0 and not mean.values.any() and not mean.gradient.any()
    for method in ("delta", "priu-opt"):
        again = deleted(here, found, np.setdiff1d(np.arange(400), slots)[:3], method)
        assert np.isfinite(again.w).all()
