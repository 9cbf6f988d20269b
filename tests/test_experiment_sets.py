"""The k-means paper's data sets, from tiny files in their users' layouts and from the real ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reading import write

from expunge.jobs.errors import UsageError
from expunge.jobs.experiment_sets import SETS, ExperimentSet, MissingSet, load
from expunge.storage.botnet_like import ROWS as BOTNET_ROWS
from expunge.storage.errors import BadInputError
from expunge.storage.generators import GaussianMixture

CELLTYPE = ",".join(f"pc{i}" for i in range(10)) + ",cell_type\n"


def celltype(rows: int) -> str:
    return CELLTYPE + "".join(f"{','.join([str(i / 8)] * 10)},{i % 4}\n" for i in range(rows))


def covtype(rows: int, varying: int = 54) -> str:
    """Rows of which only so many columns vary."""
    return "".join(
        ",".join([*[str(i)] * varying, *["0"] * (54 - varying), str(1 + i % 7)]) + "\n"
        for i in range(rows)
    )


def idx(values: NDArray[Any]) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


def assert_shape(found: ExperimentSet, rows: int, features: int, n_clusters: int) -> None:
    assert found.x.shape == (rows, features) and found.labels.shape == (rows,)
    assert found.x.dtype == np.float32 and found.labels.dtype == np.int32
    assert found.x.flags.c_contiguous and np.isfinite(found.x).all()
    assert found.n_clusters == n_clusters


# ---- tiny files


@pytest.mark.parametrize("name", ["celltype.csv", "celltype_12009.csv.gz"])
def test_celltype_from_a_file(tmp_path: Path, name: str) -> None:
    text = celltype(9).encode()
    write(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text)
    found = load("celltype", tmp_path)
    assert_shape(found, 9, 10, 4)
    assert found.name == "celltype" and found.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert found.x[:, 3].tolist() == [i / 8 for i in range(9)]
    assert found.note == "partial: the file has 9 rows, the paper's 12,009"


def test_rows_asked_for_are_a_fixed_choice_in_the_files_order(tmp_path: Path) -> None:
    write(tmp_path / "celltype.csv", celltype(200))
    whole, some = load("celltype", tmp_path), load("celltype", tmp_path, rows=40, seed=1)
    assert_shape(some, 40, 10, 4)
    places = (some.x[:, 0] * 8).astype(int)
    assert (np.diff(places) > 0).all() and places[0] < 30 and places[-1] > 170
    np.testing.assert_array_equal(some.x, whole.x[places])
    np.testing.assert_array_equal(some.labels, whole.labels[places])
    assert some.note.endswith("the paper's 12,009; 40 of the file's 200 rows")
    again, other = (load("celltype", tmp_path, rows=40, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(again.x, some.x)
    assert not np.array_equal(other.x, some.x)
    more = load("celltype", tmp_path, rows=500)
    assert more.note == whole.note
    np.testing.assert_array_equal(more.x, whole.x)


@pytest.mark.parametrize("name", ["celltype", "gaussian", "botnet"])
def test_any_whole_number_is_a_seed(tmp_path: Path, name: str) -> None:
    write(tmp_path / "celltype.csv", celltype(200))
    least, other = (load(name, tmp_path, rows=40, seed=seed) for seed in (-(2**63), -1))
    assert least.x.shape == other.x.shape
    assert not np.array_equal(least.x, other.x)


def test_covtype_prefers_the_papers_rows_and_drops_what_is_constant(tmp_path: Path) -> None:
    write(tmp_path / "covtype.data", covtype(30))
    found = load("covtype", tmp_path)
    assert_shape(found, 30, 54, 7)
    assert found.note == (
        "stand-in: covtype.data, whose rows are not the paper's; the file has 30 rows, "
        "the paper's 15,120; 54 features where the paper has 52"
    )
    write(tmp_path / "covtype_kaggle_15120.data.gz", gzip.compress(covtype(20, 52).encode()))
    found = load("covtype", tmp_path)
    assert_shape(found, 20, 52, 7)
    assert found.labels.tolist() == [1 + i % 7 for i in range(20)]
    assert found.note == "partial: the file has 20 rows, the paper's 15,120"
    # A subset keeps the columns of the whole, even those that do not vary in it.
    assert load("covtype", tmp_path, rows=1).x.shape == (1, 52)


def test_mnist_keeps_constant_pixels_and_needs_its_labels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28))
    pixels[:, 0] = 0
    write(tmp_path / "train-images-idx3-ubyte.gz", gzip.compress(idx(pixels)))
    with pytest.raises(MissingSet, match=r"train-images.*\.gz is in .*no file train-labels\*"):
        load("mnist", tmp_path)
    write(tmp_path / "train-labels.idx1-ubyte", idx(np.arange(12) % 10))
    found = load("mnist", tmp_path)
    assert_shape(found, 12, 784, 10)
    expected = pixels.reshape(12, 784).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(found.x, expected)
    assert found.labels.tolist() == [*range(10), 0, 1]
    assert found.note == "partial: the file has 12 rows, the paper's 60,000"


def test_postures_as_uci_gives_them(tmp_path: Path) -> None:
    names = ["Class", "User", *(f"{axis}{i}" for i in range(12) for axis in "XYZ")]
    lines = [names, ["0"] * 38]
    for i in range(20):
        markers = 4 + i % 2
        values = [*(str(i + j / 4) for j in range(3 * markers)), *["?"] * (36 - 3 * markers)]
        lines.append([str(1 + i % 5), str(i % 14), *values])
    write(tmp_path / "Postures.csv", "".join(",".join(line) + "\n" for line in lines))
    found = load("postures", tmp_path)
    assert_shape(found, 10, 15, 5)
    assert found.x[0].tolist() == [1 + j / 4 for j in range(15)]
    assert found.labels.tolist() == [1 + i % 5 for i in range(1, 20, 2)]
    assert found.note == "partial: the file has 10 rows, the paper's 74,975"


def test_other_files_of_the_right_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "celltype.csv", "a,b\n1,2\n")
    with pytest.raises(BadInputError, match=r"celltype\.csv, line 1: 2 columns found"):
        load("celltype", tmp_path)


@pytest.mark.parametrize(
    ("name", "looked_for"),
    [
        ("celltype", r"celltype\*\.csv\*"),
        ("covtype", r"covtype_kaggle_15120\.data\* or covtype\*\.data\*"),
        ("mnist", r"train-images\*idx3-ubyte\*"),
        ("postures", r"\[Pp\]ostures\*\.csv\* or \[Pp\]ostures\*\.zip"),
    ],
)
def test_a_missing_file_is_told_with_what_was_looked_for(
    tmp_path: Path, name: str, looked_for: str
) -> None:
    (tmp_path / "celltype.csv").mkdir()
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(MissingSet, match=f"data set {name}: no file {looked_for} in {folder}"):
            load(name, folder)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    known = "celltype, covtype, mnist, postures, botnet, gaussian"
    with pytest.raises(UsageError, match=f"no data set 'iris'; known: {known}"):
        load("iris", tmp_path)
    with pytest.raises(UsageError, match="rows is 0; at least 1"):
        load("gaussian", tmp_path, rows=0)


# ---- generated rows


def test_gaussian_is_the_overlapping_mixture(tmp_path: Path) -> None:
    found = load("gaussian", tmp_path / "none", seed=3)
    assert_shape(found, 100_000, 25, 5)
    assert found.note == "stand-in: a mixture drawn anew; the paper's draw is not published"
    block = GaussianMixture(100_000, 25, 5, 3, GaussianMixture.OVERLAPPING).block(1)
    np.testing.assert_array_equal(found.x[block.rows], block.x)
    assert block.y is not None
    np.testing.assert_array_equal(found.labels[block.rows], block.y)
    few = load("gaussian", tmp_path, rows=1000, seed=3)
    np.testing.assert_array_equal(few.x, found.x[:1000])
    assert few.note == f"{found.note}; 1,000 rows of 100,000"
    assert not np.array_equal(load("gaussian", tmp_path, rows=1000).x, few.x)


def test_botnet_is_a_stand_in(tmp_path: Path) -> None:
    found = load("botnet", tmp_path, rows=3000)
    assert_shape(found, 3000, 115, 11)
    assert set(found.labels.tolist()) == set(range(11))
    assert found.note == (
        "stand-in: rows generated with the shape of N-BaIoT, none of its own; "
        "3,000 rows of 1,018,298"
    )


@pytest.mark.slow
def test_botnet_is_as_large_as_the_papers(tmp_path: Path) -> None:
    found = load("botnet", tmp_path)
    assert_shape(found, BOTNET_ROWS, 115, 11)
    assert found.note.endswith("none of its own")


# ---- the real data


@pytest.mark.parametrize(
    ("name", "rows", "features", "n_clusters", "labels"),
    [
        ("celltype", 12_009, 10, 4, range(4)),
        ("covtype", 15_120, 52, 7, range(1, 8)),
        ("mnist", 60_000, 784, 10, range(10)),
        ("postures", 74_975, 15, 5, range(1, 6)),
    ],
)
def test_the_real_sets_are_complete(
    real_data: Path, name: str, rows: int, features: int, n_clusters: int, labels: range
) -> None:
    try:
        found = load(name, real_data)
    except MissingSet as missing:
        pytest.skip(str(missing))
    assert_shape(found, rows, features, n_clusters)
    assert found.note == "complete" and set(found.labels.tolist()) == set(labels)
    varying = found.x.min(axis=0) < found.x.max(axis=0)
    assert varying.all() or name == "mnist"


def test_real_covtype_of_natural_shares_is_a_stand_in(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "covtype_92962.data.gz"
    if not path.exists():
        pytest.skip("covtype_92962.data.gz is not in the folder of real data sets")
    (tmp_path / path.name).symlink_to(path)
    found = load("covtype", tmp_path, rows=500)
    assert found.note.startswith("stand-in: covtype_92962.data.gz, whose rows are not the paper's")
    assert found.note.endswith("500 of the file's 92,962 rows")


def test_every_set_is_named() -> None:
    assert set(SETS) == {"celltype", "covtype", "mnist", "postures", "botnet", "gaussian"}
