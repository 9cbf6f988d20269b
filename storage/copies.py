"""Several copies of a source's rows, as the extended data sets of the PrIU paper are made.

Copies are other units with equal rows: copy c of row r is unit c n + r, where n is the number of
rows of the source, those that are skipped as invalid too. So the first copy's units are those that
the source alone gives.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from .errors import BadInputError
from .rows import RowBlock, RowSource, blocks_of

MOST_ROWS = 1 << 36
"""More rows than any disk would hold: a slip of the keyboard."""


class CopiedRows:
    """A `RowSource` of all rows of another one, several times over.

    The source is read twice, however many copies there are: once for the first copy, which tells
    n, and once for all others, block by block. So row numbers increase within each block only.
    """

    def __init__(self, source: RowSource, copies: int) -> None:
        """Raise BadInputError for copies < 1 and for rows of data subjects."""
        if copies < 1:
            raise BadInputError(f"copies is {copies}, but must be at least 1")
        if "subject" in source.provenance:
            raise BadInputError(
                "a copy of a person's rows would be the same person's: copies are made only of "
                "rows that are units of their own; leave out --subject or --copies"
            )
        self.feature_names = source.feature_names
        self.label_name = source.label_name
        self.provenance = source.provenance | {"copies": copies}
        rows = source.expected_rows
        self.expected_rows = None if rows is None else copies * rows
        self._source = source
        self._copies = copies
        self._dropped_first = 0
        self._dropped_later = 0
        self._progress = 0.0

    @property
    def dropped(self) -> int:
        """Rows skipped as invalid so far, in all copies."""
        return self._dropped_first + self._dropped_later

    @property
    def progress(self) -> float:
        """Share of all copies' rows that has been handed out, 0 to 1."""
        return self._progress

    def blocks(self) -> Generator[RowBlock, None, None]:
        """Yield the first copy in order, then each block's other copies together.

        Raises BadInputError as the source does, and where it has other rows when it is read again.
        """
        self._dropped_first = self._dropped_later = 0
        self._progress = 0.0
        rows = 0
        with blocks_of(self._source) as blocks:
            for block in blocks:
                rows += len(block.rows)
                self._check(rows)
                self._dropped_first = self._source.dropped
                self._progress = self._source.progress / self._copies
                yield block
        self._dropped_first = self._source.dropped
        self._progress = 1 / self._copies
        with closing(self._others(rows)) as others:
            yield from others
        self._progress = 1.0

    def _check(self, rows: int) -> None:
        if rows * self._copies > MOST_ROWS:
            raise BadInputError(
                f"{self._copies:,} copies of {rows:,} rows or more are {self._copies * rows:,}; at "
                f"most {MOST_ROWS:,} rows can be imported"
            )

    def _others(self, rows: int) -> Generator[RowBlock, None, None]:
        """Every block's second and further copies; rows: how many valid ones the first copy had."""
        numbered = rows + self._dropped_first
        found, before = 0, 0.0
        with blocks_of(self._source) as blocks:
            for block in blocks:
                found += len(block.rows)
                self._dropped_later = (self._copies - 1) * self._source.dropped
                step = (self._source.progress - before) / self._copies
                before = self._source.progress
                for copy in range(1, self._copies):
                    self._progress = min(1.0, self._progress + step)
                    yield replace(block, rows=block.rows + copy * numbered)
        self._dropped_later = (self._copies - 1) * self._source.dropped
        if found != rows or self._source.dropped != self._dropped_first:
            raise BadInputError(
                "the rows are others than at first: a file changed while it was being read; "
                "import it again"
            )
