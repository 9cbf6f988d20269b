"""A job's scan, before its receipts: the workspace is searched for the rows that it deleted.

Only a process that gathered the rows has them: after a crash it can only be looked whether places
where an earlier scan found them hold them still.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.sentinel import SHORTEST_PATTERN
from ..storage.sparse import SparseRows
from .former_ranges import Former
from .ledger import now
from .scanning import Rows, Search, search, shown_path
from .sparse_scanning import short_rows
from .verification_records import (
    BY_DATA,
    FAILURES,
    INCOMPLETE,
    NOT_DONE,
    PASSED,
    SCAN,
    SETTING,
    Found,
    told,
    unverified,
)
from .workspace import Workspace

ROWS_AT_ONCE = 20_000
"""Rows of one search; their patterns take some kilobytes each."""
KEPT_PLACES = 1000
"""Places that a failed scan remembers."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Deleted:
    """The rows that a job deleted, which only the process that gathered them has."""

    rows: Mapping[str, Rows]
    """By data set."""
    former: Former
    """The ranges of the models that saw the rows."""


def scan_job(ws: Workspace, job: int, deleted: Deleted, progress: Progress) -> dict[str, Found]:
    """Search the workspace for each data set's deleted rows; return what its receipts say of that.

    VerifyError where one stands anywhere.
    """
    return {
        data: _scan(ws, job, data, rows, deleted.former, progress)
        for data, rows in deleted.rows.items()
    }


def _scan(
    ws: Workspace, job: int, data: str, rows: Rows, former: Former, progress: Progress
) -> Found:
    """Search for the deleted rows of a data set, some thousands at a time."""
    count = {"rows": 0, "rows_not_searched": 0, "live_twins": 0, "files": 0, "bytes": 0}
    skipped: set[str] = set()
    for part in _parts(rows):
        count["rows"] += len(part)
        if _too_narrow(part):
            count["rows_not_searched"] += len(part)
            continue
        found = search(ws, {data: part}, _told_bytes(progress), former.ranges)
        _check_nothing_found(ws, job, data, found)
        count["rows_not_searched"] += len(_unsure(found, part))
        count["live_twins"] += found.report.live_twins
        count["files"] = max(count["files"], found.report.files)
        count["bytes"] = max(count["bytes"], found.report.bytes)
        skipped |= set(found.skipped)
    result = {**count, "skipped": sorted(skipped)}
    unknown = former.unknown.get(data, ())
    if not (count["rows_not_searched"] or skipped or unknown):
        what = "every byte of the workspace searched for the deleted rows, in every encoding: none found"
        return told(PASSED, what, scan=result)
    what = (
        f"every file of the workspace but {len(skipped)} searched for the deleted rows, and "
        f"nothing found; {count['rows_not_searched']} rows look like other bytes in some encoding, "
        "and were not searched for in that"
    )
    if unknown:
        what += (
            f"; nor was anything in the encodings of {', '.join(unknown)} as before the deletion, whose "
            "ranges are not known"
        )
    return told(INCOMPLETE, what, scan=result)


def _told_bytes(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(f"scan {done:,} of {total:,} bytes")


def _parts(x: Rows) -> Iterator[Rows]:
    """The rows, so many at a time that their patterns fit into memory."""
    for start in range(0, len(x), ROWS_AT_ONCE):
        chosen = np.arange(start, min(start + ROWS_AT_ONCE, len(x)))
        yield x.take(chosen) if isinstance(x, SparseRows) else x[chosen]


def _too_narrow(x: Rows) -> bool:
    """Whether dense rows have too few bytes to be searched for."""
    return not isinstance(x, SparseRows) and x.shape[1] * x.itemsize < SHORTEST_PATTERN


def _unsure(found: Search, part: Rows) -> set[int]:
    """The rows whose bytes could not be searched for in every encoding."""
    short = short_rows(part) if isinstance(part, SparseRows) else []
    return {*short, *found.not_searchable}


def _check_nothing_found(ws: Workspace, job: int, data: str, found: Search) -> None:
    """Fail the job if a deleted row's bytes stand anywhere, and remember where."""
    if not found.report.found:
        return
    patterns = {(key, encoding): pattern for pattern, key, encoding in found.listed}
    matches = found.report.matches[:KEPT_PLACES]
    files = sorted({shown_path(ws, m.file) for m in found.report.matches})
    problem = (
        f"bytes of {len(found.report.keys_found)} deleted rows of data set {data} stand at "
        f"{found.report.found} places, in {', '.join(files[:5])}"
    )
    raise unverified(
        ws,
        job,
        {
            SETTING: SCAN,
            "problem": problem,
            BY_DATA: {data: problem},
            "data": data,
            "found": found.report.found,
            "files": files,
            "encodings": sorted({m.encoding for m in found.report.matches}),
            "places": [
                [
                    shown_path(ws, m.file),
                    m.offset,
                    len(patterns[m.key, m.encoding]),
                    _mark(ws, patterns[m.key, m.encoding]),
                ]
                for m in matches
            ],
        },
    )


def _mark(ws: Workspace, data: bytes) -> str:
    """A keyed hash of bytes that were found: tells whether they are there still, not what they are."""
    return hashlib.blake2b(b"found" + data, key=ws.ledger.salt, digest_size=16).hexdigest()


def rescan_job(ws: Workspace, job: int, sets: Iterable[str], report: Found) -> dict[str, Found]:
    """What can be said without the rows: whether places where they were found hold them still."""
    failed = [f for f in report.get(FAILURES, []) if f[SETTING] == SCAN]
    places = failed[-1]["places"] if failed else []
    left = [place for place in places if _holds(ws, place)]
    if left:
        files = sorted({str(file) for file, *_ in left})
        problem = (
            f"bytes of deleted rows still stand at {len(left)} of the {len(places)} places that an "
            f"earlier scan found, in {', '.join(files[:5])}"
        )
        evidence = {"found": len(left), "files": files, "places": left}
        evidence |= {"problem": problem, BY_DATA: {failed[-1]["data"]: problem}}
        raise unverified(ws, job, {**failed[-1], "at": now(), **evidence})
    what = "not scanned: resumed; the deleted rows are kept nowhere to be searched for"
    parts = {data: told(NOT_DONE, what) for data in sets}
    if places:
        parts[failed[-1]["data"]]["what"] += (
            f". An earlier scan found their bytes at {failed[0]['found']} places; at none of the "
            f"{len(places)} remembered ones do they stand any more"
        )
    return parts


def _holds(ws: Workspace, place: list[Any]) -> bool:
    """Whether a file has these bytes still, at the place where a scan found them."""
    name, offset, length, mark = place
    try:
        with (ws.root / name).open("rb") as file:
            file.seek(offset)
            return bool(_mark(ws, file.read(length)) == mark)
    except FileNotFoundError:
        return False
