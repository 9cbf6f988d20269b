"""Writing and opening the versions of a regression model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import RegressionSettings
from ..storage.chunks import Index, write_chunk
from ..storage.schema import ArraySpec
from ..storage.versions import Version, open_version, seal_version
from .regression_arrays import (
    Digests,
    Lineage,
    RegressionModel,
    grouped,
    read_model,
    settings_from_json,
    settings_to_json,
    small_arrays,
)
from .regression_rows import RegressionRows
from .train_regression import Target
from .workspace import Workspace


def version_attrs(
    model: str,
    number: int,
    algorithm: str,
    settings: RegressionSettings,
    data_row: Mapping[str, Any],
    parent: str | None = None,
    method: str = "fit",
) -> dict[str, Any]:
    """Return a version's attributes; data_row: the data set's in the ledger."""
    return {
        "model": model,
        "version": number,
        "algorithm": algorithm,
        "settings": settings_to_json(settings),
        "data_set": data_row["name"],
        "generation": data_row["generation"],
        "parent": parent,
        "method": method,
    }


def seal(
    target: Target,
    specs: Mapping[str, ArraySpec],
    digests: Digests,
    w: NDArray[np.float64],
    rows: RegressionRows,
    lineage: Lineage,
) -> str:
    """Write the small arrays and make the version durable; return its digest."""
    for name, array in small_arrays(w, rows.design, rows.classes, lineage).items():
        index = (0,) * array.values.ndim
        if array.values.size:
            found = write_chunk(target.path, name, specs[name], index, array.values)
            digests[name, index] = found
    by_array: dict[str, dict[Index, str]] = {name: {} for name in specs}
    by_array |= grouped(digests)
    return seal_version(target.path, specs, by_array)


def folder_size(path: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def open_stored(ws: Workspace, name: str) -> tuple[dict[str, Any], Version]:
    """Return a model's ledger row and its version, opened."""
    row = ws.ledger.model(name)
    return row, open_version(ws.root / row["folder"], row["digest"])


def open_model(ws: Workspace, name: str) -> tuple[dict[str, Any], RegressionModel]:
    """Return a model's ledger row and the opened model, its small arrays checked."""
    row, version = open_stored(ws, name)
    return row, read_model(version, settings_from_json(row["settings"]))
