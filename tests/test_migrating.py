"""Workspaces of the program before receipts were signed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from receipt_workspace import (
    checked_receipt,
    copy_workspace,
    forget,
    prepare_batch,
)
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs.receipt_checks import verify_file
from expunge.jobs.receipt_page import page
from expunge.jobs.workspace import Workspace

BATCH = ("batch", "run", "--yes", *INLINE)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two models, a key and two queued requests; every test copies it."""
    root = tmp_path_factory.mktemp("prepared")
    prepare_batch(root)
    return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    copy_workspace(prepared, tmp_path)
    return tmp_path


def make_old(root: Path) -> None:
    """Turn a workspace's ledger into what the program made before receipts were signed."""
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
