"""The k-means paper's own files: Celltype, and UCI's Postures with its gaps and its dummy row."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from reading import assert_same, complaint, read, write
from support import Cli

from expunge.storage.cells import subject_units
from expunge.storage.importers import open_features, open_source
from expunge.storage.layout import Roles, training_layout
from expunge.storage.tabular import TableFile
from expunge.storage.tabular_incomplete import IncompleteSource
from expunge.storage.tabular_published import PUBLISHED

# ---- celltype

CELLTYPE = ",".join(f"pc{i}" for i in range(10)) + ",cell_type\n"


def test_celltype_checks_columns_and_labels(tmp_path: Path) -> None:
    row = ",".join(["0.25"] * 10)
    path = write(tmp_path / "c.csv", f"{CELLTYPE}{row},3\n{row},4\n")
    assert "line 3, column 'cell_type': 4 is none of the labels 0, 1, 2, 3;" in complaint(
        path, "celltype"
    )
    bare = write(tmp_path / "b.csv", f"{row},3\n")
    assert "line 1: other columns than format celltype has" in complaint(bare, "celltype")
    assert "has no column for --subject" in complaint(
        path, "celltype", subject="pc0", salt=bytes(16)
    )
    source = open_source([path], "celltype", drop=["pc3"], drop_invalid=True)
    rows, x, y = read(source)
    assert x.shape == (1, 9) and rows.tolist() == [0] and y is not None and y.tolist() == [3]


def test_the_real_celltype(real_data: Path) -> None:
    path = real_data / "celltype_12009.csv.gz"
    if not path.exists():
        pytest.skip("celltype_12009.csv.gz is not in the folder of real data sets")
    rows, x, y = read(open_source([path], "celltype"))
    with gzip.open(path, "rt") as text:
        table = np.loadtxt(text, delimiter=",", skiprows=1)
    assert rows.tolist() == list(range(12_009)) and y is not None
    np.testing.assert_array_equal(x, table[:, :-1].astype(np.float32))
    np.testing.assert_array_equal(y, table[:, -1])
    assert set(y) == {0.0, 1.0, 2.0, 3.0}


# ---- postures

POSTURES = "Class,User," + ",".join(f"{axis}{i}" for i in range(12) for axis in "XYZ") + "\n"
DUMMY = ",".join(["0"] * 38) + "\n"


def posture(label: object, user: object, markers: int, *, first: object = -12.5) -> str:
    """A line with so many markers, whose coordinates count up from the first one's X."""
    values = [str(first), *map(str, range(1, 3 * markers))]
    return ",".join([str(label), str(user), *values, *["?"] * (36 - len(values))]) + "\n"


def zipped(path: Path, text: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Postures/Postures.csv", text)
        archive.writestr("Postures/Postures_readme.txt", "Class - Integer.")
    return path


def test_postures_without_the_dummy_and_rows_that_lack_a_marker(tmp_path: Path) -> None:
    lines = [posture(1, 0, 12), posture(2, 5, 4), posture(5, 14, 5), posture(3, 14, 3)]
    text = POSTURES + DUMMY + "".join(lines)
    for content in (text, text.replace("\n", "\r\n"), text.replace("?", " ? ")):
        for path in (
            write(tmp_path / "Postures.csv", content),
            zipped(tmp_path / "p.zip", content),
        ):
            source = open_source([path], "postures")
            assert source.label_name == "Class"
            assert source.feature_names == tuple(f"{a}{i}" for i in range(5) for a in "XYZ")
            rows, x, y = read(source)
            # The dummy is line 0 of the data, as it is for whoever counts lines.
            assert rows.tolist() == [1, 3] and source.dropped == 3
            assert x.tolist() == [[-12.5, *range(1, 15)]] * 2
            assert y is not None and y.tolist() == [1, 5]
    # Fewer features, fewer gaps that matter.
    path = write(tmp_path / "p.csv", text)
    source = open_source([path], "postures", drop=["X4", "Y4", "Z4", "X5"])
    assert read(source)[0].tolist() == [1, 2, 3] and len(source.feature_names) == 12


def test_only_the_first_row_of_each_file_can_be_a_dummy(tmp_path: Path) -> None:
    one = write(tmp_path / "1.csv", POSTURES + DUMMY + posture(1, 0, 6))
    two = write(tmp_path / "2.csv", POSTURES + posture(4, 0, 6) + posture(2, 1, 6))
    source = open_source([one, two, one], "postures")
    assert read(source)[0].tolist() == [1, 2, 3, 5] and source.dropped == 2
    later = write(tmp_path / "l.csv", POSTURES + posture(4, 0, 6) + DUMMY)
    assert "line 3, column 'Class': 0 is none of the labels 1, 2, 3, 4, 5" in complaint(
        later, "postures"
    )
    origin = write(tmp_path / "o.csv", POSTURES + "0,1" + DUMMY[3:])
    assert "line 2, column 'Class': 0 is none of the labels" in complaint(origin, "postures")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (posture(6, 1, 7), "column 'Class': 6 is none of the labels 1, 2, 3, 4, 5;"),
        (posture("?", 1, 7), "column 'Class': '?' is not a number"),
        (posture(1, 1, 7, first="nan"), "column 'X0': nan is not finite"),
        (posture(1, 1, 7, first="x"), "column 'X0': 'x' is not a number"),
        (posture(1, 1, 7, first="??"), "column 'X0': '??' is not a number"),
        (posture(1, 1, 4, first="x"), "column 'X0': 'x' is not a number"),
        (posture(9, 1, 4), "column 'Class': 9 is none of the labels"),
        (posture(1, 1, 4)[:-3] + "\n", ": 37 columns found, 38 expected;"),
    ],
)
def test_other_faults_of_postures_are_told_with_their_line(
    tmp_path: Path, line: str, words: str
) -> None:
    around = [posture(1, 0, 3), posture(2, 0, 6), posture(3, 0, 4)]
    text = POSTURES + DUMMY + "".join([*around, line, *around])
    path = write(tmp_path / "p.csv", text)
    assert complaint(path, "postures").startswith(f"{path}, line 6")
    assert words in complaint(path, "postures")
    source = open_source([path], "postures", drop_invalid=True)
    assert read(source)[0].tolist() == [2, 6] and source.dropped == 6


