"""Shared by tests: a source of given rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.storage.rows import RowBlock


class GivenRows:
    """Rows in blocks of a given size, without those that count as invalid."""

    def __init__(
        self,
        x: NDArray[np.floating],
        y: NDArray[np.float64] | None = None,
        *,
        block: int = 100,
        invalid: Sequence[int] = (),
    ) -> None:
        self.x, self.y, self.block, self.invalid = x.astype(np.float32), y, block, invalid
        self.feature_names = tuple(f"f{i}" for i in range(x.shape[1]))
        self.label_name = None if y is None else "label"
        self.provenance: dict[str, str | int | float] = {"format": "test"}
        self.expected_rows: int | None = None
        self.dropped = 0
        self.progress = 0.0

    def blocks(self) -> Iterator[RowBlock]:
        self.dropped, self.progress = 0, 0.0
        for first in range(0, len(self.x), self.block):
            numbers = np.arange(first, min(first + self.block, len(self.x)))
            rows = np.setdiff1d(numbers, self.invalid)
            self.dropped += len(numbers) - len(rows)
            self.progress = (numbers[-1] + 1) / len(self.x)
            if len(rows):
                yield RowBlock(rows, self.x[rows], None if self.y is None else self.y[rows])
