"""The passes of training over rows that lie in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, reduce
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numba import get_num_threads, njit
from numpy.typing import NDArray

from . import lloyd, seeding
from .fixedpoint import Extent, Scaling, extent_of
from .lloyd import Tally
from .quantized import Draw
from .seeding import Winner

Result = TypeVar("Result")
READ_ONLY = "an array of the model is read-only or not in one piece: copy the model"
SOME_ROWS = 1024
"""Rows that are looked at first where one that is left is all that matters."""
THREAD_VALUES = 1 << 19
"""Values (rows x features) that are worth a thread."""


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay: new ones share a core for milliseconds before they are moved apart.

    One pool a process: threads do not live on in a forked child.
    """
    return ThreadPoolExecutor(threads, thread_name_prefix="expunge-pass")


def ordinals_of(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's place among the rows of its unit, in order: (n,) int64 from 0."""
    order = np.argsort(units, kind="stable")
    ordered = units[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(units) else order
    lengths = np.diff(np.r_[starts, len(units)])
    ordinals = np.empty(len(units), np.int64)
    ordinals[order] = np.arange(len(units)) - np.repeat(starts, lengths)
    return ordinals


@njit(cache=True)
def _all_differ(centroids, present):  # type: ignore[no-untyped-def]
    """Whether all centroids (k, features) are present, and no two of them equal."""
    for j in range(len(centroids)):
        if not present[j]:
            return False
        for i in range(j):
            f = 0
            while f < centroids.shape[1] and centroids[i, f] == centroids[j, f]:
                f += 1
            if f == centroids.shape[1]:
                return False
    return True


def assign_fixed(
    fixed: NDArray[np.int32],
    units: NDArray[np.int64],
    centroids: NDArray[np.int64],
    present: NDArray[np.bool_],
) -> Tally:
    """``lloyd.assign``, whose search for equal centroids takes longer than a pass over few rows."""
    if not _all_differ(centroids, present):
        return lloyd.assign(fixed, units, None, centroids, present)
    lloyd.require_contiguous(fixed)
    tally = Tally(np.zeros(len(centroids), np.int64), np.zeros_like(centroids))
    labels, margins = np.empty(0, np.int32), np.empty(0, np.float32)
    _add_rows(fixed, units, centroids, labels, margins, tally)
    return tally


def _add_rows(
    fixed: NDArray[np.int32],
    units: NDArray[np.int64],
    centroids: NDArray[np.int64],
    labels: NDArray[np.integer],
    margins: NDArray[np.float32],
    tally: Tally,
) -> None:
    """``lloyd.assign_rows`` of rows on the grid to centroids in 2^-23."""
    none, limit = np.empty(0), lloyd.relative_error(fixed.shape[1])
    found = labels, margins, tally.sizes, tally.sums
    lloyd.assign_rows(fixed, units, none, none, centroids * 2, limit, *found)


def unit_extent(rows: int, features: int) -> Extent:
    """Return the extent of rows within [0, 1] that have no bounds of their own."""
    zero = np.zeros(features, np.int64)
    return Extent(rows, np.zeros(features, np.float32), np.ones(features, np.float32), zero, zero)


class GridPasses:
    """Rows on the row grid, in memory; implements ``quantized.Passes``.

    Their features are what they are, in [0, 1]: they have no other bounds, and scalings that are
    asked for don't matter. fixed (n, features) int32 in 2^-24, units (n,) int64 with -1 for holes,
    ordinals (n,) int64. threads: how many a pass may use; None for as many as Numba may.
    """

    def __init__(
        self,
        fixed: NDArray[np.int32],
        units: NDArray[np.int64],
        ordinals: NDArray[np.int64],
        threads: int | None = None,
    ) -> None:
        self.units = units
        self.ordinals = ordinals
        self.passes = 0
        self._fixed = fixed
        self._threads = threads

    def extent(self) -> Extent:
        return unit_extent(int(np.count_nonzero(self.units >= 0)), self._fixed.shape[1])

    def square_sum(self, scaling: Scaling) -> int:
        fixed = self.fixed(scaling)
        return sum(self._map(lambda part: lloyd.square_sum(fixed[part], self.units[part], None)))

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        key = draw.key(random_state)
        fixed = self.fixed(scaling)

        def heat(part: slice) -> Winner | None:
            units, ordinals = self.units[part], self.ordinals[part]
            return seeding.race(fixed[part], units, ordinals, None, centres, key, draw.stage)

        return reduce(seeding.first_of, self._map(heat))

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        fixed = self.fixed(scaling)

        def tally(part: slice) -> Tally:
            return assign_fixed(fixed[part], self.units[part], centroids, present)

        return reduce(lambda one, other: one + other, self._map(tally))

    def label(
        self,
        scaling: Scaling,
        centroids: NDArray[np.int64],
        labels: NDArray[np.unsignedinteger],
        margins: NDArray[np.float32],
    ) -> Tally:
        """``assign`` to centroids that are all present; labels and margins (n,) are filled."""
        fixed = self.fixed(scaling)

        def tally(part: slice) -> Tally:
            found = Tally(np.zeros(len(centroids), np.int64), np.zeros_like(centroids))
            rows = fixed[part], self.units[part], centroids
            _add_rows(*rows, labels[part], margins[part], found)
            return found

        return reduce(lambda one, other: one + other, self._map(tally))

    def place(self, unit: int, ordinal: int) -> int:
        """The place of a live row."""
        return int(np.flatnonzero((self.units == unit) & (self.ordinals == ordinal))[0])

    def fixed(self, scaling: Scaling) -> NDArray[np.int32]:
        """The rows on the row grid."""
        return self._fixed

    def _map(self, work: Callable[[slice], Result]) -> list[Result]:
        """Run compiled work on parts of the rows, one a thread."""
        self.passes += 1
        rows, features = len(self.units), self._fixed.shape[1]
        threads = min(self._threads or get_num_threads(), max(1, rows * features // THREAD_VALUES))
        edges = [rows * i // threads for i in range(threads + 1)]
        parts = [slice(a, b) for a, b in pairwise(edges)]
        # This thread works too: while it runs, the others wake on idle cores and not on its own.
        pool = _pool(threads, os.getpid()) if threads > 1 else None
        others = [pool.submit(work, part) for part in parts[1:]] if pool else []
        return [work(parts[0]), *(other.result() for other in others)]


class ArrayPasses(GridPasses):
    """Rows in memory in the features' own units; implements ``quantized.Passes``.

    x (n, features) float32, units (n,) int64 with -1 for holes, ordinals (n,) int64.
    """

    def __init__(
        self, x: NDArray[np.float32], units: NDArray[np.int64], ordinals: NDArray[np.int64]
    ) -> None:
        super().__init__(np.empty((0, x.shape[1]), np.int32), units, ordinals)
        self.x = x
        self._scaling: Scaling | None = None

    def extent(self) -> Extent:
        return extent_of(self.x[self.units >= 0])

    def fixed(self, scaling: Scaling) -> NDArray[np.int32]:
        """The rows on the row grid, kept for as long as the scaling stays the same."""
        known = self._scaling
        if known is scaling:
            return self._fixed
        if known is None or not (
            np.array_equal(known.lower, scaling.lower)
            and np.array_equal(known.factor, scaling.factor)
        ):
            self._fixed = scaling.fixed(self.x)
            self._scaling = scaling
        return self._fixed

    def rescale(self, extent: Extent) -> tuple[Extent, int]:
        """Put features whose bounds have lost their last row on the grid again, within new bounds.

        extent: of the live rows, some of whose counts are 0; the rows lie on the grid by it. Returns
        their own extent, and by how much their square sum grows, in 2^-48. Other features are not read.
        """
        # Interrupted from here on, all features are put on the grid anew when they are asked for.
        self._scaling = None
        live = self.units >= 0
        found = replace(
            extent,
            lower=extent.lower.copy(),
            upper=extent.upper.copy(),
            lower_count=extent.lower_count.copy(),
            upper_count=extent.upper_count.copy(),
        )
        grown = 0
        for f in np.flatnonzero((extent.lower_count == 0) | (extent.upper_count == 0)).tolist():
            column = self.x[live, f : f + 1]
            own = extent_of(column)
            found.lower[f], found.upper[f] = own.lower[0], own.upper[0]
            found.lower_count[f], found.upper_count[f] = own.lower_count[0], own.upper_count[0]
            before = self._fixed[live, f : f + 1]
            now = Scaling.between(own.lower, own.upper).fixed(column)
            self._fixed[live, f] = now[:, 0]
            rows = np.zeros(len(now), np.int64)
            grown += lloyd.square_sum(now, rows, None) - lloyd.square_sum(before, rows, None)
        self._scaling = Scaling.between(found.lower, found.upper)
        return found, grown

    def check_writable(self) -> None:
        """ValueError where rows can't be overwritten: those of a model that was loaded from mapped files."""
        if not all(a.flags.writeable for a in (self.x, self.units, self._fixed)):
            raise ValueError(READ_ONLY)

    def wipe(self, index: NDArray[np.intp]) -> None:
        """Overwrite rows with zeros; when none is left, forget the scaling, which tells their values."""
        self.x[index] = 0
        if len(self._fixed):
            self._fixed[index] = 0
        if not ((self.units[:SOME_ROWS] >= 0).any() or (self.units >= 0).any()):
            self._scaling = None
