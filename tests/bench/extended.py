"""What the extended experiments rest on, at N rows like HIGGS': each part beside what it can't beat.

    python tests/bench/extended.py --rows 4000000 --dir /tmp/extended [PART ...]

    generation  rows a second of making and importing rows, syncs included
    basel       BaseL / the slower of reading its rows through the same reader and the kernel on as many
                rows in memory; one core for all three, alternating
    pass        a Lloyd pass on two workers / two plain processes with the same reads and kernel
    dask-ml     seconds an iteration of dask-ml's KMeans / ours, on the same cluster and rows, where
                dask-ml can be imported (dask-ml keeps the rows in memory: give it fewer with --dask-rows)

Prints JSON. Rows and models are kept in DIR and used again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
from speed import stored_pass  # type: ignore[import-not-found]

from expunge.cluster.clients import connect
from expunge.jobs.fold import DaskFold
from expunge.jobs.importing import make_data_set
from expunge.jobs.regression_rows import RegressionRows
from expunge.jobs.regression_store import open_model
from expunge.jobs.threads import one_blas_thread
from expunge.jobs.train_regression import descend_stored
from expunge.jobs.training import parse_parameters, train
from expunge.jobs.workspace import Workspace
from expunge.pipeline.descent import Descender, Window
from expunge.storage import ingest
from expunge.storage.dataset import DataSet
from expunge.storage.generators import HiggsLike

DATA, MODEL = "higgs", "logistic"
HELD_BYTES = 256 << 20
"""Rows that the kernel alone runs over, again and again."""
SIDES = {"fused": True, "blas": False}


def workspace(given: argparse.Namespace) -> Workspace:
    """Open the workspace in DIR with its rows, or make it."""
    root = given.dir / f"workspace-{given.rows}"
    ws = Workspace.open(root) if (root / "ledger.sqlite").is_file() else Workspace.create(root)
    if ws.ledger.row("SELECT name FROM data_sets WHERE name = ?", DATA) is None:
        shape = {"like": "higgs", "rows": given.rows, "seed": 0, "cells": None}
        asked = {"kind": "generate", **shape, "features": None, "clusters": None}
        make_data_set(ws, DATA, asked, lambda *_: None)
    return ws


def bench_generation(given: argparse.Namespace) -> dict[str, Any]:
    """Make and import rows, once with all that is compiled warm."""
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        few = Path(folder) / "few.zarr"
        ingest.import_rows(HiggsLike(1000, 0), few, bytes(16), {})
        started, cpu = time.perf_counter(), time.process_time()
        target = Path(folder) / "rows.zarr"
        ingest.import_rows(HiggsLike(given.rows, 0), target, bytes(16), {})
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        size = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
    return {
        "seconds": seconds,
        "rows_per_second": given.rows / seconds,
        "cpu_seconds": cpu,
        "bytes": size,
    }


def bench_basel(given: argparse.Namespace) -> dict[str, Any]:
    """BaseL of HIGGS' mini-batches, its reads alone, and its kernel alone."""
    with workspace(given) as ws:
        if ws.ledger.row("SELECT name FROM models WHERE name = ?", MODEL) is None:
            # A model to take the standardisation from: short, and without provenance.
            asked = {"iterations": "200", "batch_size": "2000", "provenance": "none"}
            parameters = parse_parameters("logistic", asked)
            request = {"data": DATA, "algorithm": "logistic", "parameters": parameters, "seed": 0}
            with tempfile.TemporaryDirectory(dir=given.dir) as spill:
                fold = DaskFold(partial(connect, "local", 2, None, Path(spill)))
                train(ws, MODEL, request, fold)
                fold.close()
        _, model = open_model(ws, MODEL)
        _, data = ws.ledger.open_data_set(DATA, ws.root)
        settings = replace(model.settings, iterations=given.iterations, block=given.iterations)
        rows = RegressionRows(data, settings, model.design, model.classes, {})
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            return against_floors(rows, given.rounds)
        finally:
            os.sched_setaffinity(0, cores)


