"""Data subjects: rows of one person are one unit, however the person is written, in any format."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import KMeans, QKMeans
from expunge.storage.cells import subject_units
from expunge.storage.errors import BadInputError
from expunge.storage.importers import open_source
from expunge.storage.ingest import import_rows
from expunge.storage.rows import RowSource

SALT = bytes(range(16))
WHO = "who,v,w\nanna,1,0\nbert,2,0\nanna,3,1\ncarl,4,1\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(source: RowSource) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The units and features of all rows."""
    blocks = list(source.blocks())
    units = [block.units for block in blocks if block.units is not None]
    assert len(units) == len(blocks)
    return np.concatenate(units), np.concatenate([block.x for block in blocks])


def units_of(path: Path, format: str, **options: Any) -> list[int]:
    source = open_source([path], format, subject="who", salt=SALT, **options)
    return [int(unit) for unit in read(source)[0]]


def complaint(path: Path, format: str = "csv", **options: Any) -> str:
    with pytest.raises(BadInputError) as caught:
        units_of(path, format, **options)
    return str(caught.value)


# ---- unit ids


def test_unit_ids_stay_what_they_were() -> None:
    # Data sets outlive the program's versions: these ids must never change.
    assert subject_units(["anna", "7"], SALT).tolist() == [518377976406175292, 1862255638826233317]
    assert subject_units([], SALT).tolist() == []


def test_one_subject_however_it_is_written() -> None:
    for same in (["7", "+7", "007", " 7 "], ["-7", "-07"], ["0", "-0", "+0", "00"], ["a", "a\t"]):
        assert len(set(subject_units(same, SALT).tolist())) == 1
    others = ["7", "-7", "70", "7.0", "seven", "Seven", "7e0", "٧", "a b", "ab", "0", "--7", "x7"]
    assert len(set(subject_units(others, SALT).tolist())) == len(others)


def test_units_are_63_bits_and_depend_on_the_salt() -> None:
    texts = [str(i) for i in range(2000)]
    units = subject_units(texts, SALT)
    assert units.dtype == np.int64 and units.min() >= 0 and len(set(units.tolist())) == 2000
    # Each of the 63 bits is set in about half of the ids (16 standard deviations allowed).
    ones = ((units[:, None] >> np.arange(63)) & 1).sum(axis=0)
    assert ones.min() > 640 and ones.max() < 1360
    assert not set(units.tolist()) & set(subject_units(texts, SALT[::-1]).tolist())
    with pytest.raises(BadInputError, match="the salt has 3 bytes"):
        subject_units(["a"], b"abc")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.booleans())
def test_numbers_and_texts_of_all_formats_give_the_same_units(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], coded: bool
) -> None:
    folder = tmp_path_factory.mktemp("t")
    values = [float(i) for i in range(len(ids))]
    texts = pa.array([f" {i}" for i in ids])
    columns = [pa.array(ids, pa.int64()), texts.dictionary_encode() if coded else texts]
    quote = '"' if coded else " "
    lines = [f"{v},{quote}{i}{quote}\n" for v, i in zip(values, ids, strict=True)]
    found = [units_of(write(folder / "x.csv", "".join(["v,who\n", *lines])), "csv")]
    for column in columns:
        pq.write_table(pa.table({"who": column, "v": values}), folder / "x.parquet")
        found.append(units_of(folder / "x.parquet", "parquet"))
    expected = subject_units([str(i) for i in ids], SALT).tolist()
    assert found == [expected] * 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(alphabet='ab "\t\ufeffé,7+\u2028', max_size=5), min_size=1, max_size=8),
    st.sampled_from(["", "1,2,3\n"]),
)
def test_any_text_is_a_subject_alike_in_csv_and_parquet(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], bad: str
) -> None:
    folder = tmp_path_factory.mktemp("t")
    # A bad line sends the text through the slow path.
    texts = [*texts, "last"]
    rows = "".join(f'1,"{text.replace(chr(34), chr(34) * 2)}"\n' for text in texts)
    path = write(folder / "x.csv", f"v,who\n{bad}{rows}")
    pq.write_table(pa.table({"who": texts, "v": [1] * len(texts)}), folder / "x.parquet")
    expected = subject_units([text for text in texts if text.strip()], SALT).tolist()
    assert units_of(path, "csv", drop_invalid=True) == expected
    assert units_of(folder / "x.parquet", "parquet", drop_invalid=True) == expected


# ---- reading


def test_the_subject_is_no_feature_and_is_kept_nowhere(tmp_path: Path) -> None:
    ids = [f"person-{i % 40:04d}-of-springfield" for i in range(200)]
    text = "v,who,w\n" + "".join(f"{i},{name},{-i}\n" for i, name in enumerate(ids))
    path = write(tmp_path / "x.csv.gz", gzip.compress(text.encode()))
    source = open_source([path], "csv", subject="who", salt=SALT)
    assert source.feature_names == ("v", "w") and source.provenance["subject"] == "who"
    done = import_rows(source, tmp_path / "t.zarr", SALT, {"name": "t"}, cells=16)
    stored = [p.read_bytes() for p in (tmp_path / "t.zarr").rglob("*") if p.is_file()]
    assert len(stored) > 16 and not any(b"springfield" in data for data in stored)
    # Each unit owns just the rows of its subject, side by side in one cell, as they came.
    expected = subject_units([f"person-{i:04d}-of-springfield" for i in range(40)], SALT).tolist()
    data = done.data_set
    seen: dict[int, list[list[float]]] = {}
    for cell in range(data.cells):
        units, x = data.read_units(cell), data.read_cell(cell)
        live = units[units >= 0]
        assert (np.diff(live) != 0).sum() + 1 == len(set(live.tolist())) or not len(live)
        for unit in set(live.tolist()):
            assert unit not in seen
            seen[unit] = x[units == unit].tolist()
    assert seen == {
        unit: [[i, -i] for i in range(first, 200, 40)] for first, unit in enumerate(expected)
    }


