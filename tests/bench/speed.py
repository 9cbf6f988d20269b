"""Speed against named baselines, both sides alternating in one run; prints JSON.

    python tests/bench/speed.py pass      the fused pass in memory / scikit-learn's Lloyd iteration
    python tests/bench/speed.py stored    a pass over a stored data set / two plain processes
    python tests/bench/speed.py import    importing a csv file, syncs included / pyarrow.csv reading it

Ratios are baseline over ours for ``pass`` (above 1: faster), ours over baseline for the others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "2")

import numba
import numpy as np
import pyarrow
import pyarrow.csv
from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense
from threadpoolctl import threadpool_limits

from expunge.cluster.clients import connect
from expunge.jobs.fold import DaskFold
from expunge.jobs.train_kmeans import CellGroup, PassTask, StoredPasses, assign_cells
from expunge.pipeline.arrays import ArrayPasses
from expunge.pipeline.fixedpoint import CENTROID_GRID, ROW_GRID, Scaling
from expunge.storage import ingest
from expunge.storage.dataset import DataSet
from expunge.storage.generators import HiggsLike
from expunge.storage.importers import open_source

SHAPES = [(1_000_000, 28, 10), (1_000_000, 54, 7), (500_000, 28, 64), (60_000, 784, 10)]
ROUNDS = 25


def alternate(sides: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each side, run in turn after one warm-up each."""
    for run in sides.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            # OpenMP's threads spin for a while after their work: let them sleep first.
            time.sleep(0.02)
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in times.items()}


def bench_pass() -> list[dict[str, Any]]:
    """One Lloyd iteration on rows in memory."""
    results = []
    for n, d, k in SHAPES:
        rng = np.random.default_rng(0)
        x = rng.random((n, d), dtype=np.float32)
        rows = ArrayPasses(x, np.arange(n), np.zeros(n, np.int64))
        extent = rows.extent()
        scaling = Scaling.between(extent.lower, extent.upper)
        fixed = rows.fixed(scaling)
        centroids = (fixed[rng.choice(n, k, replace=False)].astype(np.int64) + 1) // 2
        scaled = (fixed / ROW_GRID).astype(np.float32)
        start = (centroids / CENTROID_GRID).astype(np.float32)
        weights, labels = np.ones(n, np.float32), np.zeros(n, np.int32)
        new, sizes, shift = start.copy(), np.zeros(k, np.float32), np.zeros(k, np.float32)
        for threads in (1, 2):
            numba.set_num_threads(threads)
            theirs = partial(lloyd_iter_chunked_dense, scaled, weights, start, new, sizes, labels)
            with threadpool_limits(1):
                found = alternate(
                    {
                        "expunge": partial(rows.assign, scaling, centroids, np.ones(k, np.bool_)),
                        "scikit-learn": partial(theirs, shift, threads),
                    }
                )
            ratio = found["scikit-learn"] / found["expunge"]
            results.append({"shape": [n, d, k], "threads": threads, **found, "ratio": ratio})
    return results


def bench_stored(folder: Path) -> list[dict[str, Any]]:
    """One pass over 4,000,000 x 28 stored rows on two workers."""
    rows = 4_000_000
    data = ingest.import_rows(HiggsLike(rows, 0), folder / "h.zarr", bytes(16), {}).data_set
    (folder / "spill").mkdir()
    return [stored_pass(data, folder / "spill")]


def stored_pass(data: DataSet, spill: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Time a Lloyd pass (k 10) over a stored data set on two workers, beside two plain processes."""
    statistics_ = data.statistics()
    scaling = Scaling.between(statistics_.minimum.min(axis=0), statistics_.maximum.max(axis=0))
    centroids = np.random.default_rng(0).integers(0, CENTROID_GRID, (10, data.features))
    present = np.ones(10, np.bool_)
    whole = PassTask(CellGroup(data, tuple(range(data.cells))), scaling, centroids, present)
    half = data.cells // 2
    parts = (range(half), range(half, data.cells))
    halves = [replace(whole, group=CellGroup(data, tuple(part))) for part in parts]
    context = multiprocessing.get_context("spawn")
    fold = DaskFold(partial(connect, "local", 2, None, spill))
    with context.Pool(2) as pool:
        stored = StoredPasses(data, statistics_, fold)
        found = alternate(
            {
                "expunge": partial(stored.assign, scaling, centroids, present),
                "two processes": partial(pool.map, assign_cells, halves, 1),
            },
            rounds,
        )
        fold.close()
    rows = int(statistics_.live.sum())
    ratio = found["expunge"] / found["two processes"]
    return {"shape": [rows, data.features, 10], **found, "ratio": ratio}


def bench_import(folder: Path) -> list[dict[str, Any]]:
    """Import 1,000,000 rows of an uncompressed HIGGS file that is in the page cache."""
    path = folder / "HIGGS.csv"
    with path.open("w") as out:
        for block in HiggsLike(1_000_000, 0).blocks():
            labels = block.y if block.y is not None else np.zeros(len(block.x))
            np.savetxt(out, np.c_[labels, block.x], fmt="%.18e", delimiter=",")
    numbers = iter(range(10_000))
    pyarrow.set_cpu_count(2)

    def ours() -> None:
        target = folder / f"{next(numbers)}.zarr"
        ingest.import_rows(open_source([path], "higgs"), target, bytes(16), {})

    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    theirs = partial(pyarrow.csv.read_csv, path, read_options=options)
    found = alternate({"expunge": ours, "pyarrow.csv": theirs}, 3)
    size = path.stat().st_size
    return [{"bytes": size, **found, "ratio": found["expunge"] / found["pyarrow.csv"]}]


def main() -> None:
    """Run the benchmarks that are named, or all."""
    benches: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        "pass": lambda folder: bench_pass(),
        "stored": bench_stored,
        "import": bench_import,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "bench", nargs="*", metavar="BENCH", help=f"of {', '.join(benches)}; else all"
    )
    asked = parser.parse_args().bench
    unknown = sorted(set(asked) - set(benches))
    if unknown:
        parser.error(f"{unknown[0]}: there are {', '.join(benches)}")
    for name in asked or benches:
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(json.dumps({"bench": name, "results": benches[name](Path(folder))}))
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
