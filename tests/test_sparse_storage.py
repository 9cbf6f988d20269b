"""Sparse data sets end to end: import, layout, deletion, scan, and what refuses them."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import xarray as xr
import zarr
from support import INLINE, Cli

from expunge.storage.dataset import DataSet
from expunge.storage.erase import check_erased, erase_slots
from expunge.storage.errors import CorruptError
from expunge.storage.ingest import partial_path
from expunge.storage.rcv1_like import BLOCK_ROWS, FEATURES, Rcv1Like
from expunge.storage.sparse import SparseRows, read_sparse_cell, read_sparse_slots
from expunge.storage.sparse_ingest import import_sparse

SALT = bytes(range(16))


def write_svmlight(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    lines = [
        " ".join([str(label), *(f"{j + 1}:{row[j]!r}" for j in np.flatnonzero(row).tolist())])
        for row, label in zip(x.tolist(), y.tolist(), strict=True)
        for row in [np.array(row)]
    ]
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")
    return path


def problem(n: int = 300, features: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.random((n, features)) * (rng.random((n, features)) < 0.25)
    x[:, 0] = rng.random(n) + 0.1
    x[:, features - 1] = rng.random(n) + 0.1
    y = np.where(x @ rng.normal(size=features) > 0, 1, -1)
    return x.astype(np.float32).astype(float), y


def start(cli: Cli, tmp_path: Path, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    x, y = problem(n)
    cli("init", tmp_path / "ws")
    cli("data", "import", "s", write_svmlight(tmp_path / "s.svm", x, y), "--format", "svmlight")
    return x, y


def stored(data: DataSet) -> dict[int, tuple[np.ndarray, float]]:
    """What any Zarr tool reads: the dense row and label of every unit."""
    group = zarr.open_group(str(data.path), mode="r")
    found = {}
    for cell in range(data.cells):
        values, columns, pointers, units, labels = (
            np.asarray(group[name][cell])  # type: ignore[index]
            for name in ("data", "indices", "indptr", "unit", "y")
        )
        end = pointers[-1]
        shape = data.capacity, data.features
        csr = scipy.sparse.csr_matrix((values[:end], columns[:end], pointers), shape=shape)
        for slot in np.flatnonzero(units >= 0).tolist():
            found[int(units[slot])] = csr[slot].toarray()[0], float(labels[slot])
    return found


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_any_zarr_tool_reads_the_rows(tmp_path: Path, memory: int) -> None:
    source = Rcv1Like(700, 3)
    data = import_sparse(source, tmp_path / "d.zarr", SALT, {}, memory=memory).data_set
    found = stored(data)
    assert data.sparse and data.features == FEATURES and len(found) == 700
    for block in source.blocks():
        for i, unit in enumerate(block.rows.tolist()):
            values, columns = block.x.row(i)
            row, label = found[unit]
            assert label == block.y[i]
            np.testing.assert_array_equal(np.flatnonzero(row), columns)
            np.testing.assert_array_equal(row[columns], values)


def test_rows_do_not_depend_on_their_number() -> None:
    few, many = next(Rcv1Like(50, 1).blocks()), next(Rcv1Like(400, 1).blocks())
    np.testing.assert_array_equal(few.y, many.y[:50])
    first = many.x.take(np.arange(50))
    for name in ("values", "columns", "pointers"):
        np.testing.assert_array_equal(getattr(few.x, name), getattr(first, name))


def test_generated_rows_resemble_rcv1() -> None:
    block = next(Rcv1Like(4000, 0).blocks())
    assert 70 < block.x.lengths.mean() < 86
    squares = np.add.reduceat(block.x.values.astype(float) ** 2, block.x.pointers[:-1])
    np.testing.assert_allclose(squares, 1.0, rtol=1e-5)
    assert (block.x.values > 0).all() and 0.4 < (block.y > 0).mean() < 0.6
    share = np.sort(np.bincount(block.x.columns, minlength=FEATURES))[::-1] / 4000
    assert 0.3 < share[0] < 0.5 and 0.005 < share[1000] < 0.02


def test_erased_rows_are_gone_and_others_stay(tmp_path: Path) -> None:
    data = import_sparse(Rcv1Like(600, 2), tmp_path / "d.zarr", SALT, {}).data_set
    before = stored(data)
    slots = np.array([0, 3, 4], np.int64)
    units = data.read_units(5)[slots]
    with pytest.raises(CorruptError, match="still hold"):
        check_erased(data, 5, slots)
    for _ in range(2):
        erase_slots(data, 5, slots)
        check_erased(data, 5, slots)
    gone = read_sparse_slots(data, 5, slots)
    assert not gone.values.any() and not gone.columns.any()
    after = stored(data)
    assert before.keys() - after.keys() == set(units.tolist())
    for unit, (row, label) in after.items():
        np.testing.assert_array_equal(row, before[unit][0])
        assert label == before[unit][1]


def test_a_single_byte_left_is_seen(tmp_path: Path) -> None:
    data = import_sparse(Rcv1Like(300, 2), tmp_path / "d.zarr", SALT, {}).data_set
    slots = np.array([1], np.int64)
    at = int(read_sparse_cell(data, 2).pointers[1]) * 4
    for name in ("data", "indices"):
        erase_slots(data, 2, slots)
        with data.chunk(name, 2).open("r+b") as chunk:
            chunk.seek(at)
            chunk.write(b"\x01")
        with pytest.raises(CorruptError, match="1 slots of cell 2"):
            check_erased(data, 2, slots)


def test_damaged_pointers_are_an_error(tmp_path: Path) -> None:
    data = import_sparse(Rcv1Like(300, 2), tmp_path / "d.zarr", SALT, {}).data_set
    with data.chunk("indptr", 0).open("r+b") as chunk:
        chunk.write(b"\x05")
    with pytest.raises(CorruptError, match="pointers"):
        read_sparse_cell(data, 0)


def test_a_deletion_leaves_nothing_to_find(cli: Cli, tmp_path: Path) -> None:
    x, y = start(cli, tmp_path)
    data = DataSet.open(tmp_path / "ws" / "data" / "s.zarr")
    rows = write_svmlight(tmp_path / "rows.svm", x[:12], y[:12])
    cli("forget", "--data", "s", "--unit", ",".join(map(str, range(12))))
    scan = ("scan", "--rows", rows, "--data", "s", "--format", "svmlight")
    planted = cli(*scan, code=5)
    assert planted["rows_found"] == list(range(12))
    assert planted["encodings"] == ["float32 values", "int32 columns"]
    done = cli("batch", "run", "--yes", *INLINE)
    assert done["rows"] == 12 and len(done["receipts"]) == 12
    found = cli(*scan)
    assert found["matches"] == 0 and found["rows_found"] == []
    left = stored(data)
    assert sorted(left) == list(range(12, 300))
    for unit, (row, label) in left.items():
        np.testing.assert_array_equal(row, x[unit].astype(np.float32))
        assert label == y[unit]


def test_a_live_twin_is_told_from_the_erased_row(cli: Cli, tmp_path: Path) -> None:
    x, y = problem()
    x[7] = x[0]
    cli("init", tmp_path / "ws")
    cli("data", "import", "s", write_svmlight(tmp_path / "s.svm", x, y), "--format", "svmlight")
    rows = write_svmlight(tmp_path / "rows.svm", x[:1], y[:1])
    cli("forget", "--data", "s", "--unit", "0")
    scan = ("scan", "--rows", rows, "--data", "s", "--format", "svmlight")
    assert cli(*scan, code=5)["matches"] == 4
    cli("batch", "run", "--yes", *INLINE)
    found = cli(*scan)
    assert found["matches"] == 0 and found["live_twins"] == 2


def test_the_scan_refuses_other_rows(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    message = cli("scan", "--rows", tmp_path / "rows.csv", "--data", "s", code=2)
    assert "--format svmlight" in message
    (tmp_path / "wide.svm").write_text("1 9999:1\n")
    scan = ("scan", "--rows", tmp_path / "wide.svm", "--data", "s", "--format", "svmlight")
    assert "last one is 40" in cli(*scan, code=2)


@pytest.mark.parametrize("algorithm", ["k-means", "q-kmeans", "linear", "logistic", "softmax"])
def test_dense_algorithms_refuse(cli: Cli, tmp_path: Path, algorithm: str) -> None:
    start(cli, tmp_path)
    message = cli("train", "m", "--data", "s", "--algorithm", algorithm, *INLINE, code=2)
    assert "sparse" in message and "sparse-logistic" in message
    assert cli("model", "list")["models"] == []
    assert [j["kind"] for j in cli("job", "list")["jobs"]] == ["import"]


@pytest.mark.parametrize("option", [("--label", "a"), ("--subject", "a"), ("--drop", "a")])
def test_options_of_tables_are_refused(cli: Cli, tmp_path: Path, option: tuple[str, str]) -> None:
    cli("init", tmp_path / "ws")
    path = write_svmlight(tmp_path / "s.svm", *problem(20))
    message = cli("data", "import", "s", path, "--format", "svmlight", *option, code=2)
    assert option[0] in message and cli("job", "list")["jobs"] == []


def test_rows_are_joined_and_taken() -> None:
    blocks = [b.x for b in Rcv1Like(30, 5).blocks()]
    rows = SparseRows.joined([*blocks, SparseRows.none(), *blocks])
    assert len(rows) == 60
    taken = rows.take(np.array([31, 2]))
    for one, other in zip(taken.row(0), rows.row(1), strict=True):
        np.testing.assert_array_equal(one, other)


def test_blocks_are_the_same_whatever_the_total() -> None:
    few, many = Rcv1Like(BLOCK_ROWS + 20, 4), Rcv1Like(BLOCK_ROWS + 60, 4)
    last = list(few.blocks())[1]
    assert last.rows.tolist() == list(range(BLOCK_ROWS, BLOCK_ROWS + 20))
    for source in (few, many):
        block = list(source.blocks())[1]
        rows = block.x.take(np.arange(20))
        for name in ("values", "columns", "pointers"):
            np.testing.assert_array_equal(getattr(rows, name), getattr(last.x, name))
        np.testing.assert_array_equal(block.y[:20], last.y)
    other = next(Rcv1Like(20, 5).blocks()).x
    assert other.values.tobytes() != next(Rcv1Like(20, 4).blocks()).x.values.tobytes()


def test_xarray_names_the_dimensions(tmp_path: Path) -> None:
    data = import_sparse(Rcv1Like(40, 1), tmp_path / "d.zarr", SALT, {}).data_set
    with xr.open_zarr(data.path, consolidated=False) as found:
        dimensions = {str(name): found[name].dims for name in found}
        assert int(found["live"].sum()) == 40
    slots, entries = ("cell", "slot"), ("cell", "entry")
    assert dimensions == {
        "data": entries,
        "indices": entries,
        "indptr": ("cell", "boundary"),
        "unit": slots,
        "y": slots,
        "live": ("cell",),
    }


@pytest.mark.parametrize("text", ["1\n", "1\n-1\n1\n", "1 5:2\n", "2.5 1:0\n"])
def test_all_of_few_and_empty_rows_are_deleted(cli: Cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "few.svm"
    path.write_text(text)
    rows = list(range(text.count("\n")))
    cli("init", tmp_path / "ws")
    assert cli("data", "import", "s", path, "--format", "svmlight")["rows"] == len(rows)
    data = DataSet.open(tmp_path / "ws" / "data" / "s.zarr")
    assert sorted(stored(data)) == rows
    cli("forget", "--data", "s", "--unit", ",".join(map(str, [*rows, 0])))
    assert cli("batch", "run", "--yes", *INLINE)["requests"] == len(rows)
    assert stored(data) == {} and cli("data", "show", "s")["rows"] == 0
    for cell in range(data.cells):
        assert not any(data.chunk("data", cell).read_bytes())
        assert not any(data.chunk("indices", cell).read_bytes())
    assert cli("forget", "--data", "s", "--unit", "0")["already_erased"] == 1
    assert "no unit 9" in cli("forget", "--data", "s", "--unit", "9", code=2)
    found = cli("scan", "--rows", path, "--data", "s", "--format", "svmlight", code=1)
    assert found["matches"] == 0 and found["too_short"] == rows
    assert found["not_searchable"] == []
    assert [why for why in found["skipped"] if "of fewer than 2 entries" in why]


def test_empty_rows_between_others_shift_nothing(cli: Cli, tmp_path: Path) -> None:
    lines = ["1", "-1 1:1 2:2 3:3", "1", "-1 3:7 1:5 9:6", "1"] * 30
    (tmp_path / "a.svm").write_text("\n".join(lines))
    cli("init", tmp_path / "ws")
    cli("data", "import", "s", tmp_path / "a.svm", "--format", "svmlight")
    data = DataSet.open(tmp_path / "ws" / "data" / "s.zarr")
    before = stored(data)
    gone = {0, 1, 2, 3, 77}
    cli("forget", "--data", "s", "--unit", ",".join(map(str, gone)))
    cli("batch", "run", "--yes", *INLINE)
    after = stored(data)
    assert after.keys() == before.keys() - gone
    for unit, (row, label) in after.items():
        np.testing.assert_array_equal(row, before[unit][0])
        assert label == before[unit][1]


def test_the_scan_sees_what_is_planted_after_a_deletion(cli: Cli, tmp_path: Path) -> None:
    x, y = start(cli, tmp_path, 60)
    rows = write_svmlight(tmp_path / "rows.svm", x, y)
    cli("forget", "--data", "s", "--unit", ",".join(map(str, range(60))))
    cli("batch", "run", "--yes", *INLINE)
    scan = ("scan", "--rows", rows, "--data", "s", "--format", "svmlight")
    assert cli(*scan)["matches"] == 0
    values = x[7][x[7] != 0].astype("<f4").tobytes()
    columns = np.flatnonzero(x[9]).astype("<i8").tobytes()
    for planted, row, encoding in ((values, 7, "float32 values"), (columns, 9, "int64 columns")):
        (tmp_path / "ws" / "left.bin").write_bytes(b"abc" + planted)
        found = cli(*scan, code=5)
        assert found["rows_found"] == [row] and found["encodings"] == [encoding]
        assert found["files"] == ["left.bin"]


def test_refused_files_leave_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n1 2:x\n")
    (tmp_path / "none.svm").write_text("# no row\n")
    cli("init", tmp_path / "ws")
    asked = ("data", "import", "s", tmp_path / "a.svm", "--format", "svmlight")
    assert "a.svm, line 2: " in cli(*asked, code=2)
    empty = cli("data", "import", "s", tmp_path / "none.svm", "--format", "svmlight", code=2)
    assert "no valid row" in empty
    gone = cli("data", "import", "s", tmp_path / "gone.svm", "--format", "svmlight", code=2)
    assert "gone.svm: there is no such file" in gone
    assert list((tmp_path / "ws" / "data").iterdir()) == []
    done = cli(*asked, "--drop-invalid", "--first-column", 0)
    assert (done["rows"], done["dropped"], done["features"]) == (1, 1, 2)


@pytest.mark.parametrize("format", ["csv", "higgs"])
def test_first_column_is_for_svmlight_files_alone(cli: Cli, tmp_path: Path, format: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    cli("init", tmp_path / "ws")
    asked = ("data", "import", "s", tmp_path / "a.csv", "--format", format, "--first-column", 1)
    refused = " ".join(cli(*asked, code=2).split())
    assert f"--first-column: not for {format} files" in refused
    assert list((tmp_path / "ws" / "data").iterdir()) == []


def test_a_killed_import_leaves_only_what_the_next_sweeps(tmp_path: Path) -> None:
    target = tmp_path / "d.zarr"
    code = f"""
