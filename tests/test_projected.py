"""Kind projected: curvature in the rows' principal components, its update and its rebase."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from projected_rows import spectral
from regression_problems import LOSSES, Problem, order, relative, small_problems

from expunge.pipeline.components import Basis, basis_of, choose_rank, most_rank, spectrum
from expunge.pipeline.descent import Descent
from expunge.pipeline.losses import Loss
from expunge.pipeline.projected import (
    ProjectedBlocks,
    TracedTouches,
    mean_output,
    rebase_projected_block,
    update_projected,
)
from expunge.pipeline.provenance import add_curvature
from expunge.pipeline.regression_arrays import Trained, delete, mean_gram
from expunge.pipeline.regression_kinds import AveragedBlocks
from expunge.pipeline.visits import visits_at

CLASSIFIERS = LOSSES[1:]


def deleted(here: Problem, trained: Trained, gone: np.ndarray) -> Trained:
    return delete(here.settings, here.schedule, trained, here.leaving(gone), "delta")


def kept(trained: Trained) -> ProjectedBlocks:
    assert isinstance(trained.kept, ProjectedBlocks)
    return trained.kept


def dense(eigen: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    values, vectors = (part.astype(np.float64) for part in eigen)
    return np.asarray((vectors * values) @ vectors.T)


def distance(here: Problem, gone: np.ndarray) -> float:
    """Of an update to BaseL, over the change."""
    trained, wanted = here.trained(), here.base_l(gone)
    found = deleted(here, trained, gone).w.ravel()
    return relative(found, wanted, wanted - trained.w.ravel())


# ------------------------------------------------------------------ basis


def test_the_basis_is_the_bias_and_the_features_components() -> None:
    here = spectral(Loss.LOGISTIC, 1)
    gram = mean_gram(here.design, here.rows)
    basis = basis_of(gram, 4, np.float64)
    m = len(gram)
    np.testing.assert_allclose(basis.vectors.T @ basis.vectors, np.eye(m), atol=1e-12)
    np.testing.assert_array_equal(basis.vectors[:, 0], np.eye(m)[-1])
    turned = basis.vectors.T @ gram @ basis.vectors
    # The features' mean is 0, so that the bias is a component of its own.
    np.testing.assert_allclose(turned, np.diag(basis.values), atol=1e-5)
    np.testing.assert_allclose(basis.values, spectrum(gram), atol=1e-12)
    assert (np.diff(basis.values[1:]) <= 0).all()


def test_vectors_have_a_part_inside_and_a_part_outside() -> None:
    rng = np.random.default_rng(0)
    here = spectral(Loss.SOFTMAX, 3)
    basis = basis_of(mean_gram(here.design, here.rows), 5, np.float64)
    u = rng.normal(size=(2, 3 * here.design.width))
    inside = basis.inside(u)
    assert inside.shape == (2, 15) and basis.whole(inside).shape == u.shape
    np.testing.assert_allclose(basis.inside(basis.whole(inside)), inside, atol=1e-12)
    np.testing.assert_allclose(basis.whole(inside) + basis.outside(u), u, atol=1e-12)
    assert np.abs(basis.inside(basis.outside(u))).max() < 1e-12
    rows = rng.normal(size=(7, here.design.width))
    matrix, leading = u[0].reshape(3, -1), basis.vectors[:, :5]
    np.testing.assert_allclose(basis.inside(rows), rows @ leading, atol=1e-12)
    np.testing.assert_allclose(inside[0].reshape(3, 5), matrix @ leading, atol=1e-12)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(2, 300),
    st.floats(0.5, 1.0),
    st.sampled_from([1, 2, 10, 400]),
    st.floats(1e-5, 1.0),
    st.integers(1, 10_000),
)
def test_the_rank_is_the_least_that_neglects_little(
    m: int, falling: float, outputs: int, rate: float, iterations: int
) -> None:
    values = np.array([10.0 * falling**k for k in range(m)])
    descent = Descent(Loss.SOFTMAX if outputs > 1 else Loss.LOGISTIC, rate, 0.01)
    rank, neglected = choose_rank(values, descent, iterations, outputs)
    assert 1 <= rank <= most_rank(m, outputs) <= m
    assert neglected <= 0.01 or rank == most_rank(m, outputs)
    assert neglected >= 0.0 and (rank < m or neglected == 0.0)
    more = choose_rank(values, descent, 2 * iterations, outputs)
    assert more[0] >= rank


# ------------------------------------------------------------------ update


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_in_all_components_it_is_averaged(loss: Loss, q: int) -> None:
    here = spectral(loss, q)
    whole = here.design.width
    here = replace(here, settings=replace(here.settings, rank=whole))
    plain = replace(here, settings=replace(here.settings, provenance="averaged"))
    gone = here.some(40)
    found, wanted = (deleted(p, p.trained(), gone) for p in (here, plain))
    change = wanted.w - plain.trained().w
    assert relative(found.w, wanted.w, change) < 1e-10
    for one, other in (
        (found.trace.trajectory, wanted.trace.trajectory),
        (found.trace.gradients, wanted.trace.gradients),
    ):
        assert relative(one, other, other) < 1e-12
    np.testing.assert_array_equal(found.trace.live, wanted.trace.live)
    assert isinstance(wanted.kept, AveragedBlocks)
    basis = kept(found).basis
    turn = np.kron(np.eye(q), basis.vectors)
    for part, other_part in zip(kept(found).parts, wanted.kept.parts, strict=True):
        mean = dense(other_part)
        np.testing.assert_allclose(turn @ dense(part) @ turn.T, mean, atol=1e-10)
        np.testing.assert_allclose(mean_output(basis, part), _bias(mean, q), atol=1e-10)


def _bias(mean: np.ndarray, q: int) -> np.ndarray:
    """The mean of a row's curvature: the bias is the last column."""
    m = len(mean) // q
    return mean[m - 1 :: m, m - 1 :: m]


