"""DC-k-means on NumPy arrays, with scikit-learn's face and a ``delete``.

Example
-------
>>> import numpy as np
>>> from expunge import DCKMeans
>>> x = np.random.default_rng(0).random((1000, 3))
>>> model = DCKMeans(n_clusters=4, n_leaves=8, random_state=0).fit(x)
>>> model.delete([17]).leaves
1
>>> kept = np.delete(np.arange(1000), 17)
>>> again = DCKMeans(n_clusters=4, n_leaves=8, random_state=0).fit(x[kept], units=kept)
>>> bool(np.array_equal(model.cluster_centers_, again.cluster_centers_))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import quantized
from .arrays import ArrayPasses, GridPasses, ordinals_of
from .clusterer import Clusterer, Done, delete_rows
from .divided import (
    DividedRecord,
    DividedSettings,
    climb,
    leaf_of,
    on_cube,
    outcome,
    pooled,
    unit_hashes,
)
from .divided_leaves import KeptLeaves
from .fixedpoint import LOSS_UNIT, Extent, Scaling, exact_loss, shrunk, within
from .quantized import Record, Settings
from .replay import Outcome, Removed, refit_reason
from .validation import (
    DEFAULT_CLUSTERS,
    DEFAULT_MAX_ITER,
    LABELS,
    checked_hashes,
    checked_provenance,
    checked_rows,
    checked_units,
    resolve_divided,
)


class DCKMeans(Clusterer):
    """DC-k-means ("Making AI Forget You", section 4.2), from which rows can be deleted exactly.

    Rows are divided over leaves at random, each leaf is clustered, and the leaves' centroids are
    clustered again at the root. A deletion recomputes the leaves that lost a row, and the root.

    Parameters
    ----------
    n_clusters : int
        In every leaf, and at the root.
    n_leaves : int or None
        A power of two; None: the one near n^0.3, a rule of thumb, or the product of ``branching``.
    max_iter : int
        Lloyd steps at most, in every leaf and at the root.
    random_state : int or None
        None draws one, kept as ``random_state_``.
    root : "unweighted" or "weighted"
        Whether the pooled centroids all count once, as in the paper, or as many times as their
        clusters have rows.
    branching : sequence of int, optional
        Children of a node at each depth, powers of two: [8, 8] puts eight nodes of eight leaves
        each below the root. By default all leaves are the root's.
    bounds : (float, float), optional
        As of ``KMeans``.
    provenance : "labels" or "none"
        As of ``KMeans``: labels and margins of the rows at every step of their leaf.

    Attributes
    ----------
    n_leaves_ : int
    inertia_ : float
        Sum of squared distances of the min-max scaled rows to their nearest centre: a pass over
        the rows each time that it is asked for.
    n_iter_ : int
        Accepted steps at the root.
    record_ : DividedRecord
        Every array that a deletion needs.

    ``cluster_centers_``, ``n_rows_`` and ``empty_`` are as of ``KMeans``.
    """

    random_state_: int
    _settings: DividedSettings
    _edges: NDArray[np.intp]
    _record: DividedRecord
    _leaves: KeptLeaves | None
    _parameters = (
        "n_clusters",
        "n_leaves",
        "max_iter",
        "random_state",
        "root",
        "branching",
        "bounds",
        "provenance",
    )

    def __init__(
        self,
        n_clusters: int = DEFAULT_CLUSTERS,
        n_leaves: int | None = None,
        max_iter: int = DEFAULT_MAX_ITER,
        random_state: int | None = None,
        root: str = "unweighted",
        branching: Sequence[int] | None = None,
        *,
        bounds: tuple[float, float] | None = None,
        provenance: str = LABELS,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_leaves = n_leaves
        self.max_iter = max_iter
        self.random_state = random_state
        self.root = root
        self.branching = branching
        self.bounds = bounds
        self.provenance = provenance

    def fit(
        self, X: ArrayLike, units: ArrayLike | None = None, hashes: ArrayLike | None = None
    ) -> Self:
        """Train on X (n, n_features); units (n,) non-negative ints, by default the row numbers.

        hashes (n,) uint64, the same for all rows of a unit, place the rows instead of a hash keyed
        by ``random_state``. Raises ValueError for NaN, infinity, wrong shapes, negative units,
        n_clusters > n, or leaves whose number is not a power of two.
        """
        x = checked_rows(X, None)
        ids = checked_units(np.arange(len(x)) if units is None else units, len(x))
        state = self._state()
        settings = resolve_divided(
            len(x),
            x.shape[1],
            n_clusters=self.n_clusters,
            n_leaves=self.n_leaves,
            max_iter=self.max_iter,
            random_state=state,
            root=self.root,
            branching=self.branching,
            bounds=self.bounds,
        )
        placed = unit_hashes(ids, state) if hashes is None else checked_hashes(hashes, ids)
        rows, edges = by_leaf(x, ids, placed, settings.n_leaves)
        keeps = checked_provenance(self.provenance) == LABELS
        record, leaves, _ = _train(rows, edges, settings, keeps)
        # Nothing of an earlier fit is touched before this one is complete.
        self._keep(
            rows,
            random_state_=state,
            _settings=settings,
            _edges=edges,
            _record=record,
            _leaves=leaves,
        )
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        leaves: KeptLeaves | None = state.get("_leaves")
        if leaves:
            leaves.share(self._rows)

    @property
    def record_(self) -> DividedRecord:
        self._check_fitted()
        return self._record

    @property
    def n_leaves_(self) -> int:
        self._fitted()
        return self._settings.n_leaves

    @property
    def inertia_(self) -> float:
        record = self._alive()
        final = record.final.centroids
        tally = self._rows.assign(record.scaling, final.quantized, final.present)
        square_sum = self._rows.square_sum(record.scaling)
        return exact_loss(square_sum, final.quantized, tally.sizes, tally.sums) / LOSS_UNIT

    def _model(self) -> Record:
        return self._record.model

    def _fit_again(self) -> None:
        self._train_again()

    def _train_again(self) -> int:
        """Train on the rows that are kept; return passes over leaves."""
        keeps = self._leaves is not None
        self._record, self._leaves, passes = _train(self._rows, self._edges, self._settings, keeps)
        return passes

    def _delete_rows(self, removed: Removed, index: NDArray[np.intp]) -> Done:
        settings = self._settings
        if not len(index):
            return Done(Outcome("unchanged", None, 0, ""))
        extent = shrunk(self._record.extent, removed.x, settings.plain.bounds)
        reason = refit_reason(extent, settings.plain.bounds)
        if reason:
            passes = self._train_again()
            nodes = sum(map(len, self._record.upper.levels))
            return Done(Outcome("retrained", 0, passes, reason), settings.n_leaves, nodes)
        homes = np.searchsorted(self._edges, index, "right") - 1
        leaves = self._leaves or Leaves(
            self._rows, self._edges, self._record.extent, settings.leaf_settings
        )
        self._record, done = delete_from_tree(
            leaves, self._record, extent, settings, removed, homes, index
        )
        return done


class Leaves:
    """The rows of each leaf: consecutive ones of all rows, on the row grid."""

    def __init__(
        self,
        rows: ArrayPasses,
        edges: NDArray[np.intp],
        extent: Extent,
        settings: Sequence[Settings],
    ) -> None:
        self.scaling = Scaling.between(extent.lower, extent.upper)
        self._settings = settings
        self._fixed = rows.fixed(self.scaling)
        self._rows = rows
        self._edges = edges

    def __getitem__(self, leaf: int) -> GridPasses:
        part = slice(self._edges[leaf], self._edges[leaf + 1])
        return GridPasses(self._fixed[part], self._rows.units[part], self._rows.ordinals[part])

    def delete(
        self, leaf: int, record: Record, gone: Removed, index: NDArray[np.intp]
    ) -> tuple[Record, int]:
        """As ``KeptLeaves.delete``, by passes."""
        record, found = delete_rows(record, gone, self[leaf], self._settings[leaf])
        return record, found.passes


def by_leaf(
    x: NDArray[np.float32],
    units: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    n_leaves: int,
) -> tuple[ArrayPasses, NDArray[np.intp]]:
    """Return the rows leaf by leaf, and where each leaf starts: (n_leaves + 1,) edges."""
    leaf = leaf_of(hashes, n_leaves)
    order = np.argsort(leaf, kind="stable")
    edges = np.searchsorted(leaf[order], np.arange(n_leaves + 1))
    return ArrayPasses(x[order], units[order], ordinals_of(units)[order]), edges


def fit_tree(
    rows: ArrayPasses, edges: NDArray[np.intp], settings: DividedSettings
) -> tuple[DividedRecord, int]:
    """Train on rows that stand leaf by leaf; return the record, and passes over leaves."""
    extent = within(rows.extent(), settings.plain.bounds)
    leaves = Leaves(rows, edges, extent, settings.leaf_settings)
    records = []
    passes = 0
    for leaf, of_leaf in enumerate(settings.leaf_settings):
        here = leaves[leaf]
        records.append(quantized.fit(here, of_leaf))
        passes += here.passes
    return _tree(extent, records, settings), passes


def _tree(extent: Extent, leaves: Sequence[Record], settings: DividedSettings) -> DividedRecord:
    upper, _ = climb([pooled(r) for r in leaves], settings)
    return DividedRecord(extent, tuple(leaves), upper)


def _train(
    rows: ArrayPasses, edges: NDArray[np.intp], settings: DividedSettings, keeps: bool
) -> tuple[DividedRecord, KeptLeaves | None, int]:
    """``fit_tree``, with leaves that keep labels and margins where ``keeps``."""
    if not keeps:
        record, passes = fit_tree(rows, edges, settings)
        return record, None, passes
    extent = within(rows.extent(), settings.plain.bounds)
    scaling = Scaling.between(extent.lower, extent.upper)
    leaves = KeptLeaves(rows, edges, scaling, settings.leaf_settings)
    return _tree(extent, leaves.records, settings), leaves, leaves.passes


def delete_from_tree(
    leaves: Leaves | KeptLeaves,
    record: DividedRecord,
    extent: Extent,
    settings: DividedSettings,
    removed: Removed,
    homes: NDArray[np.intp],
    index: NDArray[np.intp],
) -> tuple[DividedRecord, Done]:
    """Return the record without rows that are holes by now, at ``index`` (m,) in leaves ``homes`` (m,).

    extent: without these rows; its bounds stand. Only leaves that lost a row are looked at.
    """
    scaled = on_cube(removed, leaves.scaling)
    records, given = list(record.leaves), list(record.upper.leaves)
    passes = 0
    touched = np.unique(homes).tolist()
    for leaf in touched:
        mine = homes == leaf
        gone = Removed(scaled.units[mine], scaled.ordinals[mine], scaled.x[mine])
        records[leaf], taken = leaves.delete(leaf, records[leaf], gone, index[mine])
        given[leaf] = pooled(records[leaf])
        passes += taken
    upper, nodes = climb(given, settings, record.upper)
    done = Done(outcome(record.upper, upper, passes), len(touched), nodes)
    return DividedRecord(extent, tuple(records), upper), done
