"""What becomes of annotated descents in the long run: PrIU's Theorems 3 and 4."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
import pytest

from expunge.pipeline.descent import Descent
from expunge.pipeline.losses import Loss, smoothness
from expunge.pipeline.semiring import (
    ONE,
    ZERO,
    Annotated,
    AnnotatedRow,
    Monomial,
    annotate,
    annotate_row,
    linear_coefficients,
    update_rule,
)

TOKENS = ("p", "q", "r")
SUBSETS = [set(s) for size in range(4) for s in combinations(TOKENS, size)]


class Three:
    """Full descents over three rows of two features, within the conditions of Lemma 2.

    scale: of the first row, the one annotated p.
    """

    def __init__(self, loss: Loss, scale: float = 1.0) -> None:
        self.x = np.array([[1.5 * scale, 0.5 * scale], [-0.5, 1.0], [0.4, -0.8]])
        self.y = np.array([1.0, -2.0, 0.5] if loss == Loss.LINEAR else [1.0, -1.0, 1.0])
        self.smoothness = smoothness(loss, self.x.T @ self.x / 3, 0.3)
        self.descent = Descent(loss, 0.95 / self.smoothness, 0.3)
        self.rows = [annotate_row(*row) for row in zip(TOKENS, self.x, self.y, strict=True)]
        self.start = annotate(ONE, [[1.0], [-0.5]])

    def coefficients(self, iterations: int) -> list[np.ndarray]:
        """a and b of every iteration of the training."""
        w, found = self.start.at_one().ravel(), []
        for _ in range(iterations):
            c = linear_coefficients(self.descent.loss, self.x, self.y, w)
            found.append(c)
            pull = c[:, 0] * (self.x @ w) + c[:, 1] * self.y
            w = self.descent.decay * w + self.descent.learning_rate / 3 * pull @ self.x
        return found

    def run(
        self,
        iterations: int,
        live: int = 3,
        rows: Sequence[AnnotatedRow] | None = None,
        idempotent: bool = False,
    ) -> Annotated:
        """W^(t) by equation 8 or 10."""
        w = self.start
        for c in self.coefficients(iterations):
            w = update_rule(self.descent, w, rows or self.rows, c, live)
            w = w.idempotent() if idempotent else w
        return w

    def alone(self, row: int) -> list[AnnotatedRow]:
        """The rows, the tokens of all but one at 0: the monomials of that one keep their matrices."""
        others = set(TOKENS) - {TOKENS[row]}
        return [without(each, others) for each in self.rows]

    def limit(self, tokens: Collection[str]) -> np.ndarray:
        """Where a linear descent ends whose rows are those of the tokens, all sums over 3."""
        here = [i for i, name in enumerate(TOKENS) if name in tokens]
        x, y = self.x[here], self.y[here]
        curvature = 2.0 / 3 * x.T @ x + self.descent.l2 * np.eye(2)
        return np.linalg.solve(curvature, 2.0 / 3 * x.T @ y)


@cache
def three_rows(loss: Loss, scale: float = 1.0) -> Three:
    return Three(loss, scale)


def without(row: AnnotatedRow, gone: Collection[str]) -> AnnotatedRow:
    return AnnotatedRow(row.x.without(gone), row.y.without(gone))


def power(exponent: int) -> Monomial:
    """The monomial p^exponent."""
    return (("p", exponent),)


def size(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix))


def near(left: Annotated, right: Annotated) -> bool:
    """Whether every monomial's matrices are equal to rounding."""
    return all(
        np.allclose(left.coefficient(m), right.coefficient(m), rtol=1e-12, atol=1e-13)
        for m in left.terms.keys() | right.terms.keys()
    )


@pytest.mark.parametrize("loss", [Loss.LINEAR, Loss.LOGISTIC])
def test_deleting_before_is_deleting_after(loss: Loss) -> None:
    """Zeroing out the rows and then iterating gives, monomial by monomial, what the reverse does."""
    here = three_rows(loss)
    for gone in SUBSETS[:-1]:
        live = 3 - len(gone)
        after = here.run(5, live).without(gone)
        before = here.run(5, live, [without(row, gone) for row in here.rows])
        assert after.terms.keys() == before.terms.keys() and near(after, before)


