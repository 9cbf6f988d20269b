"""kill -9 of a batch on DC-k-means at random moments: afterwards all is as if nothing had been."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from support import INLINE, Cli
from test_killed import (
    LOCAL,
    command,
    expected,
    finish,
    finish_one,
    no_garbage,
    run_and_kill,
    state,
)

TRAIN = ("--data", "t", "--algorithm", "dc-kmeans", "-p", "n_clusters=4", "-p", "n_leaves=16")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a model and queued requests, copied by every test."""
    root = tmp_path_factory.mktemp("prepared")
    for arguments in (
        ("init", str(root / "ws")),
        ("data", "generate", "t", "--like", "gaussian", "--rows", "20000"),
        ("train", "m", *TRAIN, *INLINE),
        ("forget", "--data", "t", "--sample", "0.001"),
    ):
        subprocess.run(command(root, *arguments), check=True, stdout=subprocess.DEVNULL)
    return root / "ws"


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after an undisturbed batch."""
    root = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(prepared, root / "ws")
    arguments = ("batch", "run", "--yes", *INLINE)
    subprocess.run(command(root, *arguments), check=True, stdout=subprocess.DEVNULL)
    return root / "ws"


@pytest.mark.parametrize(
    "attempt", [0, 1, *(pytest.param(i, marks=pytest.mark.slow) for i in range(2, 20))]
)
def test_a_killed_batch_driver(
    cli: Cli, tmp_path: Path, prepared: Path, undisturbed: Path, attempt: int
) -> None:
    wanted = expected(cli, tmp_path, undisturbed)
    shutil.copytree(prepared, tmp_path / "ws")
    batch = ("batch", "run", "--yes", *(LOCAL if attempt % 2 else INLINE))
    seconds = random.Random(attempt).uniform(1.0, 6.0 if attempt % 2 else 3.5)
    run_and_kill(tmp_path, seconds, batch)
    finish(cli)
    assert state(cli) == wanted
    no_garbage(cli, tmp_path)
    assert cli("verify", "m", *INLINE)["exact"]


@pytest.mark.parametrize(
    "attempt", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 6))]
)
def test_a_killed_training(cli: Cli, tmp_path: Path, attempt: int) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "generate", "t", "--like", "gaussian", "--rows", 20000)
    seconds = random.Random(attempt).uniform(1.0, 5.0)
    run_and_kill(tmp_path, seconds, ("train", "m", *TRAIN, *LOCAL))
    finish_one(cli, ("train", "m", *TRAIN, *INLINE))
    no_garbage(cli, tmp_path)
    undisturbed = cli("train", "again", *TRAIN, *INLINE)
    assert cli("model", "show", "m")["digest"] == undisturbed["digest"]
