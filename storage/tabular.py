"""Numeric text files (plain or gzip, fields separated by commas) as a stream of row blocks.

The text is cut into blocks of whole lines that Arrow's parser reads on several threads. A block
that it refuses, or that holds a value that cannot be used, goes to `tabular_diagnosis`.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from .errors import BadInputError, MissingError
from .rows import RowBlock
from .tabular_diagnosis import (
    FLOAT32_END,
    Layout,
    TextBlock,
    bad_line,
    sound_lines,
    split_fields,
)

BLOCK_BYTES = 8 << 20
"""Text per block; a block is larger only where a single line is."""
MAX_LINE_BYTES = 256 << 20
"""A longer line means that the file is no table; it bounds the memory."""
MAX_PARSERS = 4
"""Blocks parsed at the same time, at most: each costs some 40 MiB of memory."""

_HEAD_BYTES = 64 << 10
_ROWS_IN_CACHE = 2048
"""Columns are interleaved in pieces of so many rows, so that each piece is written from cache."""
_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_OPEN_QUOTE = re.compile(rb'(?m)(?:^|,)"(?:[^"\n]|"")*$')
"""A quotation that its line does not close; also finds a closed value that ends in `,"`."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table."""

    path: Path
    layout: Layout
    header: bool
    """Whether the first line holds the columns' names."""


@dataclass(frozen=True, slots=True)
class _ParsedBlock:
    rows: RowBlock
    dropped: int
    position: int


class TableSource:
    """Rows of one or several text files that give the same features in the same order."""

    def __init__(
        self,
        files: Sequence[TableFile],
        *,
        provenance: dict[str, str | int | float],
        drop_invalid: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        layout = files[0].layout
        self.feature_names = tuple(layout.columns[i] for i in layout.features)
        self.label_name = None if layout.label is None else layout.columns[layout.label]
        self.provenance = provenance
        self.expected_rows: int | None = None
        self.dropped = 0
        self._files = tuple(files)
        self._drop_invalid = drop_invalid
        self._block_bytes = block_bytes
        self._position = 0
        self._total_bytes = sum(file.path.stat().st_size for file in files)

    @property
    def progress(self) -> float:
        """Share of the files' bytes, as stored, that stand behind the rows handed out."""
        return self._position / self._total_bytes

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows in order.

        Raises BadInputError at the first line that cannot be read (or skips and counts such lines,
        where that was asked for), at damaged gzip data and at a file without rows.
        """
        self._position = self.dropped = 0
        with closing(_text_blocks(self._files, self._block_bytes)) as texts:
            for block in _parsed_in_order(texts, self._drop_invalid):
                self._position = block.position
                self.dropped += block.dropped
                if len(block.rows.rows):
                    yield block.rows
        self._position = self._total_bytes


def first_line(path: Path) -> list[str]:
    """The fields of a file's first line, stripped of spaces.

    Raises MissingError where there is no such file and BadInputError where it is no text file,
    is empty or starts with a line that cannot be split.
    """
    if path.exists() and not path.is_dir() and not path.is_file():
        raise BadInputError(f"{path}: not a regular file; save the data to a file first")
    with _opened(path) as (_, stream):
        head = stream.read(_HEAD_BYTES)
        if b"\n" not in head and b"\0" not in head and b"\r" not in head.rstrip(_BLANK):
            head += stream.readline(MAX_LINE_BYTES)
    if b"\0" in head:
        raise BadInputError(f"{path}: a binary file (NUL bytes); expected text or gzip of text")
    if not head.strip(_BLANK + _BOM):
        raise BadInputError(f"{path}: the file has no rows")
    return _split_first(path, head.partition(b"\n")[0].removeprefix(_BOM).removesuffix(b"\r"))


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


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase]]:
    """The file as stored and as text, with the errors of reading in the user's terms."""
    try:
        with path.open("rb") as stored:
            if stored.peek(2)[:2] != _GZIP_MAGIC:
                yield stored, stored
                return
            with gzip.GzipFile(fileobj=stored, mode="rb") as text:
                yield stored, text
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise BadInputError(f"{path}: a folder; name the files in it") from error
    except EOFError as error:
        raise BadInputError(
            f"{path}: the gzip data ends too early; fetch the file again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInputError(f"{path}: damaged gzip data ({error}); fetch the file again") from error
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror})") from error


