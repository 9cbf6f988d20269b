"""Text files (fields separated by commas, plain or packed) as a stream of row blocks.

The text is cut into blocks of whole lines that Arrow's parser reads on several threads. A block
that it refuses, or that holds a value that cannot be used, goes to `tabular_diagnosis`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from .columns import FLOAT32_END, Coded, Values, assemble
from .errors import BadInputError
from .filesource import PIECE_BYTES, FileSource
from .layout import Layout
from .tabular_diagnosis import BOM, TextBlock, bad_line, sound_lines, split_fields
from .tabular_stream import opened

BLOCK_BYTES = PIECE_BYTES
"""Text per block; a block is larger only where a single line is."""
MAX_LINE_BYTES = 256 << 20
"""A longer line means that the file is no table; it bounds the memory."""

_HEAD_BYTES = 64 << 10
_LEAST_BLOCK_BYTES = 8 << 10
_BLANK = b" \t\r\n"
_IDX_MAGIC = b"\0\0\x08"
_CODED = pa.dictionary(pa.int32(), pa.binary())
_OPEN_QUOTE = re.compile(rb'(?m)(?:^|,)"(?:[^"\n]|"")*$')
"""A quotation that its line does not close; also finds a closed value that ends in `,"`."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table."""

    path: Path
    layout: Layout
    header: bool
    """Whether the first line holds the columns' names."""


class TableSource(FileSource[TextBlock]):
    """Rows of one or several text files that give the same features in the same order."""

    def __init__(
        self,
        files: Sequence[TableFile],
        *,
        provenance: dict[str, str | int | float],
        drop_invalid: bool = False,
        salt: bytes = b"",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(
            files[0].layout,
            total=sum(file.path.stat().st_size for file in files),
            provenance=provenance,
            drop_invalid=drop_invalid,
            salt=salt,
        )
        self._files = tuple(files)
        self._block_bytes = min(block_bytes, _bounded_block(files[0].layout))

    def _pieces(self) -> Generator[TextBlock, None, None]:
        return _text_blocks(self._files, self._block_bytes)

    def _layout(self, piece: TextBlock) -> Layout:
        return piece.layout

    def _values(self, piece: TextBlock) -> tuple[Values, NDArray[np.int64]]:
        offsets = np.arange(piece.count, dtype=np.int64)
        table = None if _may_hide_a_fault(piece) else _arrow_table(piece.text, piece.layout)
        # A carriage return alone ends a row for Arrow, but no line.
        if table is None or table.num_rows != piece.count:
            text, offsets = sound_lines(piece)
            table = _arrow_table(text, piece.layout)
            if table is None or (len(offsets) < piece.count and not self._drop_invalid):
                raise bad_line(piece, 0)
        return _values(table, piece.layout), offsets

    def _fault(self, piece: TextBlock, offset: int) -> BadInputError:
        return bad_line(piece, offset)


def _bounded_block(layout: Layout) -> int:
    """Text per block, at most, where one-hot makes a row's features larger than its text.

    A field takes two bytes at least, so twice a block's size bounds its features either way.
    """
    return max(
        _LEAST_BLOCK_BYTES, BLOCK_BYTES * len(layout.columns) // max(1, len(layout.features))
    )


def first_line(path: Path) -> list[str]:
    """The fields of a file's first line, stripped of spaces.

    Raises MissingError where there is no such file and BadInputError where it is no text file,
    is empty or starts with a line that cannot be split.
    """
    with opened(path) as (_, stream):
        head = stream.read(_HEAD_BYTES)
        if b"\n" not in head and b"\0" not in head and b"\r" not in head.rstrip(_BLANK):
            head += stream.readline(MAX_LINE_BYTES)
    if head.startswith(b"PAR1"):
        raise BadInputError(f"{path}: a parquet file; say --format parquet")
    if head.startswith(_IDX_MAGIC):
        raise BadInputError(f"{path}: an idx file; say --format mnist")
    if b"\0" in head:
        raise BadInputError(f"{path}: a binary file (NUL bytes); expected text, plain or packed")
    if not head.strip(_BLANK + BOM):
        raise BadInputError(f"{path}: the file has no rows")
    return _split_first(path, head.partition(b"\n")[0].removeprefix(BOM).removesuffix(b"\r"))


def _split_first(path: Path, line: bytes) -> list[str]:
    """Split a file's first line, which must be proper text."""
    if not line.strip():
        raise BadInputError(f"{path}, line 1: blank; delete the line")
    if b"\r" in line:
        raise BadInputError(
            f"{path}, line 1: a carriage return within the line; "
            "end lines with a line feed (or both), not with a carriage return alone"
        )
    try:
        return [field.strip() for field in split_fields(line.decode("utf-8"))]
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}, line 1: not UTF-8 text; save the file as UTF-8") from error
    except csv.Error as error:
        raise BadInputError(f"{path}, line 1: {error}; fix the line") from error


