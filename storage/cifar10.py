"""The batches of CIFAR-10's binary version, plain or gzipped, as a stream of rows.

A record is a label byte and the pixels of an image of 32 x 32, all of its red ones first, then the
green and the blue ones. The files have no header.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .columns import Values
from .errors import BadInputError
from .filesource import PIECE_BYTES, FileSource
from .layout import Layout
from .tabular_published import Published
from .tabular_stream import opened

SIDE = 32
"""Pixels of an image along each side."""
RECORD_BYTES = 1 + 3 * SIDE * SIDE
"""A label and an image."""
CLASSES = 10
"""Labels are below it."""
WHITE = 255
"""The largest value of a pixel: features are pixels divided by it, in float32."""

_ROWS = PIECE_BYTES // (4 * RECORD_BYTES)
_TAR_MAGIC = slice(257, 262)

IMAGES = Published(
    columns=(
        "label",
        *(f"{colour}_{i}" for colour in ("red", "green", "blue") for i in range(SIDE * SIDE)),
    ),
    label="label",
    otherwise="",
)
"""The label, and each colour's pixels row by row from the top left."""


def is_batch(path: Path) -> bool:
    """Return whether there is a file that begins like a batch, and not like a text."""
    if not path.is_file():
        return False
    with opened(path) as (_, stream):
        head = stream.read(RECORD_BYTES)
    return bool(head) and (head[0] < CLASSES or b"\0" in head)


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one file."""

    path: Path
    data: NDArray[np.uint8]
    """(n, RECORD_BYTES) as stored."""
    first_row: int
    record_in_file: int
    """Number of the first record within its file, from zero."""
    position: int

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self.data)


class Cifar10Source(FileSource[Records]):
    """Images of one or several batches, whose pixels become features from 0 to 1."""

    def __init__(
        self,
        files: Sequence[Path],
        layout: Layout,
        *,
        provenance: dict[str, str | int | float],
        drop_invalid: bool = False,
    ) -> None:
        """Raise MissingError or BadInputError where a file is missing or surely no batch."""
        for path in files:
            _check(path)
        super().__init__(
            layout,
            total=sum(path.stat().st_size for path in files),
            provenance=provenance | {"pixels": f"divided by {WHITE}"},
            drop_invalid=drop_invalid,
            salt=b"",
        )
        self._files = tuple(files)
        self._same_layout = layout
        self._features = np.array(layout.features)

    def _pieces(self) -> Generator[Records, None, None]:
        first_row = done = 0
        for path in self._files:
            record = 0
            with opened(path) as (stored, stream):
                while data := stream.read(_ROWS * RECORD_BYTES):
                    rows, more = divmod(len(data), RECORD_BYTES)
                    if more:
                        raise BadInputError(
                            f"{path}, record {record + rows} (counted from 0): {more} bytes found, "
                            f"{RECORD_BYTES:,} expected (a label and {SIDE} x {SIDE} pixels in "
                            "three colours); the file is cut off, or none of CIFAR-10's batches"
                        )
                    values = np.frombuffer(data, np.uint8).reshape(rows, RECORD_BYTES)
                    position = done + stored.tell()
                    yield Records(path, values, first_row, record, position)
                    record += rows
                    first_row += rows
            done += path.stat().st_size

    def _layout(self, piece: Records) -> Layout:
        return self._same_layout

    def _values(self, piece: Records) -> tuple[Values, NDArray[np.int64]]:
        x = piece.data.take(self._features, axis=1).astype(np.float32)
        x /= np.float32(WHITE)
        label = piece.data[:, 0]
        y = None if self.label_name is None else label.astype(np.float64)
        return Values(x, y, {}, label < CLASSES), np.arange(piece.count, dtype=np.int64)

    def _fault(self, piece: Records, offset: int) -> BadInputError:
        return BadInputError(
            f"{piece.path}, record {piece.record_in_file + offset} (counted from 0): label "
            f"{piece.data[offset, 0]} found, 0 to {CLASSES - 1} expected; fetch the binary "
            "version's batches again, or skip such records with --drop-invalid"
        )


def _check(path: Path) -> None:
    """Raise BadInputError where a file's first record cannot be one."""
    with opened(path) as (_, stream):
        head = stream.read(RECORD_BYTES)
    if not head:
        raise BadInputError(f"{path}: the file has no rows")
    if head[_TAR_MAGIC] == b"ustar":
        raise BadInputError(
            f"{path}: a tar archive; unpack it and name the batches in it (data_batch_1.bin, ...)"
        )
    if len(head) < RECORD_BYTES:
        raise BadInputError(
            f"{path}: {len(head):,} bytes, fewer than one record of CIFAR-10's binary version has "
            f"({RECORD_BYTES:,}); fetch the file again"
        )
