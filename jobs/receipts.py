"""Receipts: one a request, naming the unit by its keyed hash only.

What all requests of a job share (models, digests, counters, times) is the job's report, kept once;
``receipt`` joins the two into the document that a requester gets.
"""

from __future__ import annotations

import json
from typing import Any

from ..storage.cells import pseudonym
from .errors import UsageError
from .ledger import Ledger, now

RECEIPT_SCHEMA = 1
STATEMENT = (
    "All rows of this unit were deleted from the data set and from every model listed; each model "
    "is bit for bit the one that training without them gives, and the rows' bytes were overwritten."
)
APPROXIMATE = (
    "All rows of this unit were deleted from the data set, and their bytes were overwritten. They "
    "were deleted from every model listed: a model marked exact is bit for bit the one that training "
    "without them gives; a model marked approximate was updated by the method and provenance named. "
    "Its distance from a retrain on the same mini-batches is estimated, to within ten times, and it "
    "still depends on the deleted rows through the residual of the linearisation and through the "
    "standardisation of its first fit."
)


def statement(models: list[dict[str, Any]]) -> str:
    """Return what a receipt says of the models that saw a unit: more where one is approximate."""
    approximate = any(m["exactness"] == "approximate" for m in models)
    return APPROXIMATE if approximate else STATEMENT


def issue(ledger: Ledger, job: int, report: dict[str, Any]) -> list[str]:
    """Close the job: receipts out, requests done; one transaction."""
    with ledger.transaction():
        committed = ledger.job(job)["report"]["committed"]
        erased = ledger.value("SELECT max(erased) FROM tombstones WHERE job = ?", job)
        rows = ledger.rows("SELECT * FROM requests WHERE job = ? ORDER BY id", job)
        names = [f"R{row['id']:08d}" for row in rows]
        bodies = [
            {
                "receipt": name,
                "request": row["id"],
                "data": row["data_set"],
                "unit_hash": row["unit_hash"],
                "received": row["received"],
                "issued": now(),
            }
            for name, row in zip(names, rows, strict=True)
        ]
        ledger.run_many(
            "INSERT INTO receipts VALUES (?, ?, ?, ?)",
            [(b["receipt"], b["request"], job, json.dumps(b)) for b in bodies],
        )
        ledger.run("UPDATE requests SET state = 'done' WHERE job = ?", job)
        ledger.event("receipts", {"job": job, "receipts": len(names)})
        ledger.end_job(job, "done", {**report, "committed": committed, "erased": erased})
    return names


def receipt(ledger: Ledger, name: str) -> dict[str, Any]:
    """Return a receipt as a requester gets it; UsageError if unknown."""
    row = ledger.row("SELECT * FROM receipts WHERE id = ?", name)
    if row is None:
        raise UsageError(f"there is no receipt {name!r}; expunge receipt list shows them")
    job, body = ledger.job(row["job"]), json.loads(row["body"])
    models = [m for m in job["report"]["models"] if m["data"] == body["data"]]
    return {
        "schema": RECEIPT_SCHEMA,
        **body,
        "statement": statement(models),
        "job": {
            **job["report"],
            "models": models,
            "started": job["created"],
            "finished": job["finished"],
            "steps": job["steps"],
        },
    }


def receipts(
    ledger: Ledger, data: str | None = None, unit: int | None = None
) -> list[dict[str, Any]]:
    """Return receipts, a line each: all, or those of a data set, or of one of its units."""
    found = [json.loads(r["body"]) for r in ledger.rows("SELECT body FROM receipts ORDER BY id")]
    if data is not None:
        found = [body for body in found if body["data"] == data]
    if unit is not None:
        if data is None:
            raise UsageError("a unit is one of a data set: name it with --data")
        found = [b for b in found if b["unit_hash"] == pseudonym(data, unit, ledger.salt)]
    return found
