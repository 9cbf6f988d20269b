"""The idx files of MNIST: images and labels, big-endian, plain or gzipped, as a stream of rows."""

from __future__ import annotations

import io
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .errors import BadInputError
from .filesource import PIECE_BYTES
from .layout import Layout
from .rows import RowBlock
from .tabular_published import Published
from .tabular_stream import opened

WHITE = 255
"""The largest value of a pixel: features are pixels divided by it, in float32."""
MAX_PIXELS = 1 << 20
"""Larger images are refused: each pixel is a feature."""
_LABELS = 0x0801
_IMAGES = 0x0803
_KINDS = {_LABELS: "labels", _IMAGES: "images"}
"""Magic numbers of unsigned bytes in one and in three dimensions."""


@dataclass(frozen=True, slots=True)
class IdxFile:
    """What a file's header says."""

    path: Path
    magic: int
    shape: tuple[int, ...]
    """(count,) of labels or (count, height, width) of images."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header; raises BadInputError where it is none of images or labels."""
        with opened(path) as (_, stream):
            return cls._of(path, stream)

    @classmethod
    def _of(cls, path: Path, stream: io.BufferedIOBase) -> Self:
        begin = stream.read(4)
        if not begin:
            raise BadInputError(f"{path}: the file is empty; fetch it again")
        magic = int.from_bytes(begin, "big")
        if magic not in _KINDS:
            raise BadInputError(
                f"{path}: no idx file of images or labels: magic number 0x{magic:08x} found, "
                f"0x{_IMAGES:08x} or 0x{_LABELS:08x} expected"
            )
        dimensions = magic & 0xFF
        sizes = stream.read(4 * dimensions)
        if len(sizes) < 4 * dimensions:
            raise BadInputError(f"{path}: the file ends within its header; fetch it again")
        shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
        if not all(shape):
            raise BadInputError(f"{path}: the file has no rows")
        head = cls(path, magic, shape)
        if head.width > MAX_PIXELS:
            raise BadInputError(
                f"{path}: more than {MAX_PIXELS:,} pixels an image; scale them down"
            )
        return head

    @property
    def is_images(self) -> bool:
        """Whether the file holds images, not labels."""
        return self.magic == _IMAGES

    @property
    def count(self) -> int:
        """How many images or labels there are."""
        return self.shape[0]

    @property
    def width(self) -> int:
        """Bytes of one image or label."""
        return math.prod(self.shape[1:])

    def pieces(self, rows: int) -> Generator[tuple[NDArray[np.uint8], int], None, None]:
        """Yield (n, width) values of `rows` images or labels at a time and the position in the file.

        Raises BadInputError where the file holds more or less than its header says.
        """
        with opened(self.path) as (stored, stream):
            self._of(self.path, stream)
            for first in range(0, self.count, rows):
                wanted = min(rows, self.count - first)
                data = stream.read(wanted * self.width)
                if len(data) < wanted * self.width:
                    raise BadInputError(
                        f"{self.path}: ends after {first + len(data) // self.width} of "
                        f"{self.count} {_KINDS[self.magic]}; fetch the file again"
                    )
                values = np.frombuffer(data, np.uint8).reshape(wanted, self.width)
                yield values, stored.tell()
            if stream.read(1):
                raise BadInputError(
                    f"{self.path}: goes on after the {self.count} {_KINDS[self.magic]} that its "
                    "header tells of; fetch the file again"
                )


@dataclass(frozen=True, slots=True)
class IdxPair:
    """Images and, where they are read, their labels."""

    images: IdxFile
    labels: IdxFile | None

    @property
    def size(self) -> int:
        """Bytes of the files as stored."""
        files = [self.images] if self.labels is None else [self.images, self.labels]
        return sum(file.path.stat().st_size for file in files)

    def pieces(
        self, rows: int
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8] | None, int]]:
        """Yield (n, pixels) images, (n,) labels and the position in both files."""
        # Closed here: an error in one of the files would leave the other one open.
        with closing(self.images.pieces(rows)) as images:
            if self.labels is None:
                for pixels, position in images:
                    yield pixels, None, position
                return
            with closing(self.labels.pieces(rows)) as labelled:
                for (pixels, position), (labels, further) in zip(images, labelled, strict=True):
                    yield pixels, labels[:, 0], position + further


