"""The files of published data sets, as their users get them: columns, labels and damage."""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reading import complaint, read, write
from support import Cli

from expunge.jobs.cli import run
from expunge.storage import idx, importers
from expunge.storage.errors import BadInputError, MissingError
from expunge.storage.importers import open_features, open_source

RUNS = [f"Run{i} (ms)" for i in range(1, 5)]
SGEMM = "MWG,NWG,KWG,MDIMC,NDIMC,MDIMA,NDIMB,KWI,VWM,VWN,STRM,STRN,SA,SB," + ",".join(RUNS) + "\n"


def higgs_line(label: str = "1", value: str = "0.5", columns: int = 29) -> str:
    return ",".join([label, *[value] * (columns - 1)]) + "\n"


def sgemm_line(*runs: object) -> str:
    return ",".join([*map(str, range(14)), *map(str, runs)]) + "\n"


def zipped(path: Path, members: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def idx_bytes(values: NDArray[Any]) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


# ---- higgs and covtype


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
    assert "has no column for --one-hot" in complaint(higgs, "higgs", one_hot=["m_bb"])
    titled = write(tmp_path / "t.csv", "class" + higgs_line("") + higgs_line())
    assert "line 1, column 'label': 'class' is not a number" in complaint(titled, "higgs")


@pytest.mark.parametrize(
    ("name", "format", "label_first"),
    [("HIGGS_7000.csv.gz", "higgs", True), ("covtype_kaggle_15120.data.gz", "covtype", False)],
)
def test_real_files_equal_numpys_reading(
    real_data: Path, name: str, format: str, label_first: bool
) -> None:
    path = real_data / name
    source = open_source([path], format)
    rows, x, y = read(source)
    with gzip.open(path, "rt") as text:
        table = np.loadtxt(text, delimiter=",", max_rows=1000)
    label, features = (0, slice(1, None)) if label_first else (-1, slice(0, -1))
    assert rows.tolist() == list(range(int(name.split("_")[-1].split(".")[0])))
    np.testing.assert_array_equal(x[:1000], table[:, features].astype(np.float32))
    assert y is not None
    np.testing.assert_array_equal(y[:1000], table[:, label])


def test_features_of_higgs_with_and_without_label(tmp_path: Path) -> None:
    names = open_source([write(tmp_path / "h.csv", higgs_line("x"))], "higgs").feature_names[2:]
    values = ",".join(str(i) for i in range(28))
    for text in (f"9,{values}\n", f"{values}\n", f"{','.join(names)}\n{values[4:]}\n"):
        _, x, _ = read(open_features([write(tmp_path / "x.csv", text)], "higgs", names))
        assert x.tolist() == [list(range(2, 28))]
    short = write(tmp_path / "short.csv", "1,2\n")
    with pytest.raises(BadInputError, match=r"2 columns found, .* 29 \(or 28 without the label\)"):
        open_features([short], "higgs", names)


# ---- sgemm


def test_sgemms_label_is_the_mean_run_or_its_logarithm(tmp_path: Path) -> None:
    text = SGEMM + sgemm_line(1, 2, 3, 4) + sgemm_line(0.5, 0.5, 0.5, 0.5)
    plain = write(tmp_path / "sgemm.csv", text)
    packed = write(tmp_path / "sgemm.csv.gz", gzip.compress(text.encode()))
    folder: dict[str, str | bytes] = {
        "sgemm/Readme.txt": "1,2\n",
        "sgemm/sgemm.csv": text,
        "sgemm/__MACOSX/._sgemm.csv": b"\0\5\x16\7",
        "sgemm/.hidden.csv": "no",
    }
    archive = zipped(tmp_path / "sgemm.zip", folder)
    for path in (plain, packed, archive):
        source = open_source([path], "sgemm")
        assert source.feature_names == tuple(SGEMM.split(",")[:14])
        assert source.label_name == "log_mean_run_ms" == source.provenance["label"]
        rows, x, y = read(source)
        assert rows.tolist() == [0, 1] and x.tolist() == [list(range(14))] * 2
        assert y is not None and y.tolist() == [math.log(2.5), math.log(0.5)]
        source = open_source([path], "sgemm", label="mean_run_ms", drop=["SB", "MWG"])
        _, x, y = read(source)
        assert source.label_name == "mean_run_ms" == source.provenance["label"]
        assert y is not None and y.tolist() == [2.5, 0.5] and x.tolist() == [list(range(1, 13))] * 2


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((1, 2, 0, 4), "line 3, column 'Run3 (ms)': 0 is not above zero; correct it or skip such"),
        ((1, -2, 0, 4), "line 3, column 'Run2 (ms)': -2 is not above zero"),
        ((1, 2, 3, "nan"), "line 3, column 'Run4 (ms)': nan is not finite"),
        (("x", 2, 3, 0), "line 3, column 'Run1 (ms)': 'x' is not a number"),
        ((1, 2, 3), "line 3: 17 columns found, 18 expected"),
    ],
)
@pytest.mark.parametrize("label", [None, "mean_run_ms"])
def test_sgemms_runs_must_be_positive(
    tmp_path: Path, runs: tuple[object, ...], words: str, label: str | None
) -> None:
    text = SGEMM + sgemm_line(1, 1, 1, 1) + sgemm_line(*runs) + sgemm_line(2, 2, 2, 2)
    path = zipped(tmp_path / "s.zip", {"s.csv": text})
    assert complaint(path, "sgemm", label=label).startswith(f"{path}, {words}")
    source = open_source([path], "sgemm", label=label, drop_invalid=True)
    assert read(source)[0].tolist() == [0, 2] and source.dropped == 1


