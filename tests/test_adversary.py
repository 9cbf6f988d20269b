"""What once broke: strangers' files, wrong proofs, damaged files, odd arguments."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from support import INLINE, Cli, refit, same

from expunge import KMeans, QKMeans
from expunge.jobs.kmeans_models import load_model
from expunge.jobs.requests import units_of_subjects
from expunge.jobs.workspace import Workspace

Write = Callable[..., Path]
TRAIN = ("train", "z", "--data", "t", "--algorithm", "k-means")


def table(n: int = 200, d: int = 3, seed: int = 0) -> np.ndarray:
    x: np.ndarray = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return x


@pytest.fixture
def ready(cli: Cli, csv_file: Write, tmp_path: Path) -> Path:
    """A workspace with data set t and model m; returns its folder."""
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(table()), "--format", "csv")
    cli("train", "m", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)
    return tmp_path / "ws"


def test_strangers_files_in_the_workspace_are_left_alone(
    cli: Cli, ready: Path, csv_file: Write, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter.txt").write_text("dear")
    (ready / "data" / "raw").mkdir()
    inside = ready / "data" / "raw" / "mine.csv"
    shutil.copy(csv_file(table(50)), inside)
    for link in ("data/link.zarr", "data/t2.zarr", "models/m/v000009-0123abcd.zarr", "spill/link"):
        (ready / link).symlink_to(outside)
    (ready / "data" / ".DS_Store").write_text("x")
    (ready / "models" / "m" / "notes.txt").write_text("x")
    (ready / "spill" / "notes.lock").write_text("x")
    cli("data", "import", "u", inside, "--format", "csv")
    cli("forget", "--data", "t", "--unit", 1)
    cli("batch", "run", "--yes", *INLINE)
    assert (outside / "letter.txt").read_text() == "dear" and inside.exists()
    for name in ("data/.DS_Store", "models/m/notes.txt", "spill/notes.lock", "data/link.zarr"):
        assert (ready / name).exists()


def test_workers_get_absolute_paths(
    cli: Cli, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Workspace.open(Path("ws")) as ws:
        assert ws.root.is_absolute()
        _, data_set = ws.ledger.open_data_set("t", ws.root)
        assert data_set.path.is_absolute()


def test_a_scan_counts_places_whoever_owns_them(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    """Identical rows, and several models whose encodings of a row coincide."""
    x = table(12)
    x[1] = x[0]
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(x), "--format", "csv")
    for model in ("a", "b", "c"):
        given = ["--data", "t", "--algorithm", "k-means", "-p", "n_clusters=11"]
        cli("train", model, *given, *INLINE)
    cli("forget", "--data", "t", "--unit", "0,5")
    cli("batch", "run", "--yes", *INLINE)
    wanted = csv_file(x[[0, 5]], "wanted.csv")
    found = cli("scan", "--rows", wanted)
    assert found["matches"] == 0 and found["live_twins"] > 1
    (tmp_path / "ws" / "leak").write_bytes(x[5].tobytes() * 3)
    found = cli("scan", "--rows", wanted, code=5)
    assert found["matches"] == 3 and found["rows_found"] == [1] and found["files"] == ["leak"]


def test_other_data_sets_models_raise_no_alarm(cli: Cli, csv_file: Write, tmp_path: Path) -> None:
    wide, narrow = np.abs(table(60)) + 1, np.abs(table(60, seed=1)) / 1000
    cli("init", tmp_path / "ws")
    for name, x in (("wide", wide), ("narrow", narrow)):
        cli("data", "import", name, csv_file(x), "--format", "csv")
        given = ["--algorithm", "k-means", "-p", "n_clusters=2", *INLINE]
        cli("train", f"of_{name}", "--data", name, *given)
    cli("forget", "--data", "wide", "--unit", 17)
    cli("batch", "run", "--yes", *INLINE)
    assert cli("scan", "--rows", csv_file(wide[[17]], "gone.csv"), "--data", "wide")["matches"] == 0


def test_what_a_scan_cannot_search_it_says(cli: Cli, ready: Path, csv_file: Write) -> None:
    blank = csv_file(np.zeros((1, 3)), "blank.csv")
    assert "1 rows whose bytes are all alike" in last_error(cli, "scan", "--rows", blank)
    (ready / "data" / "t.zarr" / "x" / "copy").write_bytes(table()[3].tobytes())
    row = csv_file(table()[[3]], "row.csv")
    assert "data/t.zarr/x/copy" in cli("scan", "--rows", row, code=5)["files"]
    cli("data", "import", "thin", csv_file(table(30, 1), "thin.csv"), "--format", "csv")
    thin = csv_file(table(1, 1), "one.csv")
    assert "too few to be told" in cli("scan", "--rows", thin, "--data", "thin", code=2)


def last_error(cli: Cli, *arguments: object) -> str:
    """The error of a command that prints a result and still exits with 1."""
    command = [sys.executable, "-m", "expunge.jobs.cli", "-w"]
    root = Path(str(arguments[2])).parent / "ws"
    done = subprocess.run(
        [*command, str(root), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    return done.stderr


def test_a_symbolic_link_to_a_data_set_is_searched(
    cli: Cli, ready: Path, csv_file: Write, tmp_path: Path
) -> None:
    (ready / "data" / "t.zarr").rename(tmp_path / "elsewhere")
    (ready / "data" / "t.zarr").symlink_to(tmp_path / "elsewhere")
    assert cli("scan", "--rows", csv_file(table()[[3]], "row.csv"), code=5)["matches"] >= 1


def test_no_receipt_for_a_unit_whose_row_was_not_found(cli: Cli, ready: Path) -> None:
    cli("forget", "--data", "t", "--unit", 33)
    for chunk in (ready / "data" / "t.zarr" / "unit").glob("c.*"):
        units = np.fromfile(chunk, np.int64)
        units[units == 33] = 4_000_000
        units.tofile(chunk)
    assert "1 of 1 units are not in data set t" in cli("batch", "run", "--yes", *INLINE, code=1)
    assert cli("receipt", "list")["receipts"] == []


def test_a_restored_backup_is_noticed(cli: Cli, ready: Path, tmp_path: Path) -> None:
    shutil.copytree(ready / "data" / "t.zarr", tmp_path / "backup")
    cli("forget", "--data", "t", "--unit", "1,2,3")
    cli("batch", "run", "--yes", *INLINE)
    shutil.rmtree(ready / "data" / "t.zarr")
    shutil.copytree(tmp_path / "backup", ready / "data" / "t.zarr")
    for command in (
        ("train", "z", "--data", "t", "--algorithm", "k-means", *INLINE),
        ("forget", "--data", "t", "--unit", 5),
        ("verify", "m", *INLINE),
    ):
        error = cli(*command, code=1)
        assert "holds 200 rows on the disk, the ledger knows 197" in error


def test_no_receipt_while_a_reader_keeps_unit_ids_in_the_log(
    cli: Cli, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("forget", "--data", "t", "--unit", 7)
    reader = sqlite3.connect(ready / "ledger.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM requests").fetchall()
    monkeypatch.setattr("expunge.jobs.ledger.BUSY_SECONDS", 0.2)
    error = cli("batch", "run", "--yes", *INLINE, code=75)
    assert "can't be cleared" in error
    assert "the deletion is committed: expunge job resume 3 finishes it" in error
    assert cli("receipt", "list")["receipts"] == []
    reader.close()
    job = cli("job", "list")["jobs"][-1]["id"]
    assert len(cli("job", "resume", job, *INLINE)["receipts"]) == 1


def test_a_busy_ledger_is_locked_and_a_damaged_one_says_so(
    cli: Cli, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.jobs.ledger.BUSY_SECONDS", 0.2)
    writer = sqlite3.connect(ready / "ledger.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert "writes the ledger" in cli("forget", "--data", "t", "--unit", 1, code=75)
    writer.close()
    data = bytearray((ready / "ledger.sqlite").read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    (ready / "ledger.sqlite").write_bytes(data)
    assert "ledger" in cli("model", "list", code=1)


def test_a_ledger_that_cannot_grow_is_not_called_damaged(cli: Cli, ready: Path) -> None:
    command = [sys.executable, "-m", "expunge.jobs.cli", "-w", str(ready), "forget"]
    done = subprocess.run(
        [*command, "--data", "t", "--sample", "0.9"],
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "size of files limited" in done.stderr
    assert cli("forget", "--data", "t", "--sample", 0.9)["already_requested"] == 0


@pytest.mark.parametrize(
    ("name", "code"), [("data/t.zarr/zarr.json", 1), ("models/m/*/zarr.json", 5)]
)
def test_damaged_metadata_is_an_error_without_traceback(
    cli: Cli, ready: Path, name: str, code: int
) -> None:
    """A damaged model fails its verification; without its rows there is none."""
    next(ready.glob(name)).write_text("")
    assert "zarr.json" in cli("verify", "m", *INLINE, code=code)


def test_a_failed_import_keeps_nothing_of_the_file(cli: Cli, ready: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("f0,f1,f2\n1,Jane Doe,3\n")
    assert "Jane Doe" in cli("data", "import", "u", bad, "--format", "csv", code=2)
    assert b"Jane" not in (ready / "ledger.sqlite").read_bytes()


def test_a_file_named_twice_is_refused(cli: Cli, ready: Path, csv_file: Write) -> None:
    path = csv_file(np.ones((2, 3)), "twice.csv")
    same = path.parent / "." / path.name
    asked = ("data", "import", "u", path, same, "--format", "csv")
    assert "named 2 times" in cli(*asked, code=2)
    assert [found["name"] for found in cli("data", "list")["data_sets"]] == ["t"]


def test_a_job_whose_name_was_given_away_can_be_closed(
    cli: Cli, ready: Path, csv_file: Write
) -> None:
    with Workspace.open(ready) as ws:
        asked = {"model": "m", "data": "t", "algorithm": "k-means", "parameters": {}, "seed": 0}
        job = ws.ledger.begin_job("train", asked)
    assert cli("job", "list")["jobs"][-1]["state"] == "interrupted"
    assert cli("job", "resume", job, *INLINE) == {"job": job, "state": "abandoned"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("forget", "--data", "t", "--unit", "9" * 5000), 2, "not a unit id"),
        (("forget", "--data", "t", "--sample", "0.1", "--seed", "9" * 45), 2, "seed"),
        (("job", "show", "9" * 20), 2, ""),
        (
            ("data", "generate", "g", "--like", "gaussian", "--rows", 5, "--features", 0),
            2,
            "feature",
        ),
        (
            ("data", "generate", "g", "--like", "gaussian", "--rows", 9, "--cells", 64),
            2,
            "at most 16",
        ),
        (("predict", "m", "nowhere.csv"), 2, "no such file"),
        (("scan", "--rows", "nowhere.csv"), 2, "nowhere.csv"),
        (("forget", "--data", "t", "--units-file", "."), 2, "is not a file"),
        (("forget", "--data", "t", "--subject", "x"), 2, "without --subject"),
        (
            (*TRAIN, "--memory-limit", "50MB"),
            2,
            "320MiB",
        ),
        (
            (*TRAIN, "-p", "bounds=-1e39:1e39"),
            2,
            "bounds",
        ),
    ],
)
def test_odd_arguments(
    cli: Cli, ready: Path, arguments: tuple[object, ...], code: int, message: str
) -> None:
    assert message in cli(*arguments, code=code)


def test_a_units_file_with_a_byte_order_mark(cli: Cli, ready: Path, tmp_path: Path) -> None:
    path = tmp_path / "units.txt"
    path.write_bytes(b"\xef\xbb\xbf12\r\n13\r\n")
    assert cli("forget", "--data", "t", "--units-file", path)["queued"] == 2


def test_an_error_after_the_commit_says_how_to_go_on(
    cli: Cli, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("forget", "--data", "t", "--unit", 7)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.erasure.erase_slots", refuse)
        error = cli("batch", "run", "--yes", *INLINE, code=1)
    assert "not permitted" in error and "expunge job resume 3 finishes it" in error
    cli("job", "resume", 3, *INLINE)


@pytest.mark.parametrize("cluster", ["inline", "local"])
def test_control_c_is_told_plainly(ready: Path, tmp_path: Path, cluster: str) -> None:
    """The terminal sends it to the whole process group, workers included."""
    arguments = ["train", "z", "--data", "t", "--algorithm", "k-means", "--cluster", cluster]
    script = (
        "import sys, time; from expunge.jobs.train_kmeans import StoredPasses\n"
        "real = StoredPasses._run\n"
        "def slow(*a):\n"
        "    result = real(*a)\n"
        "    print('passed', flush=True)\n"
        "    time.sleep(1.0)\n"
        "    return result\n"
        "StoredPasses._run = slow\n"
        "from expunge.jobs.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "-w", str(ready), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as it:  # type: ignore[call-overload]
        assert it.stdout.readline() == "passed\n"
        os.killpg(it.pid, signal.SIGINT)
        _, errors = it.communicate(timeout=60)
    assert it.returncode == 130 and "interrupted; expunge job list" in errors
    assert "Traceback" not in errors


def test_closed_stdout_is_no_traceback(ready: Path) -> None:
    command = f'"{sys.executable}" -m expunge.jobs.cli -w "{ready}" --json job list >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_copy_has_rows_of_its_own() -> None:
    x = table(100)
    model = KMeans(3, random_state=0).fit(x)
    other = copy(model)
    assert other.delete(70).rows == 1 and model.n_rows_ == 100
    assert model.delete(70).rows == 1
    kept = np.delete(np.arange(100), 70)
    same(model.record_, refit(x[kept], kept, model._settings))


def test_estimators_can_be_cloned() -> None:
    model = QKMeans(4, 0.1, random_state=3)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(gamma=0.5).gamma == 0.5
    with pytest.raises(ValueError, match="no parameter 'k'"):
        model.set_params(k=3)


@pytest.mark.parametrize("bad", [2.0, "3", None, True, np.bool_(True)])
def test_n_clusters_is_a_whole_number(bad: object) -> None:
    with pytest.raises(ValueError, match="n_clusters is"):
        KMeans(bad, random_state=0).fit([[1.0], [2.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows",
    [
        np.ones((3, 1), complex),
        np.array([["1"], ["2"]]),
        np.array([["2020-01-01"]], "M8[D]"),
        np.ma.masked_array([[1.0], [2.0]], mask=[[True], [False]]),
        np.array([[object()]]),
    ],
)
def test_rows_that_are_no_numbers_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match="X h"):
        KMeans(1, random_state=0).fit(rows)


def test_delete_takes_one_unit_in_any_shape() -> None:
    model = KMeans(2, random_state=0).fit(table(50))
    for number, unit in enumerate([13, np.int32(14), np.array(15), np.array([16]), {17}, (18,)]):
        assert model.delete(unit).rows == 1, number  # type: ignore[arg-type]
    assert model.delete(u for u in (19, 20)).rows == 2
    for bad in ("21", b"ab", 1.5, [1.5], [-1]):
        with pytest.raises((ValueError, TypeError)):
            model.delete(bad)  # type: ignore[arg-type]
    assert model.n_rows_ == 42


def test_subjects_from_file_to_receipt(cli: Cli, tmp_path: Path) -> None:
    """Several rows a person: all go together, exactly, and no id is kept."""
    rng = np.random.default_rng(6)
    people = rng.integers(0, 60, 400)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    path = tmp_path / "visits.csv"
    lines = [f"{','.join(map(str, row))},Person-{p}" for row, p in zip(x, people, strict=True)]
    path.write_text("\n".join(["a,b,c,who", *lines]) + "\n")
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", path, "--format", "csv", "--subject", "who")
    for name, algorithm in (("km", "k-means"), ("qk", "q-kmeans")):
        given = ["--data", "t", "--algorithm", algorithm, "-p", "n_clusters=4", *INLINE]
        cli("train", name, *given)
    error = cli("forget", "--data", "t", "--subject", "Person-99", code=2)
    assert "no such subject as is named by --subject, number 1" in error
    assert "Person-99" not in error
    listed = tmp_path / "who.txt"
    listed.write_text("Person-3\nPerson-8\n")
    assert cli("forget", "--data", "t", "--subjects-file", listed)["queued"] == 2
    assert cli("forget", "--data", "t", "--subject", "Person-11")["queued"] == 1
    done = cli("batch", "run", "--yes", *INLINE)
    gone = np.isin(people, [3, 8, 11])
    assert done["units"] == 3 and done["rows"] == gone.sum()
    for name in ("km", "qk"):
        assert cli("verify", name, *INLINE)["exact"]
    # The stored model equals the one in memory on the same rows under the same units.
    with Workspace.open(tmp_path / "ws") as ws:
        units = units_of_subjects(ws, "t", [f"Person-{p}" for p in people])
        stored = load_model(ws, "km")[1]
    model = KMeans(4, random_state=0).fit(x, units=units)
    model.delete(np.unique(units[gone]))
    same(stored, model.record_)
    assert len(cli("receipt", "list", "--data", "t", "--subject", "Person-8")["receipts"]) == 1
    for file in (tmp_path / "ws").rglob("*"):
        assert not file.is_file() or b"Person-" not in file.read_bytes()
