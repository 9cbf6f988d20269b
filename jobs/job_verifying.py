"""A deletion job's own verification, between erasure and receipts: as the workspace is told to.

``none``: what every job does, and no more: it reads back what it wrote. ``sample``: one of the
job's models is compared with a retrain; a keyed hash of the job's number draws it. ``retrain``: all
are. ``scan``: every byte below the workspace is searched for the deleted rows, which only the
process that gathered them has: a resumed job says that it did not. What a failed verification leaves
behind says where something was found, never what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from ..storage.sentinel import SHORTEST_PATTERN
from ..storage.sparse import SparseRows
from .errors import UsageError, VerifyError
from .fold import Fold
from .ledger import now
from .scanning import Range, Rows, Search, ranges_of, search, shown_path
from .sparse_scanning import short_rows
from .verifying import verify_model
from .workspace import Workspace

NONE, SAMPLE, RETRAIN, SCAN = "none", "sample", "retrain", "scan"
WAYS = (NONE, SAMPLE, RETRAIN, SCAN)
READ_BACK = "read back"
SETTING = "verify"
FAILURES = "verification_failures"
"""Where a job's report has what earlier attempts found wrong."""
AT_FAULT = "at_fault"
"""Where a failure has the models that were not as they should be."""
PASSED, INCOMPLETE, NOT_DONE = "passed", "incomplete", "not done"
ROWS_AT_ONCE = 20_000
"""Rows of one search; their patterns take some kilobytes each."""
KEPT_PLACES = 1000
"""Places that a failed scan remembers."""
_KEPT = ("against", "exact", "distance", "change", "estimate", "differing", "rows", "passes")
"""What is kept of a model's comparison with a retrain: digests, counts and distances."""
Progress = Callable[[str], None]
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deleted:
    """The rows that a job deleted, which only the process that gathered them has."""

    rows: Mapping[str, Rows]
    """By data set."""
    ranges: Mapping[str, Sequence[Range]]
    """By data set, those of the models that saw the rows; nothing where no scan is asked for."""
    whole: bool = True
    """Whether ``ranges`` has all: those of models that an earlier attempt updated are not known."""


def ranges_before(ws: Workspace, data_sets: Iterable[str]) -> dict[str, Sequence[Range]]:
    """Return what ``Deleted.ranges`` says; call before the commit."""
    wanted = data_sets if verify_setting(ws) == SCAN else ()
    # By another name: one encoding of a row is one pattern.
    return {
        name: tuple(replace(one, model=f"{one.model} before") for one in ranges_of(ws, name))
        for name in wanted
    }


def verify_setting(ws: Workspace) -> str:
    """Return how the workspace's jobs are verified, one of WAYS."""
    return ws.ledger.setting(SETTING) or NONE


def set_verify(ws: Workspace, how: str) -> None:
    """Have jobs verified so from now on; UsageError unless it is one of WAYS."""
    if how not in WAYS:
        raise UsageError(f"--verify is {how!r}; it is one of {', '.join(WAYS)}")
    with ws.ledger.transaction():
        ws.ledger.set(SETTING, how)
        ws.ledger.event("setting", {SETTING: how})


def verify_job(
    ws: Workspace, job: int, deleted: Deleted | None, fold: Fold, progress: Progress
) -> Found:
    """Verify a job whose rows are erased; return what was done, for the receipts.

    deleted: None where the rows are gone from memory. VerifyError where something does
    not hold: the evidence is in the ledger then, and the job can be resumed.
    """
    started = perf_counter()
    how = verify_setting(ws)
    report = ws.ledger.job(job)["report"]
    if how == SCAN:
        found = _rescan(ws, job, report) if deleted is None else _scan(ws, job, deleted, progress)
    elif how == NONE:
        found = _told(NOT_DONE, "what the job wrote was read back, and no more was asked for")
    else:
        found = _verify_models(ws, job, how, report, fold, progress)
        # Workers may have spilled rows that stay; none is left when the receipts are out.
        fold.close()
    earlier = [{k: f[k] for k in ("at", "verify", "problem")} for f in report.get(FAILURES, [])]
    return {
        SETTING: how,
        **found,
        "at": now(),
        "seconds": perf_counter() - started,
        "earlier_failures": earlier,
    }


def unverified(ws: Workspace, job: int, failure: Found) -> VerifyError:
    """Keep what a verification found wrong, and return the error to raise; the job can be resumed.

    failure: ``verify`` and ``problem``, and evidence without personal data.
    """
    problem = str(failure["problem"]).replace(f"{ws.root}/", "")
    failure = {"at": now(), **failure, "problem": problem}
    ledger = ws.ledger
    with ledger.transaction():
        report = ledger.job(job)["report"]
        ledger.report_job(job, {**report, FAILURES: [*report.get(FAILURES, []), failure]})
        ledger.event("verification failed", {"job": job, **_without_places(failure)})
        ledger.run("UPDATE jobs SET state = 'unverified' WHERE id = ?", job)
    cure = f"expunge job resume {job} erases and verifies again"
    if AT_FAULT in failure:
        cure += f", expunge job retry {job} also trains the regressions anew that are not right"
    return VerifyError(
        f"job {job}: verification failed: {failure['problem']}; no receipt is issued; {cure}"
    )


def _without_places(failure: Found) -> Found:
    return {name: value for name, value in failure.items() if name != "places"}


def _told(outcome: str, what: str, **more: Any) -> Found:
    return {"outcome": outcome, "what": what, "models": [], "scan": None, **more}


