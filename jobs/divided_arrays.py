"""A DC-k-means tree as named arrays of a model version, and back.

The root's arrays are those of k-means (``kmeans_arrays``), since its centroids are the model. The
leaves' have the same names with ``leaf_`` before them and a leaf dimension, filled up with zeros
to the same number of steps; those of nodes in between, if there are any, ``node_`` and a node
dimension. ``pooled_centroids`` and ``pooled_sizes`` are what the leaves give to the nodes above.
The leaves' steps are cut into chunks of some leaves, so that a deletion rewrites just those that it
touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.arrays import unit_extent
from ..pipeline.divided import DividedSettings, Pooled, Upper, as_model
from ..pipeline.fixedpoint import ROW_GRID, Extent
from ..pipeline.quantized import Record, Settings
from ..pipeline.validation import ROOTS
from ..storage.chunks import (
    Index,
    chunk_count,
    chunk_digest,
    chunk_indices,
    chunk_slices,
    link_chunk,
    write_chunk,
)
from ..storage.digests import merkle_root
from ..storage.schema import ArraySpec, whole
from ..storage.versions import NamedArray, Version, create_version, seal_version
from .kmeans_arrays import from_arrays, to_arrays
from .train_divided import StoredTree

CHUNK_BYTES = 1 << 18
"""Leaves share chunks of at most about this size."""
LEAF, NODE = "leaf", "node"
PER_STEP = (
    "analog_centroids",
    "quantized_centroids",
    "present",
    "sizes",
    "sums",
    "loss",
    "reseeds",
)
"""What is kept of every step of a leaf, or of a node in between."""
Arrays = Mapping[str, NDArray[Any]]


class Tree:
    """An opened version: the nodes are read, the leaves' records when they are asked for."""

    def __init__(self, version: Version, settings: DividedSettings) -> None:
        self.version = version
        self.settings = settings
        self.steps: NDArray[np.int64] = version.read("leaf_steps")
        """(leaf,) how many steps each has, the seeding included; 0 without rows."""
        self.square_sums: NDArray[np.int64] = version.read("leaf_square_sum")
        """(leaf, limb)"""
        root = _read_root(version, settings.plain)
        pools = _read_pools(version)
        self.upper = Upper(pools, ((root,), *_read_nodes(version, settings)))
        bounds = [version.read(n) for n in ("lower", "upper", "lower_count", "upper_count")]
        self.extent = Extent(sum(int(p.sizes.sum()) for p in pools), *bounds)
        self._group: tuple[int, dict[str, NDArray[Any]]] | None = None

    @property
    def model(self) -> Record:
        """The root, in the features' own units."""
        return as_model(self.extent, self.upper.root)

    def leaf(self, leaf: int) -> Record:
        """Read a leaf's record, its chunks checked."""
        together = self.version.specs["leaf_loss"].chunks[0]
        group, place = divmod(leaf, together)
        if self._group is None or self._group[0] != group:
            chunks = {n: self.version.chunk(f"leaf_{n}", self._index(n, group)) for n in PER_STEP}
            self._group = group, chunks
        here = {name: chunk[place] for name, chunk in self._group[1].items()}
        return _node(here, int(self.steps[leaf]), self.square_sums[leaf], self.settings.plain)

    def _index(self, name: str, group: int) -> Index:
        return (group, *[0] * (len(self.version.specs[f"leaf_{name}"].shape) - 1))


def _read_root(version: Version, settings: Settings) -> Record:
    arrays = {name: version.read(name) for name in PER_STEP}
    return _node(arrays, len(arrays["loss"]), version.read("square_sum"), settings)


def _read_nodes(version: Version, settings: DividedSettings) -> list[tuple[Record, ...]]:
    """The nodes between the root and the leaves, a tuple a depth."""
    widths = settings.level_sizes[1:]
    if not widths:
        return []
    arrays = {name: version.read(f"node_{name}") for name in PER_STEP}
    steps, square_sums = version.read("node_steps"), version.read("node_square_sum")
    nodes = [
        _node({n: a[i] for n, a in arrays.items()}, int(steps[i]), square_sums[i], settings.plain)
        for i in range(len(steps))
    ]
    edges = np.cumsum([0, *widths]).tolist()
    return [tuple(nodes[a:b]) for a, b in pairwise(edges)]


def _node(arrays: Arrays, steps: int, square_sum: NDArray[np.int64], settings: Settings) -> Record:
    """A record on the unit cube from its arrays by step, of which the first ``steps`` count."""
    found = {name: array[:steps] for name, array in arrays.items()}
    cube = unit_extent(0, arrays["sums"].shape[-1])
    found |= {n: getattr(cube, n) for n in ("lower", "upper", "lower_count", "upper_count")}
    found["phases"] = np.zeros((steps, arrays["sums"].shape[-1]))
    found["square_sum"] = square_sum
    return from_arrays(found, settings)


