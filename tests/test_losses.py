"""Gradients, curvature and the interpolant, against differences and higher precision."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest

from expunge.pipeline import losses
from expunge.pipeline.descent import DivergedError
from expunge.pipeline.losses import PIECES, SPAN, Loss, evaluate
from expunge.pipeline.provenance import add_curvature, curvature
from expunge.pipeline.regressors import LinearRegression
from expunge.pipeline.visits import add_curved, add_gradients

WIDTH = 4
CASES = [(Loss.LINEAR, 1), (Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]
Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


def problem(loss: Loss, q: int, seed: int = 0) -> Problem:
    """w (q, m), rows (n, m), labels (n,)."""
    rng = np.random.default_rng(seed)
    w, x = rng.normal(size=(q, WIDTH)), rng.normal(size=(12, WIDTH))
    if loss == Loss.LINEAR:
        return w, x, rng.normal(size=12)
    if loss == Loss.LOGISTIC:
        return w, x, rng.choice([-1.0, 1.0], 12)
    return w, x, rng.integers(0, q, 12).astype(np.float64)


def terms(loss: Loss, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """c (n, q) and curvature (n, q) of all rows at one w."""
    c, curved = np.empty((len(x), len(w))), np.empty((len(x), len(w)))
    at = np.zeros(len(x), np.int64)
    losses.row_coefficients(int(loss), w.reshape(1, -1), at, x, y, c, curved, PIECES)
    return c, curved


@pytest.mark.parametrize(("loss", "q"), CASES)
def test_gradients_are_the_loss_s_differences(loss: Loss, q: int) -> None:
    w, x, y = problem(loss, q)
    c, _ = terms(loss, w, x, y)
    found = np.zeros(w.size)
    add_gradients(x, c, found)
    wanted = np.empty(w.size)
    for place in range(w.size):
        step = np.zeros(w.size)
        step[place] = 1e-5
        up = evaluate(loss, w + step.reshape(w.shape), x, y)[0]
        down = evaluate(loss, w - step.reshape(w.shape), x, y)[0]
        wanted[place] = -(up - down) / 2e-5
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-8)


def high_coefficients(loss: Loss, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """c (n, q) in extended precision, by the formulas as they are printed."""
    scores = x.astype(np.longdouble) @ w.astype(np.longdouble).T
    if loss == Loss.LINEAR:
        return np.asarray(2 * (y[:, np.newaxis] - scores))
    if loss == Loss.LOGISTIC:
        sign = y[:, np.newaxis].astype(np.longdouble)
        return np.asarray(sign / (1 + np.exp(sign * scores)))
    likely = np.exp(scores)
    p = likely / likely.sum(axis=1, keepdims=True)
    return np.asarray(np.eye(len(w), dtype=np.longdouble)[y.astype(int)] - p)


@pytest.mark.parametrize(("loss", "q"), CASES)
def test_coefficients_in_extended_precision(loss: Loss, q: int) -> None:
    w, x, y = problem(loss, q, 3)
    c, _ = terms(loss, w, x, y)
    np.testing.assert_allclose(c, high_coefficients(loss, w, x, y), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("loss", "q"), CASES)
def test_curvature_is_the_gradient_s_slope(loss: Loss, q: int) -> None:
    """H v = -(dg/dw) v by extended central differences; the interpolant's slope adds 1e-5 at most."""
    w, x, y = problem(loss, q, 1)
    curved = curvature(loss, w, x, y)
    v = np.random.default_rng(2).normal(size=w.shape)
    step = np.longdouble(1e-6)
    wide = w.astype(np.longdouble)
    up = high_coefficients(loss, wide + step * v, x, y)
    down = high_coefficients(loss, wide - step * v, x, y)
    wanted = -((up - down) / (2 * step)).T @ x.astype(np.longdouble)
    found = np.zeros(w.size)
    add_curved(int(loss), x, curved, v.ravel(), 1.0, found)
    tolerance = 1e-4 if loss == Loss.LOGISTIC else 1e-9
    np.testing.assert_allclose(found, wanted.ravel().astype(float), rtol=0, atol=tolerance)
    total = np.zeros((w.size, w.size), order="F")
    add_curvature(total, loss, x, curved)
    full = np.tril(total) + np.tril(total, -1).T
    np.testing.assert_allclose(full @ v.ravel(), found, rtol=0, atol=1e-12)


def falling(z: np.longdouble) -> np.longdouble:
    return np.longdouble(np.longdouble(1) / (np.longdouble(1) + np.exp(z)))


@pytest.mark.parametrize("pieces", [40, 1000, PIECES])
def test_the_slope_is_the_chord_s(pieces: int) -> None:
    """(f(z_{k+1}) - f(z_k)) / h, at points well inside their pieces."""
    length = np.longdouble(2 * SPAN) / pieces
    for share in np.linspace(0.0, 1.0, 41, endpoint=False):
        left = -np.longdouble(SPAN) + floor(share * pieces) * length
        wanted = float((falling(left + length) - falling(left)) / length)
        for within in (0.1, 0.5, 0.9):
            found = losses.slope(float(left + within * length), pieces)
            # The difference of values up to 1 in extended precision, over h.
            assert abs(found - wanted) <= 1e-9 * abs(wanted) + 4e-19 / float(length)


