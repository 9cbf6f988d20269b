"""A bulk deletion of random units through the ledger, beside the floor: plain loops, the same syncs.

    python tests/bench/bulk_deletion.py --rows 4000000 --units 4000 --dir /tmp/bulk

Makes a workspace in DIR (used again if it is there) with k-means, Q-k-means, DC-k-means and logistic
models on HIGGS-like rows, queues one request a unit, and runs one batch: updated, erased, verified,
receipts issued (``batch`` is the whole command, ``job_seconds`` all steps of its job, the workers'
start with the first). The floor does to copies of the same files what no program could leave out: pread the
deleted rows, overwrite them file by file, write the model blocks that the batch wrote, insert the
ledger's rows and the receipts. Where k-means truly changes, its passes are compared with passes by two
plain processes with the same kernel. Prints JSON: both, the ratio, and VmHWM of driver and workers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from bounded import watch  # type: ignore[import-not-found]
from numpy.typing import NDArray

from expunge.jobs.fold import InlineFold
from expunge.jobs.ledger import Ledger
from expunge.jobs.plan import gather
from expunge.jobs.requests import sampled_units
from expunge.jobs.train_kmeans import CellGroup, PassTask, assign_cells
from expunge.jobs.workspace import Workspace
from expunge.pipeline.fixedpoint import CENTROID_GRID, Scaling
from expunge.storage.dataset import DataSet
from expunge.storage.files import runs, sync_folder

DATA = "higgs"
MODELS = {
    "k-means": ("k-means", ()),
    "q-kmeans": ("q-kmeans", ()),
    "dc-kmeans": ("dc-kmeans", ()),
    "logistic": ("logistic", ("batch_size=2000",)),
}
Rows = dict[str, list[tuple[Any, ...]]]
"""Rows of the ledger by table."""
Changed = dict[str, Path]
"""Files that a batch wrote, by model and path in its version."""


def expunge(root: Path) -> list[str]:
    """The command line on a workspace."""
    return [sys.executable, "-m", "expunge.jobs.cli", "-w", str(root), "--json"]


def made(root: Path, given: argparse.Namespace) -> None:
    """Make the data set and the models that are not there yet."""
    command = expunge(root)
    if not root.exists():
        subprocess.run([*command, "init", str(root)], check=True, stdout=subprocess.DEVNULL)
    with Workspace.open(root) as ws:
        data = {row["name"] for row in ws.ledger.rows("SELECT name FROM data_sets")}
        models = {row["name"] for row in ws.ledger.rows("SELECT name FROM models")}
    if DATA not in data:
        rows = ["--like", "higgs", "--rows", str(given.rows)]
        run([*command, "data", "generate", DATA, *rows])
    for name, (algorithm, parameters) in MODELS.items():
        own = list(parameters)
        if algorithm == "logistic":
            own.append(f"iterations={given.iterations}")
        else:
            own.append(f"n_clusters={given.clusters}")
        if given.labels and algorithm in ("k-means", "q-kmeans"):
            own.append("provenance=labels")
        if name not in models:
            options = [part for text in own for part in ("-p", text)]
            cluster = ["--workers", str(given.workers), "--memory-limit", given.memory_limit]
            run(
                [
                    *command,
                    "train",
                    name,
                    "--data",
                    DATA,
                    "--algorithm",
                    algorithm,
                    *options,
                    *cluster,
                ]
            )


def run(command: list[str]) -> dict[str, Any]:
    """Run a command; return what it printed."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def live_versions(root: Path) -> dict[str, Path]:
    """The folder of every model's current version."""
    with Workspace.open(root) as ws:
        rows = ws.ledger.rows("SELECT model, folder FROM versions WHERE state = 'live'")
        return {row["model"]: ws.root / row["folder"] for row in rows}


def inodes(folders: dict[str, Path]) -> set[int]:
    """The files of some versions."""
    return {
        f.stat().st_ino for folder in folders.values() for f in folder.rglob("*") if f.is_file()
    }


