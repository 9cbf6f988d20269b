"""Regressions have the same bits whatever trains and updates them: this process or several workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from regression_workspace import AVERAGED, EXACT, problem, write_rows
from support import INLINE

from expunge.jobs.cli import run

pytestmark = pytest.mark.slow
WAYS: dict[str, tuple[str, ...]] = {
    "lin": ("linear", *EXACT),
    "log": ("logistic", *EXACT),
    "log-av": ("logistic", *AVERAGED),
    "soft": ("softmax", *EXACT),
    "soft-av": ("softmax", *AVERAGED),
    "none": ("softmax", "-p", "provenance=none"),
}
GIVEN = ("-p", "iterations=60", "-p", "batch_size=150")


def life(
    root: Path, where: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    """Train, delete and verify in a new workspace; return what must not depend on ``where``."""
    rows, labels = problem(4800)
    path = write_rows(root / "t.csv", rows, labels["logistic"])

    def cli(*arguments: str) -> Any:
        capsys.readouterr()
        code = run(["-w", str(root / "ws"), "--json", *arguments])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    cli("init", str(root / "ws"))
    cli("data", "import", "t", str(path), "--format", "csv", "--label", "y", "--cells", "64")
    kept = ("digest", "objective", "accuracy", "mse", "learning_rate_limit")
    found = []
    for name, (algorithm, *given) in WAYS.items():
        arguments = ("--data", "t", "--algorithm", algorithm, *GIVEN, *given, *where)
        summary = cli("train", name, *arguments)
        found.append({key: summary.get(key) for key in kept})
    for units in ("3,4,900,17,2000", "11"):
        cli("forget", "--data", "t", "--unit", units)
        done = cli("batch", "run", "--yes", *where)
        assert done["tasks"] > 0 and done["bytes_read"] > 0
        told = ("digest", "change", "estimate", "action", "rows")
        found += [{key: m[key] for key in told} for m in done["models"]]
    assert cli("verify", "none", *where)["distance"] == 0.0
    return found


def test_workers_change_no_bit(
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Small tasks, so that there are several for each worker.
    for module, name in (("train", "CAPTURE_RATE"), ("update", "REBASE_RATE")):
        monkeypatch.setattr(f"expunge.jobs.{module}_regression.{name}", 1e4)
    found = []
    for root, where in ((tmp_path / "a", INLINE), (tmp_path / "b", ("--cluster", address))):
        root.mkdir()
        found.append(life(root, where, capsys))
    assert found[0] == found[1]
