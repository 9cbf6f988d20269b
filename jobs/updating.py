"""A deletion job's update step: every model's next version, and what becomes of one that fails.

A model's failure is its own unless it tells of something that all models need: the disk, memory, the
fence, the ledger, the workers, the rows, or the request itself.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from sqlite3 import DatabaseError
from typing import Any

from ..storage.errors import NoSpaceError
from ..storage.fence import FenceHeldError, StaleOrderError
from .cancelling import JobCancelledError
from .errors import LockedError, UsageError
from .fold import CLUSTER_LOST
from .ledger import Ledger, now
from .model_family import Change, NextVersion
from .pending import PARTLY_DONE, models_behind
from .training import family_of

WHOLE_JOB: tuple[type[Exception], ...] = (
    UsageError,
    LockedError,
    JobCancelledError,
    NoSpaceError,
    MemoryError,
    StaleOrderError,
    FenceHeldError,
    DatabaseError,
    *CLUSTER_LOST,
)
"""Errors that are never of one model alone."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
"""Error numbers of a disk that can't be written, or of a process that can open no more files."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A model whose update failed."""

    model: str
    data: str
    at: str
    error: Exception

    def told(self) -> dict[str, Any]:
        """What the ledger keeps: the error's kind, since its text may quote a row."""
        names = {"at": self.at, "model": self.model, "data": self.data}
        return {**names, "error": type(self.error).__name__}


@dataclass(frozen=True, slots=True)
class Updates:
    """What came out of the update step."""

    versions: tuple[NextVersion, ...]
    failures: tuple[Failure, ...]

    def told(self) -> dict[str, Any]:
        """What the commit's event says: the new versions' digests, and who is behind."""
        digests = {v.model: v.digest for v in self.versions}
        behind = {"behind": [f.model for f in self.failures]} if self.failures else {}
        return {"digests": digests, **behind}


def update_models(changes: Iterable[Change]) -> Updates:
    """Write every model's next version; raise what concerns the whole job."""
    versions, failures = [], []
    for change in changes:
        algorithm = change.ws.ledger.model(change.model)["algorithm"]
        try:
            versions.append(family_of(algorithm).next_version(change))
        except Exception as error:
            if _is_of_the_job(error, change):
                raise
            # What looks like a model's failure may be what a stopped job left of it.
            change.fold.check()
            failures.append(Failure(change.model, change.data_row["name"], now(), error))
            change.progress(f"model {change.model} failed")
    return Updates(tuple(versions), tuple(failures))


def concerns_all(error: Exception) -> bool:
    """Whether an error is of a kind that is never of one model alone."""
    return isinstance(error, WHOLE_JOB) or (isinstance(error, OSError) and error.errno in _DISK)


def _is_of_the_job(error: Exception, change: Change) -> bool:
    """Whether an error of one model's update would be, or may be, every other's too."""
    if concerns_all(error):
        return True
    # Errors of storage name the file: one of the data set's rows is nobody's own.
    files = [str(error), *([str(error.filename)] if isinstance(error, OSError) else [])]
    return any(str(change.gathered.data_set.path) in file for file in files)


def enter(ledger: Ledger, job: int, updates: Updates) -> None:
    """Make the new versions current, and note who is behind; call inside a transaction."""
    for v in updates.versions:
        ledger.add_version(v.model, v.number, v.folder, v.digest, job)
        ledger.run(
            "UPDATE models SET version = ?, rows = ? WHERE name = ?", v.number, v.rows, v.model
        )
        ledger.run("DELETE FROM behind WHERE model = ?", v.model)
    for f in updates.failures:
        error = type(f.error).__name__
        ledger.run(
            "INSERT INTO behind VALUES (?, ?, ?, ?) ON CONFLICT (model) DO UPDATE SET error = ?",
            *(f.model, job, error, f.at, error),
        )


def settle(ledger: Ledger, job: int) -> bool:
    """Move a job and its requests on, by whether models are behind; call inside a transaction.

    Returns whether the job is partly done.
    """
    waits = bool(models_behind(ledger, job))
    state = PARTLY_DONE if waits else "committed"
    ledger.run("UPDATE requests SET state = ? WHERE job = ?", state, job)
    if waits:
        ledger.run("UPDATE jobs SET state = ? WHERE id = ?", PARTLY_DONE, job)
        ledger.event("job", {"job": job, "state": PARTLY_DONE})
    return waits
