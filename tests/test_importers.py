"""Reading numbers from text: the same bits however the text is cut, and exact complaints."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from reading import assert_same, complaint, headerless, read, write

from expunge.storage import tabular
from expunge.storage.errors import BadInputError
from expunge.storage.importers import open_source
from expunge.storage.layout import Layout
from expunge.storage.tabular import TableFile, TableSource

# ---- values


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.integers(1, 60),
    st.sampled_from(["\n", "\r\n"]),
)
def test_float32_survives_text(
    tmp_path_factory: pytest.TempPathFactory, x: NDArray[np.float32], cut: int, end: str
) -> None:
    text = end.join(",".join(repr(float(v)) for v in row) for row in x)
    path = write(tmp_path_factory.mktemp("t") / "x.csv", text)
    expected = (np.arange(len(x)), x + np.float32(0), None)
    assert_same(read(headerless([path], x.shape[1], cut)), expected)


def test_label_and_dropped_columns_and_row_numbers_over_files(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "id,u,kind,v\n7,1,x,0.5\n8,2,'',1\n")
    second = write(tmp_path / "b.csv", 'id,"u",kind, v\n9,3,\xff,-0\n'.encode("latin-1"))
    source = open_source([first, second], "csv", label="id", drop=["kind"])
    assert source.feature_names == ("u", "v") and source.label_name == "id"
    rows, x, y = read(source)
    assert rows.tolist() == [0, 1, 2]
    assert x.tolist() == [[1, 0.5], [2, 1], [3, 0]]
    assert y is not None and y.dtype == np.float64 and y.tolist() == [7, 8, 9]
    assert source.expected_rows is None and source.dropped == 0
    assert source.provenance == {
        "format": "csv",
        "files": "a.csv, b.csv",
        "label": "id",
        "drop": "kind",
        "header": 1,
        "drop_invalid": 0,
    }


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1,2\n3,4",
        "1,2\r\n3,4\r\n",
        "1,2\r\n3,4\r",
        "1,2\n3,4\n\n \n\r\n",
        "\ufeff1,2\n3,4\n",
        '"1",2\n3,"4"\n',
        " 1 ,2\t\n3, 4 \n",
        "+1,2.\n03,4e0\n",
    ],
)
def test_ways_to_write_the_same_table(tmp_path: Path, text: str) -> None:
    expected = (np.arange(2), np.array([[1, 2], [3, 4]], np.float32), None)
    plain = write(tmp_path / "x.csv", text)
    assert_same(read(open_source([plain], "csv", header=False)), expected)
    packed = write(tmp_path / "misnamed.csv", gzip.compress(text.encode()))
    assert_same(read(open_source([packed], "csv", header=False)), expected)
    headed = write(tmp_path / "headed.csv", "a,b\n" + text.removeprefix("\ufeff"))
    assert_same(read(open_source([headed], "csv")), expected)
    # A bad line sends the block to the slow path, which must see the other lines alike.
    dirty = write(tmp_path / "dirty.csv", "a,b\noops\n" + text.removeprefix("\ufeff"))
    rows, x, _ = read(open_source([dirty], "csv", drop_invalid=True))
    assert_same((rows - 1, x, None), expected)


def test_underflow_becomes_zero_and_the_largest_float_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1e-46,-1e-46,1e-400,3.4028235e38,3.40282356e38\n")
    _, x, _ = read(open_source([path], "csv", header=False))
    top = float(np.finfo(np.float32).max)
    assert x.tolist() == [[0, 0, 0, top, top]]


# ---- cutting


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(
            st.text(alphabet='0123456789+-.eEnaif" \t\r', max_size=5)
            | st.sampled_from(["1", "-2.5", '"3"', "nan", "1e39", "-0", "\ufeff1"]),
            min_size=1,
            max_size=3,
        ).map(",".join),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
    st.integers(1, 2),
)
def test_fast_and_slow_path_accept_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cut: int, width: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    good = ",".join("1" * width)
    body = "\n".join([*lines, good]) + "\n"
    path = write(folder / "x.csv", body)
    # With one byte a block each line stands alone; the bad last line makes one slow block of all.
    alone = headerless([path], width, 1, drop_invalid=True)
    cut_anywhere = headerless([path], width, cut, drop_invalid=True)
    slow = headerless([write(folder / "y.csv", body + "oops,\n")], width, 1000, drop_invalid=True)
    expected = read(alone)
    assert_same(read(cut_anywhere), expected)
    assert_same(read(slow), expected)
    assert slow.dropped == alone.dropped + 1 == cut_anywhere.dropped + 1


@pytest.mark.parametrize("compress", [False, True])
def test_every_block_size_gives_the_same_rows(tmp_path: Path, compress: bool) -> None:
    texts = ["1,2\r\n\r\n33333,4\r\nnan,6\r\n", "7,8\n9,x\n10,11\n\n\n", "12,13"]
    packed = [gzip.compress(text.encode()) if compress else text.encode() for text in texts]
    paths = [write(tmp_path / f"{i}.csv", data) for i, data in enumerate(packed)]
    for block_bytes in range(1, 40):
        source = headerless(paths, 2, block_bytes, drop_invalid=True)
        rows, x, _ = read(source)
        assert rows.tolist() == [0, 2, 4, 6, 7] and source.dropped == 3
        assert x.tolist() == [[1, 2], [33333, 4], [7, 8], [10, 11], [12, 13]]


def test_quotation_over_two_lines_is_refused_wherever_the_text_is_cut(tmp_path: Path) -> None:
    # Line 1 is sound, and so is line 3, unless its stray quote were to close the one of line 2.
    path = write(tmp_path / "x.csv", '1,"a,"\n2,"b\n3,c"\n4,"d\n')
    layout = Layout(("number", "note"), (0,), None)
    for block_bytes in range(1, 30):
        source = TableSource(
            [TableFile(path, layout, header=False)],
            provenance={},
            drop_invalid=True,
            block_bytes=block_bytes,
        )
        rows, x, _ = read(source)
        assert rows.tolist() == [0, 2] and x.tolist() == [[1], [3]] and source.dropped == 2


def test_marks_and_returns_within_the_text_are_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "\ufeff1\n\ufeff2\n3\r4\n5\r\r\n6\n")
    for block_bytes in range(1, 20):
        source = headerless([path], 1, block_bytes, drop_invalid=True)
        rows, x, _ = read(source)
        assert rows.tolist() == [0, 4] and x.tolist() == [[1], [6]] and source.dropped == 3


def test_lines_longer_than_a_block_and_than_arrows_own(tmp_path: Path) -> None:
    line = ",".join(f"{i}".rjust(1 << 20, fill) for i, fill in enumerate(" 0"))
    path = write(tmp_path / "long.csv", f"{line}\n2,3\n{line}\n")
    rows, x, _ = read(headerless([path], 2, 1 << 16))
    assert rows.tolist() == [0, 1, 2] and x.tolist() == [[0, 1], [2, 3], [0, 1]]


def test_a_file_without_line_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "MAX_LINE_BYTES", 1000)
    path = write(tmp_path / "x.csv", "1,2\n" + "3" * 5000)
    with pytest.raises(BadInputError, match="without the end of a line"):
        read(headerless([path], 2, 100))


def test_several_gzip_members_are_one_text(tmp_path: Path) -> None:
    packed = gzip.compress(b"1,2\n3,") + gzip.compress(b"") + gzip.compress(b"4\n5,6\n")
    path = write(tmp_path / "x.gz", packed)
    rows, x, _ = read(open_source([path], "csv", header=False))
    assert rows.tolist() == [0, 1, 2] and x.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_progress_grows_and_reading_can_stop_early(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1,2\n" * 5000)
    source = headerless([path], 2, 1000)
    blocks = source.blocks()
    seen = [source.progress]
    for _ in range(3):
        next(blocks)
        seen.append(source.progress)
    assert seen[0] == 0.0 and seen == sorted(set(seen)) and seen[-1] < 0.5
    blocks.close()  # type: ignore[attr-defined]  # a generator, which is promised as an iterator


# ---- bad lines


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "1,2",
            "line 4: 2 columns found, 3 expected; fix the line or skip such lines with --drop-inv",
        ),
        ("1,2,3,4", "line 4: 4 columns found, 3 expected"),
        ("", "line 4: 0 columns found, 3 expected"),
        ("   ", "line 4: 0 columns found, 3 expected"),
        (
            "1,setosa,3",
            (
                "line 4, column 'petal size': 'setosa' is not a number; correct it, leave the "
                "column out with --drop 'petal size', or skip such lines with --drop-invalid"
            ),
        ),
        ("1,,3", "line 4, column 'petal size': '' is not a number (a missing value)"),
        ("1,NA,3", "line 4, column 'petal size': 'NA' is not a number"),
        ("1,1_0,3", "line 4, column 'petal size': '1_0' is not a number"),
        ("1,0x1F,3", "line 4, column 'petal size': '0x1F' is not a number"),
        ('1, "2",3', "line 4, column 'petal size': '\"2\"' is not a number"),
        ("1,a\1b,3", "line 4, column 'petal size': 'a\\x01b' is not a number"),
        ("1," + "z" * 99 + ",3", f"column 'petal size': '{'z' * 40}...' is not a number"),
        ('1,"2,3', "line 4: a quoted value does not end on its line"),
        ("1,2\r,3", "line 4: a carriage return within the line"),
        ("nan,2,3", "line 4, column 'sepal': nan is not finite; correct it, leave"),
        ("1,-Inf,3", "line 4, column 'petal size': -Inf is not finite"),
        ("1,1e39,3", "line 4, column 'petal size': 1e39 is not finite in 32 bits"),
        (
            "1,2,x",
            "line 4, column 'species': 'x' is not a number; correct it or skip such lines with --",
        ),
        ("1,2,nan", "line 4, column 'species': nan is not finite; correct it or skip"),
        ("1,2,1e39", "line 4, column 'species': 1e39 is not finite in 32 bits"),
    ],
)
def test_bad_line_is_named_and_can_be_dropped(tmp_path: Path, line: str, words: str) -> None:
    head = "sepal,petal size,species\n1,2,0\n3,4,1\n"
    # A later bad line must not win, whichever of the two paths finds it.
    for rest in ("5,6,2\n", "5,nan,2\n", "5,x,2\n"):
        path = write(tmp_path / "x.csv", head + line + "\n" + rest)
        message = complaint(path, label="species")
        assert message.startswith(f"{path}, {words}" if words.startswith("line") else f"{path}")
        assert words in message
    source = open_source([path], "csv", label="species", drop_invalid=True)
    rows, x, y = read(source)
    assert source.dropped == 2 and rows.tolist() == [0, 1] and x.tolist() == [[1, 2], [3, 4]]
    assert y is not None and y.tolist() == [0, 1]


def test_bad_bytes_are_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", b"a,b\n1,\xff\n")
    assert "line 2, column 'b': '\\\\xff' is not a number" in complaint(path)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_drop_invalid_equals_the_cleaned_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("t")
    value = st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)
    good = st.tuples(value, value).map(",".join)
    bad = st.sampled_from(["", "1", "1,", "1,x", "nan,1", "1,2,3", '"1,2', "1,1e99", "1\r,2"])
    lines = [*data.draw(st.lists(st.one_of(good, good, bad), max_size=30)), "1,2"]
    cut = data.draw(st.integers(1, 100))
    is_bad = np.array([line in {"", "1", "1,", "1,x", "nan,1", "1,2,3", '"1,2', "1,1e99", "1\r,2"}
                       for line in lines])  # fmt: skip
    dirty = write(folder / "dirty.csv", "\n".join(lines) + "\n")
    clean = write(
        folder / "clean.csv",
        "".join(f"{line}\n" for line, skip in zip(lines, is_bad, strict=True) if not skip),
    )
    source = headerless([dirty], 2, cut, drop_invalid=True)
    rows, x, _ = read(source)
    _, expected, _ = read(headerless([clean], 2, cut))
    assert_same((rows, x, None), (np.flatnonzero(~is_bad), expected, None))
    assert source.dropped == is_bad.sum()


def test_error_in_an_early_block_wins_over_one_found_sooner_further_on(tmp_path: Path) -> None:
    slow_to_find = "1,2\n" * 2000 + "1,x\n"
    path = write(tmp_path / "x.csv", slow_to_find + "1\n")
    broken = write(tmp_path / "y.gz", gzip.compress(b"1,2\n" * 1000)[:-9])
    for block_bytes in (10, len(slow_to_find)):
        with pytest.raises(BadInputError, match=r"x\.csv, line 2001, column 'c1': 'x'"):
            read(headerless([path, broken], 2, block_bytes))
