"""The files that an import names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .errors import UsageError


def input_files(names: Sequence[str]) -> list[Path]:
    """Return the files of an import; UsageError for one that isn't there, or is named twice."""
    files = [Path(name) for name in names]
    missing = [file for file in files if not file.exists()]
    if missing:
        raise UsageError(f"{missing[0]}: there is no such file")
    for file, times in Counter(file.resolve() for file in files).items():
        if times > 1:
            raise UsageError(
                f"{file}: this file is named {times} times; to have its rows more than once, say --copies"
            )
    return files
