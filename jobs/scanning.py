"""``expunge scan``: are the bytes of these rows anywhere below the workspace?

Rows are searched in every encoding that the program writes. The ledger's keyed fingerprints tell
which of them were erased. Bytes of an erased row's live twin (another row with the same values) are
told apart by address: they stand at a live slot of a data set; and what models derive from the
twin can't be told from what they derived from the erased row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..pipeline.fixedpoint import CENTROID_GRID, ROW_GRID, Scaling
from ..storage.cells import fingerprints, pseudonym
from ..storage.dataset import DataSet
from ..storage.errors import BadInputError
from ..storage.importers import open_features
from ..storage.sentinel import SHORTEST_PATTERN, PatternSet, ScanReport, scan_tree
from ..storage.sparse import ENTRY_ARRAYS, SparseRows, sparse_fingerprints
from ..storage.versions import read_version
from . import divided_models, kmeans_models
from .errors import UsageError
from .request_states import DELETED, marks
from .sparse_scanning import (
    LiveEntries,
    read_sparse_rows,
    short_rows,
    shown_short,
    sparse_patterns,
)
from .workspace import Workspace

CORNER_FEATURES = 32
"""Zeros and ones of so many features or more are told from others."""
KMEANS = (*kmeans_models.ALGORITHMS, *divided_models.ALGORITHMS)
_CHUNK = re.compile(r"c\.(\d+)(?:\.0)+")
Rows: TypeAlias = NDArray[np.float32] | SparseRows


def scan(
    ws: Workspace,
    file: Path,
    data: str | None,
    format: str,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Search every byte of the workspace for the rows of ``file``; return what was found.

    data: the data set whose columns the file has; None tries all of them.
    """
    with ws.lock("scan"):
        names = [data] if data else [r["name"] for r in ws.ledger.rows("SELECT * FROM data_sets")]
        if not names:
            raise UsageError("the workspace has no data set, so there is nothing to scan for")
        readings = _read_rows(ws, file, names, format)
        found = search(ws, readings, progress)
    return _summary(ws, found, readings)


@dataclass(frozen=True, slots=True)
class Search:
    """What a search of the workspace saw, and what it searched for."""

    report: ScanReport
    listed: Sequence[tuple[bytes, int, str]]
    """(pattern, row, encoding) of every pattern."""
    not_searchable: frozenset[int]
    """Rows that look like any zeros and ones in some encoding, and were not searched for in that."""
    skipped: Sequence[str]
    """What was not read."""


@dataclass(frozen=True, slots=True)
class Range:
    """The bounds of the features from which a k-means model scales rows."""

    model: str
    lower: NDArray[np.float32]
    upper: NDArray[np.float32]


def search(
    ws: Workspace,
    readings: Mapping[str, Rows],
    progress: Callable[[int, int], None] | None = None,
    former: Mapping[str, Sequence[Range]] | None = None,
) -> Search:
    """Search every byte of the workspace for rows, given as each data set has them.

    former: ranges of models that are no more, by data set. Call with the lock held. UsageError where
    rows are too short to be told from other bytes.
    """
    ranges = {n: [*ranges_of(ws, n), *(former or {}).get(n, ())] for n in readings}
    listed = [p for name, x in readings.items() for p in _patterns(name, x, ranges[name])]
    corners = {
        key for n, x in readings.items() for one in ranges[n] for key in _corner_rows(one, x)
    }
    patterns = PatternSet(listed)
    live = _LiveTwins(ws, readings.values(), listed)
    # Rows by address come first: they tell which erased rows have a live twin.
    folders = [*live.row_folders, *live.data_folders, ws.root]
    report = scan_tree(folders, patterns, is_live=live, on_progress=progress)
    searched = tuple(map(str, live.data_folders))
    skipped = [s for s in report.skipped if not s.startswith(searched)]
    unsure = {*corners, *(key for key, _ in patterns.undistinctive)}
    return Search(report, listed, frozenset(unsure), skipped)


def _read_rows(ws: Workspace, file: Path, names: Sequence[str], format: str) -> dict[str, Rows]:
    """The rows of the file as each data set reads them whose columns it has."""
    readings: dict[str, Rows] = {}
    refused = []
    for name in names:
        _, data_set = ws.ledger.open_data_set(name, ws.root)
        try:
            if data_set.sparse:
                readings[name] = read_sparse_rows(file, format, data_set)
                continue
            source = open_features([file], format, data_set.feature_names)
            readings[name] = np.concatenate([b.x for b in source.blocks()])
        except BadInputError as error:
            refused.append(f"{name}: {error}")
    if not readings:
        raise UsageError(f"{file} fits no data set ({'; '.join(refused)}); see --data and --format")
    return readings


