"""Workspaces of the program before receipts were signed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from receipt_workspace import (
    checked_receipt,
    copied,
    forget,
    prepare_batch,
    prepared_by,
)
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs.receipt_checks import verify_file
from expunge.jobs.receipt_page import page
from expunge.jobs.workspace import Workspace

BATCH = ("batch", "run", "--yes", *INLINE)


prepared = prepared_by(prepare_batch)
root = copied


def rewrite(root: Path, script: str) -> None:
    """Run statements on a workspace's ledger, past the program."""
    connection = sqlite3.connect(root / "ws" / "ledger.sqlite", isolation_level=None)
    connection.executescript(script)
    connection.close()


def make_version_3(root: Path) -> None:
    """Turn a ledger into that of the program that told no request as failed."""
    rewrite(
        root,
        "DROP INDEX open_requests;"
        "CREATE UNIQUE INDEX open_requests ON requests (data_set, unit_hash)"
        " WHERE state NOT IN ('cancelled', 'failed');"
        "UPDATE requests SET state = 'committed' WHERE state = 'failed';"
        "UPDATE meta SET value = '3' WHERE key = 'schema_version';",
    )


def make_version_2(root: Path) -> None:
    """Turn a workspace's ledger into what the program made before requests had terms and holds."""
    rewrite(
        root,
        "DROP TABLE asked_references; DROP TABLE other_references;"
        "DROP TABLE behind; DROP TABLE cancellations;"
        "DROP TABLE held_units; DROP TABLE holds;"
        "DROP INDEX open_requests; DROP INDEX requests_by_unit;"
        "DROP INDEX requests_by_state; DROP INDEX requests_by_reference;"
        "ALTER TABLE requests DROP COLUMN reference; ALTER TABLE requests DROP COLUMN requester;"
        "ALTER TABLE requests DROP COLUMN ground; ALTER TABLE requests DROP COLUMN due;"
        "ALTER TABLE requests DROP COLUMN extended;"
        "CREATE UNIQUE INDEX open_requests ON requests (data_set, unit_hash);"
        "CREATE INDEX requests_by_state ON requests (state);"
        "UPDATE meta SET value = '2' WHERE key = 'schema_version';",
    )


def make_old(root: Path) -> None:
    """Turn a workspace's ledger into what the program made before receipts were signed."""
    make_version_2(root)
    connection = sqlite3.connect(root / "ws" / "ledger.sqlite", isolation_level=None)
    connection.executescript(
        "DROP TABLE receipt_parts;"
        "ALTER TABLE requests DROP COLUMN rows;"
        "ALTER TABLE versions DROP COLUMN metadata;"
        "DELETE FROM meta WHERE key NOT IN ('schema_version', 'salt');"
        "UPDATE meta SET value = '1' WHERE key = 'schema_version';"
    )
    for name, body in connection.execute("SELECT id, body FROM receipts").fetchall():
        kept = {n: v for n, v in json.loads(body).items() if n not in ("rows", "signature")}
        connection.execute("UPDATE receipts SET body = ? WHERE id = ?", (json.dumps(kept), name))
    for job, text in connection.execute("SELECT id, report FROM jobs").fetchall():
        kept = {n: v for n, v in json.loads(text).items() if n != "verification"}
        connection.execute("UPDATE jobs SET report = ? WHERE id = ?", (json.dumps(kept), job))
    connection.close()
    shutil.rmtree(root / "ws" / "keys")


def test_an_older_workspace_is_brought_up_to_date(root: Path, cli: Cli) -> None:
    cli(*BATCH)
    make_old(root)
    forget(root, "Person-11")
    old = cli("receipt", "show", "R00000001")
    assert old["schema"] == 1 and "signature" not in old and old["job"]["models"][0]["digest"]
    assert "bit for bit" in old["statement"] and old["job"]["steps"]
    assert "not signed" in page(old)
    file = root / "old.json"
    file.write_text(json.dumps(old))
    assert verify_file(file, root / "public.pem")["problem"] == "not signed"
    assert cli("verify", "km", *INLINE)["exact"]
    metadata = next((root / "ws/models/km").glob("v*/zarr.json"))
    kept = metadata.read_text()
    metadata.write_text(kept.replace('"k-means"', '"q-kmeans"'))
    cli("verify", "km", *INLINE, code=5)
    metadata.write_text(kept)
    shutil.copy(root / "public.pem", root / "former.pem")
    cli("receipt", "keygen", "--out", root / "new.pem")
    (root / "new.pem").rename(root / "public.pem")
    cli(*BATCH)
    assert checked_receipt(root, cli, "R00000003")["rows"] > 0
    assert [r["rows"] is None for r in cli("receipt", "list")["receipts"]] == [True, True, False]


