"""The influence function, extended to sets of rows (method infl)."""

from __future__ import annotations

import numpy as np
import pytest
from regression_problems import Problem, order, problem, relative

from expunge.pipeline.influence import downdated, influence_change
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression_arrays import Trained, delete, summed_hessian
from expunge.pipeline.visits import visits_at

LOSSES = [(Loss.LINEAR, 1), (Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]
CLASSIFIERS = LOSSES[1:]


def converged(loss: Loss, q: int, l2: float = 0.05, n: int = 1000) -> Problem:
    """Full batches until nothing moves."""
    rate = 0.15 if loss == Loss.LINEAR else 1.0
    return problem(loss, n, 4, q, batch=n, iterations=600, rate=rate, l2=l2, provenance="averaged")


def deleted(here: Problem, trained: Trained, gone: np.ndarray) -> Trained:
    hessian = summed_hessian(here.settings.loss, here.design, here.rows, trained.w)
    leaving = here.leaving(gone)
    return delete(here.settings, here.schedule, trained, leaving, "infl", hessian)


def by_hand(here: Problem, w: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """Koh and Liang's formula from numerical derivatives of the objective."""
    x, y = here.design.rows(here.rows.x), here.rows.labels

    def gradient(at: np.ndarray, some: np.ndarray) -> np.ndarray:
        rows, labels = x[some], y[some]
        if here.settings.loss == Loss.LINEAR:
            own = 2.0 * rows.T @ (rows @ at - labels)
        elif here.settings.loss == Loss.LOGISTIC:
            own = -rows.T @ (labels / (1.0 + np.exp(labels * (rows @ at))))
        else:
            scores = rows @ at.reshape(3, -1).T
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(rows)), labels.astype(int)] -= 1.0
            own = (p.T @ rows).ravel()
        return np.asarray(own + len(rows) * here.settings.l2 * at)

    everyone, step = np.arange(len(x)), 1e-5
    hessian = np.array(
        [
            (gradient(w + step * e, everyone) - gradient(w - step * e, everyone)) / (2.0 * step)
            for e in np.eye(len(w))
        ]
    )
    return np.asarray(np.linalg.pinv(hessian, rcond=1e-8) @ gradient(w, gone))


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_infl_is_its_formula(loss: Loss, q: int, l2: float) -> None:
    here = converged(loss, q, l2)
    trained, gone = here.trained(), here.some(30)
    w = trained.w.ravel()
    found = deleted(here, trained, gone).w.ravel() - w
    wanted = by_hand(here, w, gone)
    assert relative(found, wanted, wanted) < 1e-4


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_infl_is_of_second_order_where_the_descent_has_ended(loss: Loss, q: int) -> None:
    """More and more of 80 rows that are alike: every term grows with their number."""
    here = converged(loss, q)
    here.rows.x[:80], here.rows.labels[:80] = here.rows.x[0], here.rows.labels[0]
    trained = here.trained()
    w = trained.w.ravel()
    rates, distances = [], []
    for count in (10, 20, 40, 80):
        gone = np.arange(count)
        wanted = here.base_l(gone)
        found = deleted(here, trained, gone).w.ravel()
        rates.append(count / 1000)
        distances.append(float(np.linalg.norm(found - wanted)))
        assert relative(found, wanted, wanted - w) < 3 * count / 1000
    assert order(rates, distances) == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_infl_knows_nothing_of_a_descent_that_stops_early(loss: Loss, q: int) -> None:
    here = problem(loss, 1000, 4, q, batch=100, iterations=30, rate=0.05, l2=1e-3)
    trained, gone = here.trained(), here.some(30)
    w, wanted = trained.w.ravel(), here.base_l(gone)
    assert relative(deleted(here, trained, gone).w.ravel(), wanted, wanted - w) > 0.3
    again = delete(here.settings, here.schedule, trained, here.leaving(gone), "delta")
    assert relative(again.w.ravel(), wanted, wanted - w) < 0.01


def test_a_singular_hessian_takes_the_pseudo_inverse() -> None:
    """Softmax without L2: the classes' scores may move together, and must not."""
    here = converged(Loss.SOFTMAX, 3, 0.0)
    trained, gone = here.trained(), here.some(20)
    hessian = summed_hessian(Loss.SOFTMAX, here.design, here.rows, trained.w)
    whole = np.tril(hessian) + np.tril(hessian, -1).T
    assert np.sum(np.linalg.eigvalsh(whole) < 1e-9 * np.trace(whole)) == 5
    change = (deleted(here, trained, gone).w - trained.w).reshape(3, 5)
    assert np.abs(change.sum(axis=0)).max() < 1e-9 * np.linalg.norm(change)
    wanted = here.base_l(gone)
    found = trained.w.ravel() + change.ravel()
    assert relative(found, wanted, wanted - trained.w.ravel()) < 0.2


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_the_hessian_is_downdated(loss: Loss, q: int) -> None:
    here = converged(loss, q, n=200)
    w, gone = here.trained().w, here.some(50)
    terms = visits_at(
        loss,
        np.zeros(50, np.int64),
        here.leaving(gone).rows,
        here.leaving(gone).labels,
        w.reshape(1, -1),
    )
    hessian = summed_hessian(loss, here.design, here.rows, w)
    found = downdated(loss, hessian, 200, terms)
    wanted = np.tril(summed_hessian(loss, here.design, here.without(gone).rows, w))
    np.testing.assert_allclose(found, wanted, atol=1e-10)
    everyone = here.leaving(np.arange(200))
    terms = visits_at(
        loss, np.zeros(200, np.int64), everyone.rows, everyone.labels, w.reshape(1, -1)
    )
    assert not downdated(loss, hessian, 200, terms).any()


def test_one_row_of_two() -> None:
    here = problem(Loss.LOGISTIC, 2, 1, batch=2, iterations=2000, rate=0.5, l2=0.1)
    w = here.trained().w
    gone = here.leaving(np.array([0]))
    terms = visits_at(
        Loss.LOGISTIC, np.zeros(1, np.int64), gone.rows, gone.labels, w.reshape(1, -1)
    )
    hessian = summed_hessian(Loss.LOGISTIC, here.design, here.rows, w)
    found = influence_change(here.settings.descent, w.ravel(), hessian, 2, terms)
    np.testing.assert_allclose(found, by_hand(here, w.ravel(), np.array([0])), rtol=1e-4)


def test_all_rows_of_a_class() -> None:
    here = converged(Loss.SOFTMAX, 3)
    trained = here.trained()
    gone = np.flatnonzero(here.rows.labels == 2.0)
    found = deleted(here, trained, gone)
    assert np.isfinite(found.w).all() and found.rows == 1000 - len(gone)
    terms = here.leaving(gone)
    change = influence_change(
        here.settings.descent,
        trained.w.ravel(),
        summed_hessian(Loss.SOFTMAX, here.design, here.rows, trained.w),
        1000,
        visits_at(
            Loss.SOFTMAX,
            np.zeros(len(gone), np.int64),
            terms.rows,
            terms.labels,
            trained.w.reshape(1, -1),
        ),
    )
    np.testing.assert_array_equal(found.w, trained.w + change.reshape(3, -1))
    wanted = here.base_l(gone).reshape(3, -1)
    # Away from the class: the sign is right, the size is not.
    assert change.reshape(3, -1)[2] @ (wanted - trained.w)[2] > 0
