"""The influence function, extended to sets of rows (Koh and Liang 2017; PrIU's ``infl``).

At the optimum of (1/n) sum of l_i(w) + lambda/2 |w|^2, taking row i out of the mean moves w by
(1/n) H^-1 (grad l_i + lambda w) to first order, with H the whole objective's Hessian. A set of rows
moves it by the sum. It supposes that the descent has ended, and knows nothing of mini-batches; where
H is singular (softmax without L2, whose scores may all move together) the pseudo-inverse serves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .closed_form import pseudo_solution
from .descent import Descent
from .losses import Loss
from .provenance import add_curvature
from .visits import Visits, add_gradients


def influence_change(
    descent: Descent,
    w: NDArray[np.float64],
    hessian: NDArray[np.float64],
    rows: int,
    gone: Visits,
) -> NDArray[np.float64]:
    """Return w' - w (P,) by method ``infl``.

    w (P,). hessian (P, P): the sum over all ``rows`` rows, the leaving ones included, of their own
    Hessians; its lower triangle counts. gone: each leaving row once, its terms at w.
    """
    pull = np.zeros_like(w)
    add_gradients(gone.rows, gone.coefficients, pull)
    pull -= len(gone.rows) * descent.l2 * w
    whole = np.tril(hessian) + np.tril(hessian, -1).T
    return -pseudo_solution(whole / rows + descent.l2 * np.eye(len(w)), pull / rows)


def add_hessians(
    total: NDArray[np.float64], loss: Loss, rows: NDArray[np.float64], curved: NDArray[np.float64]
) -> None:
    """Add the rows' Hessians to the lower triangle of total (P, P), Fortran-ordered."""
    if len(rows):
        add_curvature(total, loss, rows, curved)


def downdated(
    loss: Loss, hessian: NDArray[np.float64], rows: int, gone: Visits
) -> NDArray[np.float64]:
    """Return the summed Hessian without the leaving rows' terms; exact zeros where none is left."""
    if len(gone.rows) == rows:
        return np.zeros_like(hessian)
    lost = np.zeros(hessian.shape, order="F")
    add_hessians(lost, loss, gone.rows, gone.curvature)
    return np.tril(hessian) - np.tril(lost)
