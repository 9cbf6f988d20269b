"""Checks of parts of a chunk: what reads a few blocks of a file can't have its SHA-256.

They find damage, not intent: whoever can write a block can write its check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_START = 0x6A09E667F3BCC909
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@njit(cache=True, nogil=True)
def _fold(words, found):  # type: ignore[no-untyped-def]
    """Fold the words (n, m) of each row into found (n,); each step is a bijection of 64 bits."""
    for i in range(words.shape[0]):
        check = found[i]
        for word in words[i]:
            check = (check ^ word) * _FACTOR
            check ^= check >> _SHIFT
        found[i] = check


def block_checks(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a check (n,) of each row i of all columns (n, m), rows of whole 8 bytes, little-endian.

    Damage to one aligned word of 8 bytes always changes it; other damage is missed once in 2^64.
    """
    found = np.full(len(columns[0]), _START, np.uint64)
    for column in columns:
        _fold(np.ascontiguousarray(column).view("<u8"), found)
    return found
