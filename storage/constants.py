"""Constants of the generators, which lie beside the modules as JSON files."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Any


def read_constants(name: str) -> tuple[dict[str, Any], str]:
    """Return what a file of the package holds, and its digest.

    The digest is the SHA-256 of the file's bytes, first 16 hexadecimal digits: it names the
    constants in a provenance.
    """
    raw = resources.files(__package__).joinpath(name).read_bytes()
    table: dict[str, Any] = json.loads(raw)
    return table, hashlib.sha256(raw).hexdigest()[:16]