@pytest.mark.parametrize("gone", [False, True])
def test_the_first_reports_did_not_name_data_sets(root: Path, cli: Cli, gone: bool) -> None:
    """Models tell theirs; one that is gone was of the job's only data set."""
    cli(*BATCH)
    make_old(root)
    connection = sqlite3.connect(root / "ws" / "ledger.sqlite", isolation_level=None)
    if gone:
        connection.execute("DELETE FROM models WHERE name = 'qk'")
    for job, text in connection.execute("SELECT id, report FROM jobs").fetchall():
        report = json.loads(text)
        for model in report.get("models", []):
            del model["data"]
        connection.execute("UPDATE jobs SET report = ? WHERE id = ?", (json.dumps(report), job))
    connection.close()
    models = cli("receipt", "show", "R00000001")["job"]["models"]
    assert [(m["model"], m["data"]) for m in models] == [("km", "t"), ("qk", "t")]


def schema(root: Path) -> set[tuple[str, str]]:
    """The columns of every table, and every index with what it is of."""
    connection = sqlite3.connect(root / "ws" / "ledger.sqlite")
    tables = [
        r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    found = {
        (table, column[1])
        for table in tables
        for column in connection.execute(f"PRAGMA table_info({table})")
    }
    found |= {
        (name, " ".join(text.split()))
        for name, text in connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        )
    }
    connection.close()
    return found


def test_requests_without_terms_get_them(root: Path, cli: Cli) -> None:
    """A ledger of version 2: requests are due 30 days after they came, and can be held and cancelled."""
    now = schema(root)
    make_version_2(root)
    assert ("requests", "due") not in schema(root)
    listed = cli("request", "list")["requests"]
    assert schema(root) == now
    for request in listed:
        span = datetime.fromisoformat(request["due"]) - datetime.fromisoformat(request["received"])
        assert span == timedelta(days=30) and len(request["due"]) == len(request["received"])
        assert request["state"] == "queued" and request["reference"] is None
    cli("request", "cancel", 1)
    again = cli("forget", "--data", "t", "--subject", "Person-3", "--reference", "T-1")
    assert again["queued"] == 1 and again["requests"][0]["request"] == 3
    cli("hold", "place", "--data", "t", "--subject", "Person-8", "--ground", "a law suit")
    assert len(cli(*BATCH)["receipts"]) == 1
    cli("hold", "lift", 1)
    assert len(cli(*BATCH)["receipts"]) == 1
    assert cli("request", "list")["counts"] == {"done": 2, "cancelled": 1}


def test_requests_whose_verification_failed_are_told_so(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger of version 3 has them as committed."""
    now = schema(root)
    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.erasure.erase_slots", lambda *_: None)
        cli(*BATCH, code=5)
    make_version_3(root)
    assert schema(root) != now
    assert cli("request", "list")["counts"] == {"failed": 2} and schema(root) == now
    cli("job", "resume", cli("job", "list")["jobs"][-1]["id"], *INLINE)
    assert cli("request", "list")["counts"] == {"done": 2}


def test_a_job_that_an_older_program_committed_is_finished(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "erase", "before")
        with pytest.raises(Killed):
            cli(*BATCH)
    make_old(root)
    job = cli("job", "list")["jobs"][-1]["id"]
    cli("receipt", "keygen", "--out", root / "new.pem")
    (root / "new.pem").rename(root / "public.pem")
    cli("job", "resume", job, *INLINE)
    assert checked_receipt(root, cli)["rows"] is None


def test_an_older_workspace_in_use_waits(root: Path, cli: Cli) -> None:
    with Workspace.open(root / "ws") as ws, ws.lock("something long"):
        make_old(root)
        assert "something long" in cli("data", "list", code=75)
    assert cli("data", "list")["data_sets"]