def written(root: Path, before: set[int]) -> Changed:
    """The files that the batch wrote, and did not link."""
    found = {}
    for model, folder in live_versions(root).items():
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.stat().st_ino not in before:
                found[f"{model}/{file.relative_to(folder)}"] = file
    return found


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Take a part's seconds."""
    started = time.perf_counter()
    yield
    times[name] = time.perf_counter() - started


def floor(
    data_set: DataSet, slots: dict[int, NDArray[np.int64]], changed: Changed, root: Path, job: int
) -> dict[str, Any]:
    """Do to copies what no program could leave out; return each part's seconds."""
    folder = root.parent / "floor"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    times: dict[str, float] = {}
    copies = copied(data_set, list(slots), folder)
    with timed(times, "read"):
        for (cell, name), path in copies.items():
            pieces(path, slots[cell], width(data_set, name), write=False)
    with timed(times, "overwrite"):
        for (cell, name), path in copies.items():
            pieces(path, slots[cell], width(data_set, name), write=True)
    times["models"] = write_models(folder / "models", changed)
    rows = ledger_rows(root, job)
    with timed(times, "ledger"):
        write_ledger(folder / "ledger.sqlite", rows)
    shutil.rmtree(folder)
    entered = sum(map(len, rows.values()))
    return {"seconds": sum(times.values()), **times, "ledger_rows": entered}


def copied(data_set: DataSet, cells: list[int], folder: Path) -> dict[tuple[int, str], Path]:
    """Copies of the cells' files, synced and in the page cache, by cell and array."""
    found = {}
    for cell in cells:
        for name in ("unit", "x", "y"):
            path = folder / f"{name}-{cell}"
            shutil.copyfile(data_set.chunk(name, cell), path)
            found[cell, name] = path
    os.sync()
    return found


def width(data_set: DataSet, name: str) -> int:
    """Bytes of a slot of an array."""
    return {"unit": 8, "x": data_set.row_bytes, "y": 4}[name]


def pieces(path: Path, slots: NDArray[np.int64], size: int, write: bool) -> None:
    """Read the slots of a file, or overwrite them and sync."""
    descriptor = os.open(path, os.O_RDWR)
    offsets = slots * size
    for start, stop in runs(offsets, size):
        if write:
            os.pwrite(descriptor, bytes((stop - start) * size), int(offsets[start]))
        else:
            os.pread(descriptor, (stop - start) * size, int(offsets[start]))
    if write:
        os.fsync(descriptor)
    os.close(descriptor)


def write_models(folder: Path, changed: Changed) -> float:
    """Write the models' blocks as new files, all synced, and their folders; return the seconds.

    What they hold is read before, untimed.
    """
    seconds = 0.0
    for name, source in changed.items():
        path, content = folder / name, source.read_bytes()
        started = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(descriptor, content)
        os.fsync(descriptor)
        os.close(descriptor)
        seconds += time.perf_counter() - started
    started = time.perf_counter()
    for place in {(folder / name).parent for name in changed}:
        sync_folder(place)
    return seconds + time.perf_counter() - started


def ledger_rows(root: Path, job: int) -> Rows:
    """What the batch entered into the ledger."""
    source = sqlite3.connect(f"file:{root / 'ledger.sqlite'}?mode=ro", uri=True)
    found = {
        table: source.execute(f"SELECT * FROM {table} WHERE job = ?", (job,)).fetchall()
        for table in ("requests", "tombstones", "receipts", "versions")
    }
    # Fingerprints don't tell which job they are of.
    many = len(found["requests"])
    query = "SELECT * FROM erased_rows LIMIT ?"
    found["erased_rows"] = source.execute(query, (many,)).fetchall()
    source.close()
    return found


def write_ledger(path: Path, found: Rows) -> None:
    """Insert rows into a new ledger, which has the program's own settings, a transaction a table."""
    ledger = Ledger.create(path, bytes(16))
    for table, rows in found.items():
        with ledger.transaction():
            marks = ", ".join("?" * len(rows[0]))
            ledger.run_many(f"INSERT INTO {table} VALUES ({marks})", rows)
    ledger.close()


