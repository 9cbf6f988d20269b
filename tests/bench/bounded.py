"""Peak memory of driver and workers at n and 4 n rows: generation, training, a deletion batch.

    python tests/bench/bounded.py --rows 4000000 --dir /tmp/bounded

prints JSON: VmHWM of each process in bytes per command, workers restarted, bytes spilled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

LOGISTIC = ["-p", "iterations=2000", "-p", "batch_size=2000"]


def high_water(pid: int) -> int:
    """VmHWM of a process in bytes, 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) * 1024 if found else 0


def watch(command: list[str], spill: Path) -> dict[str, Any]:
    """Run a command; return seconds, the peak of its process and of every worker, and spill."""
    peaks: dict[int, int] = {}
    spilled = 0
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        driver = psutil.Process(child.pid)
        while child.poll() is None:
            for process in [driver, *children(driver)]:
                peaks[process.pid] = max(peaks.get(process.pid, 0), high_water(process.pid))
            spilled = max(spilled, size_below(spill))
            time.sleep(0.02)
        errors = child.stderr.read().decode() if child.stderr else ""
    if child.returncode:
        raise SystemExit(errors)
    workers = [peak for pid, peak in peaks.items() if pid != child.pid]
    return {
        "seconds": time.perf_counter() - started,
        "driver_peak_bytes": peaks.get(child.pid, 0),
        "worker_peak_bytes": sorted(p for p in workers if p > 60 << 20),
        "spilled_bytes": spilled,
    }


def children(driver: psutil.Process) -> list[psutil.Process]:
    try:
        return list(driver.children(recursive=True))
    except psutil.Error:
        return []


def size_below(spill: Path) -> int:
    """Bytes that workers have spilled; folders may vanish meanwhile."""
    total = 0
    for folder, _, names in os.walk(spill):
        for name in names if Path(folder).name == "storage" else []:
            with suppress(OSError):
                total += (Path(folder) / name).stat().st_size
    return total


def measure(rows: int, folder: Path, limit: str) -> dict[str, Any]:
    """All commands at one size."""
    shutil.rmtree(folder, ignore_errors=True)
    expunge = [sys.executable, "-m", "expunge.jobs.cli", "-w", str(folder), "--json"]
    local = ["--cluster", "local", "--workers", "2", "--memory-limit", limit]
    subprocess.run([*expunge, "init", str(folder)], check=True, stdout=subprocess.DEVNULL)
    model = ["--data", "h", "--algorithm", "q-kmeans", "-p", "n_clusters=10", "-p", "epsilon=0.05"]
    steps = {
        "generate": ["data", "generate", "h", "--like", "higgs", "--rows", str(rows)],
        "train": ["train", "q", *model, *local],
        "train_k_means": ["train", "k", *model[:2], "--algorithm", "k-means", *local],
        "train_logistic": ["train", "l", *model[:2], "--algorithm", "logistic", *LOGISTIC, *local],
        "forget": ["forget", "--data", "h", "--sample", "0.001"],
        "batch": ["batch", "run", "--yes", *local],
    }
    found = {name: watch([*expunge, *step], folder / "spill") for name, step in steps.items()}
    shutil.rmtree(folder)
    return {"rows": rows, "memory_limit": limit, **found}


def main() -> None:
    """Measure at the asked size and at a quarter of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--memory-limit", default="512MiB")
    parser.add_argument("--dir", type=Path, required=True)
    given = parser.parse_args()
    quarter, whole = (
        measure(rows, given.dir, given.memory_limit) for rows in (given.rows // 4, given.rows)
    )
    steps = [name for name in whole if isinstance(whole[name], dict)]
    growth = {
        name: {
            "driver": whole[name]["driver_peak_bytes"] / quarter[name]["driver_peak_bytes"],
            "workers": max(whole[name]["worker_peak_bytes"], default=1)
            / max(quarter[name]["worker_peak_bytes"], default=1),
        }
        for name in steps
    }
    sys.stdout.write(json.dumps({"runs": [quarter, whole], "growth": growth}, indent=1) + "\n")


if __name__ == "__main__":
    main()
