"""Deletion requests: one a unit, since a request is one person's wish.

Asking twice is one request; asking for what is erased already is no request. Both are said. What becomes
of a request stands in ``request_states``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.cells import hash_units, pseudonym, subject_units
from ..storage.dataset import DataSet
from .errors import JobError, UsageError
from .holds import hold_waiting, release_ended_holds
from .ledger import Ledger
from .request_states import CANCELLED, DONE, HELD, QUEUED, Terms, resolved
from .unit_lookup import Asked, asked_already, find_units, name_units, refuse_names
from .workspace import Workspace

MAX_UNIT = (1 << 63) - 1


def parse_units(texts: Iterable[str], where: str) -> NDArray[np.int64]:
    """Return unit ids from texts, one each; UsageError naming the place of the first bad one.

    What stands there is not repeated: it may be a person's name, given in the wrong place.
    """
    units = []
    for number, text in enumerate(texts, start=1):
        stripped = text.strip()
        if not stripped:
            continue
        digits = stripped.isascii() and stripped.isdigit() and len(stripped) < 20
        if not digits or int(stripped) > MAX_UNIT:
            raise UsageError(
                f"{where} {number}: that is not a unit id; ids are whole numbers from 0, and people "
                "are named by --subject or --subjects-file"
            )
        units.append(int(stripped))
    if not units:
        raise UsageError("no unit id was given")
    return np.array(units, np.int64)


def read_units_file(path: Path) -> NDArray[np.int64]:
    """Return the unit ids of a text file, one a line."""
    return parse_units(_lines(path), f"{path}, line")


def read_subjects_file(path: Path) -> list[tuple[str, str]]:
    """Return the subjects of a text file, one a line; blank lines are skipped.

    Each comes with its place, which errors name: they never repeat a subject.
    """
    lines = enumerate(_lines(path), start=1)
    return [(line.strip(), f"{path}, line {number}") for number, line in lines if line.strip()]


def given_subjects(subjects: Iterable[str]) -> list[tuple[str, str]]:
    """Return the subjects of the command line, each with its place among them."""
    return [(text, f"--subject, number {n}") for n, text in enumerate(subjects, start=1)]


def units_of_subjects(ws: Workspace, data: str, subjects: Sequence[str]) -> NDArray[np.int64]:
    """Return the units of subjects as they were named on import; UsageError without subjects."""
    if not data:
        raise UsageError("a subject is one of a data set: name it with --data")
    _, data_set = ws.ledger.open_data_set(data, ws.root)
    if not data_set.attrs.get("subjects"):
        raise UsageError(
            f"data set {data} was imported without --subject: its units are row numbers; "
            "name them by --unit"
        )
    if not subjects:
        raise UsageError("no subject was given")
    return subject_units(subjects, ws.ledger.salt)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UsageError(f"{path} is not a file" if path.exists() else f"{path}: no such file")
    try:
        # Only line ends end a line: an id may hold other separators that splitlines cuts at.
        return path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file of ids, one a line") from error


def sampled_units(ws: Workspace, data: str, rate: float, seed: int) -> NDArray[np.int64]:
    """Return round(rate n) random live units of a data set, none twice.

    The choice is a function of the live units and the seed alone: the lowest keyed hashes.
    """
    if not 0.0 < rate <= 1.0:
        raise UsageError(f"--sample is {rate}; it must lie above 0 and at most at 1")
    data_set = DataSet.open(ws.root / ws.ledger.data_set(data)["folder"])
    key = seed.to_bytes(16, "little", signed=True)
    total, units = _lowest(data_set, key, _enough(rate, int(data_set.statistics().live.sum())))
    wanted = round(rate * total)
    if len(units) < wanted:
        total, units = _lowest(data_set, key, 1.0)
    if wanted == 0:
        cure = "raise the rate" if total else "all are deleted already"
        raise UsageError(f"--sample {rate} of {total} units is none: {cure}")
    return units[:wanted]


def _enough(rate: float, rows: int) -> float:
    """A share of the hash range in which rate n of n units surely lie: eight deviations above."""
    return min(1.0, rate + 8 * sqrt(rate / max(1, rows)) + 8 / max(1, rows))


def _lowest(data_set: DataSet, key: bytes, share: float) -> tuple[int, NDArray[np.int64]]:
    """Return how many live units there are, and those in the lowest part of the hash range.

    Ordered by their keyed hash; what lies above is not kept, so memory follows the sample's size.
    """
    total = 0
    units, hashes = [], []
    for cell in range(data_set.cells):
        here = np.unique(data_set.read_units(cell))
        here = here[here >= 0]
        ranks = hash_units(here, key)
        low = ranks <= np.uint64(share * (2**64 - 2**11)) if share < 1 else ranks >= 0
        total += len(here)
        units.append(here[low])
        hashes.append(ranks[low])
    order = np.argsort(np.concatenate(hashes), kind="stable")
    return total, np.concatenate(units)[order]


def forget(
    ws: Workspace,
    data: str,
    units: NDArray[np.int64],
    missing: str = "error",
    places: Mapping[int, str] | None = None,
    terms: Terms | None = None,
    at: datetime | None = None,
) -> dict[str, Any]:
    """Queue one request a unit; return counts of what became of them, and the terms of the new ones.

    places: where the user named units by subjects, for errors, which never repeat a subject.
    missing: ``error`` refuses unknown units (nothing is queued then), ``ignore`` skips them.
    terms: under which the new requests are asked; a reference that was given before for other units of
    the data set is refused. at: the present time; the clock's if None.
    """
    if missing not in ("error", "ignore"):
        raise UsageError(f"--missing is {missing!r}; it is error or ignore")
    terms, received, due = resolved(terms or Terms(), at)
    ledger = ws.ledger
    _, data_set = ledger.open_data_set(data, ws.root)
    salt = ledger.salt
    asked = np.unique(units)
    refuse_names((terms.reference, terms.requester, terms.ground), asked, salt)
    names = {unit: pseudonym(data, unit, salt) for unit in asked.tolist()}
    release_ended_holds(ws, at)
    with ledger.transaction():
        there = asked_already(ledger, data, names.values())
        done = [u for u, h in names.items() if h in there and there[h].state == DONE]
        if back := len(find_units(data_set, np.array(done, np.int64), salt).live):
            raise JobError(
                f"{back} of these units were erased from data set {data} and are on the disk again "
                "(restored from a backup?); put back the newest state; nothing was queued"
            )
        fresh = np.array([u for u, h in names.items() if h not in there], np.int64)
        known = find_units(data_set, fresh, salt)
        if len(known.missing) and missing == "error":
            raise UsageError(
                f"data set {data} has no {name_units(known.missing, places)}; "
                "nothing was queued (--missing ignore skips unknown ones)"
            )
        if terms.reference is not None:
            _note_reference(ledger, data, terms.reference, list(names.values()), received)
            _add_reference(ledger, terms.reference, there)
        first = 1 + (ledger.value("SELECT max(id) FROM requests") or 0)
        ledger.run_many(
            "INSERT INTO requests (data_set, unit, unit_hash, state, received, reference, requester, "
            "ground, due) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (data, u, names[u], QUEUED, received)
                + (terms.reference, terms.requester, terms.ground, due)
                for u in known.live.tolist()
            ],
        )
        hold_waiting(ledger)
        made = ledger.rows(
            "SELECT id AS request, unit, state FROM requests WHERE id >= ? ORDER BY id", first
        )
        kept = {"data": data, "requests": len(made), "reference": terms.reference}
        ledger.event("forget", {**kept, "first": first if made else None})
    held = sum(request["state"] == HELD for request in made)
    return {
        "data": data,
        "reference": terms.reference,
        "received": received if made else None,
        "due": due if made else None,
        "queued": len(made) - held,
        "held": held,
        "repeated": len(units) - len(asked),
        "already_requested": len(there) - len(done),
        "already_erased": len(done),
        "missing": len(known.missing),
        "requests": made,
        "existing": [
            {"request": there[h].request, "unit": u, "state": there[h].state}
            for u, h in names.items()
            if h in there
        ],
    }


def all_held(found: Mapping[str, Any]) -> bool:
    """Whether every unit that ``forget`` was asked for, and knows, is under a hold."""
    states = {request["state"] for request in (*found["requests"], *found["existing"])}
    return states == {HELD}


def _note_reference(
    ledger: Ledger, data: str, reference: str, hashes: Sequence[str], received: str
) -> None:
    """Keep which units a reference stands for; UsageError if it was given before for others.

    They are kept as one keyed hash of all, so that a list is told from its half. A reference all of
    whose requests were cancelled is free: it may have been mistyped, or given for the wrong units.
    """
    whole = hashlib.blake2b("".join(sorted(hashes)).encode(), key=ledger.salt, digest_size=16)
    before = ledger.row(
        "SELECT units_hash, at FROM asked_references WHERE reference = ? AND data_set = ?",
        reference,
        data,
    )
    other = before is not None and before["units_hash"] != whole.hexdigest()
    if before is not None and other and _stands(ledger, data, reference):
        raise UsageError(
            f"this --reference was given before for other units of data set {data} (received "
            f"{before['at']}); nothing was queued: give these units a reference of their own, or name "
            "the same units, or cancel all its requests first"
        )
    ledger.run(
        f"INSERT OR {'REPLACE' if other else 'IGNORE'} INTO asked_references VALUES (?, ?, ?, ?)",
        *(reference, data, whole.hexdigest(), received),
    )


def _stands(ledger: Ledger, data: str, reference: str) -> bool:
    """Whether a request of a data set that was not cancelled goes by a reference."""
    query = (
        "SELECT id FROM requests WHERE data_set = ? AND state != ? AND (reference = ? "
        "OR id IN (SELECT request FROM other_references WHERE reference = ?)) LIMIT 1"
    )
    return ledger.row(query, data, CANCELLED, reference, reference) is not None


def _add_reference(ledger: Ledger, reference: str, there: Mapping[str, Asked]) -> None:
    """Let requests that there are already be found by another reference too."""
    ledger.run_many(
        "INSERT OR IGNORE INTO other_references VALUES (?, ?)",
        [(reference, asked.request) for asked in there.values() if asked.reference != reference],
    )
