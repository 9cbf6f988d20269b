"""Regressions of an extended experiment: each subset's retrain and updates, in one process.

The process has one thread on one core. A piece is kept as soon as it is measured, so that a run that
is killed loses one measurement at most. Subsets leave the first models, or what the last one left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import DELTA, INFL, unusable
from ..storage.fence import Fence
from ..storage.files import Meter, metered
from .errors import DivergenceError, JobError
from .experiment_extended_rows import random_subsets
from .experiment_extended_settings import (
    ExtendedAsked,
    ExtendedSettings,
    basel_piece,
    regression_name,
    side_piece,
    update_piece,
)
from .experiment_peaks import reset_peak
from .experiment_priu_measure import one_core, peak_bytes
from .experiment_priu_update import SIDES, Leaver, Rebased, opened, rebase_aside, sweep
from .experiment_results import Pieces
from .experiment_workers import environment
from .regression_arrays import RegressionModel
from .train_regression import descend_stored
from .update_outcome import Outcome
from .workspace import Workspace

PROBE = 100
"""A probe of BaseL's sides takes this fraction of the iterations."""
FEWEST = 50


@dataclass(frozen=True, slots=True)
class RegressionTask:
    """All subsets of one preset."""

    pieces: Pieces
    settings: ExtendedSettings
    asked: ExtendedAsked
    workspace: Path
    rows: int
    preset: str
    kinds: tuple[str, ...]
    """Those, of ``settings.kinds``, that there is a model of."""


def lacking(task: RegressionTask) -> list[tuple[str, int]]:
    """Return which retrains and updates are not there yet: ("basel" or "update", subset)."""
    subsets = task.settings.regression.subsets
    retrained = task.asked.retrained(subsets)
    wanted = [("basel", k) for k in range(retrained)] + [("update", k) for k in range(subsets)]
    found = [one for one in wanted if task.pieces.find(piece_of(task, *one)) is None]
    return sorted(found, key=lambda one: one[1])


def piece_of(task: RegressionTask, what: str, subset: int) -> str:
    """The name of a subset's piece."""
    named = basel_piece if what == "basel" else update_piece
    return named(task.asked, task.preset, subset)


def measure_regressions(task: RegressionTask) -> None:
    """Measure what is lacking, subset by subset."""
    with (
        Workspace.open(task.workspace) as ws,
        one_core(),
        ws.lock("an experiment's deletions") as fence,
    ):
        subsets = _Subsets(ws, fence, task)
        try:
            subsets.run()
        finally:
            subsets.sweep()


@dataclass(slots=True)
class _Measured:
    """What a step took."""

    seconds: float = 0.0
    peak: int = 0
    read: int = 0
    written: int = 0

    def told(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "peak_bytes": self.peak,
            "bytes_read": self.read,
            "bytes_written": self.written,
        }


