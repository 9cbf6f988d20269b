"""What unfinished deletion jobs keep back: rows that nobody may read, models that are behind.

A model is behind while its version saw rows whose deletion is committed: its update failed, and the
others' did not. The rows stay where they are then, tombstoned, until the model has its next version
(``job retry``) or is gone (``model retire``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..storage.dataset import DataSet
from .errors import JobError
from .ledger import Ledger

PARTLY_DONE = "partly done"
"""The state of a job, and of its requests, while models are behind or the rows wait for the erasure."""
UNVERIFIED = "unverified"
"""The state of a job that erased its rows, and whose verification found something wrong."""
WAITING = ("interrupted", UNVERIFIED)
"""States of a job that waits to be resumed."""


def check_nothing_pending(ledger: Ledger, data_set: str) -> None:
    """JobError, naming the job and the cure, while committed deletions from a data set are not erased."""
    query = (
        "SELECT t.job, j.state FROM tombstones t JOIN jobs j ON j.id = t.job "
        "WHERE t.erased IS NULL AND t.data_set = ? LIMIT 1"
    )
    pending = ledger.row(query, data_set)
    if pending is None:
        return
    job = pending["job"]
    if pending["state"] == PARTLY_DONE:
        raise JobError(
            f"job {job} is partly done: its deletions from {data_set} are committed and the rows wait "
            f"for {_waiting(ledger, job)}, so nothing may read them; {cure(ledger, job)}"
        )
    raise JobError(
        f"job {job} has committed deletions from {data_set} that are not erased yet: run expunge "
        f"job resume {job} first"
    )


def open_readable(ledger: Ledger, data_set: str, root: Path) -> tuple[dict[str, Any], DataSet]:
    """``Ledger.open_data_set`` for whoever reads rows: JobError while deletions from it are not erased."""
    check_nothing_pending(ledger, data_set)
    return ledger.open_data_set(data_set, root)


def refuse_interrupted(ledger: Ledger, states: Sequence[str] = WAITING) -> None:
    """JobError while a deletion job waits to be resumed, in one of these states."""
    marks = ",".join("?" * len(states))
    query = f"SELECT id FROM jobs WHERE kind = 'deletion' AND state IN ({marks})"
    job = ledger.value(query, *states)
    if job is not None:
        raise interrupted(job)


def interrupted(job: int) -> JobError:
    """What to say of a deletion job that waits to be resumed."""
    return JobError(f"deletion job {job} was interrupted: run expunge job resume {job} first")


def models_behind(ledger: Ledger, job: int) -> list[dict[str, Any]]:
    """Return the models that a job has left behind: model, data, error (its type), since."""
    return ledger.rows(
        "SELECT b.model, m.data_set AS data, b.error, b.since FROM behind b "
        "JOIN models m ON m.name = b.model WHERE b.job = ? ORDER BY m.data_set, b.model",
        job,
    )


def behind(ledger: Ledger, model: str) -> dict[str, Any] | None:
    """Return since when a model is behind, by which job and why; None where it is not."""
    return ledger.row("SELECT job, error, since FROM behind WHERE model = ?", model)


def refuse_behind(ledger: Ledger, model: str) -> None:
    """JobError where a model is behind: what it knows of deleted rows is not to be used."""
    found = behind(ledger, model)
    if found is not None:
        raise JobError(
            f"model {model} is behind: it has seen rows whose deletion job {found['job']} has "
            f"committed; {cure(ledger, found['job'])}"
        )


def cure(ledger: Ledger, job: int) -> str:
    """Return what ends a partly done job."""
    models = [m["model"] for m in models_behind(ledger, job)]
    if not models:
        return f"expunge job retry {job} finishes it"
    return (
        f"expunge job retry {job} tries again (--method basel trains regressions anew), expunge model "
        f"retire {models[0]} gives the model up"
    )


def _waiting(ledger: Ledger, job: int) -> str:
    models = [m["model"] for m in models_behind(ledger, job)]
    if not models:
        return "their erasure"
    return f"model{'s' * (len(models) > 1)} {', '.join(models)}"
