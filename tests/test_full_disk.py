"""A full disk: every command fails cleanly, says how much it needed, and goes on when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import INLINE, Cli

from expunge.jobs.cli import run
from expunge.storage import space
from expunge.storage.errors import NoSpaceError

TRAIN = ("--data", "t", "--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB at tmp_path/ws; skips where mounting is not allowed."""
    folder = tmp_path / "ws"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Fill the disk but for so many bytes."""
    ballast = folder / "spill" / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (space.free_bytes(folder) - leave) // 4096 * 4096)
    return ballast


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "sqlite" not in p.name}


@pytest.fixture
def rows(csv_file: Callable[..., Path]) -> Path:
    return csv_file(np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32))


def test_import_training_and_deletion(cli: Cli, small_disk: Path, rows: Path) -> None:
    cli("init", small_disk)
    ballast = fill(small_disk, 1_300_000)
    before = tree(small_disk)
    error = cli("data", "import", "t", rows, "--format", "csv", code=1)
    assert "too full for 20000 rows" in error and "MB needed" in error and "free" in error
    assert tree(small_disk) == before
    ballast.unlink()
    cli("data", "import", "t", rows, "--format", "csv")

    ballast = fill(small_disk, 40_000)
    before = tree(small_disk)
    error = cli("train", "m", *TRAIN, code=1)
    assert "too full" in error and "needed" in error
    assert tree(small_disk) - before <= {"models/m"}
    ballast.unlink()
    cli("train", "m", *TRAIN)
    digest = cli("model", "show", "m")["digest"]

    cli("forget", "--data", "t", "--unit", "4,5,6")
    ballast = fill(small_disk, 40_000)
    error = cli("batch", "run", "--yes", *INLINE, code=1)
    assert "too full" in error and "needed" in error
    assert cli("model", "show", "m")["digest"] == digest
    ballast.unlink()
    resume_or_run(cli)
    assert cli("data", "show", "t")["rows"] == 19_997
    assert cli("verify", "m", *INLINE)["exact"]


def resume_or_run(cli: Cli) -> None:
    """Finish the deletion, whether its failure could still be recorded or not."""
    interrupted = [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]
    if interrupted:
        cli("job", "resume", interrupted[0], *INLINE)
    else:
        cli("batch", "run", "--yes", *INLINE)


@pytest.mark.parametrize("leave", [0, 4096, 20_000, 1_200_000, 1_400_000])
def test_a_batch_at_any_fill_level(
    cli: Cli, small_disk: Path, rows: Path, leave: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cli("init", small_disk)
    cli("data", "import", "t", rows, "--format", "csv")
    cli("train", "m", *TRAIN)
    cli("forget", "--data", "t", "--sample", 0.02)
    ballast = fill(small_disk, leave)
    # With the most room the job gets done, or as far as its commit.
    if run(["-w", str(small_disk), "batch", "run", "--yes", *INLINE]) == 1:
        assert "too full" in capsys.readouterr().err
    else:
        assert leave >= 1_200_000
    ballast.unlink()
    resume_or_run(cli)
    assert cli("data", "show", "t")["rows"] == 19_600
    assert len(cli("receipt", "list")["receipts"]) == 400
    assert cli("verify", "m", *INLINE)["exact"]


def test_forget_on_a_full_disk_queues_nothing(cli: Cli, small_disk: Path, rows: Path) -> None:
    cli("init", small_disk)
    cli("data", "import", "t", rows, "--format", "csv")
    ballast = fill(small_disk, 0)
    error = cli("forget", "--data", "t", "--sample", 0.5, code=1)
    assert "too full for the ledger" in error and "needed" in error
    ballast.unlink()
    assert cli("batch", "run", "--yes", *INLINE)["job"] is None
    assert cli("forget", "--data", "t", "--sample", 0.5)["queued"] == 10_000


@pytest.mark.parametrize("leave", [0, 60_000])
def test_looking_at_a_full_disk(cli: Cli, small_disk: Path, rows: Path, leave: int) -> None:
    """SQLite needs some room even to read: without it every command says so."""
    cli("init", small_disk)
    cli("data", "import", "t", rows, "--format", "csv")
    cli("train", "m", *TRAIN)
    fill(small_disk, leave)
    looks = [("data", "show", "t"), ("predict", "m", rows), ("verify", "m", *INLINE)]
    for look in looks:
        if leave:
            cli(*look)
        else:
            assert "too full for the ledger: 1.05 MB needed, 0 B free" in cli(*look, code=1)


def test_room_is_asked_for_before_it_is_taken(tmp_path: Path) -> None:
    space.require(tmp_path, 1000, 1, "a little")
    with pytest.raises(NoSpaceError, match=r"too full for a lot: 1e\+03 TB needed, .* free"):
        space.require(tmp_path / "not" / "there", 10**15, 1, "a lot")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB")]
)
def test_sizes_are_shown_as_people_read_them(size: int, text: str) -> None:
    assert space.shown(size) == text
