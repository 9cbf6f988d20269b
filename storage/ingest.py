"""Import: a stream of rows becomes hash-ordered cells, in two passes and bounded memory.

First the rows are spread to 256 buckets by the top bits of their hash (in memory, and beyond a
budget in files of the staging folder), while rows and entries per 2^-16 of the hash range are counted.
Then the number of cells and their capacity are known, and each cell is ordered and written. The
data set appears under its name only when it is complete and synced. Sparse rows come the same way:
what is particular to a kind of rows is its ``RowLayout``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Generic

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
from .row_layout import ENTRY, Arrays, Block, Records, RowLayout, Shape, Source, padded, slot_arrays
from .rows import RowBlock, RowSource
from .schema import SCHEMA_VERSION, ArraySpec, chunk_path, create_group
from .space import require

BUCKETS = 256
MEMORY_BUDGET = 192 << 20
"""Bytes of rows that spreading keeps in memory before it writes them to the staging folder."""
WRITERS = 2
MOST_ROUNDED = 4096
"""Different labels that float32 does not hold, of a data set whose labels may be classes."""
WORD = 4
"""Bytes of a value or a column."""

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
    layout = _DenseLayout(source.feature_names)
    return import_blocks(source, layout, target, salt, attrs, cells, memory, progress)


def import_blocks(
    source: Source[Block],
    layout: RowLayout[Block],
    target: Path,
    salt: bytes,
    attrs: dict[str, Any],
    cells: int | None,
    memory: int,
    progress: Progress,
) -> Imported:
    """Import rows of any kind; see ``import_rows``."""
    if cells is not None:
        check_cells(cells)
    with _staged(target) as staging:
        spread = _Spread(layout, staging, memory)
        for block in source.blocks():
            spread.add(block, salt)
            progress("reading rows", source.progress)
        if spread.count == 0:
            why = (
                f"all {source.dropped} were skipped as invalid" if source.dropped else "it is empty"
            )
            raise BadInputError(f"the source has no valid row, there is nothing to import: {why}")
        shape = _shape(layout, spread, cells, source.label_name is not None)
        group = staging / "group"
        specs = layout.specs(shape)
        size, chunks = _extent(specs)
        require(staging, size, chunks, f"{spread.count} rows")
        create_group(group, specs, {**attrs, **_attrs(source, layout, spread, shape)})
        _write_cells(spread, layout, shape, group, progress)
    return Imported(DataSet.open(target), spread.count, source.dropped)


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Give a staging folder, whose ``group`` becomes ``target`` at the end; else nothing is left."""
    if target.exists():
        raise ExistsError(f"{target} exists already")
    staging = partial_path(target)
    files.sweep(staging)
    staging.mkdir(parents=True)
    try:
        yield staging
        (staging / "group").rename(target)
        files.sync_folder(target.parent)
    finally:
        files.sweep(staging)


