"""The same bits from a real cluster of processes, whatever the workers and the cells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from support import Cli, same
from test_storage import SALT, Rows

from expunge import KMeans, QKMeans
from expunge.cluster.clients import connect
from expunge.cluster.errors import ClusterError
from expunge.jobs.fold import DaskFold, InlineFold, split_cells
from expunge.jobs.kmeans_arrays import from_arrays, settings_from_json, settings_to_json, to_arrays
from expunge.jobs.kmeans_models import resolve
from expunge.jobs.train_kmeans import StoredPasses
from expunge.pipeline import quantized
from expunge.storage import ingest
from expunge.storage.dataset import DataSet

ALGORITHMS: dict[str, dict[str, Any]] = {
    "k-means": {"n_clusters": 5},
    "q-kmeans": {"n_clusters": 5, "epsilon": 0.05},
}


def rows(n: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(4)
    x: np.ndarray = rng.normal(rng.integers(0, 5, (n, 1)), 0.3, (n, 6)).astype(np.float32)
    return x


@pytest.mark.parametrize("cells", [1, 16, 64])
def test_stored_equals_in_memory(address: str, cells: int, tmp_path: Path) -> None:
    x = rows()
    data = ingest.import_rows(Rows(x, None), tmp_path / "t.zarr", SALT, {}, cells=cells).data_set
    with Client(address) as client:
        fold = DaskFold(lambda: _already(client))
        for algorithm, parameters in ALGORITHMS.items():
            settings = resolve(algorithm, parameters, len(x), x.shape[1], 7)
            passes = StoredPasses(data, data.statistics(), fold)
            stored = quantized.fit(passes, settings)
            model = (KMeans if algorithm == "k-means" else QKMeans)(random_state=7, **parameters)
            same(stored, model.fit(x).record_)
            # A version's arrays give the record back.
            again = settings_from_json(settings_to_json(settings))
            assert again == settings
            arrays = {n: a.values for n, a in to_arrays(stored, settings).items()}
            same(from_arrays(arrays, again), stored)


class _already:
    """A context manager around a client that somebody else closes."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __enter__(self) -> Client:
        return self.client

    def __exit__(self, *_: object) -> None:
        return None


def test_the_command_line_on_a_scheduler(
    address: str, cli: Cli, csv_file: Callable[..., Path], tmp_path: Path
) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(rows()), "--format", "csv")
    given = ["-p", "n_clusters=5", "-p", "epsilon=0.05"]
    where = ["--cluster", address]
    cli("train", "m", "--data", "t", "--algorithm", "q-kmeans", *given, *where)
    cli("forget", "--data", "t", "--sample", 0.01)
    done = cli("batch", "run", "--yes", *where)
    inline = cli("verify", "m", "--against", "retrain", "--cluster", "inline")
    assert inline["exact"] and inline["model_digest"] == done["models"][0]["digest"]
    # What workers read is counted as well as what this process reads.
    assert 1 < done["cells_read"] == done["cells"] and done["tasks"] >= 2


def test_local_processes_leave_no_spill(
    cli: Cli, csv_file: Callable[..., Path], tmp_path: Path
) -> None:
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(rows(200)), "--format", "csv")
    local = ["--workers", 2, "--memory-limit", "1GiB"]
    cli("train", "m", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=2", *local)
    assert cli("verify", "m", "--against", "retrain", *local)["exact"]
    assert not list((tmp_path / "ws" / "spill").iterdir())


def test_an_address_where_nobody_answers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.cluster.clients.CONNECT_SECONDS", 1)
    before = threading.active_count()
    with (
        pytest.raises(ClusterError, match="no scheduler answers"),
        connect("tcp://127.0.0.1:1", None, None, tmp_path),
    ):
        pass
    assert threading.active_count() <= before + 3


@pytest.mark.parametrize(
    ("cluster", "workers", "memory"), [("moon", None, None), ("local", 0, None), ("local", 1, "x")]
)
def test_bad_descriptions_of_a_cluster(
    tmp_path: Path, cluster: str, workers: int | None, memory: str | None
) -> None:
    with pytest.raises(ClusterError, match="--"), connect(cluster, workers, memory, tmp_path):
        pass


@pytest.mark.parametrize(
    ("cells", "seconds", "workers"), [(1, 9.0, 4), (64, 0.0, 2), (64, 1.0, 2), (7, 0.3, 2)]
)
def test_split_cells_covers_each_cell_once(cells: int, seconds: float, workers: int) -> None:
    groups = split_cells(range(cells), seconds, workers)
    assert [c for g in groups for c in g] == list(range(cells))
    assert all(groups) and len(groups) == min(cells, max(workers, round(seconds / 0.1)))


def test_a_missing_cell_is_an_error_on_the_workers_too(address: str, tmp_path: Path) -> None:
    data = ingest.import_rows(Rows(rows(), None), tmp_path / "t.zarr", SALT, {}).data_set
    statistics = data.statistics()
    data.chunk("x", 5).unlink()
    settings = resolve("k-means", {"n_clusters": 2}, 3000, 6, 0)
    with Client(address) as client:
        for fold in (DaskFold(lambda: _already(client)), InlineFold()):
            with pytest.raises(FileNotFoundError, match=r"c\.5\.0\.0 is missing"):
                quantized.fit(StoredPasses(DataSet.open(data.path), statistics, fold), settings)
