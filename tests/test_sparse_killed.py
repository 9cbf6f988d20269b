"""kill -9 of the driver in every phase of a sparse model's training and deletion; then it goes on."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import INLINE, Cli

from expunge.jobs.cli import run

DYING = """
import importlib, os, signal
from expunge.jobs.cli import main
module, left = importlib.import_module("expunge.{module}"), {calls}
inner = module.{name}
def counted(*arguments, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(*arguments, **options)
module.{name} = counted
main()
"""
"""The command line, whose process kills itself when a function is called once too often."""
LOCAL = ("--cluster", "local", "--workers", "2")
TRAIN = ("--data", "s", "--algorithm", "sparse-logistic", "-p", "iterations=120")
BATCH = ("batch", "run", "--yes")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a sparse data set, a model and requests; copied by every test."""
    ws = tmp_path_factory.mktemp("prepared") / "ws"
    for arguments in (
        ("init", str(ws)),
        ("data", "generate", "s", "--like", "rcv1", "--rows", "1500"),
        ("train", "m", *TRAIN, "-p", "batch_size=60", *INLINE),
        ("forget", "--data", "s", "--unit", "3,7,8,501,502,1200"),
    ):
        assert run(["-w", str(ws), *arguments]) == 0
    return ws


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after a batch that nothing disturbed."""
    ws = tmp_path_factory.mktemp("undisturbed") / "ws"
    shutil.copytree(prepared, ws)
    assert run(["-w", str(ws), *BATCH, *INLINE]) == 0
    return ws


def command(tmp_path: Path, *start: str, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, *start, "-w", str(tmp_path / "ws"), *arguments]


def die(tmp_path: Path, place: str, calls: int, *arguments: str) -> None:
    """Run a command whose process is killed at a function's call, after so many that go well."""
    module, _, name = place.rpartition(".")
    code = DYING.format(module=module, name=name, calls=calls)
    done = subprocess.run(
        command(tmp_path, "-c", code, arguments=arguments), capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def interrupted(cli: Cli) -> list[int]:
    return [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]


def rows_digest(ws: Path) -> str:
    """Of every byte of the stored rows."""
    found = hashlib.sha256()
    for path in sorted((ws / "data" / "s.zarr").rglob("c.*")):
        found.update(path.read_bytes())
    return found.hexdigest()


def state(cli: Cli, tmp_path: Path) -> dict[str, Any]:
    """What must come out the same, however often it was killed."""
    model = cli("model", "show", "m")
    return {
        "digest": model["digest"],
        "version": model["version"],
        "rows": rows_digest(tmp_path / "ws"),
        "receipts": sorted(r["unit_hash"] for r in cli("receipt", "list")["receipts"]),
        "left": cli("data", "show", "s")["rows"],
    }


def expected(cli: Cli, tmp_path: Path, undisturbed: Path) -> dict[str, Any]:
    shutil.copytree(undisturbed, tmp_path / "ws")
    found = state(cli, tmp_path)
    shutil.rmtree(tmp_path / "ws")
    return found


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("pipeline.sparse_descent._descend", 2),
        ("jobs.sparse_store.write_chunk", 5),
        ("jobs.sparse_store.seal_version", 0),
        ("jobs.sparse_training.folder_size", 0),
    ],
)
def test_a_killed_training(
    cli: Cli, tmp_path: Path, prepared: Path, place: str, calls: int
) -> None:
    shutil.copytree(prepared, tmp_path / "ws")
    wanted = cli("model", "show", "m")["digest"]
    given = ("train", "n", *TRAIN, "-p", "batch_size=60", *INLINE)
    die(tmp_path, place, calls, *given)
    assert [m["name"] for m in cli("model", "list")["models"]] == ["m"]
    (job,) = interrupted(cli)
    assert cli("job", "resume", job, *INLINE)["digest"] == wanted
    assert len(list((tmp_path / "ws" / "models" / "n").iterdir())) == 1
    assert cli("verify", "n", *INLINE)["distance"] == 0.0


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("pipeline.sparse_update._run_epoch", 2),
        ("jobs.sparse_store.write_chunk", 5),
        ("jobs.deletion._commit", 0),
        ("jobs.deletion.finish", 0),
        ("storage.erase.erase_entries", 1),
        ("jobs.erasure.check_erased", 2),
    ],
)
def test_a_killed_deletion(
    cli: Cli, tmp_path: Path, prepared: Path, undisturbed: Path, place: str, calls: int
) -> None:
    wanted = expected(cli, tmp_path, undisturbed)
    assert wanted["version"] == 2 and len(wanted["receipts"]) == 6
    shutil.copytree(prepared, tmp_path / "ws")
    die(tmp_path, place, calls, *BATCH, *INLINE)
    assert "job resume" in cli(*BATCH, *INLINE, code=1)
    (job,) = interrupted(cli)
    cli("job", "resume", job, *INLINE)
    assert state(cli, tmp_path) == wanted
    assert len(list((tmp_path / "ws" / "models" / "m").iterdir())) == 1
    checked = cli("verify", "m", *INLINE)
    assert checked["intact"] and checked["distance"] < 0.03 * checked["change"]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(6))
def test_a_driver_of_workers_killed_at_any_moment(
    cli: Cli, tmp_path: Path, prepared: Path, undisturbed: Path, attempt: int
) -> None:
    wanted = expected(cli, tmp_path, undisturbed)
    shutil.copytree(prepared, tmp_path / "ws")
    given = command(tmp_path, "-m", "expunge.jobs.cli", arguments=(*BATCH, *LOCAL))
    quiet = subprocess.DEVNULL
    with subprocess.Popen(given, stdout=quiet, stderr=quiet) as child:
        time.sleep(random.Random(attempt).uniform(1.0, 6.0))
        child.send_signal(signal.SIGKILL)
        child.wait()
    for job in interrupted(cli):
        cli("job", "resume", job, *INLINE)
    cli(*BATCH, *INLINE)
    assert state(cli, tmp_path) == wanted
