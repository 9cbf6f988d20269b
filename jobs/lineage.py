"""Which models have seen a data set, and what versions a model has had."""

from __future__ import annotations

import json
from typing import Any

from .ledger import Ledger
from .retiring import RETIRED

_SHOWN = ("model", "algorithm", "generation", "version", "job", "created")


def versions_of(ledger: Ledger, model: str) -> list[dict[str, Any]]:
    """Return a model's versions, oldest first: version, the job that made it, created, state (live or retired)."""
    return ledger.rows(
        "SELECT number AS version, job, created, state FROM versions WHERE model = ? ORDER BY number",
        model,
    )


def lineage(ledger: Ledger, data_set: str) -> list[dict[str, Any]]:
    """Return the models that saw a data set, those that were retired last.

    Each has model, algorithm, the generation that it saw, its last version, the job that trained it,
    created, and state: current; behind, where it has seen rows whose deletion is committed; or retired.
    """
    query = (
        "SELECT m.name AS model, m.algorithm, m.generation, m.version, v.job, v.created, "
        "CASE WHEN b.model IS NULL THEN 'current' ELSE 'behind' END AS state FROM models m "
        "JOIN versions v ON v.model = m.name AND v.number = 1 "
        "LEFT JOIN behind b ON b.model = m.name WHERE m.data_set = ? ORDER BY m.name"
    )
    bodies = ledger.rows("SELECT body FROM events WHERE kind = 'model retired' ORDER BY id")
    events = [json.loads(row["body"]) for row in bodies]
    retired = [
        {**{name: event[name] for name in _SHOWN}, "state": RETIRED}
        for event in events
        if event["data"] == data_set
    ]
    return [*ledger.rows(query, data_set), *retired]
