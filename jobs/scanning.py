"""``expunge scan``: are the bytes of these rows anywhere below the workspace?

Rows are searched in every encoding that the program writes. The ledger's keyed fingerprints tell
which of them were erased. Bytes of an erased row's live twin (another row with the same values) are
told apart by address: they stand at a live slot of a data set; and what models derive from the
twin can't be told from what they derived from the erased row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.fixedpoint import CENTROID_GRID, Scaling
from ..storage.cells import fingerprints
from ..storage.dataset import DataSet
from ..storage.errors import BadInputError
from ..storage.importers import open_features
from ..storage.sentinel import PatternSet, ScanReport, scan_tree
from ..storage.versions import read_version
from .errors import UsageError
from .workspace import Workspace


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
        live = _LiveTwins(ws, readings.values())
        patterns = PatternSet(p for x in readings.values() for p in _patterns(ws, x))
        report = scan_tree([ws.root], patterns, is_live=live, on_progress=progress)
    rows = len(next(iter(readings.values())))
    return {"data": sorted(readings), **_summary(ws, report, live, rows)}


def _read_rows(
    ws: Workspace, file: Path, names: Sequence[str], format: str
) -> dict[str, NDArray[np.float32]]:
    """The rows of the file as each data set reads them whose columns it has."""
    readings = {}
    refused = []
    for name in names:
        data_set = DataSet.open(ws.root / ws.ledger.data_set(name)["folder"])
        try:
            source = open_features([file], format, data_set.feature_names)
            readings[name] = np.concatenate([b.x for b in source.blocks()])
        except BadInputError as error:
            refused.append(f"{name}: {error}")
    if not readings:
        raise UsageError(f"{file} fits no data set ({'; '.join(refused)}); see --data and --format")
    return readings


def _patterns(ws: Workspace, x: NDArray[np.float32]) -> Iterator[tuple[bytes, int, str]]:
    """Every row in every encoding that the program stores."""
    encodings = {"float32": x, "float64": x.astype(np.float64)}
    for model, scaling in _scalings(ws, x.shape[1]):
        fixed = scaling.fixed(x)
        encodings |= {
            f"int32 grid of {model}": fixed,
            f"int64 sum of {model}": fixed.astype(np.int64),
            f"float64 centroid of {model}": fixed / (2.0 * CENTROID_GRID),
            f"float32 centroid of {model}": ((fixed + 1) // 2 / CENTROID_GRID).astype(np.float32),
        }
    for encoding, rows in encodings.items():
        for key, row in enumerate(np.ascontiguousarray(rows)):
            yield row.tobytes(), key, encoding


def _scalings(ws: Workspace, features: int) -> Iterator[tuple[str, Scaling]]:
    """The scalings under which models of so many features keep rows in fixed point."""
    for row in ws.ledger.rows(
        "SELECT m.name, v.folder FROM models m "
        "JOIN versions v ON v.model = m.name AND v.number = m.version ORDER BY m.name"
    ):
        arrays, _ = read_version(ws.root / row["folder"])
        if arrays["lower"].shape == (features,) and np.isfinite(arrays["lower"]).all():
            yield row["name"], Scaling.between(arrays["lower"], arrays["upper"])


class _LiveTwins:
    """Tells whether found bytes are those of a live row that looks like an erased one."""

    def __init__(self, ws: Workspace, readings: Iterable[NDArray[np.float32]]) -> None:
        self.twins: set[int] = set()
        """Rows of the scan that were erased and have a live twin."""
        self._sets: dict[Path, DataSet] = {}
        for row in ws.ledger.rows("SELECT folder FROM data_sets"):
            path = ws.root / row["folder"]
            self._sets[path] = DataSet.open(path)
        erased = {r["fingerprint"] for r in ws.ledger.rows("SELECT fingerprint FROM erased_rows")}
        self._erased: dict[bytes, list[int]] = {}
        for x in readings:
            for key, (row, mark) in enumerate(zip(x, fingerprints(x, ws.ledger.salt), strict=True)):
                if mark in erased:
                    self._erased.setdefault(row.tobytes(), []).append(key)
        self._units: dict[Path, NDArray[np.int64]] = {}

    def __call__(self, file: Path, offset: int, length: int) -> bool:
        data_set = self._sets.get(file.parent.parent)
        if data_set is None or file.parent.name != "x" or length != data_set.row_bytes:
            return False
        if offset % length:
            return False
        if file not in self._units:
            cell = int(file.name.split(".")[1])
            self._units = {file: data_set.read_units(cell)}
        if self._units[file][offset // length] < 0:
            return False
        with file.open("rb") as chunk:
            chunk.seek(offset)
            keys = self._erased.get(chunk.read(length), [])
        self.twins.update(keys)
        return bool(keys)

    def is_chunk_of_rows(self, file: Path) -> bool:
        """Whether a file holds rows by address, so that a twin can't excuse a match."""
        return file.parent.parent in self._sets and file.parent.name == "x"


def _summary(ws: Workspace, report: ScanReport, live: _LiveTwins, rows: int) -> dict[str, Any]:
    """The scan's result, with derived bytes of live twins taken out."""
    kept = [m for m in report.matches if m.key not in live.twins or live.is_chunk_of_rows(m.file)]
    excused = len(report.matches) - len(kept)
    files = sorted({str(m.file.relative_to(ws.root)) for m in kept})
    return {
        "rows": rows,
        "matches": report.found - excused,
        "rows_found": sorted({m.key for m in kept}),
        "files": files,
        "encodings": sorted({m.encoding for m in kept}),
        "live_twins": report.live_twins + excused,
        "files_scanned": report.files,
        "bytes_scanned": report.bytes,
        "skipped": list(report.skipped),
    }