def _text_blocks(files: Sequence[TableFile], block_bytes: int) -> Generator[TextBlock, None, None]:
    """Cut the files into blocks of whole lines, numbered within each file and over all."""
    first_row = files_done = 0
    for file in files:
        line = header_lines = 1 + int(file.header)
        with _opened(file.path) as (stored, stream):
            lead = stream.read(len(_BOM)).removeprefix(_BOM)
            if file.header:
                lead = _after_header(lead, stream)
            for text, lines in _cut(file.path, stream, lead, block_bytes):
                position = files_done + stored.tell()
                yield TextBlock(file.path, file.layout, text, lines, line, first_row, position)
                line += lines
                first_row += lines
            if line == header_lines:
                raise BadInputError(f"{file.path}: the file has no rows")
            files_done += stored.tell()


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


def _parsed_in_order(texts: Iterator[TextBlock], drop_invalid: bool) -> Iterator[_ParsedBlock]:
    """Read text ahead in one thread and parse it in others; results and errors come in order."""
    parsers = min(os.cpu_count() or 1, MAX_PARSERS)
    waiting: deque[Future[_ParsedBlock | None]] = deque()

    def parse(text: Future[TextBlock | None]) -> _ParsedBlock | None:
        block = text.result()
        return None if block is None else _parse(block, drop_invalid)

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(parsers) as pool:
        for _ in range(parsers + 1):
            waiting.append(pool.submit(parse, reader.submit(next, texts, None)))
        while (block := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(parse, reader.submit(next, texts, None)))
            yield block


def _parse(block: TextBlock, drop_invalid: bool) -> _ParsedBlock:
    """The rows of a block; raises BadInputError at its first bad line unless such are dropped."""
    offsets = np.arange(block.lines, dtype=np.int64)
    table = None if _may_hide_a_fault(block) else _arrow_table(block.text, block.layout)
    # A carriage return alone ends a row for Arrow, but no line.
    if table is None or table.num_rows != block.lines:
        text, offsets = sound_lines(block)
        table = _arrow_table(text, block.layout)
        if table is None or (len(offsets) < block.lines and not drop_invalid):
            raise bad_line(block, 0)
    x, y = _arrays(table, block.layout)
    sound = _usable(x, y, block.layout)
    if not sound.all():
        if not drop_invalid:
            raise bad_line(block, int(np.argmin(sound)))
        x, y, offsets = x[sound], None if y is None else y[sound], offsets[sound]
    rows = RowBlock(block.first_row + offsets, x, y)
    return _ParsedBlock(rows, block.lines - len(offsets), block.position)


def _arrow_table(text: bytes | bytearray, layout: Layout) -> pa.Table | None:
    """Parse the columns that are read as float64; None where a line or value is refused."""
    names = [str(i) for i in range(len(layout.columns))]
    kept = [names[i] for i in layout.kept]
    if not text:
        return pa.table({name: pa.array([], pa.float64()) for name in kept})
    try:
        return pyarrow.csv.read_csv(
            pa.py_buffer(text),
            # One piece: pieces would refuse a line longer than themselves, and the threads work
            # on several blocks instead.
            pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text)),
            pyarrow.csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(kept, pa.float64()),
                include_columns=kept,
                null_values=[],
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _may_hide_a_fault(block: TextBlock) -> bool:
    """Whether Arrow could read past a fault, depending on where the text was cut.

    It skips a byte order mark at the start of any block (the file's own is gone already), and an
    open quotation joins lines, which no number survives, but which passes in an unread column.
    """
    if block.text.startswith(_BOM):
        return True
    has_unread = len(block.layout.kept) < len(block.layout.columns)
    return has_unread and b'"' in block.text and bool(_OPEN_QUOTE.search(block.text))


def _arrays(
    table: pa.Table, layout: Layout
) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """The (n, features) float32 block and the (n,) labels; negative zeros become positive."""
    columns = [table.column(j).to_numpy() for j in range(table.num_columns)]
    x = np.empty((table.num_rows, len(layout.features)), dtype=np.float32)
    with np.errstate(over="ignore"):
        for start in range(0, len(x), _ROWS_IN_CACHE):
            part = x[start : start + _ROWS_IN_CACHE]
            for j in range(x.shape[1]):
                part[:, j] = columns[j][start : start + _ROWS_IN_CACHE]
            part += 0.0
    return x, None if layout.label is None else columns[-1] + 0.0


def _usable(
    x: NDArray[np.float32], y: NDArray[np.float64] | None, layout: Layout
) -> NDArray[np.bool_]:
    """(n,) whether all values of a row are finite in 32 bits and its label is allowed."""
    sound: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(x), axis=1)
    if y is not None:
        sound &= np.abs(y) < FLOAT32_END
        if layout.label_values:
            sound &= np.isin(y, layout.label_values)
    return sound
