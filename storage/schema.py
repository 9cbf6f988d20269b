"""The Zarr v3 layout of data sets and model versions, as any Zarr tool reads it.

Arrays are uncompressed and little-endian, so a chunk file is raw values. Chunk keys use the
separator ".", so that all chunks of an array lie in one folder, which is synced once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from .errors import CorruptError, MissingError

SCHEMA_VERSION = 1
"""Version of the layout of data sets, model versions and the ledger."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One named array of a group."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    fill_value: int | float = 0


def whole(dims: Sequence[str], array: NDArray[Any]) -> ArraySpec:
    """Return the spec of an array that is kept as one chunk."""
    chunks = tuple(max(1, n) for n in array.shape)
    return ArraySpec(tuple(dims), array.shape, array.dtype, chunks)


def create_group(path: Path, specs: Mapping[str, ArraySpec], attrs: Mapping[str, Any]) -> None:
    """Create a group with the metadata of all its arrays, but without chunks."""
    group = zarr.open_group(str(path), mode="w-", zarr_format=3, attributes=dict(attrs))
    for name, spec in specs.items():
        group.create_array(
            name,
            shape=spec.shape,
            chunks=spec.chunks,
            dtype=spec.dtype,
            fill_value=spec.fill_value,
            compressors=None,
            filters=None,
            dimension_names=spec.dims,
            chunk_key_encoding={"name": "default", "separator": "."},
        )
    with warnings.catch_warnings():
        # Consolidated metadata is not in the Zarr 3 specification yet, but xarray warns without.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path))


def open_group(path: Path, what: str) -> zarr.Group:
    """Open an existing group; MissingError without it, CorruptError where it can't be read."""
    if not (path / "zarr.json").is_file():
        raise MissingError(f"{path}: there is no {what} here")
    try:
        return zarr.open_group(str(path), mode="r")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path}: the {what}'s zarr.json can't be read ({error})") from error


def chunk_path(group: Path, array: str, *index: int) -> Path:
    """Return the file of one chunk."""
    return group.joinpath(array, ".".join(["c", *map(str, index)]))
