"""Requests, holds and jobs against a model in memory, with SIGKILL between any two transactions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from killed_steps import batch, go_on, killed, try_again
from partly_done import SMALL, damage
from receipt_workspace import KMEANS, command
from support import INLINE
from test_request_life import DAY, Hold, Request, RequestLife, live, some_units

from expunge.jobs.errors import JobError
from expunge.jobs.holds import lift_hold, list_holds, place_hold
from expunge.jobs.request_life import Chosen, cancel_request, list_requests
from expunge.jobs.request_states import DELETED
from expunge.jobs.requests import forget

MOST = 24
"""No batch, and no retry, has more transactions."""
counts = st.sampled_from(range(1, MOST + 1))
"""After how many transactions to kill."""


class KilledRequests(RequestLife):
    """The same life, with jobs that are killed, resumed, partly done and retried."""

    rows: ClassVar[int] = 200

    def __init__(self) -> None:
        super().__init__()
        self.job: int | None = None
        """The deletion job that has not ended."""
        self.phase = ""
        """What it waits for: ``interrupted`` or ``partly done``."""
        self.damaged = False

    def settle(self) -> None:
        super().settle()
        kept = {u for hold in self.holds.values() if hold.state == "on" for u in hold.units}
        for request in self.requests.values():
            if request.state == "running" and request.unit in kept:
                request.state = "held"

    def clear(self, request: Request) -> tuple[int | None, ...]:
        found = super().clear(request)
        # The receipts' transaction comes after that which removes the units.
        return (*found, None) if request.state == "committed" else found

    def move(self, before: str, after: str) -> None:
        for request in self.requests.values():
            if request.state == before:
                request.state = after

    @property
    def queued(self) -> bool:
        return any(request.state == "queued" for request in self.requests.values())

    @rule(spoiled=st.booleans())
    @precondition(lambda self: self.job is None and self.queued)
    def batch(self, spoiled: bool) -> None:
        self.go(MOST + 1, spoiled)

    @rule(after=counts, spoiled=st.booleans())
    @precondition(lambda self: self.job is None and self.queued)
    def batch_killed(self, after: int, spoiled: bool) -> None:
        self.go(after, spoiled)

    def go(self, after: int, spoiled: bool = False) -> None:
        """A batch that is killed after so many transactions, unless it ends before.

        spoiled: its verification fails.
        """
        list_requests(self.ws, Chosen(), 1, self.clock)
        self.settle()
        last = "SELECT max(id) FROM jobs"
        before, queued = self.ws.ledger.value(last), self.queued
        steps = killed(self.ws.root, after, batch, spoiled=spoiled)
        self.job = self.ws.ledger.value(last)
        assert (self.job > before) == queued
        if queued:
            self.move("queued", "running")
            self.end(steps, spoiled)
        else:
            self.job = None

    def end(self, steps: list[str], spoiled: bool = False) -> None:
        """What a job's transactions have made of it and its requests: the second of a commit is the commit."""
        self.ws.note_dead_jobs()
        if steps.count("commit") > 1:
            self.move("running", "partly done" if self.damaged else "committed")
        if steps.count("commit again") > 1:
            self.damaged = False
            self.move("partly done", "committed")
        if spoiled and steps.count("verify") > 1:
            self.move("committed", "failed")
        if steps.count("receipt") > 2:
            self.move("committed", "done")
        states = {r.state for r in self.requests.values()}
        self.phase = self.ws.ledger.job(self.job or 0)["state"]
        assert self.phase in ("interrupted", "partly done", "unverified", "done")
        assert (self.phase == "unverified") == ("failed" in states)
        assert (self.phase == "done") == (steps.count("receipt") > 2)
        assert self.phase != "partly done" or "partly done" in states
        self.job = None if self.phase == "done" else self.job

    @rule(after=counts | st.just(MOST + 1))
    @precondition(lambda self: self.job is not None)
    def go_on(self, after: int) -> None:
        """The job is resumed or retried, and perhaps killed again."""
        before = self.phase
        way = try_again if before == "partly done" else go_on
        list_requests(self.ws, Chosen(), 1, self.clock)
        self.settle()
        steps = killed(self.ws.root, after, way, self.job)
        if steps:
            self.move("failed", "committed")
        self.end(steps)
        assert (
            after <= MOST
            or self.job is None
            or (before, self.phase) == ("interrupted", "partly done")
        )

    @rule()
    @precondition(lambda self: self.job is not None)
    def batch_is_refused(self) -> None:
        """As long as the job has requests: holds may have taken all of them from it."""
        has = any(
            r.state not in ("queued", "held", "done", "cancelled") for r in self.requests.values()
        )
        if has and (self.queued or self.phase != "partly done"):
            with pytest.raises(JobError, match=f"job {self.job}"):
                batch(self.ws)

    @rule()
    @precondition(lambda self: self.job is None and not self.damaged)
    def damage(self) -> None:
        """The regression can't be updated any more: its next batch is partly done."""
        damage(self.ws.root.parent)
        self.damaged = True

    @rule(units=some_units, after=st.integers(1, 2))
    def ask_killed(self, units: list[int], after: int) -> None:
        """Given again, it makes what it would have made at once."""
        killed(self.ws.root, after, forget, "t", np.array(units), at=self.clock)
        first = max(self.requests, default=0) + 1
        for unit in sorted(set(units)):
            if self.current(unit) is None:
                self.requests[max(self.requests, default=0) + 1] = Request(
                    unit, "queued", self.clock + 30 * DAY
                )
        self.settle()
        found = forget(self.ws, "t", np.array(units), at=self.clock)
        made = {r["request"] for r in (*found["requests"], *found["existing"])}
        assert {n for n in self.requests if n >= first} <= made

    @rule(data=st.data(), after=st.integers(1, 2))
    @precondition(lambda self: self.requests)
    def cancel_killed(self, data: st.DataObject, after: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.requests)))
        self.settle()
        if self.requests[number].state in ("queued", "held"):
            killed(self.ws.root, after, cancel_request, number, at=self.clock)
            assert cancel_request(self.ws, number, at=self.clock)["state"] == "cancelled"
            self.requests[number].state = "cancelled"

    @rule(units=some_units, days=st.none() | st.integers(1, 10), after=st.integers(1, 3))
    def place_killed(self, units: list[int], days: int | None, after: int) -> None:
        """It is there, or not at all."""
        self.settle()
        kept = set(units) - {r.unit for r in self.requests.values() if r.state in DELETED}
        if not kept:
            return
        until = None if days is None else self.clock + timedelta(days=days)
        given = ("t", np.array(units), "a law suit", until.isoformat() if until else None)
        killed(self.ws.root, after, place_hold, *given, at=self.clock)
        there = {hold["hold"] for hold in list_holds(self.ws, self.clock)} - set(self.holds)
        if not there:
            there = {place_hold(self.ws, *given, at=self.clock)["hold"]}
        (number,) = there
        self.holds[number] = Hold(kept, until)
        self.settle()

    @rule(data=st.data(), after=st.integers(1, 3))
    @precondition(lambda self: any(hold.state == "on" for hold in self.holds.values()))
    def lift_killed(self, data: st.DataObject, after: int) -> None:
        on = sorted(n for n, hold in self.holds.items() if hold.state == "on")
        number = data.draw(st.sampled_from(on))
        self.settle()
        killed(self.ws.root, after, lift_hold, number, self.clock)
        if self.holds[number].state == "on":
            self.holds[number].state = "lifted"
        assert lift_hold(self.ws, number, self.clock)["state"] == self.holds[number].state
        self.settle()