import os, signal
from pathlib import Path
from expunge.storage.rcv1_like import Rcv1Like
from expunge.storage.sparse_ingest import import_sparse
def die(what, share):
    if what == "writing cells":
        os.kill(os.getpid(), signal.SIGKILL)
import_sparse(Rcv1Like(300, 1), Path({str(target)!r}), {SALT!r}, {{}}, memory=1, progress=die)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists() and any(partial_path(target).iterdir())
    data = import_sparse(Rcv1Like(300, 1), target, SALT, {}).data_set
    assert len(stored(data)) == 300
    assert [path.name for path in tmp_path.iterdir()] == ["d.zarr"]


def test_the_real_sample_reads_back_by_unit(tmp_path: Path, real_data: Path, cli: Cli) -> None:
    path = real_data / "rcv1_1000.svmlight.gz"
    if not path.is_file():
        pytest.skip("the sample of RCV1 is not among the real data sets")
    cli("init", tmp_path / "ws")
    cli("data", "import", "s", path, "--format", "svmlight")
    found = stored(DataSet.open(tmp_path / "ws" / "data" / "s.zarr"))
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert len(found) == len(lines) == 1000
    for unit, line in enumerate(lines):
        label, *pairs = line.split()
        row, y = found[unit]
        expected = np.zeros(len(row), np.float32)
        for column, value in (pair.split(":") for pair in pairs):
            expected[int(column) - 1] = np.float32(value)
        assert y == float(label)
        np.testing.assert_array_equal(row, expected)
