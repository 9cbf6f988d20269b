"""Sparse rows from the file to the receipt: import, training, deletion, proof."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from support import INLINE, Cli

from expunge.storage.errors import BadInputError
from expunge.storage.rcv1_like import Rcv1Like
from expunge.storage.svmlight import SvmlightSource


def lines(count: int = 400) -> list[str]:
    """Rows with one to nine entries; the label is the sign of a sum of them."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        columns = np.sort(rng.choice(60, rng.integers(4, 10), replace=False)) + 1
        values = rng.random(len(columns)) + 0.1
        label = 1 if values[columns > 30].sum() > values[columns <= 30].sum() else -1
        entries = " ".join(f"{c}:{v:.6f}" for c, v in zip(columns, values, strict=True))
        made.append(f"{label} {entries} # {label}")
    return made


@pytest.fixture
def news(tmp_path: Path) -> Path:
    path = tmp_path / "news.svmlight.gz"
    path.write_bytes(gzip.compress("\n".join(lines()).encode()))
    return path


def test_from_the_file_to_the_receipt(cli: Cli, news: Path, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    made = cli("data", "import", "news", news, "--format", "svmlight")
    assert (made["rows"], made["features"]) == (400, 60)
    settings = ("-p", "iterations=200", "-p", "batch_size=200", "-p", "l2=0.05")
    trained = cli(
        "train", "m", "--data", "news", "--algorithm", "sparse-logistic", *settings, *INLINE
    )
    assert trained["accuracy"] > trained["majority_rate"] + 0.1
    refused = cli("train", "k", "--data", "news", "--algorithm", "k-means", *INLINE, code=2)
    assert "sparse" in refused
    planted = tmp_path / "planted.svmlight"
    planted.write_text("\n".join(lines()[:6]))
    asked = ("scan", "--rows", planted, "--data", "news", "--format", "svmlight")
    assert cli(*asked, code=5)["rows_found"] == list(range(6))
    assert cli("forget", "--data", "news", "--unit", "0,1,2,3,4,5,5")["queued"] == 6
    done = cli("batch", "run", "--yes", *INLINE)
    assert done["rows"] == 6
    assert done["models"][0]["exactness"] == "approximate", done["models"][0]["reason"]
    assert cli(*asked)["matches"] == 0
    found = cli("verify", "m", "--against", "basel", *INLINE)
    assert found["distance"] <= 0.05 * found["change"] and found["intact"]
    assert len(cli("receipt", "list")["receipts"]) == 6
    cli("forget", "--data", "news", "--sample", "1.0")
    assert cli("batch", "run", "--yes", *INLINE)["rows"] == 394


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3:1 3:2", "3"),
        ("1 3:x", "x"),
        ("1 qid:4 3:1", "qid"),
        ("one 3:1", "one"),
        ("1 3:nan", "nan"),
        ("1 -3:1", "-3"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.svmlight"
    path.write_text(f"1 1:0.5\n{text}\n")
    with pytest.raises(BadInputError, match=message) as caught:
        list(SvmlightSource([path]).blocks())
    assert "bad.svmlight" in str(caught.value) and "2" in str(caught.value)


def test_generated_rows_do_not_depend_on_how_many_there_are() -> None:
    few, many = (next(iter(Rcv1Like(n, 7).blocks())) for n in (300, 3000))
    ends = few.x.pointers[:301]
    np.testing.assert_array_equal(many.x.pointers[:301], ends)
    np.testing.assert_array_equal(many.x.values[: ends[-1]], few.x.values)
    np.testing.assert_array_equal(many.x.columns[: ends[-1]], few.x.columns)
    norms = np.add.reduceat(np.square(few.x.values, dtype=np.float64), ends[:-1])
    np.testing.assert_allclose(norms, 1.0, atol=1e-5)
