"""What "Making AI Forget You" predicts of costs and losses, and the fit of a power law to what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """y = factor x^exponent, fitted by least squares of log y on log x."""

    exponent: float
    factor: float
    points: int
    """How many points the fit stands on."""
    r2: float
    """The share of the variance of log y that the line explains; 1 where log y does not vary."""


def fit_power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """Fit a power law to the points that are positive in both; None unless two x differ."""
    points = [(log(a), log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    a, b = np.array(points).T
    across, up = a - a.mean(), b - b.mean()
    exponent = float(across @ up / (across @ across))
    left = up - exponent * across
    spread = float(up @ up)
    r2 = 1.0 - float(left @ left) / spread if spread > 0 else 1.0
    return PowerLaw(exponent, float(np.exp(b.mean() - exponent * a.mean())), len(points), r2)


def quantized_deletion_cost(deletions: int, features: int, epsilon: float) -> float:
    """Return m^2 d^(5/2) / epsilon: the expected cost of m deletions but for a constant (Theorem 4.1)."""
    return float(deletions**2) * sqrt(features) ** 5 / epsilon


def divided_deletion_cost(rows: int, leaves: int) -> float:
    """Return max(n^rho, n^(1 - rho)) for w = n^rho leaves: max(w, n / w) (Proposition 4.2).

    The expected cost of one deletion, but for a constant and the number of features.
    """
    return max(float(leaves), rows / leaves)


def quantized_loss_bound(
    best_loss: float, rows: int, features: int, clusters: int, epsilon: float
) -> float:
    """Return the bound of Corollary 4.1.1 on the expected loss of Q-k-means.

    (8 ln k + 16) L* + epsilon sqrt(n d (8 ln k + 16) L*) + n d epsilon^2 / 4, with L* the least
    possible sum of squared distances. A loss that was merely seen is at least L*, so the bound
    that it gives is at least the true one.
    """
    seeded = (8.0 * log(clusters) + 16.0) * best_loss
    size = rows * features
    return seeded + epsilon * sqrt(size * seeded) + size * epsilon**2 / 4.0
