"""Memory is arithmetic: measured peaks of tasks stay below their projections, and near them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.bounded import measure

from expunge.jobs.errors import JobError
from expunge.jobs.memory import RESERVED, check_memory, gather_bytes, pass_bytes

MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from expunge.jobs import plan, train_kmeans as tk
from expunge.jobs.erasure import EraseTask, erase_cells
from expunge.storage.erase import measure_cell
from expunge.storage.fence import make_fence, take_over
from expunge.pipeline.fixedpoint import Scaling
from expunge.storage import ingest
from expunge.storage.cells import cell_of, hash_units
from expunge.storage.generators import GaussianMixture

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith(name + ":")) * 1024

def peak(task, argument):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    task(argument)
    return status("VmHWM") - before

def tasks(folder, rows, features, clusters):
    source = GaussianMixture(rows, features, 3, 0)
    data = ingest.import_rows(source, folder, bytes(16), {}, cells=1).data_set
    scaling = Scaling(np.zeros(features), np.ones(features))
    centroids = np.arange(clusters * features).reshape(clusters, features) * 1000
    present = np.ones(clusters, bool)
    task = tk.PassTask(tk.CellGroup(data, (0,)), scaling, centroids, present)
    units = np.arange(0, rows, 100)
    statistics = data.statistics()
    extreme = data.read_units(0)[int(np.argmin(data.read_cell(0)[:, 0]))]
    wanted = {0: np.unique(np.r_[units, extreme])}
    gathering = plan.GatherTask(data, wanted, {0: statistics})
    return data, task, gathering

folder, rows, features, clusters = Path(sys.argv[1]), *map(int, sys.argv[2:])
small = tasks(folder / "small", 50, features, clusters)
data, task, gathering = tasks(folder / "big", rows, features, clusters)
runs = {"assign": (tk.assign_cells, 1), "race": (tk.race_cells, 1), "square": (tk.square_cells, 1)}
found = {}
for name, (run, place) in runs.items():
    run(small[place])
    tk._buffers.cell = None
    found[name] = peak(run, task)
plan.gather_cells(small[2])
tk._buffers.cell = None
found["gather"] = peak(plan.gather_cells, gathering)
measured = lambda data: measure_cell(data, 0)
measured(small[0])
found["measure"] = peak(measured, data)
make_fence(folder / "fence")
fence = take_over(folder / "fence")
slots = np.flatnonzero(np.isin(data.read_units(0), gathering.wanted[0])).astype(np.int64)
erase_cells(EraseTask(fence, small[0], {0: np.array([1], np.int64)}, {}))
found["erase"] = peak(erase_cells, EraseTask(fence, data, {0: slots}, {}))
print(json.dumps({"capacity": data.capacity, "gathered": len(gathering.wanted[0]), **found}))
"""


@pytest.mark.parametrize(
    ("rows", "features", "clusters"), [(120_000, 28, 10), (400_000, 5, 40), (5_000, 784, 10)]
)
def test_measured_peaks_are_below_their_projections(
    tmp_path: Path, rows: int, features: int, clusters: int
) -> None:
    command = [sys.executable, "-c", MEASURE, str(tmp_path), *map(str, (rows, features, clusters))]
    # What is freed goes back at once, so that each task's growth is its own.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **settings}
    )
    found = json.loads(done.stdout)
    projected = pass_bytes(found["capacity"], features, clusters)
    for name in ("assign", "race", "square"):
        assert found[name] <= projected, name
    # A projection that is far too large would refuse what fits.
    assert found["race"] >= 0.5 * projected
    projected = gather_bytes(found["capacity"], features, found["gathered"])
    assert 0.4 * projected <= found["gather"] <= projected
    assert found["measure"] <= gather_bytes(found["capacity"], features, 0)
    assert found["erase"] <= projected


def test_what_does_not_fit_is_refused_with_the_sizes() -> None:
    check_memory("a pass", 10**6, None)
    check_memory("a pass", 10**6, RESERVED + 10**6)
    with pytest.raises(JobError, match=r"needs 1 MB a task beside 273 MB .* may use 274 MB"):
        check_memory("a pass", 10**6, RESERVED + 10**6 - 1)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """The benchmark of bounded memory at a size that CI can afford: n and 4 n rows."""
    quarter = measure(500_000, tmp_path / "ws", "512MiB")
    whole = measure(2_000_000, tmp_path / "ws", "512MiB")
    limit = 512 << 20
    for step in ("train", "train_k_means", "batch"):
        one, four = quarter[step], whole[step]
        assert four["spilled_bytes"] == 0
        assert four["driver_peak_bytes"] <= min(limit, 1.15 * one["driver_peak_bytes"])
        # Two workers and no replacement for one that was restarted.
        assert len(four["worker_peak_bytes"]) <= 3
        assert max(four["worker_peak_bytes"]) <= min(limit, 1.15 * max(one["worker_peak_bytes"]))
    assert whole["generate"]["driver_peak_bytes"] <= limit
    assert whole["forget"]["driver_peak_bytes"] <= 1.15 * quarter["forget"]["driver_peak_bytes"]
