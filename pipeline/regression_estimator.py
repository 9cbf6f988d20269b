"""What the in-memory regressions share: fit, delete, and the parameters in the features' units."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import regression_arrays as arrays
from .clusterer import NotFittedError
from .components import MOST_COLUMNS, choose_rank, spectrum
from .descent import DivergedError
from .design import Design, Moments
from .estimators import Estimator
from .losses import Loss, smoothness
from .regression import (
    AVERAGED,
    BASEL,
    CLOSED_FORM,
    DEFAULT_BATCH_SIZE,
    DEFAULT_ITERATIONS,
    DEFAULT_L2,
    DELTA,
    EXACT,
    FEWEST_ROWS,
    INFL,
    METHODS,
    NO_PROVENANCE,
    PROJECTED,
    SMOOTHNESS_ROWS,
    RegressionSettings,
    batch_slots,
    block_length,
    check_settings,
    provenance_bytes,
    unusable,
)
from .regression_arrays import Rows, Trained
from .regression_labels import checked_labels
from .validation import InvalidParameterError, checked_rows, checked_units, listed, whole

EXACT_BYTES = 2**30
"""Exact provenance is the default up to this size."""
AVERAGED_BYTES = 2**32
"""Averaged provenance is the default up to this size."""


@dataclass(frozen=True, slots=True)
class RegressionDeletion:
    """What ``delete`` did."""

    method: str
    """One of ``regression.METHODS``."""
    kind: str
    """The provenance, one of ``regression.KINDS``."""
    rows: int
    """Rows that left the model."""
    ignored: int
    """Units asked for that are not in the model."""
    change: float
    """Euclidean length of the parameters' change, for standardised features."""
    share_deleted: float
    """Share of the rows of the fit that are deleted by now: the distance to a retrain grows with it."""
    failed: bool = False
    """Whether training diverges on the rows that are left: the model has no parameters any more."""


@dataclass(frozen=True, slots=True)
class _State:
    """Everything of a fit that is not a row."""

    settings: RegressionSettings
    design: Design
    trained: Trained


def _smallest(parameters: int, iterations: int, dtype: str, columns: int) -> str:
    """The kind that is the default: the first one whose size is allowed."""
    if provenance_bytes(EXACT, parameters, iterations, dtype) <= EXACT_BYTES:
        return EXACT
    averaged = provenance_bytes(AVERAGED, parameters, iterations, dtype)
    return AVERAGED if averaged <= AVERAGED_BYTES or columns > MOST_COLUMNS else PROJECTED


