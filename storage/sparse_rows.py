"""What every source of sparse rows (importer or generator) hands to the import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .sparse import SparseRows


@dataclass(frozen=True, slots=True)
class SparseBlock:
    """Consecutive rows of a source."""

    rows: NDArray[np.int64]
    """(n,) zero-based row numbers across all files of the source, increasing."""
    x: SparseRows
    """n rows, columns as the source numbers them; no value is zero, none is infinite."""
    y: NDArray[np.float64]
    """(n,) finite labels."""


class SparseSource(ABC):
    """A stream of sparse rows that can be read once, in bounded memory; a row is its own unit."""

    label_name: str = "label"
    dropped: int = 0
    """Rows skipped as invalid so far."""

    @property
    @abstractmethod
    def provenance(self) -> dict[str, str | int | float]:
        """Where the rows come from (format and file names, or the generator's parameters)."""

    @property
    @abstractmethod
    def first_column(self) -> int:
        """The number of the first column, 0 or 1; known when all blocks have been read."""

    @property
    @abstractmethod
    def features(self) -> int:
        """How many columns there are; known when all blocks have been read."""

    @property
    @abstractmethod
    def progress(self) -> float:
        """Share of the source that has been read, 0 to 1."""

    @abstractmethod
    def blocks(self) -> Iterator[SparseBlock]:
        """Yield the rows in order; raises BadInputError at the first bad one."""
