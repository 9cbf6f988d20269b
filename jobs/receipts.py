"""Receipts: one a request, naming the unit by its keyed hash only.

What all receipts of a job and data set have in common is kept once, as it was when they were
issued; ``receipt`` joins it with a receipt's own part into the document that a requester gets, which
``receipt_schema.json`` describes. Where the workspace has a key, that document is signed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ..storage.cells import pseudonym
from .canonical import canonical
from .errors import UsageError
from .ledger import Ledger, now
from .receipt_schema import RECEIPT_SCHEMA
from .retiring import RETIRED
from .signing import Signer, signer_of
from .statements import limits, statement
from .workspace import Workspace

LISTED = ("receipt", "request", "data", "unit_hash", "rows", "received", "issued", "key")
"""What a list of receipts tells of each."""
OWN = ("unit_hash", "rows", "received", "due", "reference", "ground")
"""What a receipt has of its request as it is."""


def issue(
    ws: Workspace, job: int, report: dict[str, Any], verified: Mapping[str, dict[str, Any]]
) -> tuple[list[str], bool]:
    """Close the job: receipts out, requests done; one transaction, so none is issued twice.

    verified: how each data set's deletions were verified. Returns the receipts' names, and whether
    they are signed: they are if the workspace has a key, and none goes out if that key can't be used.

    Receipts are signed before the transaction, which others would have to wait for, and again if
    somebody changed a request of them meanwhile.
    """
    ledger, signer = ws.ledger, signer_of(ws)
    committed = ledger.job(job)["report"]["committed"]
    erased = ledger.value("SELECT max(erased) FROM tombstones WHERE job = ?", job)
    report = _finite({**report, "committed": committed, "erased": erased})
    while True:
        rows = _requests_of(ledger, job)
        parts, bodies = _made(ledger.job(job), report, verified, rows, signer)
        with ledger.transaction():
            if _requests_of(ledger, job) != rows:
                continue
            ledger.run_many(
                "INSERT INTO receipt_parts VALUES (?, ?, ?)",
                [(job, data, json.dumps(part)) for data, part in parts.items()],
            )
            ledger.run_many(
                "INSERT INTO receipts VALUES (?, ?, ?, ?)",
                [(b["receipt"], b["request"], job, json.dumps(b)) for b in bodies],
            )
            ledger.run("UPDATE requests SET state = 'done' WHERE job = ?", job)
            key = None if signer is None else signer.key_id
            ledger.event("receipts", {"job": job, "receipts": len(bodies), "key": key})
            ledger.end_job(job, "done", report)
            return [body["receipt"] for body in bodies], signer is not None


def _requests_of(ledger: Ledger, job: int) -> list[dict[str, Any]]:
    rows = ledger.rows("SELECT * FROM requests WHERE job = ? ORDER BY id", job)
    return [dict(row) for row in rows]


def _made(
    job: dict[str, Any],
    report: dict[str, Any],
    verified: Mapping[str, dict[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    signer: Signer | None,
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Return the part that the receipts of each data set share, and each request's own, signed."""
    issued = now()
    parts = {
        data: _part(job, report, data, _finite(verified[data]), issued, signer)
        for data in sorted({row["data_set"] for row in rows})
    }
    spelt = {
        data: {name: canonical(member) for name, member in part.items()}
        for data, part in parts.items()
    }
    bodies = []
    for row in rows:
        own = {
            "receipt": f"R{row['id']:08d}",
            "request": row["id"],
            "data": row["data_set"],
            "issued": issued,
            **{name: row[name] for name in OWN},
        }
        bodies.append({**own, "signature": _signature(signer, spelt[row["data_set"]], own)})
    return parts, bodies


def _part(
    job: dict[str, Any],
    report: dict[str, Any],
    data: str,
    verification: dict[str, Any],
    issued: str,
    signer: Signer | None,
) -> dict[str, Any]:
    """What the receipts of a job and data set have in common."""
    models = [m for m in report["models"] if m["data"] == data]
    # Models of other data sets are not this person's business.
    told = {
        name: [m for m in report[name] if m["data"] == data]
        for name in ("update_failures", RETIRED)
        if name in report
    }
    return {
        "schema": RECEIPT_SCHEMA,
        "program": {"name": "expunge", "version": version("expunge")},
        "statement": statement(models, told.get(RETIRED, [])),
        "limits": limits(models, signed=signer is not None),
        "verification": verification,
        "job": {
            **{name: value for name, value in report.items() if name != "verification"},
            "models": models,
            **told,
            "started": job["created"],
            "finished": issued,
            "steps": job["steps"],
        },
    }


def _signature(
    signer: Signer | None, part: dict[str, bytes], own: dict[str, Any]
) -> dict[str, str] | None:
    if signer is None:
        return None
    return signer.sign({**part, **{name: canonical(member) for name, member in own.items()}})


def _finite(value: Any) -> Any:
    """A report without numbers that JSON has not: what is not finite is null."""
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def receipt(ledger: Ledger, name: str) -> dict[str, Any]:
    """Return a receipt as a requester gets it; UsageError if unknown."""
    row = ledger.row("SELECT * FROM receipts WHERE id = ?", name)
    if row is None:
        raise UsageError(f"there is no receipt {name!r}; expunge receipt list shows them")
    own = json.loads(row["body"])
    query = "SELECT body FROM receipt_parts WHERE job = ? AND data_set = ?"
    part = json.loads(ledger.value(query, row["job"], own["data"]))
    document = {"schema": part["schema"], **own, **part}
    # Receipts of schema 1 had no place for a signature.
    return document | ({"signature": document.pop("signature")} if "signature" in own else {})


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
    return [{name: _line(body)[name] for name in LISTED} for body in found]


def _line(body: dict[str, Any]) -> dict[str, Any]:
    """A receipt's own part, with the id of the key that signed it."""
    return {"rows": None, **body, "key": (body.get("signature") or {}).get("key")}
