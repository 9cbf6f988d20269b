"""Linear models from the normal equations: methods closed-form and priu-opt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression_problems import Problem, order, problem, relative

from expunge.pipeline.closed_form import NormalEquations, power_and_sum, pseudo_solution
from expunge.pipeline.descent import Descent
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression_arrays import Trained, delete

KINDS = ["exact", "averaged", "lowrank", "frozen"]


def here_(**others: object) -> Problem:
    given = {"batch": 200, "iterations": 300, "rate": 0.05, "block": 20}
    return problem(Loss.LINEAR, 2000, 5, **(given | others))  # type: ignore[arg-type]


def deleted(here: Problem, trained: Trained, gone: np.ndarray, method: str) -> Trained:
    return delete(here.settings, here.schedule, trained, here.leaving(gone), method)


def kept_rows(here: Problem, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    stay = np.setdiff1d(np.arange(len(here.rows.x)), gone)
    return here.design.rows(here.rows.x[stay]), here.rows.labels[stay]


def gradient_descent(here: Problem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Full gradient steps from 0, one by one (equation 15)."""
    w = np.zeros(x.shape[1])
    rate, l2 = here.settings.learning_rate, here.settings.l2
    for _ in range(here.settings.iterations):
        w = (1.0 - rate * l2) * w - 2.0 * rate / len(x) * (x.T @ (x @ w - y))
    return w


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1.2, 1.2) | st.sampled_from([0.0, 1.0, -1.0]), max_size=4),
    st.integers(0, 40),
)
def test_powers_and_sums_by_doubling(values: list[float], count: int) -> None:
    factors = np.array(values)
    power, total = power_and_sum(factors, count)
    np.testing.assert_allclose(power, factors**count, rtol=1e-12, atol=1e-300)
    wanted = np.array([sum(a**k for k in range(count)) for a in values])
    np.testing.assert_allclose(total, wanted, rtol=1e-11, atol=1e-9)


def test_sums_at_one_do_not_cancel() -> None:
    near = 1.0 - np.array([0.0, 1e-16, 1e-12, 1e-9])
    _, total = power_and_sum(near, 10**6)
    np.testing.assert_allclose(total, 1e6, rtol=1e-3)
    assert total[0] == 1e6


# ------------------------------------------------------------------ closed-form


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_the_closed_form_is_the_least_squares_solution(l2: float, kind: str) -> None:
    here = here_(l2=l2, provenance=kind)
    gone = here.some(150)
    x, y = kept_rows(here, gone)
    found = deleted(here, here.trained(), gone, "closed-form")
    # Ridge regression as least squares with more rows.
    more = np.sqrt(l2 * len(x) / 2.0) * np.eye(x.shape[1])
    wanted = np.linalg.lstsq(np.vstack([x, more]), np.append(y, np.zeros(len(more))), rcond=None)[0]
    assert relative(found.w.ravel(), wanted, wanted) < 1e-9
    assert found.rows == len(x)


def test_the_closed_form_is_where_base_l_ends() -> None:
    """Full batches; what is left of the way falls with the iterations, as a power."""
    distances, gone = [], np.arange(100)
    for iterations in (50, 100, 200):
        here = here_(batch=2000, iterations=iterations, l2=0.5, rate=0.2)
        found = deleted(here, here.trained(), gone, "closed-form").w.ravel()
        distances.append(np.linalg.norm(found - here.base_l(gone)))
    assert distances[1] ** 2 / distances[0] < 3 * distances[2] + 1e-13
    assert distances[2] < 1e-3 * distances[0]


def test_a_singular_problem_has_its_shortest_solution() -> None:
    """One row, without and with a penalty; a column of zeros."""
    x, y = np.array([[3.0, 0.0, 1.0]]), np.array([5.0])
    normal = NormalEquations.of(x, y)
    np.testing.assert_allclose(normal.solution(0.0), x[0] * 5.0 / 10.0, atol=1e-12)
    ridge = np.linalg.solve(2.0 * x.T @ x + 0.1 * np.eye(3), 2.0 * x.T @ y)
    np.testing.assert_allclose(normal.solution(0.1), ridge, atol=1e-12)
    nothing = normal.without(x, y)
    assert nothing.rows == 0 and not nothing.gram.any() and not nothing.solution(0.0).any()


def test_a_pseudo_solution_ignores_what_is_zero_to_rounding() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 7)) * 1e6
    matrix = rows.T @ rows
    vector = rows.T @ rng.normal(size=4)
    wanted = np.linalg.pinv(matrix, rcond=1e-9, hermitian=True) @ vector
    np.testing.assert_allclose(pseudo_solution(matrix, vector), wanted, rtol=1e-6)
    assert not pseudo_solution(np.zeros((3, 3)), np.zeros(3)).any()


