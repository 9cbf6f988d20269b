"""Search of many byte patterns at every offset of a buffer: the compiled part of the scan.

A pattern is recognised by a *window*, a piece of 1, 4 or 16 words (of 8 bytes) where it is most
telling. The search hashes windows of the buffer,

    h = sum over r of word[r] * MULTIPLIER ** (r + 1)    (mod 2**64, words little-endian)

asks a bit filter that fits the fast caches, then an open hash table, and compares the whole
pattern where both say yes.

- A pattern has eight windows, at consecutive offsets. Wherever it stands, exactly one of them
  falls on a whole word of the buffer: the search looks at one place in eight and still finds
  every offset. Patterns too short for that have one window, looked for at every byte.
- Windows wider than one word serve patterns that resemble each other so much (rows of zeros and
  ones) that eight bytes cannot tell them apart: they bound the comparisons at a place, at the
  price of another pass over the buffer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

WORD = 8
"""Bytes in a word, and in the narrowest window."""
WINDOW_WORDS = (1, 4, 16)
"""The widths of windows, in words."""
SHARED_BY = 16
"""A window that more patterns share than this is replaced by a wider one where that fits."""
SLACK_WORDS = WINDOW_WORDS[-1] + 1
"""Words that a buffer needs beyond the bytes that are searched (their content is ignored)."""

_MULTIPLIER = 0x9E3779B97F4A7C15
_FILTER_BITS = (16, 24)
"""Least and largest size of the bit filter, as powers of two: 8 KiB to 2 MiB."""
_COUNTER_BITS = 22
_FOUND_ROWS = 4096

# Numba turns a mixture of signed and unsigned integers into floating point.
_0, _1, _3, _6, _7, _8, _56, _63 = (np.uint64(n) for n in (0, 1, 3, 6, 7, 8, 56, 63))
_COUNTER_SHIFT = np.uint64(64 - _COUNTER_BITS)

Words: TypeAlias = NDArray[np.uint64]
Scalars: TypeAlias = tuple[np.uint64, ...]
"""A tuple rather than an array: the compiler unrolls the loop over it."""


class PatternText(NamedTuple):
    """All patterns end to end."""

    words: Words
    """The bytes of all patterns as words, with SLACK_WORDS more."""
    starts: NDArray[np.int64]
    """(patterns + 1,) where each pattern begins, in bytes; then where the last one ends."""


class WindowTable(NamedTuple):
    """The windows of one kind, as the search looks them up."""

    filter_shift: np.uint64
    """A hash shifted right by this is its bit's number in the filter."""
    filter: Words
    slot_shift: np.uint64
    """A hash shifted right by this is the slot where its look-up begins."""
    slot_hash: Words
    slot_group: NDArray[np.int64]
    """The group of patterns that share the slot's window; -1 where the slot is empty."""
    group_starts: NDArray[np.int64]
    """(groups + 1,) where each group begins in `members`."""
    members: NDArray[np.int64]
    """Pattern numbers, group by group."""
    offsets: NDArray[np.int64]
    """Where the window stands in the pattern of the same place in `members`, in bytes."""


class Searcher(NamedTuple):
    """All windows of one kind: what `search` needs besides the buffer and the patterns."""

    multipliers: Scalars
    """One for each word of the window."""
    phases: Scalars
    """Where in a word of the buffer windows begin, in bits: 0, or each of its bytes."""
    table: WindowTable


