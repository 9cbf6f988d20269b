"""Deletion requests: one a unit, since a request is one person's wish.

Asking twice is one request; asking for what is erased already is no request. Both are said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.cells import hash_units, pseudonym, subject_units, units_by_cell
from ..storage.dataset import DataSet
from .errors import JobError, UsageError
from .ledger import Ledger, now
from .workspace import Workspace

MAX_UNIT = (1 << 63) - 1
NAMED = 5
"""How many offending ids an error names."""


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


@dataclass(frozen=True, slots=True)
class Known:
    """Which of some units a data set holds."""

    live: NDArray[np.int64]
    missing: NDArray[np.int64]


def find_units(data_set: DataSet, units: NDArray[np.int64], salt: bytes) -> Known:
    """Look units (ascending, different) up in the cells that their hashes name."""
    live = [
        here[np.isin(here, data_set.read_units(cell))]
        for cell, here in units_by_cell(units, data_set.cells, salt).items()
    ]
    found = np.isin(units, np.concatenate(live)) if live else np.zeros(len(units), np.bool_)
    return Known(units[found], units[~found])


def forget(
    ws: Workspace,
    data: str,
    units: NDArray[np.int64],
    missing: str = "error",
    places: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Queue one request a unit; return counts of what became of them.

    places: where the user named units by subjects, for errors, which never repeat a subject.
    missing: ``error`` refuses unknown units (nothing is queued then), ``ignore`` skips them.
    """
    if missing not in ("error", "ignore"):
        raise UsageError(f"--missing is {missing!r}; it is error or ignore")
    ledger = ws.ledger
    _, data_set = ledger.open_data_set(data, ws.root)
    salt = ledger.salt
    asked = np.unique(units)
    names = {int(u): pseudonym(data, int(u), salt) for u in asked}
    with ledger.transaction():
        states = _states(ledger, data, names.values())
        done = np.array([u for u, h in names.items() if states.get(h) == "done"], np.int64)
        if back := len(find_units(data_set, done, salt).live):
            raise JobError(
                f"{back} of these units were erased from data set {data} and are on the disk again "
                "(restored from a backup?); put back the newest state; nothing was queued"
            )
        fresh = np.array([u for u, h in names.items() if h not in states], np.int64)
        known = find_units(data_set, fresh, salt)
        if len(known.missing) and missing == "error":
            raise UsageError(
                f"data set {data} has no {_named(known.missing, places)}; "
                "nothing was queued (--missing ignore skips unknown ones)"
            )
        received = now()
        ledger.run_many(
            "INSERT INTO requests (data_set, unit, unit_hash, state, received) "
            "VALUES (?, ?, ?, 'queued', ?)",
            [(data, u, names[u], received) for u in known.live.tolist()],
        )
        made = ledger.rows(
            "SELECT id AS request, unit FROM requests WHERE data_set = ? AND state = 'queued' "
            "AND received = ? ORDER BY id",
            data,
            received,
        )
        ledger.event("forget", {"data": data, "requests": len(known.live)})
    erased = sum(state == "done" for state in states.values())
    return {
        "data": data,
        "queued": len(known.live),
        "repeated": len(units) - len(asked),
        "already_requested": len(states) - erased,
        "already_erased": erased,
        "missing": len(known.missing),
        "requests": made,
    }


def _named(missing: NDArray[np.int64], places: Mapping[int, str] | None) -> str:
    """Unknown units for an error: by their numbers, or by the places where subjects were named."""
    first = missing[:NAMED].tolist()
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    if places is None:
        return f"unit {', '.join(map(str, first))}{more}"
    return f"such subject as is named by {'; '.join(places[unit] for unit in first)}{more}"


def _states(ledger: Ledger, data: str, hashes: Iterable[str]) -> dict[str, str]:
    """The state of every request that there is for these units."""
    wanted: Sequence[str] = list(hashes)
    states = {}
    for i in range(0, len(wanted), 500):
        part = wanted[i : i + 500]
        marks = ",".join("?" * len(part))
        for row in ledger.rows(
            f"SELECT unit_hash, state FROM requests WHERE data_set = ? AND unit_hash IN ({marks})",
            data,
            *part,
        ):
            states[row["unit_hash"]] = row["state"]
    return states
