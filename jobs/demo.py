"""``expunge demo``: the whole path on one machine, with every claim measured on the spot."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console

from ..pipeline.clusterers import QKMeans
from ..pipeline.regressors import LogisticRegression, SoftmaxRegression
from ..storage.dataset import DataSet
from ..storage.sentinel import PatternSet, scan_tree
from .batches import run_batch
from .console import Update, open_fold, table
from .errors import UsageError, VerifyError
from .fold import Fold
from .importing import make_data_set
from .plan import gather
from .requests import forget, sampled_units
from .scanning import scan
from .train_kmeans import warm_up
from .training import parse_parameters, train
from .verifying import verify_model
from .workspace import Workspace

DATA = "demo"
MARK = "made-by-expunge-demo"
MODELS = {
    "k-means": {"n_clusters": "10"},
    "q-kmeans": {"n_clusters": "10", "epsilon": "0.1"},
}
REGRESSION = {"batch_size": "2000", "iterations": "2000"}
CLASSIFIERS = {"higgs": "logistic", "covtype": "softmax"}
"""What is trained besides, by the format of the rows."""


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo measured."""

    result: dict[str, Any]

    def show(self, out: Console) -> None:
        """Print the table and where to look next."""
        names = ("what", "seconds", "touched", "retrain_seconds", "ratio")
        rows = [[row[n] for n in names] for row in self.result["table"]]
        out.print(table([n.replace("_", " ") for n in names], rows))
        ws = self.result["workspace"]
        out.print(f"{len(self.result['receipts'])} receipts: expunge -w {ws} receipt list")


def run_demo(
    folder: Path, rows: int, file: Path | None, format: str, deletions: int, update: Update
) -> Demo:
    """Run every step in a fresh folder and return what each took.

    Raises VerifyError if a model is not what a retrain gives (a regression: not as near as it says),
    if the control scan does not find the rows, or if the last scan still does.
    """
    _make_folder(folder)
    lines: list[dict[str, Any]] = []
    root = folder / "workspace"
    models = dict(MODELS)
    if (classifier := CLASSIFIERS.get("higgs" if file is None else format)) is not None:
        models[classifier] = REGRESSION
    with Workspace.create(root) as ws:
        _data(ws, rows, file, format, update, lines)
        with open_fold(ws, "local", None, None) as fold:
            with _timed(lines, "start workers, compile"):
                warm_up(DataSet.open(ws.data_path(DATA)), fold)
                _compile(folder)
            for model, given in models.items():
                _train(ws, model, given, fold, update, lines)
            values = _pick_rows(ws, folder, deletions, fold)
            _scan(ws, values, update, lines, expected=True)
            report = _delete(ws, fold, update, lines)
        with open_fold(ws, "local", None, None) as fold:
            for done in report["models"]:
                _verify(ws, done, fold, update, lines)
        _scan(ws, values, update, lines, expected=False)
    values.unlink()
    result = {
        "workspace": str(root),
        "receipts": report["receipts"],
        "models": report["models"],
        "table": lines,
    }
    return Demo(result)


def _compile(folder: Path) -> None:
    """Compile what this process runs, so that the times that follow are the work's own."""
    rows = np.random.default_rng(0).random((100, 8)).astype(np.float32)
    QKMeans(2, 0.5, random_state=0).fit(rows).delete([1])
    for kind in (LogisticRegression, SoftmaxRegression):
        kind(iterations=9, random_state=0).fit(rows, np.arange(100) % 2).delete([1])
    scan_tree([folder], PatternSet([(rows[0].tobytes(), 0, "float32")]))


def _make_folder(folder: Path) -> None:
    """Make the demo's folder anew; only what an earlier demo made is removed."""
    if folder.exists():
        if not (folder / MARK).is_file():
            raise UsageError(f"{folder} exists and was not made by the demo; choose another --dir")
        rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


@contextmanager
def _timed(lines: list[dict[str, Any]], what: str) -> Iterator[dict[str, Any]]:
    """Time a step and add its line; the step fills in what it touched."""
    line: dict[str, Any] = {"what": what, "touched": None, "retrain_seconds": None, "ratio": None}
    started = perf_counter()
    yield line
    line["seconds"] = perf_counter() - started
    lines.append(line)


