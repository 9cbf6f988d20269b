"""A batch: all queued requests, one job a data set, so that none waits for the trouble of another.

A data set can't go on while its last deletions wait for a model or to be resumed, or where its files
are damaged. It is skipped then, and said so; its requests stay in the queue or go back to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..pipeline.regression import DELTA
from ..storage.errors import StorageError
from .cancelling import JobCancelledError
from .deletion import Progress, forecast_data_set, run_data_set
from .error_texts import told
from .errors import JobError, LockedError, PartlyDoneError, VerifyError
from .fold import Fold
from .holds import release_ended_holds
from .ledger import Ledger
from .pending import (
    PARTLY_DONE,
    WAITING,
    check_nothing_pending,
    cure,
    interrupted,
    models_behind,
    refuse_interrupted,
)
from .signing import signer_of
from .verification_records import INCOMPLETE, PASSED
from .workspace import Workspace

SUMS = ("requests", "units", "rows", "cells", "cells_read", "bytes_read", "bytes_written", "tasks")
LISTS = ("receipts", "models", "behind")
WORST = (VerifyError, LockedError, JobError, PartlyDoneError)
"""The errors that end a batch, the worst first: what needs somebody at once, then what waits."""


def run_batch(ws: Workspace, fold: Fold, progress: Progress, method: str = DELTA) -> dict[str, Any]:
    """Carry out all queued requests, one job a data set; return what the jobs did, taken together.

    method: how regression models update, one of ``regression.METHODS``.

    The requests are those that there are at the start; late arrivals wait for the next batch.
    ``jobs`` has the jobs' numbers, ``skipped`` the data sets that could not go on. Where some models
    could not be updated, ``state`` is ``partly done`` and ``behind`` names them. Where no data set
    could go on, what kept it from that is raised.
    """
    reports: list[dict[str, Any]] = []
    problems: list[tuple[str, Exception]] = []
    with ws.lock("deletion batch"):
        release_ended_holds(ws)
        # A key that is lost or damaged is told before anything is deleted.
        signer_of(ws)
        last = ws.ledger.value("SELECT max(id) FROM requests") or 0
        for name in _queued(ws.ledger):
            try:
                check_can_go_on(ws.ledger, name)
                fold.tasks = 0  # Each job's report has its own.
                reports += run_data_set(ws, name, last, fold, progress, method)
            except JobCancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the other data sets go on
                problems.append((name, error))
                # Nothing of a job that failed may write while the next one runs.
                fold.close()
                ws.renew_fence()
        if not reports:
            _raise_all([error for _, error in problems])
            refuse_interrupted(ws.ledger)
    return joined(reports) | {"skipped": [_skipped(name, error) for name, error in problems]}


def forecast(ws: Workspace, fold: Fold, method: str = DELTA) -> dict[str, Any]:
    """Tell what a batch would do now, by reading the rows that it would delete; writes nothing."""
    found: dict[str, Any] = {"job": None, "dry_run": True, "requests": 0, "units": 0, "cells": 0}
    found |= {"models": [], "skipped": []}
    errors: list[Exception] = []
    for name in _queued(ws.ledger):
        try:
            check_can_go_on(ws.ledger, name)
            units, cells, models = forecast_data_set(ws, name, fold, method)
        except (JobError, StorageError) as error:
            errors.append(error)
            found["skipped"].append(_skipped(name, error))
            continue
        found["models"] += models
        found |= {"requests": found["requests"] + units, "cells": found["cells"] + cells}
        found["units"] += units
    if not found["units"]:
        _raise_all(errors)
        refuse_interrupted(ws.ledger)
    return found


def check_can_go_on(ledger: Ledger, name: str) -> None:
    """JobError while a job has deletions from a data set that it has not finished; names the cure."""
    for row in ledger.rows(
        "SELECT DISTINCT j.id FROM requests r JOIN jobs j ON j.id = r.job WHERE r.data_set = ? "
        "AND j.kind = 'deletion' AND j.state IN (?, ?)",
        *(name, *WAITING),
    ):
        raise interrupted(row["id"])
    try:
        check_nothing_pending(ledger, name)
    except JobError as error:
        late = ledger.row(
            "SELECT t.job FROM tombstones t JOIN jobs j ON j.id = t.job "
            "WHERE t.erased IS NULL AND t.data_set = ? AND j.state = ? LIMIT 1",
            name,
            PARTLY_DONE,
        )
        raise (error if late is None else PartlyDoneError(str(error))) from error


def joined(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what jobs did as one report; ``job`` is the only one's number, else null."""
    numbers = [report["job"] for report in reports]
    if len(reports) == 1:
        return {**reports[0], "jobs": numbers}
    found: dict[str, Any] = {"job": None, "jobs": numbers}
    found |= {name: sum(report[name] for report in reports) for name in SUMS}
    found |= {name: [x for report in reports for x in report[name]] for name in LISTS}
    if failures := [x for report in reports for x in report.get("update_failures", [])]:
        found["update_failures"] = failures
    return found | {
        "signed": bool(reports) and all(r["signed"] for r in reports if r["receipts"]),
        "state": PARTLY_DONE if found["behind"] else "done",
        "verification": _joined_verification([report["verification"] for report in reports]),
    }