def is_idx(path: Path) -> bool:
    """Return whether there is a file that begins like images or labels in idx."""
    if not path.is_file():
        return False
    with opened(path) as (_, stream):
        return int.from_bytes(stream.read(4), "big") in _KINDS


def paired(files: Sequence[Path]) -> list[IdxPair]:
    """Pair images with labels: the first file of images with the first one of labels, and so on.

    Raises BadInputError where the numbers of files, images and labels or the sizes do not agree.
    """
    heads = [IdxFile.read(path) for path in files]
    images = [head for head in heads if head.is_images]
    labels = [head for head in heads if not head.is_images]
    if len(images) != len(labels):
        raise BadInputError(
            f"{len(images)} idx files of images and {len(labels)} of labels given; "
            "give one file of labels for each file of images"
        )
    for left, right in zip(images, labels, strict=True):
        if left.count != right.count:
            raise BadInputError(
                f"{left.path}: {left.count} images, but {right.path} has {right.count} labels; "
                "give files that belong together, in the same order"
            )
    _same_sizes(images)
    return [IdxPair(left, right) for left, right in zip(images, labels, strict=True)]


def images_alone(files: Sequence[Path]) -> list[IdxPair]:
    """Return files of images without labels; raises BadInputError for any other file."""
    heads = [IdxFile.read(path) for path in files]
    for head in heads:
        if not head.is_images:
            raise BadInputError(f"{head.path}: holds labels; give the file of images alone")
    _same_sizes(heads)
    return [IdxPair(head, None) for head in heads]


def _same_sizes(images: Sequence[IdxFile]) -> None:
    first = images[0]
    for other in images[1:]:
        if other.shape[1:] != first.shape[1:]:
            found, expected = (" x ".join(map(str, file.shape[1:])) for file in (other, first))
            raise BadInputError(
                f"{other.path}: images of {found} pixels, but those of {first.path} have "
                f"{expected}; import them one by one"
            )


def image_columns(images: IdxFile) -> Published:
    """Return the features of images, row by row from the top left, and their label."""
    pixels = (f"pixel_{i}" for i in range(images.width))
    return Published((*pixels, "label"), label="label", otherwise="")


class IdxSource:
    """Rows of one or several pairs of files, whose pixels become features from 0 to 1."""

    def __init__(
        self,
        pairs: Sequence[IdxPair],
        layout: Layout,
        *,
        provenance: dict[str, str | int | float],
    ) -> None:
        self.feature_names = layout.feature_names
        self.label_name = layout.label_name
        self.provenance = provenance | {"pixels": f"divided by {WHITE}"}
        self.expected_rows: int | None = sum(pair.images.count for pair in pairs)
        self.dropped = 0
        self._pairs = tuple(pairs)
        self._features = np.array(layout.features)
        self._position = 0
        self._total = sum(pair.size for pair in pairs)

    @property
    def progress(self) -> float:
        """Share of the files that has been read."""
        return self._position / self._total

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows in order; raises BadInputError at a damaged file."""
        first = done = 0
        rows = max(1, PIECE_BYTES // (4 * self._pairs[0].images.width))
        for pair in self._pairs:
            for pixels, labels, position in pair.pieces(rows):
                x = pixels.take(self._features, axis=1).astype(np.float32)
                x /= np.float32(WHITE)
                y = None if labels is None else labels.astype(np.float64)
                self._position = done + position
                yield RowBlock(np.arange(first, first + len(x), dtype=np.int64), x, y)
                first += len(x)
            done += pair.size
        self._position = self._total
