"""Labels and margins on disk that are not what was written: no wrong model comes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_stored_replay_jobs import BOUNDS, KEEP, forget, opened, overlapping, verify_all

from expunge.jobs.cli import run
from expunge.jobs.replay_store import CHECKS, FOLDER
from expunge.jobs.workspace import Workspace
from expunge.storage.blockchecks import block_checks
from expunge.storage.chunks import chunk_indices, link_chunk
from expunge.storage.schema import chunk_path
from expunge.storage.versions import create_version, seal_version

SMALL = ("credits", "drifts", "changed_places", "changed_labels", "changed_margins", "changed_ends")


@pytest.fixture
def replayed(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A workspace whose model km was replayed once; returns its path in there."""
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(overlapping(3000, 4, 5)), "--format", "csv")
    train = ("--data", "t", "--algorithm", "k-means", "-p", "n_clusters=4", "-p", "max_iter=5")
    cli("train", "km", *train, *BOUNDS, *KEEP, *INLINE)
    assert forget(cli, 17)["km"]["action"] == "replayed"
    folder: str = cli("model", "show", "km")["path"]
    return tmp_path / "ws" / folder


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def index_of(array: str) -> tuple[int, ...]:
    if array in ("labels", "margins", CHECKS):
        return (0, 3, 0)
    return {"minima": (2, 0, 0), "credits": (0, 0), "digests": (0, 0)}.get(array, (0,))


def refused(capsys: pytest.CaptureFixture[str], root: Path) -> tuple[dict[str, Any], str]:
    """Verify km, which must fail with exit 5; return what stdout and stderr have."""
    capsys.readouterr()
    assert run(["-w", str(root), "--json", "verify", "km", *INLINE]) == 5
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_verify_names_the_array(
    cli: Cli, replayed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("verify", "km", *INLINE)["intact"]
    for array in ("labels", "margins", CHECKS, "minima", "digests", *SMALL):
        path = chunk_path(replayed / FOLDER, array, *index_of(array))
        middle = path.stat().st_size // 2
        flip(path, middle)
        found, said = refused(capsys, tmp_path / "ws")
        assert found["exact"] and not found["intact"]
        assert "model km stands" in said and "digest is" in said
        assert f"/{array}/" in said or array == "digests"
        flip(path, middle)
    shutil.rmtree(replayed / FOLDER / "margins")
    assert "model km stands" in refused(capsys, tmp_path / "ws")[1]
    shutil.rmtree(replayed / FOLDER)
    assert "model km stands" in refused(capsys, tmp_path / "ws")[1]
    flip(chunk_path(replayed, "sizes", 0, 0), 0)
    found, said = refused(capsys, tmp_path / "ws")
    assert not found["exact"] and not found["intact"] and "['sizes'] differ" in said


def test_without_labels_there_is_nothing_to_be_intact(cli: Cli, replayed: Path) -> None:
    cli("train", "plain", "--data", "t", "--algorithm", "k-means", *INLINE)
    assert cli("verify", "plain", *INLINE)["intact"] is None


@pytest.mark.parametrize("array", ["labels", "margins", CHECKS])
def test_damaged_blocks_stop_an_update(
    cli: Cli, replayed: Path, tmp_path: Path, array: str
) -> None:
    """Every value of every cell is possible still, and no cell is read whole but the deleted row's."""
    with opened(tmp_path, "km") as (_, data_set, stored):
        home = next(c for c in range(data_set.cells) if 99 in data_set.read_units(c))
        for cell in set(range(data_set.cells)) - {home}:
            path = stored.chunk(array, cell)
            values = np.fromfile(path, stored.version.specs[array].dtype)
            if array == "margins":
                # Nothing would be looked at again.
                values[np.isfinite(values)] *= 1000
            else:
                values ^= 1
            values.tofile(path)
    cli("forget", "--data", "t", "--unit", 99)
    assert "never written there" in cli("batch", "run", "--dry-run", *INLINE, code=1)
    assert "never written there" in cli("batch", "run", "--yes", *INLINE, code=1)
    assert cli("model", "show", "km")["version"] == 2


def test_labels_without_checks_are_not_gone_on_with(
    cli: Cli, replayed: Path, tmp_path: Path
) -> None:
    """As they were before there were checks."""
    with opened(tmp_path, "km") as (_, _, stored):
        version = stored.version
    specs = {name: spec for name, spec in version.specs.items() if name != CHECKS}
    create_version(replayed / "old", specs, {})
    for name, spec in specs.items():
        for index in chunk_indices(spec):
            link_chunk(version.path, replayed / "old", name, index)
    digests = {name: version.digests[name] for name in specs}
    digest = seal_version(replayed / "old", specs, digests)
    shutil.rmtree(replayed / FOLDER)
    (replayed / "old").rename(replayed / FOLDER)
    with Workspace.open(tmp_path / "ws") as ws, ws.ledger.transaction():
        job = ws.ledger.value("SELECT max(id) FROM jobs")
        report: dict[str, Any] = ws.ledger.job(job)["report"]
        report["models"][0]["provenance"]["digest"] = digest
        ws.ledger.run("UPDATE jobs SET report = ? WHERE id = ?", json.dumps(report), job)
    done = forget(cli, 99)["km"]
    assert done["action"] == "resumed" and done["provenance"]["cells_written"] == 16
    assert forget(cli, 100)["km"]["action"] == "replayed"
    verify_all(cli)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_checks_change_with_every_bit(dtype: type[np.unsignedinteger]) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 200, (3, 128)).astype(dtype)
    margins = rng.random((3, 128)).astype(np.float32)
    sound = block_checks(labels, margins)
    assert len(set(sound.tolist())) == 3
    for column in (labels, margins):
        bits = column.view(np.uint8)
        for at in rng.integers(0, bits.shape[1], 100).tolist():
            for bit in (1, 128):
                bits[1, at] ^= bit
                assert (block_checks(labels, margins) != sound).tolist() == [False, True, False]
                bits[1, at] ^= bit
    nothing = np.zeros((1, 128), dtype), np.zeros((1, 128), np.float32)
    assert block_checks(*nothing)[0] != 0
    swapped = margins[:, ::-1]
    assert (block_checks(labels, swapped) != sound).all()
