"""The passes of training over rows that lie in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, reduce
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from . import lloyd, seeding
from .fixedpoint import Extent, Scaling, extent_of
from .lloyd import Tally
from .quantized import Draw
from .seeding import Winner

Result = TypeVar("Result")
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


class ArrayPasses:
    """Rows in memory; implements ``quantized.Passes``.

    x (n, features) float32, units (n,) int64 with -1 for holes, ordinals (n,) int64.
    """

    def __init__(
        self, x: NDArray[np.float32], units: NDArray[np.int64], ordinals: NDArray[np.int64]
    ) -> None:
        self.x = x
        self.units = units
        self.ordinals = ordinals
        self._scaling: Scaling | None = None
        self._fixed = np.empty((0, x.shape[1]), np.int32)

    def extent(self) -> Extent:
        return extent_of(self.x[self.units >= 0])

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
            return lloyd.assign(fixed[part], self.units[part], None, centroids, present)

        return reduce(lambda one, other: one + other, self._map(tally))

    def _map(self, work: Callable[[slice], Result]) -> list[Result]:
        """Run compiled work on parts of the rows, one a thread (as many as Numba may use)."""
        rows, features = self.x.shape
        threads = min(get_num_threads(), max(1, rows * features // THREAD_VALUES))
        edges = [rows * i // threads for i in range(threads + 1)]
        parts = [slice(a, b) for a, b in pairwise(edges)]
        # This thread works too: while it runs, the others wake on idle cores and not on its own.
        pool = _pool(threads, os.getpid()) if threads > 1 else None
        others = [pool.submit(work, part) for part in parts[1:]] if pool else []
        return [work(parts[0]), *(other.result() for other in others)]

    def fixed(self, scaling: Scaling) -> NDArray[np.int32]:
        """The rows on the row grid, kept for as long as the scaling stays the same."""
        known = self._scaling
        if known is None or not (
            np.array_equal(known.lower, scaling.lower)
            and np.array_equal(known.factor, scaling.factor)
        ):
            self._fixed = scaling.fixed(self.x)
            self._scaling = scaling
        return self._fixed

    @contextmanager
    def without(self, index: NDArray[np.intp]) -> Iterator[None]:
        """Take rows as holes inside the block, and overwrite them with zeros at its end.

        If the block raises, the rows are back as they were.
        """
        units = self.units[index]
        self.units[index] = -1
        try:
            yield
        except BaseException:
            self.units[index] = units
            raise
        self.x[index] = 0
        if len(self._fixed):
            self._fixed[index] = 0
