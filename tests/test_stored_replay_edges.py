"""Stored k-means with labels where something ends: the disk, the rows, a unit that is asked for twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_full_disk import fill, resume_or_run, small_disk  # noqa: F401
from test_interrupted import Killed
from test_stored_replay_jobs import BOUNDS, EPSILON, KEEP, forget, opened, overlapping, verify_all

from expunge.jobs.cli import run

FULL = [
    pytest.param(n, marks=[] if n in (0, 300_000) else [pytest.mark.slow])
    for n in range(0, 900_001, 100_000)
]


def prepare(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path, x: np.ndarray) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(x), "--format", "csv")


def train(cli: Cli, name: str, *more: object) -> dict[str, Any]:
    found: dict[str, Any] = cli("train", name, "--data", "t", *more, *INLINE)
    return found


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("leave", FULL)
def test_a_batch_at_any_fill_level(
    cli: Cli,
    csv_file: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    leave: int,
) -> None:
    x, disk = overlapping(6000, 4, 5), tmp_path / "ws"
    prepare(cli, csv_file, tmp_path, x)
    train(
        cli, "m", "--algorithm", "k-means", "-p", "n_clusters=4", "-p", "max_iter=6", *BOUNDS, *KEEP
    )
    units = np.random.default_rng(1).permutation(6000)[:60].tolist()
    cli("forget", "--data", "t", "--unit", ",".join(map(str, units)))
    ballast = fill(disk, leave)
    failed = run(["-w", str(disk), "batch", "run", "--yes", *INLINE])
    if failed:
        assert "too full" in capsys.readouterr().err
    assert failed or leave > 300_000
    ballast.unlink()
    if failed:
        resume_or_run(cli)
    assert len(list((disk / "models" / "m").iterdir())) == 1
    with opened(tmp_path, "m") as (_, _, stored):
        assert stored.steps > 1
    assert cli("scan", "--rows", csv_file(x[units], "gone.csv"))["matches"] == 0
    assert forget(cli, *[u for u in range(70) if u not in units][:1])["m"]["action"] != "retrained"
    verify_all(cli)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_one_after_the_other(
    cli: Cli, csv_file: Callable[..., Path], tmp_path: Path, rows: int
) -> None:
    prepare(cli, csv_file, tmp_path, overlapping(rows, 2, rows))
    train(cli, "km", "--algorithm", "k-means", "-p", "n_clusters=1", *KEEP, *BOUNDS)
    train(cli, "qk", "--algorithm", "q-kmeans", "-p", f"n_clusters={rows}", *EPSILON, *KEEP)
    for unit in range(rows):
        forget(cli, unit)
        verify_all(cli)
    for name in ("km", "qk"):
        assert cli("model", "show", name)["empty"]
    report = cli("job", "show", cli("job", "list")["jobs"][-1]["id"])["report"]
    assert [m["provenance"]["bytes"] for m in report["models"]] == [0, 0]
    assert "no row is left" in report["models"][0]["provenance"]["why"]


def test_all_rows_at_once(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> None:
    x = overlapping(500, 3, 4)
    prepare(cli, csv_file, tmp_path, x)
    train(cli, "km", "--algorithm", "k-means", "-p", "n_clusters=3", *KEEP, *BOUNDS)
    cli("forget", "--data", "t", "--unit", ",".join(map(str, range(500))))
    assert cli("batch", "run", "--dry-run", *INLINE)["models"][0]["action"] == "retrained"
    assert cli("batch", "run", "--yes", *INLINE)["models"][0]["empty"]
    verify_all(cli)
    assert cli("scan", "--rows", csv_file(x, "gone.csv"))["matches"] == 0


def test_a_unit_twice(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> None:
    prepare(cli, csv_file, tmp_path, overlapping(600, 3, 4))
    train(cli, "km", "--algorithm", "k-means", "-p", "n_clusters=3", *KEEP, *BOUNDS)
    cli("forget", "--data", "t", "--unit", "7,7,8")
    assert cli("forget", "--data", "t", "--unit", "7")["already_requested"] == 1
    report = cli("batch", "run", "--yes", *INLINE)
    assert report["units"] == 2
    digest = report["models"][0]["digest"]
    assert cli("forget", "--data", "t", "--unit", "7,8")["already_erased"] == 2
    assert cli("batch", "run", "--yes", *INLINE)["job"] is None
    assert cli("model", "show", "km")["digest"] == digest
    verify_all(cli)


def test_trained_where_rows_are_gone_already(
    cli: Cli, csv_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Holes are there from the first; models with labels and without leave one batch alike."""
    x = overlapping(3000, 4, 5)
    prepare(cli, csv_file, tmp_path, x)
    parameters = ("-p", "n_clusters=4", "-p", "max_iter=6", *BOUNDS)
    train(cli, "early", "--algorithm", "k-means", *parameters, *KEEP)
    gone = list(range(0, 300, 3))
    forget(cli, *gone)
    train(cli, "late", "--algorithm", "k-means", *parameters, *KEEP)
    train(cli, "plain", "--algorithm", "k-means", *parameters)
    train(cli, "qk", "--algorithm", "q-kmeans", *parameters, *EPSILON, *KEEP)
    train(cli, "tree", "--algorithm", "dc-kmeans", "-p", "n_clusters=4", "-p", "n_leaves=4")
    with opened(tmp_path, "late") as (_, data_set, stored):
        units = np.stack([data_set.read_units(c) for c in range(data_set.cells)])
        margins = stored.version.read("margins")[:, :, : units.shape[1]]
        assert np.isposinf(margins[:, units < 0]).all()
        assert np.isfinite(margins[: stored.steps][:, units >= 0]).all()
    for unit in (1, 2, 4):
        done = forget(cli, unit)
        assert done["early"]["digest"] == done["late"]["digest"] == done["plain"]["digest"]
        assert done["early"]["action"] == done["late"]["action"] == "replayed"
        assert done["plain"]["action"] == "resumed"
        gone.append(unit)
    verify_all(cli)
    assert cli("scan", "--rows", csv_file(x[gone], "gone.csv"))["matches"] == 0


