"""Import of sparse rows: two passes in bounded memory, as ``ingest`` does for dense ones.

Rows are spread to 256 buckets by the top bits of their hash, in memory and beyond a budget in files
of the staging folder; rows and entries are counted per 2^-16 of the hash range meanwhile. Then the
cells, their capacity, the first column and the number of columns are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .cells import (
    FINE_BITS,
    LEAST_CELLS,
    MAX_CELL_BYTES,
    MAX_CELLS,
    cell_of,
    check_cells,
    hash_order,
    hash_units,
)
from .dataset import SPARSE, DataSet
from .errors import BadInputError, ExistsError
from .ingest import BUCKETS, MEMORY_BUDGET, WRITERS, Imported, Progress, partial_path
from .schema import SCHEMA_VERSION, chunk_path, create_group
from .space import require
from .sparse import ENTRY_BYTES, SparseRows, choose_sparse_cells, sparse_specs
from .sparse_rows import SparseBlock, SparseSource

_ROW = np.dtype([("hash", "<u8"), ("unit", "<i8"), ("y", "<f8"), ("entries", "<i8")])
_ENTRY = np.dtype([("column", "<i4"), ("value", "<f4")])


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
    if cells is not None:
        check_cells(cells)
    if target.exists():
        raise ExistsError(f"{target} exists already")
    staging = partial_path(target)
    files.sweep(staging)
    staging.mkdir(parents=True)
    try:
        spread = _Spread(staging, memory)
        for block in source.blocks():
            spread.add(block, salt)
            progress("reading rows", source.progress)
        if spread.count == 0:
            raise BadInputError("the source has no valid row; there is nothing to import")
        _write_cells(spread, source, staging / "group", attrs, cells, progress)
        (staging / "group").rename(target)
        files.sync_folder(target.parent)
    finally:
        files.sweep(staging)
    return Imported(DataSet.open(target), spread.count, source.dropped)


@dataclass(frozen=True, slots=True)
class _Records:
    """Some rows on their way to their cells."""

    rows: NDArray[np.void]
    entries: NDArray[np.void]
    """Of all rows, one after the other."""

    @classmethod
    def joined(cls, parts: list[_Records]) -> _Records:
        none = np.empty(0, _ROW), np.empty(0, _ENTRY)
        return cls(
            np.concatenate([none[0], *(p.rows for p in parts)]),
            np.concatenate([none[1], *(p.entries for p in parts)]),
        )

    @property
    def sparse(self) -> SparseRows:
        pointers = np.r_[0, np.cumsum(self.rows["entries"])].astype(np.int64)
        return SparseRows(self.entries["value"], self.entries["column"], pointers)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.entries.nbytes


class _Spread:
    """Rows in 256 buckets by the top byte of their hash, each partly in memory, partly in files."""

    def __init__(self, staging: Path, memory: int) -> None:
        self._staging = staging
        self._memory = memory
        self._held = 0
        self._pieces: list[list[_Records]] = [[] for _ in range(BUCKETS)]
        self.count = 0
        self.fine_rows = np.zeros(MAX_CELLS, np.int64)
        self.fine_entries = np.zeros(MAX_CELLS, np.int64)
        self.whole_labels = True
        """Whether all labels are integers that fit in int32."""

    def add(self, block: SparseBlock, salt: bytes) -> None:
        """Spread one block."""
        hashes = hash_units(block.rows, salt)
        self._count(block, hashes)
        top = (hashes >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(top, kind="stable")
        x = block.x.take(order)
        rows = np.empty(len(order), _ROW)
        rows["hash"], rows["unit"] = hashes[order], block.rows[order]
        rows["y"], rows["entries"] = block.y[order], x.lengths
        entries = np.empty(len(x.values), _ENTRY)
        entries["column"], entries["value"] = x.columns, x.values
        edges = np.r_[0, np.cumsum(np.bincount(top, minlength=BUCKETS))]
        for bucket in np.flatnonzero(np.diff(edges)):
            a, b = edges[bucket], edges[bucket + 1]
            piece = _Records(rows[a:b], entries[x.pointers[a] : x.pointers[b]])
            self._pieces[bucket].append(piece)
        self._held += rows.nbytes + entries.nbytes
        if self._held > self._memory:
            self._spill()

    def _count(self, block: SparseBlock, hashes: NDArray[np.uint64]) -> None:
        self.count += len(block.rows)
        fine = (hashes >> np.uint64(64 - FINE_BITS)).astype(np.int64)
        self.fine_rows += np.bincount(fine, minlength=MAX_CELLS)
        np.add.at(self.fine_entries, fine, block.x.lengths)
        if self.whole_labels:
            self.whole_labels = bool(np.all((np.abs(block.y) < 2**31) & (block.y % 1 == 0)))

    def _spill(self) -> None:
        """Append what is in memory to the buckets' files."""
        require(self._staging, self._held, 2 * BUCKETS, "the rows read so far")
        for bucket, pieces in enumerate(self._pieces):
            if pieces:
                records = _Records.joined(pieces)
                for kind in ("rows", "entries"):
                    with self._file(bucket, kind).open("ab") as out:
                        getattr(records, kind).tofile(out)
                pieces.clear()
        self._held = 0

    def _file(self, bucket: int, kind: str) -> Path:
        return self._staging / f"bucket-{bucket:03d}-{kind}"

    def take(self, start: int, stop: int) -> _Records:
        """Return all rows of buckets start to stop, and let go of those in memory."""
        parts: list[_Records] = []
        for bucket in range(start, stop):
            if self._file(bucket, "rows").exists():
                rows = np.fromfile(self._file(bucket, "rows"), _ROW)
                parts.append(_Records(rows, np.fromfile(self._file(bucket, "entries"), _ENTRY)))
            parts.extend(self._pieces[bucket])
            self._pieces[bucket] = []
        return _Records.joined(parts)


