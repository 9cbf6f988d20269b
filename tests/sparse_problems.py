"""Trainings on sparse rows in memory; what tests of the numerics share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expunge.pipeline.sparse_descent import SlotRows, SparseDescender, SparseStep, SparseWindow


class Trainable:
    """Rows in slots, some of them holes, and the mini-batches of some epochs."""

    slot_rows: SlotRows
    features: int
    """How many columns there are, without the bias."""
    live: np.ndarray
    """(slots,) which hold a row."""
    orders: Sequence[np.ndarray]
    """The slots in the order in which each epoch visits them."""
    batch: int
    """Slots of a mini-batch."""
    step: SparseStep

    @property
    def epochs(self) -> int:
        return len(self.orders)

    def epoch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The slots visited (n,), and the edges of the iterations."""
        order = self.orders[number]
        kept = self.live[order]
        cuts = np.r_[np.arange(0, len(order), self.batch), len(order)]
        return order[kept], np.r_[0, np.cumsum(kept)][cuts].astype(np.int64)

    def descend(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The parameters at the end, and each epoch's coefficients."""
        descender = SparseDescender(self.step, np.zeros(self.features + 1))
        found = []
        for number in range(self.epochs):
            c = np.zeros(len(self.live), np.float32)
            descender.take(SparseWindow(self.slot_rows, *self.epoch(number), True), c)
            found.append(c)
        return descender.w, found
