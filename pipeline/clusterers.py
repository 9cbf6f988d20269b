"""k-means and Q-k-means on NumPy arrays, with scikit-learn's face and a ``delete``.

Example
-------
>>> import numpy as np
>>> from expunge import QKMeans
>>> x = np.random.default_rng(0).random((1000, 3))
>>> model = QKMeans(n_clusters=4, epsilon=0.05, random_state=0).fit(x)
>>> model.delete([17]).rows
1
>>> kept = np.delete(np.arange(1000), 17)
>>> again = QKMeans(n_clusters=4, epsilon=0.05, random_state=0).fit(x[kept], units=kept)
>>> bool(np.array_equal(model.cluster_centers_, again.cluster_centers_))
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import lloyd, quantized, replay
from .arrays import ArrayPasses, assign_fixed, ordinals_of
from .estimators import Estimator
from .fixedpoint import CENTROID_GRID, LOSS_UNIT, Scaling, exact_loss
from .history import History
from .quantized import Centroids, Record, Settings
from .replay import NOTHING, Outcome, Removed
from .unit_index import UnitIndex
from .validation import (
    DEFAULT_CLUSTERS,
    DEFAULT_GAMMA,
    DEFAULT_MAX_ITER,
    InvalidParameterError,
    checked_rows,
    checked_units,
    listed,
    resolve_settings,
    whole,
)

LABELS = "labels"
PROVENANCES = (LABELS, "none")
"""What k-means keeps for deletions: every row's label and margin at every step, or nothing."""


class NotFittedError(ValueError, AttributeError):
    """The model was asked for something before it was fitted, or after all its rows went."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What ``delete`` did."""

    action: str
    """``unchanged``; ``replayed``: steps changed, but no pass was needed; ``resumed``: training went
    on from a step, by passes over the rows; ``retrained``: from scratch."""
    first_step: int | None
    """The first step whose centroids differ; None where the model stands."""
    rows: int
    """Rows that left the model."""
    ignored: int
    """Units asked for that are not in the model."""
    passes: int
    """Passes over the remaining rows; of DC-k-means, over a leaf's."""
    reason: str
    """Why the model did not stand; empty where it did."""
    leaves: int = 0
    """Leaves of DC-k-means that lost a row and were recomputed."""
    nodes: int = 0
    """Nodes above the leaves that were run again."""
    looked_at: int = 0
    """Rows whose cluster was decided again, one by one, over all steps."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a subclass's deletion came to."""

    outcome: replay.Outcome
    leaves: int = 0
    nodes: int = 0
    looked_at: int = 0


def scaled_centroids(record: Record) -> NDArray[np.float64]:
    """Return the final present centroids (k, features) in [0, 1] units."""
    final = record.final.centroids
    return final.quantized[final.present] / float(CENTROID_GRID)


def nearest(record: Record, x: NDArray[np.float32]) -> tuple[NDArray[np.int32], int]:
    """Return labels (n,) under the final centroids, and the loss in 2^-48.

    Values beyond the training rows' range count as its ends, as with given bounds.
    """
    scaling, final = record.scaling, record.final.centroids
    labels = np.empty(len(x), np.int32)
    units = np.zeros(len(x), np.int64)
    tally = lloyd.assign(x, units, scaling, final.quantized, final.present, labels)
    rank = np.cumsum(final.present, dtype=np.int32) - 1
    square_sum = lloyd.square_sum(x, units, scaling)
    loss = exact_loss(square_sum, final.quantized, tally.sizes, tally.sums)
    return rank[labels].astype(np.int32), loss


def delete_rows(
    record: Record, removed: Removed, remaining: quantized.Passes, settings: Settings
) -> tuple[Record, replay.Outcome]:
    """``replay.delete`` for rows given by value: see there."""
    if record.empty or not len(removed.units):
        return record, replay.Outcome("unchanged", None, 0, "")
    fixed = record.scaling.fixed(removed.x)
    live = np.zeros(len(fixed), np.int64)

    def assign_removed(_: Scaling, centroids: Centroids) -> lloyd.Tally:
        return assign_fixed(fixed, live, centroids.quantized, centroids.present)

    share = lloyd.square_sum(fixed, live, None)
    return replay.delete(record, removed, remaining, settings, assign_removed, share)


