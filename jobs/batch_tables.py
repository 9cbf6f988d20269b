"""What ``batch run``, and a job that is taken up again, show of what was done."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .console import pairs, table
from .verification_records import NONE

_BATCH = ("job", "units", "rows", "cells_read", "bytes_read", "bytes_written")
_MODELS = ("model", "action", "exactness", "passes", "seconds", "rows", "version", "reason")
_APPROXIMATE = (
    "model",
    "method",
    "kind",
    "change",
    "estimate",
    "share_deleted",
    "update_seconds",
    "rebase_seconds",
    "estimate_seconds",
)
NOTHING = "nothing is queued"


def batch_tables(found: dict[str, Any]) -> list[Table | str]:
    """What a batch did, what became of each model, and how near the approximate ones are."""
    if found.get("jobs", [found["job"]]) == []:
        return [NOTHING]
    named = {"job": ", ".join(map(str, found["jobs"]))} if "jobs" in found else {}
    shown: list[Table | str] = [pairs({**found, **named}, _BATCH)]
    for names, chosen in (
        (_MODELS, found["models"]),
        (_APPROXIMATE, [m for m in found["models"] if m["exactness"] == "approximate"]),
    ):
        if chosen:
            # A kind "exact" beside an approximate model would read as a contradiction.
            heads = ["provenance" if n == "kind" else n.replace("_", " ") for n in names]
            shown.append(table(heads, [[m.get(n) for n in names] for m in chosen]))
    done = found["verification"]
    if done is None:
        return [*shown, "partly done: the rows wait for the models that are behind"]
    if done["verify"] == NONE:
        return [*shown, "what was written was read back; expunge settings --verify asks for more"]
    return [*shown, f"verification {done['verify']}, {done['outcome']}: {done['what']}"]
