"""Parquet files as a stream of row blocks: batches of rows, however large the row groups are."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from .columns import Coded, Values, assemble
from .errors import BadInputError, MissingError
from .filesource import PIECE_BYTES, FileSource
from .layout import Layout, duplicates, listed
from .tabular_diagnosis import field_problem

BUFFER_BYTES = 64 << 10
"""Read ahead per column; without a buffer, Arrow would read a row group's whole columns."""
MAX_BATCH_ROWS = 1 << 18
_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"


def is_parquet(path: Path) -> bool:
    """Return whether there is a file that begins like parquet; BadInputError if it cannot be read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stored:
            return stored.read(len(_MAGIC)) in (_MAGIC, _MAGIC_ENCRYPTED)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror})") from error


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """What a file's footer says."""

    path: Path
    schema: pa.Schema
    rows: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the footer; raises BadInputError where the file is no sound parquet file."""
        with _opened(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        twice = duplicates(schema.names)
        if twice:
            raise BadInputError(f"{path}: column names that occur twice: {listed(twice)}")
        if not rows:
            raise BadInputError(f"{path}: the file has no rows")
        return cls(path, schema, rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(self.schema.names)

    def check(self, layout: Layout) -> None:
        """Raise BadInputError unless the columns that a layout reads have types that it can use."""
        unfit = [i for i in layout.numbers if not _is_number(self.schema.field(i).type)]
        unfit += [i for i in layout.texts if not _is_text(self.schema.field(i).type)]
        if unfit:
            found = ", ".join(
                f"{layout.columns[i]!r} is {self.schema.field(i).type}" for i in sorted(unfit)
            )
            raise BadInputError(
                f"{self.path}: columns that cannot be used as they are: {found}; features and "
                f"labels must be numbers or booleans, subjects integers or text; {_cure(layout)}"
            )


def _cure(layout: Layout) -> str:
    """What the user can do about a column's type."""
    if not layout.droppable:
        return "write the columns with other types"
    return (
        "leave columns out with --drop, or turn integers, booleans or text into features of "
        "zeros and ones with --one-hot"
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of one file."""

    path: Path
    layout: Layout
    table: pa.RecordBatch
    first_row: int
    row_in_file: int
    """Number of the first row within its file, from zero."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)

    @property
    def position(self) -> int:
        """Rows of all files up to the end of this batch."""
        return self.first_row + self.count

    def column(self, position: int) -> pa.Array:
        """The values of the layout's column at a position."""
        return self.table.column(self.layout.columns[position])


class ParquetSource(FileSource[Batch]):
    """Rows of one or several parquet files that give the same features in the same order."""

    def __init__(
        self,
        files: Sequence[tuple[ParquetFile, Layout]],
        *,
        provenance: dict[str, str | int | float],
        drop_invalid: bool = False,
        salt: bytes = b"",
    ) -> None:
        """Raise BadInputError where a column's type does not fit its use."""
        for file, layout in files:
            file.check(layout)
        rows = sum(file.rows for file, _ in files)
        super().__init__(
            files[0][1], total=rows, provenance=provenance, drop_invalid=drop_invalid, salt=salt
        )
        self.expected_rows = rows
        self._files = tuple(files)

    def _pieces(self) -> Generator[Batch, None, None]:
        first_row = 0
        for head, layout in self._files:
            row = 0
            names = [layout.columns[i] for i in sorted({*layout.numbers, *layout.texts})]
            with _opened(head.path) as file:
                for table in file.iter_batches(_batch_rows(layout), columns=names):
                    if table.num_rows:
                        yield Batch(head.path, layout, table, first_row + row, row)
                        row += table.num_rows
            first_row += row

    def _layout(self, piece: Batch) -> Layout:
        return piece.layout

    def _values(self, piece: Batch) -> tuple[Values, NDArray[np.int64]]:
        layout = piece.layout
        numbers = {i: _numbers(piece.column(i)) for i in layout.numbers}
        texts = {i: Coded.of(_texts(piece.column(i))) for i in layout.texts}
        return assemble(numbers, texts, layout), np.arange(piece.count, dtype=np.int64)

    def _fault(self, piece: Batch, offset: int) -> BadInputError:
        layout = piece.layout
        fields: list[str | None] = [None] * len(layout.columns)
        for i in layout.numbers:
            fields[i] = _number_as_text(piece.column(i)[offset].as_py())
        for i in layout.texts:
            value = _texts(piece.column(i).slice(offset, 1))[0].as_py()
            fields[i] = None if value is None else value.decode("utf-8", "surrogateescape")
        problem = field_problem(fields, layout, "rows")
        row = piece.row_in_file + offset
        return BadInputError(f"{piece.path}, row {row} (counted from 0){problem}")


@contextmanager
def _opened(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """The file, with the errors of reading in the user's terms."""
    if not path.exists():
        raise MissingError(f"{path}: no such file")
    if not path.is_file():
        raise BadInputError(f"{path}: a folder or no regular file; name the files in it")
    if not is_parquet(path):
        raise BadInputError(f"{path}: not a parquet file; say what it is with --format")
    try:
        # pre_buffer would hold a row group's whole columns in memory.
        with pyarrow.parquet.ParquetFile(
            path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if "encrypt" in str(error):
            raise BadInputError(f"{path}: encrypted; write it without encryption first") from error
        raise BadInputError(
            f"{path}: damaged, or of a kind of parquet that Arrow cannot read ({error}); "
            "fetch or write the file again"
        ) from error


def _batch_rows(layout: Layout) -> int:
    """So many rows that neither their columns nor their features are larger than a piece."""
    columns = len(layout.numbers) + len(layout.texts)
    row_bytes = max(8 * columns, 4 * len(layout.features))
    return min(MAX_BATCH_ROWS, max(1, PIECE_BYTES // row_bytes))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    """Whether values of a type have one text: integers, booleans and strings, coded or not."""
    types = pa.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    is_string = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_string or types.is_integer(kind) or types.is_boolean(kind))


def _numbers(column: pa.Array) -> NDArray[Any]:
    """(n,) floats, a missing value as NaN; the same bits as reading the numbers from text gives."""
    if pa.types.is_decimal(column.type):
        # Arrow divides by the power of ten, which rounds twice; its parser rounds once.
        column = column.cast(pa.string())
    if not pa.types.is_floating(column.type):
        column = pa.compute.cast(column, pa.float64(), safe=False)
    floats: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return floats


def _texts(column: pa.Array) -> pa.Array:
    """The values' texts as bytes, as strings may hold bytes that are not UTF-8."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _number_as_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(int(value) if isinstance(value, bool) else value)
