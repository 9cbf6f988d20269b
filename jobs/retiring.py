"""``model retire``: a model and all its versions are removed for good, and its name is free.

It is the last cure of a partly done job: rows are erased only when every model that saw them has its
next version or is retired.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from .ledger import Ledger, now
from .pending import PARTLY_DONE, UNVERIFIED, behind, refuse_interrupted
from .workspace import Workspace

RETIRED = "retired"
"""Where a job's report has the models that were given up while it was under way."""
_OPEN = (PARTLY_DONE, UNVERIFIED)


def retire_model(ws: Workspace, name: str) -> dict[str, Any]:
    """Remove a model; return what it was, and the jobs that now wait for ``job retry`` alone.

    UsageError without such a model, JobError while a deletion job is interrupted. After the ledger's
    transaction the model is garbage, which whoever takes the lock next sweeps after a crash.
    """
    ledger = ws.ledger
    ledger.model(name)
    with ws.lock(f"retirement of model {name}"):
        row = ledger.model(name)
        # Its report may name the model, and what it does next is not known.
        refuse_interrupted(ledger, ["interrupted"])
        with ledger.transaction():
            versions = ledger.rows(
                "SELECT number, digest, job, created FROM versions WHERE model = ? ORDER BY number",
                name,
            )
            told = {
                "model": name,
                "data": row["data_set"],
                "algorithm": row["algorithm"],
                "version": row["version"],
                "digest": row["digest"],
                "at": now(),
            }
            jobs = _tell_open_jobs(ledger, told)
            for table, column in (("models", "name"), ("versions", "model"), ("behind", "model")):
                ledger.run(f"DELETE FROM {table} WHERE {column} = ?", name)
            first = {key: versions[0][key] for key in ("job", "created")}
            event = {**told, **first, "generation": row["generation"], "versions": versions}
            ledger.event("model retired", event)
        ws.sweep_garbage()
        with suppress(OSError):
            # Empty now, unless a stranger's file lies there.
            (ws.root / "models" / name).rmdir()
    return {**told, "versions": len(versions), "jobs": jobs}


def _tell_open_jobs(ledger: Ledger, told: dict[str, Any]) -> list[int]:
    """Move the model, in the reports of jobs that are open, from those updated to those retired."""
    late = behind(ledger, told["model"])
    found = []
    marks = ",".join("?" * len(_OPEN))
    for row in ledger.rows(f"SELECT id, report FROM jobs WHERE state IN ({marks})", *_OPEN):
        report = json.loads(row["report"])
        kept = [m for m in report["models"] if m["model"] != told["model"]]
        if len(kept) == len(report["models"]) and (late is None or late["job"] != row["id"]):
            continue
        report |= {"models": kept, RETIRED: [*report.get(RETIRED, []), told]}
        ledger.report_job(row["id"], report)
        found.append(row["id"])
    return found