def test_the_slope_does_not_cancel() -> None:
    """With 10^6 pieces, f(z + h) - f(z) in float64 has 11 digits; this has 14."""
    length = np.longdouble(2 * SPAN) / PIECES
    for z in np.linspace(-15.0, 15.0, 61) + 1.3e-5:
        left = np.longdouble(-SPAN + np.floor((z + SPAN) / (2 * SPAN / PIECES)) * 2 * SPAN / PIECES)
        wanted = falling(left) * falling(-left - length) * np.expm1(-length) / length
        assert losses.slope(z, PIECES) == pytest.approx(float(wanted), rel=1e-12)


def test_interpolation_is_of_second_order() -> None:
    z = np.linspace(-19.0, 19.0, 4001)
    exact = np.array([losses.falling(v) for v in z])
    lengths, errors = [], []
    for pieces in (50, 100, 200, 400, 800):
        found = np.array([losses.interpolated(v, pieces) for v in z])
        lengths.append(2 * SPAN / pieces)
        errors.append(float(np.abs(found - exact).max()))
    assert np.polyfit(np.log(lengths), np.log(errors), 1)[0] == pytest.approx(2.0, abs=0.1)


def test_the_interpolant_is_constant_outside() -> None:
    for z in (20.0, 21.0, 1e6, np.inf):
        assert losses.slope(z, 100) == 0.0 and losses.slope(-np.nextafter(z, np.inf), 100) == 0.0
        assert losses.interpolated(z, 100) == pytest.approx(losses.falling(20.0), rel=1e-9)
        assert losses.interpolated(-z, 100) == pytest.approx(losses.falling(-20.0), rel=1e-9)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e300])
def test_extreme_scores_do_not_overflow(size: float) -> None:
    for score in (size, -size):
        assert losses.falling(score) == pytest.approx(0.0 if score > 0 else 1.0, abs=1e-40)
        x, one = np.array([[1.0]]), np.array([1.0])
        value, right = evaluate(Loss.LOGISTIC, np.array([[score]]), x, one)
        assert value == pytest.approx(max(-score, 0.0), abs=1e-40) and right == (score > 0)
        w = np.array([[0.0], [score], [-score]])
        value, right = evaluate(Loss.SOFTMAX, w, x, one)
        assert value == pytest.approx(0.0 if score > 0 else 2 * size, abs=1e-40)
        assert right == (score > 0)
        c, curved = terms(Loss.SOFTMAX, w, x, one)
        assert np.isfinite(c).all() and np.isfinite(curved).all()
        np.testing.assert_allclose(c.sum(), 0.0, atol=1e-15)


def test_rows_that_are_predicted_right() -> None:
    x = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    assert evaluate(Loss.LOGISTIC, np.array([[2.0]]), x, signs)[1] == 2
    numbers = np.array([0.0, 1.0, 1.0, 1.0])
    assert evaluate(Loss.SOFTMAX, np.array([[2.0], [-1.0]]), x, numbers)[1] == 3
    assert evaluate(Loss.LINEAR, np.array([[2.0]]), x, signs) == (1.0 + 9.0 + 9.0 + 1.0, 0)


@pytest.mark.parametrize(("loss", "q"), CASES)
def test_smoothness_bounds_every_hessian(loss: Loss, q: int) -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        w, x, y = problem(loss, q, seed)
        limit = losses.smoothness(loss, x.T @ x / len(x), 0.25)
        total = np.zeros((w.size, w.size), order="F")
        add_curvature(total, loss, x, curvature(loss, rng.normal(size=w.shape) * 0.3, x, y))
        top = np.linalg.eigvalsh(total / len(x), UPLO="L")[-1] + 0.25
        # The interpolant's slope is a chord: it exceeds 1/4 nowhere.
        assert top <= limit * (1 + 1e-9)


def test_the_default_learning_rate_counts_what_a_mini_batch_adds() -> None:
    """Of 400 features, 20 rows a mini-batch: half of the objective's 1/L diverges."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2000, 400)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=2000)

    def model(learning_rate: float | None = None) -> LinearRegression:
        return LinearRegression(
            learning_rate, batch_size=20, iterations=300, random_state=1, provenance="none"
        )

    default = model().fit(x, y)
    design = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(2000)])
    gram = design.T @ design / 2000
    whole = losses.smoothness(Loss.LINEAR, gram, 0.001)
    mini = losses.smoothness(Loss.LINEAR, gram, 0.001, 20)
    assert mini - whole == pytest.approx(2.0 * 401 / 20, rel=1e-6)
    assert default.score(x, y) > 0.1
    with pytest.raises(DivergedError):
        model(0.5 / whole).fit(x, y)
