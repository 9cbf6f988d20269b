"""The leaves of DC-k-means in memory, each with the labels and margins of its own rows.

A leaf is a k-means of its rows, so a deletion from it is replayed as from any other (``history``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import quantized
from .arrays import ArrayPasses, unit_extent
from .clusterer import delete_rows
from .fixedpoint import Extent, Scaling
from .history import History
from .quantized import Record, Settings
from .replay import Removed

LOOK = 6
"""A row that is looked at again costs about as much as so many rows of a pass over the leaf."""


class LeafRows(ArrayPasses):
    """A leaf's rows, within the unit cube: views of the arrays of all rows.

    x (n, features) float32 and fixed (n, features) int32, units (n,), ordinals (n,).
    """

    def __init__(
        self,
        x: NDArray[np.float32],
        fixed: NDArray[np.int32],
        units: NDArray[np.int64],
        ordinals: NDArray[np.int64],
    ) -> None:
        super().__init__(x, units, ordinals)
        self._fixed = fixed

    @classmethod
    def of(cls, rows: ArrayPasses, scaling: Scaling, part: slice) -> LeafRows:
        """Return the part of all rows that is a leaf's."""
        fixed = rows.fixed(scaling)
        return cls(rows.x[part], fixed[part], rows.units[part], rows.ordinals[part])

    def extent(self) -> Extent:
        return unit_extent(int(np.count_nonzero(self.units >= 0)), self.x.shape[1])

    def fixed(self, scaling: Scaling) -> NDArray[np.int32]:
        return self._fixed


class _LeafHistory(History):
    """A history whose rows are pickled with all rows, and not with it."""

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n not in ("_rows", "_fixed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def share(self, rows: LeafRows) -> None:
        """Go on with these rows, which are the same."""
        self._rows, self._fixed = rows, rows._fixed


class KeptLeaf:
    """A leaf that keeps labels and margins, as long as they pay and no step of it lacks a centroid.

    Among few rows that overlap a deletion moves centroids far, and many rows are near a boundary:
    then passes are as cheap, and labels are dropped until the leaf is trained again.
    """

    def __init__(self, rows: LeafRows, settings: Settings) -> None:
        self._settings = settings
        self._rows = rows
        live = bool((rows.units >= 0).any())
        self._history = _LeafHistory(rows, settings) if live else None
        self.record = self._history.record if self._history else quantized.fit(rows, settings)
        self._saved = 0
        self._drop_unusable()

    def _rows_of_passes(self) -> int:
        """Rows that a deletion by passes reads, about: all of them at every step."""
        return self.record.extent.rows * len(self.record.steps)

    def _drop_unusable(self) -> None:
        if self._history and not self._history.usable:
            self._history = None

    @property
    def passes(self) -> int:
        """Over the leaf, so far."""
        return self._rows.passes

    def delete(self, gone: Removed, places: NDArray[np.int64]) -> int:
        """Take rows out, which are holes by now; return the passes over the leaf.

        gone: the rows, on the cube. places: where they are in the leaf.
        """
        history = self._history
        if history is None or len(places) == history.rows:
            self._history = None
            self.record, outcome = delete_rows(self.record, gone, self._rows, self._settings)
            return outcome.passes
        found = history.delete(places)
        self.record = history.record
        self._drop_unusable()
        taken = LOOK * found.looked_at + found.passes * self.record.extent.rows
        self._saved += self._rows_of_passes() - taken
        if self._saved < 0:
            self._history = None
        return found.passes

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n != "_rows"}

    def share(self, rows: LeafRows) -> None:
        """Go on with these rows after unpickling."""
        self._rows = rows
        if self._history:
            self._history.share(rows)


class KeptLeaves:
    """All leaves, trained; edges (leaves + 1,): where each one starts among all rows."""

    def __init__(
        self,
        rows: ArrayPasses,
        edges: NDArray[np.intp],
        scaling: Scaling,
        settings: Sequence[Settings],
    ) -> None:
        self.scaling = scaling
        self._edges = edges
        parts = (LeafRows.of(rows, scaling, self._part(leaf)) for leaf in range(len(settings)))
        self._leaves = [KeptLeaf(p, of_leaf) for p, of_leaf in zip(parts, settings, strict=True)]

    def _part(self, leaf: int) -> slice:
        return slice(self._edges[leaf], self._edges[leaf + 1])

    @property
    def records(self) -> list[Record]:
        return [leaf.record for leaf in self._leaves]

    @property
    def passes(self) -> int:
        """Over leaves, of their training."""
        return sum(leaf.passes for leaf in self._leaves)

    def delete(
        self, leaf: int, record: Record, gone: Removed, index: NDArray[np.intp]
    ) -> tuple[Record, int]:
        """Return a leaf's record without rows that are holes by now, and the passes over the leaf.

        gone: the rows, on the cube. index: where they are among all rows.
        """
        passes = self._leaves[leaf].delete(gone, index - self._edges[leaf])
        return self._leaves[leaf].record, passes

    def share(self, rows: ArrayPasses) -> None:
        """Go on with these rows after unpickling."""
        for number, leaf in enumerate(self._leaves):
            leaf.share(LeafRows.of(rows, self.scaling, self._part(number)))
