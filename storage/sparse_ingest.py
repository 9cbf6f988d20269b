"""Import of sparse rows: what is particular to them, on the way that ``ingest`` has for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import hash_units
from .dataset import SPARSE
from .ingest import MEMORY_BUDGET, Imported, Progress, import_blocks
from .row_layout import ENTRY, Arrays, Records, RowLayout, Shape, padded, slot_arrays
from .schema import ArraySpec
from .sparse import sparse_specs
from .sparse_rows import SparseBlock, SparseSource

_ROW = np.dtype([("hash", "<u8"), ("unit", "<i8"), ("y", "<f8"), ("entries", "<i8")])


def import_sparse(
    source: SparseSource,
    target: Path,
    salt: bytes,
    attrs: dict[str, Any],
    *,
    cells: int | None = None,
    memory: int = MEMORY_BUDGET,
    progress: Progress = lambda what, share: None,
) -> Imported:
    """Write all rows of ``source`` as the sparse data set ``target``; nothing is left if that fails.

    As ``ingest.import_rows``.
    """
    layout = _SparseLayout(source)
    return import_blocks(source, layout, target, salt, attrs, cells, memory, progress)


class _SparseLayout(RowLayout[SparseBlock]):
    """Rows of few columns that are not zero."""

    record = _ROW

    def __init__(self, source: SparseSource) -> None:
        self._source = source

    def records(self, block: SparseBlock, salt: bytes) -> Records:
        rows = np.empty(len(block.rows), _ROW)
        rows["hash"], rows["unit"] = hash_units(block.rows, salt), block.rows
        rows["y"], rows["entries"] = block.y, block.x.lengths
        entries = np.empty(len(block.x.values), ENTRY)
        entries["column"], entries["value"] = block.x.columns, block.x.values
        return Records(rows, entries)

    def words(self, rows: int, entries: int) -> int:
        return 2 * entries

    def specs(self, shape: Shape) -> dict[str, ArraySpec]:
        return sparse_specs(shape.cells, shape.capacity, shape.entries, shape.label)

    def attrs(self, shape: Shape) -> dict[str, Any]:
        return {
            "layout": SPARSE,
            "entries": shape.entries,
            "features": self._source.features,
            "first_column": self._source.first_column,
            "feature_names": [],
        }

    def chunks(self, records: Records, shape: Shape) -> tuple[Arrays, Arrays]:
        entries, pointers = records.entries, records.pointers
        ends = np.full(shape.capacity + 1, pointers[-1], np.int64)
        ends[: len(pointers)] = pointers
        columns: NDArray[np.int32] = entries["column"] - np.int32(self._source.first_column)
        arrays = {
            "data": padded(entries["value"], shape.entries),
            "indices": padded(columns, shape.entries),
            "indptr": ends,
            **slot_arrays(records.rows, shape),
        }
        return arrays, {"live": np.array([len(records.rows)], np.int64)}
