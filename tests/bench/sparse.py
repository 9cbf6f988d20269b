"""How much faster an update of a sparse logistic model is than BaseL, and how near to it.

    python tests/bench/sparse.py [--rows 23149] [--rate 0.001] [--repeats 5] [--dir FOLDER]

Rows like RCV1's are generated and imported, a model is trained on them as in the PrIU paper
(mini-batches of 500, 3,000 iterations), at the default learning rate ("trained") and at the paper's
settings, and a share of the rows leaves. Both sides alternate in one process on one thread, from rows,
units and labels in memory: BaseL is the training's own compiled loop over compressed rows with lazily
scaled weight decay. The update reads its provenance from disk. Distance is to BaseL of the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np

from expunge.jobs.fold import InlineFold
from expunge.jobs.importing import make_data_set
from expunge.jobs.sparse_deletion import update_stored_sparse
from expunge.jobs.sparse_rows import SparseModelRows
from expunge.jobs.sparse_store import open_sparse_model
from expunge.jobs.sparse_training import descend
from expunge.jobs.training import train
from expunge.jobs.workspace import Workspace

SETTINGS = {
    "trained": {"l2": 1e-4},
    "paper": {"learning_rate": 1e-6, "l2": 0.5},
}
"""The paper's table gives (1e-6, 0.5) for RCV1."""


def _say(*what: object) -> None:
    print(*what, flush=True)


def measure(ws: Workspace, name: str, rate: float, repeats: int) -> None:
    """Print one line a method."""
    _, model = open_sparse_model(ws, name)
    _, data = ws.ledger.open_data_set("rcv1", ws.root)
    before = SparseModelRows(data, model.settings, model.classes)
    rng = np.random.default_rng(0)
    trained = np.flatnonzero(before.training)
    gone = np.sort(rng.choice(trained, max(1, round(rate * len(trained))), replace=False))
    excluded = {
        int(cell): gone[gone // data.capacity == cell] % data.capacity
        for cell in np.unique(gone // data.capacity)
    }
    after = SparseModelRows(data, model.settings, model.classes, excluded)
    for rows in (before, after):
        rows.hold()
    stays = np.ones(before.slots, np.bool_)
    stays[gone] = False
    seconds: dict[str, list[float]] = {"basel": [], "delta": [], "priu": []}
    changes = {}
    estimates = {"basel": 0.0}
    for repeat in range(repeats + 1):
        started = perf_counter()
        w, _ = descend(after, lambda what: None)
        times = {"basel": perf_counter() - started}
        changes["basel"] = w - model.parameters
        for method in ("delta", "priu"):
            started = perf_counter()
            found, _ = update_stored_sparse(model, before, stays, method)
            times[method] = perf_counter() - started
            changes[method], estimates[method] = found.change, found.estimate
        if repeat:
            for method, value in times.items():
                seconds[method].append(value)
    size = float(np.linalg.norm(changes["basel"]))
    basel = statistics.median(seconds["basel"])
    for method, change in changes.items():
        taken = statistics.median(seconds[method])
        distance = float(np.linalg.norm(change - changes["basel"])) / size
        _say(
            f"{name:8} {method:6} {len(gone):5} rows gone  {taken:8.4f} s  ratio {basel / taken:6.2f}"
            f"  distance/change {distance:.5f}  estimate/change {estimates[method] / size:.5f}"
        )


def main() -> None:
    """Generate, train, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=23_149)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    folder = given.dir or Path(tempfile.mkdtemp())
    with Workspace.create(folder / "workspace") as ws:
        asked = {"kind": "generate", "like": "rcv1", "rows": given.rows, "seed": 0, "cells": None}
        started = perf_counter()
        made = make_data_set(ws, "rcv1", asked, lambda what, share: None)
        _say(f"{made['rows']} x {made['features']} generated in {perf_counter() - started:.2f} s")
        for name, parameters in SETTINGS.items():
            job = {
                "data": "rcv1",
                "algorithm": "sparse-logistic",
                "parameters": {"batch_size": 500, "iterations": 3000, **parameters},
                "seed": 0,
            }
            done = train(ws, name, job, InlineFold())
            _say(
                f"{name}: learning rate {done['learning_rate']:.3g}, accuracy "
                f"{done['accuracy']:.4f} (majority {done['majority_rate']:.4f}), descent "
                f"{done['seconds_descent']:.2f} s, version {done['provenance']['bytes']:,} bytes"
            )
            measure(ws, name, given.rate, given.repeats)


if __name__ == "__main__":
    main()
