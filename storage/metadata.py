"""The digest of what a version's Zarr metadata say: names, shapes, attributes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .chunks import CURE
from .errors import CorruptError, MissingError

METADATA = "zarr.json"
"""The name of every metadata file of Zarr v3."""


def metadata_digest(path: Path) -> str:
    """Return the SHA-256 over every metadata file below a group's folder, nested groups' too.

    A version's own digest is of its chunks, so that a retrain has the same; attributes are in this
    one. Raises MissingError where there is none.
    """
    found = sorted(path.rglob(METADATA))
    if not found:
        raise MissingError(f"{path}: there is no {METADATA} here")
    whole = hashlib.sha256()
    for file in found:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        whole.update(f"{file.relative_to(path).as_posix()}|{content}\n".encode())
    return whole.hexdigest()


def check_metadata(path: Path, expected: str | None) -> None:
    """CorruptError unless the metadata below ``path`` are as expected; None: not known."""
    if expected is not None and metadata_digest(path) != expected:
        raise CorruptError(f"{path}: a {METADATA} is not what was written; {CURE}")
