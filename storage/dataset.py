"""A stored data set: one Zarr group of hash-ordered cells.

Arrays: ``x`` (cell, slot, feature) float32, ``y`` (cell, slot) where there are labels, ``unit``
(cell, slot) int64 with -1 for empty or erased slots; per cell and feature ``minimum``, ``maximum``
and how often each occurs; ``live`` (cell,) rows. One chunk a cell for the row arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import files
from .errors import CorruptError
from .schema import SCHEMA_VERSION, ArraySpec, chunk_path, read_attributes

SPARSE = "sparse"
"""The attribute ``layout`` of sparse data sets; dense ones have none."""
STATISTICS = ("minimum", "maximum", "minimum_count", "maximum_count", "live")


@dataclass(frozen=True, slots=True)
class CellStatistics:
    """Extremes of cells: one row a cell."""

    minimum: NDArray[np.float32]
    """(cells, features); +inf where a cell has no row."""
    maximum: NDArray[np.float32]
    """(cells, features); -inf where a cell has no row."""
    minimum_count: NDArray[np.int64]
    """(cells, features) rows that have the minimum."""
    maximum_count: NDArray[np.int64]
    """(cells, features) rows that have the maximum."""
    live: NDArray[np.int64]
    """(cells,) live rows."""

    @classmethod
    def of_rows(cls, x: NDArray[np.float32]) -> Self:
        """Return the statistics of one cell's live rows x (n, features)."""
        if not len(x):
            infinite = np.full((1, x.shape[1]), np.inf, np.float32)
            zero = np.zeros((1, x.shape[1]), np.int64)
            return cls(infinite, -infinite, zero, zero, np.zeros(1, np.int64))
        low, high = x.min(axis=0), x.max(axis=0)
        return cls(
            low[np.newaxis],
            high[np.newaxis],
            np.count_nonzero(x == low, axis=0)[np.newaxis].astype(np.int64),
            np.count_nonzero(x == high, axis=0)[np.newaxis].astype(np.int64),
            np.array([len(x)], np.int64),
        )

    def without(self, cell: int, removed: NDArray[np.float32]) -> Self | None:
        """Return one cell's statistics less some rows; None if an extreme's last row goes."""
        low, high = self.minimum[cell], self.maximum[cell]
        low_count = self.minimum_count[cell] - np.count_nonzero(removed == low, axis=0)
        high_count = self.maximum_count[cell] - np.count_nonzero(removed == high, axis=0)
        if not (low_count.all() and high_count.all()):
            return None
        live = self.live[cell] - len(removed)
        return type(self)(
            low[np.newaxis],
            high[np.newaxis],
            low_count[np.newaxis],
            high_count[np.newaxis],
            np.array([live], np.int64),
        )

    @staticmethod
    def join(parts: Sequence[CellStatistics]) -> CellStatistics:
        """Return the cells of all parts, in order."""
        return CellStatistics(
            *(np.concatenate([getattr(p, name) for p in parts]) for name in STATISTICS)
        )

    def at(self, cells: NDArray[np.int64]) -> CellStatistics:
        """Return the statistics of some cells."""
        return CellStatistics(*(getattr(self, name)[cells] for name in STATISTICS))

    def replaced(self, cells: NDArray[np.int64], rows: list[CellStatistics]) -> CellStatistics:
        """Return a copy in which some cells' rows are exchanged."""
        if not rows:
            return self
        new = CellStatistics.join(rows)
        arrays = [getattr(self, name).copy() for name in STATISTICS]
        for name, array in zip(STATISTICS, arrays, strict=True):
            array[cells] = getattr(new, name)
        return CellStatistics(*arrays)


def data_set_specs(
    cells: int, capacity: int, features: int, label: np.dtype[Any] | None
) -> dict[str, ArraySpec]:
    """Return the arrays of a data set of ``cells`` cells with ``capacity`` slots each."""
    f4, i8 = np.dtype("<f4"), np.dtype("<i8")
    row, per_cell = ("cell", "slot"), (cells, features)
    specs = {
        "x": ArraySpec((*row, "feature"), (cells, capacity, features), f4, (1, capacity, features)),
        "unit": ArraySpec(row, (cells, capacity), i8, (1, capacity), -1),
        "live": ArraySpec(("cell",), (cells,), i8, (cells,)),
    }
    for name in STATISTICS[:4]:
        dtype = i8 if name.endswith("count") else f4
        specs[name] = ArraySpec(("cell", "feature"), per_cell, dtype, per_cell)
    if label is not None:
        specs["y"] = ArraySpec(row, (cells, capacity), label, (1, capacity))
    return specs


