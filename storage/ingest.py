"""Import: a stream of rows becomes hash-ordered cells, in two passes and bounded memory.

First the rows are spread to 256 buckets by the top bits of their hash (in memory, and beyond a
budget in files of the staging folder), while their number per 2^-16 of the hash range is counted.
Then the number of cells and their capacity are known, and each cell is ordered and written. The
data set appears under its name only when it is complete and synced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    choose_cells,
    hash_order,
    hash_units,
)
from .dataset import STATISTICS, CellStatistics, DataSet, data_set_specs
from .errors import BadInputError, ExistsError
from .rows import RowBlock, RowSource
from .schema import SCHEMA_VERSION, chunk_path, create_group
from .space import require

BUCKETS = 256
MEMORY_BUDGET = 192 << 20
"""Bytes of rows that spreading keeps in memory before it writes them to the staging folder."""
WRITERS = 2

Progress = Callable[[str, float], None]
"""Called with what is being done and the share that is done."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made."""

    data_set: DataSet
    rows: int
    dropped: int


def partial_path(target: Path) -> Path:
    """Return the staging folder of an import; garbage unless an import is running."""
    return target.with_name(f"{target.name}.partial")


def import_rows(
    source: RowSource,
    target: Path,
    salt: bytes,
    attrs: dict[str, Any],
    *,
    cells: int | None = None,
    memory: int = MEMORY_BUDGET,
    progress: Progress = lambda what, share: None,
) -> Imported:
    """Write all rows of ``source`` as the data set ``target``; nothing is left if that fails.

    cells: a power of two, chosen from the size if None. Raises ExistsError if ``target`` is there
    and BadInputError for bad rows or no rows.
    """
    if cells is not None:
        check_cells(cells)
    if target.exists():
        raise ExistsError(f"{target} exists already")
    staging = partial_path(target)
    files.sweep(staging)
    staging.mkdir(parents=True)
    try:
        spread = _spread(source, staging, salt, memory, progress)
        _write_cells(spread, source, staging / "group", attrs, cells, progress)
        (staging / "group").rename(target)
        files.sync_folder(target.parent)
    finally:
        files.sweep(staging)
    return Imported(DataSet.open(target), spread.rows, source.dropped)


