"""Where a unit's rows stand in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class UnitIndex:
    """The places of units, found by bisection; ids that were forgotten are overwritten.

    units (n,) int64 of the rows, shared with their owner: negative where a row is gone.
    """

    def __init__(self, units: NDArray[np.int64]) -> None:
        self._units = units
        self._order = np.argsort(units, kind="stable")
        self._ids = units[self._order]

    def share(self, units: NDArray[np.int64]) -> None:
        """Look at this array from now on: the same units as before."""
        self._units = units

    def find(self, units: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the places of the live rows of these units (ascending, different)."""
        if len(units) == 1:
            left = self._lone(units.item())
            if left >= 0:
                places = self._order[left : left + 1]
                return places if self._units.item(places.item()) >= 0 else places[:0]
        left_ends = self._ids.searchsorted(units, "left")
        right_ends = self._ids.searchsorted(units, "right")
        spans = [self._order[a:b] for a, b in zip(left_ends, right_ends, strict=True)]
        places = np.concatenate(spans) if spans else np.empty(0, np.intp)
        return places[self._units[places] >= 0]

    def _lone(self, unit: int) -> int:
        """Where the ids have a unit, if they have it once and neither first nor last; else -1."""
        ids = self._ids
        # Where units are row numbers each id is its own place: the memory is asked once, not 20 times.
        left = unit
        if not (0 < unit < len(ids) and ids.item(unit) == unit and ids.item(unit - 1) < unit):
            left = int(ids.searchsorted(unit))
        once = 0 < left < len(ids) - 1 and ids.item(left) == unit < ids.item(left + 1)
        return left if once else -1

    def forget(self, units: NDArray[np.int64], places: NDArray[np.intp]) -> None:
        """Overwrite these ids by a remaining neighbour's, if no row that ``find`` found of them is live."""
        left = self._lone(units.item()) if len(units) == len(places) == 1 else -1
        if left >= 0:
            if self._units.item(places.item()) < 0:
                self._ids[left] = self._ids[left - 1]
        elif not (self._units[places] >= 0).any():
            self._forget(units)

    def _forget(self, units: NDArray[np.int64]) -> None:
        """Overwrite these ids (ascending, different)."""
        ids = self._ids
        lefts = ids.searchsorted(units, "left").tolist()
        rights = ids.searchsorted(units, "right").tolist()
        start = 0
        for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            start = left if number == 0 or left > rights[number - 1] else start
            # A run of ids that go ends where the next one does not follow at once.
            if number + 1 == len(lefts) or lefts[number + 1] > right:
                before = ids[start - 1] if start else ids[right] if right < len(ids) else 0
                if start < right:
                    ids[start:right] = before
