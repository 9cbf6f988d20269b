"""Sparse sets and their models have the same bits on several worker processes as in this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster
from support import INLINE
from test_sparse_killed import rows_digest

from expunge.jobs.cli import run

GIVEN = ("--data", "s", "--algorithm", "sparse-logistic", "-p", "iterations=100")
WAYS = {"kept": ("-p", "batch_size=60"), "none": ("-p", "provenance=none")}


def life(ws: Path, where: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """Import, train, delete and verify in a new workspace; return what must not depend on where."""

    def cli(*arguments: str) -> Any:
        capsys.readouterr()
        code = run(["-w", str(ws), "--json", *arguments])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    cli("init", str(ws))
    cli("data", "generate", "s", "--like", "rcv1", "--rows", "1500", "--cells", "64")
    found: list[Any] = [rows_digest(ws)]
    for name, given in WAYS.items():
        summary = cli("train", name, *GIVEN, *given, *where)
        found.append([summary[key] for key in ("digest", "objective", "accuracy")])
    for units in ("3,4,900,17,1400", "11"):
        cli("forget", "--data", "s", "--unit", units)
        done = cli("batch", "run", "--yes", *where)
        assert done["tasks"] > 0 and done["bytes_read"] > 0
        told = ("digest", "change", "estimate", "action", "rows")
        found += [[m[key] for key in told] for m in done["models"]]
    assert [line[3] for line in found[-2:]] == ["updated", "retrained"]
    for name in WAYS:
        checked = cli("verify", name, *where)
        found.append([checked[key] for key in ("distance", "accuracy_basel", "intact")])
    assert found[-1][0] == 0.0
    return [*found, rows_digest(ws)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_no_bit(
    workers: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        local_directory=str(tmp_path / "spill"),
    ) as local:
        there = life(tmp_path / "there", ("--cluster", local.scheduler_address), capsys)
    assert there == life(tmp_path / "here", INLINE, capsys)
