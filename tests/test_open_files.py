"""Files are closed when reading stops, at once: not when the garbage collector gets to them."""

from __future__ import annotations

import gc
import gzip
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import pytest
from given_rows import GivenRows
from reading import write

from expunge.storage import cifar10, idx, ingest, parquet, tabular
from expunge.storage.copies import CopiedRows
from expunge.storage.errors import BadInputError
from expunge.storage.importers import open_source
from expunge.storage.random_features import WithRandomFeatures
from expunge.storage.rows import RowBlock, RowSource, blocks_of

ROWS = 40
SALT = bytes(16)


def open_in(folder: Path) -> list[str]:
    """Files of a folder that this process has open."""
    return [f.path for f in psutil.Process().open_files() if Path(f.path).parent == folder]


def idx_bytes(values: np.ndarray[Any, Any]) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


def zipped(path: Path, text: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", text)
    return path


TEXT = "a,b\n" + "".join(f"{i},{i * i}\n" for i in range(ROWS))
BROKEN = "a,b\n" + "".join(f"{i},{'x' if i == 30 else i}\n" for i in range(ROWS))
IMAGES = idx_bytes(np.zeros((ROWS, 2, 3)))
LABELS = idx_bytes(np.arange(ROWS) % 10)
RECORDS = np.zeros((ROWS, cifar10.RECORD_BYTES), np.uint8)


def _plain(folder: Path, bad: bool) -> RowSource:
    return open_source([write(folder / "x.csv", BROKEN if bad else TEXT)], "csv")


def _gzipped(folder: Path, bad: bool) -> RowSource:
    packed = gzip.compress((BROKEN if bad else TEXT).encode())
    return open_source([write(folder / "x.gz", packed)], "csv")


def _zip(folder: Path, bad: bool) -> RowSource:
    return open_source([zipped(folder / "x.zip", BROKEN if bad else TEXT)], "csv")


def _parquet(folder: Path, bad: bool) -> RowSource:
    values = [float("nan") if bad and i == 30 else float(i) for i in range(ROWS)]
    pa.parquet.write_table(pa.table({"a": values, "b": values}), folder / "x.parquet")
    return open_source([folder / "x.parquet"], "parquet")


def _mnist(folder: Path, bad: bool) -> RowSource:
    """Damaged images, whose labels are sound."""
    image = write(folder / "images", IMAGES[:-1] if bad else IMAGES)
    return open_source([image, write(folder / "labels.gz", gzip.compress(LABELS))], "mnist")


def _mnist_labels(folder: Path, bad: bool) -> RowSource:
    image = write(folder / "images", IMAGES)
    return open_source([image, write(folder / "labels", LABELS[:-1] if bad else LABELS)], "mnist")


def _cifar10(folder: Path, bad: bool) -> RowSource:
    content = RECORDS.tobytes()
    return open_source([write(folder / "b.bin", content[:-1] if bad else content)], "cifar10")


def _copied(folder: Path, bad: bool) -> RowSource:
    return CopiedRows(_mnist(folder, bad), 3)


def _random(folder: Path, bad: bool) -> RowSource:
    return WithRandomFeatures(_plain(folder, bad), 3, 0)


KINDS = [_plain, _gzipped, _zip, _parquet, _mnist, _mnist_labels, _cifar10, _copied, _random]
Open = Callable[[Path, bool], RowSource]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "BLOCK_BYTES", 20)
    monkeypatch.setattr(tabular, "_LEAST_BLOCK_BYTES", 20)
    monkeypatch.setattr(idx, "PIECE_BYTES", 48)
    monkeypatch.setattr(parquet, "PIECE_BYTES", 48)
    monkeypatch.setattr(cifar10, "_ROWS", 2)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("small_pieces", "without_collector")
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_closes_the_files(kind: Open, tmp_path: Path) -> None:
    source = kind(tmp_path, True)
    with pytest.raises(BadInputError) as caught:
        list(source.blocks())
    # The error is still there, and with its traceback every frame that it passed through.
    assert caught.value.__traceback__ is not None
    assert open_in(tmp_path) == []


@pytest.mark.usefixtures("small_pieces", "without_collector")
@pytest.mark.parametrize("kind", KINDS)
def test_who_stops_early_closes_the_files(kind: Open, tmp_path: Path) -> None:
    source = kind(tmp_path, False)
    kept = []
    with blocks_of(source) as blocks:
        for block in blocks:
            kept.append((block, blocks))
            assert isinstance(blocks, Generator) and open_in(tmp_path)
            break
    assert open_in(tmp_path) == []


@pytest.mark.usefixtures("small_pieces", "without_collector")
@pytest.mark.parametrize("kind", KINDS)
def test_an_import_that_fails_closes_the_files(
    kind: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, block: RowBlock, salt: bytes) -> None:
        assert open_in(tmp_path)
        raise OSError("no space left")

    monkeypatch.setattr(ingest._Spread, "add", full)
    source = kind(tmp_path, False)
    with pytest.raises(OSError, match="no space") as caught:
        ingest.import_rows(source, tmp_path / "ws" / "t.zarr", SALT, {})
    assert caught.value.__traceback__ is not None
    assert open_in(tmp_path) == []


@pytest.mark.usefixtures("small_pieces", "without_collector")
def test_too_many_categories_close_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.storage.filesource.MAX_CATEGORIES", 5)
    path = write(tmp_path / "x.csv", TEXT)
    with pytest.raises(BadInputError, match="more than 5 categories") as caught:
        open_source([path], "csv", one_hot=["b"])
    assert caught.value.__traceback__ is not None
    assert open_in(tmp_path) == []


def test_sources_without_files_need_no_closing() -> None:
    class Plain(GivenRows):
        def blocks(self) -> Iterator[RowBlock]:
            return iter(list(super().blocks()))

    with blocks_of(Plain(np.ones((5, 1)))) as blocks:
        assert next(blocks).rows.tolist() == [0, 1, 2, 3, 4]


LEAK = """
import gc, sys
from pathlib import Path
import test_open_files as t
from expunge.storage.errors import BadInputError
found = []
sys.unraisablehook = lambda wrong: found.append(repr(wrong.exc_value))
def held(kind, folder):
    kept = []
    try:
        list(kind(folder, True).blocks())
    except BadInputError as error:
        kept.append(error)
    kept.append(kept)
gc.set_threshold(1, 1, 1)
for i, kind in enumerate(t.KINDS):
    folder = Path(sys.argv[1]) / str(i)
    folder.mkdir()
    held(kind, folder)
    gc.collect()
assert not found, found
"""


def test_the_collector_finds_no_open_file(tmp_path: Path) -> None:
    """Errors in cycles of references, as debuggers and tests keep them, leave nothing open."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", LEAK, str(tmp_path)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
