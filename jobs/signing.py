"""The workspace's key, and signatures of documents: Ed25519 (RFC 8032) over canonical JSON.

The private key lies in the workspace, in a file of mode 0600; public keys, former ones too, lie
beside it. The ledger knows which key signs, so a key file that is lost or swapped is noticed and
nothing goes out unsigned by mistake. A key's id is the SHA-256 of its public half in DER
(SubjectPublicKeyInfo), as ``openssl pkey -pubin -in FILE -outform DER | sha256sum`` gives it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from ..storage import files
from .canonical import canonical, canonical_object
from .errors import JobError, UsageError
from .workspace import Workspace

ALGORITHM = "ed25519"
FOLDER = "keys"
PRIVATE = "receipts.key"
PRIVATE_MODE = 0o600
SETTING = "receipt_key"
"""The name under which the ledger has the signing key's id."""
KEYGEN = "expunge receipt keygen"


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signs."""

    key: Ed25519PrivateKey
    key_id: str

    def sign(self, members: Mapping[str, bytes]) -> dict[str, str]:
        """Return the signature of a document, given as its members' canonical spellings."""
        head = {"algorithm": ALGORITHM, "key": self.key_id}
        message = canonical_object({**members, "signature": canonical(head)})
        return {**head, "value": self.key.sign(message).hex()}


def signed_bytes(document: Mapping[str, Any]) -> bytes:
    """Return what a signed document's signature is of: all of it but the signature's value."""
    head = {name: member for name, member in document["signature"].items() if name != "value"}
    return canonical({**document, "signature": head})


def is_signed_by(document: Mapping[str, Any], key: Ed25519PublicKey) -> bool:
    """Whether a document's signature, whose value is hexadecimal, is this key's and of all of it."""
    try:
        key.verify(bytes.fromhex(document["signature"]["value"]), signed_bytes(document))
    except InvalidSignature:
        return False
    return True


def key_id(key: Ed25519PublicKey) -> str:
    """Return the fingerprint by which documents name a key: 64 hexadecimal digits."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Return the Ed25519 public key of a PEM file; UsageError for anything else."""
    try:
        found = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: the public key can't be read ({error.strerror})") from error
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            f"{path} is not a public key in PEM form; give the file that {KEYGEN} named"
        ) from None
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"{path} is a public key, but not of Ed25519, which signs receipts")
    return found


def signer_of(ws: Workspace) -> Signer | None:
    """Return the key that signs in a workspace; None where none was ever made.

    JobError where the key that the ledger names is lost, damaged or another.
    """
    recorded = ws.ledger.setting(SETTING)
    path = ws.root / FOLDER / PRIVATE
    if not path.exists():
        if recorded is None:
            return None
        raise JobError(
            f"{path}, the key that signs receipts, is missing: restore it, or make another with "
            f"{KEYGEN} --replace"
        )
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise JobError(f"{path}: the signing key can't be read ({error.strerror})") from error
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey) or key_id(key.public_key()) != recorded:
        raise JobError(
            f"{path} is not the key that the ledger says signs receipts: restore that one, or make "
            f"another with {KEYGEN} --replace"
        )
    return Signer(key, recorded)


def make_key(ws: Workspace, replace: bool) -> dict[str, Any]:
    """Make the workspace's signing key; return its id and where its public half is.

    replace: take the place of a key that there is; receipts that it signed stay as they are, and
    its public half stays in the workspace. UsageError where there is a key already.
    """
    folder = ws.root / FOLDER
    path = folder / PRIVATE
    with ws.lock("making a key"):
        former = ws.ledger.setting(SETTING)
        if not replace and (former is not None or path.exists()):
            raise UsageError(
                f"the workspace has a key that signs receipts, {path}; --replace makes another for "
                "receipts to come"
            )
        folder.mkdir(exist_ok=True)
        files.sync_folder(ws.root)
        files.sweep_partials(folder)
        key = Ed25519PrivateKey.generate()
        made = key_id(key.public_key())
        public = folder / f"receipts-{made[:16]}.pem"
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        files.write_whole(public, pem)
        staged = _write_private(folder, key)
        with ws.ledger.transaction():
            ws.ledger.set(SETTING, made)
            ws.ledger.event("receipt key", {"key": made, "replaces": former})
            # A crash from here to the commit leaves a key that the ledger does not name: no job
            # signs with it, and none goes unsigned.
            os.replace(staged, path)
            files.sync_folder(folder)
    return {
        "key": made,
        "public_key": str(public),
        "private_key": str(path),
        "replaces": former,
    }


def _write_private(folder: Path, key: Ed25519PrivateKey) -> Path:
    """Write and sync a private key under a name to be replaced, for its owner alone to read."""
    staged = folder / f"{PRIVATE}.{secrets.token_hex(8)}{files.PARTIAL}"
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), PRIVATE_MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return staged
