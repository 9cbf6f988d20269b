"""DC-k-means through the command line: training, deletion, verification, receipts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_divided_stored import blobs
from test_divided_versions import flip
from test_storage import SALT

from expunge import DCKMeans
from expunge.jobs.divided_arrays import Tree
from expunge.jobs.divided_models import load_tree
from expunge.jobs.workspace import Workspace
from expunge.storage.cells import hash_units

Write = Callable[..., Path]


def train(cli: Cli, name: str, *given: object, code: int = 0, clusters: int = 3) -> Any:
    first = ["--data", "t", "--algorithm", "dc-kmeans", "-p", f"n_clusters={clusters}"]
    return cli("train", name, *first, *given, *INLINE, code=code)


def start(cli: Cli, csv: Path, cells: int = 16) -> None:
    cli("init", csv.parent / "ws")
    cli("data", "import", "t", csv, "--format", "csv", "--cells", cells)


def tree_of(tmp_path: Path, model: str) -> Tree:
    with Workspace.open(tmp_path / "ws") as ws:
        return load_tree(ws, model)[1]


def test_from_csv_to_receipt(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    """Several models in one batch; each is what a retrain gives, and the receipt says exact."""
    x = blobs(1500)
    start(cli, csv_file(x))
    made = train(cli, "flat", "-p", "n_leaves=8")
    assert made["leaves"] == 8 and made["nodes"] == 1 and made["settings"]["n_leaves"] == 8
    model = DCKMeans(3, 8, random_state=0).fit(x, hashes=hash_units(np.arange(1500), SALT))
    assert made["loss"] == model.inertia_
    shown = cli("model", "show", "flat")
    np.testing.assert_array_equal(shown["cluster_centers"], model.cluster_centers_)
    assert sum(shown["sizes"]) == 1500 and shown["loss"] is None and shown["root_loss"] > 0
    assert cli("predict", "flat", tmp_path / "rows.csv")["labels"] == model.predict(x).tolist()
    train(cli, "deep", "-p", "branching=4x2x2", "-p", "root=weighted")
    train(cli, "fine", "-p", "n_leaves=64", "-p", "bounds=-2:8")
    assert cli("model", "show", "fine")["settings"]["branching"] == [64]
    cli("train", "k", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)
    names = ("flat", "deep", "fine", "k")
    for sample in (0.002, 0.5):
        cli("forget", "--data", "t", "--sample", sample)
        dry = {m["model"]: m for m in cli("batch", "run", "--dry-run", *INLINE)["models"]}
        report = cli("batch", "run", "--yes", *INLINE)
        for done in report["models"]:
            assert done["exactness"] == "exact"
            if done["algorithm"] == "dc-kmeans":
                assert dry[done["model"]]["action"] == done["action"]
                assert dry[done["model"]]["leaves"] == done["leaves"]
                assert 0 < done["update_seconds"] < done["seconds"]
        for name in names:
            assert cli("verify", name, "--against", "retrain", *INLINE)["exact"]
    shown = cli("receipt", "show", report["receipts"][0])
    assert "bit for bit" in shown["statement"] and len(shown["job"]["models"]) == 4


def test_deleting_every_row_leaves_an_empty_model(
    cli: Cli, csv_file: Write, tmp_path: Path
) -> None:
    path = csv_file(blobs(40))
    start(cli, path)
    train(cli, "m", "-p", "n_leaves=4")
    cli("forget", "--data", "t", "--unit", ",".join(map(str, range(40))))
    assert cli("batch", "run", "--dry-run", *INLINE)["models"][0]["action"] == "retrained"
    done = cli("batch", "run", "--yes", *INLINE)["models"][0]
    assert done["empty"] and (done["action"], done["reason"]) == ("retrained", "no row is left")
    shown = cli("model", "show", "m")
    assert shown["empty"] and shown["cluster_centers"] == []
    assert cli("verify", "m", *INLINE)["exact"]
    assert "is empty" in cli("predict", "m", path, code=1)


def test_a_dry_run_sees_that_a_bound_goes(cli: Cli, csv_file: Write) -> None:
    x = blobs(200)
    start(cli, csv_file(x))
    train(cli, "m", "-p", "n_leaves=4")
    cli("forget", "--data", "t", "--unit", int(np.argmax(x[:, 2])))
    found = cli("batch", "run", "--dry-run", *INLINE)["models"][0]
    assert found == {"model": "m", "action": "retrained", "first_step": None, "leaves": 4}
    done = cli("batch", "run", "--yes", *INLINE)["models"][0]
    assert (done["action"], done["leaves"], done["nodes"]) == ("retrained", 4, 1)
    assert "feature 2" in done["reason"]
    assert cli("verify", "m", *INLINE)["exact"]


@pytest.mark.parametrize("array", ["leaf_sums", "pooled_sizes", "sums", "leaf_steps"])
def test_one_flipped_bit_fails_the_verification(
    array: str, cli: Cli, csv_file: Write, tmp_path: Path
) -> None:
    start(cli, csv_file(blobs(200)))
    train(cli, "m", "-p", "n_leaves=4")
    flip(next((tmp_path / "ws/models/m").glob(f"v*/{array}/c.*")))
    found = cli("verify", "m", *INLINE, code=5)
    assert not found["exact"] and found["differing"] == [array]
    cli("forget", "--data", "t", "--unit", 1)
    assert "digest" in cli("batch", "run", "--yes", *INLINE, code=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["n_leaves=12"], "n_leaves is 12; a power of two"),
        (["n_leaves=many"], "n_leaves is 'many'"),
        (["root=heavy"], "unweighted or weighted"),
        (["branching=3x2"], "a power of two"),
        (["branching=8by8"], "branching is '8by8'"),
        (["n_leaves=8", "branching=2x2"], "makes 4 leaves"),
        (["epsilon=0.1"], "dc-kmeans has no parameter 'epsilon'"),
        (["bounds=1"], "LOWER:UPPER"),
        (["n_clusters=999"], "only 60 rows"),
    ],
)
def test_bad_parameters_are_refused_and_leave_nothing(
    given: list[str], message: str, cli: Cli, csv_file: Write, tmp_path: Path
) -> None:
    start(cli, csv_file(blobs(60)))
    assert message in train(cli, "m", *(a for g in given for a in ("-p", g)), code=2)
    assert not list((tmp_path / "ws" / "models").iterdir())


def test_more_leaves_than_rows_get_a_warning(cli: Cli, csv_file: Write) -> None:
    start(cli, csv_file(blobs(60)), cells=1)
    assert train(cli, "few", "-p", "n_leaves=32")["warnings"] == []
    (warning,) = train(cli, "many", "-p", "n_leaves=64")["warnings"]
    assert warning.startswith("64 leaves for 60 rows: most are empty")


def test_no_byte_of_a_deleted_row_stays(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    """Seeds are kept as they are, and clusters of one row as their sums: until they are deleted."""
    x = np.random.default_rng(3).random((120, 5)).astype(np.float32)
    start(cli, csv_file(x))
    train(cli, "m", "-p", "n_leaves=8", "-p", "root=weighted", clusters=4)
    tree = tree_of(tmp_path, "m")
    fixed = tree.model.scaling.fixed(x)
    seeds = [tree.leaf(i).steps[0].centroids.drawn[:, 0] for i in range(8)]
    gone = np.unique(np.concatenate(seeds))[::3]
    patterns = [
        encoded[unit].tobytes()
        for unit in gone
        for encoded in (
            x,
            x.astype(float),
            fixed,
            fixed.astype(np.int64),
            fixed / 2.0**24,
            ((fixed + 1) // 2 / 2.0**23).astype(np.float32),
        )
    ]

    def found() -> int:
        files = [p for p in (tmp_path / "ws").rglob("*") if p.is_file()]
        return sum(pattern in data for data in map(Path.read_bytes, files) for pattern in patterns)

    assert found() >= 3 * len(gone)
    cli("forget", "--data", "t", "--unit", ",".join(map(str, gone)))
    cli("batch", "run", "--yes", *INLINE)
    assert found() == 0


def test_a_deletion_reads_the_cells_of_its_leaf_alone(
    cli: Cli, csv_file: Write, tmp_path: Path
) -> None:
    """16 leaves over 64 cells, one row deleted: one leaf task, one root, four cells."""
    x = np.random.default_rng(0).random((4000, 4)).astype(np.float32)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(x), "--format", "csv", "--cells", 64)
    train(cli, "m", "-p", "n_leaves=16")
    cli("forget", "--data", "t", "--unit", 17)
    report = cli("batch", "run", "--yes", *INLINE)
    done = report["models"][0]
    assert (done["leaves"], done["nodes"], done["action"]) == (1, 1, "resumed")
    assert done["exactness"] == "exact" and done["passes"] > 0
    # Tasks: the gathering of one cell, one leaf, the erasure of one cell.
    assert report["tasks"] == 3
    assert report["cells_read"] == 4 and report["cells"] == 1
    assert cli("verify", "m", *INLINE)["exact"]
