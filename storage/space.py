"""Room on the disk: asked for before it is taken, and named when it runs out."""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import NoSpaceError

FILE_OVERHEAD = 8192
"""Bytes of a file system beyond a file's own, at most: its last block, its entry."""
RESERVE = 1 << 20
"""Bytes that are left free for the ledger."""


def free_bytes(path: Path) -> int:
    """Return the bytes that may still be written below a folder (or its nearest parent)."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require(path: Path, needed: int, files: int, what: str) -> None:
    """Raise NoSpaceError unless ``needed`` bytes in so many new files fit below ``path``."""
    total = needed + files * FILE_OVERHEAD + RESERVE
    free = free_bytes(path)
    if free < total:
        raise no_space(path, what, total, free)


def no_space(path: Path, what: str, needed: int, free: int | None = None) -> NoSpaceError:
    """Return the error that says how much room ``what`` needs at ``path``."""
    found = free_bytes(path) if free is None else free
    return NoSpaceError(
        f"the disk is too full for {what}: {shown(needed)} needed, {shown(found)} free at {path}; "
        "make room and try again"
    )


def shown(size: int) -> str:
    """Return a number of bytes as a person reads it."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
