"""A partly done job whose process ends at any place, and its retry too, ends as if undisturbed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partly_done import (
    BATCH,
    damage,
    end_state,
    last_job,
    leftovers,
    prepare,
    request_states,
    run_partly,
    swap,
)
from receipt_workspace import checked_receipt, command, copy_workspace
from regression_workspace import import_rows, problem, train
from support import INLINE, Cli
from test_faults import killed_at
from test_interrupted import Killed, kill_at

FIRST = ("plan", "gather", "update", "commit", "retire")
AGAIN = ("gather again", "update again", "commit again", "erase", "retire", "verify", "receipt")
RETRY = ("--method", "basel", *INLINE)
KILLER = """
import os, signal, sys
from contextlib import contextmanager
from expunge.jobs.ledger import Ledger
real = Ledger.step
@contextmanager
def step(self, job, name):
    with real(self, job, name):
        if name == sys.argv[1] and sys.argv[2] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if name == sys.argv[1] and sys.argv[2] == "after":
            os.kill(os.getpid(), signal.SIGKILL)
Ledger.step = step
from expunge.jobs.cli import run; sys.exit(run(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which one of three models can't be updated; every test copies it."""
    root = tmp_path_factory.mktemp("prepared")
    prepare(root)
    return root


@pytest.fixture(scope="module")
def partly(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after its batch, which is partly done."""
    root = tmp_path_factory.mktemp("partly")
    copy_workspace(prepared, root)
    run_partly(root, *BATCH)
    return root


@pytest.fixture(scope="module")
def wanted(partly: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Cli, Path], Any]:
    """What an undisturbed batch and retry leave."""
    found: list[Any] = []

    def state(cli: Cli, root: Path) -> Any:
        if not found:
            swap(partly, root)
            cli("job", "retry", last_job(cli)["id"], *RETRY)
            found.append(end_state(cli))
        return found[0]

    return state


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    copy_workspace(prepared, tmp_path)
    return tmp_path


def dies_in_process(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str, command: Any
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, step, when)
        with pytest.raises(Killed):
            cli(*command)


def dies_by_sigkill(root: Path, step: str, when: str, command: Any) -> None:
    given = [sys.executable, "-c", KILLER, step, when, "-w", str(root / "ws"), *map(str, command)]
    done = subprocess.run(given, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def go_on_until_partly_done(root: Path, cli: Cli) -> int:
    """Resume a job that was killed in its first attempt: it must become partly done, or be so already."""
    job: int = last_job(cli)["id"]
    if last_job(cli)["state"] == "interrupted":
        assert f"job resume {job}" in cli(*BATCH, code=1)
        run_partly(root, "job", "resume", job, *INLINE)
    assert last_job(cli)["state"] == "partly done" and request_states(root) == {"partly done"}
    assert cli("receipt", "list")["receipts"] == []
    return job


def go_on_until_done(cli: Cli, job: int) -> None:
    """Resume a job that was killed in its retry; the method of the retry is not asked for again."""
    if last_job(cli)["state"] == "interrupted":
        assert f"job resume {job}" in cli(*BATCH, code=1)
        cli("job", "resume", job, *INLINE)
    assert last_job(cli)["state"] == "done"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", FIRST)
def test_the_first_attempt(
    root: Path,
    cli: Cli,
    wanted: Callable[[Cli, Path], Any],
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    when: str,
) -> None:
    expected = wanted(cli, root)
    swap(prepared, root)
    dies_in_process(cli, root, monkeypatch, step, when, BATCH)
    job = go_on_until_partly_done(root, cli)
    cli("job", "retry", job, *RETRY)
    assert end_state(cli) == expected
    assert len(leftovers(root)) == 4 and checked_receipt(root, cli)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", AGAIN)
def test_the_retry(
    root: Path,
    cli: Cli,
    wanted: Callable[[Cli, Path], Any],
    partly: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    when: str,
) -> None:
    expected = wanted(cli, root)
    swap(partly, root)
    job = last_job(cli)["id"]
    dies_in_process(cli, root, monkeypatch, step, when, ("job", "retry", job, *RETRY))
    go_on_until_done(cli, job)
    assert end_state(cli) == expected
    assert len(leftovers(root)) == 4 and checked_receipt(root, cli)


@pytest.mark.parametrize(
    ("step", "when"),
    [
        ("commit", "after"),
        *(
            pytest.param(step, when, marks=pytest.mark.slow)
            for step in ("update", "commit", "retire")
            for when in ("before", "after")
            if (step, when) != ("commit", "after")
        ),
    ],
)
def test_sigkill_of_the_first_attempt(
    root: Path, cli: Cli, wanted: Callable[[Cli, Path], Any], prepared: Path, step: str, when: str
) -> None:
    expected = wanted(cli, root)
    swap(prepared, root)
    dies_by_sigkill(root, step, when, BATCH)
    cli("job", "retry", go_on_until_partly_done(root, cli), *RETRY)
    assert end_state(cli) == expected and len(leftovers(root)) == 4


@pytest.mark.parametrize(
    ("step", "when"),
    [
        ("commit again", "after"),
        *(
            pytest.param(step, when, marks=pytest.mark.slow)
            for step in AGAIN
            for when in ("before", "after")
            if (step, when) != ("commit again", "after")
        ),
    ],
)
def test_sigkill_of_the_retry(
    root: Path, cli: Cli, wanted: Callable[[Cli, Path], Any], partly: Path, step: str, when: str
) -> None:
    expected = wanted(cli, root)
    swap(partly, root)
    job = last_job(cli)["id"]
    dies_by_sigkill(root, step, when, ("job", "retry", job, *RETRY))
    go_on_until_done(cli, job)
    assert end_state(cli) == expected and len(leftovers(root)) == 4


# ---- durable operations


def places(most: int, step: int, every: int) -> list[Any]:
    """Every so many-th place; those that ``every`` divides are few enough to run always."""
    slow = pytest.mark.slow
    found = range(step, most + 1, step)
    return [n if n % every == 0 else pytest.param(n, marks=slow) for n in found]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of few operations: a k-means model, and a regression that is damaged."""
    root = tmp_path_factory.mktemp("small")
    call = partial(command, root)
    x, labels = problem(60)
    import_rows(call, root, x, labels["linear"], cells=2)
    call("train", "m", "--data", "t", "--algorithm", "q-kmeans", "-p", "n_clusters=2", *INLINE)
    train(call, "lin", "linear", "-p", "provenance=exact", "-p", "iterations=4")
    call("forget", "--data", "t", "--unit", "3,4")
    damage(root, "lin")
    return root


def ends_well(cli: Cli, root: Path) -> None:
    assert cli("data", "show", "t")["rows"] == 58
    assert len(cli("receipt", "list")["receipts"]) == 2
    assert cli("verify", "m", *INLINE)["exact"] and cli("verify", "lin", *INLINE)["intact"]
    assert [m["version"] for m in cli("model", "list")["models"]] == [2, 2]
    assert len(leftovers(root)) == 3


@pytest.mark.parametrize("at", places(230, 7, 56))
def test_a_batch_that_ends_at_any_operation(
    cli: Cli, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    swap(small, tmp_path)
    if not killed_at(monkeypatch, at, lambda: cli(*BATCH, code=3)):
        pytest.skip("a batch has fewer durable operations")
    if last_job(cli)["state"] == "interrupted":
        run_partly(tmp_path, "job", "resume", last_job(cli)["id"], *INLINE)
    elif last_job(cli)["kind"] != "deletion":
        run_partly(tmp_path, *BATCH)
    job = last_job(cli)
    assert job["state"] == "partly done"
    cli("job", "retry", job["id"], *RETRY)
    ends_well(cli, tmp_path)


@pytest.mark.parametrize("at", places(212, 7, 49))
def test_a_retry_that_ends_at_any_operation(
    cli: Cli, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    swap(small, tmp_path)
    job = run_partly(tmp_path, *BATCH)[0]["job"]
    if not killed_at(monkeypatch, at, lambda: cli("job", "retry", job, *RETRY)):
        pytest.skip("a retry has fewer durable operations")
    state = last_job(cli)["state"]
    if state == "interrupted":
        cli("job", "resume", job, *INLINE)
    elif state == "partly done":
        cli("job", "retry", job, *RETRY)
    ends_well(cli, tmp_path)


@pytest.mark.parametrize("at", places(38, 3, 9))
def test_a_retirement_that_ends_at_any_operation(
    cli: Cli, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    swap(small, tmp_path)
    job = run_partly(tmp_path, *BATCH)[0]["job"]
    if not killed_at(monkeypatch, at, lambda: cli("model", "retire", "lin", "--yes")):
        pytest.skip("a retirement has fewer durable operations")
    if any(m["name"] == "lin" for m in cli("model", "list")["models"]):
        cli("model", "retire", "lin", "--yes")
    assert len(cli("job", "retry", job, *INLINE)["receipts"]) == 2
    assert np.all([name != "models/lin/v000001" for name in leftovers(tmp_path)])
    assert len(leftovers(tmp_path)) == 2
