"""The deletion job.

plan -> gather -> update -> **commit** (one ledger transaction) -> erase -> retire -> verify ->
receipt. Each step is recorded before it starts and is safe to repeat. Before the commit a crash
leaves only folders that the ledger does not name, which the next lock sweeps; after it, the
addresses in the ledger say what is still to be erased. Where some models' updates fail, the others'
are committed and the job stops there, partly done: ``retrying`` goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from ..pipeline.regression import DELTA
from ..storage.cells import pseudonym
from ..storage.dataset import DataSet
from ..storage.fence import Fence
from ..storage.files import metered
from .cancelling import (
    JobCancelledError,
    check_not_cancelled,
    end_cancelled,
    leave_nothing,
    watched,
)
from .erasure import Committed, finish
from .error_texts import told
from .errors import JobError, VerifyError
from .fold import Fold
from .former_ranges import MARKS, Former, ranges_before
from .holds import release_ended_holds
from .job_scanning import Deleted
from .ledger import now
from .model_family import Change
from .pending import PARTLY_DONE
from .plan import Gathered, gather
from .scanning import Rows
from .training import family_of
from .updating import Failure, Updates, enter, settle, update_models
from .workspace import Workspace

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """One data set of a job, with the units that leave it and the models that saw it."""

    row: dict[str, Any]
    data_set: DataSet
    units: NDArray[np.int64]
    models: tuple[str, ...]


def run_data_set(
    ws: Workspace, name: str, last: int, fold: Fold, progress: Progress, method: str
) -> list[dict[str, Any]]:
    """Carry out a data set's queued requests up to number ``last``, as one job.

    Returns its report; nothing where no such request is left.
    """
    ledger = ws.ledger
    chosen = "state = 'queued' AND data_set = ? AND id <= ?"
    with ws.lock("deletion job") as fence:
        with ledger.transaction():
            if not ledger.value(f"SELECT count(*) FROM requests WHERE {chosen}", name, last):
                return []
            job = ledger.insert_job("deletion", {"method": method})
            ledger.run(
                f"UPDATE requests SET state = 'running', job = ? WHERE {chosen}", job, name, last
            )
        return [_run(ws, job, fence, fold, progress)]


def resume_deletion(
    ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Progress
) -> dict[str, Any]:
    """Finish an interrupted job: from the start before its commit, forward after it.

    Call with the lock held.
    """
    # A hold that was placed while the job ran takes its requests now that it has been interrupted.
    release_ended_holds(ws)
    ws.ledger.restart_job(job)
    report = ws.ledger.job(job)["report"]
    if "committed" in report:
        return finish_committed(ws, Committed(job, report, {}, None), fence, fold, progress)
    return _run(ws, job, fence, fold, progress)


def forecast_data_set(
    ws: Workspace, name: str, fold: Fold, method: str
) -> tuple[int, int, list[dict[str, Any]]]:
    """Return how many units a batch would delete from a data set, in how many cells, and what models do."""
    (target,) = _targets(ws, "state = 'queued' AND data_set = ?", (name,))
    gathered = gather(target.data_set, target.units, ws.ledger.salt, fold)
    models = []
    for model in target.models:
        family = family_of(ws.ledger.model(model)["algorithm"])
        models.append({"model": model, **family.forecast(ws, model, gathered, method)})
    return len(target.units), len(gathered.parts), models


def _targets(ws: Workspace, condition: str, values: tuple[Any, ...]) -> list[Target]:
    """The data sets that the chosen requests are about."""
    ledger = ws.ledger
    rows = ledger.rows(
        f"SELECT data_set, unit FROM requests WHERE {condition} ORDER BY data_set, unit", *values
    )
    targets = []
    for name in sorted({r["data_set"] for r in rows}):
        row, data_set = ledger.open_data_set(name, ws.root)
        units = np.array([r["unit"] for r in rows if r["data_set"] == name], np.int64)
        models = ledger.rows("SELECT name FROM models WHERE data_set = ? ORDER BY name", name)
        targets.append(Target(row, data_set, units, tuple(m["name"] for m in models)))
    return targets


def _run(ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Progress) -> dict[str, Any]:
    """All steps; an error before the commit puts the requests back in the queue."""
    try:
        with watched(ws.ledger, job, fold, progress) as watching:
            done, failures = _until_commit(ws, job, fence, fold, watching)
    except (Exception, KeyboardInterrupt) as error:
        _roll_back(ws, job, error, fence, fold)
        raise
    if failures:
        return stop_partly_done(ws, done.job, failures, fold, progress)
    return finish_committed(ws, done, fence, fold, progress)


def _until_commit(
    ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Progress
) -> tuple[Committed, tuple[Failure, ...]]:
    """Plan, gather, update and commit; return the job as it is then, and the models that failed.

    Where all of them fail, what the first one raised is raised, and nothing is committed.
    """
    ledger = ws.ledger
    with metered() as meter:
        with ledger.step(job, "plan"):
            progress("plan")
            targets = _targets(ws, "job = ?", (job,))
            _drop_unfinished(ws, targets)
            method = ledger.job(job)["asked"].get("method", DELTA)
        with ledger.step(job, "gather"):
            progress("gather")
            salt = ledger.salt
            gathered = [gather(t.data_set, t.units, salt, fold) for t in targets]
            for target, rows in zip(targets, gathered, strict=True):
                _check_found(target, rows)
        with ledger.step(job, "update"):
            updates = update_models(
                Change(ws, fence, fold, progress, name, target.row, rows, method)
                for target, rows in zip(targets, gathered, strict=True)
                for name in target.models
            )
            if updates.failures and not updates.versions:
                raise updates.failures[0].error
    report = {
        "job": job,
        "requests": sum(len(t.units) for t in targets),
        "units": sum(len(t.units) for t in targets),
        "rows": sum(len(g.removed.units) for g in gathered),
        "cells": sum(len(g.parts) for g in gathered),
        "models": [v.report for v in updates.versions],
        "cells_read": len(meter.cells),
        "bytes_read": meter.bytes_read,
        "bytes_written": meter.bytes_written,
        "tasks": fold.tasks,
    }
    if updates.failures:
        report["update_failures"] = [f.told() for f in updates.failures]
    names = [t.row["name"] for t in targets]
    former = ranges_before(ws, names)
    if updates.failures and former.marks:
        report[MARKS] = former.marks
    with ledger.step(job, "commit"):
        _commit(ws, job, targets, gathered, updates, report)
    by_name = dict(zip(names, gathered, strict=True))
    return committed(job, report, by_name, former), updates.failures


def committed(
    job: int,
    report: dict[str, Any],
    gathered: Mapping[str, Gathered],
    former: Former,
) -> Committed:
    """A job as it is after its commit, in the process that gathered the rows; by data set."""
    known = {(name, p.cell): p.statistics for name, g in gathered.items() for p in g.parts}
    return Committed(job, report, known, Deleted(leaving(gathered), former))


def leaving(gathered: Mapping[str, Gathered]) -> dict[str, Rows]:
    """The rows that were gathered to be deleted, by data set."""
    return {name: g.sparse if g.data_set.sparse else g.removed.x for name, g in gathered.items()}


def stop_partly_done(
    ws: Workspace, job: int, failures: Sequence[Failure], fold: Fold, progress: Progress
) -> dict[str, Any]:
    """End a job that its commit made partly done: former versions go, the rows stay as they are.

    Returns its report; ``behind`` has the models that failed, each with what may be told of its error,
    which is kept nowhere.
    """
    with ws.ledger.step(job, "retire"):
        progress("retire")
        fold.close()
        ws.sweep_garbage()
    report = {k: v for k, v in ws.ledger.job(job)["report"].items() if k != MARKS}
    return {
        **report,
        "state": PARTLY_DONE,
        "behind": [{**f.told(), "problem": told(f.error)} for f in failures],
        "receipts": [],
        "signed": False,
        "verification": None,
    }


def finish_committed(
    ws: Workspace, done: Committed, fence: Fence, fold: Fold, progress: Progress
) -> dict[str, Any]:
    """What follows the commit of all models; whatever goes wrong there, the job can be resumed."""
    try:
        return finish(ws, done, fence, fold, progress) | {"state": "done", "behind": []}
    except VerifyError:
        raise
    except Exception as error:
        kind = type(error) if isinstance(error, JobError) else JobError
        raise kind(
            f"{told(error)}; the deletion is committed: expunge job resume {done.job} finishes it"
        ) from error


def _drop_unfinished(ws: Workspace, targets: list[Target]) -> None:
    """Let go of what killed trainings on these data sets left: it knows the rows that go."""
    names = {target.row["name"] for target in targets}
    ledger = ws.ledger
    with ledger.transaction():
        for row in ledger.rows(
            "SELECT id, asked FROM jobs WHERE kind = 'train' AND state = 'interrupted'"
        ):
            if json.loads(row["asked"])["data"] in names:
                ledger.report_job(row["id"], {})
    ws.sweep_garbage()


def _check_found(target: Target, gathered: Gathered) -> None:
    """JobError unless every unit was found: a receipt must not speak of rows that are elsewhere."""
    missing = len(np.setdiff1d(target.units, gathered.removed.units))
    if missing:
        raise JobError(
            f"{missing} of {len(target.units)} units are not in data set {target.row['name']} any "
            "more, though they were when their deletion was asked for: its files are damaged; "
            "restore them"
        )


def _roll_back(
    ws: Workspace, job: int, error: Exception | KeyboardInterrupt, fence: Fence, fold: Fold
) -> None:
    """Put the requests of a job that failed or was stopped before its commit back in the queue."""
    ledger = ws.ledger
    if "committed" in ledger.job(job)["report"]:
        return
    if isinstance(error, KeyboardInterrupt | JobCancelledError):
        leave_nothing(ws, fence, fold)
        end_cancelled(ws, job)
        return
    ledger.fail_job(job, error)
    ws.sweep_garbage()


def _commit(
    ws: Workspace,
    job: int,
    targets: list[Target],
    gathered: list[Gathered],
    updates: Updates,
    report: dict[str, Any],
) -> None:
    """The one transaction: versions flip, tombstones are set, requests move on."""
    ledger = ws.ledger
    with ledger.transaction():
        check_not_cancelled(ledger, job)
        enter(ledger, job, updates)
        for target, rows in zip(targets, gathered, strict=True):
            name = target.row["name"]
            ledger.run_many(
                "INSERT INTO tombstones VALUES (?, ?, ?, ?, NULL)",
                [(job, name, p.cell, BitMap(p.slots).serialize()) for p in rows.parts],
            )
            ledger.run_many(
                "INSERT OR IGNORE INTO erased_rows VALUES (?, ?)",
                [(name, mark) for mark in rows.fingerprints(ledger.salt)],
            )
            left = int(rows.statistics.live.sum())
            ledger.run("UPDATE data_sets SET rows = ? WHERE name = ?", left, name)
            units, counts = np.unique(rows.removed.units, return_counts=True)
            ledger.run_many(
                "UPDATE requests SET rows = ? WHERE data_set = ? AND unit_hash = ? AND job = ?",
                [
                    (count, name, pseudonym(name, unit, ledger.salt), job)
                    for unit, count in zip(units.tolist(), counts.tolist(), strict=True)
                ],
            )
        ledger.report_job(job, {**report, "committed": now()})
        ledger.event("commit", {"job": job, **updates.told()})
        settle(ledger, job)
