"""Chunks of a model version: one file each, whole where it is there, known by its SHA-256.

All functions take the version's folder and the array's spec, so that a worker that handles many
chunks never parses metadata.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .errors import BadInputError, CorruptError
from .schema import ArraySpec, chunk_path

Index = tuple[int, ...]
"""A chunk's place in the grid of its array's chunks."""
READ_BYTES = 4096
"""What a read costs as much as, in bytes copied from the page cache, roughly."""
CURE = "restore the folder from a backup or train the model again"


def chunk_indices(spec: ArraySpec) -> Iterator[Index]:
    """Yield the index of each chunk in ascending order; none for an array of size 0."""
    return itertools.product(*map(range, _grid(spec)))


def chunk_count(spec: ArraySpec) -> int:
    """Return how many chunks an array has."""
    return math.prod(_grid(spec))


def chunk_bytes(spec: ArraySpec) -> int:
    """Return the size in bytes of each of an array's chunk files."""
    return math.prod(spec.chunks) * spec.dtype.itemsize


def chunk_slices(spec: ArraySpec, index: Index) -> tuple[slice, ...]:
    """Return the part of the array that a chunk holds; BadInputError outside the grid."""
    grid = _grid(spec)
    if len(index) != len(grid) or not all(0 <= i < n for i, n in zip(index, grid, strict=True)):
        raise BadInputError(f"no chunk {index}: the array has a grid of {grid} chunks")
    sizes = zip(index, spec.chunks, spec.shape, strict=True)
    return tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in sizes)


def _grid(spec: ArraySpec) -> Index:
    return tuple(-(-n // c) for n, c in zip(spec.shape, spec.chunks, strict=True))


def chunk_digest(spec: ArraySpec, index: Index, values: NDArray[Any]) -> str:
    """Return the digest that a chunk of these values has once it is written."""
    return _sha256(_padded(spec, index, values))


def write_chunk(path: Path, name: str, spec: ArraySpec, index: Index, values: NDArray[Any]) -> str:
    """Write a chunk, whole or not at all, in place of an earlier one; return its digest.

    values: the chunk without padding, of the array's type; BadInputError for another shape or type.
    """
    data = _padded(spec, index, values)
    files.write_whole(chunk_path(path, name, *index), data)
    return _sha256(data)


def link_chunk(parent: Path, path: Path, name: str, index: Index) -> None:
    """Share a chunk with the parent version, in place of an earlier one."""
    files.link_whole(chunk_path(parent, name, *index), chunk_path(path, name, *index))


def has_chunk(path: Path, name: str, index: Index) -> bool:
    """Return whether a chunk is there; then it is whole, even after a crash."""
    return chunk_path(path, name, *index).is_file()


def hash_chunk(path: Path, name: str, spec: ArraySpec, index: Index) -> str:
    """Return the digest of a chunk as it stands on disk, e.g. one from before a crash."""
    return _sha256(_load(path, name, spec, index))


def read_chunk(
    path: Path, name: str, spec: ArraySpec, index: Index, expected: str | None
) -> NDArray[Any]:
    """Return a chunk without its padding; CorruptError without the expected digest.

    expected: hex SHA-256 of the file, None to take what is there.
    """
    part = chunk_slices(spec, index)
    values = _load(path, name, spec, index)
    if expected is not None and (found := _sha256(values)) != expected:
        raise CorruptError(
            f"{chunk_path(path, name, *index)}: the chunk's digest is {found[:16]}..., the version "
            f"has {expected[:16]}...; {CURE}"
        )
    inside = tuple(slice(0, p.stop - p.start) for p in part)
    return np.asarray(values[inside], order="C")


def read_part(path: Path, name: str, spec: ArraySpec, first: int, out: NDArray[Any]) -> None:
    """Fill out with an array's items first <= i < first + len(out) of its first dimension, unchecked.

    For arrays that are cut along that dimension alone; reads just these items' bytes.
    """
    length = spec.chunks[0]
    width = math.prod(spec.shape[1:]) * spec.dtype.itemsize
    rest = (0,) * (len(spec.shape) - 1)
    done = 0
    while done < len(out):
        chunk, inside = divmod(first + done, length)
        count = min(length - inside, len(out) - done)
        source = chunk_path(path, name, chunk, *rest)
        offset = np.array([inside * width], np.int64)
        files.read_at(source, offset, out[np.newaxis, done : done + count])
        done += count


def read_items(
    path: Path, name: str, spec: ArraySpec, items: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Fill out with some items, ascending, of an array's first dimension, unchecked.

    As ``read_part``, for items that lie apart. What lies between small ones is read with them, where
    that costs less than a read each.
    """
    length = spec.chunks[0]
    width = math.prod(spec.shape[1:]) * spec.dtype.itemsize
    rest = (0,) * (len(spec.shape) - 1)
    edges = np.searchsorted(items, np.arange(chunk_count(spec) + 1) * length)
    for chunk, (a, b) in enumerate(itertools.pairwise(edges.tolist())):
        if a == b:
            continue
        begin, end = int(items[a]), int(items[b - 1]) + 1
        if (end - begin) * width <= (b - a) * READ_BYTES:
            between = np.empty((end - begin, *spec.shape[1:]), spec.dtype)
            read_part(path, name, spec, begin, between)
            out[a:b] = between[items[a:b] - begin]
        else:
            offsets = (items[a:b] - chunk * length) * width
            files.read_at(chunk_path(path, name, chunk, *rest), offsets, out[a:b])


def read_array(
    path: Path, name: str, spec: ArraySpec, expected: Mapping[Index, str] | None
) -> NDArray[Any]:
    """Return a whole array, each chunk checked unless ``expected`` is None."""
    if chunk_count(spec) == 1:
        index = (0,) * len(spec.shape)
        return read_chunk(path, name, spec, index, None if expected is None else expected[index])
    values = np.empty(spec.shape, spec.dtype)
    for index in chunk_indices(spec):
        wanted = None if expected is None else expected[index]
        values[chunk_slices(spec, index)] = read_chunk(path, name, spec, index, wanted)
    return values


def _padded(spec: ArraySpec, index: Index, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in C order, filled up with zeros to the chunk's shape."""
    shape = tuple(p.stop - p.start for p in chunk_slices(spec, index))
    if values.shape != shape or values.dtype != spec.dtype:
        raise BadInputError(
            f"chunk {index} must be {spec.dtype} {shape}, not {values.dtype} {values.shape}"
        )
    if shape == spec.chunks:
        return np.asarray(values, order="C")
    full = np.zeros(spec.chunks, spec.dtype)
    full[tuple(slice(0, n) for n in shape)] = values
    return full


def _load(path: Path, name: str, spec: ArraySpec, index: Index) -> NDArray[Any]:
    values = np.empty(spec.chunks, spec.dtype)
    files.read_into(chunk_path(path, name, *index), values)
    return values


def _sha256(values: NDArray[Any]) -> str:
    return hashlib.sha256(values.data).hexdigest()