def _data(
    ws: Workspace,
    rows: int,
    file: Path | None,
    format: str,
    update: Update,
    lines: list[dict[str, Any]],
) -> None:
    asked: dict[str, Any] = {"kind": "generate", "like": "higgs", "rows": rows, "seed": 0}
    asked |= {"features": None, "clusters": None, "cells": None}
    if file is not None:
        asked = {"kind": "import", "files": [str(file.absolute())], "format": format}
        asked |= {"label": None, "drop": [], "header": True, "cells": None, "drop_invalid": False}
        asked |= {"subject": None, "one_hot": []}
    with _timed(lines, f"{asked['kind']} data") as line:
        made = make_data_set(ws, DATA, asked, update)
        line["touched"] = f"{made['rows']:,} rows, {made['cells']} chunks"


def _train(
    ws: Workspace,
    model: str,
    given: dict[str, str],
    fold: Fold,
    update: Update,
    lines: list[dict[str, Any]],
) -> None:
    asked = {"data": DATA, "algorithm": model, "parameters": parse_parameters(model, given)}
    with _timed(lines, f"train {model}") as line:
        done = train(
            ws, model, {**asked, "seed": 0}, fold, lambda what: update(f"{model}: {what}", None)
        )
        passes = f"{done['passes']} passes" if "passes" in done else None
        line["touched"] = passes or f"{done['iterations']:,} iterations"


def _pick_rows(ws: Workspace, folder: Path, deletions: int, fold: Fold) -> Path:
    """Queue random rows for deletion and write their values to a file outside the workspace."""
    data_set = DataSet.open(ws.data_path(DATA))
    live = int(data_set.statistics().live.sum())
    units = sampled_units(ws, DATA, min(1.0, deletions / live), 1)
    forget(ws, DATA, units)
    rows = gather(data_set, np.sort(units), ws.ledger.salt, fold).removed.x
    path = folder / "rows-to-forget.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(data_set.feature_names)
        writer.writerows([[str(v) for v in row] for row in rows])
    return path


def _scan(
    ws: Workspace, values: Path, update: Update, lines: list[dict[str, Any]], expected: bool
) -> None:
    when = "before (control)" if expected else "after"
    with _timed(lines, f"scan {when}") as line:
        found = scan(ws, values, DATA, "csv", lambda a, b: update("scan", a / max(1, b)))
        here = f"{len(found['rows_found']):,} of {found['rows']:,} rows found"
        line["touched"] = f"{found['bytes_scanned'] / 1e6:,.0f} MB: {here}"
    complete = len(found["rows_found"]) + found["live_twins"] >= found["rows"]
    if (expected and not complete) or (not expected and found["matches"]):
        raise VerifyError(f"the scan {when} the batch found {found['matches']} matches")


def _delete(
    ws: Workspace, fold: Fold, update: Update, lines: list[dict[str, Any]]
) -> dict[str, Any]:
    with _timed(lines, "deletion batch") as line:
        report = run_batch(ws, fold, lambda what: update(what, None))
        line["touched"] = f"{report['rows']:,} rows, {report['cells']} chunks"
    for done in report["models"]:
        lines.append(
            {
                "what": f"  of which {done['model']}",
                "seconds": _seconds(done),
                "touched": _touched(done),
                "retrain_seconds": None,
                "ratio": None,
            }
        )
    return report


def _seconds(done: dict[str, Any]) -> float:
    """What an update took: a regression's until its parameters were out."""
    found: float = done.get("update_seconds", done["seconds"])
    return found


def _touched(done: dict[str, Any]) -> str:
    if "rebase_seconds" in done:
        later = done["rebase_seconds"] + done["sync_seconds"]
        return f"{done['action']}, 0 passes; rebase and sync {later:.2g} s more"
    step = "" if done["first_step"] is None else f" from step {done['first_step']}"
    return f"{done['action']}{step}, {done['passes']} passes"


def _verify(
    ws: Workspace, done: dict[str, Any], fold: Fold, update: Update, lines: list[dict[str, Any]]
) -> None:
    """Retrain on what is left, compare, and enter the retrain's time beside the update's."""
    model = done["model"]
    with _timed(lines, f"verify {model}") as line:
        found, fault = verify_model(ws, model, None, fold, lambda what: update(what, None))
        line["touched"] = _verdict(found)
    if fault is not None:
        raise VerifyError(fault)
    updated = next(row for row in lines if row["what"] == f"  of which {model}")
    retrain: float = found["retrain_seconds" if "exact" in found else "basel_seconds"]
    updated["retrain_seconds"] = retrain
    updated["ratio"] = retrain / _seconds(done)


def _verdict(found: dict[str, Any]) -> str:
    """What a verification found, in a few words."""
    if "exact" in found:
        return "bit for bit a retrain" if found["exact"] else "differs"
    if not found["change"]:
        return "no change"
    return f"{found['distance'] / found['change']:.2g} of the change from a retrain"