def _marks(rows: Rows, salt: bytes) -> list[bytes]:
    """The keyed hash of each row, as the ledger has those of erased ones."""
    if isinstance(rows, SparseRows):
        return sparse_fingerprints(rows, salt)
    return fingerprints(rows, salt)


def _patterns(data: str, x: Rows, ranges: Iterable[Range]) -> Iterator[tuple[bytes, int, str]]:
    """Every row of a data set in every encoding that the program stores."""
    if isinstance(x, SparseRows):
        yield from sparse_patterns(x)
        return
    if x.shape[1] * x.itemsize < SHORTEST_PATTERN:
        raise UsageError(
            f"the rows of data set {data} have {x.shape[1] * x.itemsize} bytes: too few to be told "
            "from other bytes; name another data set with --data"
        )
    every = np.arange(len(x))
    encodings = [("float32", every, x), ("float64", every, x.astype(np.float64))]
    for one in ranges:
        keys, fixed = _scaled(one, x)
        centroids = ((fixed + 1) // 2 / CENTROID_GRID).astype(np.float32)
        encodings += [
            (f"int32 grid of {one.model}", keys, fixed),
            (f"int64 sum of {one.model}", keys, fixed.astype(np.int64)),
            (f"float64 centroid of {one.model}", keys, fixed / (2.0 * CENTROID_GRID)),
            (f"float32 centroid of {one.model}", keys, centroids),
        ]
    for encoding, keys, rows in encodings:
        for key, row in zip(keys.tolist(), np.ascontiguousarray(rows), strict=True):
            yield row.tobytes(), key, encoding


def _scaled(one: Range, x: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Return rows in fixed point, and their numbers, but for those of ``_in_corners``."""
    fixed = Scaling.between(one.lower, one.upper).fixed(x)
    keys = np.flatnonzero(~_in_corners(fixed, x))
    return keys, fixed[keys]


def _in_corners(fixed: NDArray[np.int32], x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows x are at an end of the range in all of a few features, and so tell no value.

    Only zeros and ones are left of them, which are found wherever labels or counts stand. Rows that
    are zeros and ones themselves are searched for as such anyway.
    """
    if x.shape[1] >= CORNER_FEATURES:
        return np.zeros(len(x), np.bool_)
    at_ends = ((fixed == 0) | (fixed == ROW_GRID)).all(axis=1)
    result: NDArray[np.bool_] = at_ends & (fixed / float(ROW_GRID) != x).any(axis=1)
    return result


def _corner_rows(one: Range, x: Rows) -> list[int]:
    """The rows within a range that are not searched for as its model kept them.

    Those outside it were never kept so.
    """
    if isinstance(x, SparseRows):
        return []
    within = ((x >= one.lower) & (x <= one.upper)).all(axis=1)
    fixed = Scaling.between(one.lower, one.upper).fixed(x)
    return np.flatnonzero(within & _in_corners(fixed, x)).tolist()


def ranges_of(ws: Workspace, data: str) -> Iterator[Range]:
    """The ranges under which a data set's k-means models keep rows in fixed point."""
    for model in scaling_models(ws, data):
        found = range_of(ws, model)
        if found is not None:
            yield found


def scaling_models(ws: Workspace, data: str) -> list[str]:
    """Return the names of a data set's k-means models, which keep rows in fixed point."""
    query = "SELECT name, algorithm FROM models WHERE data_set = ? ORDER BY name"
    return [row["name"] for row in ws.ledger.rows(query, data) if row["algorithm"] in KMEANS]


def range_of(ws: Workspace, model: str) -> Range | None:
    """Return the range of a k-means model; None where it has seen no row. Raises if files are damaged."""
    arrays, _ = read_version(ws.root / ws.ledger.model(model)["folder"])
    if not np.isfinite(arrays["lower"]).all():
        return None
    return Range(model, arrays["lower"], arrays["upper"])


class _LiveTwins:
    """Tells whether found bytes belong to a live row that looks like an erased one.

    Called for rows by address first: at a live slot, an erased row's bytes are its twin's. What is
    found elsewhere is excused where all the rows that it may come from have such a twin.
    """

    def __init__(
        self,
        ws: Workspace,
        readings: Iterable[Rows],
        patterns: Iterable[tuple[bytes, int, str]],
    ) -> None:
        self._twins: set[int] = set()
        self._sets: dict[Path, DataSet] = {}
        self._names: dict[Path, str] = {}
        for row in ws.ledger.rows("SELECT name, folder FROM data_sets"):
            data_set = DataSet.open(ws.root / row["folder"])
            for array in ENTRY_ARRAYS if data_set.sparse else ("x",):
                self._sets[data_set.path / array] = data_set
                self._names[data_set.path / array] = row["name"]
        done = ws.ledger.rows(
            f"SELECT unit_hash FROM requests WHERE state IN ({marks(DELETED)})", *DELETED
        )
        self._done = {row["unit_hash"] for row in done}
        self._salt = ws.ledger.salt
        erased = {r["fingerprint"] for r in ws.ledger.rows("SELECT fingerprint FROM erased_rows")}
        self._erased = {
            key
            for x in readings
            for key, mark in enumerate(_marks(x, ws.ledger.salt))
            if mark in erased
        }
        self._owners: dict[bytes, set[int]] = {}
        for pattern, key, _ in patterns:
            self._owners.setdefault(pattern, set()).add(key)
        self._units: tuple[Path, NDArray[np.int64]] | None = None
        self._entries = LiveEntries()

    @property
    def row_folders(self) -> list[Path]:
        """The folders whose files hold rows by address."""
        return list(self._sets)

    @property
    def data_folders(self) -> list[Path]:
        """The data sets' folders; one that is a symbolic link is searched where it leads."""
        return list(dict.fromkeys(path.parent for path in self._sets))

    def __call__(self, file: Path, offset: int, length: int) -> bool:
        with file.open("rb") as chunk:
            chunk.seek(offset)
            owners = self._owners.get(chunk.read(length), set())
        data_set = self._sets.get(file.parent)
        if data_set is None:
            return bool(owners) and owners <= self._twins
        name = _CHUNK.fullmatch(file.name)
        if not owners <= self._erased or name is None:
            return False
        slots, whole = self._slots(data_set, int(name[1]), offset, length)
        if not slots or not all(self._is_live(data_set, file, int(name[1]), s) for s in slots):
            return False
        # Part of a row that has more may tell nothing of where the rest stands.
        self._twins |= owners if whole else set()
        return True

    def _slots(self, data_set: DataSet, cell: int, offset: int, length: int) -> tuple[range, bool]:
        """The slots that have these bytes of a chunk, and whether they are all of one row's."""
        if data_set.sparse:
            return self._entries.slots(data_set, cell, offset, length)
        slot, rest = divmod(offset, data_set.row_bytes)
        fits = length == data_set.row_bytes and not rest
        return range(slot, slot + fits), True

    def _is_live(self, data_set: DataSet, file: Path, cell: int, slot: int) -> bool:
        """Whether a slot is that of a unit that was not erased."""
        if self._units is None or self._units[0] != file:
            self._units = file, data_set.read_units(cell)
        unit = int(self._units[1][slot])
        return unit >= 0 and pseudonym(self._names[file.parent], unit, self._salt) not in self._done


def _summary(ws: Workspace, found: Search, readings: Mapping[str, Rows]) -> dict[str, Any]:
    """The scan's result as JSON values."""
    report = found.report
    sparse = [x for x in readings.values() if isinstance(x, SparseRows)]
    short = sorted(set().union(*map(short_rows, sparse)))
    files = sorted({shown_path(ws, m.file) for m in report.matches})
    return {
        "data": sorted(readings),
        "rows": len(next(iter(readings.values()))),
        "matches": report.found,
        "rows_found": sorted(report.keys_found),
        "files": files,
        "encodings": sorted({m.encoding for m in report.matches}),
        "live_twins": report.live_twins,
        "not_searchable": sorted(found.not_searchable),
        "too_short": short,
        "skipped": [*shown_short(len(short)), *found.skipped],
        "files_scanned": report.files,
        "bytes_scanned": report.bytes,
    }


def shown_path(ws: Workspace, file: Path) -> str:
    """Return a file's path from the workspace, or all of it where it lies outside."""
    return str(file.relative_to(ws.root)) if file.is_relative_to(ws.root) else str(file)
