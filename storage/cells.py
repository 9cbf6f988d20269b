"""Where a row lives: a keyed hash of its unit id gives the cell, the order inside follows the hash.

A row's cell depends on its unit id and the salt alone, never on other rows or on the number of
workers; the salt is secret, since ids of low entropy could be guessed from the order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from .errors import BadInputError

Words = NDArray[np.uint64]
FINE_BITS = 16
"""Cells are counted at this resolution while the rows stream by."""
MAX_CELLS = 1 << FINE_BITS
LEAST_CELLS = 16
CELL_BYTES = 4_500_000
"""Aim for the size of a cell's features."""
MAX_CELL_BYTES = 16 << 20
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_AT_ONCE = 4096
"""Units that are hashed at a time, so that the words of their state stay in the cache."""
_INTEGER = re.compile("[+-]?[0-9]+")


def _rotate(v: Words, bits: int, spare: Words) -> None:
    np.left_shift(v, np.uint64(bits), out=spare)
    np.right_shift(v, np.uint64(64 - bits), out=v)
    np.bitwise_or(v, spare, out=v)


def _half(a: Words, b: Words, c: Words, d: Words, turns: tuple[int, int], spare: Words) -> None:
    """Half a round of SipHash, in place: a += b, c += d, and b and d turned and mixed with them."""
    np.add(a, b, out=a)
    np.add(c, d, out=c)
    for word, other, bits in ((b, a, turns[0]), (d, c, turns[1])):
        _rotate(word, bits, spare)
        np.bitwise_xor(word, other, out=word)
    _rotate(a, 32, spare)


def _siphash(message: Words, key: tuple[int, int]) -> Words:
    """SipHash-2-4 (Aumasson and Bernstein 2012) of 8-byte little-endian messages.

    NumPy's and not compiled: commands that hash some units start without Numba.
    """
    start = (key[k % 2] ^ constant for k, constant in enumerate(_START))
    v0, v1, v2, v3 = (np.full(message.shape, word, np.uint64) for word in start)
    spare = np.empty_like(v0)
    for word, rounds in ((message, 2), (np.full_like(message, 8 << 56), 2), (None, 4)):
        if word is None:
            np.bitwise_xor(v2, np.uint64(0xFF), out=v2)
        else:
            np.bitwise_xor(v3, word, out=v3)
        for _ in range(rounds):
            _half(v0, v1, v2, v3, (13, 16), spare)
            _half(v2, v1, v0, v3, (17, 21), spare)
        if word is not None:
            np.bitwise_xor(v0, word, out=v0)
    return v0 ^ v1 ^ v2 ^ v3


def _check_salt(salt: bytes) -> None:
    if len(salt) != 16:
        raise BadInputError(f"the salt has {len(salt)} bytes; 16 are needed")


def hash_units(units: NDArray[np.int64], salt: bytes) -> NDArray[np.uint64]:
    """Return the keyed 64-bit hash of each unit id; salt is 16 secret bytes."""
    _check_salt(salt)
    low, high = (int(word) for word in np.frombuffer(salt, "<u8"))
    words = np.ascontiguousarray(units, np.int64).view(np.uint64)
    parts = [words[i : i + _AT_ONCE] for i in range(0, len(words), _AT_ONCE)]
    return np.concatenate([_siphash(part, (low, high)) for part in parts or [words]])


def subject_units(subjects: Sequence[str], salt: bytes) -> NDArray[np.int64]:
    """Return the unit id of each data subject: a keyed 63-bit hash (BLAKE2b) of its text.

    Surrounding spaces do not count, and an integer is the same subject however it is written
    (7, +7, 007), as text or as a number. salt is 16 secret bytes. The chance that any two of n
    subjects share a unit, and so are deleted together, is n^2 / 2^64: 5e-6 for ten million.
    """
    _check_salt(salt)
    digests = [
        hashlib.blake2b(b"subject" + _canonical(text), key=salt, digest_size=8).digest()
        for text in subjects
    ]
    return (np.frombuffer(b"".join(digests), "<u8") & np.uint64(2**63 - 1)).astype(np.int64)


def _canonical(subject: str) -> bytes:
    text = subject.strip()
    if _INTEGER.fullmatch(text):
        digits = text.lstrip("+-").lstrip("0") or "0"
        text = f"-{digits}" if text[0] == "-" and digits != "0" else digits
    return text.encode("utf-8", "surrogatepass")


def pseudonym(data_set: str, unit: int, salt: bytes) -> str:
    """Return the keyed 128-bit hash (hex) by which ledger and receipts name a data set's unit."""
    message = b"unit" + int(unit).to_bytes(8, "little") + data_set.encode()
    return hashlib.blake2b(message, key=salt, digest_size=16).hexdigest()


def fingerprints(x: NDArray[np.float32], salt: bytes) -> list[bytes]:
    """Return the keyed 128-bit hash of each row x (n, features): tells rows alike, not what they are."""
    rows = np.ascontiguousarray(x) + np.float32(0)
    return [
        hashlib.blake2b(b"row" + row.tobytes(), key=salt, digest_size=16).digest() for row in rows
    ]


def cell_of(hashes: NDArray[np.uint64], cells: int) -> NDArray[np.int64]:
    """Return the cell of each hash: its top log2(cells) bits."""
    bits = cells.bit_length() - 1
    if bits == 0:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def units_by_cell(
    units: NDArray[np.int64], cells: int, salt: bytes
) -> dict[int, NDArray[np.int64]]:
    """Return units by the cell in which they live, in order of the cells."""
    homes = cell_of(hash_units(units, salt), cells)
    order = np.argsort(homes, kind="stable")
    found, firsts = np.unique(homes[order], return_index=True)
    parts = np.split(units[order], firsts)[1:]
    return dict(zip(found.tolist(), parts, strict=True))


def hash_order(hashes: NDArray[np.uint64], units: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the order of rows in a cell: by hash, then unit, then as they came."""
    return np.lexsort((units, hashes))


def choose_cells(rows: int, features: int) -> int:
    """Return how many cells a data set gets: a power of two, about 4.5 MB a cell, at least 16."""
    wanted = rows * features * 4 / CELL_BYTES
    return min(MAX_CELLS, max(LEAST_CELLS, 1 << ceil(log2(max(1.0, wanted)))))


def check_cells(cells: int) -> None:
    """Raise BadInputError unless a user's number of cells is a power of two in range."""
    if not (1 <= cells <= MAX_CELLS and cells & (cells - 1) == 0):
        raise BadInputError(f"{cells} cells; a power of two from 1 to {MAX_CELLS} is needed")
