"""Holds: units that must be kept for a while, whoever asks for their deletion.

A hold is on until it is lifted or its time is over. Then its requests go back to the queue by
themselves, at the start of the next batch or the next time that anybody looks, and its units stand in
the ledger by keyed hashes alone. A unit that a job deleted all the same, since it ran when the hold was
placed, stands so from its receipt on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.cells import pseudonym
from .errors import LockedError, UsageError
from .ledger import Ledger
from .request_states import DELETED, HELD, RUNNING, checked_text
from .request_times import parse_time, stamp
from .unit_lookup import asked_already, clear_log, find_units, name_units, refuse_names
from .workspace import Workspace

ON, LIFTED, OVER = "on", "lifted", "over"
_ON = "SELECT id FROM holds WHERE state = 'on'"
_TO_HOLD = """
SELECT r.id FROM holds h JOIN held_units u ON u.hold = h.id
JOIN requests r ON r.data_set = u.data_set AND r.unit_hash = u.unit_hash
WHERE h.state = 'on' AND (r.state = 'queued' OR r.state = 'running' AND r.job IN
    (SELECT id FROM jobs WHERE state = 'interrupted'))
"""
"""What waits although a hold is on; an interrupted job whose requests still run has not committed."""
_TO_QUEUE = f"""
SELECT r.id FROM requests r WHERE r.state = 'held' AND NOT EXISTS
    (SELECT 1 FROM held_units u WHERE u.data_set = r.data_set AND u.unit_hash = r.unit_hash
        AND u.hold IN ({_ON}))
