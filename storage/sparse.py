"""Sparse data sets: the non-zero values of hash-ordered cells, as compressed sparse rows.

Arrays, one chunk a cell: ``data`` (cell, entry) float32 and ``indices`` (cell, entry) int32, padded
with zeros; ``indptr`` (cell, boundary) int64, where slot s has the entries indptr[s] to
indptr[s + 1]. Besides ``unit`` and ``y`` (cell, slot) and ``live`` (cell,), as dense data sets have.
So ``scipy.sparse.csr_matrix((data[c], indices[c], indptr[c]))`` is a cell, without its padding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .dataset import DataSet
from .errors import CorruptError
from .schema import ArraySpec

ENTRY_BYTES = 8
"""Bytes of an entry: its value and its column."""
ENTRY_ARRAYS = ("data", "indices")
MAX_FEATURES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Some rows: non-zero values and their columns."""

    values: NDArray[np.float32]
    """(entries,)"""
    columns: NDArray[np.int32]
    """(entries,) ascending within a row."""
    pointers: NDArray[np.int64]
    """(n + 1,) row i has the entries pointers[i] to pointers[i + 1]."""

    def __len__(self) -> int:
        return len(self.pointers) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) entries of each row."""
        return np.diff(self.pointers)

    @classmethod
    def none(cls) -> SparseRows:
        """No rows."""
        return cls(np.empty(0, np.float32), np.empty(0, np.int32), np.zeros(1, np.int64))

    @classmethod
    def joined(cls, parts: Iterable[SparseRows]) -> SparseRows:
        """Return the rows of all parts, in order."""
        listed = [cls.none(), *parts]
        lengths = np.concatenate([p.lengths for p in listed])
        return cls(
            np.concatenate([p.values for p in listed]),
            np.concatenate([p.columns for p in listed]),
            np.r_[0, np.cumsum(lengths)].astype(np.int64),
        )

    def take(self, chosen: NDArray[np.integer[Any]]) -> SparseRows:
        """Return the rows with the numbers ``chosen``, in that order."""
        lengths = self.lengths[chosen]
        entries = spread(self.pointers[:-1][chosen], lengths)
        pointers = np.r_[0, np.cumsum(lengths)].astype(np.int64)
        return SparseRows(self.values[entries], self.columns[entries], pointers)

    def row(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return one row's values and columns."""
        here = slice(*self.pointers[number : number + 2].tolist())
        return self.values[here], self.columns[here]


def spread(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers starts[i], starts[i] + 1, ... (lengths[i] of them) for each i, in order."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def sparse_specs(
    cells: int, capacity: int, entries: int, label: np.dtype[Any] | None
) -> dict[str, ArraySpec]:
    """Return the arrays of a sparse data set: at most ``capacity`` rows and ``entries`` a cell."""
    i8, slots = np.dtype("<i8"), ("cell", "slot")
    shape = (cells, entries)
    specs = {
        "data": ArraySpec(("cell", "entry"), shape, np.dtype("<f4"), (1, entries)),
        "indices": ArraySpec(("cell", "entry"), shape, np.dtype("<i4"), (1, entries)),
        "indptr": ArraySpec(("cell", "boundary"), (cells, capacity + 1), i8, (1, capacity + 1)),
        "unit": ArraySpec(slots, (cells, capacity), i8, (1, capacity), -1),
        "live": ArraySpec(("cell",), (cells,), i8, (cells,)),
    }
    if label is not None:
        specs["y"] = ArraySpec(slots, (cells, capacity), label, (1, capacity))
    return specs


def read_pointers(data_set: DataSet, cell: int) -> NDArray[np.int64]:
    """Return where each slot's entries begin, and where the last one's end: (capacity + 1,)."""
    found = np.empty(data_set.capacity + 1, np.int64)
    files.count_cell(data_set.path.name, cell)
    path = data_set.chunk("indptr", cell)
    files.read_into(path, found)
    if found[0] != 0 or found[-1] > data_set.entries or (np.diff(found) < 0).any():
        raise CorruptError(f"{path}: the row pointers are damaged; restore the data set")
    return found


def read_sparse_cell(data_set: DataSet, cell: int) -> SparseRows:
    """Return every slot's row of a cell; that of an empty slot is empty, of an erased one all zeros."""
    pointers = read_pointers(data_set, cell)
    begin = np.zeros(1, np.int64)
    values = np.empty(pointers[-1], np.float32)
    columns = np.empty(pointers[-1], np.int32)
    if len(values):
        files.read_at(data_set.chunk("data", cell), begin, values)
        files.read_at(data_set.chunk("indices", cell), begin, columns)
    return SparseRows(values, columns, pointers)


def read_sparse_slots(data_set: DataSet, cell: int, slots: NDArray[np.int64]) -> SparseRows:
    """Return the rows of some slots (ascending) of a cell; reads their entries and the pointers."""
    pointers = read_pointers(data_set, cell)
    lengths = np.diff(pointers)[slots]
    entries = spread(pointers[:-1][slots], lengths)
    values = np.empty(len(entries), np.float32)
    columns = np.empty(len(entries), np.int32)
    files.read_at(data_set.chunk("data", cell), entries * values.itemsize, values)
    files.read_at(data_set.chunk("indices", cell), entries * columns.itemsize, columns)
    return SparseRows(values, columns, np.r_[0, np.cumsum(lengths)].astype(np.int64))


def erase_entries(data_set: DataSet, cell: int, slots: NDArray[np.int64]) -> None:
    """Overwrite the values and columns of some slots (ascending) with zeros; idempotent.

    The pointers stay, so that no other row moves: how many entries a row had remains.
    """
    pointers = read_pointers(data_set, cell)
    entries = spread(pointers[:-1][slots], np.diff(pointers)[slots])
    zeros = np.zeros(len(entries), np.int32)
    for name in ENTRY_ARRAYS:
        files.write_at(data_set.chunk(name, cell), entries * zeros.itemsize, zeros)


def holds_entries(data_set: DataSet, cell: int, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of some slots (ascending) hold anything but zeros: (n,)."""
    rows = read_sparse_slots(data_set, cell, slots)
    owner = np.repeat(np.arange(len(slots)), rows.lengths)
    left = (rows.columns != 0) | (rows.values.view(np.int32) != 0)
    found = np.zeros(len(slots), np.bool_)
    found[owner[left]] = True
    return found


def sparse_fingerprints(rows: SparseRows, salt: bytes) -> list[bytes]:
    """Return the keyed 128-bit hash of each row: tells rows alike, not what they are."""
    found = []
    for number in range(len(rows)):
        values, columns = rows.row(number)
        message = b"sparse row" + columns.tobytes() + values.tobytes()
        found.append(hashlib.blake2b(message, key=salt, digest_size=16).digest())
    return found
