"""Kinds lowrank and frozen after a kill -9, and with several workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_regression_cluster
from distributed import LocalCluster
from regression_workspace import delete, start, train
from support import INLINE, Cli
from test_regression_killed import HOW, interrupted, train_killed

LOWRANK = ("-p", "provenance=lowrank")
FROZEN = ("-p", "provenance=frozen")
HESSIAN = ("-p", "hessian=true")
KILLED = {"lowrank": ("softmax", *LOWRANK, *HESSIAN), "frozen": ("logistic", *FROZEN, *HESSIAN)}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "array"), [("lowrank", "svd_V"), ("frozen", "C")])
def test_a_killed_capture_goes_on_where_it_was(
    cli: Cli, tmp_path: Path, kind: str, array: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HOW, kind, KILLED[kind])
    start(cli, tmp_path, KILLED[kind][0], n=4800)
    whole = train(cli, "whole", *KILLED[kind])
    train_killed(tmp_path, kind, array)
    resumed = cli("job", "resume", interrupted(cli), *INLINE)
    assert resumed["digest"] == whole["digest"]
    wanted, found = delete(cli, 3, 4, 900).values()
    assert wanted["digest"] == found["digest"] and wanted["estimate"] == found["estimate"]


@pytest.mark.slow
def test_workers_change_no_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (("train", "CAPTURE_RATE"), ("update", "REBASE_RATE")):
        monkeypatch.setattr(f"expunge.jobs.{module}_regression.{name}", 1e4)
    ways = {"low": KILLED["lowrank"], "froze": KILLED["frozen"], "lin": ("linear", *FROZEN)}
    monkeypatch.setattr(
        test_regression_cluster, "WAYS", ways | {"none": ("softmax", "-p", "provenance=none")}
    )
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", local_directory=str(tmp_path)
    ) as local:
        found = []
        for place, where in (("a", INLINE), ("b", ("--cluster", local.scheduler_address))):
            (tmp_path / place).mkdir()
            found.append(test_regression_cluster.life(tmp_path / place, where, capsys))
    assert found[0] == found[1]
