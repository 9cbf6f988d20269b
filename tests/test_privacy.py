"""No subject and no row value stays behind: in ledger, receipts, versions, errors and logs."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from partly_done import run_partly
from receipt_workspace import command
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs.cli import run
from expunge.jobs.fold import DaskFold
from expunge.jobs.holds import place_hold
from expunge.jobs.plan import gather
from expunge.jobs.receipt_page import page
from expunge.jobs.receipts import receipt, receipts
from expunge.jobs.workspace import Workspace
from expunge.storage.cells import subject_units
from expunge.storage.versions import write_version

PEOPLE = [f"Zebulon-Quartermain-{i}" for i in range(40)]
GONE = ("Zebulon-Quartermain-7", "Zebulon-Quartermain-23")
WEIGHT = 7391.0625
"""In every row of one person, exactly: 7391.0625 plus the row's number of quarters."""
SUBJECT = b"Quartermain"


def rows() -> tuple[np.ndarray, list[str]]:
    """Features (200, 3), distinctive in those who go, and whose they are."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    whose = [PEOPLE[i % 40] for i in range(200)]
    for i, name in enumerate(whose):
        if name in GONE:
            x[i] = [WEIGHT + i / 4, -WEIGHT * 3 - i, WEIGHT / 2 + i / 8]
    return x, whose


def encodings() -> Iterator[bytes]:
    """What deleted rows look like: as text and as numbers, a value alone and a row."""
    x, whose = rows()
    for i, name in enumerate(whose):
        if name in GONE:
            yield x[i].tobytes()
            yield x[i].astype(float).tobytes()
            for value in x[i]:
                yield str(float(value)).encode()
                yield np.float64(value).tobytes()


def unit_ids(root: Path) -> Iterator[bytes]:
    """The unit ids of those who go, as SQLite, Zarr and JSON have them."""
    with Workspace.open(root / "ws") as ws:
        salt = ws.ledger.salt
    for unit in subject_units(GONE, salt).tolist():
        yield unit.to_bytes(8, "big")
        yield unit.to_bytes(8, "little")
        yield str(unit).encode()


def ledger_bytes(root: Path) -> bytes:
    """The ledger with its write-ahead log and whatever SQLite puts beside."""
    return b"".join(f.read_bytes() for f in (root / "ws").glob("ledger.sqlite*"))


@pytest.fixture
def root(cli: Cli, tmp_path: Path) -> Path:
    """A workspace of people, two models, a key, and requests of two."""
    x, whose = rows()
    lines = [
        f"{','.join(map(str, row))},{name},{int(row[1] > 0)}"
        for row, name in zip(x, whose, strict=True)
    ]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["weight,b,c,who,ill", *lines]) + "\n")
    cli("init", tmp_path / "ws")
    given = ("--format", "csv", "--subject", "who", "--label", "ill")
    cli("data", "import", "t", path, *given)
    cli("train", "km", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=4", *INLINE)
    cli("receipt", "keygen")
    listed = tmp_path / "gone.txt"
    listed.write_text("\n".join(GONE))
    cli("forget", "--data", "t", "--subjects-file", listed)
    return tmp_path


def check_ledger(root: Path) -> None:
    """Nothing of a person in the clear, at any time."""
    data = ledger_bytes(root)
    assert SUBJECT not in data
    assert not any(encoded in data for encoded in encodings())


def check_all(root: Path) -> None:
    """Nothing of those who went, in any file of the workspace or any receipt."""
    check_ledger(root)
    files = [f for f in (root / "ws").rglob("*") if f.is_file()]
    assert any("models" in f.parts for f in files)
    texts = [f.read_bytes() for f in files]
    with Workspace.open(root / "ws") as ws:
        for line in receipts(ws.ledger):
            found = receipt(ws.ledger, line["receipt"])
            texts += [json.dumps(found).encode(), page(found).encode()]
        jobs = ws.ledger.rows("SELECT * FROM jobs") + ws.ledger.rows("SELECT * FROM events")
    texts.append(json.dumps(jobs).encode())
    planted = [SUBJECT, *encodings(), *unit_ids(root)]
    for text in texts:
        assert not any(encoded in text for encoded in planted)


def test_the_search_has_power(root: Path) -> None:
    """Before the batch rows are in the data set and units in the ledger; planted anywhere, they are found."""
    data = ledger_bytes(root)
    assert sum(unit in data for unit in unit_ids(root)) >= len(GONE)
    chunks = b"".join(f.read_bytes() for f in (root / "ws/data/t.zarr/x").glob("c.*"))
    assert sum(encoded in chunks for encoded in encodings()) >= 10
    (root / "ws" / "stray").write_text(f"weight {WEIGHT + 7 / 4}")
    with pytest.raises(AssertionError):
        check_all(root)


@pytest.mark.parametrize("how", ["none", "retrain", "scan"])
def test_a_batch_and_its_verification(root: Path, cli: Cli, how: str) -> None:
    cli("settings", "--verify", how)
    check_ledger(root)
    # A reader keeps the write-ahead log on the disk, so that what it holds is searched as well.
    with closing(sqlite3.connect(root / "ws" / "ledger.sqlite")) as reader:
        reader.execute("SELECT count(*) FROM events").fetchall()
        cli("batch", "run", "--yes", *INLINE)
        assert (root / "ws" / "ledger.sqlite-wal").exists()
        check_all(root)
    cli("verify", "km", *INLINE)
    assert cli("receipt", "list", "--data", "t", "--subject", GONE[0])["receipts"]
    check_all(root)


def test_a_failed_scan_a_kill_and_their_resumption(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, whose = rows()
    cli("settings", "--verify", "scan")
    stray = root / "ws" / "stray"
    stray.write_bytes(x[whose.index(GONE[1])].tobytes())
    assert "stray" in cli("batch", "run", "--yes", *INLINE, code=5)
    check_ledger(root)
    stray.unlink()
    job = cli("job", "list")["jobs"][-1]["id"]
    with monkeypatch.context() as patch:
        kill_at(patch, "receipt", "before")
        with pytest.raises(Killed):
            cli("job", "resume", job, *INLINE)
    check_ledger(root)
    cli("job", "resume", job, *INLINE)
    check_all(root)


def hold_those_who_go(root: Path) -> None:
    """Place a hold on those who go, and on one who stays, from another process's connection."""
    with Workspace.open(root / "ws") as ws:
        units = subject_units([*GONE, PEOPLE[1]], ws.ledger.salt)
        assert place_hold(ws, "t", units, "a law suit")["running"] == len(GONE)


