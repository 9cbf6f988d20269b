"""``job resume``: every kind of interrupted job ends as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..storage.fence import Fence
from .deletion import resume_deletion
from .errors import UsageError
from .fold import Fold
from .importing import make_data_set
from .pending import PARTLY_DONE, WAITING, cure
from .retrying import is_partly_done, retry_behind
from .training import train
from .workspace import Workspace


def resume(
    ws: Workspace,
    job: int,
    fold: Fold,
    progress: Callable[[str, float | None], None],
) -> dict[str, Any]:
    """Finish job ``job``; UsageError if it is not interrupted.

    A training or import whose name was given to another since is closed as abandoned.
    """
    with ws.lock(f"resuming job {job}") as fence:
        row = ws.ledger.job(job)
        if row["state"] not in WAITING:
            what = f"; {cure(ws.ledger, job)}" if row["state"] == PARTLY_DONE else ""
            raise UsageError(f"job {job} is {row['state']}: there is nothing to resume{what}")
        if row["kind"] == "deletion":
            return _resume_deletion(ws, job, fence, fold, lambda what: progress(what, None))
        if _made_since(ws, row):
            with ws.ledger.transaction():
                ws.ledger.end_job(job, "abandoned", {})
            return {"job": job, "state": "abandoned"}
    asked = dict(row["asked"])
    if row["kind"] == "train":
        return train(ws, asked.pop("model"), asked, fold, lambda what: progress(what, None), job)
    return make_data_set(ws, asked.pop("name"), asked, progress, job)


def _resume_deletion(
    ws: Workspace, job: int, fence: Fence, fold: Fold, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Go on with a retry that was interrupted before its commit, else with the job itself."""
    if is_partly_done(ws.ledger, job):
        return retry_behind(ws, job, fence, fold, progress)
    return resume_deletion(ws, job, fence, fold, progress)


def _made_since(ws: Workspace, job: dict[str, Any]) -> bool:
    """Whether another job has made what this one was to make."""
    kind, table = ("model", "models") if job["kind"] == "train" else ("name", "data_sets")
    name = job["asked"][kind]
    return ws.ledger.row(f"SELECT name FROM {table} WHERE name = ?", name) is not None
