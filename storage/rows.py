"""What every source of rows (importer or generator) hands to the import: blocks of rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of a source."""

    rows: NDArray[np.int64]
    """(n,) zero-based row numbers across all files of the source, increasing."""
    x: NDArray[np.float32]
    """(n, features) finite values, C-contiguous."""
    y: NDArray[np.float64] | None
    """(n,) finite labels; None where the source has none."""
    units: NDArray[np.int64] | None = None
    """(n,) unit ids where rows belong to data subjects; None: a row's number is its unit."""


class RowSource(Protocol):
    """A stream of rows that can be read once, in bounded memory."""

    @property
    def feature_names(self) -> tuple[str, ...]: ...

    @property
    def label_name(self) -> str | None: ...

    @property
    def provenance(self) -> dict[str, str | int | float]:
        """Where the rows come from (format and file names, or the generator's parameters)."""
        ...

    @property
    def expected_rows(self) -> int | None:
        """How many rows will come, where that is known beforehand."""
        ...

    @property
    def dropped(self) -> int:
        """Rows skipped as invalid so far."""
        ...

    @property
    def progress(self) -> float:
        """Share of the source that has been read, 0 to 1."""
        ...

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows in order; raises BadInputError at the first bad one."""
        ...


@contextmanager
def blocks_of(source: RowSource) -> Iterator[Iterator[RowBlock]]:
    """Give a source's blocks; its files are closed at the end, wherever reading stopped.

    An error's traceback, or a reference to itself, would else keep a generator and its files open.
    """
    blocks = source.blocks()
    try:
        yield blocks
    finally:
        if isinstance(blocks, Generator):
            blocks.close()
