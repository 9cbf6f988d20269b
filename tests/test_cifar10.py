"""Batches of CIFAR-10's binary version: values, row numbers, what is refused, and real images."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from reading import assert_same, complaint, read, write
from support import INLINE, Cli

from expunge.storage import cifar10
from expunge.storage.errors import BadInputError, MissingError
from expunge.storage.importers import open_features, open_source

RECORD = 3073
NAMES = [f"{colour}_{i}" for colour in ("red", "green", "blue") for i in range(1024)]


def batch(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """(count, 3073) records with labels in turn."""
    records = np.random.default_rng(seed).integers(0, 256, (count, RECORD), np.uint8)
    records[:, 0] = np.arange(count) % 10
    return records


def expected(records: NDArray[np.uint8]) -> NDArray[np.float32]:
    return records[:, 1:].astype(np.float32) / np.float32(255)


def test_batches_are_one_data_set_plain_or_packed_and_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = batch(7), batch(4, seed=1)
    paths = [
        write(tmp_path / "data_batch_1.bin", one.tobytes()),
        write(tmp_path / "data_batch_2.bin.gz", gzip.compress(two.tobytes())),
    ]
    both = np.concatenate([one, two])
    whole = read(open_source(paths, "cifar10"))
    monkeypatch.setattr(cifar10, "_ROWS", 3)
    source = open_source(paths, "cifar10")
    assert list(source.feature_names) == NAMES and source.label_name == "label"
    assert source.provenance == {
        "format": "cifar10",
        "files": "data_batch_1.bin, data_batch_2.bin.gz",
        "label": "label",
        "drop_invalid": 0,
        "pixels": "divided by 255",
    }
    for _ in range(2):
        rows, x, y = read(source)
        assert rows.tolist() == list(range(11)) and y is not None
        np.testing.assert_array_equal(x, expected(both))
        assert y.tolist() == both[:, 0].tolist()
    assert_same(whole, (rows, x, y))
    assert [len(block.rows) for block in source.blocks()] == [3, 3, 1, 3, 1]
    few = open_source(paths[:1], "cifar10", drop=["red_0", *NAMES[2:]])
    assert few.feature_names == ("red_1",)
    np.testing.assert_array_equal(read(few)[1], expected(one)[:, [1]])


def test_pieces_stay_small() -> None:
    assert cifar10._ROWS >= 1 and cifar10._ROWS * 3072 * 4 <= 8 << 20


def test_labels_above_nine_are_named_by_file_and_record(tmp_path: Path) -> None:
    good = write(tmp_path / "1.bin", batch(3).tobytes())
    records = batch(5)
    records[2, 0], records[4, 0] = 10, 255
    bad = write(tmp_path / "2.bin", records.tobytes())
    with pytest.raises(BadInputError) as caught:
        read(open_source([good, bad], "cifar10"))
    assert str(caught.value).startswith(
        f"{bad}, record 2 (counted from 0): label 10 found, 0 to 9 expected; fetch"
    )
    source = open_source([good, bad], "cifar10", drop_invalid=True)
    rows, x, _ = read(source)
    assert rows.tolist() == [0, 1, 2, 3, 4, 6] and source.dropped == 2
    np.testing.assert_array_equal(x[3:], expected(records[[0, 1, 3]]))


def test_files_that_are_no_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = batch(5).tobytes()

    def told(content: bytes) -> str:
        return complaint(write(tmp_path / "b.bin", content), "cifar10")

    for rows in (1, 2, 100):
        monkeypatch.setattr(cifar10, "_ROWS", rows)
        message = told(whole[:-1])
        assert message.startswith(f"{tmp_path / 'b.bin'}, record 4 (counted from 0): 3072 bytes fo")
        assert "3,073 expected" in message and "cut off" in message
        assert ", record 5 (counted from 0): 1 bytes found" in told(whole + b"\0")
        assert ", record 4 (counted from 0): 3072 bytes" in told(gzip.compress(whole[:-1]))
    assert "the gzip data ends too early" in told(gzip.compress(whole)[:-9])
    assert "the file has no rows" in told(b"")
    assert "3,072 bytes, fewer than one record" in told(whole[:3072])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = len(whole)
        archive.addfile(info, io.BytesIO(whole))
    for content in (packed.getvalue(), gzip.compress(packed.getvalue())):
        assert "a tar archive; unpack it and name the batches in it" in told(content)
    with pytest.raises(MissingError, match=r"none\.bin: no such file"):
        open_source([tmp_path / "none.bin"], "cifar10")


def test_roles_that_images_do_not_have(tmp_path: Path) -> None:
    path = write(tmp_path / "b.bin", batch(2).tobytes())
    assert "the label of cifar10 is 'label', not 'x'" in complaint(path, "cifar10", label="x")
    assert "has no column for --one-hot" in complaint(path, "cifar10", one_hot=["red_0"])
    refused = complaint(path, "cifar10", subject="red_0", salt=bytes(16))
    assert "has no column for --subject" in refused
    assert "no column 'pixel_0'" in complaint(path, "cifar10", drop=["pixel_0"])


def test_features_from_batches_and_from_tables(tmp_path: Path) -> None:
    records = batch(6)
    path = write(tmp_path / "b.bin", records.tobytes())
    wanted = ["blue_1023", "red_0", "green_5"]
    source = open_features([path, path], "cifar10", wanted)
    rows, x, y = read(source)
    assert y is None and source.label_name is None and rows.tolist() == list(range(12))
    np.testing.assert_array_equal(x, np.tile(expected(records)[:, [3071, 0, 1029]], (2, 1)))
    table = write(tmp_path / "t.csv", "red_0,green_5,blue_1023,note\n0.5,1,0.25,x\n")
    assert read(open_features([table], "cifar10", wanted))[1].tolist() == [[0.25, 0.5, 1]]
    with pytest.raises(BadInputError, match=r"b\.bin: columns missing: 'pixel_0'; the features"):
        open_features([path], "cifar10", ["pixel_0"])
    with pytest.raises(MissingError):
        open_features([tmp_path / "none.bin"], "cifar10", wanted)


def test_batches_are_imported_and_predicted(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    path = write(tmp_path / "data_batch_1.bin", batch(60).tobytes())
    other = write(tmp_path / "data_batch_2.bin", batch(60).tobytes())
    made = cli("data", "import", "c", path, other, "--format", "cifar10")
    assert (made["rows"], made["features"], made["label"]) == (120, 3072, "label")
    cli("train", "k", "--data", "c", "--algorithm", "k-means", "-p", "n_clusters=2", *INLINE)
    labels = cli("predict", "k", path)["labels"]
    assert len(labels) == 60 and set(labels) == {0, 1}
    refused = cli("data", "import", "d", write(tmp_path / "x", batch(2).tobytes()[:-2]),
                  "--format", "cifar10", code=2)  # fmt: skip
    assert f"{tmp_path / 'x'}, record 1 (counted from 0): 3071 bytes found" in refused


def test_real_images(tmp_path: Path, real_data: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow decodes the folder's images")
    stored = real_data / "cifar10_jpeg.npz"
    if not stored.exists():
        pytest.skip("cifar10_jpeg.npz is not in the folder of real data sets")
    with np.load(stored) as arrays:
        data, offsets, labels = (arrays[f"test_{what}"] for what in ("jpeg", "offsets", "labels"))
    chosen = np.arange(0, len(labels), 50)
    pixels = np.array(
        [
            np.asarray(image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())))
            for i in chosen
        ]
    )
    records = np.column_stack(
        [labels[chosen], pixels.transpose(0, 3, 1, 2).reshape(len(chosen), -1)]
    ).astype(np.uint8)
    paths = [
        write(tmp_path / f"data_batch_{i}.bin", part.tobytes())
        for i, part in enumerate(np.array_split(records, 3), 1)
    ]
    rows, x, y = read(open_source(paths, "cifar10"))
    assert rows.tolist() == list(range(200)) and y is not None
    assert np.bincount(y.astype(int)).tolist() == [20] * 10
    np.testing.assert_array_equal(
        x.reshape(200, 3, 32, 32)[7, 1], pixels[7, :, :, 1] / np.float32(255)
    )
    assert 0.3 < x.mean() < 0.6
    # Natural images: neighbours within a row and a column of one colour are alike.
    planes = x.reshape(200, 3, 32, 32)
    for axis in (2, 3):
        assert np.abs(np.diff(planes, axis=axis)).mean() < 0.4 * planes.std()
