"""Random features beside a source's own, as SGEMM (extended) of the PrIU paper has them.

The paper says no more than that 1,500 random features were added to each row. Here they are
independent and uniform on [0, 1), in steps of 2^-24. Feature j of a row is a function of the seed,
the row's number and j alone, through a counter-based generator: not of how files are cut, of rows
that are skipped or of how many features there are; and its bits are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .errors import BadInputError
from .filesource import PIECE_BYTES
from .layout import duplicates, listed
from .rows import RowBlock, RowSource, blocks_of

MAX_RANDOM_FEATURES = 1 << 20
"""More are refused: each row is made in memory as a whole."""
LAW = "uniform on [0, 1)"

_PURPOSE = 0x5EED
"""Keeps the draws apart from others of the same seed."""
_STEP = np.float32(2.0**-24)


class WithRandomFeatures:
    """A `RowSource` of another one's rows with random features after their own."""

    def __init__(self, source: RowSource, count: int, seed: int) -> None:
        """Raise BadInputError unless 1 <= count <= MAX_RANDOM_FEATURES, seed >= 0 and names differ."""
        if not 1 <= count <= MAX_RANDOM_FEATURES:
            raise BadInputError(
                f"{count} random features; a number from 1 to {MAX_RANDOM_FEATURES:,} is needed"
            )
        if seed < 0:
            raise BadInputError(f"seed is {seed}, but must be at least 0")
        self.feature_names = (*source.feature_names, *(f"random_{j}" for j in range(count)))
        twice = duplicates(self.feature_names)
        if twice:
            raise BadInputError(
                f"random features are named like the columns {listed(twice)}; rename these or drop "
                "them"
            )
        self.label_name = source.label_name
        self.provenance = source.provenance | {
            "random_features": count,
            "random_seed": seed,
            "random_law": LAW,
        }
        self._source = source
        self._own = len(source.feature_names)
        self._key = np.random.SeedSequence(seed, spawn_key=(_PURPOSE,)).generate_state(2, np.uint64)
        self._rows = max(1, PIECE_BYTES // (4 * len(self.feature_names)))

    @property
    def expected_rows(self) -> int | None:
        """As the source expects."""
        return self._source.expected_rows

    @property
    def dropped(self) -> int:
        """Rows that the source has skipped so far."""
        return self._source.dropped

    @property
    def progress(self) -> float:
        """Share of the source that has been read, 0 to 1."""
        return self._source.progress

    def blocks(self) -> Generator[RowBlock, None, None]:
        """Yield the rows in order, in blocks whose features take PIECE_BYTES at most."""
        with blocks_of(self._source) as blocks:
            for block in blocks:
                for first in range(0, len(block.rows), self._rows):
                    yield self._widened(block, slice(first, first + self._rows))

    def _widened(self, block: RowBlock, part: slice) -> RowBlock:
        """A part of a block with the random features."""
        rows = block.rows[part]
        x = np.empty((len(rows), len(self.feature_names)), np.float32)
        x[:, : self._own] = block.x[part]
        for i, row in enumerate(rows.tolist()):
            self._fill(row, x[i, self._own :])
        y = None if block.y is None else block.y[part]
        units = None if block.units is None else block.units[part]
        return replace(block, rows=rows, x=x, y=y, units=units)

    def _fill(self, row: int, features: NDArray[np.float32]) -> None:
        """Draw the (count,) features of the row of a number."""
        # The row stands in a high word, as a row's own draws count up from the lowest.
        generator = np.random.Philox(key=self._key, counter=[0, 0, row, 0])
        words = generator.random_raw(-(-features.size // 2)).astype("<u8", copy=False)
        np.multiply(words.view("<u4")[: features.size] >> np.uint32(8), _STEP, out=features)
