"""What a stored k-means model keeps for deletions without a pass: labels and margins on disk.

They are a Zarr group of its own inside the version's folder, ``replay``, since they depend on the
model's history and the model's digest must not. ``labels`` and ``margins`` (step, cell, slot) have a
chunk a cell, and so have ``checks`` (step, cell, block) of both; ``minima`` (step, cell, block) say
which blocks of slots must be looked at; what looks found since a cell was written last stands in
``changed_*``. The ledger has the group's digest in the report of the job that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..pipeline.fixedpoint import Scaling
from ..pipeline.history import label_type
from ..pipeline.lloyd import Tally
from ..pipeline.quantized import Passes
from ..pipeline.stored_replay import STORED_BLOCK, Changes, Kept
from ..storage import files
from ..storage.blockchecks import block_checks
from ..storage.chunks import CURE, Index, chunk_bytes, chunk_count
from ..storage.dataset import DataSet
from ..storage.errors import CorruptError
from ..storage.schema import ArraySpec, chunk_path, whole
from ..storage.versions import NamedArray, Version, open_version
from .workspace import Workspace

FOLDER = "replay"
LABELS, NONE = "labels", "none"
PROVENANCES = (LABELS, NONE)
"""What ``-p provenance`` may be: whether each row's label and margin at every step are kept."""
ROW_ARRAYS = ("labels", "margins")
"""What is kept of rows."""
CHECKS = "checks"
CELL_ARRAYS = (*ROW_ARRAYS, CHECKS)
"""The arrays that have a chunk a cell, of all steps."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How labels and margins are cut."""

    room: int
    """Steps that a cell's chunks have room for."""
    cells: int
    capacity: int
    """Slots of a cell of the data set."""
    n_clusters: int

    @classmethod
    def of(cls, data_set: DataSet, steps: int, n_clusters: int, max_iter: int) -> Layout:
        """Return the layout for so many steps: with room for a power of two, which seldom changes."""
        steps = max(1, steps)
        room = min(max_iter + 1, 1 << (steps - 1).bit_length())
        return cls(room, data_set.cells, data_set.capacity, n_clusters)

    @property
    def blocks(self) -> int:
        """Blocks of a cell."""
        return -(-self.capacity // STORED_BLOCK)

    @property
    def slots(self) -> int:
        """Slots of a cell here: whole blocks."""
        return self.blocks * STORED_BLOCK

    @property
    def label(self) -> np.dtype[Any]:
        """The type of a label."""
        return np.dtype(label_type(self.n_clusters))

    @property
    def row_bytes(self) -> int:
        """Bytes of all chunks that are cells'."""
        return self.cells * sum(chunk_bytes(spec) for spec in self.cell_specs().values())

    def cell_specs(self) -> dict[str, ArraySpec]:
        """Return the arrays that have a chunk a cell."""
        of_slots = ("slot", self.slots)
        items = {
            "labels": (*of_slots, self.label),
            "margins": (*of_slots, np.dtype("<f4")),
            CHECKS: ("block", self.blocks, np.dtype("<u8")),
        }
        return {
            name: ArraySpec(
                ("step", "cell", dim), (self.room, self.cells, size), dtype, (self.room, 1, size)
            )
            for name, (dim, size, dtype) in items.items()
        }

    def minima_spec(self, steps: int) -> ArraySpec:
        """Return the array of lower bounds of so many steps."""
        dims, shape = ("step", "cell", "block"), (steps, self.cells, self.blocks)
        return ArraySpec(dims, shape, np.dtype("<f4"), (1, self.cells, self.blocks))


def small_arrays(kept: Kept) -> dict[str, NamedArray]:
    """Return the arrays that are written whole with every version."""
    ends = np.cumsum([len(c.places) for c in kept.changes], dtype=np.int64)
    found = {
        "credits": NamedArray(("step", "cluster"), kept.credits),
        "drifts": NamedArray(("step",), kept.drifts),
        "changed_ends": NamedArray(("step",), ends),
    }
    for name in ("places", "labels", "margins"):
        values = np.concatenate([getattr(c, name) for c in kept.changes])
        found[f"changed_{name}"] = NamedArray(("entry",), values)
    return found


def specs_of(layout: Layout, arrays: Mapping[str, NamedArray]) -> dict[str, ArraySpec]:
    """Return the specs of the whole group, from its small arrays."""
    steps = len(arrays["drifts"].values)
    small = {name: whole(a.dims, a.values) for name, a in arrays.items()}
    return {**layout.cell_specs(), "minima": layout.minima_spec(steps), **small}


def all_bytes(specs: Mapping[str, ArraySpec]) -> int:
    """Return the size of all chunks."""
    return sum(chunk_count(spec) * chunk_bytes(spec) for spec in specs.values())


def row_index(cell: int) -> Index:
    """The index of a cell's chunk of labels, margins or checks."""
    return (0, cell, 0)


@dataclass(frozen=True)
class StoredReplay:
    """An opened group: small arrays read and checked, the others where they are."""

    version: Version
    layout: Layout
    kept: Kept

    @property
    def steps(self) -> int:
        return len(self.kept.drifts)

    def minima(self, step: int) -> NDArray[np.float32]:
        """Return a step's lower bounds (blocks of all cells,), checked."""
        return self.version.chunk("minima", (step, 0, 0)).reshape(-1)

    def chunk(self, name: str, cell: int) -> Path:
        """The file of a cell's labels, margins or checks."""
        return chunk_path(self.version.path, name, *row_index(cell))


def replay_digest(ws: Workspace, row: Mapping[str, Any]) -> str | None:
    """Return the digest of a model's group that the ledger has; None where nothing is kept.

    row: the model's, of the ledger.
    """
    model, number = row["name"], row["version"]
    query = "SELECT job FROM versions WHERE model = ? AND number = ?"
    report = ws.ledger.job(ws.ledger.value(query, model, number))["report"]
    if "models" in report:
        report = next(m for m in report["models"] if m["model"] == model)
    digest: str | None = report.get("provenance", {}).get("digest")
    return digest


def open_replay(ws: Workspace, row: Mapping[str, Any], data_set: DataSet) -> StoredReplay | None:
    """Open what a model keeps for replay; None where it keeps nothing. CorruptError for damage.

    What has no checks, from before there were any, is not gone on with: a deletion then goes by
    passes, and keeps labels and margins anew.
    """
    digest = replay_digest(ws, row)
    if digest is None:
        return None
    version = open_version(ws.root / row["folder"] / FOLDER, digest)
    if CHECKS not in version.specs:
        return None
    room, cells, _ = version.specs["labels"].shape
    credits = version.read("credits")
    layout = Layout(room, cells, data_set.capacity, credits.shape[1])
    return StoredReplay(version, layout, _kept(version, credits))


def _kept(version: Version, credits: NDArray[np.float64]) -> Kept:
    columns = [version.read(f"changed_{name}") for name in ("places", "labels", "margins")]
    edges = [0, *version.read("changed_ends").tolist()]
    changes = tuple(Changes(*(c[a:b] for c in columns)) for a, b in pairwise(edges))
    return Kept(credits, version.read("drifts"), changes)


class StoredRows:
    """The rows of a stored data set and what is kept of them: implements ``stored_replay.Rows``.

    Blocks and rows are read where they stand. Digests are of whole chunks; each block that is read
    is held against a check of its own, and rows have none.
    """

    def __init__(
        self, stored: StoredReplay, data_set: DataSet, scaling: Scaling, passes: Passes
    ) -> None:
        self._stored = stored
        self._data_set = data_set
        self._scaling = scaling
        self._passes = passes
        cells = range(stored.layout.cells)
        self._paths = {name: [stored.chunk(name, c) for c in cells] for name in CELL_ARRAYS}
        self._paths["x"] = [data_set.chunk("x", c) for c in cells]

    def minima(self, step: int) -> NDArray[np.float32]:
        return self._stored.minima(step)

    def blocks(
        self, step: int, blocks: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        layout = self._stored.layout
        labels = np.empty((len(blocks), STORED_BLOCK), layout.label)
        margins = np.empty((len(blocks), STORED_BLOCK), np.float32)
        checks = np.empty((len(blocks), 1), np.uint64)
        cells, block = np.divmod(blocks, layout.blocks)
        first = step * layout.blocks + block
        arrays: tuple[NDArray[Any], ...] = (labels, margins, checks)
        for cell, part in by_cell(cells):
            for name, values in zip(CELL_ARRAYS, arrays, strict=True):
                offsets = first[part] * values[0].nbytes
                files.read_at(self._paths[name][cell], offsets, values[part])
        wrong = block_checks(labels, margins) != checks[:, 0]
        if wrong.any():
            self._refuse(step, int(blocks[wrong][0]))
        return labels, margins

    def _refuse(self, step: int, block: int) -> NoReturn:
        """CorruptError: compiled code would take labels as addresses, and margins as the truth."""
        cell = block // self._stored.layout.blocks
        named = " or ".join(str(self._paths[name][cell]) for name in CELL_ARRAYS)
        raise CorruptError(f"step {step}: {named} holds what was never written there; {CURE}")

    def grid(self, places: NDArray[np.int64]) -> NDArray[np.int32]:
        data = self._data_set
        x = np.empty((len(places), data.features), np.float32)
        cells, slots = np.divmod(places, self._stored.layout.slots)
        for cell, part in by_cell(cells):
            files.count_cell(data.path.name, cell)
            files.read_at(self._paths["x"][cell], slots[part] * data.row_bytes, x[part])
        return self._scaling.fixed(x)

    def assign(self, scaling: Scaling, centroids: NDArray[np.int64]) -> Tally:
        return self._passes.assign(scaling, centroids, np.ones(len(centroids), np.bool_))


def by_cell(cells: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield each cell of an ascending array and the part that it has of it."""
    cuts = np.flatnonzero(np.diff(cells)) + 1
    edges: Sequence[int] = [0, *cuts.tolist(), len(cells)]
    for a, b in pairwise(edges):
        if a < b:
            yield int(cells[a]), slice(a, b)
