"""Kind projected on stored models, through the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import LocalCluster
from numpy.typing import NDArray
from projected_rows import spectral
from regression_workspace import (
    SMALL,
    arrays,
    delete,
    import_rows,
    norm,
    opened,
    stored_rows,
    train,
)
from support import INLINE, Cli
from test_regression_killed import HOW, interrupted, train_killed

from expunge.jobs.regression_arrays import BASIS, EIGEN, TRACE
from expunge.jobs.regression_rows import RegressionRows, encode
from expunge.pipeline.components import Basis
from expunge.pipeline.descent import Trace
from expunge.pipeline.losses import Loss
from expunge.pipeline.projected import ProjectedBlocks, TracedTouches, update_projected
from expunge.pipeline.visits import Leaving, find_visits

PROJECTED = ("-p", "provenance=projected")


def start(cli: Cli, tmp_path: Path, loss: Loss = Loss.SOFTMAX, q: int = 3) -> None:
    here = spectral(loss, q, rows=1500)
    import_rows(cli, tmp_path, here.rows.x, here.rows.labels)


def test_a_deletion_is_near_basel_and_verified(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    made = train(cli, "p", "softmax", *PROJECTED)
    found = opened(tmp_path, "p")
    rank, m = found.settings.rank, found.design.width
    assert 1 <= rank < m and made["provenance"]["kind"] == "projected"
    assert f"follows {rank} of {m} components" in made["provenance"]["why"]
    before = arrays(tmp_path, "p")
    report = delete(cli, 3, 500, 501, 900)["p"]
    assert report["action"] == "updated" and report["kind"] == "projected"
    after = arrays(tmp_path, "p")
    for name in BASIS:
        np.testing.assert_array_equal(before[name], after[name])
    for name in (*TRACE, *EIGEN, "parameters"):
        assert (before[name] != after[name]).any()
    seen = cli("verify", "p", "--against", "basel", *INLINE)
    assert seen["intact"] and seen["distance"] < 0.05 * seen["change"]
    assert seen["distance"] / 5 < seen["estimate"] == report["estimate"] < 5 * seen["distance"]
    again = delete(cli, 7, 8, 1200)["p"]
    assert again["action"] == "updated"
    seen = cli("verify", "p", "--against", "basel", *INLINE)
    assert seen["intact"] and seen["distance"] < 0.05 * seen["change"]
    assert seen["distance"] / 10 < seen["estimate"] < 10 * seen["distance"]
    assert seen["change"] == pytest.approx(report["change"] + again["change"])
    retrained = delete(cli, 11, method="basel")["p"]
    assert retrained["exactness"] == "exact"
    assert cli("verify", "p", "--against", "basel", *INLINE)["distance"] == 0.0
    # The basis is taken anew from the rows that are left.
    assert (arrays(tmp_path, "p")["basis_values"] != before["basis_values"]).any()


def test_stored_and_in_memory_are_the_same_update(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    train(cli, "p", "softmax", *PROJECTED, "-p", "validation=0")
    found, held, rows = opened(tmp_path, "p"), arrays(tmp_path, "p"), stored_rows(tmp_path, "p")
    units = [rows.units(cell) for cell in range(rows.data_set.cells)]
    gone = [3, 500, 501, 900]
    where = [(c, s) for c, u in enumerate(units) for s in np.flatnonzero(np.isin(u, gone))]
    cells, slots = (np.array(part, np.int64) for part in zip(*where, strict=True))
    leaving = _leaving(rows, cells, slots)
    trace = Trace(*(held[name] for name in TRACE))
    visits = find_visits(Loss.SOFTMAX, rows.schedule, leaving, trace.trajectory)
    basis = Basis(held["basis"], held["basis_values"], found.settings.rank)
    parts = tuple(zip(held["eigenvalues"], held["eigenvectors"], strict=True))
    kept = ProjectedBlocks(found.settings.blocks, basis, parts)
    wanted = update_projected(found.settings.descent, kept, TracedTouches(trace, visits)).change
    delete(cli, *gone)
    change = opened(tmp_path, "p").parameters - found.parameters
    assert norm(change.ravel() - wanted) <= 1e-9 * norm(wanted)


def _leaving(rows: RegressionRows, cells: NDArray[np.int64], slots: NDArray[np.int64]) -> Leaving:
    data, where = rows.data_set, list(zip(cells.tolist(), slots[:, np.newaxis], strict=True))
    x = np.concatenate([data.read_slots(cell, slot) for cell, slot in where])
    y = np.concatenate([data.read_labels(cell, slot) for cell, slot in where])
    labels = encode(rows.settings.loss, rows.classes, y)
    return Leaving(rows.design.rows(x), labels, cells, slots)


@pytest.mark.slow
def test_a_killed_capture_goes_on_where_it_was(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HOW, "projected", ("softmax", *PROJECTED))
    start(cli, tmp_path)
    whole = train(cli, "whole", "softmax", *PROJECTED)
    train_killed(tmp_path, "projected", "eigenvectors")
    resumed = cli("job", "resume", interrupted(cli), *INLINE)
    assert resumed["digest"] == whole["digest"]
    wanted, found = delete(cli, 3, 4, 900).values()
    assert wanted["digest"] == found["digest"] and wanted["estimate"] == found["estimate"]


@pytest.mark.slow
def test_workers_change_no_bit(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (("train", "CAPTURE_RATE"), ("update", "REBASE_RATE")):
        monkeypatch.setattr(f"expunge.jobs.{module}_regression.{name}", 1e4)
    start(cli, tmp_path)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", local_directory=str(tmp_path)
    ) as local:
        where = ("--cluster", local.scheduler_address)
        asked = ("--data", "t", "--algorithm", "softmax", *SMALL, *PROJECTED)
        made = [cli("train", name, *asked, *on) for name, on in (("a", INLINE), ("b", where))]
        assert made[0]["digest"] == made[1]["digest"]
        cli("forget", "--data", "t", "--unit", "3,4,900")
        done = cli("batch", "run", "--yes", *where)["models"]
    assert done[0]["digest"] == done[1]["digest"] and done[0]["action"] == "updated"


def test_two_runs_give_the_same_bits(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    one, two = (train(cli, name, "softmax", *PROJECTED) for name in ("one", "two"))
    assert one["digest"] == two["digest"]


def test_every_row_may_leave(cli: Cli, tmp_path: Path) -> None:
    here = spectral(Loss.SOFTMAX, 3, rows=60)
    import_rows(cli, tmp_path, here.rows.x, here.rows.labels, cells=4)
    train(cli, "p", "softmax", *PROJECTED, "-p", "batch_size=20")
    cli("forget", "--data", "t", "--unit", ",".join(map(str, range(60))))
    report = cli("batch", "run", "--yes", *INLINE)["models"][0]
    assert report["empty"] and not opened(tmp_path, "p").parameters.any()
    assert not arrays(tmp_path, "p")["basis_values"].any()


def test_a_damaged_basis_stops_the_deletion(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    train(cli, "p", "softmax", *PROJECTED)
    path = next((opened(tmp_path, "p").version.path / "basis").glob("c*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    cli("forget", "--data", "t", "--unit", "3")
    assert "basis" in cli("batch", "run", "--yes", *INLINE, code=1)