def held_while_it_runs(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that comes too late for those who go, and is on still in the end."""

    def holding(*given: Any) -> Any:
        hold_those_who_go(root)
        return gather(*given)

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.deletion.gather", holding)
        cli("batch", "run", "--yes", *INLINE)
    assert cli("hold", "list")["holds"][0]["state"] == "on"


def leave_partly_done(root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A batch in which a model fails with an error that quotes a row; return its job."""

    def fail(*_: object) -> None:
        raise ValueError(f"no model of {GONE[0]} at {WEIGHT + 7 / 4}")

    command(root, "train", "qk", "--data", "t", "--algorithm", "q-kmeans", *INLINE)
    version = "expunge.jobs.kmeans_models.write_version"
    with monkeypatch.context() as patch:
        patch.setattr(
            version, lambda path, *rest: fail() if "qk" in str(path) else write_version(path, *rest)
        )
        found, error = run_partly(root, "batch", "run", "--yes", *INLINE)
    for text in (json.dumps(found), error):
        assert SUBJECT.decode() not in text and str(WEIGHT + 7 / 4) not in text
    job: int = found["job"]
    return job


def partly_done_and_retried(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    job = leave_partly_done(root, monkeypatch)
    check_ledger(root)
    cli("job", "retry", job, *INLINE)


def partly_done_and_retired(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    job = leave_partly_done(root, monkeypatch)
    cli("model", "retire", "qk", "--yes")
    check_ledger(root)
    cli("job", "retry", job, *INLINE)


def job_cancelled(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its commit; the next batch does it."""
    with monkeypatch.context() as patch:
        kill_at(patch, "update", "after")
        with pytest.raises(Killed):
            cli("batch", "run", "--yes", *INLINE)
    cli("job", "cancel", cli("job", "list")["jobs"][-1]["id"])
    check_ledger(root)
    cli("batch", "run", "--yes", *INLINE)


@pytest.mark.parametrize("how", ["none", "scan"])
@pytest.mark.parametrize(
    "way", [held_while_it_runs, partly_done_and_retried, partly_done_and_retired, job_cancelled]
)
def test_ways_in_which_a_request_ends(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, way: Callable[..., None], how: str
) -> None:
    cli("settings", "--verify", how)
    way(root, cli, monkeypatch)
    assert {r["state"] for r in cli("request", "list")["requests"]} == {"done"}
    check_all(root)


def test_a_cancelled_request_keeps_no_unit(root: Path, cli: Cli) -> None:
    """The rows stay, in the data set; the ledger knows their units no more."""
    for request in (1, 2):
        cli("request", "cancel", request)
    data = ledger_bytes(root)
    assert not any(unit in data for unit in unit_ids(root))


def test_errors_say_where_and_never_who(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dozen errors, provoked with people's names and rows at hand."""
    unknown, listed = "Nobody-Quartermain", root / "unknown.txt"
    listed.write_text(f"{PEOPLE[2]}\n\n{unknown}\n")
    plain, some = root / "plain.csv", root / "some.csv"
    plain.write_text("a,b,c\n1,2,3\n4,5,6\n")
    cli("data", "import", "plain", plain, "--format", "csv")
    x, whose = rows()
    values = [f"{a},{b},{c}" for (a, b, c), name in zip(x, whose, strict=True) if name in GONE]
    some.write_text("\n".join(["weight,b,c", *values]) + "\n")
    bad_line, no_subject = root / "bad.csv", root / "none.csv"
    bad_line.write_text(f"v,who\n1,{PEOPLE[4]}\noops,{PEOPLE[5]}\n")
    no_subject.write_text(f"v,who\n1,{PEOPLE[4]}\n2,\n")
    wide = root / "wide.csv"
    wide.write_text(f"v,who\n1,{PEOPLE[4]}\n2,{PEOPLE[5]},extra\n")
    imported = ("--format", "csv", "--subject", "who")
    cases: list[tuple[int, tuple[Any, ...]]] = [
        (2, ("forget", "--data", "t", "--subject", unknown)),
        (2, ("forget", "--data", "t", "--subjects-file", listed)),
        (2, ("forget", "--data", "t", "--unit", PEOPLE[3])),
        (2, ("forget", "--data", "t", "--units-file", listed)),
        (2, ("forget", "--data", "plain", "--subject", PEOPLE[3])),
        (2, ("forget", "--data", "nothing", "--subject", PEOPLE[3])),
        (2, ("forget", "--data", "t", "--subject", PEOPLE[3], "--unit", "4")),
        (2, ("receipt", "list", "--subject", PEOPLE[3])),
        (2, ("receipt", "list", "--data", "t", "--unit", PEOPLE[3])),
        (2, ("data", "import", "u", bad_line, *imported)),
        (2, ("data", "import", "u", no_subject, *imported)),
        (2, ("data", "import", "u", wide, *imported)),
        (2, ("predict", "km", plain)),
        (2, ("scan", "--rows", plain, "--data", "t")),
        (5, ("scan", "--rows", some, "--data", "t")),
    ]
    shown = []
    for code, arguments in cases:
        for debug in ((), ("--debug",)):
            assert run(["-w", str(root / "ws"), *debug, *map(str, arguments)]) == code, arguments
            captured = capsys.readouterr()
            assert captured.err.count("error: ") == 1
            shown.append(captured.out + captured.err)

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for place in ("kmeans_models.write_version", "erasure.erase_slots", "erasure.issue"):
        kept = root / "kept"
        shutil.copytree(root / "ws", kept)
        with monkeypatch.context() as patch:
            patch.setattr(f"expunge.jobs.{place}", refuse)
            shown.append(str(cli("batch", "run", "--yes", *INLINE, code=1)))
        check_ledger(root)
        shutil.rmtree(root / "ws")
        kept.rename(root / "ws")
    assert len(shown) == 2 * len(cases) + 3
    for text in shown:
        assert SUBJECT.decode() not in text, text
        assert not any(e in text.encode() for e in encodings()), text
    assert f"{listed}, line 3" in shown[2] and "--subject, number 1" in shown[0]
    check_ledger(root)


# ---- logs


def _fails(piece: object) -> list[object]:
    raise RuntimeError("the task failed")


def _merge_fails(one: list[object], other: list[object]) -> list[object]:
    raise RuntimeError("the merge failed")


def _same(piece: object) -> list[object]:
    return [piece]


@pytest.mark.parametrize("task", [_fails, _same])
def test_workers_do_not_log_what_they_work_on(task: Any) -> None:
    """Dask logs a task that fails by its name; its arguments would be rows and unit ids."""
    logged: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    listener = Listener()
    logger = logging.getLogger("distributed.worker")
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
            silence_logs=False,
        ) as cluster,
        Client(cluster) as client,
    ):
        logger.addHandler(listener)
        try:
            fold = DaskFold(lambda: _given(client))
            with pytest.raises(RuntimeError, match="failed"):
                fold(task, [{"who": SUBJECT.decode(), "x": WEIGHT}] * 2, _merge_fails)
        finally:
            logger.removeHandler(listener)
    assert any("failed" in line for line in logged)
    for line in logged:
        assert SUBJECT.decode() not in line and str(WEIGHT) not in line


def _given(client: Client) -> Any:

    return nullcontext(client)
