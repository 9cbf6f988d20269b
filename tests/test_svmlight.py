"""svmlight files: what is read, and what is refused by file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from expunge.storage import svmlight
from expunge.storage.errors import BadInputError
from expunge.storage.sparse import SparseRows
from expunge.storage.svmlight import SvmlightSource


def read(path: Path, **options: object) -> tuple[SvmlightSource, SparseRows, np.ndarray]:
    source = SvmlightSource([path], **options)  # type: ignore[arg-type]
    blocks = list(source.blocks())
    y = np.concatenate([b.y for b in blocks]) if blocks else np.empty(0)
    return source, SparseRows.joined(b.x for b in blocks), y


def write(tmp_path: Path, text: str, name: str = "a.svm") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_entries_are_sorted_and_zeros_left_out(tmp_path: Path) -> None:
    text = "# head\n+1 3:0.5 1:-2e1 7:0 # tail 9:9\n\n-1\n2.5 2:1\r\n"
    source, x, y = read(write(tmp_path, text))
    assert y.tolist() == [1.0, -1.0, 2.5]
    assert [x.row(i)[1].tolist() for i in range(3)] == [[1, 3], [], [2]]
    assert x.row(0)[0].tolist() == [-20.0, 0.5]
    assert source.first_column == 1 and source.features == 7 and source.progress == 1.0


def test_columns_from_zero_are_found_out_or_told(tmp_path: Path) -> None:
    path = write(tmp_path, "1 1:1\n-1 0:1 5:2\n")
    assert (read(path)[0].first_column, read(path)[0].features) == (0, 6)
    with pytest.raises(BadInputError, match="a.svm, line 2: column 0"):
        read(path, first_column=1)
    told = read(write(tmp_path, "1 1:1\n", "b.svm"), first_column=0)[0]
    assert (told.first_column, told.features) == (0, 2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 qid:3 1:1", "query ids are not supported"),
        ("1 1:1 1:2", "column 1 occurs twice"),
        ("x 1:1", "the label is 'x'"),
        ("1,2 1:1", "several labels"),
        ("nan 1:1", "the label is 'nan'"),
        ("1 1:nan", "column 1 has 'nan'"),
        ("1 1:1e39", "column 1 has '1e39'"),
        ("1 1:x", "column 1 has 'x'"),
        ("1 a:1", "'a:1' is not COLUMN:VALUE"),
        ("1 -1:1", "'-1:1' is not COLUMN:VALUE"),
        ("1 1", "'1' is not COLUMN:VALUE"),
        ("1 1:2:3 4", "column 1 has '2:3'"),
        ("1 1: 2:3", "column 1 has ''"),
        ("1 1:1_0", "column 1 has '1_0'"),
        ("1 99999999999:1", "above 2,147,483,646"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, why: str) -> None:
    path = write(tmp_path, f"1 1:1\n{line}\n-1 2:1\n")
    with pytest.raises(BadInputError, match="a.svm, line 2: ") as caught:
        read(path)
    assert why in str(caught.value)
    source, _, y = read(path, drop_invalid=True)
    assert source.dropped == 1 and y.tolist() == [1.0, -1.0]
    assert next(SvmlightSource([path], drop_invalid=True).blocks()).rows.tolist() == [0, 2]


def test_gzip_and_pieces_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"{i % 2} {i % 7 + 1}:{i}.5 {i % 7 + 9}:1\n" for i in range(500))
    plain = read(write(tmp_path, text))
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(svmlight, "PIECE_BYTES", 100)
    again = read(packed)
    assert len(list(SvmlightSource([packed]).blocks())) > 10
    for one, other in zip(
        (plain[1].values, plain[1].columns, plain[1].pointers, plain[2]),
        (again[1].values, again[1].columns, again[1].pointers, again[2]),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_the_real_sample(real_data: Path) -> None:
    path = real_data / "rcv1_1000.svmlight.gz"
    if not path.is_file():
        pytest.skip("the sample of RCV1 is not among the real data sets")
    source, x, y = read(path)
    assert len(x) == 1000 and source.first_column == 1 and source.features == 47_117
    assert set(y.tolist()) == {-1.0, 1.0} and len(x.values) == 77_739