def plain_pass(data_set: DataSet, clusters: int) -> float:
    """Seconds of one warm Lloyd pass by two plain processes."""
    statistics = data_set.statistics()
    lower, upper = statistics.minimum.min(axis=0), statistics.maximum.max(axis=0)
    shape = (clusters, data_set.features)
    centroids = np.random.default_rng(0).integers(0, CENTROID_GRID, shape)
    half = data_set.cells // 2
    whole = PassTask(
        CellGroup(data_set, tuple(range(half))),
        Scaling.between(lower, upper),
        centroids,
        np.ones(clusters, np.bool_),
    )
    other = replace(whole, group=CellGroup(data_set, tuple(range(half, data_set.cells))))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for _ in range(2):
            started = time.perf_counter()
            pool.map(assign_cells, [whole, other], 1)
            seconds = time.perf_counter() - started
    return seconds


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Make what is needed, run the batch and the floor."""
    root = given.dir / "workspace"
    given.dir.mkdir(parents=True, exist_ok=True)
    made(root, given)
    with Workspace.open(root) as ws:
        _, data_set = ws.ledger.open_data_set(DATA, ws.root)
        live = int(data_set.statistics().live.sum())
        units = sampled_units(ws, DATA, given.units / live, given.seed)
        slots = gather(data_set, units, ws.ledger.salt, InlineFold()).slots
    listed = given.dir / "units.txt"
    listed.write_text("\n".join(map(str, units.tolist())))
    seconds = plain_pass(data_set, given.clusters)
    before = inodes(live_versions(root))
    command, spill = expunge(root), root / "spill"
    forgetting = watch([*command, "forget", "--data", DATA, "--units-file", str(listed)], spill)
    cluster = ["--workers", str(given.workers), "--memory-limit", given.memory_limit]
    batch = watch([*command, "batch", "run", "--yes", *cluster], spill)
    job = run([*command, "job", "list"])["jobs"][-1]["id"]
    report = run([*command, "job", "show", str(job)])["report"]
    changed = written(root, before)
    least = floor(data_set, slots, changed, root, job)
    parts, models = steps(command, job), report["models"]
    leaves = run([*command, "model", "show", "dc-kmeans"])["settings"]["n_leaves"]
    passes = sum(m["passes"] for m in models if m["model"] in ("k-means", "q-kmeans"))
    passes += sum(m["passes"] / leaves for m in models if m["model"] == "dc-kmeans")
    whole = least["seconds"] + passes * seconds
    return {
        "rows": live,
        "units": len(units),
        "cells": len(slots),
        "forget": forgetting,
        "batch": batch,
        "job_seconds": sum(parts.values()),
        "steps": parts,
        "floor": least,
        "ratio": sum(parts.values()) / least["seconds"],
        "passes": passes,
        "floor_with_passes": whole,
        "ratio_with_passes": sum(parts.values()) / whole,
        "blocks_written": len(changed),
        "bytes_in_blocks": sum(file.stat().st_size for file in changed.values()),
        "plain_pass_seconds": seconds,
        "models": [told(model, seconds) for model in models],
        "receipts": report["requests"],
    }


def steps(command: list[str], job: int) -> dict[str, float]:
    """Seconds of every step of the job."""
    found = run([*command, "job", "show", str(job)])["steps"]
    return {step["name"]: between(step["started"], step["finished"]) for step in found}


def between(started: str, finished: str) -> float:
    """Seconds between two times of the ledger."""
    return (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()


def told(model: dict[str, Any], plain: float) -> dict[str, Any]:
    """What became of a model; of k-means beside as many plain passes."""
    names = (
        *("model", "action", "reason", "passes", "looked_at", "leaves", "seconds"),
        *("update_seconds", "rebase_seconds", "sync_seconds", "estimate_seconds"),
    )
    found = {name: model[name] for name in names if name in model}
    if model["model"] in ("k-means", "q-kmeans") and model["passes"]:
        found["plain_passes_seconds"] = plain * model["passes"]
    return found


def main() -> None:
    """Measure what is asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=2000, help="of the logistic model")
    parser.add_argument("--labels", action="store_true", help="k-means keeps labels and margins")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory-limit", default="1GiB")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given), indent=1) + "\n")


if __name__ == "__main__":
    main()
