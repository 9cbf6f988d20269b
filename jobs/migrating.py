"""Ledgers that an earlier program made, brought up to date when a workspace is opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..storage.errors import StorageError
from ..storage.metadata import metadata_digest
from .ledger import LEDGER_VERSION, Ledger
from .pending import UNVERIFIED
from .request_states import FAILED
from .request_tables import OPEN_REQUESTS, REQUEST_TABLES
from .request_times import DUE_DAYS
from .statements import statement


def migrate(ledger: Ledger, root: Path) -> None:
    """Bring a ledger to this program's version, in one transaction; call with the lock held."""
    with ledger.transaction():
        while (version := ledger.version) < LEDGER_VERSION:
            _STEPS[version](ledger, root)
            ledger.set("schema_version", str(version + 1))
            ledger.event("migration", {"schema_version": version + 1})


def _to_2(ledger: Ledger, root: Path) -> None:
    """Receipts keep what they say: till now it was put together whenever one was shown."""
    ledger.run("ALTER TABLE requests ADD COLUMN rows INTEGER")
    ledger.run("ALTER TABLE versions ADD COLUMN metadata TEXT")
    ledger.run(
        "CREATE TABLE receipt_parts (job INTEGER NOT NULL, data_set TEXT NOT NULL, "
        "body TEXT NOT NULL, PRIMARY KEY (job, data_set)) WITHOUT ROWID"
    )
    for row in ledger.rows("SELECT model, number, folder FROM versions WHERE state = 'live'"):
        try:
            found = metadata_digest(root / row["folder"])
        except StorageError:
            # Its verification tells what is wrong with it.
            continue
        ledger.run(
            "UPDATE versions SET metadata = ? WHERE model = ? AND number = ?",
            found,
            row["model"],
            row["number"],
        )
    _name_data_sets(ledger)
    for row in ledger.rows("SELECT DISTINCT job FROM receipts"):
        job = ledger.job(row["job"])
        sets = ledger.rows(
            "SELECT DISTINCT data_set FROM requests WHERE job = ? AND state = 'done'", row["job"]
        )
        for name in (found["data_set"] for found in sets):
            ledger.run(
                "INSERT INTO receipt_parts VALUES (?, ?, ?)",
                row["job"],
                name,
                json.dumps(_part_of_1(job, name)),
            )


def _name_data_sets(ledger: Ledger) -> None:
    """The first reports did not say which data set a model was trained on: it has been the same ever since.

    A model that is there no more was one of the job's data set, where that is one alone; of several,
    nobody knows, and the receipts of none name it.
    """
    known = {row["name"]: row["data_set"] for row in ledger.rows("SELECT * FROM models")}
    for row in ledger.rows("SELECT id, report FROM jobs WHERE kind = 'deletion'"):
        report = json.loads(row["report"])
        unnamed = [m for m in report.get("models", ()) if "data" not in m]
        if not unnamed:
            continue
        query = "SELECT DISTINCT data_set FROM requests WHERE job = ?"
        sets = [found["data_set"] for found in ledger.rows(query, row["id"])]
        alone = sets[0] if len(sets) == 1 else None
        for model in unnamed:
            model["data"] = known.get(model["model"], alone)
        ledger.report_job(row["id"], report)


def _part_of_1(job: dict[str, Any], data: str) -> dict[str, Any]:
    """What the receipts of a job and data set had in common in schema 1."""
    models = [m for m in job["report"]["models"] if m["data"] == data]
    return {
        "schema": 1,
        "statement": statement(models),
        "job": {
            **job["report"],
            "models": models,
            "started": job["created"],
            "finished": job["finished"],
            "steps": job["steps"],
        },
    }


def _to_3(ledger: Ledger, root: Path) -> None:
    """Requests have a life of their own; jobs can be partly done, and cancelled."""
    _requests_to_3(ledger)
    _add_behind_and_cancellations(ledger)


def _requests_to_3(ledger: Ledger) -> None:
    """References, due times and holds: requests of before are due 30 days after they came."""
    for name in ("open_requests", "requests_by_state"):
        ledger.run(f"DROP INDEX {name}")
    for name in ("reference", "requester", "ground", "due", "extended"):
        ledger.run(f"ALTER TABLE requests ADD COLUMN {name} TEXT")
    ledger.run(
        "UPDATE requests SET due = strftime('%Y-%m-%dT%H:%M:%f+00:00', received, ?)",
        f"+{DUE_DAYS} days",
    )
    for table in REQUEST_TABLES.split(";"):
        ledger.run(table)


def _add_behind_and_cancellations(ledger: Ledger) -> None:
    """Models that a deletion left behind, and jobs whose end was asked for: till now there were none."""
    ledger.run(
        "CREATE TABLE behind (model TEXT PRIMARY KEY, job INTEGER NOT NULL, error TEXT NOT NULL, "
        "since TEXT NOT NULL) WITHOUT ROWID"
    )
    ledger.run("CREATE TABLE cancellations (job INTEGER PRIMARY KEY, asked TEXT NOT NULL)")


def _to_4(ledger: Ledger, root: Path) -> None:
    """Requests whose job's verification failed are told as failed, and are still to be fulfilled."""
    ledger.run("DROP INDEX open_requests")
    ledger.run(OPEN_REQUESTS)
    ledger.run(
        "UPDATE requests SET state = ? WHERE job IN (SELECT id FROM jobs WHERE state = ?)",
        *(FAILED, UNVERIFIED),
    )


_STEPS: dict[int, Callable[[Ledger, Path], None]] = {1: _to_2, 2: _to_3, 3: _to_4}
