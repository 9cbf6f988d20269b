"""kill -9 while labels and margins are written, from another process: nothing is lost."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import INLINE, Cli
from test_killed import LOCAL, command, finish, no_garbage, run_and_kill, state

from expunge.jobs.replay_store import open_replay
from expunge.jobs.workspace import Workspace
from expunge.storage.dataset import DataSet
from expunge.storage.versions import check_version

TRAIN = (
    "--data",
    "t",
    "--algorithm",
    "k-means",
    "-p",
    "n_clusters=6",
    "-p",
    "provenance=labels",
    "-p",
    "max_iter=4",
)
"""So few steps that the chain never ends early, and a deletion adds none."""
KILLS = [pytest.param(i, marks=[] if i < 4 else [pytest.mark.slow]) for i in range(30)]


def run(root: Path, *arguments: str) -> None:
    subprocess.run(command(root, *arguments), check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a model that keeps labels, and requests; copied by every test."""
    root = tmp_path_factory.mktemp("prepared")
    generate = ("--like", "gaussian", "--rows", "40000", "--deviation", "0.84", "--cells", "64")
    run(root, "init", str(root / "ws"))
    run(root, "data", "generate", "t", *generate)
    run(root, "train", "m", *TRAIN, *INLINE)
    run(root, "forget", "--data", "t", "--unit", "1,17,4711")
    return root / "ws"


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after an undisturbed batch."""
    root = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(prepared, root / "ws")
    run(root, "batch", "run", "--yes", *INLINE)
    return root / "ws"


def kept(root: Path) -> Any:
    """The digests of what the model keeps, all chunks checked."""
    with Workspace.open(root) as ws:
        stored = open_replay(ws, ws.ledger.model("m"), DataSet.open(ws.data_path("t")))
        assert stored is not None
        check_version(stored.version)
        return stored.version.digests


def expected(cli: Cli, tmp_path: Path, source: Path) -> tuple[dict[str, Any], Any]:
    shutil.copytree(source, tmp_path / "ws")
    found = state(cli), kept(tmp_path / "ws")
    shutil.rmtree(tmp_path / "ws")
    return found


@pytest.mark.parametrize("attempt", KILLS)
def test_a_killed_batch(
    cli: Cli, tmp_path: Path, prepared: Path, undisturbed: Path, attempt: int
) -> None:
    wanted = expected(cli, tmp_path, undisturbed)
    shutil.copytree(prepared, tmp_path / "ws")
    batch = ("batch", "run", "--yes", *(LOCAL if attempt % 2 else INLINE))
    seconds = random.Random(attempt).uniform(1.0, 6.0 if attempt % 2 else 2.5)
    run_and_kill(tmp_path, seconds, batch)
    finish(cli)
    assert (state(cli), kept(tmp_path / "ws")) == wanted
    no_garbage(cli, tmp_path)
    cli("forget", "--data", "t", "--unit", 300)
    assert cli("batch", "run", "--yes", *INLINE)["models"][0]["action"] == "replayed"
    assert cli("verify", "m", "--against", "retrain", *INLINE)["exact"]


@pytest.mark.parametrize("attempt", KILLS[::6])
def test_a_killed_training(cli: Cli, tmp_path: Path, prepared: Path, attempt: int) -> None:
    shutil.copytree(prepared, tmp_path / "ws")
    digests = kept(tmp_path / "ws")
    seconds = random.Random(attempt).uniform(1.2, 2.5)
    run_and_kill(tmp_path, seconds, ("train", "again", *TRAIN, *INLINE))
    jobs = [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]
    if jobs:
        cli("job", "resume", jobs[0], *INLINE)
    elif "again" not in [m["name"] for m in cli("model", "list")["models"]]:
        cli("train", "again", *TRAIN, *INLINE)
    with Workspace.open(tmp_path / "ws") as ws:
        stored = open_replay(ws, ws.ledger.model("again"), DataSet.open(ws.data_path("t")))
        assert stored is not None and stored.version.digests == digests
    assert len(list((tmp_path / "ws" / "models" / "again").iterdir())) == 1
