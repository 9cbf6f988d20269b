"""Provenance polynomials, and PrIU's update rule annotated with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from regression_problems import Problem, problem

from expunge.pipeline.descent import Descent
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression_arrays import ExactBlocks, Trained
from expunge.pipeline.semiring import (
    ONE,
    ZERO,
    Annotated,
    Polynomial,
    annotate,
    annotate_row,
    linear_coefficients,
    natural,
    token,
    update_rule,
)
from expunge.pipeline.update import update_priu

TOKENS = ("p", "q", "r")
P, Q, R = map(token, TOKENS)


def polynomial(terms: Sequence[tuple[int, Sequence[str]]]) -> Polynomial:
    """The sum of the products of a number and tokens."""
    total = ZERO
    for times, tokens in terms:
        monomial = natural(times)
        for name in tokens:
            monomial = monomial * token(name)
        total = total + monomial
    return total


polynomials = st.builds(
    polynomial,
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.sampled_from(TOKENS), max_size=3)), max_size=4
    ),
)
token_sets = st.sets(st.sampled_from(TOKENS))
values = st.fixed_dictionaries({name: st.integers(0, 5) for name in TOKENS})


def matrices(rows: int, columns: int) -> st.SearchStrategy[Annotated]:
    """Annotated matrices of small whole numbers, whose sums and products have no rounding."""
    whole = arrays(np.int64, (rows, columns), elements=st.integers(-3, 3))
    term = st.builds(annotate, polynomials, whole)
    return st.lists(term, min_size=1, max_size=3).map(lambda terms: sum(terms[1:], terms[0]))


def value(found: Polynomial, at: Mapping[str, int]) -> int:
    """A polynomial's value at numbers, term by term."""
    return sum(
        times * prod(at[name] ** power for name, power in monomial)
        for monomial, times in found.terms.items()
    )


def same(left: Annotated, right: Annotated) -> bool:
    """Whether two annotated matrices have equal normal forms."""
    return (
        left.shape == right.shape
        and left.terms.keys() == right.terms.keys()
        and all(np.array_equal(left.terms[m], right.terms[m]) for m in left.terms)
    )


# ------------------------------------------------------------------ the semiring N[T]


@given(polynomials, polynomials, polynomials)
def test_the_laws_of_a_commutative_semiring(a: Polynomial, b: Polynomial, c: Polynomial) -> None:
    assert (a + b) + c == a + (b + c) and a + b == b + a
    assert (a * b) * c == a * (b * c) and a * b == b * a
    assert a * (b + c) == a * b + a * c
    assert a + ZERO == a and a * ONE == a and a * ZERO == ZERO


@given(polynomials, polynomials, values)
def test_sums_and_products_are_those_of_the_values(
    a: Polynomial, b: Polynomial, at: dict[str, int]
) -> None:
    assert value(a + b, at) == value(a, at) + value(b, at)
    assert value(a * b, at) == value(a, at) * value(b, at)
    assert a.at_one() == value(a, dict.fromkeys(TOKENS, 1))


@given(polynomials, polynomials, token_sets, values)
def test_zeroing_out_is_a_homomorphism(
    a: Polynomial, b: Polynomial, gone: set[str], at: dict[str, int]
) -> None:
    assert (a + b).without(gone) == a.without(gone) + b.without(gone)
    assert (a * b).without(gone) == a.without(gone) * b.without(gone)
    assert ONE.without(gone) == ONE and ZERO.without(gone) == ZERO
    assert value(a.without(gone), at) == value(a, at | dict.fromkeys(gone, 0))


@given(polynomials, polynomials, token_sets)
def test_the_idempotent_quotient(a: Polynomial, b: Polynomial, gone: set[str]) -> None:
    """It is a homomorphism, and agrees with N[T] wherever every token is 0 or 1."""
    assert (a + b).idempotent() == a.idempotent() + b.idempotent()
    assert (a * b).idempotent() == (a.idempotent() * b.idempotent()).idempotent()
    assert a.idempotent().without(gone) == a.without(gone).idempotent()
    assert a.idempotent().without(gone).at_one() == a.without(gone).at_one()