def test_the_coefficient_in_the_proof_of_theorem_3() -> None:
    """That of p^t in the first term of equation 58: C(t, t/2) (1 - eta lambda)^(t/2) (-Z)^(t/2) W^(0).

    Z = (2 eta / n) x x^T. Without labels the second term of equation 58 vanishes.
    """
    here = three_rows(Loss.LINEAR)
    unlabelled = [AnnotatedRow(row.x, annotate(ZERO, [[0.0]])) for row in here.rows]
    z = 2.0 * here.descent.learning_rate / 3 * np.outer(here.x[0], here.x[0])
    for t in (2, 6, 10):
        found = here.run(t, rows=unlabelled).coefficient(power(t))
        first = comb(t, t // 2) * here.descent.decay ** (t // 2)
        wanted = first * np.linalg.matrix_power(-z, t // 2) @ here.start.at_one()
        np.testing.assert_allclose(found, wanted, rtol=1e-11)


@pytest.mark.parametrize(("scale", "grows"), [(1.0, True), (0.3, False)])
def test_theorem_3(scale: float, grows: bool) -> None:
    """The parameters converge, and the matrix of p^t need not: a row of much curvature makes it grow.

    C(t, t/2) is about 2^t = 4^(t/2), so with z = (2 eta / n) |x|^2 it grows if 4 (1 - eta lambda) z > 1.
    As 1 - eta lambda > (L - lambda) / L, eta |x|^2 / n >= L / (8 (L - lambda)) is enough. The proof
    prints a 2 for the 8, which no row can reach: that bound is at least 1/2, and z < 1.
    """
    here = three_rows(Loss.LINEAR, scale)
    rate, decay, l2 = here.descent.learning_rate, here.descent.decay, here.descent.l2
    assert rate < 1.0 / here.smoothness
    z = 2.0 * rate / 3 * float(here.x[0] @ here.x[0])
    bound = here.smoothness / (here.smoothness - l2)
    assert (z / 2 >= bound / 8) == (4.0 * decay * z > 1.0) == grows
    assert z < 1.0 and z / 2 < bound / 2
    alone = here.alone(0)
    sizes = [size(here.run(t, rows=alone).coefficient(power(t))) for t in (20, 40, 80, 160)]
    if grows:
        assert all(later > 1e3 * sooner for sooner, later in pairwise(sizes))
    else:
        assert all(later < 1e-3 * sooner for sooner, later in pairwise(sizes))


def test_theorem_3_while_the_parameters_converge() -> None:
    """The same run with all tokens at 1 settles: its monomials' matrices cancel each other."""
    here = three_rows(Loss.LINEAR)
    w = {t: here.run(t) for t in (10, 20)}
    largest = {t: max(map(size, w[t].terms.values())) for t in w}
    assert largest[20] > 50 * largest[10]
    off = {t: size(w[t].at_one().ravel() - here.limit(TOKENS)) for t in w}
    assert off[20] < 0.1 * off[10] < 0.1


def test_a_monomial_that_stays_has_a_limit() -> None:
    """For lambda > 0 the matrix of a fixed power of p does converge, but their sum diverges.

    They are the coefficients of (eta lambda + Z p^2)^-1 p^2 (2 eta / n) x y as a power series in p.
    """
    here = three_rows(Loss.LINEAR)
    rate, l2, x = here.descent.learning_rate, here.descent.l2, here.x[0]
    force = 2.0 * rate / 3 * here.y[0] * x
    z = 2.0 * rate / 3 * float(x @ x)
    w = here.run(300, rows=here.alone(0))
    for uses in range(1, 6):
        wanted = (-z) ** (uses - 1) * force / (rate * l2) ** uses
        np.testing.assert_allclose(w.coefficient(power(2 * uses)).ravel(), wanted, rtol=1e-6)
    assert z > rate * l2


def test_theorem_4_linear() -> None:
    """With p . p = p every matrix converges: to the limits of subsets, by inclusion and exclusion."""
    here = three_rows(Loss.LINEAR)
    w = here.run(300, idempotent=True)
    for tokens in SUBSETS:
        monomial = tuple((name, 1) for name in sorted(tokens))
        wanted = sum(
            (-1) ** len(tokens - part) * here.limit(part) for part in SUBSETS if part <= tokens
        )
        np.testing.assert_allclose(w.coefficient(monomial).ravel(), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("loss", [Loss.LINEAR, Loss.LOGISTIC])
def test_theorem_4_settles(loss: Loss) -> None:
    """Equations 8 and 10 alike: 2^3 monomials, each of whose matrices stops moving."""
    here = three_rows(loss)
    w = {t: here.run(t, idempotent=True) for t in (50, 100, 200)}
    assert len(w[200].terms) <= 8
    moved = [
        max(size(w[b].coefficient(m) - w[a].coefficient(m)) for m in w[b].terms)
        for a, b in ((50, 100), (100, 200))
    ]
    assert moved[1] < 1e-2 * moved[0] < 1e-2


@pytest.mark.parametrize("idempotent", [False, True])
def test_the_expectation_in_theorem_4(idempotent: bool) -> None:
    """The mean over all sequences of mini-batches of one row is W of the full descent."""
    here = three_rows(Loss.LINEAR)
    linear, iterations = np.array([[-2.0, 2.0]]), 4
    mean = annotate(ZERO, np.zeros((2, 1)))
    for rows in product(here.rows, repeat=iterations):
        w = here.start
        for row in rows:
            w = update_rule(here.descent, w, [row], linear, 1)
        mean += 3.0**-iterations * (w.idempotent() if idempotent else w)
    assert near(mean, here.run(iterations, idempotent=idempotent))
