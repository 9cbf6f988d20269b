"""Linear models from the normal equations: the optimum, and what plain gradient descent gives.

With M = sum of x x^T and N = sum of x y over the n training rows, both of which a deletion changes
by the deleted rows' terms alone:

- method ``closed-form`` solves (2 M / n + lambda I) w = 2 N / n for the rows left. That is where a
  descent that goes on for ever ends, not where it stops.
- method ``priu-opt`` (PrIU, section 5.2) takes every mini-batch for the whole data set. Then tau
  steps from 0 are closed sums in the eigenvectors of M (equation 17, its sum with the last term):

      w_tau = Q diag(sum of a_i^k over k < tau) Q^T (2 eta / n) N,  a_i = 1 - eta lambda - 2 eta c_i / n

  The descent's own noise is in w_tau already, so that the change is the difference of two such
  sums. Equation 18 keeps Q and takes the diagonal of Q^T M' Q for the new eigenvalues: that leaves
  out terms of the order of the change itself, as they multiply w. Here M' is decomposed anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .descent import Descent

SINGULAR = 1e-11
"""Eigenvalues below this share of the largest count as zero."""


@dataclass(frozen=True, slots=True)
class NormalEquations:
    """What a linear model's optimum depends on."""

    gram: NDArray[np.float64]
    """(m, m) M"""
    moment: NDArray[np.float64]
    """(m,) N"""
    rows: int
    """n"""

    @classmethod
    def of(cls, rows: NDArray[np.float64], labels: NDArray[np.float64]) -> NormalEquations:
        """Return those of rows (n, m) with labels (n,)."""
        return cls(rows.T @ rows, rows.T @ labels, len(rows))

    @classmethod
    def none(cls, columns: int) -> NormalEquations:
        """Return those of no rows."""
        return cls(np.zeros((columns, columns)), np.zeros(columns), 0)

    def __add__(self, other: NormalEquations) -> NormalEquations:
        return NormalEquations(
            self.gram + other.gram, self.moment + other.moment, self.rows + other.rows
        )

    def without(self, rows: NDArray[np.float64], labels: NDArray[np.float64]) -> NormalEquations:
        """Return those without some of the rows; exact zeros where none is left."""
        if len(rows) == self.rows:
            return NormalEquations.none(len(self.moment))
        gone = NormalEquations.of(rows, labels)
        return NormalEquations(
            self.gram - gone.gram, self.moment - gone.moment, self.rows - gone.rows
        )

    def solution(self, l2: float) -> NDArray[np.float64]:
        """Return the optimum (m,): the shortest one where there are several; 0 without rows."""
        n = max(1, self.rows)
        curved = 2.0 * self.gram / n + l2 * np.eye(len(self.moment))
        return pseudo_solution(curved, 2.0 * self.moment / n)

    def descended(self, descent: Descent, iterations: int) -> NDArray[np.float64]:
        """Return the parameters (m,) after so many steps of full gradient descent from 0."""
        n = max(1, self.rows)
        values, vectors = np.linalg.eigh(self.gram)
        factors = descent.decay - 2.0 * descent.learning_rate / n * values
        _, sums = power_and_sum(factors, iterations)
        driven = 2.0 * descent.learning_rate / n * (vectors.T @ self.moment)
        found: NDArray[np.float64] = vectors @ (sums * driven)
        return found


def closed_form_change(
    l2: float, w: NDArray[np.float64], left: NormalEquations
) -> NDArray[np.float64]:
    """Return w' - w (m,) by method ``closed-form``; left: of the rows that stay."""
    return left.solution(l2) - w


def priu_opt_change(
    descent: Descent, iterations: int, before: NormalEquations, left: NormalEquations
) -> NDArray[np.float64]:
    """Return w' - w (m,) by method ``priu-opt`` of a linear model."""
    return left.descended(descent, iterations) - before.descended(descent, iterations)


def pseudo_solution(
    matrix: NDArray[np.float64], vector: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the shortest x (P,) that solves matrix x = vector best; matrix symmetric, positive."""
    values, vectors = np.linalg.eigh(matrix)
    usable = values > SINGULAR * max(float(values[-1]), 0.0)
    inverse = np.zeros_like(values)
    inverse[usable] = 1.0 / values[usable]
    found: NDArray[np.float64] = vectors @ (inverse * (vectors.T @ vector))
    return found


def power_and_sum(
    factors: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a^count and 1 + a + ... + a^(count - 1) of each factor.

    By doubling: factors may be 0, negative or 1, and nothing cancels.
    """
    power, total = np.ones_like(factors), np.zeros_like(factors)
    for bit in bin(count)[2:]:
        total = total * (1.0 + power)
        power = power * power
        if bit == "1":
            total = total * factors + 1.0
            power = power * factors
    return power, total
