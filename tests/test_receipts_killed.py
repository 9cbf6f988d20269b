"""kill -9 on the way to receipts: each is issued once and signed, and no scan is claimed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from receipt_workspace import (
    checked_receipt,
    copied,
    prepare_batch,
    prepared_by,
)
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs.signing import Signer
from expunge.jobs.workspace import Workspace

BATCH = ("batch", "run", "--yes", *INLINE)


prepared = prepared_by(prepare_batch)
root = copied


@pytest.mark.parametrize(
    ("step", "when", "outcome"),
    [
        ("gather", "after", "passed"),
        ("commit", "before", "passed"),
        ("commit", "after", "not done"),
        ("erase", "after", "not done"),
        ("verify", "before", "not done"),
        ("verify", "after", "not done"),
        ("receipt", "before", "not done"),
    ],
)
def test_a_resumed_job_does_not_claim_a_scan(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, step: str, when: str, outcome: str
) -> None:
    cli("settings", "--verify", "scan")
    with monkeypatch.context() as patch:
        kill_at(patch, step, when)
        with pytest.raises(Killed):
            cli(*BATCH)
    job = cli("job", "list")["jobs"][-1]["id"]
    assert cli("receipt", "list")["receipts"] == []
    cli("job", "resume", job, *INLINE)
    found = checked_receipt(root, cli)["verification"]
    assert found["outcome"] == outcome
    assert found["what"].startswith("not scanned: resumed") == (outcome == "not done")
    assert len(cli("receipt", "list")["receipts"]) == 2


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("receipts.signer_of", 0),
        ("signing.Signer.sign", 1),
        ("ledger.Ledger.end_job", 0),
        ("erasure.issue", 1),
    ],
)
def test_kills_while_receipts_are_issued(root: Path, cli: Cli, place: str, calls: int) -> None:
    """kill -9 inside the receipts' transaction, and after it: every receipt once, and signed."""
    module, _, name = place.partition(".")
    script = (
        "import importlib, os, signal, sys\n"
        f"owner = importlib.import_module('expunge.jobs.{module}')\n"
        f"*path, name = {name!r}.split('.')\n"
        "for part in path:\n"
        "    owner = getattr(owner, part)\n"
        "real, left = getattr(owner, name), [int(sys.argv[1])]\n"
        "def die(*given):\n"
        "    if name == 'issue':\n"
        "        real(*given)\n"
        "        left[0] = 0\n"
        "    if not left[0]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    left[0] -= 1\n"
        "    return real(*given)\n"
        "setattr(owner, name, die)\n"
        "from expunge.jobs.cli import run; sys.exit(run(sys.argv[2:]))"
    )
    given = [sys.executable, "-c", script, str(calls), "-w", str(root / "ws"), *BATCH]
    done = subprocess.run(given, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    issued = cli("receipt", "list")["receipts"]
    if name == "issue":
        assert len(issued) == 2 and cli("job", "list")["jobs"][-1]["state"] == "done"
    else:
        assert issued == []
        cli("job", "resume", cli("job", "list")["jobs"][-1]["id"], *INLINE)
    key = cli("receipt", "list")["receipts"][0]["key"]
    assert [r["key"] for r in cli("receipt", "list")["receipts"]] == [key, key] and key
    for number in ("R00000001", "R00000002"):
        checked_receipt(root, cli, number)
    assert cli(*BATCH)["job"] is None


def test_a_key_lost_before_the_receipts_holds_them_back(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "verify", "before")
        with pytest.raises(Killed):
            cli(*BATCH)
    path = root / "ws" / "keys" / "receipts.key"
    path.rename(root / "key")
    job = cli("job", "list")["jobs"][-1]["id"]
    error = cli("job", "resume", job, *INLINE, code=1)
    assert "is missing" in error and f"expunge job resume {job} finishes it" in error
    assert cli("receipt", "list")["receipts"] == []
    (root / "key").rename(path)
    cli("job", "resume", job, *INLINE)
    checked_receipt(root, cli)


def test_a_killed_keygen_lets_nothing_go_unsigned(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the new key's file and the ledger's word of it, no job signs and none goes unsigned."""
    with monkeypatch.context() as patch:
        real = os.replace

        def replace_and_die(source: Path, target: Path) -> None:
            real(source, target)
            if str(target).endswith("receipts.key"):
                raise Killed

        patch.setattr("expunge.jobs.signing.os.replace", replace_and_die)
        with pytest.raises(Killed):
            cli("receipt", "keygen", "--replace")
    assert "keygen --replace" in cli(*BATCH, code=1)
    made = cli("receipt", "keygen", "--replace")
    assert not list((root / "ws" / "keys").glob("*.partial"))
    cli(*BATCH)
    assert cli("receipt", "list")["receipts"][0]["key"] == made["key"]


def test_a_request_that_is_extended_while_its_receipt_is_signed(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts are signed before the transaction that issues them: what changed then is signed anew."""
    signed = []
    sign = Signer.sign

    def slow(signer: Signer, *given: Any) -> Any:
        signed.append(1)
        if len(signed) == 2:
            with Workspace.open(root / "ws") as other, other.ledger.transaction():
                other.ledger.run(
                    "UPDATE requests SET due = '2031-01-02T00:00:00.000+00:00' WHERE id = 1"
                )
        return sign(signer, *given)

    monkeypatch.setattr(Signer, "sign", slow)
    cli(*BATCH)
    assert len(signed) == 4
    due = [checked_receipt(root, cli, f"R0000000{n}")["due"] for n in (1, 2)]
    assert due[0] == "2031-01-02T00:00:00.000+00:00" != due[1]
