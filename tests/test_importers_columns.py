"""What columns become: categories, features by name or position; and files that are no tables."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import IRIS, Rows, assert_same, complaint, read, write

from expunge.storage import tabular
from expunge.storage.errors import BadInputError, MissingError
from expunge.storage.importers import FORMATS, open_features, open_source
from expunge.storage.layout import Layout, OneHot
from expunge.storage.tabular import TableFile, TableSource

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
    assert "damaged zip" in complaint(write(tmp_path / "z.csv", b"PK\3\4\0\0,1\n2\n"))
    assert "binary file" in complaint(write(tmp_path / "b.csv", b"\x93NUMPY\0\0,1\n2\n"))
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
        ("unknown format 'xls'; the formats are higgs, covtype, sgemm, heart", [iris], "xls", {}),
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


def test_every_format_is_named_where_users_look() -> None:
    assert len(FORMATS) == len(set(FORMATS))
    with pytest.raises(BadInputError, match=f"the formats are {', '.join(FORMATS)}$"):
        open_source([Path("x")], "xls")
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    missing = [name for name in FORMATS if not re.search(rf"\b{name}\b", readme)]
    assert not missing, "say in README.md what these are"


def test_numbers_and_nothing_as_column_names(tmp_path: Path) -> None:
    years = write(tmp_path / "years.csv", ",2019,2020\n0,1,2\n")
    assert open_source([years], "csv").feature_names == ("unnamed_1", "2019", "2020")
    pixels = write(tmp_path / "pixels.csv", "0,1,2\n7,8,9\n")
    rows, x, _ = read(open_source([pixels], "csv", drop=["1"]))
    assert rows.tolist() == [0] and x.tolist() == [[7, 9]]


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
