"""``job retry``: a job that is committed goes on where some of its models held it up.

A partly done job gathers its rows again from the committed addresses, takes the models that are
behind once more, and is finished once none is left. An unverified one trains the regressions anew
whose verification failed, and is verified again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..pipeline.regression import BASEL, DELTA
from ..storage.fence import Fence
from ..storage.files import metered
from . import regression_models, sparse_models
from .deletion import committed, finish_committed, leaving, stop_partly_done
from .erasure import Committed, addresses
from .errors import JobError, UsageError
from .fold import Fold
from .former_ranges import MARKS, ranges_again
from .ledger import Ledger
from .model_family import Change, NextVersion
from .pending import PARTLY_DONE, UNVERIFIED, models_behind, refuse_interrupted
from .plan import Gathered, gather
from .signing import signer_of
from .training import family_of
from .updating import Updates, enter, settle, update_models
from .verification_records import AT_FAULT, FAILURES, close_unverified
from .workspace import Workspace

RETRY_METHOD = "retry_method"
"""Where what was asked of a job has the method of its last retry."""
_TRAINED_ANEW = (*regression_models.ALGORITHMS, *sparse_models.ALGORITHMS)
"""Algorithms that BaseL mends; a model of the others is a retrain already, or its files are damaged."""
_FIRST = ("version_before", "digest_before", "rows_before")
"""What a report tells of the version that saw the rows."""
Progress = Callable[[str], None]


def retry(
    ws: Workspace, job: int, fold: Fold, progress: Progress, method: str | None = None
) -> dict[str, Any]:
    """Carry a partly done or unverified job on; return its report, as ``run_batch`` does.

    method: how regressions update this time; None for the method of the batch. UsageError where
    there is nothing to retry.
    """
    ledger = ws.ledger
    with ws.lock(f"retrying job {job}") as fence:
        row = ledger.job(job)
        if row["kind"] != "deletion" or row["state"] not in (PARTLY_DONE, UNVERIFIED):
            cure = f"; expunge job resume {job} goes on" if row["state"] == "interrupted" else ""
            raise UsageError(f"job {job} is {row['state']}: there is nothing to retry{cure}")
        refuse_interrupted(ledger, ["interrupted"])
        # A key that is lost or damaged is told before anything more is done.
        signer_of(ws)
        if row["state"] == UNVERIFIED:
            return _mend(ws, job, fence, fold, progress)
        with ledger.transaction():
            asked = {**row["asked"], RETRY_METHOD: method or row["asked"].get("method", DELTA)}
            ledger.ask_job(job, asked)
        return retry_behind(ws, job, fence, fold, progress)


def is_partly_done(ledger: Ledger, job: int) -> bool:
    """Whether a committed job's rows still wait for models, however it was interrupted since."""
    query = "SELECT id FROM requests WHERE job = ? AND state = ? LIMIT 1"
    return ledger.row(query, job, PARTLY_DONE) is not None


def retry_behind(
    ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Progress
) -> dict[str, Any]:
    """Update the models that are behind, by the method of the last retry, and finish the job if it can be.

    Call with the lock held. What goes wrong leaves the job partly done.
    """
    ws.ledger.restart_job(job)
    try:
        done, updates = _update_again(ws, job, fence, fold, progress)
    except (Exception, KeyboardInterrupt):
        _put_back(ws.ledger, job)
        raise
    if updates.failures:
        return stop_partly_done(ws, job, updates.failures, fold, progress)
    return finish_committed(ws, done, fence, fold, progress)


def _put_back(ledger: Ledger, job: int) -> None:
    """Leave a job as it was before a retry that did not come to its commit."""
    with ledger.transaction():
        if is_partly_done(ledger, job):
            ledger.run("UPDATE jobs SET state = ? WHERE id = ?", PARTLY_DONE, job)
            ledger.event("job", {"job": job, "state": PARTLY_DONE})


@dataclass(frozen=True, slots=True)
class _Again:
    """A data set whose rows were gathered once more."""

    row: dict[str, Any]
    gathered: Gathered


