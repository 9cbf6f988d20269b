"""Parquet gives the same blocks as text does, in bounded memory, and names what it cannot use."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.storage import parquet
from expunge.storage.errors import BadInputError, MissingError
from expunge.storage.importers import open_features, open_source
from expunge.storage.rows import RowBlock, RowSource

SALT = bytes(range(16))


def save(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)
    return path


def read(source: RowSource) -> RowBlock:
    """All rows of a source as one block."""
    blocks = list(source.blocks())
    assert source.progress == 1.0 and all(len(block.rows) for block in blocks)
    return RowBlock(*(
        None if getattr(blocks[0], name) is None
        else np.concatenate([getattr(block, name) for block in blocks])
        for name in ("rows", "x", "y", "units")
    ))  # type: ignore[arg-type]  # fmt: skip


def assert_same(left: RowBlock, right: RowBlock) -> None:
    assert left.x.dtype == right.x.dtype == np.float32 and left.x.flags.c_contiguous
    np.testing.assert_array_equal(left.x.view(np.uint32), right.x.view(np.uint32))
    for name in ("rows", "y", "units"):
        one, other = getattr(left, name), getattr(right, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def complaint(path: Path, **options: Any) -> str:
    """The message that reading a file to its end raises."""
    with pytest.raises(BadInputError) as caught:
        read(open_source([path], "parquet", **options))
    return str(caught.value)


# ---- values


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 25), st.integers(1, 2000), st.integers(1, 10))
def test_text_and_parquet_of_a_table_give_the_same_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    rows: int,
    piece_bytes: int,
    group: int,
) -> None:
    folder = tmp_path_factory.mktemp("t")
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)

    def column(values: st.SearchStrategy[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(data.draw(st.lists(values, min_size=rows, max_size=rows)), kind)

    table = pa.table({
        "single": column(finite, pa.float32()),
        "who": column(st.sampled_from(["a", "b", " b", "7"]), pa.string()),
        "double": column(st.floats(-1e38, 1e38, allow_nan=False), pa.float64()),
        "long": column(st.integers(-(2**63), 2**63 - 1), pa.int64()),
        "kind": column(st.integers(-12, 12), pa.int8()),
        "note": column(st.just("x,y"), pa.string()),
        "label": column(st.floats(-1e9, 1e9, allow_nan=False), pa.float64()),
    })  # fmt: skip
    save(folder / "x.parquet", table, row_group_size=group)
    pa.csv.write_csv(table, folder / "x.csv")
    options: dict[str, Any] = {
        "label": "label",
        "drop": ["note"],
        "subject": "who",
        "one_hot": ["kind"],
        "salt": SALT,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "PIECE_BYTES", piece_bytes)
        source = open_source([folder / "x.parquet"], "parquet", **options)
        text = open_source([folder / "x.csv"], "csv", **options)
        assert source.feature_names == text.feature_names
        assert_same(read(source), read(text))


def test_every_kind_of_number_is_read_as_its_text_is(tmp_path: Path) -> None:
    big = 2**63 + 2**39 + 1  # rounded to float32 at once, it would go up instead of to even
    columns = {
        "big": pa.array([big, 3], pa.uint64()),
        "byte": pa.array([-128, 127], pa.int8()),
        "half": pa.array([0.5, -0.0], pa.float16()),
        "flag": pa.array([True, False]),
        "money": pa.array([Decimal("0.10"), Decimal("-99999999999999999999999.99")]),
        "tiny": pa.array([Decimal("1e-20"), Decimal(0)], pa.decimal128(30, 25)),
        "wide": pa.array([Decimal("1.5"), Decimal(2)], pa.decimal256(60, 5)),
    }
    found = read(open_source([save(tmp_path / "x.parquet", columns)], "parquet"))
    text = "a,b,c,d,e,f,g\n" + (
        f"{big},-128,0.5,1,0.10,1e-20,1.5\n3,127,-0.0,0,-99999999999999999999999.99,0,2\n"
    )
    (tmp_path / "x.csv").write_text(text)
    assert_same(found, read(open_source([tmp_path / "x.csv"], "csv")))
    assert not np.signbit(found.x[1, 2])


def test_decimals_are_rounded_once(tmp_path: Path) -> None:
    # Arrow's own conversion misses the nearest float64 of both.
    labels = [
        Decimal("2.4523192065981780459358096978804095447"),
        Decimal("4.9264113442803209566079004990634157734"),
    ]
    table = {"v": [1, 2], "y": pa.array(labels, pa.decimal128(38, 37))}
    found = read(open_source([save(tmp_path / "x.parquet", table)], "parquet", label="y"))
    assert found.y is not None and found.y.tolist() == [float(label) for label in labels]


def test_label_and_row_numbers_over_files(tmp_path: Path) -> None:
    one = save(tmp_path / "a.parquet", {"u": [1, 2, 3], "y": [True, False, True], "t": ["x"] * 3})
    two = save(tmp_path / "b.parquet", {"u": [4.5], "y": [7], "t": [None]})
    source = open_source([one, two], "parquet", label="y", drop=["t"])
    assert source.expected_rows == 4 and source.progress == 0.0
    found = read(source)
    assert found.rows.tolist() == [0, 1, 2, 3] and found.x.tolist() == [[1], [2], [3], [4.5]]
    assert found.y is not None and found.y.dtype == np.float64 and found.y.tolist() == [1, 0, 1, 7]
    assert source.provenance == {
        "format": "parquet",
        "files": "a.parquet, b.parquet",
        "drop_invalid": 0,
        "label": "y",
        "drop": "t",
    }


def test_progress_counts_rows_and_reading_can_stop_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PIECE_BYTES", 8 * 2 * 100)
    path = save(tmp_path / "x.parquet", {"a": np.arange(1000), "b": np.arange(1000)})
    source = open_source([path], "parquet")
    blocks = source.blocks()
    for share in (0.1, 0.2, 0.3):
        assert len(next(blocks).rows) == 100 and source.progress == pytest.approx(share)
    blocks.close()  # type: ignore[attr-defined]  # a generator, which is promised as an iterator


# ---- bad values


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 400))
def test_drop_invalid_equals_the_cleaned_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, piece_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    number = st.sampled_from([1.0, 2.5, -3.0, None, np.nan, np.inf, 1e39])
    row = st.tuples(number, st.sampled_from([4, 5, 5, 5, None]), st.sampled_from("xy ") | st.none())
    rows = [*data.draw(st.lists(row, max_size=30)), (1.0, 1, "z")]
    good = [
        v is not None and abs(v) < 1e38 and n is not None and (kind or " ") != " "
        for v, n, kind in rows
    ]
    kinds = [pa.float64(), pa.int32(), pa.string()]

    def table(kept: list[Any]) -> pa.Table:
        columns = zip(*kept, strict=True)
        arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
        return pa.table(dict(zip(("v", "n", "kind"), arrays, strict=True)))

    dirty = save(folder / "dirty.parquet", table(rows))
    cleaned = [row for row, is_good in zip(rows, good, strict=True) if is_good]
    clean = save(folder / "clean.parquet", table(cleaned))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "PIECE_BYTES", piece_bytes)
        source = open_source([dirty], "parquet", one_hot=["kind"], drop_invalid=True)
        other = open_source([clean], "parquet", one_hot=["kind"])
        assert source.feature_names == other.feature_names
        found, expected = read(source), read(other)
    np.testing.assert_array_equal(found.x, expected.x)
    assert found.rows.tolist() == np.flatnonzero(good).tolist()
    assert source.dropped == len(rows) - len(cleaned)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "a missing value"),
        (np.nan, "nan is not finite"),
        (-np.inf, "-inf is not finite"),
        (1e39, "1e+39 is not finite in 32 bits (the limit is 3.4e38)"),
    ],
)
def test_bad_value_is_named(tmp_path: Path, value: float | None, reason: str) -> None:
    good = save(tmp_path / "a.parquet", {"a": [1.0], "the b": [1.0], "y": [0.0]})
    columns = {"a": [1.0, 2.0, None], "the b": [1.0, value, 2.0], "y": [0.0] * 3}
    path = save(tmp_path / "b.parquet", columns)
    with pytest.raises(BadInputError) as caught:
        read(open_source([good, path], "parquet", label="y"))
    assert str(caught.value) == (
        f"{path}, row 1 (counted from 0), column 'the b': {reason}; correct it, leave the column "
        "out with --drop 'the b', or skip such rows with --drop-invalid"
    )
    message = complaint(path, label="the b", drop=["a"])
    assert f"column 'the b': {reason}; correct it or skip such rows" in message
    source = open_source([good, path], "parquet", drop_invalid=True)
    assert read(source).rows.tolist() == [0, 1] and source.dropped == 2


def test_missing_integers_and_booleans_are_no_numbers(tmp_path: Path) -> None:
    for column in (pa.array([1, None]), pa.array([True, None]), pa.array([Decimal("1.5"), None])):
        path = save(tmp_path / "x.parquet", {"a": column})
        assert "row 1 (counted from 0), column 'a': a missing value" in complaint(path)


# ---- bad files


def test_columns_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    columns = {
        "n": [1],
        "city": ["Bern"],
        "when": pa.array([0], pa.timestamp("s")),
        "list": [[1]],
        "struct": [{"a": 1}],
        "coded": pa.array(["x"]).dictionary_encode(),
    }
    path = save(tmp_path / "x.parquet", columns)
    message = complaint(path)
    assert message.startswith(f"{path}: columns that cannot be used as they are: 'city' is string")
    for name in (
        "'when' is timestamp[ms]",
        "'list' is list<",
        "'struct' is struct<",
        "'coded' is ",
    ):
        assert name in message
    assert "'n'" not in message and "--drop" in message and "--one-hot" in message
    drop = ["when", "list", "struct", "coded"]
    assert "'city' is string" in complaint(path, drop=drop, label="city")
    assert "'n' is" not in complaint(path, drop=drop, one_hot=["n"])
    source = open_source([path], "parquet", drop=drop, one_hot=["city"])
    assert read(source).x.tolist() == [[1, 1]]
    assert "'when' is timestamp" in complaint(path, drop=drop[1:], one_hot=["when", "city"])


def test_files_that_are_no_sound_parquet(tmp_path: Path) -> None:
    sound = save(tmp_path / "x.parquet", {"a": np.arange(50_000.0)}, use_dictionary=False)
    data = sound.read_bytes()
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"a,b\n1,2\n")
    assert complaint(path).startswith(f"{path}: not a parquet file")
    path.write_bytes(b"")
    assert complaint(path).startswith(f"{path}: not a parquet file")
    path.write_bytes(data[:-20])
    assert complaint(path).startswith(f"{path}: damaged")
    path.write_bytes(data[:5000] + bytes(2000) + data[7000:])
    assert complaint(path).startswith(f"{path}: damaged")
    path.write_bytes(b"PARE" + bytes(50) + b"\x10\0\0\0PARE")
    assert complaint(path).startswith(f"{path}: encrypted")
    assert "a folder" in complaint(tmp_path)
    with pytest.raises(MissingError, match=r"none\.parquet: no such file"):
        open_source([tmp_path / "none.parquet"], "parquet")
    with pytest.raises(BadInputError, match="a parquet file; say --format parquet"):
        open_source([sound], "csv")
    empty = save(tmp_path / "empty.parquet", {"a": pa.array([], pa.float64())})
    assert complaint(empty) == f"{empty}: the file has no rows"
    twice = save(tmp_path / "twice.parquet", pa.table([[1], [2]], names=["a", "a"]))
    assert "column names that occur twice: 'a'" in complaint(twice)


def test_damage_is_seen_by_the_pages_own_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    column = {"a": np.arange(50_000.0)}
    save(path, column, use_dictionary=False, compression="none", write_page_checksum=True)
    flipped = bytearray(path.read_bytes())
    flipped[10_000] ^= 1
    path.write_bytes(flipped)
    assert complaint(path).startswith(f"{path}: damaged")


def test_files_must_share_their_columns(tmp_path: Path) -> None:
    one = save(tmp_path / "a.parquet", {"a": [1], "b": [2]})
    for columns in ({"b": [2], "a": [1]}, {"a": [1]}, {"a": [1], "b": [2], "c": [3]}):
        two = save(tmp_path / "b.parquet", columns)
        with pytest.raises(BadInputError, match=r"b\.parquet: other columns than .*a\.parquet has"):
            open_source([one, two], "parquet")


# ---- features alone


def test_features_by_name_in_any_order_whatever_the_format(tmp_path: Path) -> None:
    one = save(tmp_path / "a.parquet", {"petal": [2, 4], "note": ["x", "y"], "sepal": [1.0, 3.0]})
    two = save(tmp_path / "b.parquet", {"sepal": [5], "petal": [6.0]})
    for format in ("parquet", "csv", "higgs"):
        found = read(open_features([one, two], format, ["sepal", "petal"]))
        assert (
            found.x.tolist() == [[1, 2], [3, 4], [5, 6]] and found.y is None and found.units is None
        )
        assert found.rows.tolist() == [0, 1, 2]
    text = tmp_path / "c.csv"
    text.write_text("petal,sepal\n8,7\n")
    assert read(open_features([text], "parquet", ["sepal", "petal"])).x.tolist() == [[7, 8]]
    for mixed in ([one, text], [text, one]):
        with pytest.raises(BadInputError, match="parquet file"):
            open_features(mixed, "csv", ["sepal", "petal"])
    with pytest.raises(BadInputError, match=r"b\.parquet: columns missing: 'x'; the columns are"):
        open_features([two], "parquet", ["sepal", "x"])
    with pytest.raises(BadInputError, match=r"a\.parquet: .* 'note' is string") as caught:
        open_features([one], "parquet", ["note"])
    assert "--drop" not in str(caught.value)


def test_features_of_categories_are_encoded_by_name(tmp_path: Path) -> None:
    names = ["kind=b", "v", "kind=7"]
    path = save(tmp_path / "x.parquet", {"v": [1, 2], "kind": ["7", " b"]})
    assert read(open_features([path], "parquet", names)).x.tolist() == [[0, 1, 1], [1, 2, 0]]
    path = save(tmp_path / "x.parquet", {"v": [1, 2], "kind": ["7", "c"]})
    message = (
        r"x\.parquet, row 1 \(counted from 0\), column 'kind': 'c' is none of the known categories "
        "'b', '7'; correct it or skip such rows with --drop-invalid"
    )
    with pytest.raises(BadInputError, match=message):
        read(open_features([path], "parquet", names))
    source = open_features([path], "parquet", names, drop_invalid=True)
    assert read(source).x.tolist() == [[0, 1, 1]] and source.dropped == 1


# ---- memory

_PEAK = """
import sys
from pathlib import Path
from expunge.storage.importers import open_source
rows = sum(len(b.rows) for b in open_source([Path(sys.argv[2])], sys.argv[1]).blocks())
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(rows, peak.split()[1])
"""


def peak_kib(path: Path, format: str, rows: int) -> int:
    """The most memory that a process holds that reads a file."""
    # An allocator that gives back what is freed: others keep some, more or less by chance.
    environment = os.environ | {
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_ARENA_MAX": "1",
    }
    command = [sys.executable, "-c", _PEAK, format, str(path)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found, peak = map(int, done.stdout.split())
    assert found == rows
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_a_gzip_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20_000, 20))
    lines = "\n".join(",".join(f"{v:.6g}" for v in row) for row in values) + "\n"
    peaks = []
    for megabytes in (60, 240):
        path = tmp_path / f"{megabytes}.csv.gz"
        times = megabytes * 1_000_000 // len(lines)
        with gzip.open(path, "wt", compresslevel=1) as out:
            out.write(",".join(f"f{i}" for i in range(20)) + "\n")
            for _ in range(times):
                out.write(lines)
        peaks.append(peak_kib(path, "csv", times * 20_000))
    assert peaks[1] < 1.15 * peaks[0]


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    column = np.random.default_rng(0).normal(size=750_000).astype(np.float32)
    peaks = []
    for times in (1, 4):
        tiled = np.tile(column, times)
        table = pa.table({f"f{i}": tiled for i in range(20)})
        path = save(
            tmp_path / f"{times}.parquet",
            table,
            row_group_size=len(tiled),
            use_dictionary=False,
            compression="none",
        )
        assert pq.ParquetFile(path).metadata.num_row_groups == 1
        peaks.append(peak_kib(path, "parquet", len(tiled)))
    assert peaks[1] < 1.15 * peaks[0]