def test_sgemms_runs_are_no_features(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", SGEMM + sgemm_line(1, 1, 1, 1))
    assert "the labels of sgemm are 'log_mean_run_ms', 'mean_run_ms', not 'SA'; leave" in complaint(
        path, "sgemm", label="SA"
    )
    assert "'Run1 (ms)' is the label and cannot be dropped" in complaint(
        path, "sgemm", drop=["Run1 (ms)"]
    )
    assert "has no column for --subject" in complaint(path, "sgemm", subject="SA", salt=bytes(16))
    bare = write(tmp_path / "b.csv", sgemm_line(1, 1, 1, 1))
    message = complaint(bare, "sgemm")
    assert "line 1: other columns than format sgemm has, which are 'MWG', " in message
    assert "--format csv" in message


def test_features_of_sgemm_with_and_without_runs(tmp_path: Path) -> None:
    names = SGEMM.split(",")[:14][::-1]
    values = ",".join(map(str, range(14)))
    for text in (SGEMM + sgemm_line("", "x", 0, 1), f"{values},,,,\n", f"{values}\n"):
        path = zipped(tmp_path / "s.zip", {"s.csv": text})
        _, x, _ = read(open_features([path], "sgemm", names))
        assert x.tolist() == [list(range(13, -1, -1))]
    short = write(tmp_path / "short.csv", "1,2\n")
    with pytest.raises(BadInputError, match=r"2 columns found, .* 18 \(or 14 without the label\)"):
        open_features([short], "sgemm", names)


def test_the_real_sgemm_zip(real_data: Path) -> None:
    source = open_source([real_data / "sgemm_product_dataset.zip"], "sgemm")
    shares, labels, count = [], [], 0
    for block in source.blocks():
        assert block.y is not None
        labels.append(block.y)
        count += len(block.x)
        shares.append(source.progress)
    y = np.concatenate(labels)
    assert count == 241_600 and len(source.feature_names) == 14
    assert shares == sorted(shares) and 0 < shares[0] < 1 and source.progress == 1.0
    assert y[0] == pytest.approx(math.log((115.26 + 115.87 + 118.55 + 115.8) / 4), rel=1e-14)
    assert y.mean() == pytest.approx(4.623068, abs=1e-5)
    assert y.std() == pytest.approx(1.128528, abs=1e-5)


# ---- zips


def test_zips_that_cannot_be_read(tmp_path: Path) -> None:
    def told(members: Mapping[str, str | bytes]) -> str:
        return complaint(zipped(tmp_path / "x.zip", members))

    assert "its csv files are: none; unpack it and name" in told({"a.txt": "a,b\n1,2\n"})
    assert "its csv files are: none" in told({})
    assert "its csv files are: 'a.csv', 'd/b.CSV'" in told({"a.csv": "a\n1\n", "d/b.CSV": "a\n1\n"})
    text = "a,b\n" + "".join(f"{i},{i * i}\n" for i in range(20_000))
    path = zipped(tmp_path / "x.zip", {"x.csv": text})
    whole = path.read_bytes()
    assert f"{path}: damaged zip" in complaint(write(path, whole[: len(whole) // 2]))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    assert complaint(write(path, bytes(flipped))).startswith(f"{path}")
    locked = bytearray(whole)
    locked[whole.rindex(b"PK\1\2") + 8] |= 1
    assert f"{path}: encrypted; unpack it first" in complaint(write(path, bytes(locked)))
    foreign = bytearray(whole)
    foreign[whole.rindex(b"PK\1\2") + 10] = foreign[8] = 99
    assert "packed in a way that is not known" in complaint(write(path, bytes(foreign)))


def test_any_csv_may_come_in_a_zip_and_several_zips_go_on_counting(tmp_path: Path) -> None:
    one = zipped(tmp_path / "1.zip", {"a.csv": "a,b\n1,2\n3,4\n", "z.bin": b"\0" * 5000})
    two = zipped(tmp_path / "2.zip", {"a.csv": "a,b\n5,6\n"})
    rows, x, _ = read(open_source([one, two], "csv"))
    assert rows.tolist() == [0, 1, 2] and x.tolist() == [[1, 2], [3, 4], [5, 6]]


# ---- heartbeat


def test_heartbeat_checks_columns_and_labels(tmp_path: Path) -> None:
    beat = ",".join(["9.779411554336547852e-01"] * 187)
    path = write(tmp_path / "h.csv", f"{beat},4.000000000000000000e+00\n{beat},5.0e+00\n")
    assert "line 2, column 'class': 5.0e+00 is none of the labels 0, 1, 2, 3, 4;" in complaint(
        path, "heartbeat"
    )
    assert "format heartbeat has 188" in complaint(write(tmp_path / "s.csv", "1,2\n"), "heartbeat")
    bare = write(tmp_path / "b.csv", f"{beat}\n")
    _, x, _ = read(open_features([bare], "heartbeat", ["sample_3", "sample_0"]))
    assert x.tolist() == [[np.float32(0.9779411554336548)] * 2]


def test_real_beats_in_kaggles_layout(tmp_path: Path, real_data: Path) -> None:
    with np.load(real_data / "heartbeat_109441.npz") as arrays:
        x, y = arrays["X"][::100].astype(np.float32), arrays["y"][::100]
    paths = [tmp_path / "mitbih_train.csv", tmp_path / "mitbih_test.csv.gz"]
    table = np.column_stack([x, y])
    for path, part in zip(paths, (table[:900], table[900:]), strict=True):
        np.savetxt(path, part, fmt="%.18e", delimiter=",")
    source = open_source(paths, "heartbeat")
    assert source.label_name == "class" and source.feature_names[186] == "sample_186"
    rows, found, labels = read(source)
    assert rows.tolist() == list(range(1095)) and labels is not None
    np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(labels, y)


# ---- mnist


def images(count: int, height: int = 2, width: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width), np.uint8)


def test_images_and_labels_in_any_order_and_in_small_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "PIECE_BYTES", 60)
    first, second = images(7), images(4, seed=1)
    one = write(tmp_path / "i1", idx_bytes(first))
    two = write(tmp_path / "i2.gz", gzip.compress(idx_bytes(second)))
    ones = write(tmp_path / "l1.gz", gzip.compress(idx_bytes(np.arange(7))))
    twos = write(tmp_path / "l2", idx_bytes(np.arange(4)))
    expected = np.concatenate([first, second]).reshape(11, 6).astype(np.float32) / np.float32(255)
    for files in ([one, two, ones, twos], [ones, one, twos, two], [twos, two, ones, one]):
        source = open_source(files, "mnist")
        assert source.feature_names == tuple(f"pixel_{i}" for i in range(6))
        assert source.label_name == "label" and source.expected_rows == 11
        assert source.provenance["pixels"] == "divided by 255"
        order = np.arange(11) if files[0] != twos else np.r_[7:11, 0:7]
        for _ in range(2):
            assert next(iter(source.blocks())).rows.tolist() == [0, 1]
            rows, x, y = read(source)
            assert rows.tolist() == list(range(11)) and y is not None
            np.testing.assert_array_equal(x, expected[order])
            assert y.tolist() == np.r_[0:7, 0:4][order].tolist()
    source = open_source([one, ones], "mnist", drop=["pixel_0", "pixel_4"])
    np.testing.assert_array_equal(read(source)[1], expected[:7, [1, 2, 3, 5]])
    # Images alone, with features in the order asked for, whatever format is said.
    for format in ("mnist", "csv"):
        alone = open_features([two, one], format, ["pixel_5", "pixel_0"])
        _, x, y = read(alone)
        assert y is None
        np.testing.assert_array_equal(x, expected[np.r_[7:11, 0:7]][:, [5, 0]])
    table = write(tmp_path / "t.csv", "pixel_5,pixel_0\n0.5,1\n")
    assert read(open_features([table], "mnist", ["pixel_0", "pixel_5"]))[1].tolist() == [[1, 0.5]]


def test_idx_files_that_do_not_fit_together(tmp_path: Path) -> None:
    image = write(tmp_path / "i", idx_bytes(images(3)))
    other = write(tmp_path / "o", idx_bytes(images(3, 3, 2)))
    label = write(tmp_path / "l", idx_bytes(np.arange(3)))
    few = write(tmp_path / "f", idx_bytes(np.arange(2)))
    for match, files, options in [
        ("1 idx files of images and 0 of labels", [image], {}),
        ("1 idx files of images and 2 of labels", [label, image, few], {}),
        (r"i: 3 images, but .*f has 2 labels", [few, image], {}),
        (
            r"o: images of 3 x 2 pixels, but those of .*i have 2 x 3;",
            [image, other, *[label] * 2],
            {},
        ),
        ("the label of mnist is 'label', not 'digit'", [image, label], {"label": "digit"}),
        ("has no column for --one-hot; leave it out$", [image, label], {"one_hot": ["pixel_0"]}),
        ("no column 'pixel_6'", [image, label], {"drop": ["pixel_6"]}),
    ]:
        with pytest.raises(BadInputError, match=match):
            open_source(files, "mnist", **options)  # type: ignore[arg-type]  # one option each
    with pytest.raises(MissingError, match="none: no such file"):
        open_source([tmp_path / "none", label], "mnist")
    with pytest.raises(BadInputError, match="l: holds labels; give the file of images alone"):
        open_features([label], "mnist", ["pixel_0"])
    with pytest.raises(BadInputError, match="i: columns missing: 'pixel_6'; give images of the si"):
        open_features([image], "mnist", ["pixel_0", "pixel_6"])
    assert "an idx file; say --format mnist" in complaint(image)


def test_damaged_idx_files(tmp_path: Path) -> None:
    whole = idx_bytes(images(5))
    label = write(tmp_path / "l", idx_bytes(np.arange(5)))

    def told(content: bytes, labels: Path = label) -> str:
        with pytest.raises(BadInputError) as caught:
            read(open_source([write(tmp_path / "i", content), labels], "mnist"))
        return str(caught.value)

    assert "magic number 0x00000d03 found, 0x00000803 or 0x00000801 expected" in told(
        b"\0\0\x0d\3" + whole[4:]
    )
    assert "the file is empty" in told(b"")
    assert "ends within its header" in told(whole[:9])
    assert "the file has no rows" in told(idx_bytes(images(0)))
    assert "more than 1,048,576 pixels an image" in told(b"\0\0\x08\3" + b"\0\0\xff\xff" * 3)
    assert f"{tmp_path / 'i'}: ends after 4 of 5 images; fetch" in told(whole[:-1])
    assert "goes on after the 5 images that its header tells of" in told(whole + b"\0")
    packed = gzip.compress(whole)
    assert "the gzip data ends too early" in told(packed[:-3])
    short = write(tmp_path / "s", idx_bytes(np.arange(5))[:-2])
    assert f"{short}: ends after 3 of 5 labels" in told(whole, short)


def test_the_real_mnist(real_data: Path) -> None:
    names = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    total, counts = 0.0, np.zeros(10, int)
    source = open_source([real_data / name for name in names], "mnist")
    for block in source.blocks():
        assert block.y is not None and block.x.shape[1] == 784 and block.x.nbytes <= 8 << 20
        total += float(block.x.sum(dtype=np.float64))
        counts += np.bincount(block.y.astype(int), minlength=10)
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert total / (60_000 * 784) == pytest.approx(0.1306604762738429, rel=1e-6)


# ---- the command line


def test_published_formats_are_imported_and_predicted(cli: Cli, tmp_path: Path) -> None:
    text = SGEMM + "".join(sgemm_line(i, i, i, i) for i in range(1, 40))
    cli("init", tmp_path / "ws")
    made = cli(
        "data", "import", "s", zipped(tmp_path / "s.zip", {"s.csv": text}), "--format", "sgemm"
    )
    assert (made["rows"], made["features"], made["label"]) == (39, 14, "log_mean_run_ms")
    image = write(tmp_path / "i.gz", gzip.compress(idx_bytes(images(40))))
    label = write(tmp_path / "l", idx_bytes(np.arange(40) % 10))
    made = cli("data", "import", "m", label, image, "--format", "mnist")
    assert (made["rows"], made["features"], made["label"]) == (40, 6, "label")
    cli("train", "k", "--data", "m", "--algorithm", "k-means", "-p", "n_clusters=2",
        "--cluster", "inline")  # fmt: skip
    assert cli("predict", "k", image)["rows"] == 40
    refused = cli("data", "import", "x", image, "--format", "mnist", code=2)
    assert "1 idx files of images and 0 of labels" in refused


def test_the_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "import", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(format in shown for format in importers.FORMATS)
