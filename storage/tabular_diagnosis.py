"""The lines of a table: what each one must hold, and what is wrong with one that does not.

The exact and slow half of the reader in `tabular`. It accepts the same numbers as Arrow's parser
does, so that whether a line is examined here or parsed there never changes the outcome.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import BadInputError

# Possessive, so that no text takes more than linear time.
_DIGITS = r"[ \t]*+[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[ \t]*+"
_NUMBER = re.compile(_DIGITS)
_NOT_FINITE = re.compile(
    r"[ \t]*+[+-]?(?:nan(?:\([a-z0-9_]*\))?|inf|infinity)[ \t]*", re.IGNORECASE | re.ASCII
)
FLOAT32_END = 2.0**128 - 2.0**103
"""The smallest value that rounds to infinity in float32."""
_SHOWN = 40
"""A longer value is cut to this many characters in a message."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one file and which of them are read."""

    columns: tuple[str, ...]
    """Names of all columns in the file's order."""
    features: tuple[int, ...]
    """Positions of the feature columns, in the order in which they are handed on."""
    label: int | None
    """Position of the label column; None: there is no label or it is not read."""
    label_values: tuple[float, ...] = ()
    """The labels allowed; empty: any finite number."""
    droppable: bool = True
    """Whether the reader's user may leave a column out, so that messages can advise it."""

    @property
    def kept(self) -> tuple[int, ...]:
        """Positions of the columns that are read: the features, then the label if there is one."""
        return self.features if self.label is None else (*self.features, self.label)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of one file."""

    path: Path
    layout: Layout
    text: bytes | bytearray
    """The lines' bytes; only a file's last line may lack its line end."""
    lines: int
    first_line: int
    """Number of the first line within its file, from one, header included."""
    first_row: int
    """Row number of the first line over all files, from zero."""
    position: int
    """Bytes of all files, as stored, that have been read up to here."""


def is_number(field: str) -> bool:
    """Whether a field is a number, be it finite or not."""
    return bool(_NUMBER.fullmatch(field) or _NOT_FINITE.fullmatch(field))


def split_fields(line: str) -> list[str]:
    """The fields of one line without its line end; csv.Error where it cannot be split."""
    if "\r" in line:
        raise csv.Error("a carriage return within the line")
    if '"' not in line:
        return line.split(",")
    # An open quotation swallows the next line: then one row comes back instead of two.
    rows = list(csv.reader([line + "\n", "next"]))
    if len(rows) != 2:
        raise csv.Error("a quoted value does not end on its line")
    return rows[0]


def sound_lines(block: TextBlock) -> tuple[bytes, NDArray[np.int64]]:
    """The block's text without the lines that Arrow refuses, and the (n,) offsets of the others.

    Lines with numbers that are not finite or not allowed may remain.
    """
    lines = _lines(block)
    plain = _plain_line(block.layout)
    kept = [
        i
        for i, line in enumerate(lines)
        if plain.fullmatch(line) or _problem(line, block.layout) is None
    ]
    text = b"".join(lines[i] + b"\n" for i in kept)
    return text, np.array(kept, dtype=np.int64)


def bad_line(block: TextBlock, start: int) -> BadInputError:
    """The error that describes the block's first bad line at or after offset `start`."""
    for offset, line in enumerate(_lines(block)[start:], start):
        problem = _problem(line, block.layout)
        if problem is not None:
            return BadInputError(f"{block.path}, line {block.first_line + offset}{problem}")
    last = block.first_line + block.lines - 1
    return BadInputError(
        f"{block.path}, lines {block.first_line} to {last}: cannot be read as numbers "
        "separated by commas; look for damaged text there"
    )


@cache
def _plain_line(layout: Layout) -> re.Pattern[bytes]:
    """Matches the usual lines without a fault: taking each field apart is several times slower."""
    kept = (i in layout.kept for i in range(len(layout.columns)))
    runs = ((_DIGITS if is_kept else '[^,"\r]*', len(list(run))) for is_kept, run in groupby(kept))
    return re.compile(
        ",".join(f"{field}(?:,{field}){{{count - 1}}}" for field, count in runs).encode() + b"\r?"
    )


def _lines(block: TextBlock) -> list[bytes]:
    """The block's lines without their line feeds."""
    return bytes(block.text).split(b"\n")[: block.lines]


def _problem(line: bytes, layout: Layout) -> str | None:
    """What is wrong with a line, worded to follow the line's number; None if nothing is."""
    try:
        fields = split_fields(line.removesuffix(b"\r").decode("utf-8", "backslashreplace"))
    except csv.Error as error:
        return f": {error}; fix the line or skip such lines with --drop-invalid"
    if len(fields) != len(layout.columns) or not line.strip():
        found = len(fields) if line.strip() else 0
        return (
            f": {found} column{'' if found == 1 else 's'} found, {len(layout.columns)} expected; "
            "fix the line or skip such lines with --drop-invalid"
        )
    return next(_field_problems(fields, layout), None)


def _field_problems(fields: list[str], layout: Layout) -> Iterator[str]:
    """What is wrong with the fields that are read, in the file's order."""
    for position in sorted(layout.kept):
        is_label = position == layout.label
        reason = _field_problem(fields[position], layout.label_values if is_label else ())
        if reason is not None:
            name = layout.columns[position]
            yield f", column {name!r}: {reason}; {_cure(name, layout.droppable and not is_label)}"


def _field_problem(field: str, allowed: tuple[float, ...]) -> str | None:
    """Why a field is no finite float32 number, or none of the numbers allowed (if any are named)."""
    shown = field.strip(" \t")
    if _NOT_FINITE.fullmatch(field):
        return f"{shown[:_SHOWN]} is not finite"
    if not _NUMBER.fullmatch(field):
        short = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
        return f"{short!r} is not a number{'' if shown else ' (a missing value)'}"
    if not abs(float(shown)) < FLOAT32_END:
        return f"{shown[:_SHOWN]} is not finite in 32 bits (the limit is 3.4e38)"
    if allowed and float(shown) not in allowed:
        return f"{shown} is none of the labels {', '.join(f'{value:g}' for value in allowed)}"
    return None


def _cure(name: str, droppable: bool) -> str:
    """What the user can do about a bad value."""
    if not droppable:
        return "correct it or skip such lines with --drop-invalid"
    return (
        f"correct it, leave the column out with --drop {shlex.quote(name)}, "
        "or skip such lines with --drop-invalid"
    )