def test_postures_in_small_blocks_are_the_same(tmp_path: Path) -> None:
    counts = np.random.default_rng(2).integers(3, 13, 300)
    lines = [posture(1 + i % 5, i % 14, int(n), first=i) for i, n in enumerate(counts)]
    path = write(tmp_path / "p.csv", POSTURES + DUMMY + "".join(lines))
    whole = read(open_source([path], "postures"))
    assert whole[0].tolist() == (1 + np.flatnonzero(counts >= 5)).tolist()
    roles = PUBLISHED["postures"].roles("postures", Roles())
    layout = training_layout(PUBLISHED["postures"].columns, roles, {})
    gaps = PUBLISHED["postures"].gaps
    assert gaps is not None
    files = [TableFile(path, layout, header=True)]
    small = IncompleteSource(files, gaps, provenance={}, block_bytes=700)
    assert_same(read(small), whole)
    assert small.dropped == 1 + (counts < 5).sum()


def test_users_of_postures_are_subjects_and_never_features(tmp_path: Path) -> None:
    lines = [posture(1, 7, 6), posture(2, 7, 4), posture(2, 8, 6), posture(3, 7, 6)]
    path = write(tmp_path / "p.csv", POSTURES + DUMMY + "".join(lines))
    source = open_source([path], "postures", subject="User", salt=bytes(16))
    assert "User" not in source.feature_names and source.provenance["subject"] == "User"
    (block,) = source.blocks()
    assert block.units is not None
    np.testing.assert_array_equal(block.units, subject_units(["7", "8", "7"], bytes(16)))
    assert "the subject of postures is 'User', not 'Class'; name that one" in complaint(
        path, "postures", subject="Class", salt=bytes(16)
    )
    assert "'User' is the subject and cannot be dropped as well" in complaint(
        path, "postures", subject="User", drop=["User"], salt=bytes(16)
    )
    assert "the label of postures is 'Class', not 'User'" in complaint(
        path, "postures", label="User"
    )


def test_features_of_postures_have_the_same_gaps(tmp_path: Path) -> None:
    names = ["Y1", "X0"]
    titled = POSTURES + DUMMY + posture("?", "?", 1) + posture("", 1, 2) + posture(1, 2, 12)
    path = write(tmp_path / "p.csv", titled)
    source = open_features([path], "postures", names)
    rows, x, _ = read(source)
    assert rows.tolist() == [2, 3] and x.tolist() == [[4, -12.5]] * 2 and source.dropped == 2
    few = write(tmp_path / "f.csv", "X0,Y1\n0,0\n?,1\n2,3\n")
    assert read(open_features([few], "postures", names))[1].tolist() == [[3, 2]]


# ---- the command line


def test_both_are_imported_by_command(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    text = POSTURES + DUMMY + "".join(posture(1 + i % 5, i, 4 + i % 2) for i in range(40))
    path = write(tmp_path / "Postures.csv", text)
    made = cli("data", "import", "p", path, "--format", "postures")
    assert (made["rows"], made["dropped"], made["features"]) == (20, 21, 15)
    made = cli("data", "import", "u", path, "--format", "postures", "--subject", "User")
    assert (made["rows"], made["subjects"]) == (20, True)
    rows = "".join(f"{','.join([str(i)] * 10)},{i % 4}\n" for i in range(30))
    made = cli(
        "data", "import", "c", write(tmp_path / "c.csv", CELLTYPE + rows), "--format", "celltype"
    )
    assert (made["rows"], made["features"], made["label"]) == (30, 10, "cell_type")
