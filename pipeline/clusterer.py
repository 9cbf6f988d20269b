"""What the estimators of the k-means family share: rows by unit, deletion, prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import lloyd, quantized, replay
from .arrays import ArrayPasses, assign_fixed
from .estimators import Estimator
from .fixedpoint import CENTROID_GRID, LOSS_UNIT, Scaling, exact_loss
from .quantized import Centroids, Record, Settings
from .replay import Removed
from .unit_index import UnitIndex
from .validation import asked_units, checked_rows, whole


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
    _index: UnitIndex
    _unfinished = False
    """Whether a deletion was interrupted."""
    _asked: NDArray[np.int64] | None = None
    """Units of a deletion that was interrupted, whose ids may stand in the index still."""

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not every pickler keeps an array that two objects share in one piece: joblib's does not.
        self.__dict__.update(state)
        if "_index" in state:
            self._index.share(self._rows.units)

    def __getstate__(self) -> dict[str, Any]:
        # Nothing that an interrupted deletion left goes into a pickle or a copy.
        if hasattr(self, "_index"):
            self._fitted()
        return dict(self.__dict__)

    def _keep(self, rows: ArrayPasses, **model: Any) -> None:
        """Be the model of these rows, to be found by unit, with these attributes.

        It is one step: a fit that is interrupted leaves nothing of it, or everything.
        """
        index = UnitIndex(rows.units)
        self.__dict__.update(_rows=rows, _index=index, _unfinished=False, _asked=None, **model)

    def delete(self, units: int | Iterable[int]) -> Deletion:
        """Delete all rows of these units, exactly: the model of a fit on the other rows.

        Units that are not in the model are ignored and counted. The rows are overwritten in the
        model's own memory.
        """
        self._check_fitted()
        asked = asked_units(units)
        places = self._index.find(asked)
        found = len(places) if len(asked) == 1 else len(np.unique(self._rows.units[places]))
        self._asked = asked
        done = self._remove(places)
        self._index.forget(asked, places)
        self._asked = None
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
        """Delete the live rows at these places, and overwrite them.

        If this is interrupted, whatever is asked next fits anew.
        """
        rows = self._rows
        removed = Removed(rows.units[places], rows.ordinals[places], rows.x[places])
        if not len(places):
            return self._delete_rows(removed, places)
        rows.check_writable()
        self._unfinished = True
        rows.units[places] = -1
        done = self._delete_rows(removed, places)
        rows.wipe(places)
        self._unfinished = False
        return done

    def _complete(self) -> None:
        """Do what an interrupted deletion left to do."""
        if self._unfinished:
            self._rows.wipe(np.flatnonzero(self._rows.units < 0))
            self._fit_again()
            self._unfinished = False
        if self._asked is not None:
            self._index.forget(self._asked, self._index.find(self._asked))
            self._asked = None

    def _fit_again(self) -> None:
        """Train on the rows that are kept."""
        raise NotImplementedError

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
        self._complete()

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