@settings(deadline=None, max_examples=60)
@given(small_problems("projected", 3))
def test_any_small_problem_in_all_components_is_averaged(drawn: tuple[Problem, np.ndarray]) -> None:
    here, gone = drawn
    here = replace(here, settings=replace(here.settings, rank=here.design.width))
    plain = replace(here, settings=replace(here.settings, provenance="averaged"))
    one, other = (p.updated(p.trained(), gone).change for p in (here, plain))
    scale = max(1.0, float(np.linalg.norm(other)))
    assert np.linalg.norm(one - other) <= 1e-8 * scale


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_the_update_is_the_difference_form_with_both_curvatures(loss: Loss, q: int) -> None:
    """Step by step with V C_V V^T + D (x) Lambda, less the deleted rows' own part inside."""
    here = spectral(loss, q)
    trained, gone = here.trained(), here.some(40)
    found = update_projected(
        here.settings.descent,
        kept(trained),
        TracedTouches(trained.trace, here.visits(trained, gone)),
    )
    wanted = _recursion(here, trained, gone)
    assert relative(found.change, wanted, wanted) < 0.01
    outside = kept(trained).basis.outside
    assert np.linalg.norm(outside(wanted)) > 0.1 * np.linalg.norm(wanted)
    assert relative(outside(found.change), outside(wanted), outside(wanted)) < 0.01
    assert not found.starts[0].any()
    np.testing.assert_array_equal(found.starts[-1], found.change)


