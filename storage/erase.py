"""Erasure in place: the bytes of deleted rows are overwritten where they stand.

The order is unit = -1 first, then x and y, each synced: after a crash the addresses in the
ledger's commit say what to do again, and doing it again is harmless.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import files
from .dataset import CellStatistics, DataSet
from .errors import CorruptError
from .sparse import erase_entries, holds_entries


def erase_slots(data_set: DataSet, cell: int, slots: NDArray[np.int64]) -> None:
    """Overwrite some slots (ascending) of a cell: unit -1, the rest zero; idempotent."""
    n = len(slots)
    files.write_at(data_set.chunk("unit", cell), slots * 8, np.full(n, -1, np.int64))
    if data_set.sparse:
        erase_entries(data_set, cell, slots)
    else:
        zeros = np.zeros((n, data_set.features), np.float32)
        files.write_at(data_set.chunk("x", cell), slots * data_set.row_bytes, zeros)
    if data_set.label_dtype is not None:
        label = np.dtype(data_set.label_dtype)
        offsets = slots * label.itemsize
        files.write_at(data_set.chunk("y", cell), offsets, np.zeros(n, label))


def measure_cell(
    data_set: DataSet, cell: int, without: NDArray[np.int64] | None = None
) -> CellStatistics:
    """Read a cell's live rows, less some slots, and return their statistics (one row)."""
    units = data_set.read_units(cell)
    if without is not None:
        units[without] = -1
    if data_set.sparse:
        return CellStatistics.of_rows(np.empty((np.count_nonzero(units >= 0), 0), np.float32))
    return CellStatistics.of_rows(data_set.read_cell(cell)[units >= 0])


def check_erased(data_set: DataSet, cell: int, slots: NDArray[np.int64]) -> None:
    """Read erased slots back from the disk; CorruptError if anything is left in them."""
    units = data_set.read_units(cell)
    if data_set.sparse:
        held = holds_entries(data_set, cell, slots)
    else:
        held = np.asarray(data_set.read_slots(cell, slots).any(axis=1))
    left: NDArray[np.bool_] = np.logical_or(units[slots] != -1, held)
    if data_set.label_dtype is not None:
        label = np.dtype(data_set.label_dtype)
        y = np.empty(len(slots), label)
        files.read_at(data_set.chunk("y", cell), slots * label.itemsize, y)
        left = np.logical_or(left, y != 0)
    if left.any():
        raise CorruptError(
            f"{data_set.path}: {int(left.sum())} slots of cell {cell} still hold data after erasure"
        )
