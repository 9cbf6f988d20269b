"""A series of single deletions from one model, one after another, each of them timed.

Where they would take longer than a budget, some run at the start and the others are spread over the
rest: the rows in between leave by a plain fit on the rows that are left, which gives the same model
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .experiment_rows import Left, Rows

SPREAD = 4
"""Places besides the checkpoints where deletions run if not all of them do."""
ACTIONS = ("unchanged", "replayed", "resumed", "retrained")


class Deletion(Protocol):
    """What a model tells of a deletion."""

    @property
    def action(self) -> str: ...
    @property
    def passes(self) -> int: ...


class Model(Protocol):
    """A clustering from which units can be deleted."""

    @property
    def cluster_centers_(self) -> NDArray[np.float64]: ...
    def delete(self, units: int | Iterable[int]) -> Deletion: ...


Fit = Callable[[Left], Model]
"""Trains on the rows left. Later fits resolve parameters as the first one did."""


def log_spaced(deletions: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, ... up to a number of deletions, and that number."""
    steps = (lead * 10**power for power in range(12) for lead in (1, 2, 5))
    return sorted({step for step in steps if step < deletions} | ({deletions} - {0}))


def checkpoints(deletions: int) -> list[int]:
    """Return 0, 1, 10, 100, ... up to a number of deletions, and that number."""
    return sorted({0, deletions} | {10**power for power in range(12) if 10**power < deletions})


@dataclass(slots=True)
class Log:
    """What deletions took and did, in the order in which they ran."""

    seconds: list[float] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    passes: int = 0

    @property
    def total(self) -> float:
        return sum(self.seconds)

    @property
    def changed(self) -> int:
        """How many deletions did not leave the model unchanged."""
        return len(self.actions) - self.actions.count("unchanged")

    def seconds_of(self, action: str) -> float:
        """Seconds of the deletions that came to this."""
        pairs = zip(self.seconds, self.actions, strict=True)
        return sum(seconds for seconds, done in pairs if done == action)

    def run(self, model: Model, units: Iterable[int]) -> None:
        """Delete units one by one and note what each took."""
        for unit in units:
            started = perf_counter()
            done = model.delete(unit)
            self.seconds.append(perf_counter() - started)
            self.actions.append(done.action)
            self.passes += done.passes


@dataclass(slots=True)
class Series:
    """All deletions of one model in one replicate."""

    rows: Rows
    fit: Fit
    budget: float
    """Seconds that the deletions may take."""
    places: list[int]
    """Checkpoints: numbers of deletions after which the model is measured."""
    quality: dict[int, dict[str, Any]] = field(default_factory=dict)
    first: Log = field(default_factory=Log)
    """The deletions that ran from the start, none left out."""
    spread: Log = field(default_factory=Log)
    """Those that ran at places spread over the rest."""

    def run(self) -> dict[str, Any]:
        """Train, delete and measure; return the series as a piece."""
        left = self.rows.left(0)
        started = perf_counter()
        model = self.fit(left)
        train_seconds = perf_counter() - started
        self._measure(model, 0, left)
        del left
        self._from_the_start(model)
        del model
        self._spread_over_the_rest()
        return self._result(train_seconds)

    def _from_the_start(self, model: Model) -> None:
        """Delete one after another until all are gone, or it is clear that the budget won't do."""
        asked, log = len(self.rows.order), self.first
        spent = 0.0
        for done, unit in enumerate(self._units(0, asked), 1):
            log.run(model, [unit])
            spent += log.seconds[-1]
            self._measure(model, done)
            if spent > self.budget / 2 and spent / done * asked > self.budget:
                break

    def _spread_over_the_rest(self) -> None:
        """Run deletions up to every place that is left, as many as the rest of the budget allows."""
        start, asked = len(self.first.seconds), len(self.rows.order)
        if start == asked:
            return
        even = np.linspace(start, asked, SPREAD + 1)[1:].astype(int).tolist()
        stops = sorted(place for place in {*even, *self.places} if place > start)
        cost = self.first.total / start
        each = (self.budget - self.first.total) / len(stops) / cost
        for before, stop in zip([start, *stops], stops, strict=False):
            begin = max(before, stop - max(1, int(each)))
            model = self.fit(self.rows.left(begin))
            self.spread.run(model, self._units(begin, stop))
            self._measure(model, stop)

    def _units(self, start: int, stop: int) -> list[int]:
        """The units of deletions start to stop - 1."""
        units: list[int] = self.rows.units[self.rows.order[start:stop]].tolist()
        return units

    def _measure(self, model: Model, done: int, left: Left | None = None) -> None:
        """Note how good the model is, at a checkpoint."""
        if done not in self.places or done in self.quality:
            return
        left = self.rows.left(done) if left is None else left
        self.quality[done] = left.quality(left.in_scale(model.cluster_centers_))

    def _result(self, train_seconds: float) -> dict[str, Any]:
        asked, ran = len(self.rows.order), len(self.first.seconds)
        actions = self.first.actions + self.spread.actions
        curve = [self._until(number) for number in log_spaced(asked)]
        return {
            "deletions": asked,
            "ran": len(actions),
            "ran_from_start": ran,
            "extrapolated": ran < asked,
            "train_seconds": train_seconds,
            "deletion_seconds": curve[-1]["seconds"] if curve else 0.0,
            "median_seconds": _median(self.first.seconds + self.spread.seconds),
            "passes": self.first.passes + self.spread.passes,
            "actions": {action: actions.count(action) for action in ACTIONS},
            "action_seconds": {
                a: self.first.seconds_of(a) + self.spread.seconds_of(a) for a in ACTIONS
            },
            "curve": curve,
            "quality": [{"deletions": d, **q} for d, q in sorted(self.quality.items())],
        }

    def _until(self, number: int) -> dict[str, Any]:
        """Seconds and changed models up to a number of deletions; from the spread ones' mean where
        they did not all run."""
        near = min(number, len(self.first.seconds))
        far = number - near
        share = far / len(self.spread.seconds) if far else 0.0
        changed = near - self.first.actions[:near].count("unchanged")
        return {
            "deletions": number,
            "seconds": sum(self.first.seconds[:near]) + share * self.spread.total,
            "changed": changed + share * self.spread.changed,
            "extrapolated": far > 0,
        }


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None
