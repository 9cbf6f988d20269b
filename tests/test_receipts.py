"""Signed receipts: keys, verification without a workspace, tampering."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from receipt_workspace import (
    GROUND,
    REFERENCE,
    at,
    command,
    forget,
    issue,
    leaves,
    objects,
    problem,
    read,
)
from support import INLINE, Cli

from expunge.jobs.canonical import canonical
from expunge.jobs.receipt_checks import verify_file
from expunge.jobs.receipt_page import page
from expunge.jobs.receipt_schema import KEYWORDS, check_receipt, receipt_schema
from expunge.jobs.signing import signed_bytes
from expunge.jobs.statements import UNSIGNED_LIMIT


def public_pem(path: Path, key: Any = None) -> Path:
    """Write the public half of a key, by default a new one."""
    public = (key or Ed25519PrivateKey.generate()).public_key()
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workspace that has issued two signed receipts; tests leave it as it is."""
    root = tmp_path_factory.mktemp("issued")
    issue(root)
    return root


# ---- what is issued


def test_a_receipt_is_signed_and_verified_without_a_workspace(
    issued: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("receipt.json", "public.pem"):
        shutil.copy(issued / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    found = cli("receipt", "verify", "receipt.json", "--public-key", "public.pem")
    assert found["valid"] and found["receipt"] == "R00000001"
    assert found["key"] == read(issued)["signature"]["key"]
    public_pem(tmp_path / "other.pem")
    found = cli("receipt", "verify", "receipt.json", "--public-key", "other.pem", code=5)
    assert not found["valid"] and found["problem"] == "other key"


def test_a_receipt_is_as_its_schema_says(issued: Path) -> None:
    receipt = read(issued)
    assert check_receipt(receipt) is None
    assert receipt["rows"] > 0 and receipt["job"]["rows"] > receipt["rows"]
    assert receipt["job"]["models"][0]["model"] == "km"
    assert receipt["verification"]["models"][0]["exact"]
    assert receipt["verification"]["read_back"] == {"slots": receipt["job"]["rows"], "versions": 1}
    # The schema describes what there is, and the checker understands all of it.
    described = receipt_schema()["$defs"]
    assert set(receipt) == set(receipt_schema()["properties"])
    told_of_trouble = {"retired", "update_failures"}
    assert set(receipt["job"]) == set(described["job"]["properties"]) - told_of_trouble
    assert set(receipt["verification"]) == set(described["verification"]["properties"])
    for path in objects(receipt_schema()):
        value = at(receipt_schema(), path)
        names_members = path and path[-1] in ("properties", "$defs")
        if isinstance(value, dict) and not names_members:
            assert set(value) <= KEYWORDS, path


def test_the_list_names_the_key(issued: Path) -> None:
    key = read(issued)["signature"]["key"]
    assert [r["key"] for r in command(issued, "receipt", "list")["receipts"]] == [key, key]


def test_openssl_agrees_on_key_id_and_signature(issued: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to compare with")
    receipt, key = read(issued), issued / "public.pem"
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", key, "-outform", "DER"],
        capture_output=True,
        check=True,
    ).stdout
    digest = subprocess.run(["sha256sum"], input=der, capture_output=True, check=True).stdout
    assert digest.decode().split()[0] == receipt["signature"]["key"]
    (tmp_path / "message").write_bytes(signed_bytes(receipt))
    (tmp_path / "signature").write_bytes(bytes.fromhex(receipt["signature"]["value"]))
    given = ["-rawin", "-in", str(tmp_path / "message"), "-sigfile", str(tmp_path / "signature")]
    done = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", key, *given],
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def test_any_spelling_of_the_same_json_is_good(issued: Path) -> None:
    receipt = read(issued)
    assert problem(issued, canonical(receipt).decode()) is None
    assert problem(issued, json.dumps(dict(reversed(receipt.items())), indent=7)) is None


# ---- tampering


def changed(value: Any) -> list[Any]:
    """Other values for a leaf: a near one, and one of another type."""
    if isinstance(value, bool):
        return [not value, None, int(value)]
    if isinstance(value, int | float):
        return [value + 1, -value - 1, str(value), None]
    if isinstance(value, str):
        near = value[:-1] + ("1" if value.endswith("0") else "0")  # A digit of a key, too.
        return [near, f"{value} ", value.upper() if value.upper() != value else "", None]
    return [0, "x", [None], {"x": None}]


def test_every_changed_leaf_is_noticed(issued: Path) -> None:
    receipt = read(issued)
    paths = list(leaves(receipt))
    assert len(paths) > 80
    kinds = set()
    for path in paths:
        for other in changed(at(receipt, path)):
            tampered = deepcopy(receipt)
            at(tampered, path[:-1])[path[-1]] = other
            found = problem(issued, tampered)
            assert found is not None, (path, other)
            kinds.add(found)
    assert kinds == {
        "changed",
        "malformed",
        "other key",
        "not signed",
        "unknown schema version",
    } - {"not signed"}


def test_every_removed_and_added_member_is_noticed(issued: Path) -> None:
    receipt = read(issued)
    for path in objects(receipt):
        value = at(receipt, path)
        names = list(value) if isinstance(value, dict) else range(len(value))
        for name in names:
            tampered = deepcopy(receipt)
            del at(tampered, path)[name]
            assert problem(issued, tampered) is not None, (path, name)
        tampered = deepcopy(receipt)
        inner = at(tampered, path)
        if isinstance(inner, dict):
            inner["added"] = None
        else:
            inner.append(None)
        assert problem(issued, tampered) is not None, path
        if isinstance(value, list) and len(value) > 1:
            tampered = deepcopy(receipt)
            at(tampered, path).reverse()
            assert problem(issued, tampered) is not None, path


def test_every_changed_digit_of_the_signature_is_noticed(issued: Path) -> None:
    receipt = read(issued)
    value = receipt["signature"]["value"]
    for place, digit in enumerate(value):
        other = f"{int(digit, 16) ^ 1:x}"
        receipt["signature"]["value"] = value[:place] + other + value[place + 1 :]
        assert problem(issued, receipt) == "changed"
    for other in (value[:-2], value + "00", value.upper(), f"{value}\n", "", "00" * 64):
        receipt["signature"]["value"] = other
        assert problem(issued, receipt) in ("malformed", "changed")


def test_one_receipts_signature_does_not_fit_another(issued: Path) -> None:
    first, second = read(issued), command(issued, "receipt", "show", "R00000002")
    assert problem(issued, second) is None
    assert problem(issued, {**first, "signature": second["signature"]}) == "changed"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda r: {**r, "signature": None}, "not signed"),
        (lambda r: {n: v for n, v in r.items() if n != "signature"}, "not signed"),
        (lambda r: {**r, "schema": 1}, "not signed"),
        (lambda r: {**r, "schema": 2}, "changed"),
        (lambda r: {**r, "schema": 4}, "unknown schema version"),
        (lambda r: {**r, "schema": "3"}, "unknown schema version"),
        (lambda r: {**r, "schema": True}, "unknown schema version"),
        (lambda r: {n: v for n, v in r.items() if n != "schema"}, "malformed"),
        (lambda r: {**r, "signature": {**r["signature"], "algorithm": "none"}}, "malformed"),
        (lambda r: {**r, "signature": {**r["signature"], "key": "0" * 64}}, "other key"),
        (lambda r: {**r, "signature": r["signature"]["value"]}, "malformed"),
        (lambda r: [r], "malformed"),
        (lambda r: json.dumps(r)[:-3], "malformed"),
        (lambda r: json.dumps(r)[:-1] + ', "rows": 0}', "malformed"),
        (lambda r: '{"schema": 3, "deep": ' + "[" * 100_000, "malformed"),
        (lambda r: json.dumps(r)[:-1] + ', "deep": ' + "[" * 800 + "]" * 800 + "}", "malformed"),
        (lambda r: "", "malformed"),
        (lambda r: "2", "malformed"),
    ],
)
def test_what_is_wrong_is_said(
    issued: Path, make: Callable[[dict[str, Any]], Any], kind: str
) -> None:
    assert problem(issued, make(read(issued))) == kind


