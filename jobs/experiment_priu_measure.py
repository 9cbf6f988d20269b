"""One study measured, in a process of one thread on one core: times, distances, scores, memory.

BaseL runs between the updates, in the same process; medians count. Memory is measured in processes
of their own, one a method.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import BASEL, DELTA, NO_PROVENANCE
from .errors import DivergenceError, JobError
from .experiment_priu_compare import compared, finite, kept_coordinates
from .experiment_priu_models import Prepared
from .experiment_priu_rows import leaving_units
from .experiment_priu_sparse import SparseLeaver, measured_sparse
from .experiment_priu_update import (
    SIDES,
    Leaver,
    competitors,
    opened,
    rebase_aside,
    sweep,
)
from .experiment_results import Pieces
from .experiment_workers import environment
from .fold import InlineFold
from .regression_arrays import RegressionModel
from .regression_store import folder_size
from .regression_survey import scores, survey
from .regression_training import majority
from .workspace import Workspace

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of a study."""

    pieces: Pieces
    prepared: Prepared
    rate: float


@dataclass(frozen=True, slots=True)
class MemoryTask:
    """The memory of one method; its process runs nothing else."""

    pieces: Pieces
    prepared: Prepared
    rate: float
    method: str
    kind: str


def measure(task: Task) -> None:
    """Measure every method that applies at one deletion rate, and keep the piece."""
    started = perf_counter()
    with Workspace.open(task.prepared.workspace) as ws, one_core():
        result = _measured(ws, task)
    result["wall_seconds"] = perf_counter() - started
    task.pieces.keep(task.prepared.study.piece(task.rate), result, environment())


def _measured(ws: Workspace, task: Task) -> dict[str, Any]:
    prepared = task.prepared
    if prepared.data["sparse"]:
        return _sparse(ws, task)
    models = {kind: opened(ws, kind) for kind in prepared.kinds}
    first = models[prepared.kinds[0]]
    wanted = competitors(first.settings.loss, prepared.kinds, prepared.settings.methods)
    units = leaving_units(prepared.study, prepared.settings, prepared.data["rows"], task.rate)
    leaver = Leaver.of(ws, units, {})
    facts = {**study_facts(prepared, first, leaver), "rate": task.rate, "deleted": len(units)}
    race = Race(leaver, models, wanted)
    try:
        race.run(prepared.settings.repeats)
    except DivergenceError as error:
        return {**facts, "failed": f"BaseL: {error}"}
    return {
        **facts,
        "failed": None,
        "before": _scores(leaver, first, first.parameters),
        **race.result(),
        "provenance": {
            kind: _rebase(ws, kind, model, leaver, race)
            for kind, model in models.items()
            if kind != NO_PROVENANCE
        },
    }


def _sparse(ws: Workspace, task: Task) -> dict[str, Any]:
    prepared, settings = task.prepared, task.prepared.settings
    units = leaving_units(prepared.study, settings, prepared.data["rows"], task.rate)
    named = {**study_keys(prepared), "data": prepared.data, "left_out": prepared.left_out}
    found = measured_sparse(ws, units, settings.methods, settings.repeats)
    return {**named, "rate": task.rate, **found}


def study_facts(prepared: Prepared, model: RegressionModel, leaver: Leaver) -> dict[str, Any]:
    """What is the same for all methods: rows, settings, classes."""
    rows, settings = leaver.rows(model), model.settings
    found = survey(leaver.data_set, settings, InlineFold())
    return {
        **study_keys(prepared),
        "data": prepared.data,
        "left_out": prepared.left_out,
        "loss": settings.loss.name.lower(),
        "parameters": model.parameters.size,
        "training_rows": found.rows,
        "validation_rows": found.validation.total(),
        "majority_rate": majority(settings.loss, found),
        "learning_rate": settings.learning_rate,
        "l2": settings.l2,
        "iterations": settings.iterations,
        "batch_slots": settings.batch_slots,
        "epochs": settings.iterations / rows.schedule.per_epoch,
    }


def study_keys(prepared: Prepared) -> dict[str, Any]:
    """What tells a study's pieces from others'."""
    study = prepared.study
    return {"set": study.data_set, "preset": study.preset, "leaving": study.leaving}