class _Spread(Generic[Block]):
    """Rows in 256 buckets by the top byte of their hash, each partly in memory, partly in files."""

    def __init__(self, layout: RowLayout[Block], staging: Path, memory: int) -> None:
        self._layout = layout
        self._staging = staging
        self._memory = memory
        self._held = 0
        self._pieces: list[list[Records]] = [[] for _ in range(BUCKETS)]
        self.count = 0
        self.fine_rows = np.zeros(MAX_CELLS, np.int64)
        self.fine_entries = np.zeros(MAX_CELLS, np.int64)
        self.whole_labels = True
        """Whether all labels are integers that fit in int32."""
        self._rounded: NDArray[np.float64] | None = np.zeros(0)
        """The different labels that float32 does not hold; None where they are too many for classes."""

    def add(self, block: Block, salt: bytes) -> None:
        """Spread one block."""
        records = self._layout.records(block, salt)
        self._count(records)
        top = (records.rows["hash"] >> np.uint64(56)).astype(np.uint8)
        edges = np.r_[0, np.cumsum(np.bincount(top, minlength=BUCKETS))]
        ordered = records.take(np.argsort(top, kind="stable"))
        for pieces, piece in zip(self._pieces, ordered.parts(edges), strict=True):
            if len(piece.rows):
                pieces.append(piece)
        self._held += ordered.nbytes
        if self._held > self._memory:
            self._spill()

    def _count(self, records: Records) -> None:
        """Count rows and entries by hash, and look at the labels."""
        rows, labels = records.rows, records.rows["y"]
        self.count += len(rows)
        fine = (rows["hash"] >> np.uint64(64 - FINE_BITS)).astype(np.int64)
        self.fine_rows += np.bincount(fine, minlength=MAX_CELLS)
        if len(records.entries):
            np.add.at(self.fine_entries, fine, np.diff(records.pointers))
        if self.whole_labels:
            self.whole_labels = bool(np.all((np.abs(labels) < 2**31) & (labels % 1 == 0)))
        rounded = labels[labels.astype(np.float32) != labels]
        if self._rounded is not None and len(rounded):
            found = np.union1d(self._rounded, rounded)
            self._rounded = found if len(found) <= MOST_ROUNDED else None

    @property
    def labels_merged(self) -> bool:
        """Whether labels that differ are one as float32, or others are whole numbers as float32."""
        if self.whole_labels or self._rounded is None:
            return not self.whole_labels
        kept = np.unique(self._rounded.astype(np.float32))
        return len(kept) < len(self._rounded) or bool(np.any(kept % 1 == 0))

    def _spill(self) -> None:
        """Append what is in memory to the buckets' files."""
        require(self._staging, self._held, 2 * BUCKETS, "the rows read so far")
        for bucket, pieces in enumerate(self._pieces):
            for kind in ("rows", "entries"):
                arrays = [array for piece in pieces if len(array := getattr(piece, kind))]
                if arrays:
                    with self._file(bucket, kind).open("ab") as out:
                        for array in arrays:
                            array.tofile(out)
            pieces.clear()
        self._held = 0

    def _file(self, bucket: int, kind: str) -> Path:
        return self._staging / f"bucket-{bucket:03d}-{kind}"

    def _spilled(self, bucket: int, kind: str, dtype: np.dtype[Any]) -> NDArray[np.void]:
        """What a bucket's file holds; nothing where there is no file."""
        path = self._file(bucket, kind)
        return np.fromfile(path, dtype) if path.exists() else np.empty(0, dtype)

    def take(self, start: int, stop: int) -> Records:
        """Return all records of buckets start to stop, and let go of those in memory."""
        parts: list[Records] = []
        for bucket in range(start, stop):
            rows = self._spilled(bucket, "rows", self._layout.record)
            parts.append(Records(rows, self._spilled(bucket, "entries", ENTRY)))
            parts.extend(self._pieces[bucket])
            self._pieces[bucket] = []
        return Records(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.entries for part in parts]),
        )


def _shape(
    layout: RowLayout[Block], spread: _Spread[Block], wanted: int | None, labelled: bool
) -> Shape:
    """Settle the cells: as many as are wanted, or by size; BadInputError where that can't be."""
    words = layout.words(spread.count, int(spread.fine_entries.sum()))
    chosen = choose_cells(words, 1)
    cells = chosen if wanted is None else wanted
    most = max(LEAST_CELLS, spread.count)
    if wanted is not None and wanted > most:
        raise BadInputError(f"{wanted} cells for {spread.count} rows; ask for at most {most}")
    capacity, entries = (
        max(1, int(fine.reshape(cells, -1).sum(axis=1).max()))
        for fine in (spread.fine_rows, spread.fine_entries)
    )
    size = WORD * layout.words(capacity, entries)
    if wanted is not None and size > MAX_CELL_BYTES and wanted < MAX_CELLS:
        raise BadInputError(
            f"{wanted} cells would hold up to {capacity} rows and {size >> 20} MiB each, above "
            f"{MAX_CELL_BYTES >> 20} MiB a cell; ask for at least {chosen} cells"
        )
    label = np.dtype("<i4" if spread.whole_labels else "<f4") if labelled else None
    return Shape(cells, capacity, entries, label)


