"""The paper's update for sparse data: the linearised rule at every mini-batch (PrIU, equation 11).

In difference form, with h_i = |c_i| (1 - |c_i|) the slope at the recorded trajectory:

    u_{t+1} = (1 - eta lambda) u_t + (eta / b'_t) sum' (c_i - h_i x_i . u_t) x_i - (eta / b_t) sum c_i x_i

There is no matrix C: its product with u is made from the mini-batch's rows. That costs as much as
BaseL but for the exponential.
"""

from __future__ import annotations

from math import exp

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .sparse_descent import (
    FARTHEST,
    FAST,
    LEAST_SCALE,
    ROUNDING,
    SparseStep,
    SparseWindow,
    add_row,
    row_dot,
)

NEAR = 0.25
"""A score that moves less has nearly the same second derivative all the way."""


@njit(cache=True, nogil=True, fastmath=FAST)
def _replay(  # type: ignore[no-untyped-def]
    rate, decay, u, scale, values, columns, pointers, order, edges, sizes, stays, c, changed, left
):
    """Take u (m + 1,), over its scale (1,), through some whole iterations.

    sizes (iterations, 2): the rows of each iteration, before and after. left (slots,) gets what the
    second derivative would add; where a score moves far, what the logistic function itself does.
    """
    bias = len(u) - 1
    steps = np.empty(np.diff(edges).max()) if len(edges) > 1 else np.empty(0)
    for k in range(len(edges) - 1):
        first, last = edges[k], edges[k + 1]
        old = rate / sizes[k, 0] if sizes[k, 0] else 0.0
        new = rate / sizes[k, 1] if sizes[k, 1] else 0.0
        total = 0.0
        for i in range(first, last):
            s = order[i]
            before = float(c[s])
            after = 0.0
            if stays[s]:
                moved = row_dot(u, values, columns, pointers[s], pointers[s + 1]) + u[bias]
                moved *= scale[0]
                f = abs(before)
                slope = f * (1.0 - f)
                after = before - slope * moved
                if abs(moved) < NEAR:
                    left[s] += 0.5 * new * slope * abs(1.0 - 2.0 * f) * moved * moved
                else:
                    power = moved if before > 0.0 else -moved
                    power = min(max(power, -FARTHEST), FARTHEST)
                    grown = exp(power)
                    true = f / (f + (1.0 - f) * grown)
                    rounded = min(ROUNDING * max(grown - 1.0, 0.0), 1.0)
                    left[s] += new * (abs(true - f + slope * power) + rounded)
            changed[s] = after
            steps[i - first] = new * after - old * before
            total += steps[i - first]
        scale[0] *= decay
        for i in range(first, last):
            s = order[i]
            factor = steps[i - first] / scale[0]
            add_row(u, factor, values, columns, pointers[s], pointers[s + 1])
        u[bias] += total / scale[0]
        if scale[0] < LEAST_SCALE:
            u *= scale[0]
            scale[0] = 1.0


class LinearisedUpdate:
    """An update in progress: takes windows of whole iterations in order."""

    def __init__(self, step: SparseStep, features: int, slots: int) -> None:
        self._step = step
        self.left = np.zeros(slots)
        """(slots,) what the linearisation left out of the rows' factors."""
        self._u = np.zeros(features + 1)
        self._scale = np.ones(1)

    def take(
        self,
        window: SparseWindow,
        stays: NDArray[np.bool_],
        c: NDArray[np.float32],
        changed: NDArray[np.float32],
    ) -> None:
        """Go through a window as it was trained, deleted rows among them.

        stays, c (slots,): which rows stay, and the recorded coefficients; changed gets the new ones.
        ValueError for a window that ends within an iteration.
        """
        if not window.closed:
            raise ValueError("an update takes windows of whole iterations")
        before = np.diff(window.edges)
        kept = np.r_[0, np.cumsum(stays[window.order])][window.edges]
        sizes = np.stack([before, np.diff(kept)], axis=1).astype(np.int64)
        _replay(
            self._step.rate,
            self._step.decay,
            self._u,
            self._scale,
            *window.rows.entries,
            window.order,
            window.edges,
            sizes,
            stays,
            c,
            changed,
            self.left,
        )

    @property
    def change(self) -> NDArray[np.float64]:
        """(m + 1,) w' - w, the bias last."""
        found: NDArray[np.float64] = self._scale[0] * self._u
        return found
