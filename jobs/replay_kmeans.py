"""Deletion from a stored k-means model by incremental replay, and what it would do.

Where replay ends (a race, a new step, moved bounds) training itself goes on by passes, and the steps
that are new are labelled in one pass more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..pipeline.clusterer import delete_rows
from ..pipeline.quantized import Passes, Record, Settings
from ..pipeline.removal import CONTINUE, RESCALE, RESEED
from ..pipeline.replay import NOTHING, Outcome, go_on
from ..pipeline.stored_replay import Found, Leaving, replay
from .forecast import ForecastPasses, PassNeeded
from .model_family import Change
from .plan import Gathered
from .replay_store import StoredReplay, StoredRows, open_replay
from .replay_versions import Next, anew
from .train_kmeans import StoredPasses
from .workspace import Workspace


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion came to, and what the next version keeps."""

    record: Record
    outcome: Outcome
    looked_at: int
    wanted: Next
    parent: StoredReplay | None
    """Where the steps that are held stand."""


def delete_stored(
    change: Change,
    row: Mapping[str, Any],
    record: Record,
    settings: Settings,
    passes: StoredPasses,
) -> Deletion:
    """Take the gathered rows out of a model, by what it keeps where that helps.

    row: the model's, of the ledger.
    """
    gathered = change.gathered
    stored = open_replay(change.ws, row, gathered.data_set)
    found = _replay(record, settings, gathered, stored, passes)
    if found is None:
        new, outcome = delete_rows(record, gathered.removed, passes, settings)
        return Deletion(new, outcome, 0, anew(new), None)
    new = found.record
    if found.todo == CONTINUE:
        new, _ = go_on(found.record, gathered.removed, passes, settings)
    wanted = Next(new, found.kept, found.minima, frozenset(found.fresh))
    return Deletion(new, _outcome(found, passes.passes), found.looked_at, wanted, stored)


def _replay(
    record: Record,
    settings: Settings,
    gathered: Gathered,
    stored: StoredReplay | None,
    passes: Passes,
) -> Found | None:
    """Replay as far as it goes; None where nothing is kept, or what is found is of no use."""
    if stored is None or len(gathered.removed.units) >= record.extent.rows:
        return None
    cells, slots = gathered.addresses
    leaving = Leaving(gathered.removed, cells * stored.layout.slots + slots)
    rows = StoredRows(stored, gathered.data_set, record.scaling, passes)
    found = replay(record, settings, leaving, stored.kept, rows)
    return None if found.todo in (RESEED, RESCALE) else found


def _outcome(found: Found, passes: int) -> Outcome:
    """What a replay came to, with so many passes; steps that are new take one when they are labelled."""
    if found.first < 0:
        return NOTHING
    reason = f"step {found.first} came out differently"
    passed = passes > 0 or found.todo == CONTINUE
    return Outcome("resumed" if passed else "replayed", found.first, passes, reason)


def forecast_stored(
    ws: Workspace,
    row: Mapping[str, Any],
    record: Record,
    settings: Settings,
    gathered: Gathered,
) -> dict[str, Any]:
    """Tell what a deletion would do, without a pass: a replay is run as far as it goes without one."""
    stored = open_replay(ws, row, gathered.data_set)
    passes = ForecastPasses(gathered.statistics)
    looked_at: dict[str, int] = {}
    try:
        found = _replay(record, settings, gathered, stored, passes)
        if found is None:
            _, outcome = delete_rows(record, gathered.removed, passes, settings)
        else:
            looked_at = {"looked_at": found.looked_at}
            outcome = _outcome(found, int(found.todo == CONTINUE))
    except PassNeeded as needed:
        return {"action": needed.action, "first_step": None}
    return {"action": outcome.action, "first_step": outcome.first_step, **looked_at}