@dataclass(frozen=True)
class DataSet:
    """An opened data set; cheap to make and to send to workers, holds no row."""

    path: Path
    cells: int
    capacity: int
    feature_names: tuple[str, ...]
    label_name: str | None
    label_dtype: str | None
    attrs: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the group at ``path``; MissingError without it, CorruptError if it is another's."""
        attrs = read_attributes(path, "data set")
        version = attrs.get("schema_version")
        if version != SCHEMA_VERSION:
            raise CorruptError(
                f"{path}: data set of schema version {version}; this program reads {SCHEMA_VERSION}"
            )
        try:
            return cls._of(path, attrs)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"{path}: the attributes lack or garble {error}") from error

    @classmethod
    def _of(cls, path: Path, attrs: dict[str, Any]) -> Self:
        return cls(
            path,
            int(attrs["cells"]),
            int(attrs["capacity"]),
            tuple(attrs["feature_names"]),
            attrs["label_name"],
            attrs["label_dtype"],
            attrs,
        )

    @property
    def sparse(self) -> bool:
        """Whether the rows are kept as ``storage.sparse`` does; ``x`` is not there then."""
        return self.attrs.get("layout") == SPARSE

    @property
    def features(self) -> int:
        return int(self.attrs["features"]) if self.sparse else len(self.feature_names)

    @property
    def entries(self) -> int:
        """Entries that a cell of a sparse data set has room for."""
        return int(self.attrs["entries"])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's features."""
        return 4 * self.features

    def chunk(self, array: str, cell: int) -> Path:
        """The file of one cell's chunk of an array of rows."""
        return chunk_path(self.path, array, cell, *([0, 0] if array == "x" else [0]))

    def read_units(self, cell: int, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Return the unit of every slot of a cell: (capacity,); or of slots first <= i < last alone."""
        files.count_cell(self.path.name, cell)
        if last is None:
            units = np.empty(self.capacity, np.int64)
            files.read_into(self.chunk("unit", cell), units)
            return units
        units = np.empty(last - first, np.int64)
        offset = np.array([first * units.itemsize])
        files.read_at(self.chunk("unit", cell), offset, units[np.newaxis])
        return units

    def read_cell(self, cell: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return x of every slot of a cell (capacity, features), into ``out`` where given."""
        if out is None:
            out = np.empty((self.capacity, self.features), np.float32)
        files.count_cell(self.path.name, cell)
        files.read_into(self.chunk("x", cell), out)
        return out

    def read_slots(self, cell: int, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return x of some slots (ascending) of a cell: (n, features); reads just these rows."""
        out = np.empty((len(slots), self.features), np.float32)
        files.count_cell(self.path.name, cell)
        files.read_at(self.chunk("x", cell), slots * self.row_bytes, out)
        return out

    def read_labels(
        self, cell: int, slots: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64] | None:
        """Return y of every slot of a cell, or of some (ascending); None where there is no label."""
        if self.label_dtype is None:
            return None
        label = np.dtype(self.label_dtype)
        files.count_cell(self.path.name, cell)
        if slots is None:
            whole = np.empty(self.capacity, label)
            files.read_into(self.chunk("y", cell), whole)
            return whole.astype(np.float64)
        some = np.empty(len(slots), label)
        files.read_at(self.chunk("y", cell), slots * label.itemsize, some)
        return some.astype(np.float64)

    def statistics(self) -> CellStatistics:
        """Return the extremes of all cells; of a sparse data set, which keeps none, of no feature."""
        measured = 0 if self.sparse else self.features
        specs = data_set_specs(self.cells, self.capacity, measured, None)
        arrays = [np.empty(specs[name].shape, specs[name].dtype) for name in STATISTICS]
        for name, array in zip(STATISTICS, arrays, strict=True):
            if not array.size:
                continue
            files.read_into(chunk_path(self.path, name, *([0] * array.ndim)), array)
        return CellStatistics(*arrays)

    def write_statistics(self, cells: NDArray[np.int64], rows: CellStatistics) -> None:
        """Overwrite some cells' statistics in place, and sync."""
        for name in STATISTICS:
            array: NDArray[Any] = getattr(rows, name)
            if not array.size:
                continue
            path = chunk_path(self.path, name, *([0] * array.ndim))
            width = array.itemsize * (array.shape[1] if array.ndim == 2 else 1)
            files.write_at(path, cells * width, array)