def _text_blocks(files: Sequence[TableFile], block_bytes: int) -> Generator[TextBlock, None, None]:
    """Cut the files into blocks of whole lines, numbered within each file and over all."""
    first_row = files_done = 0
    for file in files:
        line = header_lines = 1 + int(file.header)
        with opened(file.path) as (stored, stream):
            lead = stream.read(len(BOM)).removeprefix(BOM)
            if file.header:
                lead = _after_header(lead, stream)
            for text, lines in _cut(file.path, stream, lead, block_bytes):
                position = files_done + stored.tell()
                yield TextBlock(file.path, file.layout, text, lines, line, first_row, position)
                line += lines
                first_row += lines
            if line == header_lines:
                raise BadInputError(f"{file.path}: the file has no rows")
            # A zip goes on after the entry that was read.
            files_done += file.path.stat().st_size


def _after_header(lead: bytes, stream: io.BufferedIOBase) -> bytes:
    """Skip the header, given what has been read of the file; returns what was read beyond it."""
    if b"\n" not in lead:
        lead += stream.readline(MAX_LINE_BYTES)
    return lead.partition(b"\n")[2]


def _cut(
    path: Path, stream: io.BufferedIOBase, lead: bytes, block_bytes: int
) -> Iterator[tuple[bytearray, int]]:
    """Blocks of text that end with a line that is not blank, and how many lines each has.

    Blank lines move on to the next block, so that those at the end of the file are lost.
    """
    carry, more = lead, True
    while more:
        if len(carry) > MAX_LINE_BYTES:
            raise BadInputError(
                f"{path}: more than {MAX_LINE_BYTES} bytes without the end of a line; "
                "expected lines of numbers"
            )
        # At least doubling a block that has no line end yet keeps long lines linear in time.
        buffer = bytearray(len(carry) + max(block_bytes, len(carry)))
        buffer[: len(carry)] = carry
        filled = len(carry) + stream.readinto(memoryview(buffer)[len(carry) :])
        more = filled > len(carry)
        end = _end_of_lines(buffer, filled, at_end=not more)
        carry = bytes(buffer[end:filled])
        del buffer[end:]
        if buffer:
            yield buffer, buffer.count(b"\n") + int(not buffer.endswith(b"\n"))


def _end_of_lines(buffer: bytearray, filled: int, *, at_end: bool) -> int:
    """Where the last line ends that is complete and not blank; 0 if there is none."""
    complete = filled if at_end else buffer.rfind(b"\n", 0, filled) + 1
    content = 0
    # In pieces, as stripping makes a copy.
    for start in range((complete - 1) // 4096 * 4096, -1, -4096):
        piece = buffer[start : min(complete, start + 4096)].rstrip(_BLANK)
        if piece:
            content = start + len(piece)
            break
    if not content:
        return 0
    line_end = buffer.find(b"\n", content, complete) + 1
    return line_end or content


def _arrow_table(text: bytes | bytearray, layout: Layout) -> pa.Table | None:
    """Parse the columns that are read as float64 or bytes; None where a line or value is refused."""
    names = [str(i) for i in range(len(layout.columns))]
    types = {names[i]: pa.float64() for i in layout.numbers}
    types |= {names[i]: _CODED for i in layout.texts}
    if not text:
        return pa.schema(types).empty_table()
    try:
        return pyarrow.csv.read_csv(
            pa.py_buffer(text),
            # One piece: pieces would refuse a line longer than themselves, and the threads work
            # on several blocks instead.
            pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text)),
            pyarrow.csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[],
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _may_hide_a_fault(block: TextBlock) -> bool:
    """Whether Arrow could read past a fault, depending on where the text was cut.

    It skips a byte order mark at the start of any block (the file's own is gone already). A
    quotation that holds a carriage return or is left open, which joins lines, is no number, but
    passes in a column of text or an unread one.
    """
    text = block.text
    if text.startswith(BOM):
        return True
    if len(block.layout.numbers) == len(block.layout.columns) or b'"' not in text:
        return False
    return text.count(b"\r") > text.count(b"\r\n") or bool(_OPEN_QUOTE.search(text))


def _values(table: pa.Table, layout: Layout) -> Values:
    """What Arrow has read."""
    numbers = {i: table.column(str(i)).to_numpy() for i in layout.numbers}
    texts = {i: Coded.of(table.column(str(i)).combine_chunks()) for i in layout.texts}
    values = assemble(numbers, texts, layout)
    if layout.average is None:
        return values
    return _averaged(values, [numbers[i] for i in layout.averaged], layout.average.logarithm)


def _averaged(values: Values, columns: Sequence[NDArray[Any]], logarithm: bool) -> Values:
    """The values with the mean of positive columns, or its logarithm, as the label."""
    runs = np.stack(columns)
    positive = ((runs > 0) & (runs < FLOAT32_END)).all(axis=0)
    label = np.where(positive, runs, 1.0).mean(axis=0)
    return replace(values, y=np.log(label) if logarithm else label, sound=values.sound & positive)