class Race:
    """BaseL and updates, alternating."""

    def __init__(
        self, leaver: Leaver, models: dict[str, RegressionModel], wanted: list[tuple[str, str]]
    ) -> None:
        self.leaver, self.models = leaver, models
        self.first = next(iter(models.values()))
        self.base_l: dict[str, list[float]] = {side: [] for side in SIDES}
        self.base_w: NDArray[np.float64] = self.first.parameters
        self.seconds: dict[tuple[str, str], list[float]] = {one: [] for one in wanted}
        self.changed: dict[tuple[str, str], NDArray[np.float64]] = {}
        self.visits = 0
        self.failed: dict[tuple[str, str], str] = {}

    def run(self, repeats: int) -> None:
        """Warm every update up, then time BaseL and the updates in turn.

        Raises DivergenceError where BaseL diverges.
        """
        self.leaver.warm_up(self.first)
        for one in list(self.seconds):
            try:
                self._update(one)
            except (JobError, ValueError) as error:
                self.failed[one] = str(error)
                del self.seconds[one]
        for repeat in range(repeats):
            for side in SIDES:
                if repeat == 0 or side == self.side:
                    self.base_w, seconds = self.leaver.base_l(self.first, side)
                    self.base_l[side].append(seconds)
            for one, seconds_of in self.seconds.items():
                seconds_of.append(self._update(one))

    def model(self, kind: str) -> RegressionModel:
        """The model that a method with this kind updates."""
        return self.models.get(kind, self.first)

    def _update(self, one: tuple[str, str]) -> float:
        method, kind = one
        outcome = self.leaver.update(self.model(kind), method)
        self.changed[one] = outcome.updated.change
        self.visits = max(self.visits, len(outcome.when))
        return outcome.seconds

    @property
    def side(self) -> str:
        """The faster BaseL."""
        return min((s for s in SIDES if self.base_l[s]), key=lambda s: min(self.base_l[s]))

    @property
    def base_seconds(self) -> float:
        """The faster BaseL's median."""
        return median(self.base_l[self.side])

    def updated(self, one: tuple[str, str]) -> NDArray[np.float64]:
        """The parameters (q, m) that an update gives."""
        w = self.first.parameters
        return w + self.changed[one].reshape(w.shape)

    def result(self) -> dict[str, Any]:
        """Times, distances and scores."""
        w, leaver = self.base_w, self.leaver
        base = {
            "seconds": self.base_seconds,
            "by": self.side,
            "all_seconds": self.base_l,
            **compared(w, w, self.first.parameters),
            **_scores(leaver, self.first, w),
            "w": kept_coordinates(w),
        }
        updates = [
            {
                "method": method,
                "kind": kind,
                "seconds": median(seconds),
                "all_seconds": seconds,
                **finite(compared(self.updated((method, kind)), w, self.first.parameters)),
                **_scores(leaver, self.first, self.updated((method, kind))),
                "w": kept_coordinates(self.updated((method, kind))),
            }
            for (method, kind), seconds in self.seconds.items()
        ]
        failed = [{"method": m, "kind": k, "why": why} for (m, k), why in self.failed.items()]
        gathering = {"gather_seconds": leaver.gather_seconds, "visits": self.visits}
        return {**gathering, "base_l": base, "updates": updates, "not_applicable": failed}


def _scores(leaver: Leaver, model: RegressionModel, w: NDArray[np.float64]) -> dict[str, Any]:
    """Objective on the rows left; accuracy, or MSE and R^2, on the validation rows."""
    names = ("objective", "accuracy", "mse", "r2")
    if not np.isfinite(w).all():
        return dict.fromkeys(names)
    found = finite(dict(scores(leaver.rows(model), w, InlineFold())))
    return {name: found.get(name) for name in names}


def _rebase(
    ws: Workspace, kind: str, model: RegressionModel, leaver: Leaver, race: Race
) -> dict[str, Any]:
    """Bytes of a kind's provenance, and seconds of the rebase that follows a commit."""
    size: dict[str, Any] = {"bytes": folder_size(model.version.path)}
    if (DELTA, kind) not in race.seconds:
        return {**size, "rebase_seconds": None, "sync_seconds": None}
    outcome = leaver.update(model, DELTA)
    with ws.lock("an experiment's rebase") as fence:
        done = rebase_aside(ws, fence, kind, model, leaver, outcome)
        sweep(done.path)
    return {**size, "rebase_seconds": done.rebase_seconds, "sync_seconds": done.sync_seconds}


def measure_memory(task: MemoryTask) -> None:
    """Run one method once and keep the peak of this process, before and after."""
    prepared = task.prepared
    with Workspace.open(prepared.workspace) as ws, one_core():
        run, size = _memory_run(ws, task)
        idle = peak_bytes()
        run()
        found = {**study_keys(prepared), "rate": task.rate, "idle_bytes": idle}
        found |= {"peak_bytes": peak_bytes(), "provenance_bytes": size}
    name = prepared.study.memory_piece(task.method, task.kind)
    task.pieces.keep(name, {**found, "method": task.method, "kind": task.kind}, environment())


def _memory_run(ws: Workspace, task: MemoryTask) -> tuple[Callable[[], object], int]:
    """Gather the rows; return what runs the method, and the bytes of the model that it reads."""
    prepared = task.prepared
    units = leaving_units(prepared.study, prepared.settings, prepared.data["rows"], task.rate)
    if prepared.data["sparse"]:
        sparse = SparseLeaver(ws, units)
        return partial(sparse.run, task.method), folder_size(sparse.model.version.path)
    model = opened(ws, task.kind if task.kind in prepared.kinds else prepared.kinds[0])
    leaver = Leaver.of(ws, units, {})
    size = folder_size(model.version.path)
    if task.method == BASEL:
        return partial(leaver.base_l, model, _faster_side(task)), size
    return partial(leaver.update, model, task.method), size


def _faster_side(task: MemoryTask) -> str:
    """How BaseL was faster in the piece of the same rate."""
    found = task.pieces.find(task.prepared.study.piece(task.rate)) or {}
    return str(found["base_l"]["by"])


def peak_bytes() -> int:
    """Return the most memory that this process has had so far (VmHWM), in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise JobError(f"{STATUS} tells no VmHWM: memory can't be measured on this system")


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and the thread that reads ahead, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
