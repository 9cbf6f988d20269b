"""Requests and holds against a model in memory: any order of what operators do, with time passing."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from receipt_workspace import command

from expunge.jobs.batches import run_batch
from expunge.jobs.errors import UsageError
from expunge.jobs.fold import InlineFold
from expunge.jobs.holds import lift_hold, list_holds, place_hold
from expunge.jobs.request_life import Chosen, cancel_request, extend_request, list_requests
from expunge.jobs.request_states import DELETED, OPEN, WAITING, Terms
from expunge.jobs.request_times import stamp
from expunge.jobs.requests import all_held, forget
from expunge.jobs.workspace import Workspace

UNITS = 8
DAY = timedelta(days=1)
some_units = st.lists(st.integers(0, UNITS - 1), min_size=1, max_size=3)
references = st.sampled_from([None, "T-1", "T-2"])


@dataclass
class Request:
    """A request of the model."""

    unit: int
    state: str
    due: datetime


@dataclass
class Hold:
    """A hold of the model."""

    units: set[int]
    until: datetime | None
    state: str = "on"


class RequestLife(RuleBasedStateMachine):
    """The ledger beside a few dictionaries; its clock runs ahead of the real one, never behind."""

    prepared: ClassVar[Path]
    """A workspace with one small data set, which every run copies."""
    rows: ClassVar[int] = UNITS
    """How many rows the data set has, at least one for each of the units."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        root = Path(self.folder) / "ws"
        shutil.copytree(self.prepared, root)
        self.ws = Workspace.open(root)
        self.clock = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        self.requests: dict[int, Request] = {}
        self.holds: dict[int, Hold] = {}
        self.asked: dict[str, set[int]] = {}
        self.names: dict[int, set[str]] = {}

    def teardown(self) -> None:
        self.ws.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def current(self, unit: int) -> int | None:
        """The request that stands for a unit."""
        live = [n for n, r in self.requests.items() if r.unit == unit and r.state != "cancelled"]
        assert len(live) < 2
        return live[0] if live else None

    def clear(self, request: Request) -> tuple[int | None, ...]:
        """What may stand in the ledger as a request's unit."""
        return (request.unit if request.state in OPEN else None,)

    def settle(self) -> None:
        """What time does to holds, and holds to requests."""
        for hold in self.holds.values():
            if hold.state == "on" and hold.until is not None and hold.until <= self.clock:
                hold.state = "over"
        kept = {u for hold in self.holds.values() if hold.state == "on" for u in hold.units}
        for request in self.requests.values():
            if request.state in ("queued", "held"):
                request.state = "held" if request.unit in kept else "queued"

    @initialize()
    def begin(self) -> None:
        """Some requests, and holds on some of them that overlap: one that ends, one that does not."""
        self.ask([0, 1, 2, 3], None)
        self.place([1, 2], 3)
        self.place([2, 7], None)

    @rule(units=some_units, reference=references)
    def ask(self, units: list[int], reference: str | None) -> None:
        wanted, terms = set(units), Terms(reference=reference)
        stands = any(
            reference in self.names.get(number, ())
            for number, request in self.requests.items()
            if request.state != "cancelled"
        )
        if reference is not None and stands and self.asked[reference] != wanted:
            with pytest.raises(UsageError, match="other units"):
                forget(self.ws, "t", np.array(units), terms=terms, at=self.clock)
            return
        if reference is not None:
            self.asked[reference] = wanted
        there = {self.current(unit) for unit in wanted} - {None}
        before = max(self.requests, default=0)
        fresh = sorted(unit for unit in wanted if self.current(unit) is None)
        for number, unit in enumerate(fresh, start=before + 1):
            self.requests[number] = Request(unit, "queued", self.clock + 30 * DAY)
        self.settle()
        found = forget(self.ws, "t", np.array(units), terms=terms, at=self.clock)
        assert {r["request"] for r in found["existing"]} == there
        assert [(r["request"], r["unit"], r["state"]) for r in found["requests"]] == [
            (number, unit, self.requests[number].state)
            for number, unit in enumerate(fresh, start=before + 1)
        ]
        now = [self.requests[n].state for n in (self.current(u) for u in wanted) if n is not None]
        assert all_held(found) == (set(now) == {"held"})
        assert found["repeated"] == len(units) - len(wanted)
        assert found["already_erased"] == now.count("done")
        assert found["queued"] + found["held"] == len(fresh)
        if reference is not None:
            for unit in wanted:
                self.names.setdefault(self.current(unit) or 0, set()).add(reference)

    @rule(units=some_units, days=st.none() | st.integers(1, 10))
    def place(self, units: list[int], days: int | None) -> None:
        until = None if days is None else self.clock + days * DAY
        erased = {r.unit for r in self.requests.values() if r.state in DELETED}
        kept = set(units) - erased
        given = (self.ws, "t", np.array(units), "a law suit", until.isoformat() if until else None)
        if not kept:
            with pytest.raises(UsageError, match="too late"):
                place_hold(*given, at=self.clock)
            return
        found = place_hold(*given, at=self.clock)
        self.holds[found["hold"]] = Hold(kept, until)
        self.settle()
        waiting = [r for r in self.requests.values() if r.unit in kept and r.state == "held"]
        assert found["requests_held"] == len(waiting)
        assert found["too_late"] == len(set(units) & erased)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.holds)))
        self.settle()
        if self.holds[number].state == "on":
            self.holds[number].state = "lifted"
        assert lift_hold(self.ws, number, self.clock)["state"] == self.holds[number].state
        self.settle()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.requests)))
        state = self.requests[number].state
        if state not in (*WAITING, "cancelled"):
            with pytest.raises(UsageError, match=f"is {state}"):
                cancel_request(self.ws, number, at=self.clock)
            return
        assert cancel_request(self.ws, number, at=self.clock)["state"] == "cancelled"
        self.requests[number].state = "cancelled"

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), days=st.integers(1, 60))
    def extend(self, data: st.DataObject, days: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.requests)))
        request, due = self.requests[number], self.clock + days * DAY
        given = (self.ws, number, due.isoformat(), "many requests", self.clock)
        if request.state not in OPEN or due <= request.due:
            with pytest.raises(UsageError):
                extend_request(*given)
            return
        assert extend_request(*given)["history"][-1]["before"] == stamp(request.due)
        request.due = due

    @rule(days=st.integers(1, 15))
    def wait(self, days: int) -> None:
        self.clock += days * DAY

    @rule()
    def batch(self) -> None:
        list_requests(self.ws, Chosen(), 1, self.clock)
        self.settle()
        queued = [r for r in self.requests.values() if r.state == "queued"]
        assert run_batch(self.ws, InlineFold(), lambda what: None)["units"] == len(queued)
        for request in queued:
            request.state = "done"

    @invariant()
    def requests_are_as_in_the_model(self) -> None:
        self.settle()
        found = list_requests(self.ws, Chosen(), 1000, self.clock)["requests"]
        assert {r["request"]: r["state"] for r in found} == {
            n: r.state for n, r in self.requests.items()
        }
        for line in found:
            request = self.requests[line["request"]]
            assert line["due"] == stamp(request.due)
            assert line["unit"] in self.clear(request)
            assert line["overdue"] == (request.state in OPEN and request.due < self.clock)
            keeping = {
                n
                for n, hold in self.holds.items()
                if hold.state == "on" and request.unit in hold.units
            }
            assert {hold["hold"] for hold in line["holds"]} == (
                keeping if request.state == "held" else set()
            )
        order = [(r["state"] not in OPEN, r["due"], r["request"]) for r in found]
        assert order == sorted(order)
        for reference in ("T-1", "T-2"):
            named = list_requests(self.ws, Chosen(reference=reference), 1000, self.clock)
            assert {r["request"] for r in named["requests"]} == {
                n for n, names in self.names.items() if reference in names
            }

    @invariant()
    def holds_are_as_in_the_model(self) -> None:
        self.settle()
        found = list_holds(self.ws, self.clock)
        assert {h["hold"]: (h["state"], h["units"]) for h in found} == {
            n: (hold.state, len(hold.units)) for n, hold in self.holds.items()
        }
        clear = self.ws.ledger.rows("SELECT hold, unit FROM held_units WHERE unit IS NOT NULL")
        assert {(row["hold"], row["unit"]) for row in clear} == {
            (n, unit) for n, hold in self.holds.items() if hold.state == "on" for unit in hold.units
        }

    @invariant()
    def rows_are_there_unless_done(self) -> None:
        rows = self.ws.ledger.data_set("t")["rows"]
        assert rows == self.rows - sum(r.state in DELETED for r in self.requests.values())


def live(machine: type[RequestLife], lives: int) -> None:
    """Try so many lives of 25 steps."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=lives,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_the_life_of_requests_is_as_in_the_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = [",".join(map(str, row)) for row in rng.normal(size=(UNITS, 2))]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    command(tmp_path, "init", tmp_path / "ws")
    command(tmp_path, "data", "import", "t", tmp_path / "rows.csv", "--format", "csv")
    RequestLife.prepared = tmp_path / "ws"
    live(RequestLife, 30)
