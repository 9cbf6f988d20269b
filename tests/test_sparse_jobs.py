"""Logistic models on sparse data sets: train, delete, verify, through the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import INLINE, Cli
from test_sparse_storage import problem, start, write_svmlight

from expunge.jobs import sparse_deletion, sparse_rows
from expunge.jobs.sparse_rows import SparseModelRows
from expunge.jobs.sparse_store import open_sparse_model
from expunge.jobs.sparse_training import descend
from expunge.jobs.workspace import Workspace
from expunge.storage.dataset import DataSet

SMALL = ("-p", "iterations=120", "-p", "batch_size=60", "-p", "l2=0.001")


def generate(cli: Cli, tmp_path: Path) -> None:
    """Rows whose columns few others have, as lazy features want them."""
    cli("init", tmp_path / "ws")
    cli("data", "generate", "s", "--like", "rcv1", "--rows", "1500")


def train(cli: Cli, *more: str) -> dict[str, object]:
    given = ("--data", "s", "--algorithm", "sparse-logistic", *SMALL, *more)
    found: dict[str, object] = cli("train", "m", *given, *INLINE)
    return found


def delete(cli: Cli, units: range, *more: str) -> dict[str, object]:
    cli("forget", "--data", "s", "--unit", ",".join(map(str, units)))
    return cli("batch", "run", "--yes", *more, *INLINE)["models"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["delta", "priu"])
def test_updates_add_up_and_are_verified(cli: Cli, tmp_path: Path, method: str) -> None:
    generate(cli, tmp_path)
    summary = train(cli)
    assert summary["rows"] + summary["validation_rows"] == 1500  # type: ignore[operator]
    for units in (range(3), range(3, 8)):
        found = delete(cli, units, "--method", method)
        assert (found["action"], found["method"]) == ("updated", method)
        assert found["exactness"] == "approximate"
    checked = cli("verify", "m", "--against", "basel", *INLINE)
    assert checked["intact"] and 0 < checked["distance"] < 0.01 * checked["change"]
    assert checked["rows"] == found["rows"]


def test_basel_is_a_training_without_the_rows(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, 600)
    train(cli)
    found = delete(cli, range(20), "--method", "basel")
    assert (found["action"], found["exactness"]) == ("retrained", "exact")
    assert cli("verify", "m", *INLINE)["distance"] == 0.0


def test_without_provenance_deletions_retrain(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, 600)
    assert train(cli, "-p", "provenance=none")["provenance"]["kind"] == "none"  # type: ignore[index]
    assert delete(cli, range(5))["action"] == "retrained"
    assert cli("verify", "m", *INLINE)["distance"] == 0.0


def test_rows_that_share_most_columns_are_trained_anew(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, 1200)
    train(cli)
    found = delete(cli, range(3))
    assert found["action"] == "retrained" and "estimated error" in str(found["reason"])
    assert cli("verify", "m", *INLINE)["distance"] == 0.0


def test_an_update_that_does_not_hold_is_replaced(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(cli, tmp_path)
    train(cli)
    monkeypatch.setattr(sparse_deletion, "HOLDS", 1e-12)
    found = delete(cli, range(5))
    assert found["action"] == "retrained" and "estimated error" in str(found["reason"])
    assert cli("verify", "m", *INLINE)["distance"] == 0.0


def test_everybody_may_leave(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, 60)
    train(cli)
    found = delete(cli, range(60))
    assert found["empty"] and found["action"] == "retrained"
    x, y = problem(3)
    rows = write_svmlight(tmp_path / "p.svm", x, y)
    assert "empty" in cli("predict", "m", rows, code=1)


def test_the_next_version_holds_no_term_of_a_deleted_row(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, 600)
    train(cli)
    data = DataSet.open(tmp_path / "ws" / "data" / "s.zarr")
    units = np.concatenate([data.read_units(c) for c in range(data.cells)])
    gone = np.isin(units, range(30))
    with Workspace.open(tmp_path / "ws") as ws:
        _, before = open_sparse_model(ws, "m")
        assert before.coefficients(0)[gone].any()
    delete(cli, range(30))
    with Workspace.open(tmp_path / "ws") as ws:
        row, model = open_sparse_model(ws, "m")
        rows = SparseModelRows(data, model.settings, model.classes)
        for epoch in range(rows.epochs):
            assert not model.coefficients(epoch)[gone].any()
    assert row["version"] == 2
    assert len(list((tmp_path / "ws" / "models" / "m").iterdir())) == 1


def test_windows_that_are_read_again_give_the_same(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set that is not held in memory: other mini-batches, but deletions follow BaseL too."""
    generate(cli, tmp_path)
    data = DataSet.open(tmp_path / "ws" / "data" / "s.zarr")
    monkeypatch.setattr(sparse_rows, "HELD_BYTES", 5 * data.entries * 8)
    train(cli)
    with Workspace.open(tmp_path / "ws") as ws:
        _, model = open_sparse_model(ws, "m")
        rows = SparseModelRows(data, model.settings, model.classes)
        assert model.settings.window == 5 and not rows.held
        w, c = descend(rows, lambda what: None)
        np.testing.assert_array_equal(w, model.parameters)
        for epoch in range(rows.epochs):
            order, _ = rows.epoch(epoch)
            assert set(order.tolist()) == set(np.flatnonzero(c[epoch]).tolist())
    assert delete(cli, range(4))["action"] == "updated"
    checked = cli("verify", "m", *INLINE)
    assert checked["distance"] < 0.01 * checked["change"]