class Regression(Estimator):
    """A regression on NumPy arrays; subclasses say what a label is."""

    _loss: ClassVar[Loss]
    random_state_: int
    n_features_in_: int
    learning_rate_: float
    provenance_: str
    classes_: NDArray[Any]
    _rows: Rows
    _state: _State | None
    _decided: tuple[NDArray[np.int64], _State | None] | None = None
    """Rows that a deletion takes out, and the model then, until both are done."""
    _parameters = (
        "learning_rate",
        "l2",
        "batch_size",
        "iterations",
        "random_state",
        "provenance",
        "dtype",
    )

    def __init__(
        self,
        learning_rate: float | None = None,
        l2: float = DEFAULT_L2,
        batch_size: int = DEFAULT_BATCH_SIZE,
        iterations: int = DEFAULT_ITERATIONS,
        random_state: int | None = None,
        *,
        provenance: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.learning_rate = learning_rate
        self.l2 = l2
        self.batch_size = batch_size
        self.iterations = iterations
        self.random_state = random_state
        self.provenance = provenance
        self.dtype = dtype

    def fit(self, X: ArrayLike, y: ArrayLike, units: ArrayLike | None = None) -> Self:
        """Train on X (n, n_features) and y (n,); units (n,) ints >= 0, by default the row numbers.

        Raises ValueError for NaN, infinity, wrong shapes, labels that can't be used or negative
        units, and DivergedError where the parameters grow without bound. Warns with RuntimeWarning
        when the learning rate exceeds 1/L.
        """
        x = checked_rows(X, None)
        if not x.size:
            raise ValueError(f"X has shape {x.shape}; at least one row and one feature are needed")
        ids = checked_units(np.arange(len(x)) if units is None else units, len(x))
        labels, classes = self._encoded(checked_labels(y, len(x)))
        state = self.random_state
        if state is None:
            state = int(np.random.SeedSequence().generate_state(1)[0])
        q = len(classes) if self._loss == Loss.SOFTMAX else 1
        design = Design.of(Moments.of(x))
        settings = self._resolved(design, x, q, whole("random_state", state))
        rows = Rows(x, labels, ids)
        trained = arrays.train(settings, design, rows, q)
        # Nothing of an earlier fit is touched before this one is complete, and then all in one step.
        self.__dict__.update(
            random_state_=state,
            n_features_in_=x.shape[1],
            learning_rate_=settings.learning_rate,
            provenance_=settings.provenance,
            _rows=rows,
            _state=_State(settings, design, trained),
            _decided=None,
            **({"classes_": classes} if len(classes) else {}),
        )
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Nothing that an interrupted deletion left goes into a pickle or a copy.
        self._complete()
        return dict(self.__dict__)

    def _resolved(
        self, design: Design, x: NDArray[np.float32], q: int, random_state: int
    ) -> RegressionSettings:
        """The settings for good, from the rows x (n, d) of the fit."""
        check_settings(
            learning_rate=self.learning_rate,
            l2=self.l2,
            batch_size=self.batch_size,
            iterations=self.iterations,
            validation=0.0,
            provenance=self.provenance,
            dtype=self.dtype,
            random_state=random_state,
        )
        dtype = self.dtype or ("float64" if self._loss == Loss.LINEAR else "float32")
        count = min(len(x), SMOOTHNESS_ROWS)
        some = design.take(x, np.linspace(0, len(x) - 1, count).astype(np.int64))
        gram = some.T @ some / count
        kind = self.provenance
        if kind == PROJECTED and design.width > MOST_COLUMNS:
            raise ValueError(
                f"provenance {kind!r} is for rows of up to {MOST_COLUMNS - 1:,} features; X has "
                f"{design.width - 1:,}"
            )
        if kind is None:
            kind = _smallest(q * design.width, self.iterations, dtype, design.width)
        settings = RegressionSettings(
            loss=self._loss,
            learning_rate=self._rate(gram, len(x)),
            l2=float(self.l2),
            batch_slots=batch_slots(self.batch_size, len(x), len(x)),
            iterations=self.iterations,
            random_state=random_state,
            window=1,
            validation=0.0,
            provenance=kind,
            dtype=dtype,
            block=block_length(kind, self.iterations),
        )
        if kind == PROJECTED:
            rank, _ = choose_rank(spectrum(gram), settings.descent, self.iterations, q)
            settings = replace(settings, rank=rank)
        return settings

    def _rate(self, gram: NDArray[np.float64], rows: int) -> float:
        """The learning rate given, with a warning above 1/L, or half of a mini-batch's 1/L.

        gram: (m, m) the mean of x x^T.
        """
        lipschitz = smoothness(self._loss, gram, self.l2)
        if self.learning_rate is None:
            return 0.5 / smoothness(self._loss, gram, self.l2, min(self.batch_size, rows))
        if self.learning_rate > 1.0 / lipschitz:
            warnings.warn(
                f"learning_rate is {self.learning_rate}, above 1/L = {1.0 / lipschitz:.4g}: "
                "training may diverge; leave it out to take half of 1/L",
                RuntimeWarning,
                stacklevel=4,
            )
        return float(self.learning_rate)

    def delete(self, units: int | Iterable[int], method: str = DELTA) -> RegressionDeletion:
        """Delete all rows of these units: nearly the model of a fit on the other rows.

        method: ``delta`` updates the parameters by the provenance, whatever its kind; ``priu`` is the
        paper's form of it (kind exact), ``priu-opt`` its closed sums (linear models, or kind frozen),
        ``closed-form`` solves linear models' normal equations, ``infl`` is the influence function;
        ``basel`` trains again on the rows that are left with the same mini-batches. So do all but
        ``closed-form`` without provenance, and all where an update does not converge, moves parameters
        too far for its linearisation, or leaves fewer than two rows; ``basel`` does with no unit, too.
        Units that are not in the model are ignored and counted. The rows are overwritten in the model's own memory; if this is interrupted, nothing was
        done, or whatever is asked next completes it. Where an update can't hold and training diverges
        on the rows that are left, with the settings of the fit, the rows go all the same and the model
        is ``failed``: fit it again.

        Raises ValueError for a method that the model can't be updated by.
        """
        rows = self._fitted()
        if isinstance(units, str | bytes):
            raise InvalidParameterError("units are text; whole numbers are needed")
        asked = np.unique(checked_units(listed(units), None))
        kind = self.provenance_
        again = method == BASEL
        method = self._checked_method(method)
        index = np.flatnonzero(np.isin(rows.units, asked))
        ignored = len(asked) - len(np.unique(rows.units[index]))
        change = 0.0
        state = self._state
        if state is not None and (len(index) or again):
            # An update's error could be all that is left of such a model.
            method = BASEL if rows.live - len(index) < FEWEST_ROWS else method
            trained, method = self._after(state, index, method)
            after = np.zeros_like(state.trained.w) if trained is None else trained.w
            change = float(np.linalg.norm(after - state.trained.w))
            state = None if trained is None else replace(state, trained=trained)
        self._decided = index, state
        self._complete()
        share = 1.0 - rows.live / len(rows.units)
        return RegressionDeletion(
            method, kind, len(index), ignored, change, share, self._failed_since()
        )

    def _complete(self) -> None:
        """Do what a deletion has decided; where it was interrupted here, once more."""
        if self._decided is not None:
            index, state = self._decided
            self._rows.erase(index)
            self._state = state
            self._decided = None

    def _after(
        self, state: _State, index: NDArray[np.int64], method: str
    ) -> tuple[Trained | None, str]:
        """The model without some rows, and the method that gave it; None where there can be none."""
        try:
            try:
                return self._without(state, index, method), method
            except arrays.StrayedError:
                return self._without(state, index, BASEL), BASEL
        except DivergedError:
            return None, BASEL

    def _failed_since(self) -> bool:
        """Whether a deletion left rows, and no model of them."""
        return self._state is None and self._rows.live > 0

    def _without(self, state: _State, index: NDArray[np.int64], method: str) -> Trained | None:
        """The model without some rows; None where none is left."""
        rows, settings = self._rows, state.settings
        remaining = rows.without(index)
        if not remaining.live:
            return None
        if method == BASEL:
            return arrays.train(settings, state.design, remaining, len(state.trained.w))
        schedule = settings.schedule(1, len(rows.units))
        leaving = rows.leaving(state.design, index)
        hessian = None
        if method == INFL and self._loss != Loss.LINEAR:
            hessian = arrays.summed_hessian(self._loss, state.design, rows, state.trained.w)
        return arrays.delete(settings, schedule, state.trained, leaving, method, hessian)

    def _checked_method(self, method: str) -> str:
        kind = self.provenance_
        if method not in METHODS:
            raise ValueError(f"method is {method!r}; it is one of {', '.join(METHODS)}")
        if (reason := unusable(method, self._loss, kind)) is not None:
            raise ValueError(
                f"method {method!r} {reason}; this model's is {kind!r}, its loss "
                f"{self._loss.name.lower()}"
            )
        return BASEL if kind == NO_PROVENANCE and method != CLOSED_FORM else method

    @property
    def n_iter_(self) -> int:
        """Iterations of mini-batch descent."""
        return self._alive().settings.iterations

    @property
    def n_rows_(self) -> int:
        """Rows that the model depends on."""
        return self._fitted().live

    @property
    def empty_(self) -> bool:
        """Whether every row was deleted."""
        self._fitted()
        return self._rows.live == 0

    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Labels as the losses want them, and the classes (none for numbers)."""
        raise NotImplementedError

    def _fitted(self) -> Rows:
        rows: Rows | None = getattr(self, "_rows", None)
        if rows is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
        self._complete()
        return rows

    def _alive(self) -> _State:
        self._fitted()
        if self._failed_since():
            raise NotFittedError(
                f"the model has no parameters: at learning_rate {self.learning_rate_:.4g} training "
                "diverges on the rows that a deletion left; fit it again with a smaller one"
            )
        if self._state is None:
            raise NotFittedError("the model is empty: all its rows were deleted")
        return self._state

    def _scores(self, X: ArrayLike) -> NDArray[np.float64]:
        """W x of each row of X: (n, q)."""
        state = self._alive()
        x = checked_rows(X, self.n_features_in_)
        scores: NDArray[np.float64] = state.design.rows(x) @ state.trained.w.T
        return scores

    def _raw(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients (q, d) and intercepts (q,) in the features' own units."""
        state = self._alive()
        coefficients = state.trained.w[:, :-1] / state.design.scale
        return coefficients, state.trained.w[:, -1] - coefficients @ state.design.mean