def prepare(root: Path) -> None:
    """A workspace with rows and two models, of which the regression can be damaged."""
    rng = np.random.default_rng(1)
    lines = [f"{a},{b},{int(a > 0)}" for a, b in rng.normal(size=(KilledRequests.rows, 2))]
    (root / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    command(root, "init", root / "ws")
    given = ("--format", "csv", "--label", "y")
    command(root, "data", "import", "t", root / "rows.csv", *given)
    command(root, "train", "km", "--data", "t", *KMEANS, *INLINE)
    command(root, "train", "lg", "--data", "t", "--algorithm", "logistic", *SMALL, *INLINE)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    prepare(root)
    KilledRequests.prepared = root / "ws"
    return root


def checked(life: KilledRequests) -> None:
    """All that is asked of the machine at any time."""
    life.requests_are_as_in_the_model()
    life.holds_are_as_in_the_model()
    life.rows_are_there_unless_done()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["", "damaged", "spoiled"])
@pytest.mark.parametrize("after", range(1, MOST + 1))
def test_after_any_transaction_others_go_on(prepared: Path, after: int, trouble: str) -> None:
    """A batch is killed there, a hold and requests come, and what finishes it is killed there too."""
    life = KilledRequests()
    try:
        life.begin()
        if trouble == "damaged":
            life.damage()
        life.go(after, trouble == "spoiled")
        checked(life)
        life.place_killed([0], None, 1)
        life.ask_killed([4, 5], 1)
        checked(life)
        if life.job is not None:
            life.batch_is_refused()
            life.go_on(after)
            checked(life)
        for _ in range(3):
            if life.job is not None:
                life.go_on(MOST + 1)
            checked(life)
        assert life.job is None
        life.go(MOST + 1)
        checked(life)
        assert life.phase == "done" and not life.queued
    finally:
        life.teardown()


@pytest.mark.slow
def test_the_life_of_requests_whose_programs_are_killed(prepared: Path) -> None:
    live(KilledRequests, 15)