class _Spread:
    """Rows in 256 buckets by the top byte of their hash, each partly in memory, partly in a file."""

    def __init__(self, staging: Path, features: int, memory: int) -> None:
        self._staging = staging
        self._memory = memory
        self._held = 0
        self._pieces: list[list[NDArray[np.void]]] = [[] for _ in range(BUCKETS)]
        self.record = np.dtype(
            [("hash", "<u8"), ("unit", "<i8"), ("y", "<f8"), ("x", "<f4", (features,))]
        )
        self.rows = 0
        self.fine = np.zeros(MAX_CELLS, np.int64)
        self.whole_labels = True
        """Whether all labels are integers that fit in int32."""

    def add(self, block: RowBlock, salt: bytes) -> None:
        """Spread one block."""
        units = block.rows if block.units is None else block.units
        hashes = hash_units(units, salt)
        top = (hashes >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(top, kind="stable")
        records = np.empty(len(order), self.record)
        records["hash"] = hashes[order]
        records["unit"] = units[order]
        records["x"] = block.x[order]
        records["y"] = 0.0 if block.y is None else block.y[order]
        if block.y is not None and self.whole_labels:
            self.whole_labels = bool(np.all((np.abs(block.y) < 2**31) & (block.y % 1 == 0)))
        self.fine += np.bincount(
            (hashes >> np.uint64(64 - FINE_BITS)).astype(np.int64), minlength=MAX_CELLS
        )
        edges = np.r_[0, np.cumsum(np.bincount(top, minlength=BUCKETS))]
        for bucket in np.flatnonzero(np.diff(edges)):
            self._pieces[bucket].append(records[edges[bucket] : edges[bucket + 1]])
        self.rows += len(records)
        self._held += records.nbytes
        if self._held > self._memory:
            self._spill()

    def _spill(self) -> None:
        """Append what is in memory to the buckets' files."""
        require(self._staging, self._held, BUCKETS, "the rows read so far")
        for bucket, pieces in enumerate(self._pieces):
            if pieces:
                with self._file(bucket).open("ab") as out:
                    for piece in pieces:
                        piece.tofile(out)
                pieces.clear()
        self._held = 0

    def _file(self, bucket: int) -> Path:
        return self._staging / f"bucket-{bucket:03d}"

    def take(self, start: int, stop: int) -> NDArray[np.void]:
        """Return all records of buckets start to stop, and let go of those in memory."""
        parts: list[NDArray[np.void]] = []
        for bucket in range(start, stop):
            if self._file(bucket).exists():
                parts.append(np.fromfile(self._file(bucket), self.record))
            parts.extend(self._pieces[bucket])
            self._pieces[bucket] = []
        return np.concatenate(parts) if parts else np.empty(0, self.record)


def _spread(
    source: RowSource, staging: Path, salt: bytes, memory: int, progress: Progress
) -> _Spread:
    spread = _Spread(staging, len(source.feature_names), memory)
    for block in source.blocks():
        spread.add(block, salt)
        progress("reading rows", source.progress)
    if spread.rows == 0:
        raise BadInputError("the source has no valid row; there is nothing to import")
    return spread


def _write_cells(
    spread: _Spread,
    source: RowSource,
    group: Path,
    attrs: dict[str, Any],
    wanted: int | None,
    progress: Progress,
) -> None:
    """Order and write every cell below ``group``, with statistics and attributes, all synced."""
    features = len(source.feature_names)
    cells = choose_cells(spread.rows, features) if wanted is None else wanted
    if cells > max(LEAST_CELLS, spread.rows):
        raise BadInputError(
            f"{cells} cells for {spread.rows} rows; ask for at most {max(LEAST_CELLS, spread.rows)}"
        )
    capacity = max(1, int(spread.fine.reshape(cells, -1).sum(axis=1).max()))
    if wanted is not None and capacity * features * 4 > MAX_CELL_BYTES and cells < MAX_CELLS:
        raise BadInputError(
            f"{cells} cells would hold {capacity} rows each, above {MAX_CELL_BYTES >> 20} MiB a "
            f"cell; ask for at least {choose_cells(spread.rows, features)} cells"
        )
    label: np.dtype[Any] | None = None
    if source.label_name is not None:
        label = np.dtype("<i4" if spread.whole_labels else "<f4")
    row_bytes = 8 + 4 * features + (0 if label is None else 4)
    require(group.parent, cells * capacity * row_bytes, 3 * cells, f"{spread.rows} rows")
    create_group(
        group,
        data_set_specs(cells, capacity, features, label),
        {
            **attrs,
            "schema_version": SCHEMA_VERSION,
            "cells": cells,
            "capacity": capacity,
            "rows_imported": spread.rows,
            "rows_dropped": source.dropped,
            "feature_names": list(source.feature_names),
            "label_name": source.label_name,
            "label_dtype": None if label is None else label.str,
            "source": source.provenance,
        },
    )
    writer = _CellWriter(group, capacity, features, label)
    statistics: list[CellStatistics] = []
    waiting: deque[Future[CellStatistics]] = deque()
    with ThreadPoolExecutor(WRITERS) as pool:
        for cell, records in _ordered_cells(spread, cells):
            waiting.append(pool.submit(writer.write, cell, records))
            while len(waiting) > WRITERS or (waiting and cell == cells - 1):
                statistics.append(waiting.popleft().result())
                progress("writing cells", len(statistics) / cells)
    joined = CellStatistics.join(statistics)
    for name in STATISTICS:
        array = getattr(joined, name)
        files.write_new(chunk_path(group, name, *([0] * array.ndim)), array)
    files.sync_tree(group)


def _ordered_cells(spread: _Spread, cells: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield (cell, its records in hash order) for every cell, in order."""
    groups = min(cells, BUCKETS)
    buckets, per_group = BUCKETS // groups, cells // groups
    for group in range(groups):
        records = spread.take(group * buckets, (group + 1) * buckets)
        records = records[hash_order(records["hash"], records["unit"])]
        first = group * per_group
        counts = np.bincount(cell_of(records["hash"], cells) - first, minlength=per_group)
        edges = np.r_[0, np.cumsum(counts)]
        for i in range(per_group):
            yield first + i, records[edges[i] : edges[i + 1]]


@dataclass(frozen=True, slots=True)
class _CellWriter:
    """Writes one cell's chunks, padded to the capacity."""

    group: Path
    capacity: int
    features: int
    label: np.dtype[Any] | None

    def write(self, cell: int, records: NDArray[np.void]) -> CellStatistics:
        """Write the chunks of one cell, each synced, and return its statistics."""
        n = len(records)
        x = np.zeros((self.capacity, self.features), np.float32)
        x[:n] = records["x"]
        unit = np.full(self.capacity, -1, np.int64)
        unit[:n] = records["unit"]
        files.write_new(chunk_path(self.group, "x", cell, 0, 0), x)
        files.write_new(chunk_path(self.group, "unit", cell, 0), unit)
        if self.label is not None:
            y = np.zeros(self.capacity, self.label)
            y[:n] = records["y"]
            files.write_new(chunk_path(self.group, "y", cell, 0), y)
        return CellStatistics.of_rows(x[:n])
