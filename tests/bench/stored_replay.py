"""Deletions from stored k-means that keeps labels and margins, one random row at a time; prints JSON.

    python tests/bench/stored_replay.py --rows 16000000 --dir /tmp/replay
    python tests/bench/stored_replay.py --rows 1000000 --epsilons 0 --dir /tmp/replay

Of each epsilon (0 is k-means, "rule" the rule of thumb): seconds, bytes read and written of the update (from
the gathered row to the next version, synced; gathering, commit and erasure are not in it), as shares of the
data set's features, what deletions came to, rows looked at; training, and a retrain at the end without labels
and margins, to which the model is compared bit for bit. The folder is made anew and removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from expunge.jobs import kmeans_models
from expunge.jobs.batches import run_batch
from expunge.jobs.console import open_fold
from expunge.jobs.fold import Fold, InlineFold
from expunge.jobs.importing import make_data_set
from expunge.jobs.model_family import Change, NextVersion
from expunge.jobs.requests import forget, sampled_units
from expunge.jobs.train_kmeans import warm_up
from expunge.jobs.training import parse_parameters, train
from expunge.jobs.verifying import verify_model
from expunge.jobs.workspace import Workspace
from expunge.storage.dataset import DataSet
from expunge.storage.files import metered

DATA, MODEL = "rows", "model"


@dataclass
class Taken:
    """What the updates took."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Seconds of this process: what is left of ``seconds`` on a machine with other work to do."""
    read: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    looked_at: list[int] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure every update of a model inside the block."""
        real = kmeans_models.next_version

        def measured(change: Change) -> NextVersion:
            started, processor = time.perf_counter(), time.process_time()
            with metered() as meter:
                found = real(change)
            self.seconds.append(time.perf_counter() - started)
            self.processor.append(time.process_time() - processor)
            self.read.append(meter.bytes_read)
            self.written.append(meter.bytes_written)
            self.looked_at.append(found.report["looked_at"])
            self.actions[found.report["action"]] += 1
            return found

        kmeans_models.next_version = measured
        try:
            yield
        finally:
            kmeans_models.next_version = real


def nothing(*_: object) -> None:
    """Progress that is not shown."""


def asked_of(epsilon: str, given: argparse.Namespace) -> dict[str, Any]:
    """What a training is asked for."""
    algorithm = "k-means" if epsilon == "0" else "q-kmeans"
    parameters = {"n_clusters": str(given.clusters), "max_iter": str(given.steps)}
    parameters["provenance"] = "labels"
    if epsilon not in ("0", "rule"):
        parameters["epsilon"] = epsilon
    parsed = parse_parameters(algorithm, parameters)
    return {"data": DATA, "algorithm": algorithm, "parameters": parsed, "seed": 0}


def bench(epsilon: str, given: argparse.Namespace) -> dict[str, Any]:
    """Generate, train, delete one by one, verify."""
    shutil.rmtree(given.dir, ignore_errors=True)
    try:
        with Workspace.create(given.dir / "ws") as ws:
            asked = {"kind": "generate", "like": given.like, "rows": given.rows, "seed": 0}
            asked |= {"features": None, "clusters": None, "cells": None}
            make_data_set(ws, DATA, asked, nothing)
            return run(ws, epsilon, given)
    finally:
        shutil.rmtree(given.dir, ignore_errors=True)


def run(ws: Workspace, epsilon: str, given: argparse.Namespace) -> dict[str, Any]:
    """The same for a workspace that has the rows."""
    data_set = DataSet.open(ws.data_path(DATA))
    size = given.rows * data_set.row_bytes
    with open_fold(ws, "local", given.workers, None) as fold:
        warm_up(data_set, fold)
        kept = train(ws, MODEL, asked_of(epsilon, given), fold, nothing)
    taken, inline = Taken(), InlineFold()
    units = sampled_units(ws, DATA, min(1.0, 2 * (given.deletions + 1) / given.rows), 1)
    order = np.random.default_rng(0).permutation(units)[: given.deletions + 1]
    with taken.measuring():
        whole = [_one(ws, int(unit), inline) for unit in order]
    return {
        "rows": given.rows,
        "features": data_set.features,
        "cells": data_set.cells,
        "epsilon": kept["settings"]["epsilon"],
        "steps": kept["steps"],
        "provenance_bytes": kept["provenance"]["bytes"],
        "train_seconds": kept["seconds"],
        "deletions": given.deletions,
        "actions": dict(taken.actions),
        "update_seconds": _told(taken.seconds[1:]),
        "processor_seconds": _told(taken.processor[1:]),
        "read_share": _told([r / size for r in taken.read[1:]]),
        "written_share": _told([w / size for w in taken.written[1:]]),
        "looked_at": _told([float(n) for n in taken.looked_at[1:]]),
        "batch_seconds": _told(whole[1:]),
        **_retrained(ws, given),
    }


def _one(ws: Workspace, unit: int, fold: Fold) -> float:
    forget(ws, DATA, np.array([unit]))
    started = time.perf_counter()
    run_batch(ws, fold, nothing)
    return time.perf_counter() - started


def _told(values: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "max": max(values),
    }


def _retrained(ws: Workspace, given: argparse.Namespace) -> dict[str, Any]:
    """Train on the rows left, and compare."""
    with open_fold(ws, "local", given.workers, None) as fold:
        found, fault = verify_model(ws, MODEL, None, fold, nothing)
    return {"retrain_seconds": found["retrain_seconds"], "exact": fault is None}


def main() -> None:
    """Run every epsilon that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, required=True, help="made anew, removed at the end")
    parser.add_argument("--like", default="higgs")
    parser.add_argument("--epsilons", nargs="+", default=["0", "rule"])
    parser.add_argument("--deletions", type=int, default=100)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    for epsilon in given.epsilons:
        sys.stdout.write(json.dumps(bench(epsilon, given)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