def test_a_signature_of_what_is_no_receipt_is_not_enough(issued: Path, tmp_path: Path) -> None:
    """Whoever has the key signs a receipt without its limits: the schema refuses it."""
    key = Ed25519PrivateKey.generate()
    pem = public_pem(tmp_path / "own.pem", key)
    receipt = {n: v for n, v in read(issued).items() if n != "limits"}
    file = tmp_path / "r.json"
    file.write_text(json.dumps(receipt))
    receipt["signature"]["key"] = verify_file(file, pem)["key"]
    receipt["signature"]["value"] = key.sign(signed_bytes(receipt)).hex()
    file.write_text(json.dumps(receipt))
    found = verify_file(file, pem)
    assert found["problem"] == "malformed" and "limits" in found["message"]


def test_a_receipt_of_the_schema_before_is_verified(issued: Path, tmp_path: Path) -> None:
    """As an earlier program signed it; with members of today it is none of that schema."""
    key = Ed25519PrivateKey.generate()
    pem = public_pem(tmp_path / "own.pem", key)
    today = read(issued)
    former = {n: v for n, v in today.items() if n not in ("due", "reference", "ground")}
    for document, expected in (
        ({**former, "schema": 2}, None),
        ({**today, "schema": 2}, "malformed"),
    ):
        found = deepcopy(document)
        found["signature"]["key"] = verify_file(issued / "receipt.json", pem)["key"]
        found["signature"]["value"] = key.sign(signed_bytes(found)).hex()
        (tmp_path / "r.json").write_text(json.dumps(found))
        assert verify_file(tmp_path / "r.json", pem)["problem"] == expected
        assert "How it was verified" in page(found)
    assert check_receipt({**former, "schema": 2}, 2) is None


