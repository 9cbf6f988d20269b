"""Peak memory of a task as arithmetic: what does not fit is refused before it runs.

Every size is in bytes and follows from shapes alone; none of them grows with the number of rows.
"""

from __future__ import annotations

import re

from ..pipeline.lanes import LANES
from ..storage.space import shown
from .errors import JobError, UsageError

RESERVED = 260 << 20
"""A worker before it has done anything: interpreter, libraries, compiled code."""
SLACK = 1 << 20
"""Small objects of a task."""


def pass_bytes(capacity: int, features: int, clusters: int) -> int:
    """Return the peak of a pass over cells: assignment, race or square sum.

    One cell's rows are held at a time, in a buffer that is reused.
    """
    rows = 4 * capacity * features
    units = 8 * capacity + capacity
    ordinals = 33 * capacity
    block = LANES * (8 * features + 32)
    centroids = 8 * clusters * features
    # The task's own and the distinct ones (sorted, unsorted, float32), three tallies.
    return rows + units + ordinals + block + 8 * centroids + SLACK


def gather_bytes(capacity: int, features: int, rows: int) -> int:
    """Return the peak of gathering or erasing ``rows`` rows, or of measuring cells.

    The worst case is that an extreme goes: then the cell is read whole, its live rows are copied
    and compared with its extremes.
    """
    units = 8 * capacity + 5 * 8 * capacity
    whole = (4 + 4 + 1) * capacity * features
    found = rows * (4 * features + 24)
    return units + whole + 2 * found + SLACK


def check_memory(what: str, projected: int, limit: int | None) -> None:
    """Raise JobError if a task can't fit into a worker's limit (None: there is none)."""
    if limit is not None and projected + RESERVED > limit:
        raise JobError(
            f"{what} needs {shown(projected)} a task beside {shown(RESERVED)} for a worker itself, "
            f"and workers may use {shown(limit)}: raise --memory-limit, or import the data with "
            "more cells"
        )


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(option: str, text: str) -> int:
    """Return the bytes that "1GiB" or "500 MB" means; UsageError otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} is {text!r}: give a size such as 500MB or 1GiB")
    number, prefix, binary = match[1], match[2].lower(), bool(match[3])
    power = "kmgt".find(prefix) + 1 if prefix else 0
    size = 1024**power if binary else _UNITS[prefix]
    if not float(number):
        raise UsageError(f"{option} is {text!r}: give a size above 0, such as 500MB or 1GiB")
    return int(float(number) * size)