def test_the_example_of_the_introduction() -> None:
    """p^2 q * u + q r^4 * v + p s * z without r is u + z (PrIU, section 1)."""
    u, v, z = np.random.default_rng(0).normal(size=(3, 4, 1))
    s = token("s")
    w = annotate(P * P * Q, u) + annotate(Q * R * R * R * R, v) + annotate(P * s, z)
    np.testing.assert_array_equal(w.without({"r"}).at_one(), u + z)
    assert str(P * P * Q + natural(2) * R + ONE) == "1 + p^2 q + 2 r" and str(ZERO) == "0"
    assert str(w.without({"q"})) == f"p s * [{'; '.join(f'{a:.6g}' for a in z[:, 0])}]"
    assert (P * P * Q).idempotent() == P * Q
    square = P * P + natural(2) * P * Q + Q * Q
    assert square == (P + Q) * (P + Q)


def test_coefficients_are_natural() -> None:
    with pytest.raises(ValueError, match="-1 is no coefficient"):
        natural(-1)


# ------------------------------------------------------------------ annotated matrices


@given(matrices(2, 3), matrices(2, 3), matrices(3, 2), matrices(2, 2))
def test_the_laws_of_matrices(a: Annotated, b: Annotated, c: Annotated, d: Annotated) -> None:
    assert same(a + b, b + a) and same((a + b) @ c, a @ c + b @ c)
    assert same((a @ c) @ d, a @ (c @ d))
    assert same((a @ c).T, c.T @ a.T) and same((a + b).T, a.T + b.T)
    assert same(annotate(ONE, np.eye(2)) @ a, a) and same(a + annotate(ZERO, np.ones((2, 3))), a)
    assert same(np.float64(2.0) * a, a + a)


@given(matrices(2, 3), matrices(3, 2), token_sets)
def test_deletion_and_evaluation_pass_through_products(
    a: Annotated, b: Annotated, gone: set[str]
) -> None:
    assert same((a @ b).without(gone), a.without(gone) @ b.without(gone))
    assert same((a @ b).idempotent(), (a.idempotent() @ b.idempotent()).idempotent())
    np.testing.assert_array_equal((a @ b).at_one(), a.at_one() @ b.at_one())
    np.testing.assert_array_equal(a.idempotent().at_one(), a.at_one())


@given(polynomials, polynomials, arrays(np.int64, (2, 2), elements=st.integers(-3, 3)))
def test_polynomials_are_the_scalars(a: Polynomial, b: Polynomial, matrix: np.ndarray) -> None:
    """(a + b) * A = a * A + b * A and (a * A)(b * B) = (a . b) * (A B) (PrIU, section 4.1)."""
    assert same(annotate(a + b, matrix), annotate(a, matrix) + annotate(b, matrix))
    assert same(annotate(a, matrix) @ annotate(b, matrix.T), annotate(a * b, matrix @ matrix.T))


def test_shapes_must_fit() -> None:
    a = annotate(P, np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"add matrices of shapes \(2, 3\) and \(3, 2\)"):
        a + a.T
    with pytest.raises(ValueError, match=r"multiply matrices of shapes \(2, 3\) and \(2, 3\)"):
        a @ a
    with pytest.raises(ValueError, match=r"shape \(3,\) can't be annotated"):
        annotate(P, np.ones(3))


# ------------------------------------------------------------------ the update rule


def batches(here: Problem) -> list[np.ndarray]:
    """The rows of every iteration's mini-batch."""
    schedule = here.schedule
    size, found = schedule.batch_slots, []
    for t in range(schedule.iterations):
        epoch, place = divmod(t, schedule.per_epoch)
        found.append(schedule.window_order(epoch, 0)[place * size : (place + 1) * size])
    return found