def test_predictions_are_the_models(cli: Cli, tmp_path: Path) -> None:
    x, y = start(cli, tmp_path, 1200)
    train(cli)
    found = cli("predict", "m", write_svmlight(tmp_path / "p.svm", x[:200], y[:200]))
    assert np.mean(np.array(found["labels"]) == y[:200]) > 0.8
    shown = cli("model", "show", "m")
    assert shown["classes"] == [-1.0, 1.0] and len(shown["intercepts"]) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("-p", "l1=1"), "no parameter 'l1'"),
        (("-p", "provenance=exact"), "coefficients, none"),
        (("-p", "learning_rate=100", "-p", "l2=1"), "learning_rate times l2"),
    ],
)
def test_bad_parameters_are_refused(
    cli: Cli, tmp_path: Path, given: tuple[str, ...], why: str
) -> None:
    start(cli, tmp_path, 60)
    asked = ("--data", "s", "--algorithm", "sparse-logistic", *given)
    assert why in cli("train", "m", *asked, *INLINE, code=2)


@pytest.mark.parametrize("rate", ["1e110", "1e300"])
def test_a_training_that_diverges_stops(cli: Cli, tmp_path: Path, rate: str) -> None:
    start(cli, tmp_path, 300)
    given = ("--data", "s", "--algorithm", "sparse-logistic", *SMALL, "-p", "l2=0")
    told = cli("train", "m", *given, "-p", f"learning_rate={rate}", *INLINE, code=1)
    assert "training diverged by iteration" in told
    assert not (tmp_path / "ws" / "models" / "m").exists()
    assert cli("train", "m", *given, *INLINE)["objective"] < 1.0


@pytest.mark.parametrize("size", [1e-38, 1e38])
def test_rows_as_large_and_small_as_float32_holds(cli: Cli, tmp_path: Path, size: float) -> None:
    """What overflows in an update's estimate is told by no warning, and the model is trained again."""
    x, y = problem(300)
    cli("init", tmp_path / "ws")
    path = write_svmlight(tmp_path / "s.svm", x / np.abs(x).max() * size, y)
    cli("data", "import", "s", path, "--format", "svmlight")
    train(cli)
    found = delete(cli, range(5))
    assert found["action"] == ("retrained" if size > 1.0 else "updated")
    checked = cli("verify", "m", *INLINE)
    assert checked["intact"] and checked["distance"] <= 1e-4 * checked["change"]


def test_rows_without_features_are_known_to_rounding(cli: Cli, tmp_path: Path) -> None:
    """Only the bias moves: an estimate of nothing would make a failure of float32's rounding."""
    path = tmp_path / "empty.svmlight"
    path.write_text("1\n-1\n" * 30)
    cli("init", tmp_path / "ws")
    cli("data", "import", "s", path, "--format", "svmlight")
    train(cli, "-p", "iterations=40", "-p", "batch_size=10")
    cli("settings", "--verify", "retrain")
    for units in (range(2), range(2, 5)):
        assert delete(cli, units)["action"] == "updated"
    checked = cli("verify", "m", *INLINE)
    assert 0 < checked["estimate"] < 1e-4 * checked["change"]
    assert len(cli("receipt", "list")["receipts"]) == 5


def test_three_labels_are_refused(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    x, y = problem(60)
    y[:10] = 3
    cli("data", "import", "s", write_svmlight(tmp_path / "s.svm", x, y), "--format", "svmlight")
    asked = ("--data", "s", "--algorithm", "sparse-logistic")
    assert "two different labels" in cli("train", "m", *asked, *INLINE, code=2)


def test_dense_rows_are_refused(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "generate", "b", "--like", "gaussian", "--rows", "100")
    asked = ("--data", "b", "--algorithm", "sparse-logistic")
    assert "are dense" in cli("train", "m", *asked, *INLINE, code=2)
