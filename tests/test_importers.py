"""Reading numbers from text: the same bits however the text is cut, and exact complaints."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from expunge.storage import tabular
from expunge.storage.errors import BadInputError, MissingError
from expunge.storage.importers import FORMATS, open_features, open_source
from expunge.storage.layout import Layout, OneHot
from expunge.storage.rows import RowSource
from expunge.storage.tabular import TableFile, TableSource

Rows = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64] | None]

IRIS = "sepal,petal,species\n1,2,0\n3,4,1\n5,6,2\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(source: RowSource) -> Rows:
    """All rows of a source, after checks that hold for every block."""
    blocks = list(source.blocks())
    for block in blocks:
        assert block.x.dtype == np.float32 and block.x.flags.c_contiguous
        assert block.rows.dtype == np.int64 and len(block.rows) == len(block.x) > 0
        assert np.isfinite(block.x).all() and not np.signbit(block.x[block.x == 0]).any()
        assert block.x.shape[1] == len(source.feature_names)
    assert source.progress == 1.0
    width = len(source.feature_names)
    rows = np.concatenate([np.empty(0, np.int64), *(block.rows for block in blocks)])
    x = np.concatenate([np.empty((0, width), np.float32), *(block.x for block in blocks)])
    assert (np.diff(rows) > 0).all()
    if source.label_name is None:
        assert all(block.y is None for block in blocks)
        return rows, x, None
    return rows, x, np.concatenate([np.empty(0), *(b.y for b in blocks if b.y is not None)])


def assert_same(left: Rows, right: Rows) -> None:
    np.testing.assert_array_equal(left[0], right[0])
    np.testing.assert_array_equal(left[1].view(np.uint32), right[1].view(np.uint32))
    assert (left[2] is None) == (right[2] is None)
    if left[2] is not None and right[2] is not None:
        np.testing.assert_array_equal(left[2], right[2])


def headerless(
    paths: Sequence[Path], width: int, block_bytes: int, *, drop_invalid: bool = False
) -> TableSource:
    """A source of `width` features whose text is cut every `block_bytes`."""
    layout = Layout(tuple(f"c{i}" for i in range(width)), tuple(range(width)), None)
    return TableSource(
        [TableFile(path, layout, header=False) for path in paths],
        provenance={},
        drop_invalid=drop_invalid,
        block_bytes=block_bytes,
    )


def complaint(path: Path, format: str = "csv", **options: object) -> str:
    """The message that reading a file to its end raises."""
    with pytest.raises(BadInputError) as caught:
        read(open_source([path], format, **options))  # type: ignore[arg-type]  # one option each
    return str(caught.value)


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


# ---- categories


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["a", " a", "b", "B", "10", "9", "-1", "007", "x y", 'q"r', "é", "a=b"]
            ),
            st.sampled_from(["u", "v"]),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=15,
    ),
    st.integers(1, 60),
    st.booleans(),
)
def test_one_hot_equals_an_encoding_by_hand(
    tmp_path_factory: pytest.TempPathFactory,
    table: list[tuple[str, str, int]],
    cut: int,
    quoted: bool,
) -> None:
    def shown(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [f"{n},{shown(kind)},{n * n},{shown(other)}\n" for kind, other, n in table]
    path = write(tmp_path_factory.mktemp("t") / "x.csv", "".join(["n,kind,square,k2\n", *lines]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabular, "BLOCK_BYTES", cut)
        patch.setattr(tabular, "_LEAST_BLOCK_BYTES", 1)
        source = open_source([path], "csv", one_hot=["k2", "kind"])
        rows, x, _ = read(source)
    kinds = sorted({kind.strip() for kind, _, _ in table})
    integers = sorted((k for k in kinds if k.lstrip("-").isdecimal()), key=lambda k: (int(k), k))
    kinds = integers + [kind for kind in kinds if kind not in integers]
    others = sorted({other for _, other, _ in table})
    assert source.feature_names == (
        "n",
        *(f"kind={kind}" for kind in kinds),
        "square",
        *(f"k2={other}" for other in others),
    )
    assert rows.tolist() == list(range(len(table)))
    assert x.tolist() == [
        [
            n,
            *(float(k == kind.strip()) for k in kinds),
            n * n,
            *(float(o == other) for o in others),
        ]
        for kind, other, n in table
    ]
    # The same file read for the data set's features gives the same rows, in any order of features.
    again = read(open_features([path], "csv", source.feature_names[::-1]))
    assert_same(again, (rows, np.ascontiguousarray(x[:, ::-1]), None))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(
            st.text(alphabet='ab1 "\t\r\ufeff', max_size=4)
            | st.sampled_from(["1", '"a"', '"a,b"', "\xff", '"']),
            min_size=2,
            max_size=3,
        ).map(",".join),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
)
def test_fast_and_slow_path_accept_the_same_texts(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    body = b"".join(line.encode("latin-1" if "\xff" in line and "\ufeff" not in line else "utf-8")
                    + b"\n" for line in [*lines, "a,1"])  # fmt: skip

    def found(
        path: Path, block_bytes: int, names: Sequence[str] = ()
    ) -> tuple[Rows, list[str], int]:
        categories = ("a", "1", *names)
        layout = Layout(("kind", "n"), (0, 0, 1), None, one_hot=(OneHot(0, categories),))
        source = TableSource(
            [TableFile(path, layout, header=False)],
            provenance={},
            drop_invalid=True,
            block_bytes=block_bytes,
        )
        return read(source), sorted(source.categories(lambda share: None)["kind"]), source.dropped

    path = write(folder / "x.csv", body)
    slow = write(folder / "y.csv", body + b"oops\n")
    expected, kinds, dropped = found(path, 1)
    for other, block_bytes, more in ((path, cut, 0), (slow, 1000, 1)):
        rows, present, skipped = found(other, block_bytes)
        assert_same(rows, expected)
        assert present == kinds and skipped == dropped + more


def test_returns_and_marks_in_texts_are_judged_alike_wherever_the_text_is_cut(
    tmp_path: Path,
) -> None:
    lines = [
        '"a\rb",1',
        '\ufeff"a",2',
        "a,3",
        "\ufeffa,4",
        "\ufeff\ufeffa,5",
        "x,oops",
        '\ufeff"a",6',
    ]
    path = write(tmp_path / "x.csv", "a,0\n" + "\n".join(lines) + "\n")
    layout = Layout(("kind", "n"), (1,), None, one_hot=(OneHot(0),))
    for block_bytes in range(1, 80):
        source = TableSource(
            [TableFile(path, layout, header=False)],
            provenance={},
            drop_invalid=True,
            block_bytes=block_bytes,
        )
        # A mark within the file belongs to the text, and a quote after it is no quotation.
        found = source.categories(lambda share: None)
        assert found == {"kind": ("a", '\ufeff"a"', "\ufeffa", "\ufeff\ufeffa")}
        assert read(source)[0].tolist() == [0, 2, 3, 4, 5, 7] and source.dropped == 2


def test_drop_invalid_leaves_out_categories_of_bad_lines_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "kind,n\na,1\nb,x\n,2\na\nc,3\n\xff,4\n".encode("latin-1"))
    told: list[float] = []
    source = open_source([path], "csv", one_hot=["kind"], drop_invalid=True, progress=told.append)
    assert source.feature_names == ("kind=a", "kind=c", "n") and told == [1.0]
    rows, x, _ = read(source)
    assert rows.tolist() == [0, 4] and x.tolist() == [[1, 0, 1], [0, 1, 3]] and source.dropped == 4
    assert source.provenance["one_hot"] == "kind"
    # Without it, the first bad line is named, be it found with the categories or after that.
    message = complaint(path, one_hot=["kind"])
    assert message.startswith(f"{path}, line 4, column 'kind': a missing value; correct it, leave")
    good = write(tmp_path / "y.csv", "kind,n\na,1\nb,x\n")
    assert "line 3, column 'n': 'x' is not a number" in complaint(good, one_hot=["kind"])


def test_categories_that_cannot_be_features(tmp_path: Path) -> None:
    many = write(tmp_path / "m.csv", "n,id\n" + "".join(f"1,id{i}\n" for i in range(1001)))
    assert "column 'id' has more than 1,000 categories" in complaint(many, one_hot=["id"])
    fits = write(tmp_path / "f.csv", "n,id\n" + "".join(f"1,id{i}\n" for i in range(1000)))
    assert len(open_source([fits], "csv", one_hot=["id"]).feature_names) == 1001
    clash = write(tmp_path / "c.csv", "kind,kind=a\na,1\n")
    assert "like another column: 'kind=a'" in complaint(clash, one_hot=["kind"])
    assert "no column 'sort'" in complaint(clash, one_hot=["sort"])
    assert "column 'kind' is one-hot and cannot be the label as well" in complaint(
        clash, label="kind", one_hot=["kind"]
    )
    assert "column 'kind' is one-hot and cannot be dropped as well" in complaint(
        clash, drop=["kind"], one_hot=["kind"]
    )
    higgs = write(tmp_path / "h.csv", higgs_line())
    assert "has no column for --one-hot" in complaint(higgs, "higgs", one_hot=["m_bb"])


def test_wide_one_hot_is_read_in_smaller_blocks(tmp_path: Path) -> None:
    kinds = [f"{i}" for i in range(1000)] * 100
    path = write(tmp_path / "x.csv", "kind\n" + "".join(f"{kind}\n" for kind in kinds))
    blocks = list(open_source([path], "csv", one_hot=["kind"]).blocks())
    assert max(block.x.nbytes for block in blocks) <= 16 << 20
    assert len(blocks) > 4 and sum(block.x.sum() for block in blocks) == len(kinds)


def test_one_hot_features_of_another_file(tmp_path: Path) -> None:
    names = ("kind=a=b", "n", "kind=2", "kind2=x")
    path = write(tmp_path / "x.csv", "kind2,note,kind,n\nx,hello,2,5\nx,,a=b,6\n")
    _, x, _ = read(open_features([path], "csv", names))
    assert x.tolist() == [[0, 5, 1, 1], [1, 6, 0, 1]]
    encoded = write(tmp_path / "e.csv", "kind=a=b,n,kind=2,kind2=x\n1,5,0,1\n")
    _, x, _ = read(open_features([encoded, path], "csv", names))
    assert x.tolist() == [[1, 5, 0, 1], [0, 5, 1, 1], [1, 6, 0, 1]]
    other = write(tmp_path / "o.csv", "kind2,kind,n\nx,2,5\nx,3,6\n")
    with pytest.raises(BadInputError) as caught:
        read(open_features([other], "csv", names))
    assert str(caught.value) == (
        f"{other}, line 3, column 'kind': '3' is none of the known categories 'a=b', '2'; "
        "correct it or skip such lines with --drop-invalid"
    )
    short = write(tmp_path / "s.csv", "kind2,n\nx,5\n")
    with pytest.raises(BadInputError, match="columns missing: 'kind=a=b', 'kind=2'"):
        open_features([short], "csv", names)


def test_one_hot_features_of_headerless_csv_by_position(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", "9,red,s\n8,blue,m\n")
    source = open_source([train], "csv", header=False, drop=["c0"], one_hot=["c1", "c2"])
    assert source.feature_names == ("c1=blue", "c1=red", "c2=m", "c2=s")
    _, x, _ = read(source)
    assert x.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    bare = write(tmp_path / "b.csv", "red,s\nblue,m\n")
    named = write(tmp_path / "n.csv", "c2,c1\ns,red\nm,blue\n")
    for path in (train, bare, named):
        assert_same(
            read(open_features([path], "csv", source.feature_names)), (np.arange(2), x, None)
        )


# ---- bad files


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"none\.csv: no such file"):
        open_source([tmp_path / "none.csv"], "csv")
    assert "a folder" in complaint(tmp_path)
    assert "binary file" in complaint(write(tmp_path / "b.csv", b"PK\3\4\0\0,1\n2\n"))
    assert "binary file" in complaint(write(tmp_path / "u.csv", "a,b\n1,2\n".encode("utf-16")))
    assert "line 1: not UTF-8" in complaint(write(tmp_path / "l.csv", b"a,\xe9\n1,2\n"))
    assert "a carriage return alone" in complaint(write(tmp_path / "m.csv", "a,b\r1,2\r"))
    assert "line 1: blank" in complaint(write(tmp_path / "s.csv", "\na,b\n1,2\n"))
    assert "line 1: a quoted value" in complaint(write(tmp_path / "q.csv", 'a,"b\n1,2\n'))


@pytest.mark.parametrize("text", ["", "\n \r\n", "\ufeff", "a,b", "a,b\n", "a,b\n\n\n"])
def test_file_without_rows(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "x.csv", text)
    assert complaint(path) == f"{path}: the file has no rows"
    packed = write(tmp_path / "x.gz", gzip.compress(text.encode()))
    assert complaint(packed) == f"{packed}: the file has no rows"


def test_damaged_gzip_names_the_file(tmp_path: Path) -> None:
    text = "a,b\n" + "".join(f"{i},{i * i}\n" for i in range(20_000))
    packed = gzip.compress(text.encode())
    path = tmp_path / "x.csv.gz"
    for size in (15, 200, len(packed) // 2, len(packed) - 3):
        assert f"{path}: the gzip data ends too early" in complaint(write(path, packed[:size]))
    for place in (len(packed) // 2, len(packed) - 6):
        flipped = bytearray(packed)
        flipped[place] ^= 0xFF
        # Damaged data may still inflate to text that is no table, before the checksum is reached.
        assert complaint(write(path, bytes(flipped))).startswith(f"{path}")
    assert "damaged gzip data" in complaint(write(path, bytes(flipped)))


def test_headers_and_arguments_are_checked_before_reading(tmp_path: Path) -> None:
    iris = write(tmp_path / "iris.csv", IRIS)
    other = write(tmp_path / "other.csv", "sepal,species,petal\n1,2,3\n")
    twice = write(tmp_path / "twice.csv", "a,b,a\n1,2,3\n")
    data = write(tmp_path / "data.csv", "1.5,2\n3,4\n")
    for match, files, format, options in [
        ("unknown format 'xls'; the formats are higgs, covtype, csv", [iris], "xls", {}),
        ("no file given", [], "csv", {}),
        ("other.csv, line 1: other columns", [iris, other], "csv", {}),
        ("twice.csv, line 1: column names that occur twice: 'a'", [twice], "csv", {}),
        ("data.csv, line 1: numbers instead of .* --no-header", [data], "csv", {}),
        ("no column 'y'; the columns are 'sepal', 'petal', 's", [iris], "csv", {"label": "y"}),
        ("no column 'u', 'v'; the columns", [iris], "csv", {"drop": ["u", "sepal", "v"]}),
        ("'petal' is the label", [iris], "csv", {"label": "petal", "drop": ["petal"]}),
        ("no feature", [iris], "csv", {"label": "petal", "drop": ["sepal", "species"]}),
        ("iris.csv, line 1: 3 columns found, but format higgs has 29; .*csv", [iris], "higgs", {}),
        ("the label of covtype is 'Cover_Type'", [iris], "covtype", {"label": "petal"}),
    ]:
        with pytest.raises(BadInputError, match=match):
            open_source(files, format, **options)  # type: ignore[arg-type]  # one option each
    assert FORMATS == ("higgs", "covtype", "csv", "parquet")


def test_numbers_and_nothing_as_column_names(tmp_path: Path) -> None:
    years = write(tmp_path / "years.csv", ",2019,2020\n0,1,2\n")
    assert open_source([years], "csv").feature_names == ("unnamed_1", "2019", "2020")
    pixels = write(tmp_path / "pixels.csv", "0,1,2\n7,8,9\n")
    rows, x, _ = read(open_source([pixels], "csv", drop=["1"]))
    assert rows.tolist() == [0] and x.tolist() == [[7, 9]]


# ---- published formats


def higgs_line(label: str = "1", value: str = "0.5", columns: int = 29) -> str:
    return ",".join([label, *[value] * (columns - 1)]) + "\n"


def test_higgs_and_covtype_check_their_labels(tmp_path: Path) -> None:
    higgs = write(tmp_path / "h.csv", higgs_line() + higgs_line("2"))
    assert f"{higgs}, line 2, column 'label': 2 is none of the labels 0, 1;" in complaint(
        higgs, "higgs"
    )
    source = open_source([higgs], "higgs", drop=["m_jj"], drop_invalid=True)
    assert source.label_name == "label" and len(source.feature_names) == 27
    assert source.feature_names[:1] + source.feature_names[-1:] == ("lepton_pT", "m_wwbb")
    assert read(source)[0].tolist() == [0] and source.dropped == 1
    cover = write(tmp_path / "c.data", "1," * 54 + "7\n" + "1," * 54 + "0\n")
    assert "line 2, column 'Cover_Type': 0 is none of the labels 1, 2, 3, 4, 5, 6, 7" in complaint(
        cover, "covtype"
    )
    # Of two faults in a line, the first in the file's order is named.
    both = write(tmp_path / "b.csv", higgs_line() + higgs_line("x", "nan"))
    assert "line 2, column 'label': 'x' is not a number" in complaint(both, "higgs")
    titled = write(tmp_path / "t.csv", "class" + higgs_line("") + higgs_line())
    assert "line 1, column 'label': 'class' is not a number" in complaint(titled, "higgs")


@pytest.mark.parametrize(
    ("name", "format", "label_first"),
    [("HIGGS_7000.csv.gz", "higgs", True), ("covtype_kaggle_15120.data.gz", "covtype", False)],
)
def test_real_files_equal_numpys_reading(name: str, format: str, label_first: bool) -> None:
    path = Path(__file__).resolve().parents[2] / "shared" / "data" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    source = open_source([path], format)
    rows, x, y = read(source)
    with gzip.open(path, "rt") as text:
        table = np.loadtxt(text, delimiter=",", max_rows=1000)
    label, features = (0, slice(1, None)) if label_first else (-1, slice(0, -1))
    assert rows.tolist() == list(range(int(name.split("_")[-1].split(".")[0])))
    np.testing.assert_array_equal(x[:1000], table[:, features].astype(np.float32))
    assert y is not None
    np.testing.assert_array_equal(y[:1000], table[:, label])


# ---- features alone


def test_features_by_name_in_any_order(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", IRIS)
    second = write(tmp_path / "b.csv", "note,petal,sepal\nhello,8,7\n")
    source = open_features([first, second], "csv", ["sepal", "petal"])
    assert source.feature_names == ("sepal", "petal") and source.label_name is None
    rows, x, y = read(source)
    assert rows.tolist() == [0, 1, 2, 3] and y is None
    assert x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    with pytest.raises(BadInputError, match=r"b\.csv, line 1: columns missing: 'species', 'x'"):
        open_features([second], "csv", ["sepal", "species", "x"])
    bad = write(tmp_path / "c.csv", "petal,sepal\n1,two\n")
    with pytest.raises(BadInputError, match=r"line 2, column 'sepal': 'two' .* correct it or skip"):
        read(open_features([bad], "csv", ["sepal"]))


def test_features_of_headerless_csv_by_position(tmp_path: Path) -> None:
    full = write(tmp_path / "full.csv", "0,1.5,2.5\n1,3.5,4.5\n")
    bare = write(tmp_path / "bare.csv", "1.5,2.5\n3.5,4.5\n")
    named = write(tmp_path / "named.csv", "c2,c1\n2.5,1.5\n4.5,3.5\n")
    for path in (full, bare, named):
        rows, x, _ = read(open_features([path], "csv", ["c1", "c2"]))
        assert rows.tolist() == [0, 1] and x.tolist() == [[1.5, 2.5], [3.5, 4.5]]
    with pytest.raises(BadInputError, match="columns missing: 'c4'"):
        open_features([full], "csv", ["c1", "c4"])
    with pytest.raises(BadInputError, match="columns missing: 'u', 'v', 'w'"):
        open_features([full], "csv", ["u", "v", "w"])


def test_features_of_higgs_with_and_without_label(tmp_path: Path) -> None:
    names = open_source([write(tmp_path / "h.csv", higgs_line("x"))], "higgs").feature_names[2:]
    values = ",".join(str(i) for i in range(28))
    for text in (f"9,{values}\n", f"{values}\n", f"{','.join(names)}\n{values[4:]}\n"):
        _, x, _ = read(open_features([write(tmp_path / "x.csv", text)], "higgs", names))
        assert x.tolist() == [list(range(2, 28))]
    short = write(tmp_path / "short.csv", "1,2\n")
    with pytest.raises(BadInputError, match=r"2 columns found, .* 29 \(or 28 without the label\)"):
        open_features([short], "higgs", names)