def _write_cells(
    spread: _Spread,
    source: SparseSource,
    group: Path,
    attrs: dict[str, Any],
    wanted: int | None,
    progress: Progress,
) -> None:
    """Order and write every cell below ``group``, with its attributes, all synced."""
    cells = _cells(spread, wanted)
    capacity = max(1, _largest(spread.fine_rows, cells))
    entries = max(1, _largest(spread.fine_entries, cells))
    label = np.dtype("<i4" if spread.whole_labels else "<f4")
    cell_bytes = entries * ENTRY_BYTES + capacity * (16 + label.itemsize)
    require(group.parent, cells * cell_bytes, 5 * cells, f"{spread.count} rows")
    create_group(
        group,
        sparse_specs(cells, capacity, entries, label),
        {
            **attrs,
            "schema_version": SCHEMA_VERSION,
            "layout": SPARSE,
            "cells": cells,
            "capacity": capacity,
            "entries": entries,
            "features": source.features,
            "first_column": source.first_column,
            "rows_imported": spread.count,
            "rows_dropped": source.dropped,
            "feature_names": [],
            "label_name": source.label_name,
            "label_dtype": label.str,
            "source": source.provenance,
        },
    )
    writer = _CellWriter(group, capacity, entries, source.first_column, label)
    live: list[int] = []
    waiting: deque[Future[int]] = deque()
    with ThreadPoolExecutor(WRITERS) as pool, closing(_ordered_cells(spread, cells)) as ordered:
        for cell, records in ordered:
            waiting.append(pool.submit(writer.write, cell, records))
            while len(waiting) > WRITERS or (waiting and cell == cells - 1):
                live.append(waiting.popleft().result())
                progress("writing cells", len(live) / cells)
    files.write_new(chunk_path(group, "live", 0), np.array(live, np.int64))
    files.sync_tree(group)


def _cells(spread: _Spread, wanted: int | None) -> int:
    """The number of cells: what is wanted, if that can be, or by size."""
    chosen = choose_sparse_cells(int(spread.fine_entries.sum()))
    if wanted is None:
        return chosen
    most = max(LEAST_CELLS, spread.count)
    if wanted > most:
        raise BadInputError(f"{wanted} cells for {spread.count} rows; ask for at most {most}")
    size = _largest(spread.fine_entries, wanted) * ENTRY_BYTES
    if size > MAX_CELL_BYTES and wanted < MAX_CELLS:
        raise BadInputError(
            f"{wanted} cells would hold up to {size >> 20} MiB each, above {MAX_CELL_BYTES >> 20}; "
            f"ask for at least {chosen} cells"
        )
    return wanted


def _largest(fine: NDArray[np.int64], cells: int) -> int:
    """The largest cell's count, of counts per 2^-16 of the hash range."""
    return int(fine.reshape(cells, -1).sum(axis=1).max())


def _ordered_cells(spread: _Spread, cells: int) -> Generator[tuple[int, _Records], None, None]:
    """Yield (cell, its rows in hash order) for every cell, in order."""
    groups = min(cells, BUCKETS)
    buckets, per_group = BUCKETS // groups, cells // groups
    for group in range(groups):
        records = spread.take(group * buckets, (group + 1) * buckets)
        order = hash_order(records.rows["hash"], records.rows["unit"])
        sparse, rows = records.sparse, records.rows[order]
        first = group * per_group
        counts = np.bincount(cell_of(rows["hash"], cells) - first, minlength=per_group)
        edges = np.r_[0, np.cumsum(counts)]
        for i in range(per_group):
            a, b = edges[i], edges[i + 1]
            x = sparse.take(order[a:b])
            entries = np.empty(len(x.values), _ENTRY)
            entries["column"], entries["value"] = x.columns, x.values
            yield first + i, _Records(rows[a:b], entries)


@dataclass(frozen=True, slots=True)
class _CellWriter:
    """Writes one cell's chunks, padded to the capacities."""

    group: Path
    capacity: int
    entries: int
    first_column: int
    label: np.dtype[Any]

    def write(self, cell: int, records: _Records) -> int:
        """Write the chunks of one cell, each synced, and return its live rows."""
        rows, x = records.rows, records.sparse
        n = len(rows)
        unit = np.full(self.capacity, -1, np.int64)
        unit[:n] = rows["unit"]
        y = np.zeros(self.capacity, self.label)
        y[:n] = rows["y"]
        pointers = np.full(self.capacity + 1, x.pointers[-1], np.int64)
        pointers[: n + 1] = x.pointers
        data = np.zeros(self.entries, np.float32)
        data[: len(x.values)] = x.values
        indices = np.zeros(self.entries, np.int32)
        indices[: len(x.values)] = x.columns - self.first_column
        arrays = {"data": data, "indices": indices, "indptr": pointers, "unit": unit, "y": y}
        for name, array in arrays.items():
            files.write_new(chunk_path(self.group, name, cell, 0), np.asarray(array))
        return n