# ---- models against retrains


def _verify_models(
    ws: Workspace, job: int, how: str, report: Found, fold: Fold, progress: Progress
) -> Found:
    """Compare the job's models, or one of them, with a retrain on the rows that are left."""
    names = [m["model"] for m in report["models"]]
    if not names:
        return _told(PASSED, "no model saw the rows, so there was none to compare with a retrain")
    chosen = [names[_drawn(ws, job, len(names))]] if how == SAMPLE else names
    done, faults = [], {}
    for name in chosen:
        result, fault = _verified(ws, name, fold, progress)
        done.append(result)
        if fault is not None:
            faults[name] = fault
    if faults:
        problem = "; ".join(faults.values())
        failure = {SETTING: how, "problem": problem, "models": done, AT_FAULT: list(faults)}
        raise unverified(ws, job, failure)
    which = f"{len(chosen)} of {len(names)} models" if how == SAMPLE else f"{len(names)} models"
    what = (
        f"{which} compared with a retrain on the rows left: exact ones are the same bit for bit, "
        "approximate ones no farther from it than ten times their estimate"
    )
    return _told(PASSED, what, models=done)


def _drawn(ws: Workspace, job: int, count: int) -> int:
    """The number of the model that is verified: the same again when a job is resumed."""
    message = b"sample" + job.to_bytes(8, "little")
    drawn = hashlib.blake2b(message, key=ws.ledger.salt, digest_size=8).digest()
    return int.from_bytes(drawn, "little") % count


def _verified(ws: Workspace, name: str, fold: Fold, progress: Progress) -> tuple[Found, str | None]:
    """What is kept of a model's verification, and what is wrong, if anything."""
    started = perf_counter()
    try:
        found, fault = verify_model(ws, name, None, fold, lambda what: progress(f"verify {what}"))
    except VerifyError as error:
        found, fault = {}, str(error)
    kept = {key: found[key] for key in _KEPT if key in found}
    return {"model": name, **kept, "seconds": perf_counter() - started}, fault


# ---- the scan


def _scan(ws: Workspace, job: int, deleted: Deleted, progress: Progress) -> Found:
    """Search the workspace for all deleted rows, some thousands at a time."""
    count = {"rows": 0, "rows_not_searched": 0, "live_twins": 0, "files": 0, "bytes": 0}
    skipped: set[str] = set()
    for name, part in _parts(deleted.rows):
        count["rows"] += len(part)
        if _too_narrow(part):
            count["rows_not_searched"] += len(part)
            continue
        found = search(ws, {name: part}, _told_bytes(progress), deleted.ranges)
        _check_nothing_found(ws, job, name, found)
        count["rows_not_searched"] += len(_unsure(found, part))
        count["live_twins"] += found.report.live_twins
        count["files"] = max(count["files"], found.report.files)
        count["bytes"] = max(count["bytes"], found.report.bytes)
        skipped |= set(found.skipped)
    result = {**count, "skipped": sorted(skipped)}
    if not deleted.whole:
        what = (
            "every file of the workspace searched for the deleted rows in their own encodings, and "
            f"nothing found; {count['rows_not_searched']} rows and {len(skipped)} files could not be "
            "searched, nor what models that the job's first attempt updated had made of the rows"
        )
        return _told(INCOMPLETE, what, scan=result)
    if count["rows_not_searched"] or skipped:
        what = (
            f"every file of the workspace but {len(skipped)} searched for the deleted rows, and "
            f"nothing found; {count['rows_not_searched']} rows look like other bytes in some encoding, "
            "and were not searched for in that"
        )
        return _told(INCOMPLETE, what, scan=result)
    what = (
        "every byte of the workspace searched for the deleted rows, in every encoding: none found"
    )
    return _told(PASSED, what, scan=result)


def _told_bytes(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(f"scan {done:,} of {total:,} bytes")


def _parts(rows: Mapping[str, Rows]) -> Iterator[tuple[str, Rows]]:
    """The rows of each data set, so many at a time that their patterns fit into memory."""
    for name, x in rows.items():
        for start in range(0, len(x), ROWS_AT_ONCE):
            chosen = np.arange(start, min(start + ROWS_AT_ONCE, len(x)))
            yield name, x.take(chosen) if isinstance(x, SparseRows) else x[chosen]


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
    raise unverified(
        ws,
        job,
        {
            SETTING: SCAN,
            "problem": (
                f"bytes of {len(found.report.keys_found)} deleted rows of data set {data} stand at "
                f"{found.report.found} places, in {', '.join(files[:5])}"
            ),
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


def _rescan(ws: Workspace, job: int, report: Found) -> Found:
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
        raise unverified(ws, job, {**failed[-1], "at": now(), "problem": problem, **evidence})
    what = "not scanned: resumed; the deleted rows are kept nowhere to be searched for"
    if places:
        what += (
            f". An earlier scan found their bytes at {failed[0]['found']} places; at none of the "
            f"{len(places)} remembered ones do they stand any more"
        )
    return _told(NOT_DONE, what)


def _holds(ws: Workspace, place: list[Any]) -> bool:
    """Whether a file has these bytes still, at the place where a scan found them."""
    name, offset, length, mark = place
    try:
        with (ws.root / name).open("rb") as file:
            file.seek(offset)
            return bool(_mark(ws, file.read(length)) == mark)
    except FileNotFoundError:
        return False