def _read_pools(version: Version) -> tuple[Pooled, ...]:
    centroids, sizes = version.read("pooled_centroids"), version.read("pooled_sizes")
    pools = []
    for leaf, size in enumerate(sizes):
        index = np.flatnonzero(size >= 0)
        rows = np.rint(centroids[leaf, index] * float(ROW_GRID)).astype(np.int32)
        pools.append(Pooled(rows, index, size[index]))
    return tuple(pools)


def stored_arrays(tree: StoredTree, settings: DividedSettings) -> dict[str, NamedArray]:
    """Return all arrays of a tree whose leaves were all computed."""
    records = [tree.records[leaf] for leaf in range(settings.n_leaves)]
    steps, square_sums = _tables(records, settings.plain)
    small = _small_arrays(tree, steps, square_sums, settings)
    return {**small, **_stacked(LEAF, records, _room(steps, settings.plain), settings.plain)}


def _tables(
    records: Sequence[Record], settings: Settings
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of steps (n,) and square sums (n, limb) of records."""
    sums = [to_arrays(r, settings)["square_sum"].values for r in records]
    return np.array([len(r.steps) for r in records], np.int64), np.array(sums, np.int64)


def _room(steps: NDArray[np.int64], settings: Settings) -> int:
    """For how many steps there is room: a power of two, which seldom changes, or all there can be."""
    most = max(1, int(steps.max(initial=0)))
    return min(settings.max_iter + 1, 1 << (most - 1).bit_length())


def _small_arrays(
    tree: StoredTree,
    steps: NDArray[np.int64],
    square_sums: NDArray[np.int64],
    settings: DividedSettings,
) -> dict[str, NamedArray]:
    """All arrays but the leaves' steps."""
    upper, plain = tree.upper, settings.plain
    arrays = to_arrays(tree.model, plain)
    w, k, d = settings.n_leaves, plain.n_clusters, len(tree.extent.lower)
    centroids, sizes = np.zeros((w, k, d), np.float32), np.full((w, k), -1, np.int64)
    for leaf, pool in enumerate(upper.leaves):
        centroids[leaf, pool.ordinals] = pool.rows / ROW_GRID
        sizes[leaf, pool.ordinals] = pool.sizes
    arrays["pooled_centroids"] = NamedArray((LEAF, "cluster", "feature"), centroids)
    arrays["pooled_sizes"] = NamedArray((LEAF, "cluster"), sizes)
    arrays["leaf_steps"] = NamedArray((LEAF,), steps)
    arrays["leaf_square_sum"] = NamedArray((LEAF, "limb"), square_sums)
    nodes = [record for level in upper.levels[1:] for record in level]
    if nodes:
        counts, sums = _tables(nodes, plain)
        arrays |= _stacked(NODE, nodes, _room(counts, plain), plain)
        arrays["node_steps"] = NamedArray((NODE,), counts)
        arrays["node_square_sum"] = NamedArray((NODE, "limb"), sums)
    return arrays


def _stacked(
    kind: str, records: Sequence[Record], length: int, settings: Settings
) -> dict[str, NamedArray]:
    """The steps of records, one array a name, filled up with zeros to ``length`` steps."""
    parts = [to_arrays(r, settings) for r in records]
    found = {}
    for name in PER_STEP:
        dims, first = parts[0][name].dims, parts[0][name].values
        values = np.zeros((len(parts), length, *first.shape[1:]), first.dtype)
        for row, part in zip(values, parts, strict=True):
            row[: len(part[name].values)] = part[name].values
        found[f"{kind}_{name}"] = NamedArray((kind, *dims), values)
    return found


def _together(n_leaves: int, length: int, clusters: int, features: int) -> int:
    """How many leaves share a chunk."""
    return max(1, min(n_leaves, CHUNK_BYTES // (8 * length * clusters * features)))


def specs_of(arrays: Mapping[str, NamedArray]) -> dict[str, ArraySpec]:
    """Return how arrays are cut into chunks: the leaves' steps by leaf, others not at all."""
    specs = {name: whole(a.dims, a.values) for name, a in arrays.items()}
    analog = specs.get("leaf_analog_centroids")
    if analog is None or len(analog.shape) != 4:
        return specs
    for name in specs.keys() & {f"leaf_{n}" for n in PER_STEP}:
        spec = specs[name]
        chunks = (_together(*analog.shape), *spec.chunks[1:])
        specs[name] = ArraySpec(spec.dims, spec.shape, spec.dtype, chunks)
    return specs


def digest_of(found: Arrays) -> str:
    """Return the digest of a version of these arrays, as written to disk."""
    arrays = {name: NamedArray(("",) * values.ndim, values) for name, values in found.items()}
    specs = specs_of(arrays)
    return merkle_root(
        specs,
        {
            name: {
                i: chunk_digest(spec, i, found[name][chunk_slices(spec, i)])
                for i in chunk_indices(spec)
            }
            for name, spec in specs.items()
        },
    )


def write_tree(
    path: Path,
    attrs: Mapping[str, Any],
    tree: StoredTree,
    settings: DividedSettings,
    before: Tree | None = None,
) -> str:
    """Write a version of the tree at ``path`` (which must not exist), synced; return its digest.

    before: the parent version, which has the leaves that were not computed; its chunks are linked
    where none of their leaves was, once they are checked.
    """
    steps, square_sums = _updated_tables(tree, settings, before)
    small = _small_arrays(tree, steps, square_sums, settings)
    leaves = _leaf_specs(settings, _room(steps, settings.plain), len(tree.extent.lower))
    specs = {name: whole(a.dims, a.values) for name, a in small.items()} | leaves
    create_version(path, specs, attrs)
    digests: dict[str, dict[Index, str]] = {name: {} for name in specs}
    for name, array in small.items():
        for i in chunk_indices(specs[name]):
            digests[name][i] = write_chunk(path, name, specs[name], i, array.values)
    for group in range(chunk_count(leaves["leaf_loss"])):
        for name, i, digest in _write_group(path, leaves, group, tree, settings, before):
            digests[name][i] = digest
    return seal_version(path, specs, digests)


def _updated_tables(
    tree: StoredTree, settings: DividedSettings, before: Tree | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The leaves' numbers of steps and square sums: those before, but for computed leaves."""
    w = settings.n_leaves
    steps, square_sums = np.zeros(w, np.int64), np.zeros((w, 2), np.int64)
    if before is not None:
        steps, square_sums = before.steps.copy(), before.square_sums.copy()
    computed = list(tree.records)
    if computed:
        found = _tables(list(tree.records.values()), settings.plain)
        steps[computed], square_sums[computed] = found
    return steps, square_sums


def _leaf_specs(settings: DividedSettings, length: int, features: int) -> dict[str, ArraySpec]:
    """How the leaves' steps are stored where there is room for so many."""
    w, k = settings.n_leaves, settings.plain.n_clusters
    none = Record(unit_extent(0, features), 0, ())
    specs = {}
    for name, array in _stacked(LEAF, [none], length, settings.plain).items():
        shape = array.values.shape[1:]
        chunks = (_together(w, length, k, features), *shape)
        specs[name] = ArraySpec(array.dims, (w, *shape), array.values.dtype, chunks)
    return specs


def _write_group(
    path: Path,
    specs: Mapping[str, ArraySpec],
    group: int,
    tree: StoredTree,
    settings: DividedSettings,
    before: Tree | None,
) -> list[tuple[str, Index, str]]:
    """Write or link a chunk of each of the leaves' arrays; return their digests."""
    indices = {name: (group, *[0] * (len(s.shape) - 1)) for name, s in specs.items()}
    loss = specs["leaf_loss"]
    part = chunk_slices(loss, indices["leaf_loss"])[0]
    leaves = range(part.start, part.stop)
    if before is not None and not tree.records.keys() & set(leaves):
        old = before.version
        if old.specs["leaf_loss"].chunks == loss.chunks:
            for name, i in indices.items():
                old.chunk(name, i)
                link_chunk(old.path, path, name, i)
            return [(name, i, old.digests[name][i]) for name, i in indices.items()]
    records = [_record(leaf, tree, before) for leaf in leaves]
    arrays = _stacked(LEAF, records, loss.shape[1], settings.plain)
    return [
        (name, i, write_chunk(path, name, specs[name], i, arrays[name].values))
        for name, i in indices.items()
    ]


def _record(leaf: int, tree: StoredTree, before: Tree | None) -> Record:
    """A leaf's record: computed, or that of the parent version."""
    if leaf in tree.records or before is None:
        return tree.records[leaf]
    return before.leaf(leaf)


def settings_to_json(settings: DividedSettings) -> dict[str, Any]:
    """Return resolved settings as JSON values."""
    plain = settings.plain
    return {
        "n_clusters": plain.n_clusters,
        "n_leaves": settings.n_leaves,
        "branching": list(settings.branching),
        "root": ROOTS[settings.weighted],
        "max_iter": plain.max_iter,
        "random_state": plain.random_state,
        "bounds": None if plain.bounds is None else list(plain.bounds),
    }


def settings_from_json(found: Mapping[str, Any]) -> DividedSettings:
    """Return the settings that ``settings_to_json`` wrote."""
    bounds = found["bounds"]
    plain = Settings(
        found["n_clusters"],
        1,
        Fraction(0),
        found["max_iter"],
        found["random_state"],
        None if bounds is None else (bounds[0], bounds[1]),
    )
    return DividedSettings(plain, tuple(found["branching"]), found["root"] == ROOTS[True])
