"""How much faster an update is than BaseL, on one core, with the distance from the same run.

    python tests/bench/regression.py --dir DIR [--set NAME ...] [--rows N] [--rates one 0.001]

BaseL trains on the rows left, out of core and read ahead, by the faster of the fused loop and BLAS.
An update begins with the deleted rows in memory and ends with the new parameters; "stored" reads
the trajectory and the provenance it needs from disk, "memory" has them in memory. Both sides run in
this process, alternating, on one core; medians are shown. The a-posteriori estimate is shown over the
distance, and its seconds over those of the stored update. Data sets and models are kept in DIR.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
from rich.console import Console

from expunge.cluster.clients import connect
from expunge.jobs.console import table
from expunge.jobs.errors import JobError
from expunge.jobs.estimating import estimate_update
from expunge.jobs.fold import DaskFold, InlineFold
from expunge.jobs.importing import make_data_set
from expunge.jobs.plan import gather
from expunge.jobs.regression_arrays import RegressionModel, StoredAveraged, StoredExact, StoredTrace
from expunge.jobs.regression_deletion import leaving_rows
from expunge.jobs.regression_rows import RegressionRows
from expunge.jobs.regression_store import open_model, seal
from expunge.jobs.requests import sampled_units
from expunge.jobs.train_regression import Target, descend_stored
from expunge.jobs.training import parse_parameters, train
from expunge.jobs.update_outcome import Outcome
from expunge.jobs.update_regression import rebase_stored, update_stored
from expunge.jobs.workspace import Workspace
from expunge.pipeline.averaged import update_averaged
from expunge.pipeline.provenance import Blocks, Real
from expunge.pipeline.regression import AVERAGED, held_out
from expunge.pipeline.update import update
from expunge.pipeline.visits import Leaving, find_visits
from expunge.storage.files import sweep
from expunge.storage.versions import create_version

REPEATS = 5
SEEN = 1e-12
"""A change of less than this share of the parameters is their rounding: it has no relative distance."""
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@dataclass(frozen=True, slots=True)
class Setting:
    """A data set and the mini-batches of the paper's Table 2, trained to about its best accuracy."""

    algorithm: str
    like: str
    """The generator, or ``sgemm`` for the real file."""
    rows: int
    batch_size: int
    iterations: int
    demand: float | None
    """How many times faster an update for 0.1% of the rows should be, where that is asked."""
    learning_rate: float | None = None
    provenance: str | None = None


SETS = {
    "higgs": Setting("logistic", "higgs", 11_000_000, 2000, 20_000, 50),
    "cov-large-1": Setting("softmax", "covtype", 581_012, 10_000, 500, 40, 0.1, "averaged"),
    "cov-large-2": Setting("softmax", "covtype", 581_012, 10_000, 3000, None, 0.1),
    "cov-small": Setting("softmax", "covtype", 581_012, 200, 10_000, 20, 0.01),
    "heartbeat": Setting("softmax", "heartbeat", 87_553, 500, 5000, 10, 0.02),
    "sgemm": Setting("linear", "sgemm", 241_600, 200, 2000, 20),
}


