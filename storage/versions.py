"""Model versions: immutable Zarr groups of named arrays, each with a digest.

A new version links every chunk that it shares with its parent and writes only what changes; it is
durable when ``write_version`` returns, and becomes current when the ledger says so.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .errors import CorruptError
from .schema import SCHEMA_VERSION, chunk_path, create_group, open_group, whole
from .space import require


@dataclass(frozen=True, slots=True)
class NamedArray:
    """An array with the names of its dimensions."""

    dims: tuple[str, ...]
    values: NDArray[Any]


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 (hex) of named arrays: names, types, shapes and bytes."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        state.update(array.tobytes())
    return state.hexdigest()


def write_version(
    path: Path,
    arrays: Mapping[str, NamedArray],
    attrs: Mapping[str, Any],
    parent: Path | None = None,
) -> str:
    """Write a version at ``path`` (which must not exist), synced; return its digest."""
    found = digest({name: a.values for name, a in arrays.items()})
    size = sum(a.values.nbytes for a in arrays.values())
    require(path.parent, size, 2 * len(arrays), f"model version {path.name}")
    specs = {name: whole(a.dims, a.values) for name, a in arrays.items()}
    create_group(path, specs, {**attrs, "schema_version": SCHEMA_VERSION, "digest": found})
    for name, array in arrays.items():
        if array.values.size:
            index = [0] * array.values.ndim
            target = chunk_path(path, name, *index)
            source = None if parent is None else chunk_path(parent, name, *index)
            _link_or_write(source, target, array.values)
    files.sync_tree(path)
    files.sync_folder(path.parent)
    return found


def _link_or_write(source: Path | None, target: Path, values: NDArray[Any]) -> None:
    """Link the parent's chunk if it holds the same bytes, else write a new file."""
    data = np.ascontiguousarray(values).tobytes()
    if source is not None and source.is_file() and source.stat().st_size == len(data):
        old = np.empty(len(data), np.uint8)
        files.read_into(source, old)
        if old.tobytes() == data:
            os.link(source, target)
            return
    files.write_new(target, data)


def read_version(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and attributes of a version as they stand on disk, digest unchecked."""
    group = open_group(path, "model version")
    arrays = {}
    for name, array in group.arrays():
        values = np.empty(array.shape, array.dtype)
        if values.size:
            files.read_into(chunk_path(path, name, *([0] * values.ndim)), values)
        arrays[name] = values
    return arrays, dict(group.attrs)


def load_version(path: Path, expected: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a version whose digest is as expected; CorruptError otherwise."""
    arrays, attrs = read_version(path)
    found = digest(arrays)
    if found != expected:
        raise CorruptError(
            f"{path}: the arrays' digest is {found[:16]}..., the ledger has {expected[:16]}...; "
            "restore the folder from a backup or train the model again"
        )
    return arrays, attrs
