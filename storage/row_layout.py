"""What is particular to a kind of rows on their way into a data set: their records, and a cell's arrays.

Dense rows are records by themselves, sparse ones have entries besides. The way itself, which is the
same for both, is ``ingest``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .schema import ArraySpec
from .sparse import spread

ENTRY = np.dtype([("column", "<i4"), ("value", "<f4")])
"""A value that is not zero."""
Arrays = Mapping[str, NDArray[Any]]
Block = TypeVar("Block")
Block_co = TypeVar("Block_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Records:
    """Some rows on their way to their cells."""

    rows: NDArray[np.void]
    """(n,) with the fields hash, unit and y; and how many entries each row has, if it is sparse."""
    entries: NDArray[np.void]
    """(entries,) ``ENTRY`` of one row after the other; none of dense rows, which are all in ``rows``."""

    @property
    def pointers(self) -> NDArray[np.int64]:
        """(n + 1,) where each row's entries begin, and where the last one's end."""
        found = np.zeros(len(self.rows) + 1, np.int64)
        if "entries" in (self.rows.dtype.names or ()):
            np.cumsum(self.rows["entries"], out=found[1:])
        return found

    @property
    def nbytes(self) -> int:
        """Bytes in memory and on disk."""
        return self.rows.nbytes + self.entries.nbytes

    def take(self, chosen: NDArray[np.intp]) -> Records:
        """Return the rows with the numbers ``chosen``, in that order."""
        if not len(self.entries):
            return Records(self.rows[chosen], self.entries)
        pointers = self.pointers
        entries = spread(pointers[:-1][chosen], np.diff(pointers)[chosen])
        return Records(self.rows[chosen], self.entries[entries])

    def parts(self, edges: NDArray[np.int64]) -> Iterator[Records]:
        """Yield the rows edges[i] to edges[i + 1] for each i, without a copy."""
        bounds = self.pointers[edges]
        for i in range(len(edges) - 1):
            rows = self.rows[edges[i] : edges[i + 1]]
            yield Records(rows, self.entries[bounds[i] : bounds[i + 1]])


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cells of a data set have in common."""

    cells: int
    capacity: int
    """Rows of the largest cell, at least 1."""
    entries: int
    """Entries of the cell that has most, at least 1."""
    label: np.dtype[Any] | None


class Source(Protocol[Block_co]):
    """A stream of blocks of rows, dense or sparse; see ``rows`` and ``sparse_rows``."""

    @property
    def label_name(self) -> str | None: ...

    @property
    def provenance(self) -> dict[str, str | int | float]: ...

    @property
    def dropped(self) -> int: ...

    @property
    def progress(self) -> float: ...

    def blocks(self) -> Iterator[Block_co]: ...


class RowLayout(ABC, Generic[Block]):
    """What is particular to a kind of rows: their records, and the arrays of a cell."""

    record: np.dtype[Any]
    """Of a row; see ``Records``."""

    @abstractmethod
    def records(self, block: Block, salt: bytes) -> Records:
        """Return a block's rows, as they come."""

    @abstractmethod
    def words(self, rows: int, entries: int) -> int:
        """Return how many numbers of 4 bytes the features of so many rows and entries take."""

    @abstractmethod
    def specs(self, shape: Shape) -> dict[str, ArraySpec]:
        """Return the data set's arrays."""

    @abstractmethod
    def attrs(self, shape: Shape) -> dict[str, Any]:
        """Return the data set's attributes beside those that all have; all blocks were read."""

    @abstractmethod
    def chunks(self, records: Records, shape: Shape) -> tuple[Arrays, Arrays]:
        """Return a cell's chunks, and what it adds, as one row, to arrays that are one chunk."""


def padded(values: NDArray[Any], length: int) -> NDArray[Any]:
    """Return values with zeros behind them, ``length`` along the first axis."""
    found = np.zeros((length, *values.shape[1:]), values.dtype)
    found[: len(values)] = values
    return found


def slot_arrays(rows: NDArray[np.void], shape: Shape) -> dict[str, NDArray[Any]]:
    """Return the chunks of a cell that dense and sparse data sets have: unit, and y if labelled."""
    unit = np.full(shape.capacity, -1, np.int64)
    unit[: len(rows)] = rows["unit"]
    if shape.label is None:
        return {"unit": unit}
    return {"unit": unit, "y": padded(rows["y"].astype(shape.label), shape.capacity)}