def _recursion(here: Problem, trained: Trained, gone: np.ndarray) -> np.ndarray:
    d, basis, trace = here.settings.descent, kept(trained).basis, trained.trace
    q, m = here.q, here.design.width
    leading, rest = basis.vectors[:, : basis.rank], basis.vectors[:, basis.rank :]
    turn, visits = np.kron(np.eye(q), leading), here.visits(trained, gone)
    far = (rest * basis.values[basis.rank :]) @ rest.T
    u = np.zeros(q * m)
    for t, live in enumerate(trace.live):
        eigen = kept(trained).parts[t // here.settings.block]
        own = visits.between(t, t + 1)
        left = live - len(own.rows)
        lost = np.zeros((q * m, q * m), order="F")
        if len(own.rows):
            add_curvature(lost, d.loss, own.rows, own.curvature)
        lost = turn @ turn.T @ (np.tril(lost) + np.tril(lost, -1).T) @ turn @ turn.T
        mean = turn @ dense(eigen) @ turn.T * live - lost
        mean += left * np.kron(mean_output(basis, eigen), far)
        g = trace.gradients[t] - (own.coefficients.T @ own.rows).ravel()
        step = d.learning_rate / left * (g - mean @ u) - d.learning_rate / live * trace.gradients[t]
        u = d.decay * u + step
    return u


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_an_update_is_near_base_l(loss: Loss, q: int) -> None:
    here = spectral(loss, q, falling=0.01)
    for count in (4, 40):
        assert distance(here, here.some(count)) < 0.03


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_the_error_falls_with_what_is_dropped(
    loss: Loss, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against averaged curvature; features of the same rows with a smaller and smaller rest."""
    monkeypatch.setattr("expunge.pipeline.averaged.SMEAR", 0.0)
    spreads, errors = [], []
    for spread in (1.0, 0.5, 0.25, 0.125, 0.06):
        here = spectral(loss, q, rest=spread)
        plain = replace(here, settings=replace(here.settings, provenance="averaged"))
        gone = here.some(40)
        one, other = (deleted(p, p.trained(), gone).w for p in (here, plain))
        spreads.append(spread)
        errors.append(relative(one, other, other - plain.trained().w))
    assert errors[-1] < 0.003
    # What couples the rest to the basis is of first order in its spread, curvature of second.
    assert 0.9 < order(spreads, errors) < 2.5


def test_without_visits_nothing_changes() -> None:
    here = spectral(Loss.SOFTMAX, 3)
    trained = here.trained()
    again = deleted(here, trained, np.empty(0, np.int64))
    np.testing.assert_array_equal(again.w, trained.w)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 1.2])
def test_whatever_the_weights_decay_by_it_is_no_worse_than_averaged(share: float) -> None:
    """Also where all that was is forgotten in a step: eta lambda = 1."""
    here = spectral(Loss.LOGISTIC, 1)
    here = replace(here, settings=replace(here.settings, l2=share / here.settings.learning_rate))
    plain = replace(here, settings=replace(here.settings, provenance="averaged"))
    gone = here.some(10)
    assert distance(here, gone) < 1.1 * distance(plain, gone) + 0.03


# ------------------------------------------------------------------ rebase


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("share", [0.003, 0.2])
def test_a_rebased_trace_s_own_steps_lead_from_one_to_the_next(
    loss: Loss, q: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From block to block too, where the update does not smear what it moves: to the new model."""
    monkeypatch.setattr("expunge.pipeline.averaged.SMEAR", 0.0)
    here = spectral(loss, q)
    here = replace(here, settings=replace(here.settings, l2=share / here.settings.learning_rate))
    trained = here.trained()
    found = deleted(here, trained, here.some(40))
    new, d = found.trace, here.settings.descent
    after = d.decay * new.trajectory + (d.learning_rate / new.live)[:, None] * new.gradients
    following = np.vstack([new.trajectory[1:], found.w.ravel()])
    moved = following - np.vstack([trained.trace.trajectory[1:], trained.w.ravel()])
    assert relative(after, following, moved) < 1e-9


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_nothing_of_a_deleted_row_is_left_in_a_rebased_block(loss: Loss, q: int) -> None:
    """At u = 0 a block is that of the rows left: the same gradients and curvature, summed anew."""
    here = spectral(loss, q)
    trained, gone = here.trained(), here.some(400)
    basis, length, d = kept(trained).basis, here.settings.block, here.settings.descent
    block = 3
    trace = trained.trace.part(block * length, (block + 1) * length)
    visits = here.visits(trained, gone).part(block * length, (block + 1) * length)
    start = np.zeros(trained.w.size)
    here_now = rebase_projected_block(d, trace, basis, kept(trained).parts[block], visits, start)
    sums = np.zeros_like(trace.gradients)
    mean = np.zeros((q * basis.rank, q * basis.rank), order="F")
    for t in range(length):
        epoch, first, last = here.schedule.span(block * length + t)
        slots = here.schedule.window_order(epoch, 0)[first:last]
        slots = np.setdiff1d(slots, gone)
        x = here.design.take(here.rows.x, slots)
        at = np.full(len(slots), t)
        terms = visits_at(loss, at, x, here.rows.labels[slots], trace.trajectory)
        sums[t] = (terms.coefficients.T @ x).ravel()
        add_curvature(mean, loss, basis.inside(x) / len(x) ** 0.5, terms.curvature)
        assert here_now.trace.live[t] == len(slots)
    mean = (np.tril(mean) + np.tril(mean, -1).T) / length
    # The mean was taken over b_t, and that of some iterations moves with b'_t.
    assert relative(dense(here_now.eigen), mean, mean) < 0.01
    first = int(visits.iteration[0])
    bent = here_now.trace.gradients - sums
    assert np.abs(basis.inside(bent[: first + 1])).max() < 1e-9
    # Outside of the basis it is one drift for the whole block, as small as u there.
    outside = basis.outside(bent) / here_now.trace.live[:, np.newaxis]
    np.testing.assert_allclose(outside, np.tile(outside[0], (length, 1)), atol=1e-10)
    moved = basis.outside(here_now.trace.trajectory - trace.trajectory)
    largest = 2.0 * basis.values[basis.rank] * np.linalg.norm(moved, axis=1).max()
    assert 0.0 < np.linalg.norm(outside[0]) <= largest


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_ten_deletions_are_their_union(loss: Loss, q: int) -> None:
    here = spectral(loss, q, falling=0.01)
    trained, gone = here.trained(), here.some(60)
    parts = np.array_split(gone, 10)
    ten = reduce(lambda model, part: deleted(here, model, part), parts, trained).w
    union, wanted = deleted(here, trained, gone).w, here.base_l(gone)
    assert relative(ten, union, union - trained.w) < 0.02
    assert relative(ten.ravel(), wanted, wanted - trained.w.ravel()) < 0.05


def test_a_mini_batch_without_rows_leaves_exact_zeros() -> None:
    here = spectral(Loss.SOFTMAX, 3, batch=20, rows=400)
    slots = here.schedule.window_order(1, 0)[40:60]
    iteration = here.schedule.per_epoch + 2
    found = deleted(here, deleted(here, here.trained(), slots[:9]), slots[9:])
    assert found.trace.live[iteration] == 0 and not found.trace.gradients[iteration].any()
    assert np.isfinite(found.w).all()


def test_what_it_is_given_stays_as_it_is() -> None:
    here = spectral(Loss.SOFTMAX, 3)
    trained = here.trained()
    before = (trained.trace.trajectory.copy(), trained.trace.gradients.copy(), trained.w.copy())
    deleted(here, trained, here.some(40))
    for one, other in zip(
        before, (trained.trace.trajectory, trained.trace.gradients, trained.w), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_single_precision_costs_little() -> None:
    here = spectral(Loss.SOFTMAX, 3)
    short = replace(here, settings=replace(here.settings, dtype="float32"))
    gone = here.some(40)
    one, other = (deleted(p, p.trained(), gone).w for p in (here, short))
    assert relative(other, one, one - here.trained().w) < 1e-4
    assert kept(short.trained()).basis.vectors.dtype == np.float32


def test_a_basis_in_double_precision() -> None:
    basis = Basis(np.eye(3, dtype=np.float32), np.ones(3), 2)
    assert basis.wide().vectors.dtype == np.float64 and basis.vectors.dtype == np.float32
