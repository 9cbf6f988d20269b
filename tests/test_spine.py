"""From a csv to receipts through the command line, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from support import INLINE, Cli, same

from expunge import KMeans, QKMeans
from expunge.jobs.kmeans_models import load_model
from expunge.jobs.ledger import Ledger, chain_hash
from expunge.jobs.requests import sampled_units
from expunge.jobs.workspace import Workspace
from expunge.pipeline.quantized import Record

Write = Callable[..., Path]


def blobs(n: int = 2000, d: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x: np.ndarray = (rng.integers(0, 4, (n, 1)) + rng.normal(0, 0.2, (n, d))).astype(np.float32)
    return x


def start(cli: Cli, path: Path, cells: int = 16) -> None:
    """Make a workspace with the rows of ``path`` as data set t, and two models."""
    cli("init", path.parent / "ws")
    cli("data", "import", "t", path, "--format", "csv", "--cells", cells)
    cli("train", "km", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=4", *INLINE)
    given = ["-p", "n_clusters=4", "-p", "epsilon=0.1", "--seed", 3]
    cli("train", "qk", "--data", "t", "--algorithm", "q-kmeans", *given, *INLINE)


def record_of(tmp_path: Path, model: str) -> Record:
    with Workspace.open(tmp_path / "ws") as ws:
        return load_model(ws, model)[1]


def test_from_csv_to_receipt(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    x = blobs()
    start(cli, csv_file(x))
    same(record_of(tmp_path, "km"), KMeans(4, random_state=0).fit(x).record_)
    model = QKMeans(4, 0.1, random_state=3).fit(x)
    same(record_of(tmp_path, "qk"), model.record_)

    gone = [5, 17, 400, 1999]
    sentinel = csv_file(x[gone], "gone.csv")
    found = cli("scan", "--rows", sentinel, code=5)
    assert found["rows_found"] == [0, 1, 2, 3] and found["matches"] >= 4 and found["files"]

    assert cli("forget", "--data", "t", "--unit", "5,17,400,1999,5")["queued"] == 4
    plan = cli("batch", "run", "--dry-run", *INLINE)
    assert plan["units"] == 4 and len(plan["models"]) == 2
    done = cli("batch", "run", "--yes", *INLINE)
    assert [m["action"] for m in plan["models"]] == [m["action"] for m in done["models"]]
    assert done["requests"] == done["units"] == len(done["receipts"]) == 4

    model.delete(gone)
    same(record_of(tmp_path, "qk"), model.record_)
    for name in ("km", "qk"):
        checked = cli("verify", name, "--against", "retrain", *INLINE)
        assert checked["exact"] and checked["max_abs_difference"] == 0.0
        assert checked["model_digest"] == checked["retrained_digest"]
        assert checked["rows"] == 1996
    assert cli("scan", "--rows", sentinel)["matches"] == 0
    assert cli("data", "show", "t")["rows"] == 1996

    receipt = cli("receipt", "show", done["receipts"][0])
    assert receipt["unit_hash"] and receipt["job"]["models"][0]["exactness"] == "exact"
    assert {s["name"] for s in receipt["job"]["steps"]} >= {"commit", "erase", "verify", "receipt"}
    assert len(cli("receipt", "list")["receipts"]) == 4
    assert cli("job", "show", done["job"])["state"] == "done"


def test_old_versions_spill_and_unit_ids_are_gone(
    cli: Cli, csv_file: Write, tmp_path: Path
) -> None:
    start(cli, csv_file(blobs()))
    big = 1234  # A unit id that no other number in the ledger looks like.
    cli("forget", "--data", "t", "--unit", big)
    cli("batch", "run", "--yes", *INLINE)
    assert len(list((tmp_path / "ws" / "models" / "qk").iterdir())) == 1
    assert not list((tmp_path / "ws" / "spill").iterdir())
    with Workspace.open(tmp_path / "ws") as ws:
        assert ws.ledger.value("SELECT count(*) FROM requests WHERE unit IS NOT NULL") == 0
        events = ws.ledger.rows("SELECT * FROM events ORDER BY id")
    before = ""
    for event in events:
        before = chain_hash(before, event["at"], event["kind"], event["body"])
        assert event["hash"] == before
    # Closing removes the write-ahead log; while open it was emptied after the receipts.
    assert not (tmp_path / "ws" / "ledger.sqlite-wal").exists()


def test_forgetting_twice_is_no_op_and_says_so(cli: Cli, csv_file: Write) -> None:
    start(cli, csv_file(blobs(300)))
    assert cli("forget", "--data", "t", "--unit", "1,2")["queued"] == 2
    again = cli("forget", "--data", "t", "--unit", "2,3")
    assert again["queued"] == 1 and again["already_requested"] == 1
    cli("batch", "run", "--yes", *INLINE)
    again = cli("forget", "--data", "t", "--unit", "1,4")
    assert again["already_erased"] == 1 and again["queued"] == 1
    assert cli("forget", "--data", "t", "--unit", "1")["already_erased"] == 1
    cli("batch", "run", "--yes", *INLINE)
    empty = cli("batch", "run", "--yes", *INLINE)
    assert empty["job"] is None and empty["requests"] == 0


def test_unknown_units_are_named_or_ignored(cli: Cli, csv_file: Write) -> None:
    start(cli, csv_file(blobs(300)))
    error = cli("forget", "--data", "t", "--unit", "1,900,901,902,903,904,905", code=2)
    assert "no unit 900, 901, 902, 903, 904 and 1 more" in error and "nothing was queued" in error
    assert cli("batch", "run", "--yes", *INLINE)["job"] is None
    found = cli("forget", "--data", "t", "--unit", "1,900", "--missing", "ignore")
    assert found["queued"] == 1 and found["missing"] == 1


def test_a_sample_is_a_function_of_its_seed(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    start(cli, csv_file(blobs(1000)))
    assert cli("forget", "--data", "t", "--sample", 0.02, "--seed", 5)["queued"] == 20
    assert cli("forget", "--data", "t", "--sample", 0.02, "--seed", 5)["already_requested"] == 20
    assert cli("forget", "--data", "t", "--sample", 0.02, "--seed", 6)["queued"] > 10
    assert "--sample" in cli("forget", "--data", "t", "--sample", 1.5, code=2)


@pytest.mark.parametrize("share", [1e-9, 0.5])
def test_a_sample_is_the_same_whatever_was_kept(
    cli: Cli, csv_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    start(cli, csv_file(blobs(1000)))
    with Workspace.open(tmp_path / "ws") as ws:
        usual = sampled_units(ws, "t", 0.1, 4)
        # Keep too few at first, so that the second pass is needed, and keep far more than needed.
        monkeypatch.setattr("expunge.jobs.requests._enough", lambda rate, rows: share)
        assert sampled_units(ws, "t", 0.1, 4).tolist() == usual.tolist()
    assert len(set(usual.tolist())) == 100


def test_units_file(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    start(cli, csv_file(blobs(100)))
    units = tmp_path / "units.txt"
    units.write_text("3\n\n7\n")
    assert cli("forget", "--data", "t", "--units-file", units)["queued"] == 2
    units.write_text("3\nbob\n")
    error = cli("forget", "--data", "t", "--units-file", units, code=2)
    assert "line 2: that is not a unit id" in error and "bob" not in error


def test_deleting_every_row_leaves_an_empty_model(cli: Cli, csv_file: Write) -> None:
    path = csv_file(blobs(60))
    start(cli, path)
    cli("forget", "--data", "t", "--sample", 1.0)
    done = cli("batch", "run", "--yes", *INLINE)
    assert all(m["empty"] and m["rows"] == 0 for m in done["models"])
    assert cli("model", "show", "qk")["empty"]
    assert "empty" in cli("predict", "qk", path, code=1)
    assert cli("verify", "qk", "--against", "retrain", *INLINE)["exact"]
    assert cli("scan", "--rows", path)["matches"] == 0
    refused = cli("train", "new", "--data", "t", "--algorithm", "k-means", *INLINE, code=2)
    assert "empty" in refused


def test_ten_rows_touch_their_cells_only(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    start(cli, csv_file(blobs(6400)), cells=64)
    cli("forget", "--data", "t", "--sample", 10 / 6400, "--seed", 1)
    done = cli("batch", "run", "--yes", *INLINE)
    quantized = next(m for m in done["models"] if m["model"] == "qk")
    assert quantized["action"] == "unchanged" and quantized["passes"] == 0
    # The k-means model resumed, which reads every cell; alone, the quantized one reads ten.
    assert done["cells_read"] == 64
    cli("data", "import", "u", tmp_path / "rows.csv", "--format", "csv", "--cells", 64)
    given = ["-p", "n_clusters=4", "-p", "epsilon=0.1", "--seed", 3]
    cli("train", "only", "--data", "u", "--algorithm", "q-kmeans", *given, *INLINE)
    cli("forget", "--data", "u", "--sample", 10 / 6400, "--seed", 1)
    done = cli("batch", "run", "--yes", *INLINE)
    assert done["models"][0]["action"] == "unchanged"
    assert done["cells"] == done["cells_read"] <= 10
    capacity = xr.open_zarr(tmp_path / "ws/data/u.zarr").sizes["slot"]
    statistics = 64 * (4 * 4 * 2 + 4 * 8 * 2 + 8)
    rows = 10 * 4 * 4
    model = sum(p.stat().st_size for p in (tmp_path / "ws/models/only").rglob("c.*"))
    # gather and verify read each unit chunk once; rows are read back once; few cells lose an
    # extreme and are read whole.
    whole_cells = 3 * capacity * (4 * 4 + 8)
    bound = 2 * 10 * capacity * 8 + 2 * rows + 2 * statistics + 4 * model + whole_cells
    assert done["bytes_read"] <= bound


def test_counters_hold_against_the_kernels(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    """What the job counts where it opens files is what the kernel saw this process transfer."""
    start(cli, csv_file(blobs(20_000)), cells=16)
    cli("forget", "--data", "t", "--sample", 0.01)

    def read_chars() -> int:
        text = Path(f"/proc/{os.getpid()}/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["rchar"])

    before = read_chars()
    done = cli("batch", "run", "--yes", *INLINE)
    seen = read_chars() - before
    # The kernel also counts the ledger, Zarr's metadata and Python's own files.
    assert done["bytes_read"] <= seen <= done["bytes_read"] * 1.25 + 3_000_000


def test_a_live_twin_is_told_apart(cli: Cli, csv_file: Write) -> None:
    x = blobs(200)
    x[50] = x[20]
    start(cli, csv_file(x))
    twin = csv_file(x[[20]], "twin.csv")
    assert cli("scan", "--rows", twin, code=5)["matches"] >= 2
    cli("forget", "--data", "t", "--unit", 20)
    cli("batch", "run", "--yes", *INLINE)
    found = cli("scan", "--rows", twin)
    assert found["matches"] == 0 and found["live_twins"] >= 1
    cli("forget", "--data", "t", "--unit", 50)
    cli("batch", "run", "--yes", *INLINE)
    found = cli("scan", "--rows", twin)
    assert found["matches"] == 0 and found["live_twins"] == 0


def test_the_scan_reads_the_file_as_every_data_set_that_it_fits(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    path = tmp_path / "both.csv"
    path.write_text("id,a,b,c\n" + "".join(f"{i},{i * i},{i + 7},{i * 3}\n" for i in range(50)))
    cli("data", "import", "all", path, "--format", "csv")
    cli("data", "import", "less", path, "--format", "csv", "--drop", "id")
    wanted = tmp_path / "wanted.csv"
    wanted.write_text("id,a,b,c\n300,4,9,6\n")
    found = cli("scan", "--rows", wanted, code=5)
    # The row with another id is no row of "all", but it is one of "less".
    assert found["data"] == ["all", "less"]
    assert any(file.startswith("data/less.zarr/x/") for file in found["files"])
    wanted.write_text("z\n1\n")
    error = cli("scan", "--rows", wanted, code=2)
    assert "all:" in error and "less:" in error


def test_a_unit_finds_its_receipt(cli: Cli, csv_file: Write) -> None:
    start(cli, csv_file(blobs(300)))
    made = cli("forget", "--data", "t", "--unit", "4,9")["requests"]
    assert [r["unit"] for r in made] == [4, 9]
    cli("batch", "run", "--yes", *INLINE)
    found = cli("receipt", "list", "--data", "t", "--unit", 9)["receipts"]
    assert [r["request"] for r in found] == [made[1]["request"]]
    assert cli("receipt", "list", "--data", "t", "--unit", 10)["receipts"] == []


def test_a_row_left_on_disk_is_found(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    """The scan has power: plant a deleted row in each encoding in a stray file."""
    x = blobs(200)
    start(cli, csv_file(x))
    gone = csv_file(x[[7]], "gone.csv")
    cli("forget", "--data", "t", "--unit", 7)
    cli("batch", "run", "--yes", *INLINE)
    scaling = record_of(tmp_path, "qk").scaling
    fixed = scaling.fixed(x[[7]])
    stray = tmp_path / "ws" / "spill" / "stray"
    for planted in (x[7], x[7].astype(float), fixed, fixed.astype(np.int64), fixed / 2.0**24):
        stray.write_bytes(b"abc" + planted.tobytes() + b"d")
        found = cli("scan", "--rows", gone, code=5)
        assert found["files"] == ["spill/stray"] and found["matches"] == 1
    stray.unlink()
    assert cli("scan", "--rows", gone)["matches"] == 0


def test_one_flipped_bit_fails_the_verification(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    start(cli, csv_file(blobs(200)))
    chunk = next((tmp_path / "ws/models/qk").glob("v*/sums/c.*"))
    data = bytearray(chunk.read_bytes())
    data[3] ^= 4
    chunk.write_bytes(data)
    found = cli("verify", "qk", "--against", "retrain", *INLINE, code=5)
    assert not found["exact"] and found["differing"] == ["sums"]
    assert "digest" in cli("model", "show", "qk", code=1)


@pytest.mark.parametrize("name", ["present/zarr.json", "zarr.json"])
def test_damaged_metadata_fails_the_verification(
    cli: Cli, csv_file: Write, tmp_path: Path, name: str
) -> None:
    start(cli, csv_file(blobs(200)))
    folder = next((tmp_path / "ws/models/qk").glob("v*"))
    file = folder / name
    file.write_bytes(file.read_bytes().replace(b'"bool"', b'"cool"'))
    assert "zarr.json" in cli("verify", "qk", "--against", "retrain", *INLINE, code=5)


def test_a_flipped_bit_in_a_row_fails_the_verification(
    cli: Cli, csv_file: Write, tmp_path: Path
) -> None:
    start(cli, csv_file(blobs(200)))
    chunk = max((tmp_path / "ws/data/t.zarr/x").glob("c.*"))
    data = bytearray(chunk.read_bytes())
    data[2] ^= 1
    chunk.write_bytes(data)
    assert not cli("verify", "qk", "--against", "retrain", *INLINE, code=5)["exact"]


def test_predict_prints_the_training_labels(cli: Cli, csv_file: Write) -> None:
    x = blobs(500)
    path = csv_file(x)
    start(cli, path)
    found = cli("predict", "qk", path)
    assert found["labels"] == QKMeans(4, 0.1, random_state=3).fit(x).predict(x).tolist()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "a", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=999"), 2, "999"),
        (("train", "a", "--data", "t", "--algorithm", "q-kmeans", "-p", "epsilon=-1"), 2, "-1"),
        (("train", "a", "--data", "t", "--algorithm", "k-means", "-p", "epsilon=1"), 2, "epsilon"),
        (("train", "a", "--data", "t", "--algorithm", "nearest"), 2, "k-means, q-kmeans"),
        (("train", "a", "--data", "x", "--algorithm", "k-means"), 2, "known: t"),
        (("train", "../a", "--data", "t", "--algorithm", "k-means"), 2, "can't be the name"),
        (("train", "km", "--data", "t", "--algorithm", "k-means"), 2, "already"),
        (("train", "a", "--data", "t", "--algorithm", "k-means", "--cluster", "moon"), 2, "moon"),
        (("model", "show", "none"), 2, "known: km, qk"),
        (("job", "show", "99"), 2, "no job 99"),
        (("job", "resume", "1"), 2, "nothing to resume"),
        (("receipt", "show", "R1"), 2, "no receipt"),
        (("forget", "--data", "t"), 2, "exactly one"),
        (("forget", "--data", "t", "--unit", "-4"), 2, "not a unit id"),
        (("data", "import", "t", "nowhere.csv", "--format", "csv"), 2, "already"),
        (("data", "import", "u", "nowhere.csv", "--format", "csv"), 2, "no such file"),
        (("data", "generate", "g", "--like", "moons", "--rows", "5"), 2, "gaussian"),
        (("data", "generate", "g", "--like", "higgs", "--rows", "0"), 2, "rows"),
        (
            ("data", "generate", "g", "--like", "gaussian", "--rows", "9", "--cells", "3"),
            2,
            "power",
        ),
        (("verify", "km", "--against", "hope"), 2, "retrain"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(
    cli: Cli, csv_file: Write, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    start(cli, csv_file(blobs(60)))
    before = {p for p in (tmp_path / "ws").rglob("*") if "sqlite" not in p.name}
    assert message in cli(*arguments, code=code)
    assert {p for p in (tmp_path / "ws").rglob("*") if "sqlite" not in p.name} == before
    assert cli("data", "list")["data_sets"][0]["name"] == "t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f0,f1\n1,2\n3\n", "line 3"),
        ("f0,f1\n1,2\n3,nan\n", "'f1'"),
        ("f0,f1\n1,2\n3,cat\n", "'cat'"),
        ("f0,f1\n1,inf\n", "line 2"),
        ("f0,f1\n", "no"),
        ("", "no"),
    ],
)
def test_a_bad_file_leaves_nothing(cli: Cli, tmp_path: Path, text: str, message: str) -> None:
    cli("init", tmp_path / "ws")
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert message in cli("data", "import", "t", path, "--format", "csv", code=2)
    assert not list((tmp_path / "ws" / "data").iterdir())
    assert cli("data", "list")["data_sets"] == []


def test_a_workspace_of_a_newer_schema_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    ledger = Ledger.open(tmp_path / "ws" / "ledger.sqlite")
    with ledger.transaction():
        ledger.run("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    ledger.close()
    assert "newer program" in cli("data", "list", code=1)
    assert "not an empty folder" in cli("init", tmp_path / "ws", code=2)
    (tmp_path / "ws" / "ledger.sqlite").write_bytes(b"not a data base at all, not even close")
    assert "ledger" in cli("data", "list", code=1)


def test_a_destructive_command_wants_yes_without_a_terminal(cli: Cli, csv_file: Write) -> None:
    start(cli, csv_file(blobs(60)))
    cli("forget", "--data", "t", "--unit", 1)
    assert "--yes" in cli("batch", "run", *INLINE, code=2)
    assert cli("data", "show", "t")["rows"] == 60
