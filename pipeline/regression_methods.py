"""The methods of an update by name: what each makes of a deletion that ``delta`` has carried out.

``delta`` comes first whatever the method: its u is what the provenance is rebased by.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import closed_form, frozen
from .closed_form import NormalEquations, closed_form_change
from .frozen import FrozenMean, leaving_terms
from .influence import influence_change
from .regression import CLOSED_FORM, DELTA, INFL, PRIU_OPT, RegressionSettings
from .visits import Leaving


@dataclass(frozen=True, slots=True)
class FrozenEnd:
    """What ``priu-opt`` takes from kind ``frozen``."""

    w: NDArray[np.float64]
    """(P,) at t_s."""
    u: NDArray[np.float64]
    """(P,) at t_s, by ``delta``."""
    mean: FrozenMean
    first: int
    """t_s"""


@dataclass(frozen=True, slots=True)
class Known:
    """What a model and a deletion from it hold besides the trace."""

    settings: RegressionSettings
    w: NDArray[np.float64]
    """(P,) before the deletion."""
    rows: int
    """Training rows before it."""
    leaving: Leaving
    normal: NormalEquations | None = None
    """Of all rows; of linear models."""
    hessian: NDArray[np.float64] | None = None
    """(P, P) the summed Hessian at w, of the other models where it is kept."""
    frozen: FrozenEnd | None = None

    @property
    def left(self) -> NormalEquations | None:
        """Those of the rows that stay."""
        if self.normal is None:
            return None
        return self.normal.without(self.leaving.rows, self.leaving.labels)


def change_by(method: str, known: Known, by_delta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the change (P,) of the parameters by ``delta`` or a method that needs no trace.

    by_delta: (P,). Raises ValueError where the model has nothing for the method.
    """
    settings, normal, left = known.settings, known.normal, known.left
    if method == DELTA:
        return by_delta
    if method == CLOSED_FORM and left is not None:
        return closed_form_change(settings.l2, known.w, left)
    if method == PRIU_OPT and normal is not None and left is not None:
        return closed_form.priu_opt_change(settings.descent, settings.iterations, normal, left)
    if method == PRIU_OPT and known.frozen is not None:
        return _frozen_change(known, known.frozen)
    if method == INFL and (hessian := _hessian(known)) is not None:
        gone = leaving_terms(settings.loss, known.leaving, known.w)
        return influence_change(settings.descent, known.w, hessian, known.rows, gone)
    raise ValueError(f"the model keeps nothing that method {method!r} could use")


def _hessian(known: Known) -> NDArray[np.float64] | None:
    return known.hessian if known.normal is None else 2.0 * known.normal.gram


def _frozen_change(known: Known, end: FrozenEnd) -> NDArray[np.float64]:
    settings = known.settings
    return frozen.priu_opt_change(
        settings.descent,
        end.w,
        end.mean,
        end.u,
        settings.iterations - end.first,
        known.rows,
        leaving_terms(settings.loss, known.leaving, end.w),
    )
