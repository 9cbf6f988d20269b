"""Provenance polynomials, matrices annotated with them, and PrIU's update rule over both.

PrIU, section 4.1: every row i gets a token p_i of a set T. "+" is alternative use, "." is joint use,
so what was computed from the rows is annotated with a polynomial of N[T]: 0 is absence, 1 is
presence that nobody tracks. A deletion sets the row's token to 0 and the tokens of the others to 1.

This is the theory written as code, for a few rows and iterations: after t full iterations over n rows
an expression has up to C(n + t, n) monomials. ``update`` computes the same numbers for real data,
where all tokens are 0 or 1 already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .descent import Descent
from .losses import PIECES, Loss, interpolated, slope

Monomial: TypeAlias = tuple[tuple[str, int], ...]
"""A product of tokens: pairs of a token and its power, at least 1, sorted; () is the monomial 1."""
Matrix: TypeAlias = NDArray[np.float64]
Value = TypeVar("Value", int, Matrix)


# ------------------------------------------------------------------ monomials


def _times(left: Monomial, right: Monomial) -> Monomial:
    """The product of two monomials: the powers of each token are added."""
    powers = Counter(dict(left))
    powers.update(dict(right))
    return tuple(sorted(powers.items()))


def _once(monomial: Monomial) -> Monomial:
    """The monomial under p . p = p: no token is used twice."""
    return tuple((token, 1) for token, _ in monomial)


def _free_of(monomial: Monomial, tokens: Collection[str]) -> bool:
    """Whether the monomial stays when the tokens are 0."""
    return not any(token in tokens for token, _ in monomial)


def _text(monomial: Monomial) -> str:
    """The monomial as one writes it: ``p^2 q``."""
    return " ".join(t if power == 1 else f"{t}^{power}" for t, power in monomial) or "1"


def _collected(terms: Iterable[tuple[Monomial, Value]]) -> dict[Monomial, Value]:
    """Add up the coefficients of equal monomials."""
    found: dict[Monomial, Value] = {}
    for monomial, value in terms:
        found[monomial] = found[monomial] + value if monomial in found else value
    return found


# ------------------------------------------------------------------ N[T]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """An element of N[T], the free commutative semiring over the tokens (PrIU, section 4.1)."""

    terms: Mapping[Monomial, int]
    """Each monomial's coefficient, at least 1; none at all is the polynomial 0."""

    def __add__(self, other: Polynomial) -> Polynomial:
        """Alternative use."""
        return Polynomial(_collected(chain(self.terms.items(), other.terms.items())))

    def __mul__(self, other: Polynomial) -> Polynomial:
        """Joint use."""
        return Polynomial(
            _collected(
                (_times(left, right), a * b)
                for left, a in self.terms.items()
                for right, b in other.terms.items()
            )
        )

    def __str__(self) -> str:
        ordered = sorted(self.terms.items())
        return " + ".join(_text(m) if a == 1 else f"{a} {_text(m)}" for m, a in ordered) or "0"

    def without(self, tokens: Collection[str]) -> Polynomial:
        """Zero out some tokens: the rows that they stand for are deleted."""
        return Polynomial({m: a for m, a in self.terms.items() if _free_of(m, tokens)})

    def idempotent(self) -> Polynomial:
        """The image in N[T] / (p . p = p for every token), of Theorem 4."""
        return Polynomial(_collected((_once(m), a) for m, a in self.terms.items()))

    def at_one(self) -> int:
        """The value with every token at 1: how many ways of use there are."""
        return sum(self.terms.values())


def natural(number: int) -> Polynomial:
    """A natural number as a polynomial without tokens; ValueError if it is negative."""
    if number < 0:
        raise ValueError(f"{number} is no coefficient of N[T]: they are natural numbers")
    return Polynomial({(): number} if number else {})


def token(name: str) -> Polynomial:
    """The token of one row."""
    return Polynomial({((name, 1),): 1})


ZERO = natural(0)
"""0_prov: absence."""
ONE = natural(1)
"""1_prov: presence that is not tracked."""


# ------------------------------------------------------------------ annotated matrices


