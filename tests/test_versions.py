"""Model versions chunk by chunk: round trips, damage, sharing with a parent, crashes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from expunge.storage import chunks, files, space, versions
from expunge.storage.errors import (
    BadInputError,
    CorruptError,
    ExistsError,
    MissingError,
    NoSpaceError,
)
from expunge.storage.schema import ArraySpec

Arrays = dict[str, np.ndarray]

VALUES: Arrays = {
    "provenance": np.arange(35, dtype=np.float64).reshape(7, 5) / 8,
    "labels": np.arange(9, dtype=np.uint8),
    "one": np.array([0.25], np.float32),
    "flags": np.array([True, False, True]),
    "none": np.empty((0, 4), np.int64),
    "scalar": np.array(7, np.int64),
}
"""Edge chunks in one and two dimensions, single values, and an array without chunks."""
SPECS = {
    "provenance": ArraySpec(("step", "feature"), (7, 5), np.dtype(np.float64), (3, 2)),
    "labels": ArraySpec(("row",), (9,), np.dtype(np.uint8), (4,)),
    "one": ArraySpec(("value",), (1,), np.dtype(np.float32), (1,)),
    "flags": ArraySpec(("flag",), (3,), np.dtype(np.bool_), (2,), False),
    "none": ArraySpec(("dropped", "limb"), (0, 4), np.dtype(np.int64), (2, 3), -1),
    "scalar": ArraySpec((), (), np.dtype(np.int64), ()),
}


def fill(path: Path, specs: Mapping[str, ArraySpec], values: Arrays) -> dict[str, Any]:
    """Write every chunk; return the digests."""
    return {
        name: {
            index: chunks.write_chunk(
                path, name, spec, index, np.asarray(values[name][chunks.chunk_slices(spec, index)])
            )
            for index in chunks.chunk_indices(spec)
        }
        for name, spec in specs.items()
    }


def build(path: Path, specs: Mapping[str, ArraySpec] = SPECS, values: Arrays = VALUES) -> str:
    versions.create_version(path, specs, {"model": "m"})
    return versions.seal_version(path, specs, fill(path, specs, values))


def data_files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("c*") if p.is_file())


def flip(file: Path, byte: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[byte] ^= 1
    file.write_bytes(data)


def test_chunked_arrays_come_back_and_any_zarr_tool_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "v1.zarr"
    found = build(path)
    version = pickle.loads(pickle.dumps(versions.open_version(path, found)))
    assert version.specs == SPECS and version.attrs["model"] == "m"
    assert version.attrs["digest"] == found and version.attrs["schema_version"] == 1
    opened, group = xr.open_zarr(path), zarr.open_group(path, mode="r")
    for name, values in VALUES.items():
        for read in (version.read(name), opened[name].values, group[name][...]):  # type: ignore[index]
            np.testing.assert_array_equal(np.asarray(read), values, strict=True)
    assert opened["provenance"].dims == ("step", "feature")
    assert opened["digests"].shape == (9 + 3 + 1 + 2 + 1, 32)
    assert version.chunk("provenance", (2, 2)).tolist() == [[VALUES["provenance"][6, 4]]]
    assert version.chunk("labels", (2,)).flags.c_contiguous
    versions.check_version(version)
    assert versions.load_version(path, found)[0].keys() == VALUES.keys()
    assert not list(tmp_path.rglob("*.partial"))


def test_one_reader_opens_the_metadata_and_only_the_chunks_it_asks_for(tmp_path: Path) -> None:
    found = build(tmp_path / "v1.zarr")
    with files.metered() as meter:
        version = versions.open_version(tmp_path / "v1.zarr", found)
    assert (meter.files, meter.bytes_read) == (1, 16 * 32)
    with files.metered() as meter:
        version.chunk("provenance", (0, 1))
    assert (meter.files, meter.bytes_read) == (1, 3 * 2 * 8)


def test_a_whole_array_is_an_array_of_one_chunk(tmp_path: Path) -> None:
    named = {n: versions.NamedArray(SPECS[n].dims, a) for n, a in VALUES.items()}
    found = versions.write_version(tmp_path / "v1.zarr", named, {})
    assert found == versions.digest(VALUES)
    stored, attrs = versions.read_version(tmp_path / "v1.zarr")
    assert stored.keys() == VALUES.keys() and attrs["digest"] == found
    assert found == versions.digest(stored)
    specs = versions.open_version(tmp_path / "v1.zarr", found).specs
    assert found == build(tmp_path / "v2.zarr", specs)
    assert found != build(tmp_path / "v3.zarr")


def test_the_digest_tells_names_types_and_shapes_apart() -> None:
    x = np.zeros(4, np.int64)
    others: list[Arrays] = [
        {"a": x.reshape(2, 2)},
        {"a": x.astype(float)},
        {"b": x},
        {"a": x, "b": x},
        {},
    ]
    others += [{"a": x[:0]}, {"a": np.empty((0, 2), np.int64)}, {"a": np.empty((2, 0), np.int64)}]
    assert len({versions.digest(o) for o in [{"a": x}, *others]}) == len(others) + 1


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_to_any_chunk_is_found(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "v1.zarr"
    found = build(path)
    for file in data_files(path):
        before = file.read_bytes()
        if damage == "flip":
            flip(file, len(before) - 1)
        elif damage == "truncate":
            file.write_bytes(before[:-1])
        else:
            file.unlink()
        with pytest.raises(MissingError if damage == "remove" else CorruptError):
            versions.check_version(versions.open_version(path, found))
        with pytest.raises(MissingError if damage == "remove" else CorruptError):
            versions.load_version(path, found)
        file.write_bytes(before)
    versions.check_version(versions.open_version(path, found))


@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("provenance", {"shape": [5, 7]}),
        ("provenance", {"shape": [7, 10**15]}),
        ("provenance", {"data_type": "int64"}),
        ("one", {"shape": [0]}),
        ("none", {"shape": [0, 5]}),
        ("digests", {"shape": [3, 32]}),
    ],
)
def test_changed_metadata_is_found(tmp_path: Path, array: str, change: dict[str, Any]) -> None:
    path = tmp_path / "v1.zarr"
    found = build(path)
    root = json.loads((path / "zarr.json").read_text())
    root["consolidated_metadata"]["metadata"][array].update(change)
    (path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(CorruptError, match="copies"):
        versions.open_version(path, found)
    own = path / array / "zarr.json"
    own.write_text(json.dumps({**json.loads(own.read_text()), **change}))
    with pytest.raises(CorruptError, match="digests?"):
        versions.open_version(path, found)


def test_changed_names_of_dimensions_are_found_in_either_copy(tmp_path: Path) -> None:
    path = tmp_path / "v1.zarr"
    found = build(path)
    for file in (path / "zarr.json", path / "provenance" / "zarr.json"):
        before = file.read_text()
        file.write_text(before.replace('"feature"', '"festure"'))
        with pytest.raises(CorruptError, match="provenance"):
            versions.open_version(path, found)
        file.write_text(before)


def test_what_can_not_be_sealed(tmp_path: Path) -> None:
    path = tmp_path / "v1.zarr"
    versions.create_version(path, SPECS, {})
    digests = fill(path, SPECS, VALUES)
    with pytest.raises(BadInputError, match="3 chunks of labels"):
        versions.seal_version(path, SPECS, {**digests, "labels": {(0,): digests["labels"][0,]}})
    with pytest.raises(BadInputError, match="stranger"):
        versions.seal_version(path, SPECS, {**digests, "stranger": {}})
    with pytest.raises(BadInputError, match="other arrays"):
        fewer = {n: s for n, s in SPECS.items() if n != "one"}
        versions.seal_version(path, fewer, {n: digests[n] for n in fewer})
    chunk = path / "labels" / "c.2"
    chunk.write_bytes(b"\1")
    with pytest.raises(CorruptError, match="1 bytes found"):
        versions.seal_version(path, SPECS, digests)
    chunk.unlink()
    assert not chunks.has_chunk(path, "labels", (2,)) and chunks.has_chunk(path, "labels", (1,))
    with pytest.raises(MissingError, match=r"c\.2"):
        versions.seal_version(path, SPECS, digests)
    with pytest.raises(MissingError, match="digests"):
        versions.open_version(path, "0" * 64)


def test_bad_calls_are_refused(tmp_path: Path) -> None:
    path, spec = tmp_path / "v1.zarr", SPECS["labels"]
    found = build(path)
    with pytest.raises(ExistsError):
        versions.create_version(path, SPECS, {})
    with pytest.raises(BadInputError, match="digests"):
        versions.create_version(tmp_path / "v2.zarr", {"digests": spec}, {})
    for index, values in [((3,), 1), ((-1,), 4), ((0, 0), 4), ((2,), 4), ((0,), 1)]:
        with pytest.raises(BadInputError, match="chunk"):
            chunks.write_chunk(path, "labels", spec, index, np.zeros(values, np.uint8))
    with pytest.raises(BadInputError, match="int64"):
        chunks.write_chunk(path, "labels", spec, (0,), np.zeros(4, np.int64))
    version = versions.open_version(path, found)
    with pytest.raises(BadInputError, match="grid"):
        version.chunk("labels", (3,))
    with pytest.raises(MissingError, match="no array margins"):
        version.read("margins")


def test_a_child_shares_chunks_and_survives_its_parents_sweep(tmp_path: Path) -> None:
    old, new, spec = tmp_path / "v1.zarr", tmp_path / "v2.zarr", SPECS["provenance"]
    parent = versions.open_version(old, build(old))
    versions.create_version(new, SPECS, {}, needed=6 * 8)
    for name, indices in parent.digests.items():
        for index in indices:
            chunks.link_chunk(old, new, name, index)
            chunks.link_chunk(old, new, name, index)
    changed = chunks.write_chunk(new, "provenance", spec, (1, 0), np.full((3, 2), 9.0))
    digests = {**parent.digests, "provenance": {**parent.digests["provenance"], (1, 0): changed}}
    found = versions.seal_version(new, SPECS, digests)
    assert not list(new.rglob("*.partial"))
    assert (old / "labels" / "c.0").samefile(new / "labels" / "c.0")
    versions.check_version(parent)
    keep = os.open(old / "provenance" / "c.1.0", os.O_RDONLY)
    files.sweep(old)
    assert os.pread(keep, 48, 0) == bytes(48)
    os.close(keep)
    version = versions.open_version(new, found)
    versions.check_version(version)
    expected = VALUES["provenance"].copy()
    expected[3:6, :2] = 9
    np.testing.assert_array_equal(version.read("provenance"), expected)


def test_a_store_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build(tmp_path / "v1.zarr")
    versions.create_version(tmp_path / "v2.zarr", SPECS, {})

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    parent = versions.open_version(tmp_path / "v1.zarr", found)
    for name, indices in parent.digests.items():
        for index in indices:
            chunks.link_chunk(parent.path, tmp_path / "v2.zarr", name, index)
    assert versions.seal_version(tmp_path / "v2.zarr", SPECS, parent.digests) == found
    assert all(p.stat().st_nlink == 1 for p in data_files(tmp_path / "v2.zarr"))


def test_linking_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    build(tmp_path / "v1.zarr")
    (tmp_path / "v1.zarr" / "one" / "c.0").unlink()
    versions.create_version(tmp_path / "v2.zarr", SPECS, {})
    with pytest.raises(MissingError, match=r"c\.0"):
        chunks.link_chunk(tmp_path / "v1.zarr", tmp_path / "v2.zarr", "one", (0,))


def test_a_chunk_of_before_a_crash_is_taken_over_and_leftovers_go(tmp_path: Path) -> None:
    path, spec = tmp_path / "v1.zarr", SPECS["labels"]
    versions.create_version(path, SPECS, {})
    digests = fill(path, SPECS, VALUES)
    left = [path / "labels" / "c.0.ab.partial", path / "zarr.json.ab.partial"]
    for file in left:
        file.write_bytes(b"half")
    found = {i: chunks.hash_chunk(path, "labels", spec, i) for i in chunks.chunk_indices(spec)}
    assert found == digests["labels"]
    first = versions.seal_version(path, SPECS, digests)
    assert not any(file.exists() for file in left)
    assert versions.seal_version(path, SPECS, digests) == first


def test_the_same_chunk_again_leaves_the_parents_file_alone(tmp_path: Path) -> None:
    file, twin = tmp_path / "c.0", tmp_path / "twin"
    files.write_whole(file, b"old")
    os.link(file, twin)
    files.write_whole(file, np.frombuffer(b"new", np.uint8))
    assert file.read_bytes() == b"new" and twin.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.0", "twin"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_whole(tmp_path / "c.0", b"old")

    def full(*_: object) -> int:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpaceError, match="too full"):
        files.write_whole(tmp_path / "c.0", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["c.0"]
    assert (tmp_path / "c.0").read_bytes() == b"old"


def test_a_version_that_will_not_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda _: 40_000_000)
    big = {"x": ArraySpec(("row",), (10_000_000,), np.dtype(np.float64), (1_000_000,))}
    with pytest.raises(NoSpaceError, match=f"model version {tmp_path.name}/v1"):
        versions.create_version(tmp_path / "v1.zarr", big, {})
    assert not list(tmp_path.iterdir())
    versions.create_version(tmp_path / "v1.zarr", big, {}, needed=8_000_000)


def test_a_creation_that_was_killed_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v1.zarr"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "sync_tree", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        versions.create_version(path, SPECS, {})
    assert not path.exists() and (tmp_path / "v1.zarr.partial").exists()
    versions.open_version(path, build(path))


def test_a_late_writers_file_is_never_zeroed_under_its_real_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    partial, real = tmp_path / "a" / "c.0.ab.partial", tmp_path / "a" / "c.0"
    partial.write_bytes(b"late")
    unlink = os.unlink

    def renamed_just_before(path: Path) -> None:
        partial.rename(real)
        unlink(path)

    monkeypatch.setattr(os, "unlink", renamed_just_before)
    files.sweep_partials(tmp_path)
    assert real.read_bytes() == b"late"


def test_leftover_links_to_a_parents_chunk_go_and_the_chunk_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    real, partial = tmp_path / "c.0", tmp_path / "a" / "c.0.ab.partial"
    real.write_bytes(b"kept")
    os.link(real, partial)
    files.sweep_partials(tmp_path)
    assert real.read_bytes() == b"kept" and not partial.exists()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from expunge.storage import files
data = np.full(4_000_000, 7, np.uint8)
print("ready", flush=True)
for i in range(10**6):
    files.write_whole(Path(sys.argv[1]) / f"c.{i % 3}", data)
"""


