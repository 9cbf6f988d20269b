"""Sparse rows in svmlight (libsvm) files: ``LABEL COLUMN:VALUE COLUMN:VALUE ... # comment``.

Plain or gzipped, read piece by piece. Columns are numbered from 0 or from 1: as told, else from 0
where any file has a column 0. Entries of a row may come in any order; zeros are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

import numpy as np

from .columns import FLOAT32_END
from .errors import BadInputError
from .filesource import PIECE_BYTES
from .sparse import MAX_FEATURES, SparseRows
from .sparse_rows import SparseBlock, SparseSource
from .tabular_stream import opened

SVMLIGHT = "svmlight"
LABEL = "label"


class SvmlightSource(SparseSource):
    """The rows of one or several svmlight files.

    first_column: 0 or 1; found out if None. drop_invalid: skip lines that cannot be used and count
    them, instead of raising.
    """

    label_name = LABEL

    def __init__(
        self, files: Sequence[Path], *, first_column: int | None = None, drop_invalid: bool = False
    ) -> None:
        if not files:
            raise BadInputError("no file given; name at least one")
        if first_column not in (None, 0, 1):
            raise BadInputError(f"the first column is {first_column}; columns begin with 0 or 1")
        for path in files:
            with opened(path):
                pass
        self._files = tuple(files)
        self._asked = first_column
        self._drop_invalid = drop_invalid
        self._sizes = [path.stat().st_size for path in files]
        self._position = 0
        self._lowest, self._highest = MAX_FEATURES, 0
        self.dropped = 0

    @property
    def provenance(self) -> dict[str, str | int | float]:
        names = ", ".join(path.name for path in self._files)
        return {"format": SVMLIGHT, "files": names, "drop_invalid": int(self._drop_invalid)}

    @property
    def first_column(self) -> int:
        if self._asked is not None:
            return self._asked
        return 0 if self._lowest == 0 else 1

    @property
    def features(self) -> int:
        return max(1, self._highest + 1 - self.first_column)

    @property
    def progress(self) -> float:
        return self._position / max(1, sum(self._sizes))

    def blocks(self) -> Iterator[SparseBlock]:
        """Yield the rows in order; BadInputError names file and line of the first bad one."""
        self._position = self.dropped = 0
        self._lowest, self._highest = MAX_FEATURES, 0
        number = before = 0
        for path, size in zip(self._files, self._sizes, strict=True):
            with opened(path) as (stored, text):
                line = 0
                while lines := text.readlines(PIECE_BYTES):
                    piece = _Piece()
                    for content in lines:
                        line += 1
                        number += self._take(piece, content, number, f"{path}, line {line}")
                    self._position = before + min(size, stored.tell())
                    if piece.rows:
                        yield piece.block()
            before += size
        self._position = before

    def _take(self, piece: _Piece, content: bytes, number: int, place: str) -> int:
        """Add a line to the piece; return how many rows it counts for."""
        text = content.split(b"#", 1)[0]
        if not text.strip():
            return 0
        try:
            label, columns, values = _parsed(text, place)
            self._note(columns, place)
            piece.add(number, label, columns, values)
        except BadInputError:
            if not self._drop_invalid:
                raise
            self.dropped += 1
        return 1

    def _note(self, columns: list[int], place: str) -> None:
        """Keep the range of columns met so far."""
        if not columns:
            return
        lowest = min(columns)
        if self._asked == 1 and lowest == 0:
            raise BadInputError(
                f"{place}: column 0, but columns were said to begin with 1; say --first-column 0"
            )
        self._lowest = min(self._lowest, lowest)
        self._highest = max(self._highest, max(columns))


class _Piece:
    """Parsed rows, gathered until they make a block."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._labels: list[float] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._pointers = [0]

    def add(self, number: int, label: float, columns: list[int], values: list[float]) -> None:
        self.rows.append(number)
        self._labels.append(label)
        self._columns.extend(columns)
        self._values.extend(values)
        self._pointers.append(len(self._columns))

    def block(self) -> SparseBlock:
        """Return the rows with their entries in the order of columns, without zeros."""
        columns = np.array(self._columns, np.int32)
        values = np.array(self._values, np.float64).astype(np.float32)
        pointers = np.array(self._pointers, np.int64)
        owner = np.repeat(np.arange(len(self.rows)), np.diff(pointers))
        order = np.lexsort((columns, owner))
        order = order[values[order] != 0.0]
        counts = np.bincount(owner[order], minlength=len(self.rows))
        x = SparseRows(values[order], columns[order], np.r_[0, np.cumsum(counts)].astype(np.int64))
        return SparseBlock(np.array(self.rows, np.int64), x, np.array(self._labels) + 0.0)


def _parsed(text: bytes, place: str) -> tuple[float, list[int], list[float]]:
    """A line's label, columns and values; BadInputError that begins with the place."""
    label, *pairs = text.split()
    flat = b" ".join(pairs).replace(b":", b" ").split()
    paired = text.count(b":") == len(pairs) and all(b":" in pair for pair in pairs)
    if not paired or len(flat) != 2 * len(pairs) or b"_" in text:
        raise _fault(text, place)
    try:
        found = float(label), list(map(int, flat[::2])), list(map(float, flat[1::2]))
    except ValueError:
        raise _fault(text, place) from None
    if not _sound(*found):
        raise _fault(text, place)
    return found


def _sound(label: float, columns: list[int], values: list[float]) -> bool:
    within = not columns or (min(columns) >= 0 and max(columns) < MAX_FEATURES)
    finite = all(map(isfinite, values)) and isfinite(label)
    small = max(map(abs, (label, *values))) < FLOAT32_END
    return within and finite and small and len(set(columns)) == len(columns)


def _fault(text: bytes, place: str) -> BadInputError:
    """What is wrong with a line that cannot be used."""
    label, *pairs = (token.decode("utf-8", "replace") for token in text.split())
    if not _is_number(label):
        return BadInputError(
            f"{place}: the label is {label[:40]!r}, not a finite number; a line is LABEL "
            "COLUMN:VALUE ..., and rows of several labels are not supported"
        )
    seen: set[int] = set()
    for pair in pairs:
        column, colon, value = pair.partition(":")
        if column == "qid":
            return BadInputError(
                f"{place}: {pair[:40]!r}: rankings with query ids are not supported; take the "
                "qid entries out if the rows stand for themselves"
            )
        if not colon or not (column.isascii() and column.isdigit()):
            return BadInputError(f"{place}: {pair[:40]!r} is not COLUMN:VALUE with a whole COLUMN")
        if int(column) >= MAX_FEATURES:
            return BadInputError(f"{place}: column {column[:40]} is above {MAX_FEATURES - 1:,}")
        if not _is_number(value):
            return BadInputError(
                f"{place}: column {column} has {value[:40]!r}, not a finite number in 32 bits"
            )
        if int(column) in seen:
            return BadInputError(f"{place}: column {column} occurs twice; which value holds?")
        seen.add(int(column))
    return BadInputError(f"{place}: not LABEL COLUMN:VALUE ...")


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return "_" not in text and isfinite(value) and abs(value) < FLOAT32_END
