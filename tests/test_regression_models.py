"""Regression models through the command line: exact ways, what a model says, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regression_workspace import (
    AVERAGED,
    EXACT,
    SMALL,
    D,
    afresh,
    arrays,
    delete,
    import_rows,
    norm,
    opened,
    problem,
    start,
    train,
    write_rows,
)
from support import INLINE, Cli

from expunge.jobs.cli import run
from expunge.pipeline.regression import held_out

# ---- exact ways


@pytest.mark.parametrize(
    ("algorithm", "kind", "method"),
    [
        ("linear", "none", "delta"),
        ("logistic", "exact", "basel"),
        ("softmax", "averaged", "basel"),
        ("softmax", "none", "basel"),
    ],
)
def test_retraining_is_exact(
    cli: Cli, tmp_path: Path, algorithm: str, kind: str, method: str
) -> None:
    start(cli, tmp_path, algorithm)
    train(cli, "m", algorithm, "-p", f"provenance={kind}")
    cli("forget", "--data", "t", "--unit", "3,4,900")
    plan = cli("batch", "run", "--dry-run", "--method", method, *INLINE)["models"]
    assert [m["action"] for m in plan] == ["retrained"]
    report = cli("batch", "run", "--yes", "--method", method, *INLINE)["models"][0]
    assert (report["action"], report["method"]) == ("retrained", "basel")
    assert report["exactness"] == "exact" and report["estimate"] == 0.0
    found = opened(tmp_path, "m")
    w, digests = afresh(tmp_path, "m")
    assert found.parameters.tobytes() == w.tobytes()
    assert {name: found.version.digests[name] for name in digests} == digests
    assert len(digests) == {"none": 0, "exact": 4, "averaged": 5}[kind]
    checked = cli("verify", "m", *INLINE)
    assert checked["distance"] == 0.0 and checked["method"] == "basel"
    receipt = cli("receipt", "show", "R00000001")
    assert "bit for bit" in receipt["statement"] and "residual" not in receipt["statement"]


def test_the_papers_own_form_agrees(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    train(cli, "m", "linear", *EXACT)
    report = delete(cli, 3, 4, 900, method="priu")["m"]
    assert (report["method"], report["exactness"]) == ("priu", "approximate")
    checked = cli("verify", "m", *INLINE)
    assert checked["distance"] <= 1e-10 * norm(arrays(tmp_path, "m")["parameters"])


# ---- what a model says


@pytest.mark.parametrize("algorithm", ["linear", "logistic", "softmax"])
def test_coefficients_are_in_the_features_units(cli: Cli, tmp_path: Path, algorithm: str) -> None:
    start(cli, tmp_path, algorithm)
    summary = train(cli, "m", algorithm, "-p", "iterations=300")
    assert summary["rows"] + summary["validation_rows"] == 1200
    x, labels = problem()
    shown = cli("model", "show", "m")
    assert shown["rows_at_fit"] == shown["rows"] == summary["rows"]
    assert shown["settings"]["learning_rate"] == summary["learning_rate"]
    values = x.astype(float) @ np.array(shown["coefficients"]).T + shown["intercepts"]
    found = np.array(cli("predict", "m", tmp_path / "t.csv")["labels"])
    held = held_out(np.arange(1200), opened(tmp_path, "m").settings)
    y = labels[algorithm]
    if algorithm == "linear":
        np.testing.assert_allclose(found, values[:, 0], rtol=1e-9, atol=1e-9)
        assert summary["mse"] == pytest.approx(np.square(found - y)[held].mean())
        assert summary["r2"] == pytest.approx(1 - summary["mse"] / y[held].var()) and (
            summary["r2"] > 0.9
        )
        return
    classes = np.array(shown["classes"])
    assert classes.tolist() == sorted(set(y.tolist()))
    chosen = values.argmax(axis=1) if algorithm == "softmax" else (values[:, 0] > 0).astype(int)
    assert (found == classes[chosen]).all()
    assert summary["accuracy"] == pytest.approx((found == y)[held].mean())
    shares = [(y[held] == c).mean() for c in classes]
    assert summary["majority_rate"] == pytest.approx(max(shares)) and (
        summary["accuracy"] > max(shares) + 0.2
    )


# ---- what is refused


@pytest.mark.parametrize(
    ("algorithm", "given", "code", "message"),
    [
        ("linear", ("-p", "l1=0.1"), 2, "l1 is not supported"),
        ("linear", ("-p", "epsilon=0.1"), 2, "it has learning_rate, l2, batch_size"),
        ("linear", ("-p", "learning_rate=fast"), 2, "'fast'"),
        ("linear", ("-p", "learning_rate=0"), 2, "must be positive"),
        ("linear", ("-p", "learning_rate=nan"), 2, "learning_rate is nan"),
        ("linear", ("-p", "learning_rate=inf"), 2, "learning_rate is inf"),
        ("linear", ("-p", "l2=-1"), 2, "must not be negative"),
        ("linear", ("-p", "l2=nan"), 2, "l2 is nan"),
        ("linear", ("-p", "batch_size=0"), 2, "at least 1"),
        ("linear", ("-p", "iterations=0"), 2, "at least 1"),
        ("linear", ("-p", "iterations=1.5"), 2, "'1.5'"),
        ("linear", ("-p", "validation=1"), 2, "[0, 1)"),
        ("linear", ("-p", "provenance=some"), 2, "exact, averaged, none"),
        ("linear", ("-p", "dtype=int8"), 2, "float32, float64"),
        ("logistic", (), 2, "different values"),
        ("softmax", (), 2, "softmax takes 2 to 1000"),
        ("linear", ("-p", "validation=0.9999999999"), 2, "validation share"),
        ("linear", ("--disk", "1KiB"), 1, "no provenance fits"),
        ("linear", ("--memory", "1B", *EXACT), 1, "provenance=none fits"),
        ("linear", ("-p", "learning_rate=1e6"), 1, "diverged at iteration"),
    ],
)
def test_bad_trainings_are_refused_and_leave_nothing(
    cli: Cli, tmp_path: Path, algorithm: str, given: tuple[str, ...], code: int, message: str
) -> None:
    start(cli, tmp_path)
    error = train(cli, "m", algorithm, *given, code=code)
    assert message in error and "Traceback" not in error
    assert not list((tmp_path / "ws/models").rglob("*.zarr*"))
    assert cli("model", "list")["models"] == []
    assert {j["state"] for j in cli("job", "list")["jobs"][1:]} <= {"failed"}
    train(cli, "m", "linear")


def test_other_bad_requests(cli: Cli, tmp_path: Path, csv_file: Any) -> None:
    start(cli, tmp_path, "softmax")
    assert "3 different values (0, 10, 20)" in train(cli, "m", "logistic", code=2)
    cli("data", "import", "bare", csv_file(problem(50)[0]), "--format", "csv")
    assert "import it with --label" in train(cli, "m", "linear", data="bare", code=2)
    train(cli, "m", "softmax", *AVERAGED)
    assert "it is basel" in cli("verify", "m", "--against", "retrain", *INLINE, code=2)
    cli("forget", "--data", "t", "--unit", 3)
    bad = ("batch", "run", "--yes", *INLINE, "--method")
    assert "delta, priu, basel" in cli(*bad, "guess", code=2)
    assert "needs provenance=exact" in cli(*bad, "priu", code=2)
    # Nothing is lost: the request is still there.
    assert cli("model", "show", "m")["version"] == 1
    assert cli("batch", "run", "--yes", *INLINE)["requests"] == 1


def test_a_label_that_is_no_number_stops_the_import(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    path = write_rows(tmp_path / "bad.csv", np.ones((2, 2)), np.array([1.0, np.nan]))
    given = ("--format", "csv", "--label", "y")
    assert "line 3" in cli("data", "import", "t", path, *given, code=2)


def test_a_learning_rate_beyond_the_limit_is_warned_of(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(cli, tmp_path)
    limit = train(cli, "m", "linear")["learning_rate_limit"]
    assert train(cli, "n", "linear", "-p", f"learning_rate={limit}")["warnings"] == []
    given = ("-p", f"learning_rate={1.01 * limit}", *SMALL, *INLINE)
    arguments = ("train", "o", "--data", "t", "--algorithm", "linear", *given)
    assert run(["-w", str(tmp_path / "ws"), "--json", *arguments]) == 0
    captured = capsys.readouterr()
    warned = json.loads(captured.out)["warnings"]
    assert len(warned) == 1 and f"exceeds 1/L = {limit:.4g}" in warned[0]
    assert captured.err == f"warning: {warned[0]}\n"


# ---- what can't be updated


@pytest.mark.parametrize("loss", ["linear", "logistic", "softmax"])
def test_no_deletion_waits_for_a_descent(cli: Cli, tmp_path: Path, loss: str) -> None:
    """All but two rows far out go: updates stray, and the linear model's retrain diverges too."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(101, D)).astype(np.float32)
    x[0], x[1] = 1000, [1000, -1000, 1000, -1000]
    labels = {
        "linear": x[:, 0] + rng.normal(size=101),
        "logistic": (rng.normal(size=101) > 0).astype(int),
        "softmax": rng.integers(0, 3, 101),
    }
    import_rows(cli, tmp_path, x, labels[loss])
    given = ("-p", "validation=0", "-p", "iterations=1000", *INLINE)
    for kind in ("exact", "averaged", "none"):
        arguments = ("--data", "t", "--algorithm", loss, "-p", f"provenance={kind}", *given)
        cli("train", kind, *arguments)
    done = delete(cli, *range(2, 101))
    action = "failed" if loss == "linear" else "retrained"
    for model, report in done.items():
        exactness = "none" if action == "failed" else "exact"
        assert (report["action"], report["exactness"]) == (action, exactness), report
        assert cli("model", "show", model)["failed"] == (action == "failed")
        found = cli("verify", model, *INLINE)
        assert found["distance"] == 0.0 and found["basel_diverges"] == (action == "failed")
    if action == "failed":
        rows = write_rows(tmp_path / "new.csv", x[:3], labels[loss][:3])
        assert "train a new model" in cli("predict", "exact", rows, "--format", "csv", code=1)
    done = delete(cli, 0, 1)
    for model, report in done.items():
        assert (report["action"], report["empty"]) == ("retrained", True)
        cli("verify", model, *INLINE)