def word_buffer(size: int) -> Words:
    """Return zeroed words that hold `size` bytes and the slack that `search` wants."""
    if sys.byteorder != "little":
        raise NotImplementedError("the byte search needs a little-endian machine")
    return np.zeros(-(-size // WORD) + SLACK_WORDS, dtype=np.uint64)


def join_patterns(patterns: list[bytes]) -> PatternText:
    """Lay the patterns (each of WORD bytes or more) end to end."""
    starts = np.zeros(len(patterns) + 1, dtype=np.int64)
    np.cumsum([len(pattern) for pattern in patterns], out=starts[1:])
    words = word_buffer(int(starts[-1]))
    words.view(np.uint8)[: starts[-1]] = np.frombuffer(b"".join(patterns), dtype=np.uint8)
    return PatternText(words, starts)


def build_searchers(text: PatternText) -> list[Searcher]:
    """Choose the windows of every pattern; return one searcher for each kind that is needed."""
    lengths = np.diff(text.starts)
    short = lengths < 2 * WORD - 1
    return [
        searcher
        for run, patterns in ((1, np.flatnonzero(short)), (WORD, np.flatnonzero(~short)))
        for searcher in _searchers_of_run(text, lengths, patterns, run)
    ]


def _searchers_of_run(
    text: PatternText, lengths: NDArray[np.int64], patterns: NDArray[np.int64], run: int
) -> Iterator[Searcher]:
    """Give each pattern a run of windows, of the narrowest width that tells it from most others.

    That is the width at which at most SHARED_BY patterns share a window, or else the widest
    that fits into the pattern.
    """
    phases = tuple(np.uint64(8 * place) for place in range(0, WORD, run))
    for words, wider in zip(WINDOW_WORDS, (*WINDOW_WORDS[1:], None), strict=True):
        if patterns.size == 0:
            return
        multipliers = tuple(np.uint64(pow(_MULTIPLIER, r + 1, 1 << 64)) for r in range(words))
        offsets, hashes = _choose_windows(text, patterns, run, multipliers)
        moves = np.zeros(patterns.size, dtype=np.bool_)
        if wider is not None:
            _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
            shared = (sizes[group.reshape(hashes.shape)] > SHARED_BY).any(axis=1)
            moves = shared & (lengths[patterns] >= wider * WORD + run - 1)
        if not moves.all():
            table = _build_table(patterns[~moves], offsets[~moves], hashes[~moves])
            yield Searcher(multipliers, phases, table)
        patterns = patterns[moves]


def _build_table(
    patterns: NDArray[np.int64], offsets: NDArray[np.int64], hashes: Words
) -> WindowTable:
    """Group the windows by their hashes; fill the filter and the slots.

    `patterns` is (n,), `offsets` (n,) and `hashes` (n, run): window j of pattern i stands at
    byte offsets[i] + j.
    """
    run = hashes.shape[1]
    order = np.argsort(hashes, axis=None, kind="stable")
    keys, group_starts = np.unique(hashes.ravel()[order], return_index=True)
    # As long as the filter may grow, one word in 32 or fewer passes it by chance.
    bits = int(keys.size * 32 * (WORD // run) - 1).bit_length()
    filter_bits = min(max(bits, _FILTER_BITS[0]), _FILTER_BITS[1])
    slot_bits = int(keys.size * 2).bit_length()
    table = WindowTable(
        filter_shift=np.uint64(64 - filter_bits),
        filter=np.zeros(1 << (filter_bits - 6), dtype=np.uint64),
        slot_shift=np.uint64(64 - slot_bits),
        slot_hash=np.zeros(1 << slot_bits, dtype=np.uint64),
        slot_group=np.full(1 << slot_bits, -1, dtype=np.int64),
        group_starts=np.append(group_starts, order.size).astype(np.int64),
        members=patterns[order // run],
        offsets=offsets[order // run] + order % run,
    )
    _fill_table(table, keys)
    return table


@njit(nogil=True, cache=True)
def _fill_table(table: WindowTable, keys: Words) -> None:
    """Enter the distinct hashes; the one numbered g is that of group g."""
    last = np.uint64(table.slot_hash.size - 1)
    for group in range(keys.size):
        key = keys[group]
        bit = key >> table.filter_shift
        table.filter[bit >> _6] |= _1 << (bit & _63)
        slot = key >> table.slot_shift
        while table.slot_group[slot] >= 0:
            slot = (slot + _1) & last
        table.slot_hash[slot] = key
        table.slot_group[slot] = group


@njit(nogil=True, cache=True)
def _window_hash(words: Words, word: np.uint64, bits: np.uint64, multipliers: Scalars) -> np.uint64:
    """Hash the window that begins `bits` bits into the word numbered `word`."""
    total = _0
    for r in range(len(multipliers)):
        at = word + np.uint64(r)
        # In two steps, since a shift by 64 is undefined.
        value = (words[at] >> bits) | ((words[at + _1] << (_56 - bits)) << _8)
        total += value * multipliers[r]
    return total


@njit(nogil=True, cache=True)
def _hash_at(words: Words, start: int, multipliers: Scalars) -> np.uint64:
    """Hash the window that begins at any byte."""
    at = np.uint64(start)
    key: np.uint64 = _window_hash(words, at >> _3, (at & _7) << _3, multipliers)
    return key


@njit(nogil=True, cache=True)
def _distinct_nonzero(text: NDArray[np.uint8], start: int) -> int:
    """Count the different bytes other than 0 among the WORD bytes from `start` on."""
    distinct = 0
    for i in range(start, start + WORD):
        fresh = text[i] != 0
        for j in range(start, i):
            fresh = fresh and text[j] != text[i]
        distinct += fresh
    return distinct


@njit(nogil=True, cache=True)
def _choose_windows(
    text: PatternText, patterns: NDArray[np.int64], run: int, multipliers: Scalars
) -> tuple[NDArray[np.int64], Words]:
    """Return the offset (n,) and the hashes (n, run) of each pattern's most telling windows.

    The files' own frequencies are unknown. A window's is taken to be its number in the patterns,
    which are a sample of what the files hold, halved for each distinct non-zero byte in its
    first word; the run of consecutive windows with the least sum is chosen.
    """
    data = text.words.view(np.uint8)
    width = WORD * len(multipliers)
    counters = np.zeros(1 << _COUNTER_BITS, dtype=np.uint32)
    longest = 0
    for pattern in patterns:
        last = text.starts[pattern + 1] - width
        longest = max(longest, last + 1 - text.starts[pattern])
        for start in range(text.starts[pattern], last + 1):
            counters[_hash_at(text.words, start, multipliers) >> _COUNTER_SHIFT] += np.uint32(1)
    offsets = np.zeros(patterns.size, dtype=np.int64)
    hashes = np.zeros((patterns.size, run), dtype=np.uint64)
    keys = np.empty(longest, dtype=np.uint64)
    rates = np.empty(longest, dtype=np.float64)
    for i in range(patterns.size):
        first = text.starts[patterns[i]]
        windows = text.starts[patterns[i] + 1] - width + 1 - first
        for j in range(windows):
            keys[j] = _hash_at(text.words, first + j, multipliers)
            count = counters[keys[j] >> _COUNTER_SHIFT]
            rates[j] = count / (1 << _distinct_nonzero(data, first + j))
        least = math.inf
        for j in range(windows - run + 1):
            rate = rates[j : j + run].sum()
            if rate < least:
                least, offsets[i] = rate, j
        hashes[i] = keys[offsets[i] : offsets[i] + run]
    return offsets, hashes


@njit(nogil=True, cache=True)
def _find_group(table: WindowTable, key: np.uint64) -> int:
    """Return the group of patterns whose window has this hash, or -1."""
    last = np.uint64(table.slot_hash.size - 1)
    slot = key >> table.slot_shift
    while table.slot_group[slot] >= 0:
        if table.slot_hash[slot] == key:
            return int(table.slot_group[slot])
        slot = (slot + _1) & last
    return -1


@njit(nogil=True, cache=True)
def _same_bytes(
    data: NDArray[np.uint8],
    start: int,
    text: NDArray[np.uint8],
    text_start: int,
    length: int,
    offset: int,
) -> bool:
    """Compare a pattern with the data, from its window on: rows differ there the soonest."""
    for begin, end in ((offset, length), (0, offset)):
        for i in range(begin, end):
            if data[start + i] != text[text_start + i]:
                return False
    return True


@njit(nogil=True, cache=True)
def _match_group(
    words: Words,
    size: int,
    owned: int,
    place: int,
    text: PatternText,
    table: WindowTable,
    group: int,
    found: NDArray[np.int64],
    count: int,
) -> int:
    """Compare the patterns whose window may stand at `place`; return the new count of `found`."""
    data = words.view(np.uint8)
    text_data = text.words.view(np.uint8)
    for member in range(table.group_starts[group], table.group_starts[group + 1]):
        pattern, offset = table.members[member], table.offsets[member]
        start, first = place - offset, text.starts[pattern]
        length = text.starts[pattern + 1] - first
        if start < 0 or start >= owned or start + length > size:
            continue
        if _same_bytes(data, start, text_data, first, length, offset):
            found[count, 0], found[count, 1] = start, pattern
            count += 1
    return count


@njit(nogil=True, cache=True)
def _search(
    words: Words,
    size: int,
    owned: int,
    begin: int,
    text: PatternText,
    multipliers: Scalars,
    phases: Scalars,
    table: WindowTable,
    found: NDArray[np.int64],
) -> tuple[int, int]:
    """Search from the window at byte `begin` until `found` is full or the bytes end.

    Returns how many rows of `found` (start, pattern) were filled and the byte to go on from
    (`size` at the end). `found` must hold the largest group of the table.
    """
    count = 0
    for word in range(np.uint64(begin // WORD), np.uint64(size // WORD)):
        hits = _0
        for phase in phases:
            bit = _window_hash(words, word, phase, multipliers) >> table.filter_shift
            hits |= table.filter[bit >> _6] >> (bit & _63)
        if hits & _1 == _0:
            continue
        for phase in phases:
            key = _window_hash(words, word, phase, multipliers)
            bit = key >> table.filter_shift
            if (table.filter[bit >> _6] >> (bit & _63)) & _1 == _0:
                continue
            group = _find_group(table, key)
            place = np.int64((word << _3) + (phase >> _3))
            if group < 0 or place < begin:
                continue
            if count + table.group_starts[group + 1] - table.group_starts[group] > len(found):
                return count, int(place)
            count = _match_group(words, size, owned, place, text, table, group, found, count)
    return count, size


def search(
    words: Words, size: int, owned: int, text: PatternText, searchers: list[Searcher]
) -> NDArray[np.int64]:
    """Find every place in a buffer where a pattern stands; releases the GIL while it searches.

    Args:
        words: the buffer, from `word_buffer`.
        size: bytes that count, from the beginning of the buffer.
        owned: only matches that begin before this byte are returned.
        text: the patterns.
        searchers: their windows, from `build_searchers(text)`.

    Returns:
        (matches, 2): first byte and number of the pattern, in this order.
    """
    pieces = [np.empty((0, 2), dtype=np.int64)]
    for multipliers, phases, table in searchers:
        largest_group = int(np.diff(table.group_starts).max())
        found = np.empty((max(_FOUND_ROWS, largest_group), 2), dtype=np.int64)
        begin = 0
        while begin < size:
            count, begin = _search(
                words, size, owned, begin, text, multipliers, phases, table, found
            )
            pieces.append(found[:count].copy())
    matches = np.concatenate(pieces)
    return matches[np.lexsort((matches[:, 1], matches[:, 0]))]
