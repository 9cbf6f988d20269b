"""Runs an extended experiment: the disk is planned, rows and models are made, subsets measured.

Regressions are measured in a process of one thread, nothing else running; the k-means family on the
cluster that was asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .console import Update
from .errors import UsageError
from .experiment_clock import Clock
from .experiment_extended_clusters import ClusterTask, measure_clusters
from .experiment_extended_clusters import lacking as lacking_clusters
from .experiment_extended_disk import DiskPlan, plan_disk
from .experiment_extended_models import Made, make_models
from .experiment_extended_regression import (
    RegressionTask,
    lacking,
    measure_regressions,
    piece_of,
)
from .experiment_extended_report import report_extended
from .experiment_extended_settings import (
    HIGGS,
    ExtendedAsked,
    ExtendedSettings,
    basel_piece,
    cluster_piece,
    side_piece,
    update_piece,
)
from .experiment_priu_models import Folds, discard, sweep_discarded
from .experiment_priu_rows import Origin, find_origin
from .experiment_priu_sets import SETS, SOURCES
from .experiment_results import Pieces, open_results
from .experiment_workers import run_in_processes
from .workspace import Workspace


def origin_of(settings: ExtendedSettings, asked: ExtendedAsked) -> Origin:
    """Return where the rows come from; UsageError for a file of a set that has none."""
    source = SOURCES[SETS[asked.data_set].data]
    if settings.file is None:
        return find_origin(asked.study, settings.regression, Path())
    if asked.data_set != HIGGS:
        raise UsageError(f"--file is for {HIGGS}; the rows of {asked.data_set} are generated")
    file = settings.file.absolute()
    return Origin(source, (file,), settings.regression.rows, file.name, settings.copies)


def planned(out: Path, settings: ExtendedSettings, asked: ExtendedAsked) -> DiskPlan | None:
    """Return what a run takes of the disk, nothing touched; None where nothing is left to measure.

    Raises UsageError for settings that can't be run.
    """
    settings.check()
    root = out.absolute()
    pieces = Pieces(root, settings.identity())
    if all((root / "pieces" / f"{name}.json").is_file() for name in wanted(settings, asked)):
        return None
    return plan_disk(pieces.root, settings, asked, origin_of(settings, asked))


def wanted(settings: ExtendedSettings, asked: ExtendedAsked) -> list[str]:
    """Return the names of all pieces with measurements."""
    subsets = settings.regression.subsets
    retrained = asked.retrained(subsets)
    names = []
    for preset in asked.presets:
        names += [basel_piece(asked, preset, k) for k in range(retrained)]
        names += [update_piece(asked, preset, k) for k in range(subsets)]
    for algorithm in asked.algorithms:
        names += [cluster_piece(asked, algorithm, "update", k) for k in range(subsets)]
        names += [cluster_piece(asked, algorithm, "retrain", k) for k in range(retrained)]
    return names


def run_extended(
    out: Path, settings: ExtendedSettings, asked: ExtendedAsked, folds: Folds, update: Update
) -> dict[str, Any]:
    """Measure what is not there yet; return the summary, with the ``folder``.

    Raises UsageError for wrong settings or a folder of something else, NoSpaceError before anything
    is written that the disk would not hold.
    """
    plan = planned(out, settings, asked)
    if plan is not None:
        plan.check()
    with open_results(out, asked.data_set, settings.identity()) as pieces:
        sweep_discarded(pieces.root)
        names = wanted(settings, asked)
        if any(pieces.find(name) is None for name in names):
            origin = origin_of(settings, asked)
            made = make_models(pieces, settings, asked, origin, folds, update)
            _regressions(pieces, settings, asked, made, update)
            task = ClusterTask(pieces, settings, asked, made.rows)
            if lacking_clusters(task):
                with Workspace.open(made.workspace) as ws:
                    measure_clusters(task, ws, folds, update)
        if not asked.keep:
            discard(pieces.root, asked.study)
        update("tables and plot")
        unfinished = [name for name in names if pieces.find(name) is None]
        return report_extended(pieces, settings, asked, unfinished)


def _regressions(
    pieces: Pieces, settings: ExtendedSettings, asked: ExtendedAsked, made: Made, update: Update
) -> None:
    """Measure the regressions of every preset, in a process of one thread."""
    for preset, kinds in made.kinds.items():
        if not kinds:
            continue
        task = RegressionTask(pieces, settings, asked, made.workspace, made.rows, preset, kinds)
        todo = lacking(task)
        if todo:
            look = _Look(task, todo, update)
            run_in_processes(measure_regressions, [task], 1, look)


class _Look:
    """Shows how many pieces another process has finished, and the time left."""

    def __init__(self, task: RegressionTask, todo: list[tuple[str, int]], update: Update) -> None:
        self._task, self._todo = task, todo
        self._clock = Clock(update, f"{task.asked.data_set}, {task.preset}")

    def __call__(self) -> None:
        task = self._task
        done = [one for one in self._todo if task.pieces.find(piece_of(task, *one)) is not None]
        seconds = [task.pieces.find(piece_of(task, *one)) for one in done if one[0] == "basel"]
        side = task.pieces.find(side_piece(task.asked, task.preset))
        waiting = sum(what == "basel" for what, _ in self._todo) - len(seconds)
        each = [one["seconds"] for one in seconds if one and one["failed"] is None]
        pace = each[-1] if each else side["basel_seconds"] if side else None
        left = None if pace is None else pace * waiting
        self._clock.told(
            f"{len(done)} of {len(self._todo)} measurements", left, len(done) / len(self._todo)
        )