class Clusterer(Estimator):
    """What the estimators of the k-means family share: rows by unit, deletion, prediction.

    A subclass trains on the rows that ``_keep`` keeps, deletes in ``_delete_rows`` and tells its
    centroids by ``_model``.
    """

    n_clusters: int
    max_iter: int
    random_state: int | None
    bounds: tuple[float, float] | None
    _rows: ArrayPasses

    def _delete_rows(self, removed: Removed, index: NDArray[np.intp]) -> Done:
        """Make the model one of the rows that are left: those at ``index`` are holes by now."""
        raise NotImplementedError

    def _model(self) -> Record:
        """The record whose final centroids are the model; empty where all rows were deleted."""
        raise NotImplementedError

    def _state(self) -> int:
        """``random_state``, or a new one."""
        if self.random_state is None:
            return int(np.random.SeedSequence().generate_state(1)[0])
        return whole("random_state", self.random_state)

    def _keep(self, rows: ArrayPasses) -> None:
        """Keep the rows that the model was trained on, to be found by unit."""
        self._rows = rows
        self._index = UnitIndex(rows.units)

    def delete(self, units: int | Iterable[int]) -> Deletion:
        """Delete all rows of these units, exactly: the model of a fit on the other rows.

        Units that are not in the model are ignored and counted. The rows are overwritten in the
        model's own memory.
        """
        self._check_fitted()
        if isinstance(units, str | bytes):
            raise InvalidParameterError("units are text; whole numbers are needed")
        asked = checked_units(listed(units), None)
        asked = np.unique(asked) if len(asked) != 1 else asked
        places = self._index.find(asked)
        found = len(places) if len(asked) == 1 else len(np.unique(self._rows.units[places]))
        try:
            done = self._remove(places)
        finally:
            if not (self._rows.units[places] >= 0).any():
                self._index.forget(asked)
        outcome = done.outcome
        return Deletion(
            outcome.action,
            outcome.first_step,
            len(places),
            len(asked) - min(found, len(asked)),
            outcome.passes,
            outcome.reason,
            done.leaves,
            done.nodes,
            done.looked_at,
        )

    def _remove(self, places: NDArray[np.intp]) -> Done:
        """Delete the live rows at these places, and overwrite them."""
        rows = self._rows
        removed = Removed(rows.units[places], rows.ordinals[places], rows.x[places])
        with rows.without(places):
            return self._delete_rows(removed, places)

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the index (n,) of each row's nearest centre in ``cluster_centers_``."""
        return nearest(self._alive(), self._checked(X))[0]

    def score(self, X: ArrayLike) -> float:
        """Return minus the sum of squared distances of the scaled rows of X to their centres."""
        return -nearest(self._alive(), self._checked(X))[1] / LOSS_UNIT

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        record = self._alive()
        return record.scaling.restore(scaled_centroids(record))

    @property
    def n_iter_(self) -> int:
        return self._alive().final_number

    @property
    def n_rows_(self) -> int:
        return self._fitted().extent.rows

    @property
    def empty_(self) -> bool:
        """Whether every row was deleted."""
        return self._fitted().empty

    def _check_fitted(self) -> None:
        if not hasattr(self, "_index"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")

    def _fitted(self) -> Record:
        self._check_fitted()
        return self._model()

    def _alive(self) -> Record:
        record = self._fitted()
        if record.empty:
            raise NotFittedError("the model is empty: all its rows were deleted")
        return record

    def _checked(self, X: ArrayLike) -> NDArray[np.float32]:
        return checked_rows(X, len(self._fitted().extent.lower))


class KMeans(Clusterer):
    """k-means (Lloyd, k-means++ seeding) from which rows can be deleted exactly.

    Parameters
    ----------
    n_clusters : int
    max_iter : int
        Lloyd steps at most; training stops earlier when the loss no longer drops.
    random_state : int or None
        None draws one, kept as ``random_state_``.
    bounds : (float, float), optional
        Range that features are scaled from, for all of them; values beyond it are clipped. By
        default the rows' own minima and maxima, and deleting a bound's last row then retrains.
    provenance : "labels" or "none"
        Whether to keep each row's label and margin at every step (five bytes each), so that a
        deletion looks only at rows near a boundary that moves. The models are the same.

    Attributes
    ----------
    cluster_centers_ : (k, n_features) float64, in the features' own units
        Fewer than ``n_clusters`` where fewer distinct rows are left.
    inertia_ : float
        Sum of squared distances of the min-max scaled rows to their nearest centre.
    n_iter_ : int
        Accepted steps.
    n_rows_ : int
        Rows that the model depends on.
    record_ : Record
        Every array that a deletion needs.
    """

    _parameters: tuple[str, ...] = (
        "n_clusters",
        "max_iter",
        "random_state",
        "bounds",
        "provenance",
    )

    def __init__(
        self,
        n_clusters: int = DEFAULT_CLUSTERS,
        max_iter: int = DEFAULT_MAX_ITER,
        random_state: int | None = None,
        *,
        bounds: tuple[float, float] | None = None,
        provenance: str = LABELS,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.random_state = random_state
        self.bounds = bounds
        self.provenance = provenance

    def _resolve(self, rows: int, features: int, random_state: int) -> Settings:
        return resolve_settings(
            rows,
            features,
            n_clusters=self.n_clusters,
            epsilon=0.0,
            gamma=0.0,
            max_iter=self.max_iter,
            random_state=random_state,
            bounds=self.bounds,
        )

    def fit(self, X: ArrayLike, units: ArrayLike | None = None) -> Self:
        """Train on X (n, n_features); units (n,) non-negative ints, by default the row numbers.

        Raises ValueError for NaN, infinity, wrong shapes, negative units or n_clusters > n.
        """
        x = checked_rows(X, None)
        ids = checked_units(np.arange(len(x)) if units is None else units, len(x))
        state = self._state()
        settings = self._resolve(len(x), x.shape[1], state)
        rows = ArrayPasses(x, ids, ordinals_of(ids))
        if self.provenance not in PROVENANCES:
            raise ValueError(f"provenance is {self.provenance!r}; it must be labels or none")
        history = History(rows, settings) if self.provenance == LABELS else None
        record = history.record if history else quantized.fit(rows, settings)
        # Nothing of an earlier fit is touched before this one is complete.
        self.random_state_ = state
        self._settings = settings
        self.epsilon_ = settings.spacing / CENTROID_GRID
        self._keep(rows)
        self._plain, self._history = record, history
        self._drop_unusable()
        return self

    @property
    def record_(self) -> Record:
        history: History | None = self._history
        return history.record if history else self._plain

    def _drop_unusable(self) -> None:
        """Go on without a history where a centroid is absent."""
        if self._history and not self._history.usable:
            self._plain, self._history = self._history.record, None

    def _remove(self, places: NDArray[np.intp]) -> Done:
        history = self._history
        if history is None or len(places) == history.rows:
            return super()._remove(places)
        if not len(places):
            return Done(NOTHING)
        found = history.delete(places)
        self._drop_unusable()
        outcome = Outcome(found.action, found.first_step, found.passes, found.reason)
        return Done(outcome, looked_at=found.looked_at)

    def _delete_rows(self, removed: Removed, index: NDArray[np.intp]) -> Done:
        record, outcome = delete_rows(self.record_, removed, self._rows, self._settings)
        self._plain, self._history = record, None
        return Done(outcome)

    def _model(self) -> Record:
        return self.record_

    @property
    def inertia_(self) -> float:
        return self._alive().final.loss / LOSS_UNIT


class QKMeans(KMeans):
    """Q-k-means ("Making AI Forget You", section 4.1): centroids snapped to a random lattice.

    Most deletions then change no centroid, and cost no pass over the rows.

    Parameters
    ----------
    epsilon : float or None
        Lattice spacing in [0, 1] in units of the scaled features; None: the rule of thumb
        2^(-floor(log10 n) - 3). Resolved at ``fit`` as ``epsilon_`` on the 2^-23 grid.
    gamma : float
        Clusters below gamma n / k rows are pulled to their previous centroid (app. B.1).

    The rest as in ``KMeans``.
    """

    _parameters = (
        "n_clusters",
        "epsilon",
        "gamma",
        "max_iter",
        "random_state",
        "bounds",
        "provenance",
    )

    def __init__(
        self,
        n_clusters: int = DEFAULT_CLUSTERS,
        epsilon: float | None = None,
        gamma: float = DEFAULT_GAMMA,
        max_iter: int = DEFAULT_MAX_ITER,
        random_state: int | None = None,
        *,
        bounds: tuple[float, float] | None = None,
        provenance: str = LABELS,
    ) -> None:
        super().__init__(n_clusters, max_iter, random_state, bounds=bounds, provenance=provenance)
        self.epsilon = epsilon
        self.gamma = gamma

    def _resolve(self, rows: int, features: int, random_state: int) -> Settings:
        return resolve_settings(
            rows,
            features,
            n_clusters=self.n_clusters,
            epsilon=self.epsilon,
            gamma=self.gamma,
            max_iter=self.max_iter,
            random_state=random_state,
            bounds=self.bounds,
        )