class _Dying:
    """Stands for kill -9 just before one of the calls that change what is on the disk."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None) -> None:
        self.calls, self._at = 0, at
        for name in ("replace", "fsync", "unlink", "link"):
            patch.setattr(f"os.{name}", self._counted(getattr(os, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self._at is not None and self.calls >= self._at:
                raise Killed
            return real(*given, **named)

        return call


PARTS = [pytest.param(i, marks=[] if i in (3, 7) else [pytest.mark.slow]) for i in range(1, 24)]


@pytest.mark.parametrize("part", PARTS)
def test_killed_at_any_change_of_the_disk(
    cli: Cli,
    csv_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: int,
) -> None:
    """From that call on nothing is written any more: of 24 places that are spread over a batch."""
    x = overlapping(900, 3, 4)
    prepare(cli, csv_file, tmp_path, x)
    train(cli, "m", "--algorithm", "k-means", "-p", "n_clusters=3", *KEEP, *BOUNDS)
    cli("forget", "--data", "t", "--unit", "7,8")
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    with monkeypatch.context() as patch:
        calls = _Dying(patch, None)
        digest = cli("batch", "run", "--yes", *INLINE)["models"][0]["provenance"]["digest"]
    assert calls.calls > 100
    shutil.rmtree(tmp_path / "ws")
    (tmp_path / "copy").rename(tmp_path / "ws")
    with monkeypatch.context() as patch:
        _Dying(patch, 1 + calls.calls * part // 24)
        with pytest.raises(Killed):
            cli("batch", "run", "--yes", *INLINE)
    waiting = [j["id"] for j in cli("job", "list")["jobs"] if j["state"] == "interrupted"]
    if waiting:
        cli("job", "resume", waiting[0], *INLINE)
    else:
        cli("batch", "run", "--yes", *INLINE)
    with opened(tmp_path, "m") as (ws, _, _):
        found = ws.ledger.job(ws.ledger.value("SELECT max(id) FROM jobs"))["report"]
        assert found["models"][0]["provenance"]["digest"] == digest
    assert len(cli("receipt", "list")["receipts"]) == 2
    assert len(list((tmp_path / "ws" / "models" / "m").iterdir())) == 1
    assert cli("scan", "--rows", csv_file(x[[7, 8]], "gone.csv"))["matches"] == 0
    verify_all(cli)
