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

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import quantized
from .arrays import ArrayPasses, ordinals_of
from .clusterer import Clusterer, Done, delete_rows
from .fixedpoint import CENTROID_GRID, LOSS_UNIT
from .history import History
from .quantized import Record, Settings
from .replay import NOTHING, UNCHANGED, Outcome, Removed
from .validation import (
    DEFAULT_CLUSTERS,
    DEFAULT_GAMMA,
    DEFAULT_MAX_ITER,
    LABELS,
    checked_provenance,
    checked_rows,
    checked_units,
    resolve_settings,
)

STANDS = Done(NOTHING)


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

    random_state_: int
    epsilon_: float
    _settings: Settings
    _plain: Record | None
    _history: History | None
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
        keeps = checked_provenance(self.provenance) == LABELS
        history = History(rows, settings) if keeps else None
        record = history.record if history else quantized.fit(rows, settings)
        # Nothing of an earlier fit is touched before this one is complete.
        self._keep(
            rows,
            random_state_=state,
            _settings=settings,
            epsilon_=settings.spacing / CENTROID_GRID,
            # A history is a record that deletions keep up to date; another would keep deleted rows.
            _plain=None if history else record,
            _history=history,
        )
        self._drop_unusable()
        return self

    @property
    def record_(self) -> Record:
        self._check_fitted()
        return self._current()

    def _current(self) -> Record:
        if self._history:
            return self._history.record
        assert self._plain is not None  # One of the two is there.
        return self._plain

    def _drop_unusable(self) -> None:
        """Go on without a history where a centroid is absent."""
        if self._history and not self._history.usable:
            self._plain, self._history = self._history.record, None

    def _complete(self) -> None:
        super()._complete()
        # What an interrupted deletion left to do is done here: a centroid may be absent by then.
        self._drop_unusable()

    def _remove(self, places: NDArray[np.intp]) -> Done:
        history = self._history
        if history is None or len(places) == history.rows:
            return super()._remove(places)
        if not len(places):
            return STANDS
        found = history.delete(places)
        self._drop_unusable()
        if found is UNCHANGED:
            return STANDS
        outcome = Outcome(found.action, found.first_step, found.passes, found.reason)
        return Done(outcome, looked_at=found.looked_at)

    def _delete_rows(self, removed: Removed, index: NDArray[np.intp]) -> Done:
        record, outcome = delete_rows(self._current(), removed, self._rows, self._settings)
        self._plain, self._history = record, None
        return Done(outcome)

    def _fit_again(self) -> None:
        self._plain, self._history = quantized.fit(self._rows, self._settings), None

    def _model(self) -> Record:
        return self.record_

    @property
    def inertia_(self) -> float:
        return self._alive().final.loss / LOSS_UNIT


class QKMeans(KMeans):
    """Q-k-means ("Making AI Forget You", section 4.1): centroids snapped to a random lattice.

    Most deletions then change no centroid, and cost no pass over the rows. One that does moves it by
    a lattice spacing: where clusters overlap many rows are near a boundary then, and passes
    (``provenance="none"``) can cost less than replay.

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