class Held:
    """Provenance in memory."""

    longest_run = 10**9

    def __init__(self, model: RegressionModel) -> None:
        settings, version = model.settings, model.version
        tau = settings.iterations
        self.trace = StoredTrace(version).trace([(0, tau)], tau)
        self.blocks: Blocks = settings.composed
        self._model = model
        if settings.provenance == AVERAGED:
            stored = StoredAveraged(version, settings)
            self._eigen = [stored.eigen(k) for k in range(self.blocks.count)]
        else:
            self._exact = StoredExact(version, settings)
            self._packed = self._exact.packed(0, self.blocks.count)
            self._exact.product(0)

    def packed(self, first: int, last: int) -> np.ndarray[Any, Any]:
        """See ``provenance.Exact``."""
        return self._packed[self.blocks.span(first)[0] : self.blocks.span(last - 1)[1]]

    def product(self, block: int) -> np.ndarray[Any, Any] | None:
        """See ``provenance.Exact``."""
        return self._exact.product(block)

    def eigen(self, block: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """See ``provenance.Averaged``."""
        return self._eigen[block]

    def update(self, rows: RegressionRows, leaving: Leaving) -> np.ndarray[Any, np.dtype[Real]]:
        """Return the change of the parameters."""
        settings = self._model.settings
        visits = find_visits(settings.loss, rows.schedule, leaving, self.trace.trajectory)
        by = update_averaged if settings.provenance == AVERAGED else update
        return by(settings.descent, self.trace, self, visits).change


def made(ws: Workspace, name: str, setting: Setting, rows: int) -> str:
    """Make the data set and train the model unless they are there; return the model's name."""
    data, model = f"{setting.like}-{rows}", f"{name}-{rows}"
    known = {r["name"] for r in ws.ledger.rows("SELECT name FROM data_sets")}
    if data not in known:
        asked: dict[str, Any] = {
            "kind": "generate",
            "like": setting.like,
            "rows": rows,
            "features": None,
            "clusters": None,
            "seed": 0,
            "cells": None,
        }
        if setting.like == "sgemm":
            asked = {
                "kind": "import",
                "files": [str(DATA / "sgemm_product_dataset.zip")],
                "format": "sgemm",
                "label": None,
                "subject": None,
                "one_hot": [],
                "drop": [],
                "header": True,
                "cells": None,
                "drop_invalid": False,
            }
        make_data_set(ws, data, asked, lambda *_: None)
    if model not in {r["name"] for r in ws.ledger.rows("SELECT name FROM models")}:
        given = {"batch_size": str(setting.batch_size), "iterations": str(setting.iterations)}
        if setting.learning_rate is not None:
            given["learning_rate"] = str(setting.learning_rate)
        if setting.provenance is not None:
            given["provenance"] = setting.provenance
        parameters = parse_parameters(setting.algorithm, given)
        asked = {"data": data, "algorithm": setting.algorithm, "parameters": parameters, "seed": 0}
        fold = DaskFold(lambda: connect("local", 2, None, Path(tempfile.mkdtemp())))
        try:
            summary = train(ws, model, asked, fold)
        finally:
            fold.close()
        shown = {k: v for k, v in summary.items() if k not in ("settings", "digest")}
        Console().print(f"{name}: {shown}")
    return model


def measured(
    ws: Workspace, name: str, setting: Setting, model_name: str, rate: str
) -> dict[str, Any]:
    """One row of the table."""
    row, model = open_model(ws, model_name)
    _, data_set = ws.ledger.open_data_set(row["data_set"], ws.root)
    units = sampled_units(ws, row["data_set"], 0.001 if rate == "one" else float(rate), 3)
    if rate == "one":
        units = units[~held_out(units, model.settings)][:1]
    started = perf_counter()
    gathered = gather(data_set, units, ws.ledger.salt, InlineFold())
    gathering = perf_counter() - started
    rows = RegressionRows(data_set, model.settings, model.design, model.classes, gathered.slots)
    leaving = leaving_rows(rows, gathered)
    held = Held(model)
    held.update(rows, leaving)
    update_stored(model, rows, leaving, "delta")
    sides = ("fused", "blas", "stored", "memory", "estimate")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(REPEATS):
        for side in ("fused", "blas"):
            if repeat == 0 or side == _faster(seconds):
                started = perf_counter()
                w, _ = descend_stored(rows, None, lambda _: None, side == "fused")
                seconds[side].append(perf_counter() - started)
        for _ in range(3):
            outcome = update_stored(model, rows, leaving, "delta")
            seconds["stored"].append(outcome.seconds)
            estimate, _, estimating = estimate_update(model, rows, leaving, outcome)
            seconds["estimate"].append(estimating)
            started = perf_counter()
            change = held.update(rows, leaving)
            seconds["memory"].append(perf_counter() - started)
    rebasing, syncing = rebased(ws, model, rows, leaving, outcome)
    side = _faster(seconds)
    basel = median(seconds[side])
    stored, memory = median(seconds["stored"]), median(seconds["memory"])
    moved = float(np.linalg.norm(w - model.parameters))
    distance = float(np.linalg.norm(model.parameters.ravel() + change - w.ravel()))
    seen = moved > SEEN * float(np.linalg.norm(w))
    size = sum(f.stat().st_size for f in model.version.path.rglob("*") if f.is_file())
    return {
        "set": name,
        "rate": rate,
        "kind": model.settings.provenance,
        "P": model.parameters.size,
        "visits": len(outcome.when),
        "BaseL": basel,
        "by": side,
        "stored": stored,
        "ratio": basel / stored,
        "memory": memory,
        "ratio in memory": basel / memory,
        "distance / change": distance / moved if seen else "rounding",
        "estimate / distance": estimate.distance / distance if seen else "rounding",
        "estimate / update": median(seconds["estimate"]) / stored,
        "gather": gathering,
        "rebase": rebasing,
        "sync": syncing,
        "MB": size / 1e6,
        "demand": setting.demand if rate == "0.001" else None,
    }


def _faster(seconds: dict[str, list[float]]) -> str:
    return min(("fused", "blas"), key=lambda side: min(seconds[side]))


def rebased(
    ws: Workspace,
    model: RegressionModel,
    rows: RegressionRows,
    leaving: Leaving,
    outcome: Outcome,
) -> tuple[float, float]:
    """Write the next version and throw it away; return the seconds of rebase and sync."""
    path = ws.new_version_path("bench", 2)
    specs = dict(model.version.specs)
    small = ("parameters", "mean", "scale", "classes", "rows", "distance")
    with ws.lock("benchmark") as fence:
        target = Target(path, {n: s for n, s in specs.items() if n not in small}, fence)
        create_version(path, specs, {})
        started = perf_counter()
        fold = InlineFold()
        digests = rebase_stored(model, target, leaving, outcome, fold, lambda _: None)
        rebasing = perf_counter() - started
        started = perf_counter()
        w = model.parameters + outcome.updated.change.reshape(model.parameters.shape)
        seal(target, specs, digests, w, rows, replace(model.lineage))
        syncing = perf_counter() - started
        sweep(path)
    return rebasing, syncing


def main() -> None:
    """Measure the sets that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--rows", type=int, help="Rows to generate, instead of the paper's.")
    parser.add_argument("--rates", nargs="+", default=["one", "0.001"])
    parser.add_argument("--core", type=int, default=0)
    given = parser.parse_args()
    found = []
    root = given.dir / "workspace"
    with Workspace.open(root) if root.exists() else Workspace.create(root) as ws:
        for name in given.set:
            setting = SETS[name]
            try:
                model = made(ws, name, setting, given.rows or setting.rows)
                cores = os.sched_getaffinity(0)
                os.sched_setaffinity(0, {given.core})
                found += [measured(ws, name, setting, model, rate) for rate in given.rates]
                os.sched_setaffinity(0, cores)
            except JobError as error:
                Console().print(f"{name}: {error}")
    if found:
        Console(width=280).print(table(tuple(found[0]), [list(row.values()) for row in found]))


if __name__ == "__main__":
    main()
