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
from .arrays import ArrayPasses, ordinals_of
from .estimators import Estimator
from .fixedpoint import CENTROID_GRID, LOSS_UNIT, Scaling, exact_loss
from .quantized import Centroids, Record, Settings
from .replay import Removed
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


class NotFittedError(ValueError, AttributeError):
    """The model was asked for something before it was fitted, or after all its rows went."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What ``delete`` did."""

    action: str
    """``unchanged``, ``resumed`` or ``retrained``."""
    first_step: int | None
    """The first step whose centroids differ; None where the model stands."""
    rows: int
    """Rows that left the model."""
    ignored: int
    """Units asked for that are not in the model."""
    passes: int
    """Passes over the remaining rows."""
    reason: str
    """Why the model did not stand; empty where it did."""


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
        return lloyd.assign(fixed, live, None, centroids.quantized, centroids.present)

    share = lloyd.square_sum(fixed, live, None)
    return replay.delete(record, removed, remaining, settings, assign_removed, share)


class KMeans(Estimator):
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

    _parameters: tuple[str, ...] = ("n_clusters", "max_iter", "random_state", "bounds")

    def __init__(
        self,
        n_clusters: int = DEFAULT_CLUSTERS,
        max_iter: int = DEFAULT_MAX_ITER,
        random_state: int | None = None,
        *,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.random_state = random_state
        self.bounds = bounds

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
        state = self.random_state
        if state is None:
            state = int(np.random.SeedSequence().generate_state(1)[0])
        state = whole("random_state", state)
        settings = self._resolve(len(x), x.shape[1], state)
        rows = ArrayPasses(x, ids, ordinals_of(ids))
        record = quantized.fit(rows, settings)
        # Nothing of an earlier fit is touched before this one is complete.
        self.random_state_ = state
        self._settings = settings
        self.epsilon_ = settings.spacing / CENTROID_GRID
        self._rows = rows
        self._order = np.argsort(ids, kind="stable")
        self._sorted_units = ids[self._order]
        self.record_ = record
        return self

    def delete(self, units: int | Iterable[int]) -> Deletion:
        """Delete all rows of these units, exactly: the model of a fit on the other rows.

        Units that are not in the model are ignored and counted. The rows are overwritten in the
        model's own memory.
        """
        record = self._fitted()
        if isinstance(units, str | bytes):
            raise InvalidParameterError("units are text; whole numbers are needed")
        asked = np.unique(checked_units(listed(units), None))
        index = self._find(asked)
        rows = self._rows
        found = np.unique(rows.units[index])
        removed = Removed(rows.units[index], rows.ordinals[index], rows.x[index])
        with rows.without(index):
            self.record_, outcome = delete_rows(record, removed, rows, self._settings)
        self._forget(asked)
        return Deletion(
            outcome.action,
            outcome.first_step,
            len(index),
            len(asked) - len(found),
            outcome.passes,
            outcome.reason,
        )

    def _find(self, units: NDArray[np.int64]) -> NDArray[np.intp]:
        """The places of the live rows of these units (ascending, different)."""
        left = np.searchsorted(self._sorted_units, units, "left")
        right = np.searchsorted(self._sorted_units, units, "right")
        spans = [self._order[a:b] for a, b in zip(left, right, strict=True)]
        places = np.concatenate(spans) if spans else np.empty(0, np.intp)
        return places[self._rows.units[places] >= 0]

    def _forget(self, units: NDArray[np.int64]) -> None:
        """Overwrite these ids in the sorted list by a remaining neighbour's: rows tell by place."""
        ids = self._sorted_units
        lefts = np.searchsorted(ids, units, "left").tolist()
        rights = np.searchsorted(ids, units, "right").tolist()
        start = 0
        for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            start = left if number == 0 or left > rights[number - 1] else start
            # A run of ids that go ends where the next one does not follow at once.
            if number + 1 == len(lefts) or lefts[number + 1] > right:
                before = ids[start - 1] if start else ids[right] if right < len(ids) else 0
                ids[start:right] = before

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
    def inertia_(self) -> float:
        return self._alive().final.loss / LOSS_UNIT

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

    def _fitted(self) -> Record:
        record: Record | None = getattr(self, "record_", None)
        if record is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
        return record

    def _alive(self) -> Record:
        record = self._fitted()
        if record.empty:
            raise NotFittedError("the model is empty: all its rows were deleted")
        return record

    def _checked(self, X: ArrayLike) -> NDArray[np.float32]:
        return checked_rows(X, len(self._fitted().extent.lower))


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

    _parameters = ("n_clusters", "epsilon", "gamma", "max_iter", "random_state", "bounds")

    def __init__(
        self,
        n_clusters: int = DEFAULT_CLUSTERS,
        epsilon: float | None = None,
        gamma: float = DEFAULT_GAMMA,
        max_iter: int = DEFAULT_MAX_ITER,
        random_state: int | None = None,
        *,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(n_clusters, max_iter, random_state, bounds=bounds)
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