def test_headerless_files_and_several_files_share_subjects(tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", "1,anna\n2,bert\n")
    two = write(tmp_path / "b.csv", "3,bert\n4, anna\n")
    source = open_source([one, two], "csv", header=False, subject="c1", salt=SALT)
    anna, bert = subject_units(["anna", "bert"], SALT).tolist()
    units, x = read(source)
    assert units.tolist() == [anna, bert, bert, anna] and x.tolist() == [[1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (b"", "a missing value"),
        (b"  ", "a missing value"),
        (b'""', "a missing value"),
        (b"\xff" + b"z" * 99, "'\\\\xff" + "z" * 39 + "...' is not UTF-8 text"),
    ],
)
def test_a_row_without_subject_is_refused_or_dropped(
    tmp_path: Path, cell: bytes, reason: str
) -> None:
    # A later bad line must not win, whichever of the two paths finds it.
    for rest in (b"anna,2\n", b"anna,x\n", b",2\n"):
        path = write(tmp_path / "x.csv", b"who,v\nanna,0\n" + cell + b",1\n" + rest)
        assert complaint(path) == (
            f"{path}, line 3, column 'who': {reason}; "
            "correct it or skip such lines with --drop-invalid"
        )
    path = write(tmp_path / "x.csv", b"who,v\nanna,0\n" + cell + b",1\nanna,2\n")
    source = open_source([path], "csv", subject="who", salt=SALT, drop_invalid=True)
    units, x = read(source)
    assert x.tolist() == [[0], [2]] and source.dropped == 1 and len(set(units.tolist())) == 1


def test_subjects_that_parquet_cannot_give(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"v": [1.0, 2.0, 3.0], "who": ["a", None, " "]}), path)
    assert f"{path}, row 1 (counted from 0), column 'who': a missing value; correct" in complaint(
        path, "parquet"
    )
    assert len(units_of(path, "parquet", drop_invalid=True)) == 1
    for column in ([1.5, 2.5], [[1], [2]], [b"a", b"b"]):
        pq.write_table(pa.table({"v": [1.0, 2.0], "who": column}), path)
        assert "'who' is" in complaint(
            path, "parquet"
        ) and "subjects integers or text" in complaint(path, "parquet")


def test_arguments_that_do_not_go_together(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", WHO)
    assert "'who' is the subject and cannot be dropped as well" in complaint(path, drop=["who"])
    assert "'who' is the subject and cannot be the label as well" in complaint(path, label="who")
    assert "'who' is one-hot and cannot be the subject as well" in complaint(path, one_hot=["who"])
    for format in ("higgs", "covtype"):
        assert f"format {format} has no column for --subject" in complaint(path, format)
    with pytest.raises(BadInputError, match="no column 'name'; the columns are 'who', 'v', 'w'"):
        open_source([path], "csv", subject="name", salt=SALT)
    with pytest.raises(BadInputError, match="needs the data set's salt"):
        open_source([path], "csv", subject="who")
    with pytest.raises(BadInputError, match="no feature"):
        open_source([path], "csv", subject="who", salt=SALT, drop=["v"], label="w")


# ---- exactness


@pytest.mark.parametrize("estimator", [KMeans, QKMeans])
def test_deleting_a_subject_equals_training_without_its_rows(
    tmp_path: Path, estimator: type[KMeans]
) -> None:
    rng = np.random.default_rng(5)
    people = [f"p{i}" for i in rng.integers(0, 60, 400)]
    x = rng.normal(size=(400, 3)).astype(np.float32)
    gone = ["p3", "p17"]
    units, rows = _written(tmp_path / "all.csv", people, x)
    stay = [person not in gone for person in people]
    few_units, few_rows = _written(
        tmp_path / "few.csv", [p for p in people if p not in gone], x[stay]
    )
    model = estimator(n_clusters=4, random_state=0).fit(rows, units=units)
    before = model.n_rows_
    for person in gone:
        model.delete(subject_units([person], SALT))
    assert before - model.n_rows_ == 400 - sum(stay) > 4
    retrained = estimator(n_clusters=4, random_state=0).fit(few_rows, units=few_units)
    np.testing.assert_array_equal(model.cluster_centers_, retrained.cluster_centers_)
    assert model.inertia_ == retrained.inertia_
    np.testing.assert_array_equal(model.predict(x), retrained.predict(x))


def _written(
    path: Path, people: Sequence[str], x: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    lines = [f"{p},{','.join(map(repr, row))}" for p, row in zip(people, x.tolist(), strict=True)]
    write(path, "\n".join(["who,a,b,c", *lines]))
    return read(open_source([path], "csv", subject="who", salt=SALT))
