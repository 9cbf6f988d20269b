"""Subsets of a study's rows deleted one after another, as in the PrIU paper's figure 4.

Each subset leaves the models as the last one left them: their provenance is rebased in between,
aside, by method ``delta``; or each leaves the first models, as the settings say. Methods that keep nothing to rebase have no part in it. BaseL trains each
time on what is left.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import DELTA, NO_PROVENANCE
from ..storage.fence import Fence
from .errors import DivergenceError, JobError
from .experiment_priu_compare import compared, finite
from .experiment_priu_measure import Task, one_core, study_facts
from .experiment_priu_rows import training_order
from .experiment_priu_update import (
    SIDES,
    Leaver,
    competitors,
    needs_no_trace,
    opened,
    rebase_aside,
    sweep,
)
from .experiment_workers import environment
from .regression_arrays import RegressionModel
from .regression_store import folder_size
from .workspace import Workspace


def measure_repeated(task: Task) -> None:
    """Delete every subset in turn, and keep the piece."""
    started = perf_counter()
    with (
        Workspace.open(task.prepared.workspace) as ws,
        one_core(),
        ws.lock("an experiment's repeated deletions") as fence,
    ):
        result = _Chain(ws, fence, task).run()
    result["wall_seconds"] = perf_counter() - started
    task.pieces.keep(task.prepared.study.repeated_piece, result, environment())


class _Chain:
    """The models of all kinds, and the rows that have left them."""

    def __init__(self, ws: Workspace, fence: Fence, task: Task) -> None:
        self.ws, self.fence, self.task = ws, fence, task
        prepared = task.prepared
        kinds = [kind for kind in prepared.kinds if kind != NO_PROVENANCE]
        self.models = {kind: opened(ws, kind) for kind in kinds}
        self.first = next(iter(self.models.values()))
        loss = self.first.settings.loss
        self.wanted = [
            (method, kind)
            for method, kind in competitors(loss, prepared.kinds, prepared.settings.methods)
            if not needs_no_trace(method, loss)
        ]
        self.failed: dict[tuple[str, str], str] = {}
        self.aside: dict[str, Path] = {}
        self.excluded: dict[int, NDArray[np.int64]] = {}
        self.side: str | None = None
        """How BaseL is faster."""

    def run(self) -> dict[str, Any]:
        """Return what every step of the chain took and gave."""
        prepared = self.task.prepared
        settings = prepared.settings
        order = training_order(prepared.study, settings, prepared.data["rows"])
        size = max(1, round(settings.rate * len(order)))
        facts: dict[str, Any] = {}
        steps: list[dict[str, Any]] = []
        failed = None
        try:
            for step in range(settings.subsets):
                units = np.sort(order[step * size : (step + 1) * size])
                leaver = Leaver.of(self.ws, units, self.excluded)
                if not facts:
                    facts = study_facts(prepared, self.first, leaver)
                    facts |= {"bytes": self._bytes(), "subset_rows": size}
                steps.append(self._step(step, leaver))
                if settings.sequential:
                    self.excluded = leaver.excluded
        except DivergenceError as error:
            failed = f"BaseL: {error}"
        finally:
            self._sweep()
        not_applicable = [
            {"method": m, "kind": k, "why": why} for (m, k), why in self.failed.items()
        ]
        kept = {"sequential": settings.sequential, "failed": failed, "steps": steps}
        return {**facts, **kept, "not_applicable": not_applicable}

    def _bytes(self) -> dict[str, int]:
        return {kind: folder_size(model.version.path) for kind, model in self.models.items()}

    def _step(self, step: int, leaver: Leaver) -> dict[str, Any]:
        """One subset: BaseL and the updates in turn, then every kind's rebase."""
        repeats = self.task.prepared.settings.repeats
        self._warm_up(step, leaver)
        base: dict[str, list[float]] = {side: [] for side in SIDES}
        seconds: dict[tuple[str, str], list[float]] = {one: [] for one in self.wanted}
        changes: dict[tuple[str, str], NDArray[np.float64]] = {}
        w = self.first.parameters
        for repeat in range(repeats):
            for side in SIDES:
                # Which side is faster is found out once.
                if side == self.side or (self.side is None and repeat == 0):
                    w, took = leaver.base_l(self.first, side)
                    base[side].append(took)
            self.side = self.side or _faster(base)
            for method, kind in self.wanted:
                outcome = leaver.update(self.models[kind], method)
                seconds[method, kind].append(outcome.seconds)
                changes[method, kind] = outcome.updated.change
        updates = [
            {
                "method": method,
                "kind": kind,
                "seconds": median(seconds[method, kind]),
                **finite(compared(self._updated(kind, change), w, self.first.parameters)),
            }
            for (method, kind), change in changes.items()
        ]
        side = _faster(base)
        return {
            "deleted": len(leaver.gathered.removed.units),
            "gather_seconds": leaver.gather_seconds,
            "base_l": {"seconds": median(base[side]), "by": side},
            "updates": updates,
            "rebases": {kind: self._rebase(kind, leaver) for kind in list(self.models)},
        }

    def _warm_up(self, step: int, leaver: Leaver) -> None:
        """Compile everything, and find out what can't be done at all."""
        if step:
            return
        leaver.warm_up(self.first)
        for method, kind in list(self.wanted):
            try:
                leaver.update(self.models[kind], method)
            except (JobError, ValueError) as error:
                self.failed[method, kind] = str(error)
                self.wanted.remove((method, kind))
        self.models = {k: m for k, m in self.models.items() if (DELTA, k) not in self.failed}
        self.wanted = [(method, kind) for method, kind in self.wanted if kind in self.models]

    def _updated(self, kind: str, change: NDArray[np.float64]) -> NDArray[np.float64]:
        w: NDArray[np.float64] = self.models[kind].parameters
        return w + change.reshape(w.shape)

    def _rebase(self, kind: str, leaver: Leaver) -> dict[str, float]:
        """Write a model's next version, and put it in its place where subsets follow each other."""
        model: RegressionModel = self.models[kind]
        outcome = leaver.update(model, DELTA)
        done = rebase_aside(self.ws, self.fence, kind, model, leaver, outcome)
        if self.task.prepared.settings.sequential:
            if kind in self.aside:
                sweep(self.aside[kind])
            self.aside[kind] = done.path
            self.models[kind] = done.model
        else:
            sweep(done.path)
        return {"rebase_seconds": done.rebase_seconds, "sync_seconds": done.sync_seconds}

    def _sweep(self) -> None:
        """Remove what was written aside; whatever is left goes when the lock is taken next."""
        for path in self.aside.values():
            with suppress(OSError):
                sweep(path)


def _faster(base: dict[str, list[float]]) -> str:
    return min((side for side in SIDES if base[side]), key=lambda side: min(base[side]))
