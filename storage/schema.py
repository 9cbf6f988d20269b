"""The Zarr v3 layout of data sets and model versions, as any Zarr tool reads it.

Arrays are uncompressed and little-endian, so a chunk file is raw values. Chunk keys use the
separator ".", so that all chunks of an array lie in one folder, which is synced once.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import CorruptError, MissingError

if TYPE_CHECKING:
    import zarr

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
    import zarr

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


def read_attributes(path: Path, what: str) -> dict[str, Any]:
    """Return a group's attributes, from its zarr.json alone: Zarr itself takes long to import.

    MissingError without the group, CorruptError where it can't be read or is none.
    """
    file = path / "zarr.json"
    if not file.is_file():
        raise MissingError(f"{path}: there is no {what} here")
    try:
        found = json.loads(file.read_bytes())
        if (found["zarr_format"], found["node_type"]) != (3, "group"):
            raise ValueError("it is not that of a group of Zarr version 3")
        return dict(found["attributes"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path}: the {what}'s zarr.json can't be read ({error})") from error


def open_group(path: Path, what: str) -> zarr.Group:
    """Open an existing group; MissingError without it, CorruptError where it can't be read."""
    import zarr

    if not (path / "zarr.json").is_file():
        raise MissingError(f"{path}: there is no {what} here")
    try:
        return zarr.open_group(str(path), mode="r")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path}: the {what}'s zarr.json can't be read ({error})") from error


def chunk_path(group: Path, array: str, *index: int) -> Path:
    """Return the file of one chunk."""
    return group.joinpath(array, ".".join(["c", *map(str, index)]))
