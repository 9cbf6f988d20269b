"""A deletion job's own verification, between erasure and receipts: as the workspace is told to.

``none``: what every job does, and no more: it reads back what it wrote. ``sample``: one of the job's
models of each data set is compared with a retrain; a keyed hash of the job's number draws it.
``retrain``: all are. ``scan``: every byte below the workspace is searched for the deleted rows, which
only a process that gathered them has: a resumed job says that it did not (``job_scanning``). Each data
set has an outcome of its own, for its receipts. What a failed verification leaves behind says where
something was found, never what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from .errors import VerifyError
from .fold import Fold
from .job_scanning import Deleted, rescan_job, scan_job
from .ledger import now
from .verification_records import (
    AT_FAULT,
    BY_DATA,
    FAILURES,
    INCOMPLETE,
    NONE,
    NOT_DONE,
    PASSED,
    SAMPLE,
    SCAN,
    SETTING,
    Found,
    told,
    unverified,
    verify_setting,
)
from .verifying import verify_model
from .workspace import Workspace

_KEPT = ("against", "exact", "distance", "change", "estimate", "differing", "rows", "passes")
"""What is kept of a model's comparison with a retrain: digests, counts and distances."""
_COUNTS = ("rows", "rows_not_searched", "live_twins")
"""What searches for the rows of several data sets add up to; files and bytes are the same for all."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was done to verify a job."""

    whole: Found
    """Of all data sets together, for the job's report."""
    by_data: Mapping[str, Found]
    """Of each data set alone, for its receipts."""


def verify_job(
    ws: Workspace, job: int, deleted: Deleted | None, fold: Fold, progress: Progress
) -> Verification:
    """Verify a job whose rows are erased; return what was done, for the receipts.

    deleted: None where the rows are gone from memory. VerifyError where something does
    not hold: the evidence is in the ledger then, and the job can be resumed.
    """
    started = perf_counter()
    how = verify_setting(ws)
    report = ws.ledger.job(job)["report"]
    query = "SELECT DISTINCT data_set FROM requests WHERE job = ? ORDER BY data_set"
    sets = [row["data_set"] for row in ws.ledger.rows(query, job)]
    if how == SCAN and deleted is not None:
        parts = scan_job(ws, job, deleted, progress)
    elif how == SCAN:
        parts = rescan_job(ws, job, sets, report)
    elif how == NONE:
        what = "what the job wrote was read back, and no more was asked for"
        parts = {data: told(NOT_DONE, what) for data in sets}
    else:
        parts = _verify_models(ws, job, how, sets, report, fold, progress)
        # Workers may have spilled rows that stay; none is left when the receipts are out.
        fold.close()
    same = {"at": now(), "seconds": perf_counter() - started}
    failures = report.get(FAILURES, [])

    def whole(part: Found, earlier: Iterable[Found]) -> Found:
        return {SETTING: how, **part, **same, "earlier_failures": list(earlier)}

    return Verification(
        whole(_together(parts), (_earlier(f, f["problem"]) for f in failures)),
        {data: whole(part, _failures_of(data, failures)) for data, part in parts.items()},
    )


def _together(parts: Mapping[str, Found]) -> Found:
    """What the job as a whole reports: the one data set's, or all of them."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    if not parts:
        return told(NOT_DONE, "no request was left, so there was nothing to verify")
    outcomes = {part["outcome"] for part in parts.values()}
    scans = [part["scan"] for part in parts.values() if part["scan"] is not None]
    scan = None
    if scans:
        counts = {name: sum(one[name] for one in scans) for name in _COUNTS}
        reach = {name: max(one[name] for one in scans) for name in ("files", "bytes")}
        scan = {**counts, **reach, "skipped": sorted({s for one in scans for s in one["skipped"]})}
    return {
        "outcome": next((o for o in (INCOMPLETE, PASSED) if o in outcomes), NOT_DONE),
        "what": "; ".join(f"data set {data}: {part['what']}" for data, part in parts.items()),
        "models": [model for part in parts.values() for model in part["models"]],
        "scan": scan,
    }


def _earlier(failure: Found, problem: str) -> Found:
    """What a receipt says of an attempt that failed."""
    return {"at": failure["at"], SETTING: failure[SETTING], "problem": problem}


def _failures_of(data: str, failures: Sequence[Found]) -> list[Found]:
    """The earlier failures that concern a data set: those of another are not this person's business."""
    found = []
    for failure in failures:
        # Without the member, it is not known which data sets a failure is of.
        problem = failure.get(BY_DATA, {data: failure["problem"]}).get(data)
        if problem is not None:
            found.append(_earlier(failure, problem))
    return found


# ---- models against retrains


def _verify_models(
    ws: Workspace,
    job: int,
    how: str,
    sets: Sequence[str],
    report: Found,
    fold: Fold,
    progress: Progress,
) -> dict[str, Found]:
    """Compare each data set's models, or one of them, with a retrain on the rows that are left."""
    saw = {data: [m["model"] for m in report["models"] if m["data"] == data] for data in sets}
    done: dict[str, list[Found]] = {}
    faults: dict[str, dict[str, str]] = {}
    for data, names in saw.items():
        done[data] = []
        for name in _chosen(ws, job, how, data, names):
            result, fault = _verified(ws, name, fold, progress)
            done[data].append(result)
            if fault is not None:
                faults.setdefault(data, {})[name] = fault
    if faults:
        by_data = {data: "; ".join(wrong.values()) for data, wrong in faults.items()}
        failure = {
            SETTING: how,
            "problem": "; ".join(by_data.values()),
            BY_DATA: by_data,
            "models": [result for results in done.values() for result in results],
            AT_FAULT: [name for wrong in faults.values() for name in wrong],
        }
        raise unverified(ws, job, failure)
    return {data: _compared(how, done[data], len(names)) for data, names in saw.items()}


def _compared(how: str, done: list[Found], count: int) -> Found:
    """What a data set's receipts say of the comparison of so many of its models."""
    if not count:
        what = "no model that is there saw the rows, so there was none to compare with a retrain"
        return told(NOT_DONE, what)
    which = f"{len(done)} of {count} models" if how == SAMPLE else f"{count} models"
    what = (
        f"{which} compared with a retrain on the rows left: exact ones are the same bit for bit, "
        "approximate ones no farther from it than ten times their estimate"
    )
    return told(PASSED, what, models=done)


def _chosen(ws: Workspace, job: int, how: str, data: str, names: Sequence[str]) -> Sequence[str]:
    """The models to compare, of those of a data set."""
    if how != SAMPLE or not names:
        return names
    return [names[_drawn(ws, job, data, len(names))]]


def _drawn(ws: Workspace, job: int, data: str, count: int) -> int:
    """The number of the model that is verified: the same again when a job is resumed."""
    message = b"sample" + job.to_bytes(8, "little") + data.encode()
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