"""


def place_hold(
    ws: Workspace,
    data: str,
    units: NDArray[np.int64],
    ground: str,
    until: str | None = None,
    places: Mapping[int, str] | None = None,
    at: datetime | None = None,
) -> dict[str, Any]:
    """Keep units from deletion, and hold the requests that wait for them; return what became of both.

    until: the last day or the time at which the hold ends by itself. places: as for ``forget``.
    UsageError for units that are unknown, and where all are deleted already; nothing is held then.
    """
    ledger, placed = ws.ledger, stamp(at)
    ground = checked_text(ground, "--ground")
    end = None if until is None else parse_time(until, "--until", end=True)
    if end is not None and end <= placed:
        raise UsageError(f"--until is {end}, which is past; name a time that is to come")
    _, data_set = ledger.open_data_set(data, ws.root)
    named = np.unique(units)
    refuse_names((ground,), named, ledger.salt)
    hashes = {int(unit): pseudonym(data, int(unit), ledger.salt) for unit in named}
    ws.note_dead_jobs()
    release_ended_holds(ws, at)
    with ledger.transaction():
        asked = asked_already(ledger, data, hashes.values())
        fresh = np.array([u for u, h in hashes.items() if h not in asked], np.int64)
        unknown = find_units(data_set, fresh, ledger.salt).missing
        if len(unknown):
            raise UsageError(
                f"data set {data} has no {name_units(unknown, places)}; nothing is held"
            )
        late = {h for h, request in asked.items() if request.state in DELETED}
        kept = {u: h for u, h in hashes.items() if h not in late}
        if not kept:
            raise UsageError(
                f"all of these units of data set {data} are deleted already, or being so: it is too "
                "late to hold them"
            )
        hold = ledger.run(
            "INSERT INTO holds (data_set, ground, placed, until, state) VALUES (?, ?, ?, ?, ?)",
            *(data, ground, placed, end, ON),
        )
        ledger.run_many(
            "INSERT INTO held_units VALUES (?, ?, ?, ?)",
            [(data, h, hold, u) for u, h in kept.items()],
        )
        _settle(ledger)
        states = [r.state for r in asked_already(ledger, data, kept.values()).values()]
        body = {"hold": hold, "data": data, "units": len(kept), "state": ON, "until": end}
        ledger.event("hold", {**body, "ground": ground})
    return {
        **body,
        "ground": ground,
        "placed": placed,
        "requests_held": states.count(HELD),
        "running": states.count(RUNNING),
        "too_late": len(late),
        "repeated": len(units) - len(named),
    }


def release_ended_holds(ws: Workspace, at: datetime | None = None) -> None:
    """End the holds whose time is over, and put every waiting request where it belongs.

    Writes only where there is something to do. Also holds what got back into the queue while a hold
    was on: the requests of a job that failed, or of one that was interrupted before its commit.
    """
    ledger, present = ws.ledger, stamp(at)
    over = "SELECT id FROM holds WHERE state = 'on' AND until <= ?"
    if ledger.value(over, present) is None and ledger.value(_TO_HOLD) is None:
        return
    with ledger.transaction():
        ended = [row["id"] for row in ledger.rows(over, present)]
        for hold in ended:
            _end(ledger, hold, OVER, present)
        _settle(ledger)
    if ended:
        # Whoever only looks must not wait for it: the next batch empties the log in any case.
        with suppress(LockedError):
            ledger.truncate_log()


def lift_hold(ws: Workspace, hold: int, at: datetime | None = None) -> dict[str, Any]:
    """End a hold now; return it as ``show_hold`` does. Of one that has ended, nothing changes.

    LockedError if its units can't be cleared from the ledger's log yet: then lift it again.
    """
    ledger = ws.ledger
    release_ended_holds(ws, at)
    with ledger.transaction():
        if _hold(ledger, hold)["state"] == ON:
            _end(ledger, hold, LIFTED, stamp(at))
            _settle(ledger)
    clear_log(ledger, f"hold {hold} is lifted")
    return show_hold(ws, hold, at)


def list_holds(ws: Workspace, at: datetime | None = None) -> list[dict[str, Any]]:
    """Return all holds, those that are on first, with how many units and held requests each has."""
    release_ended_holds(ws, at)
    return [
        _shown(ws.ledger, row)
        for row in ws.ledger.rows("SELECT * FROM holds ORDER BY state != 'on', id")
    ]


def show_hold(ws: Workspace, hold: int, at: datetime | None = None) -> dict[str, Any]:
    """Return a hold and its units, with their requests; UsageError if unknown.

    A unit's id stands there while the hold is on and its rows are not deleted.
    """
    release_ended_holds(ws, at)
    ledger = ws.ledger
    units = ledger.rows(
        "SELECT u.unit, u.unit_hash, r.id AS request, r.state FROM held_units u "
        "LEFT JOIN requests r ON r.data_set = u.data_set AND r.unit_hash = u.unit_hash "
        "AND r.state != 'cancelled' WHERE u.hold = ? ORDER BY r.id, u.unit_hash",
        hold,
    )
    return {**_shown(ledger, _hold(ledger, hold)), "held_units": units}


def holds_on(ledger: Ledger, data: str, unit_hash: str) -> list[dict[str, Any]]:
    """Return the holds that are on for a unit: number and end."""
    return ledger.rows(
        "SELECT h.id AS hold, h.until FROM held_units u JOIN holds h ON h.id = u.hold "
        "WHERE u.data_set = ? AND u.unit_hash = ? AND h.state = 'on' ORDER BY h.id",
        data,
        unit_hash,
    )


def hold_waiting(ledger: Ledger) -> None:
    """Hold the queued requests whose units a hold is on; call inside a transaction."""
    ledger.run(f"UPDATE requests SET state = 'held', job = NULL WHERE id IN ({_TO_HOLD})")


def clear_held(ledger: Ledger, job: int) -> None:
    """Clear the units of a job's requests from holds placed while it ran; call inside a transaction.

    Those holds came too late for them, and go on for the other units.
    """
    ledger.run(
        "UPDATE held_units SET unit = NULL WHERE EXISTS (SELECT 1 FROM requests r WHERE r.job = ? "
        "AND r.data_set = held_units.data_set AND r.unit_hash = held_units.unit_hash)",
        job,
    )


def _settle(ledger: Ledger) -> None:
    """Queue what no hold keeps any more, and hold what one does."""
    ledger.run(f"UPDATE requests SET state = 'queued' WHERE id IN ({_TO_QUEUE})")
    hold_waiting(ledger)


def _end(ledger: Ledger, hold: int, state: str, ended: str) -> None:
    """Close a hold and clear its units; their keyed hashes stay."""
    ledger.run("UPDATE holds SET state = ?, ended = ? WHERE id = ?", state, ended, hold)
    ledger.run("UPDATE held_units SET unit = NULL WHERE hold = ?", hold)
    ledger.event("hold", {"hold": hold, "state": state})


def _hold(ledger: Ledger, hold: int) -> dict[str, Any]:
    found = ledger.row("SELECT * FROM holds WHERE id = ?", hold)
    if found is None:
        raise UsageError(f"there is no hold {hold}; expunge hold list shows them")
    return found


def _shown(ledger: Ledger, row: dict[str, Any]) -> dict[str, Any]:
    """A hold as commands show it."""
    held = ledger.value(
        "SELECT count(*) FROM held_units u JOIN requests r ON r.data_set = u.data_set "
        "AND r.unit_hash = u.unit_hash AND r.state = 'held' WHERE u.hold = ?",
        row["id"],
    )
    return {
        "hold": row["id"],
        "data": row["data_set"],
        "state": row["state"],
        "ground": row["ground"],
        "placed": row["placed"],
        "until": row["until"],
        "ended": row["ended"],
        "units": ledger.value("SELECT count(*) FROM held_units WHERE hold = ?", row["id"]),
        "requests_held": held if row["state"] == ON else 0,
    }
