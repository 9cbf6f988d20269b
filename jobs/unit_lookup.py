"""Looking units up: in the cells of a data set, and among the requests there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..storage.cells import subject_units, units_by_cell
from ..storage.dataset import DataSet
from .errors import LockedError, UsageError
from .ledger import Ledger
from .request_states import CANCELLED, marks

NAMED = 5
"""How many offending ids an error names."""
_AT_ONCE = 500
"""How many units one query asks for."""
SHORTEST_NAME = 4
"""Characters of a word that is looked at."""
_WORD = re.compile(r"[^\s,;:()\"'’/|]{4,}")
_ENDS = re.compile(r"^\W+|\W+$")
"""What is no letter or digit at a word's ends: a full stop, brackets, a dash."""


@dataclass(frozen=True, slots=True)
class Known:
    """Which of some units a data set holds."""

    live: NDArray[np.int64]
    missing: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that there is for a unit."""

    request: int
    state: str
    reference: str | None


def find_units(data_set: DataSet, units: NDArray[np.int64], salt: bytes) -> Known:
    """Look units (ascending, different) up in the cells that their hashes name."""
    live = [
        _among(here, data_set.read_units(cell))
        for cell, here in units_by_cell(units, data_set.cells, salt).items()
    ]
    found = np.isin(units, np.concatenate(live)) if live else np.zeros(len(units), np.bool_)
    return Known(units[found], units[~found])


def _among(units: NDArray[np.int64], stored: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of some units (ascending, at least one) that stand in a cell, whose order is its own."""
    places = np.minimum(np.searchsorted(units, stored), len(units) - 1)
    return np.unique(stored[units[places] == stored])


def name_units(missing: NDArray[np.int64], places: Mapping[int, str] | None) -> str:
    """Unknown units for an error: by their numbers, or by the places where subjects were named."""
    first = missing[:NAMED].tolist()
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    if places is None:
        return f"unit {', '.join(map(str, first))}{more}"
    return f"such subject as is named by {'; '.join(places[unit] for unit in first)}{more}"


def asked_already(ledger: Ledger, data: str, hashes: Iterable[str]) -> dict[str, Asked]:
    """Return the request of each unit that has one, by its keyed hash.

    Requests that were cancelled are none: there can be any number of them.
    """
    wanted: Sequence[str] = list(hashes)
    found = {}
    for i in range(0, len(wanted), _AT_ONCE):
        part = tuple(wanted[i : i + _AT_ONCE])
        for row in ledger.rows(
            "SELECT id, unit_hash, state, reference FROM requests WHERE data_set = ? "
            f"AND unit_hash IN ({marks(part)}) AND state != ?",
            data,
            *part,
            CANCELLED,
        ):
            found[row["unit_hash"]] = Asked(row["id"], row["state"], row["reference"])
    return found


def clear_log(ledger: Ledger, done: str) -> None:
    """Empty the ledger's log of units that were cleared; LockedError says what is done all the same."""
    try:
        ledger.truncate_log()
    except LockedError as error:
        raise LockedError(f"{done}, but {error} yet: give the command again later") from error


def refuse_names(
    texts: Iterable[str | None], units: NDArray[np.int64] | Sequence[int], salt: bytes
) -> None:
    """UsageError if a text that is to be kept in the clear names a subject that is one of the units.

    Looks at whole texts and at words of four characters or more, as they stand and without the
    punctuation around them: shorter ones are numbers by chance.
    """
    given = [text for text in texts if text is not None]
    words = [word for text in given for word in _WORD.findall(text)]
    bare = [_ENDS.sub("", text) for text in (*given, *words)]
    named = [*given, *words, *(word for word in bare if len(word) >= SHORTEST_NAME)]
    if np.isin(subject_units(named, salt), np.asarray(units, np.int64)).any():
        raise UsageError(
            "reference, requester, ground and reason are kept in the clear for good, and one of them "
            "names a subject whose deletion is meant: write it without; nothing was changed"
        )