def test_a_receipt_tells_its_requests_terms(issued: Path) -> None:
    receipt = read(issued)
    listed = command(issued, "request", "show", 1)
    for name in ("due", "reference", "ground"):
        assert receipt[name] == listed[name]
    assert receipt["reference"] == REFERENCE and receipt["ground"] == GROUND
    assert datetime.fromisoformat(receipt["due"]) - datetime.fromisoformat(
        receipt["received"]
    ) == timedelta(days=30)
    shown = page(receipt)
    assert REFERENCE in shown and GROUND in shown and "Due" in shown
    assert check_receipt({**receipt, "due": None, "reference": None, "ground": None}) is None


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe"])
def test_keys_that_are_none(issued: Path, tmp_path: Path, cli: Cli, content: bytes) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_bytes(content)
    for key, said in (
        (bad, "not a public key in PEM form"),
        (tmp_path / "nowhere.pem", "No such file"),
        (public_pem(tmp_path / "ec.pem", generate_private_key(SECP256R1())), "not of Ed25519"),
        (issued / "ws" / "keys" / "receipts.key", "not a public key"),
    ):
        given = ("receipt", "verify", issued / "receipt.json", "--public-key", key)
        assert said in cli(*given, code=2)
    given = ("receipt", "verify", tmp_path / "nowhere", "--public-key", issued / "public.pem")
    assert "can't be read" in cli(*given, code=2)


# ---- keys


@pytest.fixture
def workspace(issued: Path, tmp_path: Path) -> Path:
    """A copy of the workspace, with one more request queued."""
    shutil.copytree(issued / "ws", tmp_path / "ws")
    forget(tmp_path, "Person-11")
    return tmp_path


def test_a_key_is_private_and_not_overwritten(workspace: Path, cli: Cli) -> None:
    path = workspace / "ws" / "keys" / "receipts.key"
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "--replace" in cli("receipt", "keygen", code=2)
    (workspace / "taken.pem").write_text("mine")
    given = ("receipt", "keygen", "--replace", "--out", workspace / "taken.pem")
    assert "exists" in cli(*given, code=2)
    assert path.read_bytes() == before and (workspace / "taken.pem").read_text() == "mine"
    umask = os.umask(0)
    try:
        made = cli("receipt", "keygen", "--replace", "--out", workspace / "new.pem")
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() != before
    assert made["replaces"] == command(workspace, "receipt", "list")["receipts"][0]["key"]
    assert len(list(path.parent.glob("*.pem"))) == 2 and len(list(path.parent.iterdir())) == 3
    # What the former key signed stays good by its public half.
    cli("batch", "run", "--yes", *INLINE)
    for name, key in (("R00000001", made["replaces"]), ("R00000003", made["key"])):
        cli("receipt", "show", name, "--out", workspace / f"{name}.json")
        (public,) = path.parent.glob(f"*{key[:16]}.pem")
        checked = ("receipt", "verify", workspace / f"{name}.json", "--public-key")
        assert cli(*checked, public)["valid"]
        other = public_pem(workspace / f"other-{name}.pem")
        assert cli(*checked, other, code=5)["problem"] == "other key"


@pytest.mark.parametrize("harm", ["missing", "another", "damaged"])
def test_no_job_begins_with_a_key_that_cannot_sign(workspace: Path, cli: Cli, harm: str) -> None:
    path = workspace / "ws" / "keys" / "receipts.key"
    kept = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(kept[:60])
    else:
        people_elsewhere = workspace / "elsewhere"
        command(people_elsewhere, "init", people_elsewhere / "ws")
        command(people_elsewhere, "receipt", "keygen")
        shutil.copy(people_elsewhere / "ws" / "keys" / "receipts.key", path)
    error = cli("batch", "run", "--yes", *INLINE, code=1)
    assert "keygen --replace" in error and "BEGIN" not in error
    if harm == "missing":
        assert "--replace" in cli("receipt", "keygen", code=2)
    path.write_bytes(kept)
    assert cli("batch", "run", "--yes", *INLINE)["signed"]


def test_a_workspace_without_a_key_says_so(
    cli: Cli, csv_file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli("init", tmp_path / "ws")
    x = np.random.default_rng(0).random((20, 2))
    cli("data", "import", "t", csv_file(x), "--format", "csv")
    cli("forget", "--data", "t", "--unit", "3,4")
    command(tmp_path, "batch", "run", "--yes", *INLINE)
    assert "receipts are not signed" in capsys.readouterr().err
    receipt = cli("receipt", "show", "R00000001")
    assert receipt["signature"] is None and receipt["limits"][-1] == UNSIGNED_LIMIT
    assert check_receipt(receipt) is None
    assert "not signed" in page(receipt)
    assert cli("receipt", "list")["receipts"][0]["key"] is None
    file = tmp_path / "r.json"
    file.write_text(json.dumps(receipt))
    given = ("receipt", "verify", file, "--public-key", public_pem(tmp_path / "k.pem"))
    assert cli(*given, code=5)["problem"] == "not signed"