class _Subsets:
    """The models as they are before a subset, and the rows that have left them."""

    def __init__(self, ws: Workspace, fence: Fence, task: RegressionTask) -> None:
        self.ws, self.fence, self.task = ws, fence, task
        self.models = {kind: opened(ws, regression_name(task.preset, kind)) for kind in task.kinds}
        self.first: RegressionModel = next(iter(self.models.values()))
        self.aside: dict[str, Path] = {}
        self.excluded: dict[int, NDArray[np.int64]] = {}
        self.warm: set[str] = set()
        """Kinds whose rebase was run once."""

    def run(self) -> None:
        """Go through the subsets; those whose pieces are there are passed, or updated in silence."""
        task, todo = self.task, lacking(self.task)
        units = random_subsets(task.asked.study, task.settings.regression, task.rows)
        last = max((subset for _, subset in todo), default=-1)
        for subset in range(last + 1):
            mine = [what for what, number in todo if number == subset]
            if not mine and not task.settings.sequential:
                continue
            leaver, gathered = self._gathered(units[subset])
            if "basel" in mine:
                self._keep("basel", subset, partial(self._base_l, leaver))
            if "update" in mine:
                self._keep("update", subset, partial(self._updates, leaver, gathered))
            elif task.settings.sequential and subset < last:
                self._advance(leaver)
            if task.settings.sequential:
                self.excluded = leaver.excluded

    def _gathered(self, units: NDArray[np.int64]) -> tuple[Leaver, _Measured]:
        """Read the rows that leave, timed."""
        taken = _Measured()
        reset_peak()
        with metered() as meter:
            leaver = Leaver.of(self.ws, units, self.excluded)
        _add(taken, meter)
        taken.seconds = leaver.gather_seconds
        return leaver, taken

    def _keep(self, what: str, subset: int, measure: Callable[[], dict[str, Any]]) -> None:
        started = perf_counter()
        found = {**measure(), "subset": subset}
        found["wall_seconds"] = perf_counter() - started
        self.task.pieces.keep(piece_of(self.task, what, subset), found, environment())

    def sweep(self) -> None:
        """Remove what was written aside; whatever is left goes when the lock is taken next."""
        for path in self.aside.values():
            with suppress(OSError):
                sweep(path)

    def _side(self, leaver: Leaver) -> str:
        """How BaseL is faster here, found out once by a few iterations of each side."""
        name = side_piece(self.task.asked, self.task.preset)
        found = self.task.pieces.find(name)
        if found is None:
            leaver.warm_up(self.first)
            rows = leaver.rows(self.first)
            few = min(rows.settings.iterations, max(FEWEST, rows.settings.iterations // PROBE))
            rows = replace(rows, settings=replace(rows.settings, iterations=few, block=few))
            seconds = {}
            for side in SIDES:
                started = perf_counter()
                descend_stored(rows, None, lambda _: None, side == "fused")
                seconds[side] = perf_counter() - started
            side = min(SIDES, key=lambda one: seconds[one])
            whole = seconds[side] * self.first.settings.iterations / few
            found = {"side": side, "iterations": few, "seconds": seconds, "basel_seconds": whole}
            self.task.pieces.keep(name, found, environment())
        return str(found["side"])

    def _base_l(self, leaver: Leaver) -> dict[str, Any]:
        """Retrain on the rows left; where that diverges, say so."""
        side = self._side(leaver)
        leaver.warm_up(self.first)
        taken = _Measured()
        reset_peak()
        try:
            with metered() as meter:
                w, taken.seconds = leaver.base_l(self.first, side)
        except DivergenceError as error:
            return {"failed": str(error), "by": side}
        _add(taken, meter)
        return {"failed": None, "by": side, "w": w.ravel().tolist(), **taken.told()}

    def _updates(self, leaver: Leaver, gathered: _Measured) -> dict[str, Any]:
        """Every method on every model, then every model's rebase."""
        updates, not_applicable = [], []
        for kind, model in self.models.items():
            for method in self.task.settings.regression.methods:
                named = {"method": method, "kind": model.settings.provenance}
                try:
                    why = _unusable(method, model)
                    found = self._update(leaver, model, method) if why is None else None
                except (JobError, ValueError) as error:
                    why, found = str(error), None
                if found is None:
                    not_applicable.append({**named, "why": why})
                else:
                    updates.append({**named, "model": kind, **found})
        return {
            "deleted": len(leaver.gathered.removed.units),
            "before": self._first_parameters(),
            "gather": gathered.told(),
            "updates": updates,
            "not_applicable": not_applicable,
            "rebases": {kind: self._rebase(kind, leaver) for kind in list(self.models)},
        }

    def _first_parameters(self) -> list[float]:
        """The parameters that all changes are counted from."""
        return [float(value) for value in self.first.parameters.ravel()]

    def _update(self, leaver: Leaver, model: RegressionModel, method: str) -> dict[str, Any]:
        """One method: warm, then timed as often as the settings say."""
        leaver.update(model, method)
        taken = _Measured()
        reset_peak()
        with metered() as meter:
            outcome = leaver.update(model, method)
        _add(taken, meter)
        seconds = [outcome.seconds]
        for _ in range(self.task.settings.regression.repeats - 1):
            seconds.append(leaver.update(model, method).seconds)
        taken.seconds = median(seconds)
        w = model.parameters.ravel() + outcome.updated.change.ravel()
        finite = bool(np.isfinite(w).all())
        kept = w.tolist() if finite else None
        return {"w": kept, "visits": len(outcome.when), "all_seconds": seconds, **taken.told()}

    def _rebase(self, kind: str, leaver: Leaver) -> dict[str, Any] | None:
        """Write a model's next version aside, timed; it takes the model's place in a sequence."""
        model = self.models[kind]
        try:
            outcome = leaver.update(model, DELTA)
        except (JobError, ValueError):
            return None
        if kind not in self.warm:
            # No timing pays for a compiler.
            sweep(self._aside(kind, leaver, outcome).path)
            self.warm.add(kind)
        taken = _Measured()
        reset_peak()
        with metered() as meter:
            done = self._aside(kind, leaver, outcome)
        _add(taken, meter)
        taken.seconds = done.rebase_seconds
        if self.task.settings.sequential:
            self._take(kind, done)
        else:
            sweep(done.path)
        return {**taken.told(), "sync_seconds": done.sync_seconds}

    def _aside(self, kind: str, leaver: Leaver, outcome: Outcome) -> Rebased:
        name = regression_name(self.task.preset, kind)
        return rebase_aside(self.ws, self.fence, name, self.models[kind], leaver, outcome)

    def _take(self, kind: str, done: Rebased) -> None:
        if kind in self.aside:
            sweep(self.aside[kind])
        self.aside[kind], self.models[kind] = done.path, done.model

    def _advance(self, leaver: Leaver) -> None:
        """Bring the models to where a run that was killed had them."""
        for kind, model in list(self.models.items()):
            with suppress(JobError, ValueError):
                outcome = leaver.update(model, DELTA)
                self._take(kind, self._aside(kind, leaver, outcome))


def _add(taken: _Measured, meter: Meter) -> None:
    """Add this process's peak, and what was read and written."""
    taken.peak = peak_bytes()
    taken.read, taken.written = meter.bytes_read, meter.bytes_written


def _unusable(method: str, model: RegressionModel) -> str | None:
    """Why a method can't update a model."""
    if method == INFL and not model.settings.hessian:
        return "needs hessian=true, which is kept for small models"
    return unusable(method, model.settings.loss, model.settings.provenance)
