"""kill -9 at random moments, from another process, of drivers and of workers: nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import INLINE, Cli

ROWS = 60_000
LOCAL = ("--cluster", "local", "--workers", "2")
TRAIN = ("--data", "t", "--algorithm", "k-means", "-p", "n_clusters=4", "-p", "max_iter=40")
KILLS = [pytest.param(i, marks=[] if i < 5 else [pytest.mark.slow]) for i in range(50)]


def command(tmp_path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "expunge.jobs.cli", "-w", str(tmp_path / "ws"), *arguments]


def run_and_kill(
    tmp_path: Path, seconds: float, arguments: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start a command and kill -9 its process after so many seconds (or let it end before)."""
    with subprocess.Popen(
        command(tmp_path, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        child.wait()
    return child


def finish(cli: Cli) -> None:
    """Resume the batch if it was interrupted; run it if it had not begun."""
    interrupted = [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]
    if interrupted:
        cli("job", "resume", interrupted[0], *INLINE)
    assert cli("batch", "run", "--yes", *INLINE)["job"] is None or not interrupted


def state(cli: Cli) -> dict[str, Any]:
    """What must come out the same, however often it was killed."""
    return {
        "digest": cli("model", "show", "m")["digest"],
        "version": cli("model", "show", "m")["version"],
        "rows": cli("data", "show", "t")["rows"],
        "receipts": sorted(r["unit_hash"] for r in cli("receipt", "list")["receipts"]),
    }


def no_garbage(cli: Cli, tmp_path: Path) -> None:
    """Whatever the killed left is gone after a command that takes the lock.

    A worker that was just being started may live for a moment after its driver.
    """
    ws = tmp_path / "ws"
    deadline = time.monotonic() + 20
    while True:
        cli("batch", "run", "--yes", *INLINE)
        names = [p.name for p in [*ws.glob("data/*"), *ws.glob("models/*/*"), *ws.glob("spill/*")]]
        if sorted(n[:8] for n in names) in (["t.zarr", "v000001-"], ["t.zarr", "v000002-"]):
            return
        assert time.monotonic() < deadline, names
        time.sleep(0.5)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a data set, copied by every test."""
    root = tmp_path_factory.mktemp("prepared")
    for arguments in (
        ("init", str(root / "ws")),
        ("data", "generate", "t", "--like", "gaussian", "--rows", str(ROWS)),
        ("train", "m", *TRAIN, "--cluster", "inline"),
        ("forget", "--data", "t", "--sample", "0.01"),
    ):
        subprocess.run(command(root, *arguments), check=True, stdout=subprocess.DEVNULL)
    return root / "ws"


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after an undisturbed batch."""
    root = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(prepared, root / "ws")
    arguments = ("batch", "run", "--yes", "--cluster", "inline")
    subprocess.run(command(root, *arguments), check=True, stdout=subprocess.DEVNULL)
    return root / "ws"


def expected(cli: Cli, tmp_path: Path, source: Path) -> dict[str, Any]:
    shutil.copytree(source, tmp_path / "ws")
    found = state(cli)
    shutil.rmtree(tmp_path / "ws")
    return found


@pytest.mark.parametrize("attempt", KILLS)
def test_a_killed_batch_driver(
    cli: Cli, tmp_path: Path, prepared: Path, undisturbed: Path, attempt: int
) -> None:
    wanted = expected(cli, tmp_path, undisturbed)
    shutil.copytree(prepared, tmp_path / "ws")
    batch = ("batch", "run", "--yes", *(LOCAL if attempt % 2 else INLINE))
    # An inline batch takes about 2.5 seconds, one with local workers about 6.
    seconds = random.Random(attempt).uniform(1.0, 6.0 if attempt % 2 else 3.0)
    run_and_kill(tmp_path, seconds, batch)
    finish(cli)
    assert state(cli) == wanted
    no_garbage(cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(6))
def test_a_killed_training_and_import(
    cli: Cli, tmp_path: Path, prepared: Path, attempt: int
) -> None:
    shutil.copytree(prepared, tmp_path / "ws")
    wanted = cli("model", "show", "m")["digest"]
    shutil.rmtree(tmp_path / "ws")
    cli("init", tmp_path / "ws")
    generate = ("data", "generate", "t", "--like", "gaussian", "--rows", str(ROWS))
    random_ = random.Random(100 + attempt)
    run_and_kill(tmp_path, random_.uniform(0.8, 2.0), generate)
    if not cli("job", "list")["jobs"]:
        cli(*generate)
    else:
        finish_one(cli, generate)
    run_and_kill(tmp_path, random_.uniform(1.0, 5.0), ("train", "m", *TRAIN, *LOCAL))
    finish_one(cli, ("train", "m", *TRAIN, *INLINE))
    assert cli("model", "show", "m")["digest"] == wanted
    no_garbage(cli, tmp_path)


def finish_one(cli: Cli, again: tuple[object, ...]) -> None:
    """Resume the last job if it was interrupted, run the command if it had not begun."""
    last = cli("job", "list")["jobs"][-1]
    kind = {"train": "train", "data": "generate"}[str(again[0])]
    if last["kind"] != kind:
        cli(*again)
    elif last["state"] == "interrupted":
        cli("job", "resume", last["id"], *INLINE)


@pytest.mark.parametrize(
    "attempt", [0, 1, *[pytest.param(i, marks=pytest.mark.slow) for i in range(2, 50)]]
)
def test_killed_workers_are_replaced(
    cli: Cli, tmp_path: Path, prepared: Path, undisturbed: Path, attempt: int
) -> None:
    wanted = expected(cli, tmp_path, undisturbed)
    shutil.copytree(prepared, tmp_path / "ws")
    generator = random.Random(attempt)
    arguments = command(tmp_path, "batch", "run", "--yes", *LOCAL)
    killed = 0
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        driver = psutil.Process(child.pid)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if workers_of(driver) and killed < 2:
                time.sleep(generator.uniform(0.1, 1.2))
                for worker in workers_of(driver)[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
                        killed += 1
            time.sleep(0.02)
        errors = child.stderr.read().decode() if child.stderr else ""
        assert child.wait() == 0, errors
    assert killed >= 1
    assert state(cli) == wanted
    no_garbage(cli, tmp_path)


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [p for p in driver.children(recursive=True) if "spawn_main" in cmdline(p)]
    return []


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