def against_floors(rows: RegressionRows, rounds: int) -> dict[str, Any]:
    """Time BaseL by its faster side, reading alone and the kernel alone, in turn."""
    held, taken = windows_held(rows), training_rows(rows)
    runs: dict[str, Callable[[], object]] = {}
    for name, fused in SIDES.items():
        runs[f"basel {name}"] = partial(descend_stored, rows, None, lambda _: None, fused)
        runs[f"kernel {name}"] = partial(kernel, rows, held, taken, fused)
    runs["reading"] = partial(training_rows, rows)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            with one_blas_thread():
                run()
            # The first round is to warm up.
            if number:
                times[name].append(time.perf_counter() - started)
    found = {name: median(seconds) for name, seconds in times.items()}
    side = min(SIDES, key=lambda name: found[f"basel {name}"])
    floor = max(found["reading"], found[f"kernel {side}"])
    return {
        "iterations": rows.settings.iterations,
        "rows": taken,
        "seconds": found,
        "side": side,
        "ratio": found[f"basel {side}"] / floor,
    }


def training_rows(rows: RegressionRows) -> int:
    """Read what BaseL reads, and do nothing with it; return the rows taken."""
    windows = rows.windows(0, rows.settings.iterations)
    return sum(len(window.labels) for window in windows)


def windows_held(rows: RegressionRows) -> list[Window]:
    """The first windows, as many as HELD_BYTES hold; at least one."""
    held, size = [], 0
    for window in rows.windows(0, rows.settings.iterations):
        held.append(window)
        size += window.rows.nbytes
        if size > HELD_BYTES:
            break
    return held


def kernel(rows: RegressionRows, held: list[Window], wanted: int, fused: bool) -> None:
    """Run the descent's kernel over windows in memory until so many rows were taken."""
    descender = Descender(rows.settings.descent, np.zeros((rows.outputs, rows.width)), None, fused)
    taken = 0
    while taken < wanted:
        for window in held:
            descender.take(window)
            taken += len(window.labels)


def bench_pass(given: argparse.Namespace) -> dict[str, Any]:
    """A Lloyd pass on two workers against two plain processes."""
    with workspace(given) as ws, tempfile.TemporaryDirectory(dir=given.dir) as spill:
        _, data = ws.ledger.open_data_set(DATA, ws.root)
        found: dict[str, Any] = stored_pass(data, Path(spill), given.rounds)
        return found


def bench_dask_ml(given: argparse.Namespace) -> dict[str, Any]:
    """An iteration of dask-ml's KMeans against a pass of ours, by the same two workers."""
    if importlib.util.find_spec("dask_ml") is None:
        return {
            "left_out": "dask-ml can't be imported here: pip install dask-ml, then run this part"
        }
    import dask.array as da
    from dask_ml.cluster import KMeans  # type: ignore[import-not-found]

    rows = min(given.rows, given.dask_rows)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        target = Path(folder) / "rows.zarr"
        data = ingest.import_rows(HiggsLike(rows, 0), target, bytes(16), {}).data_set
        ours = stored_pass(data, Path(folder), given.rounds)["expunge"]
        with connect("local", 2, None, Path(folder)) as client:
            parts = [da.from_array(live(data, cell)) for cell in range(data.cells)]
            x = client.persist(da.concatenate(parts))
            start = np.asarray(x[:10].compute())
            seconds = {}
            for steps in (2, 12):
                model = KMeans(10, init=start, max_iter=steps, tol=0.0)
                started = time.perf_counter()
                model.fit(x)
                seconds[steps] = time.perf_counter() - started
                iterations = model.n_iter_
    theirs = (seconds[12] - seconds[2]) / (iterations - 2)
    return {"rows": rows, "ours": ours, "dask-ml": theirs, "ratio": theirs / ours}


def live(data: DataSet, cell: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A cell's live rows."""
    found: np.ndarray[Any, np.dtype[np.float32]] = data.read_cell(cell)[data.read_units(cell) >= 0]
    return found


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "generation": bench_generation,
    "basel": bench_basel,
    "pass": bench_pass,
    "dask-ml": bench_dask_ml,
}


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=2000, help="of BaseL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dask-rows", type=int, default=4_000_000)
    parser.add_argument("--clean", action="store_true", help="remove the workspace at the end")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    for name in given.parts or PARTS:
        found = {"part": name, "rows_asked": given.rows, **PARTS[name](given)}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    if given.clean:
        shutil.rmtree(given.dir / f"workspace-{given.rows}", ignore_errors=True)


if __name__ == "__main__":
    main()
