"""Model versions: immutable Zarr groups of named arrays, each with a digest.

A new version links every chunk that it shares with its parent and writes only what changes: chunk
by chunk with ``create_version``, the functions of ``chunks`` and ``seal_version``, or as whole
arrays with ``write_version``. It is durable when it is sealed, and becomes current when the ledger
says so. The digests of its chunks stand in its array ``digests``; the ledger has their root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .chunks import (
    CURE,
    Index,
    chunk_bytes,
    chunk_count,
    chunk_digest,
    chunk_indices,
    link_chunk,
    read_array,
    read_chunk,
    write_chunk,
)
from .digests import (
    DIGESTS,
    ChunkDigests,
    digests_spec,
    merkle_root,
    read_digests,
    write_digests,
)
from .errors import BadInputError, CorruptError, ExistsError, MissingError
from .schema import SCHEMA_VERSION, ArraySpec, chunk_path, create_group, open_group, whole
from .space import require

if TYPE_CHECKING:
    import zarr


@dataclass(frozen=True, slots=True)
class NamedArray:
    """An array with the names of its dimensions."""

    dims: tuple[str, ...]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Version:
    """An opened version: what is needed to read chunks and to check them, anywhere."""

    path: Path
    specs: Mapping[str, ArraySpec]
    """Its arrays, without ``digests``."""
    attrs: Mapping[str, Any]
    digests: ChunkDigests

    def chunk(self, name: str, index: Index) -> NDArray[Any]:
        """Return a chunk without its padding; CorruptError unless it is what was written."""
        spec = self._spec(name)
        return read_chunk(self.path, name, spec, index, self.digests[name].get(index, ""))

    def read(self, name: str) -> NDArray[Any]:
        """Return a whole array; CorruptError unless each chunk is what was written."""
        return read_array(self.path, name, self._spec(name), self.digests[name])

    def _spec(self, name: str) -> ArraySpec:
        if name not in self.specs:
            raise MissingError(f"{self.path}: the version has no array {name}")
        return self.specs[name]


def create_version(
    path: Path,
    specs: Mapping[str, ArraySpec],
    attrs: Mapping[str, Any],
    *,
    needed: int | None = None,
) -> None:
    """Create a version without chunks at ``path``, which must not exist; whole or not at all.

    needed: bytes of chunks that will be written and not linked; None for all. Raises NoSpaceError
    where they don't fit.
    """
    if DIGESTS in specs:
        raise BadInputError(f"an array can't be called {DIGESTS}: that name is the version's own")
    if path.exists():
        raise ExistsError(f"{path} is there already")
    table = digests_spec(specs)
    if needed is None:
        needed = sum(chunk_count(s) * chunk_bytes(s) for s in specs.values())
    count = table.shape[0] + len(specs) + 3
    require(
        path.parent,
        needed + chunk_bytes(table),
        count,
        f"model version {path.parent.name}/{path.name}",
    )
    staging = path.with_name(f"{path.name}.partial")
    files.sweep(staging)
    create_group(staging, {**specs, DIGESTS: table}, {**attrs, "schema_version": SCHEMA_VERSION})
    files.sync_tree(staging)
    staging.rename(path)
    files.sync_folder(path.parent)


def seal_version(path: Path, specs: Mapping[str, ArraySpec], digests: ChunkDigests) -> str:
    """Enter the chunks' digests, make the version durable and return its digest.

    Every chunk must be there and have a digest: MissingError, CorruptError for one of another size
    and BadInputError otherwise. Safe to repeat.
    """
    found = merkle_root(specs, digests)
    stored = _specs(open_group(path, "model version"))
    if _layout(stored) != _layout({**specs, DIGESTS: digests_spec(specs)}):
        raise BadInputError(f"{path} was created with other arrays than it is sealed with")
    for name, spec in specs.items():
        for index in chunk_indices(spec):
            files.check_size(chunk_path(path, name, *index), chunk_bytes(spec))
    files.sweep_partials(path)
    write_digests(path, specs, digests)
    _enter_digest(path, found)
    files.sync_tree(path)
    files.sync_folder(path.parent)
    return found


def _layout(specs: Mapping[str, ArraySpec]) -> dict[str, tuple[object, ...]]:
    """What must agree between specs; the fill value never shows, as no chunk may be missing."""
    return {n: (s.dims, s.shape, s.dtype, s.chunks) for n, s in specs.items()}


def _enter_digest(path: Path, digest: str) -> None:
    """Write the digest to the group's attributes."""
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["digest"] = digest
    files.write_whole(path / "zarr.json", json.dumps(metadata, indent=2).encode())


