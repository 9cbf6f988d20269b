"""Random features: a function of seed and row number alone, uniform, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from given_rows import GivenRows
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reading import read, write
from support import INLINE, Cli

from expunge.storage import random_features
from expunge.storage.cells import MAX_CELL_BYTES, choose_cells
from expunge.storage.dataset import DataSet
from expunge.storage.errors import BadInputError
from expunge.storage.importers import open_source
from expunge.storage.random_features import WithRandomFeatures
from expunge.storage.rows import RowBlock

RUNS = [f"Run{i} (ms)" for i in range(1, 5)]
SGEMM = "MWG,NWG,KWG,MDIMC,NDIMC,MDIMA,NDIMB,KWI,VWM,VWN,STRM,STRN,SA,SB," + ",".join(RUNS) + "\n"


def sgemm(path: Path, rows: int) -> Path:
    lines = (",".join([*map(str, range(i, i + 14)), *[str(i + 1)] * 4]) for i in range(rows))
    return write(path, SGEMM + "\n".join(lines) + "\n")


def drawn(
    rows: int, count: int, seed: int = 0, block: int = 100, invalid: list[int] | None = None
) -> NDArray[np.float32]:
    """The random features alone of rows 0, 1, ..."""
    own = GivenRows(np.zeros((rows, 1), np.float32), block=block, invalid=invalid or [])
    return read(WithRandomFeatures(own, count, seed))[1][:, 1:]


def test_draws_of_a_seed_are_pinned() -> None:
    """A data set that is made again must be the same."""
    x = drawn(3, 3, seed=5).astype(np.float64) * 2**24
    assert x.tolist() == [
        [4814156, 16464998, 10879322],
        [12081105, 8687400, 5600166],
        [3588820, 5428904, 9627014],
    ]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 40),
    count=st.integers(1, 9),
    more=st.integers(0, 9),
    block=st.integers(1, 50),
    piece=st.integers(1, 400),
    invalid=st.lists(st.integers(0, 39), max_size=20),
    seed=st.integers(0, 2**63 - 1),
)
def test_cutting_and_skipping_and_more_features_change_nothing(
    rows: int, count: int, more: int, block: int, piece: int, invalid: list[int], seed: int
) -> None:
    whole = drawn(rows, count + more, seed)
    kept = np.setdiff1d(np.arange(rows), invalid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_features, "PIECE_BYTES", piece)
        found = drawn(rows, count, seed, block, invalid)
    np.testing.assert_array_equal(found, whole[kept, :count])


def test_rows_far_out_have_draws_of_their_own() -> None:
    class Far(GivenRows):
        def blocks(self) -> Iterator[RowBlock]:
            numbers = np.array([0, 1, 2**32, 2**62, 2**63 - 1], np.int64)
            yield RowBlock(numbers, np.zeros((5, 1), np.float32), None)

    source = WithRandomFeatures(Far(np.zeros((5, 1))), 4, 0)
    x = next(iter(source.blocks())).x[:, 1:]
    assert len(np.unique(x)) == 20


def correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    return float(np.asarray(np.corrcoef(left.ravel(), right.ravel()))[0, 1])


def test_draws_are_uniform_and_independent() -> None:
    x = drawn(4000, 25, seed=1).astype(np.float64)
    assert x.min() >= 0.0 and x.max() < 1.0
    n = x.size
    assert x.mean() == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / n))
    assert x.var() == pytest.approx(1 / 12, abs=4 * np.sqrt(1 / 180 / n))
    counts = np.bincount((x.ravel() * 64).astype(int), minlength=64)
    chi_squared = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert abs(chi_squared - 63) < 5 * np.sqrt(2 * 63)
    # Between features, between rows that follow each other, and between seeds.
    between = np.asarray(np.corrcoef(x, rowvar=False))[~np.eye(25, dtype=bool)]
    assert np.abs(between).max() < 5 / np.sqrt(4000)
    assert abs(correlation(x[1:], x[:-1])) < 4 / np.sqrt(n)
    other = drawn(4000, 25, seed=2).astype(np.float64)
    assert abs(correlation(x, other)) < 4 / np.sqrt(n)


def test_the_sources_own_columns_and_labels_stay(tmp_path: Path) -> None:
    path = sgemm(tmp_path / "s.csv", 50)
    own = open_source([path], "sgemm")
    rows, x, y = read(own)
    source = WithRandomFeatures(open_source([path], "sgemm"), 1500, 3)
    found_rows, found, labels = read(source)
    assert source.feature_names[:14] == own.feature_names and len(source.feature_names) == 1514
    assert source.feature_names[14] == "random_0" and source.feature_names[-1] == "random_1499"
    np.testing.assert_array_equal(found_rows, rows)
    np.testing.assert_array_equal(found[:, :14], x)
    assert y is not None and labels is not None
    np.testing.assert_array_equal(labels, y)
    assert source.provenance["random_features"] == 1500 and source.provenance["random_seed"] == 3
    assert source.provenance["random_law"] == "uniform on [0, 1)"


@pytest.mark.parametrize(
    ("count", "seed", "words"),
    [
        (0, 0, "0 random features; a number from 1 to 1,048,576 is needed"),
        (-1, 0, "-1 random features"),
        (1 << 21, 0, "2097152 random features"),
        (5, -1, "seed is -1, but must be at least 0"),
    ],
)
def test_what_cannot_be_made(count: int, seed: int, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        WithRandomFeatures(GivenRows(np.zeros((3, 1))), count, seed)


def test_names_that_are_taken(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,random_1\n1,2\n")
    with pytest.raises(BadInputError, match="named like the columns 'random_1'; rename"):
        WithRandomFeatures(open_source([path], "csv"), 2, 0)
    assert read(WithRandomFeatures(open_source([path], "csv"), 1, 0))[1].shape == (1, 3)


def test_blocks_and_memory_are_bounded(tmp_path: Path) -> None:
    """One block of text holds rows whose widened features would take 48 MB."""
    source = WithRandomFeatures(open_source([sgemm(tmp_path / "s.csv", 8000)], "sgemm"), 1500, 0)
    tracemalloc.start()
    count = 0
    for block in source.blocks():
        assert block.x.nbytes <= 8 << 20 and block.x.shape[1] == 1514
        count += len(block.rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 8000 and source.progress == 1.0
    assert peak < 32 << 20


def test_cells_of_the_papers_size_stay_small() -> None:
    rows, features = 241_600, 1514
    cells = choose_cells(rows, features)
    mean = rows / cells
    assert (mean + 8 * np.sqrt(mean)) * features * 4 < MAX_CELL_BYTES


def test_sgemm_extended_by_command(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    path = sgemm(tmp_path / "s.csv", 3000)
    given = ["--format", "sgemm", "--random-features", 1500, "--seed", 7]
    made = cli("data", "import", "s", path, *given)
    assert (made["rows"], made["features"], made["label"]) == (3000, 1514, "log_mean_run_ms")
    assert made["capacity"] * made["features"] * 4 < MAX_CELL_BYTES
    assert cli("data", "show", "s")["source"]["random_seed"] == 7
    data = DataSet.open(tmp_path / "ws" / "data" / "s.zarr")
    x = WithRandomFeatures(open_source([path], "sgemm"), 1500, 7)
    whole = read(x)[1]
    for cell in (0, data.cells - 1):
        live = data.read_units(cell)[data.read_units(cell) >= 0]
        assert len(live)
        np.testing.assert_array_equal(data.read_cell(cell)[: len(live)], whole[live])
    trained = cli("train", "m", "--data", "s", "--algorithm", "linear", "-p", "iterations=20",
                  "-p", "batch_size=200", "-p", "provenance=none", *INLINE)  # fmt: skip
    assert trained["parameters"] == 1515
    refused = cli("data", "import", "t", path, "--format", "sgemm", "--random-features", 0, code=2)
    assert "0 random features" in refused
    assert [row["name"] for row in cli("data", "list")["data_sets"]] == ["s"]
