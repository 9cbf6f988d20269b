"""Holds: what they keep waits, however it got into the queue, and goes back when they end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli
from test_interrupted import Killed, kill_at

from expunge.jobs.batches import run_batch
from expunge.jobs.cli import run
from expunge.jobs.fold import InlineFold
from expunge.jobs.holds import list_holds, place_hold
from expunge.jobs.plan import gather
from expunge.jobs.request_life import Chosen, list_requests
from expunge.jobs.requests import forget
from expunge.jobs.workspace import Workspace

Write = Callable[..., Path]
BATCH = ("batch", "run", "--yes", *INLINE)
DATA = ("--data", "t")
WHY = ("--ground", "a law suit")
DAY = timedelta(days=1)


@pytest.fixture
def ws(cli: Cli, csv_file: Write, tmp_path: Path) -> Path:
    """A workspace with 200 rows in data set t, and no model."""
    rng = np.random.default_rng(4)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(rng.normal(size=(200, 3))), "--format", "csv")
    return tmp_path / "ws"


def states(cli: Cli) -> dict[int, str]:
    return {r["request"]: r["state"] for r in cli("request", "list")["requests"]}


def hold(cli: Cli, units: str, *given: object) -> dict[str, Any]:
    found: dict[str, Any] = cli("hold", "place", *DATA, "--unit", units, *WHY, *given)
    return found


def test_what_is_held_waits_until_the_hold_is_lifted(cli: Cli, ws: Path) -> None:
    cli("forget", *DATA, "--unit", "1,2")
    placed = hold(cli, "2,3,3", "--until", "2999-01-01")
    assert placed["requests_held"] == 1 and placed["units"] == 2 and placed["repeated"] == 1
    asked = cli("forget", *DATA, "--unit", "3,4")
    assert asked["queued"] == 1 and asked["held"] == 1
    assert states(cli) == {1: "queued", 2: "held", 3: "held", 4: "queued"}
    held = cli("request", "list", "--state", "held")["requests"]
    assert [r["holds"] for r in held] == [
        [{"hold": 1, "until": "2999-01-01T23:59:59.999+00:00"}]
    ] * 2
    assert cli("batch", "run", "--dry-run", *INLINE)["units"] == 2
    assert cli(*BATCH)["units"] == 2
    assert states(cli) == {2: "held", 3: "held", 1: "done", 4: "done"}
    assert cli(*BATCH)["job"] is None
    found = cli("hold", "show", 1)
    assert found["requests_held"] == 2 and [u["unit"] for u in found["held_units"]] == [2, 3]
    lifted = cli("hold", "lift", 1)
    assert lifted["state"] == "lifted" and [u["unit"] for u in lifted["held_units"]] == [None] * 2
    assert cli("hold", "lift", 1) == lifted
    assert cli("data", "list")["data_sets"][0]["rows"] == 198
    assert cli(*BATCH)["units"] == 2
    assert cli("data", "list")["data_sets"][0]["rows"] == 196


def test_only_held_units_exit_with_4(
    cli: Cli, ws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(cli, "1,2")
    made = cli("forget", *DATA, "--unit", "1,2", code=4)
    assert made["held"] == 2 and made["queued"] == 0
    # Asking again is still all held; one unit more is not.
    assert cli("forget", *DATA, "--unit", "1", code=4)["existing"][0]["state"] == "held"
    assert cli("forget", *DATA, "--unit", "1,5")["queued"] == 1
    capsys.readouterr()
    assert run(["-w", str(ws), "forget", *DATA, "--unit", "2"]) == 4
    assert "hold list" in capsys.readouterr().err
    for command in (("request", "list"), ("hold", "list"), ("hold", "show", "1")):
        assert run(["-w", str(ws), *command]) == 0
        out = capsys.readouterr().out
        assert "held" in out and ("1 until lifted" in out or "a law suit" in out)


def test_a_hold_ends_with_its_time(ws: Path) -> None:
    present = datetime.now(UTC)
    end = (present + DAY).isoformat()
    with Workspace.open(ws) as open_ws:
        place_hold(open_ws, "t", np.array([1, 2]), "a law suit", end)
        place_hold(open_ws, "t", np.array([2]), "another")
        assert forget(open_ws, "t", np.array([1, 2, 3]))["held"] == 2
        assert list_requests(open_ws, Chosen(), 9)["counts"] == {"queued": 1, "held": 2}
        after = present + 2 * DAY
        assert list_requests(open_ws, Chosen(), 9, after)["counts"] == {"queued": 2, "held": 1}
        first, other = sorted(list_holds(open_ws, after), key=lambda found: found["hold"])
        assert (first["state"], other["state"]) == ("over", "on")
        assert first["ended"] and other["requests_held"] == 1 and first["requests_held"] == 0
        ids = open_ws.ledger.rows("SELECT hold, unit FROM held_units ORDER BY hold, unit_hash")
        assert [(row["hold"], row["unit"]) for row in ids if row["unit"] is not None] == [(2, 2)]


def test_a_batch_looks_at_the_clock_itself(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that has ended keeps nothing from the next batch, also if nobody looked before."""
    present = datetime.now(UTC)
    with Workspace.open(ws) as open_ws:
        forget(open_ws, "t", np.array([1]))
        place_hold(
            open_ws, "t", np.array([1]), "x", (present - DAY).isoformat(), None, present - 2 * DAY
        )
        assert open_ws.ledger.value("SELECT state FROM requests") == "held"
        assert run_batch(open_ws, InlineFold(), lambda what: None)["units"] == 1


