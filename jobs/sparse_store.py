"""A sparse logistic model as named arrays of a model version.

``parameters`` (column,), the bias last; ``classes``; ``rows`` at the first fit and now; ``distance``:
the estimated distance to BaseL and the sum of all changes' norms. Provenance is ``coefficient``
(epoch, cell, slot) float32, one chunk an epoch: c of the slot's visit, 0 where no training row was
visited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import NO_PROVENANCE, RegressionSettings
from ..storage.chunks import Index, write_chunk
from ..storage.fence import Fence
from ..storage.schema import ArraySpec, whole
from ..storage.versions import NamedArray, Version, create_version, seal_version
from .regression_arrays import settings_from_json
from .regression_store import open_stored
from .sparse_rows import SparseModelRows
from .workspace import Workspace

COEFFICIENTS = "coefficients"
"""The kind of provenance."""
_ARRAY = "coefficient"


@dataclass(frozen=True, slots=True)
class SparseLineage:
    """What has happened to a model since its first fit."""

    rows_at_fit: int
    rows: int
    """Training rows now."""
    estimate: float = 0.0
    """Of the distance to BaseL."""
    change: float = 0.0
    """Sum of the norms of all updates."""

    @property
    def share_deleted(self) -> float:
        """Share of the training rows that were deleted since the first fit."""
        return 1.0 - self.rows / self.rows_at_fit


@dataclass(frozen=True)
class SparseModel:
    """A stored model, opened; its provenance is left where it is."""

    version: Version
    settings: RegressionSettings
    parameters: NDArray[np.float64]
    """(m + 1,)"""
    classes: tuple[float, ...]
    lineage: SparseLineage

    def coefficients(self, epoch: int) -> NDArray[np.float32]:
        """Return c (slots,) of an epoch, checked."""
        chunk: NDArray[np.float32] = self.version.chunk(_ARRAY, (epoch, 0, 0))
        return chunk.ravel()


def coefficient_bytes(epochs: int, slots: int) -> int:
    """Return the size of the provenance on disk, and in memory during an update, twice."""
    return 4 * epochs * slots


def open_sparse_model(ws: Workspace, name: str) -> tuple[dict[str, Any], SparseModel]:
    """Return a model's ledger row and the opened model, its small arrays checked."""
    row, version = open_stored(ws, name)
    rows, distance = version.read("rows").tolist(), version.read("distance").tolist()
    model = SparseModel(
        version,
        settings_from_json(row["settings"]),
        version.read("parameters"),
        tuple(version.read("classes").tolist()),
        SparseLineage(*rows, *distance),
    )
    return row, model


@dataclass(frozen=True, slots=True)
class Contents:
    """What makes a version."""

    parameters: NDArray[np.float64]
    lineage: SparseLineage
    coefficients: Mapping[int, NDArray[np.float32]]
    """By epoch; empty without provenance."""


def write_sparse_version(
    path: Path, rows: SparseModelRows, contents: Contents, fence: Fence, attrs: Mapping[str, Any]
) -> str:
    """Write a whole version and seal it; return its digest."""
    small = _small_arrays(rows.classes, contents)
    specs = {name: whole(a.dims, a.values) for name, a in small.items()}
    if rows.settings.provenance != NO_PROVENANCE:
        cells, capacity = rows.data_set.cells, rows.data_set.capacity
        shape = (rows.epochs, cells, capacity)
        dims, f4 = ("epoch", "cell", "slot"), np.dtype("<f4")
        specs[_ARRAY] = ArraySpec(dims, shape, f4, (1, cells, capacity))
    create_version(path, specs, attrs)
    digests: dict[str, dict[Index, str]] = {name: {} for name in specs}
    for name, array in small.items():
        index = (0,) * array.values.ndim
        with fence.writing():
            digests[name][index] = write_chunk(path, name, specs[name], index, array.values)
    if _ARRAY in specs:
        spec = specs[_ARRAY]
        for epoch, c in contents.coefficients.items():
            index = (epoch, 0, 0)
            with fence.writing():
                found = write_chunk(path, _ARRAY, spec, index, c.reshape(spec.chunks))
            digests[_ARRAY][index] = found
    return seal_version(path, specs, digests)


def _small_arrays(classes: tuple[float, ...], contents: Contents) -> dict[str, NamedArray]:
    lineage = contents.lineage
    return {
        "parameters": NamedArray(("column",), contents.parameters),
        "classes": NamedArray(("class",), np.array(classes)),
        "rows": NamedArray(("when",), np.array([lineage.rows_at_fit, lineage.rows], np.int64)),
        "distance": NamedArray(("part",), np.array([lineage.estimate, lineage.change])),
    }
