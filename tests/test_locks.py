"""Who may work when: the workspace's lock and the fence, with real processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support import INLINE, Cli
from test_interrupted import Killed

from expunge.jobs.erasure import EraseTask
from expunge.storage import fence as fences
from expunge.storage.dataset import DataSet

HOLD = """
import sys, time
from pathlib import Path
from expunge.jobs.workspace import Workspace
with Workspace.open(Path(sys.argv[1])) as ws, ws.lock("training of model z"):
    print("held", flush=True)
    time.sleep(600)
"""
LATE_WORKER = """
import pickle, sys
from pathlib import Path
from expunge.jobs.erasure import erase_cells
task = pickle.loads(Path(sys.argv[1]).read_bytes())
print("ready", flush=True)
sys.stdin.readline()
erase_cells(task)
"""
STUCK_WRITER = """
import pickle, sys, time
from pathlib import Path
task = pickle.loads(Path(sys.argv[1]).read_bytes())
with task.fence.writing():
    print("writing", flush=True)
    time.sleep(600)
"""


@contextmanager
def process(script: str, argument: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a script in another process until it prints its first line; killed at the end."""
    command = [sys.executable, "-c", script, str(argument)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        try:
            assert child.stdout.readline()
            yield child
        finally:
            child.kill()


@pytest.fixture
def prepared(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A workspace with a model and queued requests."""
    rng = np.random.default_rng(3)
    path = csv_file(rng.normal(size=(300, 3)))
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", path, "--format", "csv")
    cli("train", "m", "--data", "t", "--algorithm", "k-means", "-p", "n_clusters=3", *INLINE)
    cli("forget", "--data", "t", "--unit", "3,44,299")
    return path


def test_whoever_comes_second_gets_exit_75_at_once(
    cli: Cli, prepared: Path, tmp_path: Path
) -> None:
    commands: list[tuple[object, ...]] = [
        ("train", "z", "--data", "t", "--algorithm", "k-means", *INLINE),
        ("data", "import", "u", prepared, "--format", "csv"),
        ("batch", "run", "--yes", *INLINE),
        ("verify", "m", "--against", "retrain", *INLINE),
        ("job", "resume", 1, *INLINE),
        ("scan", "--rows", prepared),
    ]
    with process(HOLD, tmp_path / "ws") as holder:
        for command in commands:
            started = time.monotonic()
            error = cli(*command, code=75)
            assert time.monotonic() - started < 2
            assert f"training of model z, process {holder.pid} on " in error and "since 20" in error
        # Looking is allowed.
        assert cli("data", "show", "t")["rows"] == 300
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert cli("batch", "run", "--yes", *INLINE)["units"] == 3


def late_task(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, EraseTask]:
    """Kill a batch right after its commit; return an erase order of its, pickled, as sent."""
    orders: list[EraseTask] = []

    def order_and_die(task: EraseTask) -> None:
        orders.append(task)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.erasure.erase_cells", order_and_die)
        with pytest.raises(Killed):
            cli("batch", "run", "--yes", *INLINE)
    path = tmp_path / "order.pickle"
    path.write_bytes(pickle.dumps(orders[0]))
    return path, orders[0]


def planted(task: EraseTask) -> list[bytes]:
    """Put marks where the order would erase, and return all chunks: what a late write destroys."""
    for cell, slots in task.slots.items():
        with task.data_set.chunk("x", cell).open("r+b") as file:
            file.seek(int(slots[0]) * task.data_set.row_bytes)
            file.write(b"mark")
    return chunks(task.data_set)


def chunks(data_set: DataSet) -> list[bytes]:
    return [p.read_bytes() for p in sorted(data_set.path.rglob("c.*"))]


def test_a_stopped_worker_cannot_write_after_the_recovery(
    cli: Cli, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, task = late_task(cli, tmp_path, monkeypatch)
    with process(LATE_WORKER, order) as worker:
        worker.send_signal(signal.SIGSTOP)
        job = cli("job", "list")["jobs"][-1]["id"]
        assert len(cli("job", "resume", job, *INLINE)["receipts"]) == 3
        before = planted(task)
        worker.send_signal(signal.SIGCONT)
        _, errors = worker.communicate("go\n", timeout=60)
        assert worker.returncode == 1 and "StaleOrderError" in errors
    assert chunks(task.data_set) == before


def test_the_same_worker_writes_while_its_driver_is_in_charge(
    cli: Cli, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: only the fence keeps the late worker from writing."""
    order, task = late_task(cli, tmp_path, monkeypatch)
    before = planted(task)
    with process(LATE_WORKER, order) as worker:
        worker.communicate("go\n", timeout=60)
        assert worker.returncode == 0
    assert chunks(task.data_set) != before


def test_a_new_driver_waits_for_a_writer_and_names_it(
    cli: Cli, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, _ = late_task(cli, tmp_path, monkeypatch)
    monkeypatch.setattr(fences, "WAIT_SECONDS", 0.2)
    with process(STUCK_WRITER, order) as writer:
        writer.send_signal(signal.SIGSTOP)
        error = cli("job", "resume", 3, *INLINE, code=75)
        assert f"still writing (process {writer.pid})" in error
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert len(cli("job", "resume", 3, *INLINE)["receipts"]) == 3


def test_a_torn_token_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "fence"
    fences.make_fence(path)
    mine = fences.take_over(path)
    with mine.writing():
        pass
    with path.open("r+b") as file:
        file.write(b"torn")
    with pytest.raises(fences.StaleOrderError, match="replaced"), mine.writing():
        pass
    assert fences.take_over(path).token != mine.token


def test_spill_of_a_dead_process_is_swept_and_of_a_live_one_kept(
    cli: Cli, prepared: Path, tmp_path: Path
) -> None:
    script = HOLD.replace(', ws.lock("training of model z")', ", ws.spill_folder() as spill")
    script = script.replace("print(", "(spill / 'rows').write_bytes(b'abc'); print(")
    with process(script, tmp_path / "ws") as holder:
        cli("scan", "--rows", prepared, code=5)
        spilled = list((tmp_path / "ws" / "spill").glob("*/rows"))
        assert len(spilled) == 1
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    cli("scan", "--rows", prepared, code=5)
    assert not list((tmp_path / "ws" / "spill").iterdir())
