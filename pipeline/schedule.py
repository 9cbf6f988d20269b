"""Which rows make which mini-batch: a function of (random_state, iteration) and nothing else.

Every epoch permutes the cells, and the slots within a window of cells, and cuts the result into
mini-batches of *slots*: holes and deleted rows keep their place, so a deletion shifts nobody else.
The permutations are Feistel networks, so a slot's visits are found without a stored permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .keyed import derive_key

ROUNDS = 4
_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)
_SHIFT = np.uint64(32)


@njit(cache=True, inline="always")
def mixed(key, value):  # type: ignore[no-untyped-def]
    """Return 64 bits that depend on a key and a value (both uint64)."""
    x = (key ^ value) * _A
    x = (x ^ (x >> _SHIFT)) * _B
    return x ^ (x >> _SHIFT)


@njit(cache=True, inline="always")
def _widths(size):  # type: ignore[no-untyped-def]
    """The bits of the two halves of the smallest power of two that holds ``size`` values."""
    bits = 1
    while (1 << bits) < size:
        bits += 1
    left = bits // 2
    return np.uint64(left), np.uint64(bits - left)


@njit(cache=True)
def permute(key, size, index):  # type: ignore[no-untyped-def]
    """Return where a keyed permutation of range(size) sends ``index``."""
    left, right = _widths(size)
    left_mask, right_mask = (_ONE << left) - _ONE, (_ONE << right) - _ONE
    limit = np.uint64(size)
    x = np.uint64(index)
    while True:
        a, b = x >> right, x & right_mask
        for step in range(0, ROUNDS, 2):
            a = a ^ (mixed(key + np.uint64(step), b) & left_mask)
            b = b ^ (mixed(key + np.uint64(step + 1), a) & right_mask)
        x = (a << right) | b
        if x < limit:
            return np.int64(x)


@njit(cache=True)
def unpermute(key, size, index):  # type: ignore[no-untyped-def]
    """Return what ``permute`` sends to ``index``."""
    left, right = _widths(size)
    left_mask, right_mask = (_ONE << left) - _ONE, (_ONE << right) - _ONE
    limit = np.uint64(size)
    x = np.uint64(index)
    while True:
        a, b = x >> right, x & right_mask
        for step in range(ROUNDS - 2, -1, -2):
            b = b ^ (mixed(key + np.uint64(step + 1), a) & right_mask)
            a = a ^ (mixed(key + np.uint64(step), b) & left_mask)
        x = (a << right) | b
        if x < limit:
            return np.int64(x)


@njit(cache=True, inline="always")
def _window_key(key, epoch, window):  # type: ignore[no-untyped-def]
    return mixed(mixed(key, np.uint64(epoch)), np.uint64(window))


@njit(cache=True)
def _window_slots(key, epoch, window, size):  # type: ignore[no-untyped-def]
    """The local slot at each position of a window."""
    out = np.empty(size, np.int64)
    own = _window_key(key, epoch, window)
    for position in range(size):
        out[position] = permute(own, size, position)
    return out


@njit(cache=True)
def _window_cells(key, epoch, cells, first, last):  # type: ignore[no-untyped-def]
    own = mixed(key, np.uint64(epoch))
    out = np.empty(last - first, np.int64)
    for place in range(first, last):
        out[place - first] = permute(own, cells, place)
    return out


@njit(cache=True)
def _visits(  # type: ignore[no-untyped-def]
    cell_key, slot_key, cells, capacity, width, batch_slots, per_epoch, iterations, at, slots
):
    """(iterations, rows) of all visits, in the order of iterations (a counting sort)."""
    epochs = (iterations + per_epoch - 1) // per_epoch
    found = np.empty((epochs, len(at)), np.int64)
    starts = np.zeros(iterations + 1, np.int64)
    places = np.empty(cells, np.int64)
    for epoch in range(epochs):
        own = mixed(cell_key, np.uint64(epoch))
        if len(at) > cells:
            for cell in range(cells):
                places[cell] = unpermute(own, cells, cell)
        for row in range(len(at)):
            place = places[at[row]] if len(at) > cells else unpermute(own, cells, at[row])
            window = place // width
            first = window * width
            size = min(width, cells - first) * capacity
            local = (place - first) * capacity + slots[row]
            key = _window_key(slot_key, epoch, window)
            position = first * capacity + unpermute(key, size, local)
            iteration = epoch * per_epoch + position // batch_slots
            found[epoch, row] = iteration
            if iteration < iterations:
                starts[iteration + 1] += 1
    starts = np.cumsum(starts)
    when = np.empty(starts[-1], np.int64)
    which = np.empty(starts[-1], np.int64)
    for epoch in range(epochs):
        for row in range(len(at)):
            iteration = found[epoch, row]
            if iteration < iterations:
                place = starts[iteration]
                when[place] = iteration
                which[place] = row
                starts[iteration] += 1
    return when, which


@dataclass(frozen=True)
class Schedule:
    """The mini-batches of a training: iteration t takes ``batch_slots`` slots (fewer at an epoch's end)."""

    random_state: int
    cells: int
    capacity: int
    """Slots a cell."""
    window: int
    """Cells whose slots are permuted together."""
    batch_slots: int
    iterations: int

    @property
    def slots(self) -> int:
        """Slots of an epoch."""
        return self.cells * self.capacity

    @property
    def per_epoch(self) -> int:
        """Iterations of an epoch; the last one may be short."""
        return -(-self.slots // self.batch_slots)

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return -(-self.cells // self.window)

    @cached_property
    def _keys(self) -> tuple[np.uint64, np.uint64]:
        cell, slot = (derive_key(self.random_state, name) for name in ("cells", "slots"))
        return np.uint64(cell), np.uint64(slot)

    def span(self, iteration: int) -> tuple[int, int, int]:
        """Return (epoch, first, last position) of an iteration's mini-batch within its epoch."""
        epoch, number = divmod(iteration, self.per_epoch)
        first = number * self.batch_slots
        return epoch, first, min(first + self.batch_slots, self.slots)

    def window_cells(self, epoch: int, window: int) -> NDArray[np.int64]:
        """Return the cells of one window of an epoch."""
        first = window * self.window
        last = min(first + self.window, self.cells)
        cells: NDArray[np.int64] = _window_cells(self._keys[0], epoch, self.cells, first, last)
        return cells

    def window_order(self, epoch: int, window: int) -> NDArray[np.int64]:
        """Return for each position of a window which of its slots (place * capacity + slot) it is."""
        first = window * self.window
        size = min(self.window, self.cells - first) * self.capacity
        order: NDArray[np.int64] = _window_slots(self._keys[1], epoch, window, size)
        return order

    def visits(
        self, cells: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the iterations that visit some rows, ascending, and which row each visit is of.

        cells, slots: (n,) where the rows stand. A row has one visit an epoch.
        """
        when, which = _visits(
            *self._keys,
            self.cells,
            self.capacity,
            self.window,
            self.batch_slots,
            self.per_epoch,
            self.iterations,
            cells,
            slots,
        )
        return when, which
