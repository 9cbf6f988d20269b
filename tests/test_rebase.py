"""After a deletion the provenance is that of the model without the rows, so deletions add up."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression_problems import Problem, order, problem, relative

from expunge.pipeline.losses import Loss
from expunge.pipeline.regression_arrays import AveragedBlocks, ExactBlocks, Trained, delete

CLASSIFIERS = [(Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]


def deleted(here: Problem, trained: Trained, gone: np.ndarray, method: str = "delta") -> Trained:
    return delete(here.settings, here.schedule, trained, here.leaving(gone), method)


def flat(trained: Trained) -> np.ndarray:
    return trained.w.ravel()


def curvatures(trained: Trained) -> np.ndarray:
    assert isinstance(trained.kept, ExactBlocks)
    return np.concatenate(trained.kept.parts)


linear_problems = st.builds(
    problem,
    st.just(Loss.LINEAR),
    st.integers(2, 40),
    st.integers(1, 3),
    batch=st.integers(1, 45),
    iterations=st.integers(1, 40),
    rate=st.just(0.05),
    seed=st.integers(0, 1000),
    block=st.integers(1, 9),
)


@settings(deadline=None, max_examples=100)
@given(linear_problems, st.data())
def test_a_rebased_linear_model_is_base_l_s(here: Problem, data: st.DataObject) -> None:
    """Parameters, trajectory, G, C, b and products: no term of a deleted row is left."""
    n = len(here.rows.x)
    first = sorted(data.draw(st.sets(st.integers(0, n - 1))))
    second = sorted(data.draw(st.sets(st.sampled_from(range(n)))) - set(first))
    found = here.trained()
    for gone in (first, second):
        found = deleted(here, found, np.array(gone, np.int64))
    wanted = here.without(np.array(first + second, np.int64)).trained()
    for one, other in (
        (found.w, wanted.w),
        (found.trace.trajectory, wanted.trace.trajectory),
        (found.trace.gradients, wanted.trace.gradients),
        (curvatures(found), curvatures(wanted)),
    ):
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * scale)
    np.testing.assert_array_equal(found.trace.live, wanted.trace.live)
    assert isinstance(found.kept, ExactBlocks) and isinstance(wanted.kept, ExactBlocks)
    assert len(found.kept.products) == len(wanted.kept.products)
    for p, r in zip(found.kept.products, wanted.kept.products, strict=True):
        np.testing.assert_allclose(p, r, rtol=0, atol=1e-10)


def test_products_of_touched_blocks_are_made_anew() -> None:
    here = problem(Loss.LINEAR, 6000, 3, batch=200, iterations=150, rate=0.05, block=13)
    trained, gone = here.trained(), here.some(5)
    found, wanted = deleted(here, trained, gone), here.without(gone).trained()
    for kept in (trained.kept, found.kept, wanted.kept):
        assert isinstance(kept, ExactBlocks) and len(kept.products) == 12
    assert isinstance(found.kept, ExactBlocks) and isinstance(wanted.kept, ExactBlocks)
    np.testing.assert_allclose(found.kept.products, wanted.kept.products, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_two_deletions_are_their_union_to_third_order(loss: Loss, q: int) -> None:
    here = problem(loss, 4000, 4, q, batch=400, iterations=150, rate=0.3)
    trained = here.trained()
    own = np.flatnonzero(here.rows.labels == here.rows.labels[0])
    rates, distances = [], []
    for count in (40, 80, 160, 320):
        one, other = own[: count // 2], own[count // 2 : count]
        twice = flat(deleted(here, deleted(here, trained, one), other))
        union = flat(deleted(here, trained, own[:count]))
        rates.append(count / 4000)
        distances.append(float(np.linalg.norm(twice - union)))
    assert order(rates, distances) >= 2.5


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_ten_deletions_are_of_second_order_in_the_total(loss: Loss, q: int) -> None:
    here = problem(loss, 4000, 4, q, batch=400, iterations=150, rate=0.3)
    trained = here.trained()
    own = np.flatnonzero(here.rows.labels == here.rows.labels[0])
    rates, distances = [], []
    for count in (40, 80, 160, 320):
        gone = own[:count]
        found = reduce(
            lambda model, part: deleted(here, model, part), np.array_split(gone, 10), trained
        )
        wanted = here.base_l(gone)
        rates.append(count / 4000)
        distances.append(float(np.linalg.norm(flat(found) - wanted)))
        assert relative(flat(found), wanted, wanted - flat(trained)) < 2 * count / 4000
    assert order(rates, distances) == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize(("loss", "q"), [(Loss.LINEAR, 1), *CLASSIFIERS])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mini_batch_without_rows_leaves_exact_zeros(loss: Loss, q: int, dtype: str) -> None:
    """Deleted in two halves: rounding must not survive the last row."""
    here = problem(loss, 200, 3, q, batch=20, iterations=30, dtype=dtype, rate=0.05)
    slots = here.schedule.window_order(1, 0)[40:60]
    iteration = here.schedule.per_epoch + 2
    found = reduce(
        lambda model, part: deleted(here, model, part), (slots[:9], slots[9:]), here.trained()
    )
    assert found.trace.live[iteration] == 0
    assert not found.trace.gradients[iteration].any()
    assert not curvatures(found)[iteration].any()
    more = np.setdiff1d(here.some(30), slots)
    again = deleted(here, found, more)
    assert not again.trace.gradients[iteration].any() and not curvatures(again)[iteration].any()
    wanted = here.base_l(np.union1d(slots, more))
    assert relative(flat(again), wanted, wanted) < (1e-5 if loss == Loss.LINEAR else 0.05)


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_the_rebased_steps_still_make_the_trajectory(loss: Loss, q: int) -> None:
    here = problem(loss, 500, 3, q, batch=50, iterations=60)
    found = deleted(here, here.trained(), here.some(20))
    trace, descent = found.trace, here.settings.descent
    after = np.vstack([trace.trajectory[1:], flat(found)])
    step = descent.learning_rate / trace.live[:, np.newaxis] * trace.gradients
    np.testing.assert_allclose(after, descent.decay * trace.trajectory + step, atol=1e-12)


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_priu_leaves_the_provenance_of_delta(loss: Loss, q: int) -> None:
    here = problem(loss, 500, 3, q, batch=50, iterations=60)
    trained, gone = here.trained(), here.some(20)
    one, other = deleted(here, trained, gone, "delta"), deleted(here, trained, gone, "priu")
    np.testing.assert_array_equal(one.trace.trajectory, other.trace.trajectory)
    assert relative(flat(other), flat(one), flat(one) - flat(trained)) < 1e-9


def test_a_deletion_changes_nothing_that_it_is_given() -> None:
    here = problem(Loss.LOGISTIC, 500, 3, batch=50, iterations=60)
    trained = here.trained()
    before = [a.copy() for a in (trained.w, trained.trace.trajectory, curvatures(trained))]
    deleted(here, trained, here.some(20))
    for old, new in zip(
        before, (trained.w, trained.trace.trajectory, curvatures(trained)), strict=True
    ):
        np.testing.assert_array_equal(old, new)


# ----------------------------------------------------------------------------- averaged


def averaged_problem(loss: Loss, q: int) -> Problem:
    rate = 0.05 if loss == Loss.LINEAR else 0.3
    return problem(
        loss, 20_000, 5, q, batch=1000, iterations=200, rate=rate, provenance="averaged", block=20
    )


@pytest.mark.parametrize(("loss", "q"), [(Loss.LINEAR, 1), *CLASSIFIERS])
def test_ten_averaged_deletions_stay_near(loss: Loss, q: int) -> None:
    here = averaged_problem(loss, q)
    trained, gone = here.trained(), here.some(200)
    found = reduce(
        lambda model, part: deleted(here, model, part), np.array_split(gone, 10), trained
    )
    wanted = here.base_l(gone)
    assert relative(flat(found), wanted, wanted - flat(trained)) < 0.05


@pytest.mark.parametrize(("loss", "q"), [(Loss.LINEAR, 1), *CLASSIFIERS])
def test_an_averaged_block_is_captured_without_the_rows(loss: Loss, q: int) -> None:
    """The mean curvature is that of BaseL's training to a few per cent, and so are w_t and G_t."""
    here = averaged_problem(loss, q)
    trained, gone = here.trained(), here.some(1000)
    found, wanted = deleted(here, trained, gone), here.without(gone).trained()
    np.testing.assert_array_equal(found.trace.live, wanted.trace.live)
    moved = wanted.trace.trajectory - trained.trace.trajectory
    assert relative(found.trace.trajectory, wanted.trace.trajectory, moved) < 0.1
    moved = wanted.trace.gradients - trained.trace.gradients
    assert relative(found.trace.gradients, wanted.trace.gradients, moved) < 0.1
    assert isinstance(found.kept, AveragedBlocks) and isinstance(wanted.kept, AveragedBlocks)
    for block in range(10):
        one, other = ((v * e) @ v.T for e, v in (found.kept.eigen(block), wanted.kept.eigen(block)))
        assert relative(one, other, other) < 0.02
    after = np.vstack([found.trace.trajectory[1:], flat(found)])
    descent, live = here.settings.descent, found.trace.live[:, np.newaxis]
    step = descent.learning_rate / live * found.trace.gradients
    next_one = descent.decay * found.trace.trajectory + step
    # The parameters come from forcings taken together, the trace from each by itself.
    moved = np.abs(flat(found) - flat(trained)).max()
    np.testing.assert_allclose(after, next_one, rtol=0, atol=0.02 * moved)


def test_an_averaged_mini_batch_without_rows() -> None:
    here = problem(Loss.LOGISTIC, 400, 3, batch=20, iterations=60, provenance="averaged", block=6)
    gone = np.sort(here.schedule.window_order(0, 0)[:20])
    found = deleted(here, here.trained(), gone)
    assert found.trace.live[0] == 0
    assert np.abs(found.trace.gradients[0]).max() == 0.0
    more = np.setdiff1d(here.some(10), gone)
    again = deleted(here, found, more)
    wanted = here.base_l(np.union1d(gone, more))
    assert relative(flat(again), wanted, wanted) < 0.1