def annotated_training(here: Problem, trained: Trained, gone: Collection[int]) -> Annotated:
    """W at the end, tokens of all rows in it, for a later deletion of the rows ``gone``."""
    loss, labels = here.settings.loss, here.rows.labels
    x = here.design.take(here.rows.x, np.arange(len(labels)))
    rows = [annotate_row(*row) for row in zip(TOKENS, x, labels, strict=True)]
    w = annotate(ZERO, np.zeros((x.shape[1], 1)))
    for batch, w_t in zip(batches(here), trained.trace.trajectory, strict=True):
        coefficients = linear_coefficients(loss, x[batch], labels[batch], w_t)
        live = len(set(batch.tolist()) - set(gone))
        w = update_rule(here.settings.descent, w, [rows[i] for i in batch], coefficients, live)
    return w


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("loss", [Loss.LINEAR, Loss.LOGISTIC])
@pytest.mark.parametrize("gone", list(chain([()], combinations(range(3), 1), [(0, 2), (0, 1, 2)])))
def test_zeroing_out_is_the_update(loss: Loss, batch: int, gone: tuple[int, ...]) -> None:
    """Tokens to 0 and 1 give equation 13 or 19, and for linear models what a retrain gives."""
    here = problem(loss, 3, 2, batch=batch, iterations=5, rate=0.2, seed=1)
    trained, left = here.trained(), np.array(gone, np.int64)
    w = annotated_training(here, trained, gone)
    deleted = {TOKENS[i] for i in gone}
    found = w.without(deleted).at_one().ravel()
    visits, start = here.visits(trained, left), np.zeros(3)
    assert isinstance(trained.kept, ExactBlocks)
    by_priu = update_priu(here.settings.descent, trained.trace, trained.kept, visits, start)
    # The pipeline takes f itself at w_t, the paper its interpolant: 1e-11 apart.
    np.testing.assert_allclose(found, by_priu, rtol=0, atol=1e-9 if loss else 1e-13)
    np.testing.assert_allclose(
        w.idempotent().without(deleted).at_one().ravel(), found, rtol=0, atol=1e-13
    )
    if loss == Loss.LINEAR:
        np.testing.assert_allclose(found, here.base_l(left), rtol=0, atol=1e-13)
    elif not gone:
        np.testing.assert_allclose(found, trained.w.ravel(), rtol=0, atol=1e-9)


def test_two_iterations_by_hand() -> None:
    """One feature, eta = 1/2, lambda = 1/5: every product of tokens and what it stands at."""
    descent = Descent(Loss.LINEAR, 0.5, 0.2)
    rows = [annotate_row("p", np.array([1.0]), 3.0), annotate_row("q", np.array([2.0]), 1.0)]
    coefficients = np.array([[-2.0, 2.0], [-2.0, 2.0]])
    w = annotate(ZERO, [[0.0]])
    for _ in range(2):
        w = update_rule(descent, w, rows, coefficients, 2)
    # 2 eta x^2 / n is 0.5 and 2, 2 eta x y / n is 1.5 and 1, 1 - eta lambda is 0.9.
    wanted = {
        (("p", 2),): 0.9 * 1.5 + 1.5,
        (("q", 2),): 0.9 * 1.0 + 1.0,
        (("p", 4),): -0.5 * 1.5,
        (("q", 4),): -2.0 * 1.0,
        (("p", 2), ("q", 2)): -0.5 * 1.0 - 2.0 * 1.5,
    }
    assert {m: a.item() for m, a in w.terms.items()} == pytest.approx(wanted, rel=1e-14)


def test_softmax_has_no_rule() -> None:
    x = np.ones((1, 2))
    with pytest.raises(ValueError, match="softmax"):
        linear_coefficients(Loss.SOFTMAX, x, np.zeros(1), np.zeros(2))
