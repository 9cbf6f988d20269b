"""``receipt verify``: is a receipt's file what was issued? Needs the public key, and no workspace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .canonical import NotCanonicalError, read_strictly
from .errors import UsageError
from .receipt_schema import SIGNED_SCHEMAS, check_receipt
from .signing import ALGORITHM, is_signed_by, key_id, read_public_key

NOT_SIGNED = "not signed"
OTHER_KEY = "other key"
CHANGED = "changed"
MALFORMED = "malformed"
UNKNOWN_SCHEMA = "unknown schema version"
UNSIGNED_SCHEMA = 1
"""The version whose receipts had no place for a signature."""
_ID = re.compile("[0-9a-f]{64}")
_SIGNATURE = re.compile("[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a receipt."""

    kind: str
    message: str


def verify_file(file: Path, public_key: Path) -> dict[str, Any]:
    """Verify a receipt's file; return what was found: ``valid``, and ``problem`` and ``message``.

    UsageError where a file can't be read or the key is none.
    """
    key = read_public_key(public_key)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: the receipt can't be read ({error.strerror})") from error
    fault, document = _verified(data, key)
    return {
        "file": str(file),
        "valid": fault is None,
        "problem": None if fault is None else fault.kind,
        "message": "signed with this key, and unchanged" if fault is None else fault.message,
        "key": key_id(key),
        "receipt": document.get("receipt") if fault is None else None,
    }


def _verified(data: bytes, key: Ed25519PublicKey) -> tuple[Fault | None, dict[str, Any]]:
    """What is wrong with a receipt's bytes, if anything, and the document."""
    try:
        document = read_strictly(data.decode())
    except UnicodeDecodeError:
        return Fault(MALFORMED, "it is not UTF-8 text"), {}
    except NotCanonicalError as error:
        return Fault(MALFORMED, f"it is not a receipt's JSON: {error}"), {}
    if not isinstance(document, dict) or "schema" not in document:
        return Fault(MALFORMED, "it is not a receipt: it says no schema version"), {}
    return _fault(document, key), document


def _fault(document: dict[str, Any], key: Ed25519PublicKey) -> Fault | None:
    schema = document["schema"]
    if schema == UNSIGNED_SCHEMA and not isinstance(schema, bool):
        return Fault(NOT_SIGNED, "it bears no signature: those of schema version 1 never did")
    if isinstance(schema, bool) or schema not in SIGNED_SCHEMAS:
        known = ", ".join(map(str, SIGNED_SCHEMAS))
        return Fault(
            UNKNOWN_SCHEMA,
            f"its schema version is not one that this program knows ({known}): use the "
            "program that issued it, or a newer one",
        )
    if document.get("signature") is None:
        return Fault(NOT_SIGNED, "it bears no signature, so nobody can tell whether it was changed")
    fault = _signature_fault(document, key)
    if fault is not None:
        return fault
    unlike = check_receipt(document, int(schema))
    return None if unlike is None else Fault(MALFORMED, f"it is not as its schema says: {unlike}")


def _signature_fault(document: dict[str, Any], key: Ed25519PublicKey) -> Fault | None:
    signature = document["signature"]
    if not isinstance(signature, dict) or set(signature) != {"algorithm", "key", "value"}:
        return Fault(MALFORMED, "its signature is not an object of algorithm, key and value")
    named, value = signature["key"], signature["value"]
    if signature["algorithm"] != ALGORITHM:
        return Fault(MALFORMED, f"its signature is not by {ALGORITHM}")
    for what, text, form in (("key's id", named, _ID), ("value", value, _SIGNATURE)):
        if not isinstance(text, str) or not form.fullmatch(text):
            return Fault(MALFORMED, f"its signature's {what} is not in hexadecimal digits")
    if named != key_id(key):
        return Fault(
            OTHER_KEY,
            f"it names another key, {named[:16]}..., than this one, {key_id(key)[:16]}...",
        )
    try:
        good = is_signed_by(document, key)
    except NotCanonicalError as error:
        return Fault(MALFORMED, f"it holds {error}")
    except RecursionError:
        return Fault(MALFORMED, "it is nested too deeply")
    if good:
        return None
    return Fault(CHANGED, "its signature does not fit: the receipt or its signature was changed")
