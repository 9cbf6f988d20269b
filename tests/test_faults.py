"""The process ends at any durable operation of an import, a training or a deletion: then resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_interrupted import Killed

from expunge.jobs.ledger import Ledger
from expunge.storage import files, ingest

OPERATIONS = ("write_new", "write_at", "sync_folder", "sweep")


class Fuse:
    """Counts durable operations, and ends the process before or after the n-th."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.count = 0
        self.at = at
        for name in OPERATIONS:
            patch.setattr(files, name, self.fused(getattr(files, name)))
        transaction = Ledger.transaction
        fuse = self

        @contextmanager
        def fused(ledger: Ledger) -> Iterator[None]:
            fuse.burn()
            with transaction(ledger):
                yield
            fuse.burn()

        patch.setattr(Ledger, "transaction", fused)
        rename = Path.rename

        def renamed(path: Path, target: Path) -> Path:
            fuse.burn()
            done = rename(path, target)
            fuse.burn()
            return done

        patch.setattr(Path, "rename", renamed)

    def burn(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed

    def fused(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(operation)
        def run(*arguments: Any, **options: Any) -> Any:
            self.burn()
            done = operation(*arguments, **options)
            self.burn()
            return done

        return run


def killed_at(monkeypatch: pytest.MonkeyPatch, at: int, command: Callable[[], object]) -> bool:
    """Run a command that ends at its n-th operation; False if it has fewer."""
    with monkeypatch.context() as patch:
        # One writer, so that the n-th operation is the same one in every run.
        patch.setattr(ingest, "WRITERS", 1)
        Fuse(patch, at)
        try:
            command()
        except Killed:
            return True
    return False


def resume(cli: Cli, again: Callable[[], object]) -> None:
    """Resume the job that was interrupted, or ask again if it had not begun or had ended."""
    waiting = [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]
    if waiting:
        cli("job", "resume", waiting[0], *INLINE)
    else:
        again()


def places(most: int, every: int) -> list[Any]:
    """All places, of which every so many-th is quick enough to run always."""
    slow = pytest.mark.slow
    return [n if n % every == 0 else pytest.param(n, marks=slow) for n in range(1, most + 1)]


@pytest.fixture
def rows(csv_file: Callable[..., Path]) -> Path:
    return csv_file(np.random.default_rng(1).normal(size=(60, 2)).astype(np.float32))


def leftovers(tmp_path: Path) -> list[str]:
    ws = tmp_path / "ws"
    return [
        str(p.relative_to(ws))
        for p in [*ws.glob("data/*"), *ws.glob("models/*/*"), *ws.glob("spill/*")]
    ]


@pytest.mark.parametrize("at", places(140, 12))
def test_a_deletion(
    cli: Cli, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", rows, "--format", "csv", "--cells", 2)
    cli("train", "m", "--data", "t", "--algorithm", "q-kmeans", "-p", "n_clusters=2", *INLINE)
    cli("forget", "--data", "t", "--unit", "3,4")
    batch = ("batch", "run", "--yes", *INLINE)
    if not killed_at(monkeypatch, at, lambda: cli(*batch)):
        pytest.skip("a deletion has fewer durable operations")
    resume(cli, lambda: cli(*batch))
    assert cli("data", "show", "t")["rows"] == 58
    assert len(cli("receipt", "list")["receipts"]) == 2
    assert cli("verify", "m", *INLINE)["exact"]
    assert cli("model", "show", "m")["version"] == 2
    assert len(leftovers(tmp_path)) == 2


@pytest.mark.parametrize("at", places(58, 12))
def test_an_import_and_a_training(
    cli: Cli, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    cli("init", tmp_path / "ws")

    def import_() -> None:
        if not cli("data", "list")["data_sets"]:
            cli("data", "import", "t", rows, "--format", "csv", "--cells", 2)

    def train() -> None:
        if not cli("model", "list")["models"]:
            given = ["--algorithm", "k-means", "-p", "n_clusters=2", *INLINE]
            cli("train", "m", "--data", "t", *given)

    if not killed_at(monkeypatch, at, import_):
        pytest.skip("an import has fewer durable operations")
    resume(cli, import_)
    trained = killed_at(monkeypatch, at, train)
    resume(cli, train)
    assert cli("data", "show", "t")["rows"] == 60
    assert cli("verify", "m", *INLINE)["exact"]
    assert len(leftovers(tmp_path)) == 2
    assert trained or at > 20
