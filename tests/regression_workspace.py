"""A workspace with regression models, driven through the command line; what its tests share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from support import INLINE, Cli

from expunge.jobs.fold import InlineFold
from expunge.jobs.regression_arrays import (
    PRODUCT,
    Digests,
    RegressionModel,
    chunked_specs,
    grouped,
)
from expunge.jobs.regression_rows import RegressionRows
from expunge.jobs.regression_store import open_model
from expunge.jobs.train_regression import Target, capture_stored, descend_stored
from expunge.jobs.workspace import Workspace
from expunge.pipeline.regression import held_out
from expunge.storage.fence import make_fence, take_over
from expunge.storage.versions import create_version

D = 4
SMALL = ("-p", "iterations=60", "-p", "batch_size=150")
EXACT = ("-p", "provenance=exact")
AVERAGED = ("-p", "provenance=averaged")
REPORT = {
    "model",
    "algorithm",
    "action",
    "method",
    "kind",
    "change",
    "estimate",
    "share_deleted",
    "update_seconds",
    "rebase_seconds",
    "sync_seconds",
    "retrain_recommended",
    "exactness",
}


def problem(n: int = 1200, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows in units of their own, and a label a loss."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(n, D)) * [1, 3, 0.1, 10] + [0, 5, -1, 100]).astype(np.float32)
    z = ((x - [0, 5, -1, 100]) / [1, 3, 0.1, 10]) @ [1.0, -2.0, 0.5, 0.3]
    noisy = z + 0.5 * rng.normal(size=n)
    return x, {
        "linear": noisy.round(4),
        "logistic": np.where(noisy > 0, 7, 2),
        "softmax": np.digitize(noisy, [-1.0, 1.0]) * 10,
    }


def write_rows(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    header = ",".join([*(f"f{i}" for i in range(x.shape[1])), "y"])
    lines = [f"{','.join(map(str, row))},{label}" for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def import_rows(
    cli: Cli, tmp_path: Path, x: np.ndarray, y: np.ndarray, name: str = "t", cells: int = 16
) -> None:
    if not (tmp_path / "ws").exists():
        cli("init", tmp_path / "ws")
    path = write_rows(tmp_path / f"{name}.csv", x, y)
    given = ("--format", "csv", "--label", "y", "--cells", cells)
    cli("data", "import", name, path, *given)


def start(cli: Cli, tmp_path: Path, loss: str = "linear", n: int = 1200, cells: int = 16) -> None:
    """Make a workspace with a data set t whose label suits a loss."""
    x, labels = problem(n)
    import_rows(cli, tmp_path, x, labels[loss], cells=cells)


def train(
    cli: Cli, model: str, algorithm: str, *given: object, code: int = 0, data: str = "t"
) -> Any:
    arguments = ("--data", data, "--algorithm", algorithm, *SMALL, *given, *INLINE)
    return cli("train", model, *arguments, code=code)


def delete(cli: Cli, *units: int, method: str = "delta", data: str = "t") -> dict[str, Any]:
    """Delete units in one batch; return the reports by model."""
    cli("forget", "--data", data, "--unit", ",".join(map(str, units)))
    done = cli("batch", "run", "--yes", "--method", method, *INLINE)
    return {m["model"]: m for m in done["models"]}


def opened(tmp_path: Path, model: str) -> RegressionModel:
    with Workspace.open(tmp_path / "ws") as ws:
        return open_model(ws, model)[1]


def arrays(tmp_path: Path, model: str) -> dict[str, np.ndarray]:
    """All arrays of a model's version, each chunk checked."""
    version = opened(tmp_path, model).version
    return {name: version.read(name) for name in version.specs}


def stored_rows(
    tmp_path: Path, model: str, excluded: dict[int, np.ndarray] | None = None
) -> RegressionRows:
    """The rows that the model's settings see on the disk."""
    with Workspace.open(tmp_path / "ws") as ws:
        row, found = open_model(ws, model)
        _, data_set = ws.ledger.open_data_set(row["data_set"], ws.root)
    return RegressionRows(data_set, found.settings, found.design, found.classes, excluded or {})


def afresh(tmp_path: Path, model: str) -> tuple[np.ndarray, dict[str, dict[Any, str]]]:
    """Train on the rows that are stored, with a model's resolved settings, into a new folder.

    Opens no array of the model but its standardisation; returns parameters and chunks' digests.
    """
    rows = stored_rows(tmp_path, model)
    found = opened(tmp_path, model)
    products = PRODUCT in found.version.specs
    specs = chunked_specs(rows.settings, rows.parameters, products)
    path = tmp_path / "afresh.zarr"
    shutil.rmtree(path, ignore_errors=True)
    create_version(path, specs, {})
    fence = tmp_path / "fence"
    fence.unlink(missing_ok=True)
    make_fence(fence)
    target = Target(path, specs, take_over(fence))
    w, digests = fit(rows, target)
    return w, grouped(digests)


def fit(rows: RegressionRows, target: Target) -> tuple[np.ndarray, Digests]:
    def ignore(what: str) -> None:
        pass

    w, digests = descend_stored(rows, target if target.specs else None, ignore)
    return w, digests | capture_stored(rows, target, InlineFold(), ignore)


def norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values))


def chunks(version: Path) -> list[Path]:
    return sorted(version.glob("*/c.*"))


def visits_of(tmp_path: Path, model: str, units: list[int]) -> np.ndarray:
    """The iterations that use some units' rows, ascending."""
    rows = stored_rows(tmp_path, model)
    cells, slots = [], []
    for cell in range(rows.data_set.cells):
        found = rows.units(cell)
        here = np.flatnonzero(np.isin(found, units) & ~held_out(found, rows.settings))
        cells += [cell] * len(here)
        slots += here.tolist()
    return rows.schedule.visits(np.array(cells, np.int64), np.array(slots, np.int64))[0]
