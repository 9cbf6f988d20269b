"""The methods of the paper on stored models through the command line, whatever their provenance."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regression_workspace import (
    D,
    arrays,
    delete,
    import_rows,
    norm,
    opened,
    start,
    stored_rows,
    train,
)
from support import INLINE, Cli

from expunge.jobs.fold import InlineFold
from expunge.jobs.plan import gather
from expunge.jobs.regression_deletion import leaving_rows
from expunge.jobs.update_regression import update_stored
from expunge.jobs.verifying_regression import FACTOR
from expunge.jobs.workspace import Workspace

LOWRANK = ("-p", "provenance=lowrank")
FROZEN = ("-p", "provenance=frozen")
HESSIAN = ("-p", "hessian=true")


def test_linear_models_by_every_method(cli: Cli, tmp_path: Path) -> None:
    """The same two deletions; what each leaves, against formulas on the rows that are stored."""
    start(cli, tmp_path, "linear", n=2400)
    names = {"delta": "d", "priu": "p", "priu-opt": "o", "closed-form": "c", "infl": "i"}
    given = ("-p", "iterations=300", "-p", "l2=0.1")
    for name in names.values():
        train(cli, name, "linear", "-p", "provenance=exact", *given)
    before = arrays(tmp_path, "d")["parameters"]
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    for method, name in names.items():
        report = delete(cli, *range(30), method=method)[name]
        assert (report["action"], report["method"]) == ("updated", method)
        after = arrays(tmp_path, name)
        x, y = left(tmp_path, name)
        n, l2 = len(x), 0.1
        np.testing.assert_allclose(after["gram"], x.T @ x, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(after["moment"], x.T @ y, rtol=1e-9, atol=1e-8)
        if method == "closed-form":
            wanted = np.linalg.solve(2 * x.T @ x / n + l2 * np.eye(D + 1), 2 * x.T @ y / n)
            np.testing.assert_allclose(after["parameters"][0], wanted, rtol=1e-9, atol=1e-12)
        checked = cli("verify", name, *INLINE)
        assert checked["distance"] <= FACTOR * checked["estimate"] + 1e-12 * norm(before)
        if method in ("delta", "priu"):
            assert checked["distance"] < 1e-10
        else:
            assert checked["estimate"] <= FACTOR * checked["distance"]
        shutil.rmtree(tmp_path / "ws")
        shutil.copytree(tmp_path / "copy", tmp_path / "ws")


def test_the_optimum_of_few_rows_is_far_from_where_a_descent_stops(
    cli: Cli, tmp_path: Path
) -> None:
    """Nearly all rows leave that gave a direction its curvature: the estimate knows it."""
    rng = np.random.default_rng(0)
    x = np.zeros((300, 2))
    x[:, 0], x[:100, 1] = rng.normal(size=300), rng.normal(size=100)
    x[0, 1] = 0.02
    y = x @ [1.0, 3.0] + 0.1 * rng.normal(size=300)
    y[0] = x[0] @ [1.0, 20.0]
    path = tmp_path / "rows.csv"
    lines = [f"{a},{b},{c}" for a, b, c in np.column_stack([x, y]).round(5)]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", path, "--format", "csv", "--label", "y")
    given = ("iterations=3000", "batch_size=300", "provenance=none", "validation=0", "l2=0")
    train(cli, "m", "linear", *(part for one in given for part in ("-p", one)))
    report = delete(cli, *range(1, 100), method="closed-form")["m"]
    assert report["action"] == "updated" and report["estimate"] > 0.5 * report["change"]
    cli("verify", "m", *INLINE)


def left(tmp_path: Path, model: str) -> tuple[np.ndarray, np.ndarray]:
    """The training rows that are stored."""
    rows = stored_rows(tmp_path, model)
    parts = [rows.cell(cell) for cell in range(rows.data_set.cells)]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


@pytest.mark.parametrize("kind", ["averaged", "lowrank", "frozen", "none"])
def test_the_normal_equations_need_no_exact_provenance(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, "linear")
    train(cli, "m", "linear", "-p", f"provenance={kind}", "-p", "iterations=200")
    for units in ((1, 2, 3), (4, 5)):
        report = delete(cli, *units, method="closed-form")["m"]
        assert (report["action"], report["method"]) == ("updated", "closed-form")
    x, y = left(tmp_path, "m")
    n, l2 = len(x), opened(tmp_path, "m").settings.l2
    wanted = np.linalg.solve(2 * x.T @ x / n + l2 * np.eye(D + 1), 2 * x.T @ y / n)
    np.testing.assert_allclose(arrays(tmp_path, "m")["parameters"][0], wanted, rtol=1e-9)
    checked = cli("verify", "m", *INLINE)
    assert checked["distance"] <= FACTOR * checked["estimate"] <= 100 * checked["distance"]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_priu_opt_and_infl(cli: Cli, tmp_path: Path, loss: str) -> None:
    start(cli, tmp_path, loss, n=2400)
    more = ("-p", "iterations=300", "-p", "l2=0.05")
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    found: dict[str, Any] = {}
    ways = (("o", "priu-opt", FROZEN), ("i", "infl", (*LOWRANK, *HESSIAN)))
    for name, method, given in ways:
        train(cli, name, loss, *given, *more)
        old = arrays(tmp_path, name).get("hessian", np.zeros(0))
        report = delete(cli, *range(40), method=method)[name]
        assert (report["action"], report["method"]) == ("updated", method)
        found[name] = cli("verify", name, *INLINE)
        assert found[name]["intact"]
        if name == "i":
            new = arrays(tmp_path, "i")["hessian"]
            assert 0.0 < np.trace(old - new) < 0.1 * np.trace(old)
        shutil.rmtree(tmp_path / "ws")
        shutil.copytree(tmp_path / "copy", tmp_path / "ws")
    for checked in found.values():
        assert checked["distance"] <= FACTOR * checked["estimate"]
        assert checked["estimate"] <= FACTOR * checked["distance"]


@pytest.mark.parametrize(("loss", "method"), [("linear", "priu-opt"), ("softmax", "infl")])
def test_sums_alone_are_enough_for_an_update(
    cli: Cli, tmp_path: Path, loss: str, method: str
) -> None:
    """Without provenance there is no trace to rebase and no estimate, so that jobs retrain."""
    start(cli, tmp_path, loss)
    for name, kind in (("m", "none"), ("e", "averaged")):
        train(cli, name, loss, "-p", f"provenance={kind}", *HESSIAN)
    with Workspace.open(tmp_path / "ws") as ws:
        data_set = ws.ledger.open_data_set("t", ws.root)[1]
        gathered = gather(data_set, np.arange(9), ws.ledger.salt, InlineFold())
    changes = []
    for name in ("m", "e"):
        rows = stored_rows(tmp_path, name, gathered.slots)
        outcome = update_stored(opened(tmp_path, name), rows, leaving_rows(rows, gathered), method)
        changes.append(outcome.updated.change)
        assert outcome.seconds > 0.0 and outcome.updated.starts.any() == (name == "e")
    np.testing.assert_allclose(changes[0], changes[1], rtol=1e-12)
    report = delete(cli, *range(9), method=method)
    assert report["m"]["action"] == "retrained" and report["e"]["action"] == "updated"


def test_methods_that_a_model_can_t_take_are_refused(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "logistic")
    train(cli, "m", "logistic", *LOWRANK)
    cli("forget", "--data", "t", "--unit", "3")
    run = ("batch", "run", "--yes", *INLINE, "--method")
    assert "priu-opt needs provenance=frozen, or a linear model" in cli(*run, "priu-opt", code=2)
    assert "closed-form needs a linear model; model m is logistic" in cli(
        *run, "closed-form", code=2
    )
    assert "infl needs hessian=true" in cli(*run, "infl", code=2)
    assert "priu needs provenance=exact" in cli(*run, "priu", code=2)
    assert cli(*run, "delta")["models"][0]["action"] == "updated"
    assert "hessian is 'maybe'" in train(cli, "x", "logistic", "-p", "hessian=maybe", code=2)


@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
def test_all_rows_may_leave(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, "linear", n=40)
    train(cli, "m", "linear", "-p", f"provenance={kind}", "-p", "batch_size=4")
    assert delete(cli, *range(39))["m"]["rows"] <= 1
    report = delete(cli, 39)["m"]
    assert report["rows"] == 0 and norm(arrays(tmp_path, "m")["parameters"]) == 0.0
    assert not arrays(tmp_path, "m")["gram"].any()


def test_one_row(cli: Cli, tmp_path: Path) -> None:
    import_rows(cli, tmp_path, np.array([[2.0, 3.0]]), np.array([5.0]))
    for name, kind in (("l", LOWRANK), ("f", FROZEN)):
        train(cli, name, "linear", "-p", "validation=0", "-p", "iterations=400", *kind)
        assert cli("predict", name, tmp_path / "t.csv")["labels"] == pytest.approx([5.0], rel=0.01)
    for report in delete(cli, 0).values():
        assert report["rows"] == 0
