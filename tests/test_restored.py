"""A second round of what once broke: restored backups, line ends in ids, refits, forks."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import INLINE, Cli, refit, same
from test_adversary import ready, table

from expunge import KMeans
from expunge.pipeline import lloyd, quantized
from expunge.storage.dataset import DataSet
from expunge.storage.errors import CorruptError

__all__ = ["ready"]
Write = Callable[..., Path]


@pytest.fixture
def backup(cli: Cli, ready: Path, tmp_path: Path) -> Path:
    """A copy of the data set as it was before unit 17 was deleted."""
    shutil.copytree(ready / "data" / "t.zarr", tmp_path / "backup")
    cli("forget", "--data", "t", "--unit", 17)
    cli("batch", "run", "--yes", *INLINE)
    return tmp_path / "backup"


def test_a_scan_refuses_a_restored_data_set(
    cli: Cli, ready: Path, backup: Path, csv_file: Write
) -> None:
    shutil.rmtree(ready / "data" / "t.zarr")
    shutil.copytree(backup, ready / "data" / "t.zarr")
    gone = csv_file(table()[[17]], "gone.csv")
    assert "restored from a backup" in cli("scan", "--rows", gone, code=1)


@pytest.fixture
def partly(ready: Path, backup: Path) -> None:
    """Restore rows and units, but not the statistics that would give it away."""
    for array in ("x", "unit"):
        for chunk in (backup / array).glob("c.*"):
            shutil.copy(chunk, ready / "data" / "t.zarr" / array / chunk.name)


def test_a_partly_restored_data_set_is_noticed(
    cli: Cli, ready: Path, partly: None, csv_file: Write
) -> None:
    assert "on the disk again" in cli("forget", "--data", "t", "--unit", 17, code=1)
    found = cli("scan", "--rows", csv_file(table()[[17]], "gone.csv"), code=5)
    assert found["matches"] >= 1 and found["live_twins"] == 0
    train = ["--data", "t", "--algorithm", "k-means", "-p", "n_clusters=2", *INLINE]
    assert "200 live rows found where 199" in cli("train", "z", *train, code=1)
    # A batch that touches the restored cell does not go on.
    cli("forget", "--data", "t", "--sample", 0.5)
    assert "restored from a backup" in cli("batch", "run", "--yes", *INLINE, code=1)


def test_only_line_ends_end_a_subject(cli: Cli, tmp_path: Path) -> None:
    people = ["Ann\u2028Lee", "Ann", "Lee", "Bo\x0bB", "Bo"] * 5
    path = tmp_path / "people.csv"
    lines = [f"{i},{i * i},{p}" for i, p in enumerate(people)]
    path.write_text("\n".join(["a,b,who", *lines]) + "\n", encoding="utf-8")
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", path, "--format", "csv", "--subject", "who")
    listed = tmp_path / "who.txt"
    listed.write_bytes("Ann\u2028Lee\r\nBo\x0bB\r\n".encode())
    assert cli("forget", "--data", "t", "--subjects-file", listed)["queued"] == 2
    assert cli("batch", "run", "--yes", *INLINE)["rows"] == 10
    for left in ("Ann", "Lee", "Bo"):
        assert cli("forget", "--data", "t", "--subject", left)["queued"] == 1


def test_an_interrupted_refit_leaves_the_old_model_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x = table(300)
    model = KMeans(3, random_state=0).fit(x)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(quantized, "seed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit(x[:100])
    with pytest.raises(ValueError, match="only 100 rows"):
        model.set_params(n_clusters=101).fit(x[:100])
    assert model.delete([3]).rows == 1
    kept = np.delete(np.arange(300), 3)
    same(model.record_, refit(x[kept], kept, model._settings))


@pytest.mark.parametrize("gone", [[0, 1, 2], [4, 5, 9], [99, 98, 97], list(range(100)), [0, 99]])
def test_deleted_ids_leave_memory_and_pickles(gone: list[int]) -> None:
    units = np.arange(100) + 777_000
    model = KMeans(3, random_state=0).fit(table(100), units=units)
    model.delete(units[gone])
    assert not np.isin(units[gone], model._index._ids).any()
    stored = pickle.dumps(model)
    assert not any(unit.tobytes() in stored for unit in units[gone])
    left = np.setdiff1d(units, units[gone])
    assert model.delete(left).rows == len(left)


def fit_in_child(x: np.ndarray) -> float:
    return KMeans(3, random_state=0).fit(x).inertia_


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    x = table(300_000, 8)
    here = fit_in_child(x)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(fit_in_child, (x,)).get(timeout=60) == here


@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[::-1], np.s_[:, ::2]])
def test_rows_that_do_not_lie_one_after_the_other_are_refused(cut: tuple[slice, ...]) -> None:
    x = np.zeros((64, 16), np.int32)[cut]
    centroids, present = np.zeros((1, x.shape[1]), np.int64), np.ones(1, np.bool_)
    with pytest.raises(ValueError, match="C-contiguous"):
        lloyd.assign(x, np.arange(len(x)), None, centroids, present)


def test_attributes_that_lack_something_are_an_error(cli: Cli, ready: Path) -> None:
    path = ready / "data" / "t.zarr" / "zarr.json"
    path.write_text(path.read_text().replace('"feature_names"', '"other"'))
    with pytest.raises(CorruptError, match="feature_names"):
        DataSet.open(path.parent)
    assert "feature_names" in cli("forget", "--data", "t", "--unit", 1, code=1)


@pytest.mark.parametrize("limit", ["1e400", "0", "-1", "abc", "nan"])
def test_odd_memory_limits(cli: Cli, ready: Path, limit: str) -> None:
    train = ["train", "z", "--data", "t", "--algorithm", "k-means", "--memory-limit", limit]
    assert "320MiB" in cli(*train, code=2)
