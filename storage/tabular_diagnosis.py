"""The rows of a table: what each one must hold, and what is wrong with one that does not.

The exact and slow half of the reader in `tabular`; it words the complaints of all formats. It
accepts the same fields as Arrow's parser and `columns` do, so that whether a line is examined here
or parsed there never changes the outcome.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .columns import FLOAT32_END
from .errors import BadInputError
from .layout import Layout

# Possessive, so that no text takes more than linear time.
_DIGITS = r"[ \t]*+[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[ \t]*+"
_NUMBER = re.compile(_DIGITS)
_NOT_FINITE = re.compile(
    r"[ \t]*+[+-]?(?:nan(?:\([a-z0-9_]*\))?|inf|infinity)[ \t]*", re.IGNORECASE | re.ASCII
)
BOM = b"\xef\xbb\xbf"
"""The byte order mark that may start a file."""
_SHOWN = 40
"""A longer value is cut to this many characters in a message."""
_CATEGORIES_SHOWN = 5
_UNICODE = re.compile("[^\ud800-\udfff]*")


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of one file."""

    path: Path
    layout: Layout
    text: bytes | bytearray
    """The lines' bytes; only a file's last line may lack its line end."""
    count: int
    """How many lines there are, each a row."""
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
    # Arrow skips one byte order mark at the start.
    return BOM + text if text.startswith(BOM) else text, np.array(kept, dtype=np.int64)


def bad_line(block: TextBlock, start: int) -> BadInputError:
    """The error that describes the block's first bad line at or after offset `start`."""
    for offset, line in enumerate(_lines(block)[start:], start):
        problem = _problem(line, block.layout)
        if problem is not None:
            return BadInputError(f"{block.path}, line {block.first_line + offset}{problem}")
    last = block.first_line + block.count - 1
    return BadInputError(
        f"{block.path}, lines {block.first_line} to {last}: cannot be read as numbers "
        "separated by commas; look for damaged text there"
    )


@cache
def _plain_line(layout: Layout) -> re.Pattern[bytes]:
    """Matches the usual lines without a fault: taking each field apart is several times slower."""
    numbers = set(layout.numbers)
    kinds = groupby(i in numbers for i in range(len(layout.columns)))
    runs = ((_DIGITS if is_number else '[^,"\r]*', len(list(run))) for is_number, run in kinds)
    return re.compile(
        ",".join(f"{field}(?:,{field}){{{count - 1}}}" for field, count in runs).encode() + b"\r?"
    )


def _lines(block: TextBlock) -> list[bytes]:
    """The block's lines without their line feeds."""
    return bytes(block.text).split(b"\n")[: block.count]


def _problem(line: bytes, layout: Layout) -> str | None:
    """What is wrong with a line, worded to follow the line's number; None if nothing is."""
    try:
        fields = split_fields(line.removesuffix(b"\r").decode("utf-8", "surrogateescape"))
    except csv.Error as error:
        return f": {error}; fix the line or skip such lines with --drop-invalid"
    if len(fields) != len(layout.columns) or not line.strip():
        found = len(fields) if line.strip() else 0
        return (
            f": {found} column{'' if found == 1 else 's'} found, {len(layout.columns)} expected; "
            "fix the line or skip such lines with --drop-invalid"
        )
    return field_problem(fields, layout, "lines")


def field_problem(fields: Sequence[str | None], layout: Layout, rows: str) -> str | None:
    """Return what is wrong with the first bad field among those that are read; None if nothing is.

    fields: of all columns; None is a missing value, bytes that are not UTF-8 are escaped as lone
    surrogates. rows: what the format calls its rows. The text begins with the column's name and
    ends with what the user can do.
    """
    categories = {one.column: one.categories for one in layout.one_hot}
    texts, averaged = set(layout.texts), set(layout.averaged)
    for position in sorted({*layout.numbers, *texts}):
        field = fields[position]
        if field is None:
            reason: str | None = "a missing value"
        elif position in texts:
            reason = _text_problem(field, categories.get(position, ()))
        else:
            reason = _number_problem(field, layout.label_values if position == layout.label else ())
            if reason is None and position in averaged and not float(field) > 0:
                reason = f"{field.strip()[:_SHOWN]} is not above zero"
        if reason is not None:
            return (
                f", column {layout.columns[position]!r}: {reason}; {_cure(position, layout, rows)}"
            )
    return None


def _number_problem(field: str, allowed: tuple[float, ...]) -> str | None:
    """Why a field is no finite float32 number, or none of the numbers allowed (if any are named)."""
    shown = field.strip(" \t")
    if _NOT_FINITE.fullmatch(field):
        return f"{shown[:_SHOWN]} is not finite"
    if not _NUMBER.fullmatch(field):
        return f"{_short(shown)} is not a number{'' if shown else ' (a missing value)'}"
    if not abs(float(shown)) < FLOAT32_END:
        return f"{shown[:_SHOWN]} is not finite in 32 bits (the limit is 3.4e38)"
    if allowed and float(shown) not in allowed:
        return f"{shown} is none of the labels {', '.join(f'{value:g}' for value in allowed)}"
    return None


def _text_problem(field: str, categories: tuple[str, ...]) -> str | None:
    """Why a field is no text, or none of its column's categories (if these are known)."""
    shown = field.strip()
    if not shown:
        return "a missing value"
    if not _UNICODE.fullmatch(shown):
        return f"{_short(shown)} is not UTF-8 text"
    if categories and shown not in categories:
        known = ", ".join(map(_short, categories[:_CATEGORIES_SHOWN]))
        more = ", ..." if len(categories) > _CATEGORIES_SHOWN else ""
        return f"{_short(shown)} is none of the known categories {known}{more}"
    return None


def _short(text: str) -> str:
    """A value in quotes, cut if it is long, with bytes that are not UTF-8 shown as such."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return repr(shown.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def _cure(position: int, layout: Layout, rows: str) -> str:
    """What the user can do about a bad value."""
    if not layout.droppable or position in (layout.label, layout.subject, *layout.averaged):
        return f"correct it or skip such {rows} with --drop-invalid"
    return (
        f"correct it, leave the column out with --drop {shlex.quote(layout.columns[position])}, "
        f"or skip such {rows} with --drop-invalid"
    )
