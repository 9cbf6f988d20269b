"""The scan's side of sparse rows: read from svmlight files, searched as values and as columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.dataset import DataSet
from ..storage.errors import BadInputError
from ..storage.sentinel import SHORTEST_PATTERN
from ..storage.sparse import SparseRows, read_pointers
from ..storage.svmlight import SVMLIGHT, SvmlightSource

ENTRY_PART = 4
"""Bytes of an entry's value, and of its column."""
ENCODINGS: dict[str, tuple[str, np.dtype[Any]]] = {
    "float32 values": ("values", np.dtype("<f4")),
    "float64 values": ("values", np.dtype("<f8")),
    "int32 columns": ("columns", np.dtype("<i4")),
    "int64 columns": ("columns", np.dtype("<i8")),
}


def read_sparse_rows(file: Path, format: str, data_set: DataSet) -> SparseRows:
    """Read the rows of an svmlight file as the data set numbers its columns.

    BadInputError for another format, and for columns that the data set has not.
    """
    if format != SVMLIGHT:
        raise BadInputError(f"its rows are sparse: give them as --format {SVMLIGHT}")
    first = int(data_set.attrs["first_column"])
    source = SvmlightSource([file], first_column=first)
    rows = SparseRows.joined(block.x for block in source.blocks())
    if len(rows.columns) and source.features > data_set.features:
        raise BadInputError(
            f"{file}: columns up to {source.features - 1 + first}, but the data set's last one is "
            f"{data_set.features - 1 + first}"
        )
    return SparseRows(rows.values, rows.columns - np.int32(first), rows.pointers)


def sparse_patterns(rows: SparseRows) -> Iterator[tuple[bytes, int, str]]:
    """Every row in every encoding that the program stores, but for those of ``short_rows``."""
    short = set(short_rows(rows))
    for key in range(len(rows)):
        if key in short:
            continue
        values, columns = rows.row(key)
        parts = {"values": values, "columns": columns}
        for encoding, (part, dtype) in ENCODINGS.items():
            yield np.asarray(parts[part], np.dtype(dtype)).tobytes(), key, encoding


def short_rows(rows: SparseRows) -> list[int]:
    """Return the rows of too few entries for a search by values and columns."""
    return np.flatnonzero(rows.lengths * ENTRY_PART < SHORTEST_PATTERN).tolist()


def shown_short(count: int) -> list[str]:
    """Return what is said of so many rows of too few entries, if there are any."""
    if not count:
        return []
    rows = "1 row" if count == 1 else f"{count} rows"
    least = -(-SHORTEST_PATTERN // ENTRY_PART)
    return [f"{rows} of fewer than {least} entries, too few to be told from other bytes"]


class LiveEntries:
    """Which slots of a cell's chunk some bytes belong to; keeps the last cell's pointers."""

    def __init__(self) -> None:
        self._last: tuple[Path, int] | None = None
        self._pointers: NDArray[np.int64] = np.zeros(1, np.int64)

    def slots(self, data_set: DataSet, cell: int, offset: int, length: int) -> tuple[range, bool]:
        """Return the slots that have any of these bytes, and whether they are all of one row's."""
        if self._last != (data_set.path, cell):
            self._pointers = read_pointers(data_set, cell)
            self._last = data_set.path, cell
        pointers = self._pointers
        if offset + length > ENTRY_PART * pointers[-1]:
            return range(0), False
        first = int(np.searchsorted(pointers, offset // ENTRY_PART, side="right")) - 1
        last = int(np.searchsorted(pointers, (offset + length - 1) // ENTRY_PART, side="right"))
        whole = last == first + 1 and [offset, offset + length] == [
            ENTRY_PART * int(pointers[first]),
            ENTRY_PART * int(pointers[last]),
        ]
        return range(first, last), whole