def _update_again(
    ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Progress
) -> tuple[Committed, Updates]:
    """Gather, update what is behind, and commit it; return the job as it is then."""
    ledger = ws.ledger
    late = models_behind(ledger, job)
    method = ledger.job(job)["asked"].get(RETRY_METHOD, DELTA)
    with metered() as meter:
        with ledger.step(job, "gather again"):
            progress("gather again")
            sets = {name: _gather_again(ws, job, name, fold) for name in addresses(ws, job)}
        with ledger.step(job, "update again"):
            updates = update_models(
                _change(ws, fence, fold, progress, m["model"], sets[m["data"]], method)
                for m in late
            )
    report = ledger.job(job)["report"]
    report |= {
        "models": sorted(
            [*report["models"], *(v.report for v in updates.versions)],
            key=lambda m: (m["data"], m["model"]),
        ),
        "cells_read": max(report["cells_read"], len(meter.cells)),
        "bytes_read": report["bytes_read"] + meter.bytes_read,
        "bytes_written": report["bytes_written"] + meter.bytes_written,
    }
    if updates.failures:
        told = [f.told() for f in updates.failures]
        report["update_failures"] = [*report.get("update_failures", []), *told]
    gathered = {name: again.gathered for name, again in sets.items()}
    behind = [m["model"] for m in late]
    former = ranges_again(ws, leaving(gathered), report.get(MARKS, {}), behind)
    with ledger.step(job, "commit again"), ledger.transaction():
        enter(ledger, job, updates)
        ledger.report_job(job, report)
        ledger.event("commit", {"job": job, **updates.told()})
        settle(ledger, job)
    return committed(job, report, gathered, former), updates


def _change(
    ws: Workspace,
    fence: Fence,
    fold: Fold,
    progress: Progress,
    model: str,
    again: _Again,
    method: str,
) -> Change:
    return Change(ws, fence, fold, progress, model, again.row, again.gathered, method)


def _gather_again(ws: Workspace, job: int, name: str, fold: Fold) -> _Again:
    """Read the rows at a job's committed addresses; JobError unless they are all there still."""
    ledger = ws.ledger
    row, data_set = ledger.open_data_set(name, ws.root)
    slots = addresses(ws, job)[name]
    units = np.unique(np.concatenate([data_set.read_units(c)[s] for c, s in slots.items()]))
    gathered = gather(data_set, units[units >= 0], ledger.salt, fold)
    if not _same_places(gathered.slots, slots):
        raise JobError(
            f"data set {name} does not hold the rows any more that job {job} is to delete, at their "
            "committed addresses: its files are damaged; restore them"
        )
    return _Again(row, gathered)


def _same_places(one: Mapping[int, Any], other: Mapping[int, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[c], other[c]) for c in one)


# ---- models whose verification failed


def _mend(ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Progress) -> dict[str, Any]:
    """Train the regressions anew that the last verification found wrong; then go on after the commit.

    The rows are erased, so each retrain is on the rows that are left.
    """
    ledger = ws.ledger
    ledger.restart_job(job)
    try:
        names = _at_fault(ledger, job)
        if names:
            with ledger.step(job, "mend"):
                changes = [_without_rows(ws, fence, fold, progress, name) for name in names]
                versions = [_family(ledger, c.model).next_version(c) for c in changes]
                _enter_mended(ledger, job, versions)
    except (Exception, KeyboardInterrupt):
        with ledger.transaction():
            close_unverified(ledger, job)
            ledger.event("job", {"job": job, "state": UNVERIFIED})
        raise
    done = Committed(job, ledger.job(job)["report"], {}, None)
    return finish_committed(ws, done, fence, fold, progress)


def _family(ledger: Ledger, model: str) -> Any:
    return family_of(ledger.model(model)["algorithm"])


def _at_fault(ledger: Ledger, job: int) -> list[str]:
    """The regressions that the job's last verification found wrong and that are there still."""
    report = ledger.job(job)["report"]
    failures = report.get(FAILURES, [])
    wrong = failures[-1].get(AT_FAULT, []) if failures else []
    there = {m["model"]: m["algorithm"] for m in report["models"]}
    return [name for name in wrong if there.get(name) in _TRAINED_ANEW]


def _without_rows(
    ws: Workspace, fence: Fence, fold: Fold, progress: Progress, model: str
) -> Change:
    """A change that takes no row away and trains the model anew."""
    row, data_set = ws.ledger.open_data_set(ws.ledger.model(model)["data_set"], ws.root)
    gathered = Gathered(data_set, data_set.statistics(), ())
    return Change(ws, fence, fold, progress, model, row, gathered, BASEL)


def _enter_mended(ledger: Ledger, job: int, versions: list[NextVersion]) -> None:
    """Make the retrained versions current, and have the report tell of them in place of the wrong ones."""
    made = {v.model: {**v.report, "reason": "its verification failed"} for v in versions}
    with ledger.transaction():
        enter(ledger, job, Updates(tuple(versions), ()))
        report = ledger.job(job)["report"]
        report["models"] = [
            {**made[m["model"]], **{name: m[name] for name in _FIRST}} if m["model"] in made else m
            for m in report["models"]
        ]
        ledger.report_job(job, report)
        ledger.event("commit", {"job": job, "digests": {v.model: v.digest for v in versions}})
