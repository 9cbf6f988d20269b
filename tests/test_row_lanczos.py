"""Lanczos steps in the rows' coordinates: the same as those on whole vectors, and as powers of A."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.pipeline.lanczos import STEPS, hessian_times, lanczos
from expunge.pipeline.losses import Loss
from expunge.pipeline.provenance import curvature
from expunge.pipeline.row_lanczos import carry_by_rows, krylov, small_eigen

RATE, L2 = 0.3, 0.01


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(-12.0, 0.0))
def test_jacobis_eigenvalues_are_lapacks(size: int, seed: int, smallest: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(size, size)) * 10.0 ** rng.uniform(smallest, 0.0, (size, size))
    matrix += matrix.T
    values, vectors = small_eigen(matrix.copy())
    scale = np.abs(matrix).max()
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(matrix), atol=1e-14 * scale)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-14 * scale)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(size), atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_diagonal_matrix_is_its_own_answer(size: int) -> None:
    values, vectors = small_eigen(np.diag(np.arange(size, 0.0, -1.0)))
    np.testing.assert_array_equal(values, np.arange(size, 0.0, -1.0))
    np.testing.assert_array_equal(vectors, np.eye(size))


def problem(loss: Loss, columns: int, rows: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, m), their curvature (n, q) and a vector (P,)."""
    rng = np.random.default_rng(7)
    classes = 3 if loss == Loss.SOFTMAX else 1
    x, w = rng.normal(size=(rows, columns)), rng.normal(size=(classes, columns))
    return x, curvature(loss, w, x, np.ones(rows)), rng.normal(size=classes * columns)


@pytest.mark.parametrize("most", [1, 3, 6])
@pytest.mark.parametrize("columns", [2, 5, 40])
@pytest.mark.parametrize("loss", list(Loss))
def test_the_steps_are_those_on_whole_vectors(loss: Loss, columns: int, most: int) -> None:
    x, curved, z = problem(loss, columns)
    kind, by_class = int(loss), np.ascontiguousarray(curved.T)
    scores = np.ascontiguousarray((x @ z.reshape(-1, columns).T).T)
    numbers, parts, values, weights = krylov(kind, x @ x.T, by_class, scores, float(z @ z), most)
    basis, expected, their = lanczos(kind, x, curved, z, most)
    order = np.argsort(values)
    np.testing.assert_allclose(values[order], expected, atol=1e-9)
    np.testing.assert_allclose(weights[0, order] ** 2, their[0] ** 2, atol=1e-9)
    vectors = numbers[:, np.newaxis] * z
    vectors += (parts.reshape(len(parts), -1, len(x)) @ x).reshape(vectors.shape)
    np.testing.assert_allclose(vectors, basis, atol=1e-7)


@pytest.mark.parametrize("loss", [Loss.LOGISTIC, Loss.SOFTMAX])
def test_an_error_is_carried_as_by_every_iteration(loss: Loss) -> None:
    x, curved, error = problem(loss, 2)
    assert len(error) <= STEPS
    rng = np.random.default_rng(8)
    mean, jump = rng.normal(size=(2, len(error)))
    length = 30
    expected = error.copy()
    for _ in range(length):
        slope = hessian_times(int(loss), x, curved, expected) + L2 * expected + mean
        expected = expected - RATE * slope
    expected += jump
    kind, gram, by_class = (int(loss), RATE, L2), x @ x.T, np.ascontiguousarray(curved.T)
    found = error.copy()
    carry_by_rows(kind, x, gram, by_class, float(length), mean, jump, found, STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_what_stands_still_stays() -> None:
    x, curved, error = problem(Loss.LOGISTIC, 2)
    nothing = np.zeros_like(error)
    found = nothing.copy()
    kind, by_class = (int(Loss.LOGISTIC), RATE, L2), np.ascontiguousarray(curved.T)
    carry_by_rows(kind, x, x @ x.T, by_class, 5.0, nothing, error, found, STEPS)
    np.testing.assert_array_equal(found, error)