def test_what_cannot_be_held_is_said(cli: Cli, ws: Path) -> None:
    cli("forget", *DATA, "--unit", "1,2")
    cli(*BATCH)
    assert hold(cli, "1,3")["too_late"] == 1
    assert [u["unit"] for u in cli("hold", "show", 1)["held_units"]] == [3]
    place = ("hold", "place", *DATA)
    assert "too late" in cli(*place, "--unit", "1,2", *WHY, code=2)
    error = cli(*place, "--unit", "3,900", *WHY, code=2)
    assert "no unit 900" in error and "nothing is held" in error
    assert "past" in cli(*place, "--unit", 3, *WHY, "--until", "2001-01-01", code=2)
    assert "printable" in cli(*place, "--unit", 3, "--ground", " ", code=2)
    assert "exactly one" in cli(*place, *WHY, code=2)
    assert "no hold 7" in cli("hold", "lift", 7, code=2)
    assert "no hold 7" in cli("hold", "show", 7, code=2)
    assert len(cli("hold", "list")["holds"]) == 1


def test_a_held_request_can_be_cancelled(cli: Cli, ws: Path) -> None:
    cli("forget", *DATA, "--unit", 1)
    hold(cli, "1")
    assert cli("request", "cancel", 1)["state"] == "cancelled"
    cli("hold", "lift", 1)
    assert states(cli) == {1: "cancelled"} and cli(*BATCH)["job"] is None


@pytest.mark.parametrize("step", ["gather", "commit", "erase"])
def test_a_hold_takes_requests_from_a_killed_job_before_its_commit(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    cli("forget", *DATA, "--unit", "1,2")
    with monkeypatch.context() as patch:
        kill_at(patch, step, "before")
        with pytest.raises(Killed):
            cli(*BATCH)
    late = step == "erase"
    if late:
        assert "too late" in cli("hold", "place", *DATA, "--unit", 1, *WHY, code=2)
    else:
        assert hold(cli, "1")["requests_held"] == 1
    job = cli("job", "list")["jobs"][-1]["id"]
    cli("job", "resume", job, *INLINE)
    assert states(cli) == {1: "done" if late else "held", 2: "done"}
    assert cli("data", "list")["data_sets"][0]["rows"] == (198 if late else 199)


def test_a_hold_placed_while_a_job_runs_keeps_no_unit_after_the_receipt(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came too late for that unit, and goes on for the other one."""
    cli("forget", *DATA, "--unit", "1")

    def holding(*given: Any) -> Any:
        with Workspace.open(ws) as other:
            assert place_hold(other, "t", np.array([1, 9]), "a law suit")["running"] == 1
        return gather(*given)

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.deletion.gather", holding)
        assert len(cli(*BATCH)["receipts"]) == 1
    found = cli("hold", "show", 1)
    assert found["state"] == "on" and found["units"] == 2
    assert {(u["unit"], u["state"]) for u in found["held_units"]} == {(None, "done"), (9, None)}
    assert cli("forget", *DATA, "--unit", "9", code=4)["held"] == 1


def test_a_job_left_without_requests_ends(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("forget", *DATA, "--unit", "1")
    with monkeypatch.context() as patch:
        kill_at(patch, "gather", "before")
        with pytest.raises(Killed):
            cli(*BATCH)
    hold(cli, "1")
    job = cli("job", "list")["jobs"][-1]["id"]
    assert cli("job", "resume", job, *INLINE)["receipts"] == []
    assert states(cli) == {1: "held"}


def test_a_failed_job_gives_nothing_back_to_the_queue_that_is_held(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold that was placed while the job ran keeps the request once the job has failed."""
    cli("forget", *DATA, "--unit", "1")

    def failing(*arguments: object) -> None:
        with Workspace.open(ws) as other:
            assert place_hold(other, "t", np.array([1]), "a law suit")["running"] == 1
        raise OSError("no more")

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.deletion.gather", failing)
        cli(*BATCH, code=1)
    assert cli(*BATCH)["job"] is None
    assert states(cli) == {1: "held"}


def test_a_hold_placed_while_a_job_ran_counts_once_it_is_killed(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("forget", *DATA, "--unit", "1,2")
    cli("request", "cancel", 2)
    cli("forget", *DATA, "--unit", "2")

    def dying(*arguments: object) -> None:
        with Workspace.open(ws) as other:
            assert place_hold(other, "t", np.array([1]), "a law suit")["running"] == 1
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("expunge.jobs.deletion.gather", dying)
        with pytest.raises(Killed):
            cli(*BATCH)
    job = cli("job", "list")["jobs"][-1]["id"]
    assert cli("job", "resume", job, *INLINE)["units"] == 1
    assert states(cli) == {1: "held", 2: "cancelled", 3: "done"}
    # The rows are those of the request that was fulfilled, not of the one that was cancelled.
    with Workspace.open(ws) as open_ws:
        rows = open_ws.ledger.rows("SELECT rows FROM requests ORDER BY id")
    assert [row["rows"] for row in rows] == [None, None, 1]