def test_the_standardisation_goes_with_the_last_training_row(cli: Cli, tmp_path: Path) -> None:
    """The mean of equal rows is the row itself."""
    x = np.full((5, D), 3.25, np.float32) + np.arange(D, dtype=np.float32)
    import_rows(cli, tmp_path, x, np.array([0, 1, 0, 1, 1]))
    train(cli, "m", "logistic", "-p", "validation=0")
    delete(cli, *range(5))
    held = arrays(tmp_path, "m")
    assert not held["mean"].any() and (held["scale"] == 1.0).all()
    wanted = x[:1].astype(np.float64).tobytes()
    assert not any(wanted in array.tobytes() for array in held.values())
    cli("verify", "m", *INLINE)


@pytest.mark.parametrize("name", ["C", "parameters", "digests"])
def test_a_missing_file_is_a_fault(cli: Cli, tmp_path: Path, name: str) -> None:
    start(cli, tmp_path, "logistic")
    train(cli, "m", "logistic", *EXACT)
    next(opened(tmp_path, "m").version.path.glob(f"{name}/c*")).unlink()
    cli("verify", "m", *INLINE, code=5)


def test_sizes_of_nothing_are_refused(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path)
    for option in ("--memory", "--disk"):
        assert "above 0" in train(cli, "m", "linear", option, "0", code=2)
        arguments = ("--data", "t", "--algorithm", "k-means", option, "1GB", *INLINE)
        assert "regressions" in cli("train", "k", *arguments, code=2)