def _joined_verification(ways: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """What jobs verified; None if one could not yet.

    It is incomplete where one job's is, and passed where nothing failed and something was compared.
    The scans' counts are summed; each went through all files.
    """
    done = [way for way in ways if way is not None]
    if not done or len(done) < len(ways):
        return None
    by_outcome = {way["outcome"]: way for way in reversed(done)}
    found = dict(by_outcome.get(INCOMPLETE) or by_outcome.get(PASSED) or done[0])
    found["models"] = [model for way in done for model in way["models"]]
    found["earlier_failures"] = [failure for way in done for failure in way["earlier_failures"]]
    for kind in ("scan", "read_back"):
        counts = [way[kind] for way in done if way[kind] is not None]
        if counts:
            found[kind] = {name: _sum([count[name] for count in counts]) for name in counts[0]}
    return found


def _sum(values: Sequence[Any]) -> Any:
    """The sum of numbers, or what lists have together."""
    if isinstance(values[0], list):
        return sorted({one for value in values for one in value})
    return sum(values)


def faults(ledger: Ledger, found: dict[str, Any]) -> list[Exception]:
    """What is to be told at a batch's end: data sets that were skipped, jobs that are not finished.

    Jobs that an earlier batch left so are told too, while they stand.
    """
    kinds = {kind.__name__: kind for kind in WORST}
    wrong: list[Exception] = [
        kinds.get(one["error"], JobError)(f"data set {one['data']}: {one['problem']}")
        for one in found["skipped"]
    ]
    said = " ".join(map(str, wrong))
    for row in ledger.rows(
        "SELECT id, state FROM jobs WHERE kind = 'deletion' AND state IN (?, ?, ?) ORDER BY id",
        *(PARTLY_DONE, *WAITING),
    ):
        if re.search(rf"\bjob {row['id']}\b", said) is None:
            wrong.append(_unfinished(ledger, row["id"], row["state"]))
    return wrong


def _unfinished(ledger: Ledger, job: int, state: str) -> JobError:
    """What to say of a job that waits for somebody."""
    if state != PARTLY_DONE:
        return interrupted(job)
    names = ", ".join(m["model"] for m in models_behind(ledger, job))
    behind = f", behind are {names}" if names else ""
    return PartlyDoneError(f"job {job} is partly done{behind}: {cure(ledger, job)}")


def worst(errors: Sequence[Exception]) -> Exception:
    """Return one error that says all of them (at least one), of the kind that is the worst."""
    if len(errors) == 1:
        return errors[0]
    kinds = [next((k for k in WORST if type(e) is k), JobError) for e in errors]
    text = "; ".join(dict.fromkeys(told(error) for error in errors))
    return min(kinds, key=WORST.index)(text)


def _raise_all(errors: Sequence[Exception]) -> None:
    if errors:
        raise worst(errors)


def _queued(ledger: Ledger) -> list[str]:
    """The data sets of queued requests."""
    rows = ledger.rows(
        "SELECT DISTINCT data_set FROM requests WHERE state = 'queued' ORDER BY data_set"
    )
    return [row["data_set"] for row in rows]


def _skipped(name: str, error: Exception) -> dict[str, Any]:
    return {"data": name, "error": type(error).__name__, "problem": told(error)}
