"""kill -9 in every phase of a regression's training and deletion, and damage to its stored arrays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regression_workspace import AVERAGED, EXACT, chunks, delete, start, train, visits_of
from support import INLINE, Cli
from test_faults import killed_at, places, resume

from expunge.jobs.workspace import Workspace

SLOWLY = """
import time
from expunge.jobs import train_regression as module
from expunge.jobs.cli import main
module.STRETCH_BYTES = 1
write = module.Target.write
def slow(target, *arguments):
    time.sleep(0.03)
    return write(target, *arguments)
module.Target.write = slow
main()
"""
"""The command line, writing a block at a time, and that slowly."""
GIVEN = ("-p", "iterations=60", "-p", "batch_size=150")
HOW = {"exact": ("logistic", *EXACT), "averaged": ("softmax", *AVERAGED)}


def killed(tmp_path: Path, arguments: tuple[str, ...], when: Callable[[], bool]) -> None:
    """Run a command slowly and kill -9 its process once ``when``."""
    command = [sys.executable, "-c", SLOWLY, "-w", str(tmp_path / "ws"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 120
        while not when():
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                raise AssertionError(child.stderr.read().decode() if child.stderr else "")
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        child.wait()


def written(tmp_path: Path, array: str, version: int = 1) -> int:
    """How many chunks of an array of model m are there."""
    pattern = f"ws/models/m/v{version:06d}-*/{array}/c.*"
    return len([p for p in tmp_path.glob(pattern) if p.suffix != ".partial"])


def train_killed(tmp_path: Path, kind: str, array: str) -> None:
    """A training of m that is killed when it has written two chunks of an array."""
    loss, *given = HOW[kind]
    arguments = ("train", "m", "--data", "t", "--algorithm", loss, *GIVEN, *given, *INLINE)
    killed(tmp_path, arguments, lambda: written(tmp_path, array) >= 2)


def interrupted(cli: Cli) -> int:
    found = [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]
    assert len(found) == 1
    return int(found[0])


PHASES = [
    ("exact", "live"),
    ("exact", "C"),
    pytest.param("averaged", "live", marks=pytest.mark.slow),
    ("averaged", "eigenvectors"),
]


@pytest.mark.parametrize(("kind", "array"), PHASES)
def test_a_killed_training_goes_on_where_it_was(
    cli: Cli, tmp_path: Path, kind: str, array: str
) -> None:
    start(cli, tmp_path, HOW[kind][0], n=4800)
    whole = train(cli, "whole", *HOW[kind])
    train_killed(tmp_path, kind, array)
    job = interrupted(cli)
    assert [m["name"] for m in cli("model", "list")["models"]] == ["whole"]
    version = next((tmp_path / "ws/models/m").iterdir())
    blocks = {"exact": 8, "averaged": 10}[kind]
    assert 2 <= written(tmp_path, array) < blocks
    assert (written(tmp_path, "trajectory") < blocks) == (array == "live")
    there = {path: path.stat() for path in chunks(version) if path.suffix != ".partial"}
    resumed = cli("job", "resume", job, *INLINE)
    assert resumed["digest"] == whole["digest"] and resumed["settings"] == whole["settings"]
    assert list((tmp_path / "ws/models/m").iterdir()) == [version]
    for path, before in there.items():
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), path
    assert cli("verify", "m", *INLINE)["distance"] == 0.0
    assert not list(version.rglob("*.partial"))


def test_a_deletion_drops_what_a_killed_training_left(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "logistic")
    train_killed(tmp_path, "exact", "C")
    version = next((tmp_path / "ws/models/m").iterdir())
    delete(cli, 3, 4)
    assert not version.exists()
    resumed = cli("job", "resume", interrupted(cli), *INLINE)
    assert resumed["digest"] == train(cli, "n", *HOW["exact"])["digest"]
    assert not version.exists()


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("exact", "delta"),
        pytest.param("averaged", "delta", marks=pytest.mark.slow),
        pytest.param("exact", "basel", marks=pytest.mark.slow),
    ],
)
def test_a_killed_rebase(cli: Cli, tmp_path: Path, kind: str, method: str) -> None:
    start(cli, tmp_path, HOW[kind][0])
    train(cli, "m", *HOW[kind])
    cli("forget", "--data", "t", "--unit", "3,4,900")
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    batch = ("batch", "run", "--yes", "--method", method, *INLINE)
    wanted = cli(*batch)["models"][0]
    shutil.rmtree(tmp_path / "ws")
    (tmp_path / "copy").rename(tmp_path / "ws")
    killed(tmp_path, batch, lambda: written(tmp_path, "G", 2) >= 2)
    assert cli("model", "show", "m")["version"] == 1
    assert "job resume" in cli(*batch, code=1)
    done = cli("job", "resume", interrupted(cli), *INLINE)
    assert len(done["receipts"]) == 3
    found = done["models"][0]
    assert {n: v for n, v in found.items() if "seconds" not in n} == {
        n: v for n, v in wanted.items() if "seconds" not in n
    }
    assert len(list((tmp_path / "ws/models/m").iterdir())) == 1


@pytest.mark.parametrize("at", places(200, 50))
def test_ending_at_any_durable_operation(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    start(cli, tmp_path, "linear", n=60)

    def fit() -> None:
        if not cli("model", "list")["models"]:
            train(cli, "m", "linear", "-p", "iterations=4", "-p", "batch_size=4")

    def batch() -> None:
        cli("batch", "run", "--yes", *INLINE)

    trained = killed_at(monkeypatch, at, fit)
    resume(cli, fit)
    cli("forget", "--data", "t", "--unit", "3,4")
    deleted = killed_at(monkeypatch, at, batch)
    resume(cli, batch)
    if not trained and not deleted:
        pytest.skip("neither has so many durable operations")
    assert cli("model", "show", "m")["version"] == 2
    assert cli("verify", "m", *INLINE)["distance"] < 1e-12
    assert len(cli("receipt", "list")["receipts"]) == 2
    assert len(list((tmp_path / "ws/models/m").iterdir())) == 1


# ---- damage


def flip(path: Path, place: int = 0) -> bytes:
    """Flip one bit of a file; return the file as it was."""
    data = path.read_bytes()
    path.write_bytes(bytes([*data[:place], data[place] ^ 4, *data[place + 1 :]]))
    return data


def ends(version: Path) -> list[Path]:
    """The first and the last chunk of every array of a version."""
    found = []
    for array in sorted(p for p in version.iterdir() if p.is_dir()):
        own = sorted(array.glob("c.*"), key=lambda p: [int(n) for n in p.name.split(".")[1:]])
        found += [own[0], *own[1:][-1:]] if own else []
    return found


@pytest.mark.parametrize("kind", ["exact", "averaged"])
def test_one_flipped_bit_is_found(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, HOW[kind][0], n=4800)
    train(cli, "m", *HOW[kind])
    digest = cli("model", "show", "m")["digest"]
    firsts = {u: v[0] for u in range(60) if len(v := visits_of(tmp_path, "m", [u]))}
    late = max(firsts, key=lambda u: int(firsts[u]))
    assert firsts[late] >= 8  # The first block is not needed for the update.
    cli("forget", "--data", "t", "--unit", late)
    paths = ends(next((tmp_path / "ws/models/m").iterdir()))
    names = {p.parent.name for p in paths}
    other = {"C", "product"} if kind == "exact" else {"eigenvalues", "eigenvectors"}
    assert names > {"trajectory", "G", "live", "parameters", "mean", "scale", "digests", *other}
    rows = cli("data", "show", "t")["rows"]
    for path in paths:
        whole = flip(path)
        found = cli("verify", "m", *INLINE, code=5)
        assert isinstance(found, str) or not found["intact"], path
        error = cli("batch", "run", "--yes", *INLINE, code=1)
        assert "digest" in error and "committed" not in error, (path, error)
        path.write_bytes(whole)
        assert requests(tmp_path) == ["queued"]
        assert cli("model", "show", "m")["digest"] == digest
        assert len(list((tmp_path / "ws/models/m").iterdir())) == 1
    assert cli("data", "show", "t")["rows"] == rows
    assert cli("batch", "run", "--yes", *INLINE)["requests"] == 1


def requests(tmp_path: Path) -> list[Any]:
    with Workspace.open(tmp_path / "ws") as ws:
        return [row["state"] for row in ws.ledger.rows("SELECT state FROM requests")]


def test_changed_rows_are_told_by_the_distance(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    train(cli, "m", "linear")
    path = max((tmp_path / "ws/data/t.zarr/x").glob("c.*"))
    data = np.frombuffer(path.read_bytes(), np.float32).copy()
    data[:8] += 1
    path.write_bytes(data.tobytes())
    found = cli("verify", "m", *INLINE, code=5)
    assert found["intact"] and found["distance"] > 0.0
    flip(next((tmp_path / "ws/models/m").glob("*/G/c.1.0")))
    assert not cli("verify", "m", *INLINE, code=5)["intact"]
