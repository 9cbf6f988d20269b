"""Data sets on disk: placement, layout, statistics, bounded import, erasure in place, versions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.storage import cells, erase, files, ingest, versions
from expunge.storage.dataset import CellStatistics, DataSet
from expunge.storage.errors import BadInputError, CorruptError, ExistsError, MissingError
from expunge.storage.rows import RowBlock

SALT = bytes(range(16))


class Rows:
    """A source of given rows, in blocks of a given size."""

    def __init__(self, x: np.ndarray, y: np.ndarray | None, block: int = 100) -> None:
        self.x, self.y, self.block = x.astype(np.float32), y, block
        self.feature_names = tuple(f"f{i}" for i in range(x.shape[1]))
        self.label_name = None if y is None else "label"
        self.provenance: dict[str, str | int | float] = {"format": "test"}
        self.expected_rows = len(x)
        self.dropped = 0
        self.progress = 0.0

    def blocks(self) -> Iterator[RowBlock]:
        for i in range(0, len(self.x), self.block):
            part = slice(i, i + self.block)
            rows = np.arange(len(self.x))[part]
            yield RowBlock(rows, self.x[part], None if self.y is None else self.y[part])


def make(path: Path, n: int = 1000, d: int = 3, seed: int = 0, **options: object) -> DataSet:
    rng = np.random.default_rng(seed)
    source = Rows(rng.normal(size=(n, d)), rng.integers(0, 2, n).astype(float))
    return ingest.import_rows(source, path, SALT, {"name": "t"}, **options).data_set  # type: ignore[arg-type]


def test_siphash_matches_the_published_vector() -> None:
    unit = int.from_bytes(bytes(range(8)), "little")
    found = cells.hash_units(np.array([unit], np.int64), SALT)[0]
    assert int(found) == 0x93F5F5799A932462


def test_rows_stand_in_their_cell_in_hash_order(tmp_path: Path) -> None:
    data = make(tmp_path / "t.zarr", cells=32)
    seen = 0
    for cell in range(data.cells):
        units = data.read_units(cell)
        live = units[units >= 0]
        hashes = cells.hash_units(live, SALT)
        assert (cells.cell_of(hashes, 32) == cell).all()
        assert (np.diff(hashes.astype(object)) > 0).all()
        assert (units[len(live) :] == -1).all()
        seen += len(live)
    assert seen == 1000


@pytest.mark.parametrize(("n", "count", "memory"), [(1, 16, 0), (50, 1, 10**9), (3000, 512, 5000)])
def test_every_row_is_there_once_whatever_the_memory(
    tmp_path: Path, n: int, count: int, memory: int
) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(n, 2)).astype(np.float32), rng.normal(size=n)
    done = ingest.import_rows(Rows(x, y), tmp_path / "t.zarr", SALT, {}, cells=count, memory=memory)
    opened = xr.open_zarr(tmp_path / "t.zarr")
    unit = opened["unit"].values.ravel()
    order = np.argsort(unit[unit >= 0])
    np.testing.assert_array_equal(np.sort(unit[unit >= 0]), np.arange(n))
    np.testing.assert_array_equal(opened["x"].values.reshape(-1, 2)[unit >= 0][order], x)
    np.testing.assert_array_equal(
        opened["y"].values.ravel()[unit >= 0][order], y.astype(np.float32)
    )
    assert opened["x"].dims == ("cell", "slot", "feature")
    assert done.rows == n and done.data_set.label_dtype == "<f4"
    assert not list(tmp_path.glob("*.partial*"))


def test_the_bytes_do_not_depend_on_blocks_or_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(700, 2)), rng.integers(0, 5, 700).astype(float)
    for i, (block, memory) in enumerate([(7, 0), (699, 20_000), (10_000, 10**9)]):
        ingest.import_rows(Rows(x, y, block), tmp_path / f"{i}", SALT, {}, memory=memory)
    trees = [
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "0", tmp_path / "1", tmp_path / "2")
    ]
    assert trees[0] == trees[1] == trees[2]


def test_statistics_are_those_of_the_cells_rows(tmp_path: Path) -> None:
    data = make(tmp_path / "t.zarr", n=200, cells=16)
    found = data.statistics()
    for cell in range(16):
        rows = data.read_cell(cell)[data.read_units(cell) >= 0]
        expected = CellStatistics.of_rows(rows)
        np.testing.assert_array_equal(found.minimum[cell], expected.minimum[0])
        np.testing.assert_array_equal(found.maximum_count[cell], expected.maximum_count[0])
        assert found.live[cell] == len(rows)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.data())
def test_statistics_without_rows_equal_those_of_the_rest(
    seed: int, n: int, data: st.DataObject
) -> None:
    x = np.random.default_rng(seed).integers(0, 4, (n, 3)).astype(np.float32)
    gone = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)), np.int64)
    shrunk = CellStatistics.of_rows(x).without(0, x[gone])
    rest = CellStatistics.of_rows(np.delete(x, gone, axis=0))
    if shrunk is not None:
        for name in ("minimum", "maximum", "minimum_count", "maximum_count", "live"):
            np.testing.assert_array_equal(getattr(shrunk, name), getattr(rest, name))
    else:
        before = CellStatistics.of_rows(x)
        moved = (before.minimum != rest.minimum) | (before.maximum != rest.maximum)
        assert moved.any()


def test_erased_rows_are_zero_on_disk_and_only_they(tmp_path: Path) -> None:
    data = make(tmp_path / "t.zarr", n=300, cells=16)
    before_x, before_units = data.read_cell(3), data.read_units(3)
    slots = np.array([0, 1, 4], np.int64)
    with files.metered() as meter:
        erase.erase_slots(data, 3, slots)
    assert meter.files == 3 and meter.bytes_written == 3 * (8 + 12 + 4)
    erase.check_erased(data, 3, slots)
    assert not data.read_cell(3)[slots].any()
    keep = np.setdiff1d(np.arange(data.capacity), slots)
    np.testing.assert_array_equal(data.read_cell(3)[keep], before_x[keep])
    np.testing.assert_array_equal(data.read_units(3)[keep], before_units[keep])
    with pytest.raises(CorruptError, match="still hold"):
        erase.check_erased(data, 3, np.array([1, 2], np.int64))


def test_a_missing_or_short_chunk_is_an_error_and_not_a_fill_value(tmp_path: Path) -> None:
    data = make(tmp_path / "t.zarr", n=300, cells=16)
    with data.chunk("x", 2).open("r+b") as file:
        file.truncate(10)
    with pytest.raises(CorruptError, match="10 bytes found"):
        data.read_cell(2)
    data.chunk("x", 2).unlink()
    with pytest.raises(MissingError):
        data.read_cell(2)


def test_a_failed_import_leaves_nothing(tmp_path: Path) -> None:
    class Bad(Rows):
        def blocks(self) -> Iterator[RowBlock]:
            yield from super().blocks()
            raise BadInputError("line 7 is bad")

    with pytest.raises(BadInputError, match="line 7"):
        ingest.import_rows(Bad(np.ones((250, 2)), None), tmp_path / "t.zarr", SALT, {}, memory=0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInputError, match="no valid row"):
        ingest.import_rows(Rows(np.ones((0, 2)), None), tmp_path / "t.zarr", SALT, {})
    assert not list(tmp_path.iterdir())
    make(tmp_path / "t.zarr")
    with pytest.raises(ExistsError):
        make(tmp_path / "t.zarr")


@pytest.mark.parametrize("count", [0, 3, -4, 1 << 17])
def test_cell_counts_are_powers_of_two(tmp_path: Path, count: int) -> None:
    with pytest.raises(BadInputError, match="power of two"):
        make(tmp_path / "t.zarr", cells=count)


def array(*values: int) -> versions.NamedArray:
    return versions.NamedArray(("cluster",), np.array(values, np.int64))


def test_a_version_links_what_its_parent_holds_and_survives_its_parents_sweep(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "v1.zarr", tmp_path / "v2.zarr"
    versions.write_version(old, {"same": array(1, 2), "sizes": array(5, 6)}, {})
    found = versions.write_version(new, {"same": array(1, 2), "sizes": array(4, 6)}, {}, old)
    assert (new / "same" / "c.0").stat().st_ino == (old / "same" / "c.0").stat().st_ino
    assert (new / "sizes" / "c.0").stat().st_ino != (old / "sizes" / "c.0").stat().st_ino
    keep = os.open(old / "sizes" / "c.0", os.O_RDONLY)
    files.sweep(old)
    # The swept version's own file was zeroed before it was unlinked, the shared one was not.
    assert os.pread(keep, 16, 0) == bytes(16)
    os.close(keep)
    assert not old.exists() and not list(tmp_path.glob("*.swept"))
    arrays, attrs = versions.load_version(new, found)
    assert arrays["same"].tolist() == [1, 2] and attrs["digest"] == found
    assert xr.open_zarr(new)["sizes"].dims == ("cluster",)


def test_one_flipped_bit_fails_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "v1.zarr"
    found = versions.write_version(path, {"sums": array(1, 2, 3)}, {})
    with (path / "sums" / "c.0").open("r+b") as file:
        file.write(b"\x03")
    with pytest.raises(CorruptError, match="digest"):
        versions.load_version(path, found)


def test_a_sweep_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    versions.write_version(tmp_path / "v1.zarr", {"sizes": array(5)}, {})
    (tmp_path / "v1.zarr").rename(tmp_path / "v1.zarr.swept")
    files.sweep(tmp_path / "v1.zarr")
    assert not list(tmp_path.iterdir())


def test_an_empty_version_is_written_and_read(tmp_path: Path) -> None:
    empty = versions.NamedArray(("step", "cluster"), np.empty((0, 4), np.int64))
    found = versions.write_version(tmp_path / "v1.zarr", {"sizes": empty}, {})
    arrays, _ = versions.load_version(tmp_path / "v1.zarr", found)
    assert arrays["sizes"].shape == (0, 4)