@dataclass(frozen=True, slots=True, eq=False)
class Annotated:
    """A sum of m_k * U_k: monomials, each with a real matrix (PrIU, section 4.1).

    A polynomial's natural coefficients are part of the matrices: (2 p) * A = p * (A + A).
    """

    shape: tuple[int, int]
    terms: Mapping[Monomial, Matrix]
    """Each monomial's matrix, not zero; none at all is the matrix 0."""

    def __add__(self, other: Annotated) -> Annotated:
        if self.shape != other.shape:
            raise ValueError(f"can't add matrices of shapes {self.shape} and {other.shape}")
        return _annotated(self.shape, chain(self.terms.items(), other.terms.items()))

    def __matmul__(self, other: Annotated) -> Annotated:
        """(p * A)(q * B) = (p . q) * (A B), term by term."""
        if self.shape[1] != other.shape[0]:
            raise ValueError(f"can't multiply matrices of shapes {self.shape} and {other.shape}")
        products = (
            (_times(left, right), a @ b)
            for left, a in self.terms.items()
            for right, b in other.terms.items()
        )
        return _annotated((self.shape[0], other.shape[1]), products)

    def __rmul__(self, number: float) -> Annotated:
        """A real number times the matrix: the product with 1_prov * [number]."""
        return _annotated(self.shape, ((m, number * a) for m, a in self.terms.items()))

    @property
    def T(self) -> Annotated:
        """The transpose: annotations stay."""
        return Annotated(self.shape[::-1], {m: a.T for m, a in self.terms.items()})

    def __str__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda term: (_degree(term[0]), term[0]))
        return "\n".join(f"{_text(m)} * {_rows_text(a)}" for m, a in ordered) or "0"

    def coefficient(self, monomial: Monomial) -> Matrix:
        """The matrix that belongs to a monomial, zero if there is none."""
        return self.terms.get(monomial, np.zeros(self.shape))

    def without(self, tokens: Collection[str]) -> Annotated:
        """Zero out some tokens: the rows that they stand for are deleted."""
        left = {m: a for m, a in self.terms.items() if _free_of(m, tokens)}
        return Annotated(self.shape, left)

    def idempotent(self) -> Annotated:
        """The image under p . p = p for every token, of Theorem 4: a monomial is a set of rows.

        For tokens alone: were every polynomial idempotent, 2 . 2 = 2 would make A + A + A + A equal
        to A + A, and so every matrix zero.
        """
        return _annotated(self.shape, ((_once(m), a) for m, a in self.terms.items()))

    def at_one(self) -> Matrix:
        """The plain matrix: every token at 1, so the sum of the U_k."""
        return sum(self.terms.values(), np.zeros(self.shape))


def _degree(monomial: Monomial) -> int:
    return sum(power for _, power in monomial)


def _rows_text(matrix: Matrix) -> str:
    """The matrix on one line, its rows apart by semicolons: ``[1 2; 3 4]``."""
    return "[" + "; ".join(" ".join(f"{a:.6g}" for a in row) for row in matrix) + "]"


def _annotated(shape: tuple[int, int], terms: Iterable[tuple[Monomial, Matrix]]) -> Annotated:
    """The sum of the terms, less those whose matrix is zero: p * 0 = 0."""
    return Annotated(shape, {m: a for m, a in _collected(terms).items() if a.any()})


def annotate(polynomial: Polynomial, matrix: ArrayLike) -> Annotated:
    """Return p * A for a matrix A of two dimensions; ValueError for any other number of them."""
    a = np.array(matrix, np.float64)
    if a.ndim != 2:
        raise ValueError(f"an array of shape {a.shape} can't be annotated: matrices can")
    return _annotated(a.shape, ((m, times * a) for m, times in polynomial.terms.items()))


# ------------------------------------------------------------------ the update rule


@dataclass(frozen=True, slots=True)
class AnnotatedRow:
    """A training row and its label, both annotated with the row's token."""

    x: Annotated
    """(m, 1) p * x"""
    y: Annotated
    """(1, 1) p * [y]"""


def annotate_row(name: str, x: Matrix, label: float) -> AnnotatedRow:
    """Annotate a row x (m,) and its label with a token."""
    p = token(name)
    return AnnotatedRow(annotate(p, x[:, None]), annotate(p, [[label]]))


def linear_coefficients(loss: Loss, x: Matrix, labels: Matrix, w: Matrix) -> Matrix:
    """Return a and b (n, 2) of rows x (n, m): their negative gradients are a x x^T w + b y x.

    -2 and 2 for linear regression; for logistic regression those of the interpolant's piece at
    z = y w.x, under the model w (m,) of the training (PrIU, section 4.2). ValueError for softmax.
    """
    if loss == Loss.LINEAR:
        return np.tile([-2.0, 2.0], (len(x), 1))
    if loss == Loss.LOGISTIC:
        z = labels * (x @ w)
        a = np.array([slope(each, PIECES) for each in z])
        f = np.array([interpolated(each, PIECES) for each in z])
        return np.stack([a, f - a * z], axis=1)
    raise ValueError(f"no update rule for {loss.name.lower()} here: linear and logistic have one")


def update_rule(
    descent: Descent, w: Annotated, rows: Sequence[AnnotatedRow], coefficients: Matrix, live: int
) -> Annotated:
    """Return W^(t+1) (m, 1) of W^(t): PrIU, equation 8 (linear) or 10 (linearised logistic).

    W' = [(1 - eta lambda) (1_prov * I) + (eta / B) sum of p^2 * (a x x^T)] W
         + (eta / B) sum of p^2 * (b y x)

    The sums run over the rows of the mini-batch, coefficients (n, 2) being their a and b. N[T] has no
    division, so equation 7's denominator, the sum of the p, must be a number: ``live`` is B, the
    rows of the mini-batch whose token is going to be 1. Without any of them only decay remains.
    """
    share = descent.learning_rate / live if live else 0.0
    step = annotate(ONE, descent.decay * np.eye(w.shape[0]))
    force = annotate(ZERO, np.zeros(w.shape))
    for row, (a, b) in zip(rows, coefficients, strict=True):
        step += share * a * (row.x @ row.x.T)
        force += share * b * (row.x @ row.y)
    return step @ w + force
