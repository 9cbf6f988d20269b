"""What operators do with requests after they were asked: list, show, cancel, extend."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .errors import UsageError
from .holds import holds_on, release_ended_holds
from .ledger import Ledger
from .request_states import (
    CANCELLED,
    DELETED,
    HELD,
    OPEN,
    STATES,
    WAITING,
    checked_text,
    marks,
)
from .request_times import later, parse_time, stamp
from .unit_lookup import clear_log, refuse_names
from .workspace import Workspace


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which requests to list; what is None does not matter."""

    state: str | None = None
    data: str | None = None
    reference: str | None = None
    overdue: bool = False
    """Only open requests whose due time is past."""
    due_within: timedelta | None = None
    """Only open requests that are due by then, with those that are overdue."""


def list_requests(
    ws: Workspace, chosen: Chosen, limit: int, at: datetime | None = None
) -> dict[str, Any]:
    """Return the first ``limit`` chosen requests, and how many there are of each state.

    Open ones come first, in the order in which they are due. UsageError for a state there is not.
    """
    release_ended_holds(ws, at)
    present = stamp(at)
    condition, values = _condition(ws.ledger, chosen, present)
    counts = ws.ledger.rows(
        f"SELECT state, count(*) AS requests FROM requests WHERE {condition} GROUP BY state",
        *values,
    )
    rows = ws.ledger.rows(
        f"SELECT * FROM requests WHERE {condition} "
        f"ORDER BY state NOT IN ({marks(OPEN)}), due, id LIMIT ?",
        *values,
        *OPEN,
        limit,
    )
    by_state = {row["state"]: row["requests"] for row in counts}
    return {
        "matching": sum(by_state.values()),
        "counts": {state: by_state[state] for state in STATES if state in by_state},
        "requests": [_line(ws.ledger, row, present) for row in rows],
    }


def show_request(ws: Workspace, request: int, at: datetime | None = None) -> dict[str, Any]:
    """Return all that is known of a request, with its holds and its history; UsageError if unknown."""
    release_ended_holds(ws, at)
    ledger = ws.ledger
    row = _request(ledger, request)
    others = ledger.rows("SELECT reference FROM other_references WHERE request = ?", request)
    return {
        **_line(ledger, row, stamp(at)),
        "other_references": [other["reference"] for other in others],
        "extended": row["extended"],
        "job": row["job"],
        "rows": row["rows"] if row["state"] in DELETED else None,
        "receipt": ledger.value("SELECT id FROM receipts WHERE request = ?", request),
        "history": _history(ledger, request),
    }


def cancel_request(
    ws: Workspace, request: int, reason: str | None = None, at: datetime | None = None
) -> dict[str, Any]:
    """Take a request that waits, or is held, back and clear its unit; return it.

    UsageError where it is too late. Of one that is cancelled already nothing changes. LockedError if
    the unit can't be cleared from the ledger's log yet: then cancel it again.
    """
    ledger = ws.ledger
    told = None if reason is None else checked_text(reason, "--reason")
    with ledger.transaction():
        row = _request(ledger, request)
        _refuse_name(ledger, row, told)
        if row["state"] in WAITING:
            ledger.run(
                "UPDATE requests SET state = ?, unit = NULL WHERE id = ?", CANCELLED, request
            )
            ledger.event("request", {"request": request, "state": CANCELLED, "reason": told})
        elif row["state"] != CANCELLED:
            raise UsageError(
                f"request {request} is {row['state']}{_in_job(row)}: only one that is queued or held "
                "can be cancelled"
            )
    clear_log(ledger, f"request {request} is cancelled")
    return show_request(ws, request, at)


def extend_request(
    ws: Workspace, request: int, until: str, reason: str, at: datetime | None = None
) -> dict[str, Any]:
    """Put an open request's due time off, any number of times; return it with its history."""
    ledger = ws.ledger
    told = checked_text(reason, "--reason")
    due = parse_time(until, "--until", end=True)
    with ledger.transaction():
        row = _request(ledger, request)
        if row["state"] not in OPEN:
            raise UsageError(f"request {request} is {row['state']}: there is nothing to extend")
        _refuse_name(ledger, row, told)
        if due <= row["due"]:
            raise UsageError(
                f"--until is {due}, but request {request} is due at {row['due']} already: name a "
                "later time"
            )
        ledger.run("UPDATE requests SET due = ?, extended = ? WHERE id = ?", due, told, request)
        body = {"request": request, "due": due, "before": row["due"], "reason": told}
        ledger.event("request", body)
    return show_request(ws, request, at)


def _condition(ledger: Ledger, chosen: Chosen, present: str) -> tuple[str, list[Any]]:
    """The condition of a query for the chosen requests, and its values."""
    parts: list[tuple[str, tuple[Any, ...]]] = [("1", ())]
    if chosen.state is not None:
        if chosen.state not in STATES:
            raise UsageError(f"--state is {chosen.state!r}; it is one of {', '.join(STATES)}")
        parts.append(("state = ?", (chosen.state,)))
    if chosen.data is not None:
        # The plus keeps SQLite from the index of units, whose order has nothing to do with this one.
        parts.append(("+data_set = ?", (ledger.data_set(chosen.data)["name"],)))
    if chosen.reference is not None:
        other = "SELECT request FROM other_references WHERE reference = ?"
        parts.append((f"(reference = ? OR id IN ({other}))", (chosen.reference.strip(),) * 2))
    is_open = f"state IN ({marks(OPEN)}) AND due"
    if chosen.overdue:
        parts.append((f"{is_open} < ?", (*OPEN, present)))
    if chosen.due_within is not None:
        parts.append((f"{is_open} <= ?", (*OPEN, later(present, chosen.due_within))))
    return " AND ".join(text for text, _ in parts), [v for _, values in parts for v in values]


def _line(ledger: Ledger, row: dict[str, Any], present: str) -> dict[str, Any]:
    """A request as lists show it; its unit is in the clear only while it is open."""
    held = holds_on(ledger, row["data_set"], row["unit_hash"]) if row["state"] == HELD else []
    return {
        "request": row["id"],
        "state": row["state"],
        "data": row["data_set"],
        "unit": None if row["state"] == CANCELLED else row["unit"],
        "unit_hash": row["unit_hash"],
        "reference": row["reference"],
        "requester": row["requester"],
        "ground": row["ground"],
        "received": row["received"],
        "due": row["due"],
        "overdue": row["state"] in OPEN and row["due"] < present,
        "holds": held,
    }


def _history(ledger: Ledger, request: int) -> list[dict[str, Any]]:
    """What was done with a request by its number, oldest first."""
    events = ledger.rows(
        "SELECT at, body FROM events WHERE kind = 'request' AND json_extract(body, '$.request') = ? "
        "ORDER BY id",
        request,
    )
    return [{"at": event["at"], **json.loads(event["body"])} for event in events]


def _refuse_name(ledger: Ledger, row: dict[str, Any], reason: str | None) -> None:
    """UsageError if a reason names the subject of a request that is open still."""
    if row["unit"] is not None:
        refuse_names((reason,), [row["unit"]], ledger.salt)


def _in_job(row: dict[str, Any]) -> str:
    return "" if row["job"] is None else f" in job {row['job']}"


def _request(ledger: Ledger, request: int) -> dict[str, Any]:
    found = ledger.row("SELECT * FROM requests WHERE id = ?", request)
    if found is None:
        raise UsageError(f"there is no request {request}; expunge request list shows them")
    return found
