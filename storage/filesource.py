"""What the sources of all file formats share: files are read piece by piece, in bounded memory.

One thread reads ahead, others turn pieces into rows, and rows and errors come out in order.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .columns import Values
from .errors import BadInputError
from .layout import Layout
from .rows import RowBlock

PIECE_BYTES = 8 << 20
"""Aim for the size of a piece."""
MAX_PARSERS = 4
"""Pieces parsed at the same time, at most: each costs some 40 MiB of memory."""
MAX_CATEGORIES = 1000
"""Columns with more categories are no categories but texts or identifiers."""

_INTEGER = re.compile("-?[0-9]{1,20}")


class Piece(Protocol):
    """Consecutive rows of one file, not parsed yet."""

    @property
    def first_row(self) -> int:
        """Number of the first row over all files, from zero."""
        ...

    @property
    def count(self) -> int:
        """How many rows there are, sound or not."""
        ...

    @property
    def position(self) -> int:
        """How much of all files has been read up to the end of this piece."""
        ...


P = TypeVar("P", bound=Piece)
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Parsed(Generic[T]):
    dropped: int
    position: int
    result: T


class FileSource(ABC, Generic[P]):
    """Rows of one or several files of a format, which says how to read pieces and parse them."""

    def __init__(
        self,
        layout: Layout,
        total: int,
        *,
        provenance: dict[str, str | int | float],
        drop_invalid: bool,
        salt: bytes,
    ) -> None:
        """layout: of the first file; total: the position at the end of all files."""
        self.feature_names = layout.feature_names
        self.label_name = layout.label_name
        self.provenance = provenance
        self.expected_rows: int | None = None
        self.dropped = 0
        self._drop_invalid = drop_invalid
        self._salt = salt
        self._position = 0
        self._total = total

    @property
    def progress(self) -> float:
        """Share of the files that stands behind the rows handed out."""
        return self._position / self._total

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows in order.

        Raises BadInputError at the first row that cannot be used (or skips and counts such rows,
        where that was asked for), at damaged files and at a file without rows.
        """
        for block in self._results(self._block):
            if len(block.rows):
                yield block

    def categories(self, progress: Callable[[float], None]) -> dict[str, tuple[str, ...]]:
        """Read all rows and return the categories of each one-hot column, integers by their value.

        progress is called with the share that is done. Raises BadInputError as `blocks` does, and
        where a column has more than MAX_CATEGORIES.
        """
        found: dict[str, set[str]] = {}
        for present in self._results(self._present):
            for name, texts in present.items():
                known = found.setdefault(name, set())
                known |= texts
                if len(known) > MAX_CATEGORIES:
                    raise BadInputError(
                        f"column {name!r} has more than {MAX_CATEGORIES:,} categories, too many "
                        "for --one-hot; leave the column out with --drop"
                    )
            progress(self.progress)
        return {name: tuple(sorted(texts, key=_rank)) for name, texts in found.items()}

    @abstractmethod
    def _pieces(self) -> Generator[P, None, None]:
        """Read the files from the start."""

    @abstractmethod
    def _layout(self, piece: P) -> Layout:
        """The layout of the piece's file."""

    @abstractmethod
    def _values(self, piece: P) -> tuple[Values, NDArray[np.int64]]:
        """Parse a piece; returns what was read and the (n,) offsets of those rows in the piece."""

    @abstractmethod
    def _fault(self, piece: P, offset: int) -> BadInputError:
        """Describe what is wrong with the row at an offset that cannot be used."""

    def _block(self, piece: P, values: Values, offsets: NDArray[np.int64]) -> RowBlock:
        subject = self._layout(piece).subject
        units = None if subject is None else values.texts[subject].units(self._salt)
        return RowBlock(piece.first_row + offsets, values.x, values.y, units)

    def _present(self, piece: P, values: Values, offsets: NDArray[np.int64]) -> dict[str, set[str]]:
        layout = self._layout(piece)
        return {
            layout.columns[one.column]: values.texts[one.column].present() for one in layout.one_hot
        }

    def _results(self, make: Callable[[P, Values, NDArray[np.int64]], T]) -> Iterator[T]:
        """What is made of the sound rows of each piece, in order."""

        def parse(piece: P) -> _Parsed[T]:
            values, offsets = self._values(piece)
            if not values.sound.all():
                if not self._drop_invalid:
                    raise self._fault(piece, int(np.argmin(values.sound)))
                values, offsets = values.only(values.sound), offsets[values.sound]
            result = make(piece, values, offsets)
            return _Parsed(piece.count - len(offsets), piece.position, result)

        self._position = self.dropped = 0
        # The threads that read the pieces must have ended before these can be closed.
        with closing(self._pieces()) as pieces, closing(_in_order(pieces, parse)) as results:
            for parsed in results:
                self._position = parsed.position
                self.dropped += parsed.dropped
                yield parsed.result
        self._position = self._total


def _in_order(pieces: Iterator[T], parse: Callable[[T], R]) -> Generator[R, None, None]:
    """Read ahead in one thread and parse in others; results and errors come in order."""
    parsers = min(os.cpu_count() or 1, MAX_PARSERS)
    waiting: deque[Future[R | None]] = deque()

    def parsed(reading: Future[T | None]) -> R | None:
        piece = reading.result()
        return None if piece is None else parse(piece)

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(parsers) as pool:
        for _ in range(parsers + 1):
            waiting.append(pool.submit(parsed, reader.submit(next, pieces, None)))
        while (result := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(parsed, reader.submit(next, pieces, None)))
            yield result


def _rank(category: str) -> tuple[bool, int, str]:
    """Integers come first, by value; then other texts."""
    is_integer = _INTEGER.fullmatch(category) is not None
    return not is_integer, int(category) if is_integer else 0, category