def test_a_killed_writer_leaves_no_half_file_under_a_real_name(tmp_path: Path) -> None:
    half = 0
    for attempt in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(0.02 + 0.007 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        for file in tmp_path.iterdir():
            if file.name.endswith(".partial"):
                half += 1
            else:
                assert file.read_bytes() == bytes([7]) * 4_000_000
        files.sweep_partials(tmp_path)
        assert {p.name for p in tmp_path.iterdir()} <= {"c.0", "c.1", "c.2"}
    assert half, "no kill fell into a write: the test saw nothing"


@st.composite
def chunked(draw: st.DrawFn) -> tuple[ArraySpec, np.ndarray]:
    """An array of up to three dimensions with any chunks."""
    shape = draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    dtype = draw(st.sampled_from(["?", "u1", "i4", "i8", "f4", "f8"]))
    values = draw(arrays(np.dtype(dtype), shape))
    chunk = tuple(draw(st.integers(1, 6)) for _ in shape)
    return ArraySpec((), shape, values.dtype, chunk), values


@settings(max_examples=40, deadline=None)
@given(st.lists(chunked(), max_size=3))
def test_any_arrays_in_any_chunks_come_back(found: list[tuple[ArraySpec, np.ndarray]]) -> None:
    specs = {
        f"a{i}": replace(spec, dims=tuple(f"a{i}.{j}" for j in range(len(spec.shape))))
        for i, (spec, _) in enumerate(found)
    }
    values = {f"a{i}": array for i, (_, array) in enumerate(found)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v1.zarr"
        version = versions.open_version(path, build(path, specs, values))
        versions.check_version(version)
        opened = xr.open_zarr(path, decode_times=False)
        for name, array in values.items():
            np.testing.assert_array_equal(version.read(name), array, strict=True)
            assert version.read(name).tobytes() == array.tobytes()
            np.testing.assert_array_equal(opened[name].values, array)