def _extent(specs: Mapping[str, ArraySpec]) -> tuple[int, int]:
    """The bytes of all arrays, and the number of their chunks."""
    size = sum(prod(s.shape) * s.dtype.itemsize for s in specs.values())
    chunks = sum(prod(s.shape) // prod(s.chunks) for s in specs.values())
    return size, chunks


def _attrs(
    source: Source[Block], layout: RowLayout[Block], spread: _Spread[Block], shape: Shape
) -> dict[str, Any]:
    """The attributes of a data set, but for those that its maker gives."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cells": shape.cells,
        "capacity": shape.capacity,
        "rows_imported": spread.count,
        "rows_dropped": source.dropped,
        "label_name": source.label_name,
        "label_dtype": None if shape.label is None else shape.label.str,
        "labels_merged": shape.label is not None and spread.labels_merged,
        "source": source.provenance,
        **layout.attrs(shape),
    }


def _write_cells(
    spread: _Spread[Block], layout: RowLayout[Block], shape: Shape, group: Path, progress: Progress
) -> None:
    """Order and write every cell below ``group``, and the arrays of one chunk, all synced."""

    def write(cell: int, records: Records) -> Arrays:
        chunks, told = layout.chunks(records, shape)
        for name, array in chunks.items():
            files.write_new(chunk_path(group, name, cell, *([0] * array.ndim)), array)
        return told

    told: list[Arrays] = []
    waiting: deque[Future[Arrays]] = deque()
    with ThreadPoolExecutor(WRITERS) as pool, closing(_ordered(spread, shape.cells)) as ordered:
        for cell, records in ordered:
            waiting.append(pool.submit(write, cell, records))
            while len(waiting) > WRITERS or (waiting and cell == shape.cells - 1):
                told.append(waiting.popleft().result())
                progress("writing cells", len(told) / shape.cells)
    for name in told[0]:
        array = np.concatenate([one[name] for one in told])
        files.write_new(chunk_path(group, name, *([0] * array.ndim)), array)
    files.sync_tree(group)


def _ordered(spread: _Spread[Block], cells: int) -> Generator[tuple[int, Records], None, None]:
    """Yield (cell, its records in hash order) for every cell, in order."""
    groups = min(cells, BUCKETS)
    buckets, per_group = BUCKETS // groups, cells // groups
    for group in range(groups):
        records = spread.take(group * buckets, (group + 1) * buckets)
        order = hash_order(records.rows["hash"], records.rows["unit"])
        first = group * per_group
        counts = np.bincount(cell_of(records.rows["hash"], cells) - first, minlength=per_group)
        edges = np.r_[0, np.cumsum(counts)]
        for i in range(per_group):
            yield first + i, records.take(order[edges[i] : edges[i + 1]])


class _DenseLayout(RowLayout[RowBlock]):
    """Rows of named features."""

    def __init__(self, feature_names: tuple[str, ...]) -> None:
        self._names = feature_names
        x = ("x", "<f4", (len(feature_names),))
        self.record = np.dtype([("hash", "<u8"), ("unit", "<i8"), ("y", "<f8"), x])

    def records(self, block: RowBlock, salt: bytes) -> Records:
        units = block.rows if block.units is None else block.units
        rows = np.empty(len(units), self.record)
        rows["hash"], rows["unit"] = hash_units(units, salt), units
        rows["y"], rows["x"] = 0.0 if block.y is None else block.y, block.x
        return Records(rows, np.empty(0, ENTRY))

    def words(self, rows: int, entries: int) -> int:
        return rows * len(self._names)

    def specs(self, shape: Shape) -> dict[str, ArraySpec]:
        return data_set_specs(shape.cells, shape.capacity, len(self._names), shape.label)

    def attrs(self, shape: Shape) -> dict[str, Any]:
        return {"feature_names": list(self._names)}

    def chunks(self, records: Records, shape: Shape) -> tuple[Arrays, Arrays]:
        x = padded(records.rows["x"], shape.capacity)
        arrays = {"x": x, **slot_arrays(records.rows, shape)}
        found = CellStatistics.of_rows(x[: len(records.rows)])
        return arrays, {name: getattr(found, name) for name in STATISTICS}