def open_version(path: Path, expected: str) -> Version:
    """Open a version by its metadata and its array ``digests``, without reading other chunks.

    Raises CorruptError unless their root is ``expected``, the ledger's digest of the version.
    """
    group = open_group(path, "model version")
    _check_copies(path)
    specs = _specs(group)
    table, wanted = specs.pop(DIGESTS, None), digests_spec(specs).shape
    if table is None or table.shape != wanted:
        found = "missing" if table is None else f"of shape {table.shape}"
        raise CorruptError(f"{path}: the array {DIGESTS} is {found}, {wanted} expected; {CURE}")
    digests = read_digests(path, specs)
    found = merkle_root(specs, digests)
    if found != expected:
        raise CorruptError(
            f"{path}: the arrays' digest is {found[:16]}..., the ledger has {expected[:16]}...; "
            f"{CURE}"
        )
    return Version(path, specs, dict(group.attrs), digests)


def _specs(group: zarr.Group) -> dict[str, ArraySpec]:
    """The specs of a stored group's arrays."""
    return {
        name: ArraySpec(
            getattr(array.metadata, "dimension_names", None) or (),
            array.shape,
            array.dtype,
            array.chunks,
            np.asarray(array.fill_value).item(),
        )
        for name, array in group.arrays()
    }


def _check_copies(path: Path) -> None:
    """Compare the two places in which an array's metadata stands: tools may read either."""
    try:
        root = json.loads((path / "zarr.json").read_text())
        for name, copy in root["consolidated_metadata"]["metadata"].items():
            if json.loads((path / name / "zarr.json").read_text()) != copy:
                raise CorruptError(f"{path}: two copies of {name}'s zarr.json differ; {CURE}")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CorruptError(f"{path}: a zarr.json is damaged ({error}); {CURE}") from error


def check_version(version: Version) -> None:
    """Read every chunk, one at a time; CorruptError for the first that is not what was written."""
    for name, indices in version.digests.items():
        for index in indices:
            version.chunk(name, index)


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest of a version of these arrays with one chunk each, as written to disk.

    The names of dimensions are no part of it.
    """
    specs = {name: whole((), values) for name, values in arrays.items()}
    return merkle_root(
        specs,
        {n: {i: chunk_digest(s, i, arrays[n]) for i in chunk_indices(s)} for n, s in specs.items()},
    )


def write_version(
    path: Path,
    arrays: Mapping[str, NamedArray],
    attrs: Mapping[str, Any],
    parent: Path | None = None,
) -> str:
    """Write a version of whole arrays at ``path`` (which must not exist), synced; return its digest."""
    specs = {name: whole(a.dims, a.values) for name, a in arrays.items()}
    create_version(path, specs, attrs)
    digests: dict[str, dict[Index, str]] = {}
    for name, spec in specs.items():
        values = arrays[name].values
        for i in chunk_indices(spec):
            digests[name] = {i: _link_or_write(parent, path, name, spec, i, values)}
    return seal_version(path, specs, digests)


def _link_or_write(
    parent: Path | None, path: Path, name: str, spec: ArraySpec, index: Index, values: NDArray[Any]
) -> str:
    """Link the parent's chunk if it holds the same bytes, else write a new one; return its digest."""
    if parent is not None:
        source = chunk_path(parent, name, *index)
        same_size = source.is_file() and source.stat().st_size == chunk_bytes(spec)
        if same_size and files.read_whole(source) == values.tobytes():
            link_chunk(parent, path, name, index)
            return chunk_digest(spec, index, values)
    return write_chunk(path, name, spec, index, values)


def read_version(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and attributes of a version as they stand on disk, digest unchecked."""
    group = open_group(path, "model version")
    specs = _specs(group)
    arrays = {n: read_array(path, n, s, None) for n, s in specs.items() if n != DIGESTS}
    return arrays, dict(group.attrs)


def load_version(path: Path, expected: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return all of a version whose digest is as expected; CorruptError otherwise."""
    version = open_version(path, expected)
    return {name: version.read(name) for name in version.specs}, dict(version.attrs)