# ------------------------------------------------------------------ priu-opt


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
def test_priu_opt_is_the_difference_of_two_descents(l2: float, rate: float) -> None:
    """Equations 15 and 16 step by step; at rate 0.3 some factors of a step are negative."""
    here = here_(l2=l2, rate=rate, batch=2000, iterations=101)
    gone = here.some(60)
    trained = here.trained()
    everything = kept_rows(here, np.empty(0, np.int64))
    before, after = (gradient_descent(here, *r) for r in (everything, kept_rows(here, gone)))
    change = deleted(here, trained, gone, "priu-opt").w - trained.w
    assert relative(change.ravel(), after - before, after - before) < 1e-8
    # Full batches are gradient descent: BaseL itself.
    wanted = here.base_l(gone)
    assert relative(trained.w.ravel() + change.ravel(), wanted, after - before) < 1e-6


def test_steps_may_be_zero_or_negative() -> None:
    signs = np.tile(np.array([[1.0, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1]]), (25, 1))
    y = np.random.default_rng(0).normal(size=100)
    normal = NormalEquations.of(signs, y)
    for factor in (0.0, -0.7, 1e-17):
        rate = (1.0 - factor) / 2.25
        w = np.zeros(3)
        for _ in range(13):
            w = (1.0 - 0.25 * rate) * w - 2.0 * rate / 100 * (signs.T @ (signs @ w - y))
        found = normal.descended(Descent(Loss.LINEAR, rate, 0.25), 13)
        np.testing.assert_allclose(found, w, atol=1e-12)


def equation_18(here: Problem, gone: np.ndarray) -> np.ndarray:
    """The paper's own estimate: Q stays, the new eigenvalues are the diagonal of Q^T M' Q."""
    x, _ = kept_rows(here, np.empty(0, np.int64))
    fewer, labels = kept_rows(here, gone)
    _, q = np.linalg.eigh(x.T @ x)
    values = np.einsum("ij,ij->j", q, (fewer.T @ fewer) @ q)
    d, n = here.settings.descent, len(fewer)
    _, total = power_and_sum(d.decay - 2.0 * d.learning_rate / n * values, here.settings.iterations)
    found: np.ndarray = q @ (total * (q.T @ (2.0 * d.learning_rate / n * fewer.T @ labels)))
    return found


@pytest.mark.parametrize("batch", [200, 2000])
def test_the_paper_s_eigenvalues_are_not_enough(batch: int) -> None:
    """Equation 18's error is of the change's own order; a new decomposition has none of it."""
    here = here_(batch=batch)
    trained, gone = here.trained(), here.some(100)
    w, wanted = trained.w.ravel(), here.base_l(gone)
    ours = deleted(here, trained, gone, "priu-opt").w.ravel()
    paper = equation_18(here, gone)
    assert relative(ours, wanted, wanted - w) < (0.3 if batch == 200 else 1e-6)
    assert relative(paper, wanted, wanted - w) > 0.3


def test_the_distance_falls_with_the_noise_of_mini_batches() -> None:
    """Like the root of the batch size, once a batch has many of the leaving rows."""
    sizes: list[float] = []
    distances: list[float] = []
    for batch in (50, 100, 200, 400, 1000):
        found = []
        for seed in range(6):
            here = replace(
                here_(), settings=replace(here_().settings, batch_slots=batch, random_state=seed)
            )
            trained, gone = here.trained(), here.some(200, seed)
            w, wanted = trained.w.ravel(), here.base_l(gone)
            change = deleted(here, trained, gone, "priu-opt").w.ravel()
            found.append(relative(change, wanted, wanted - w))
        sizes.append(float(batch))
        distances.append(float(np.mean(found)))
    assert order(sizes, distances) < -0.3


# ------------------------------------------------------------------ sequences


@pytest.mark.parametrize("method", ["closed-form", "priu-opt", "infl", "delta"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_normal_equations_are_downdated(method: str, kind: str) -> None:
    here = here_(provenance=kind)
    found = here.trained()
    gone = here.some(90)
    for part in np.array_split(gone, 3):
        found = deleted(here, found, part, method)
    wanted = NormalEquations.of(*kept_rows(here, gone))
    assert found.normal is not None and found.normal.rows == wanted.rows == found.rows
    np.testing.assert_allclose(found.normal.gram, wanted.gram, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.normal.moment, wanted.moment, rtol=0, atol=1e-10)
    # The provenance is rebased by delta, whatever gave the parameters.
    other = here.trained()
    for part in np.array_split(gone, 3):
        other = deleted(here, other, part, "delta")
    np.testing.assert_array_equal(found.trace.trajectory, other.trace.trajectory)


def test_all_rows_may_leave() -> None:
    here = here_(provenance="none")
    found = deleted(here, here.trained(), np.arange(2000), "closed-form")
    assert found.rows == 0 and not found.w.any()
    assert found.normal is not None and not found.normal.gram.any()
