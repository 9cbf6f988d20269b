"""Runs the regression experiments, study by study, and writes their tables, figures and summaries.

A study's rows and models are made first, on the cluster that was asked for; then every piece is
measured in a process of its own, nothing else running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pipeline.regression import BASEL, NO_PROVENANCE
from ..storage.errors import BadInputError
from .console import Update
from .errors import JobError, LockedError, UsageError
from .experiment_priu_measure import MemoryTask, Task, measure, measure_memory
from .experiment_priu_models import Folds, Prepared, discard, prepare, sweep_discarded
from .experiment_priu_repeat import measure_repeated
from .experiment_priu_report import report_repeated, report_single
from .experiment_priu_rows import find_origin
from .experiment_priu_sets import SETS
from .experiment_priu_settings import REPEATED, SINGLE, Asked, Settings, Study, studies
from .experiment_results import Pieces, open_results
from .experiment_workers import run_in_processes
from .training import SPARSE_ALGORITHMS


@dataclass(frozen=True, slots=True)
class _Run:
    """An experiment on its way."""

    pieces: Pieces
    settings: Settings
    asked: Asked
    folds: Folds
    update: Update
    missing: dict[str, str]
    """Why studies could not be made, by study."""

    def prepared(self, study: Study) -> Prepared | None:
        """Make a study's workspace, or note why it can't be made."""
        try:
            origin = find_origin(study, self.settings, self.asked.data_dir)
            root = self.pieces.root
            return prepare(root, study, self.settings, origin, self.folds, self.update)
        except LockedError:
            raise
        except (JobError, BadInputError) as error:
            self.missing[study.folder] = str(error)
            return None

    def measured(
        self, work: Callable[[Any], None], tasks: Sequence[Any], what: str, fresh: bool = False
    ) -> None:
        """Run tasks one after the other, each in a process of one thread."""
        if tasks:
            self.update(what)
            run_in_processes(work, tasks, 1, lambda: None, fresh)

    def done_with(self, study: Study) -> None:
        """Let a study's workspace go, unless it is to be kept."""
        if not self.asked.keep:
            discard(self.pieces.root, study)


def run_single(
    out: Path, settings: Settings, asked: Asked, folds: Folds, update: Update
) -> dict[str, Any]:
    """Measure one deletion at every rate asked for; return the summary, with the ``folder``.

    Raises UsageError for wrong settings, a folder of something else, or where no set can be measured.
    """
    settings.check()
    with open_results(out, SINGLE, settings.identity()) as pieces:
        run = _Run(pieces, settings, asked, folds, update, {})
        sweep_discarded(pieces.root)
        wanted = studies(asked)
        for study in wanted:
            _single(run, study)
        _check_any(run, wanted)
        update("tables and plots")
        return report_single(pieces, run.missing, _unfinished(pieces, wanted))


def _single(run: _Run, study: Study) -> None:
    """Measure what is not there yet of a study."""
    last = study.rates[-1] == run.asked.rates[-1]
    rates = [rate for rate in study.rates if run.pieces.find(study.piece(rate)) is None]
    if rates or (last and _memory_wanted(run.pieces, study)):
        prepared = run.prepared(study)
        if prepared is None:
            return
        tasks = [Task(run.pieces, prepared, rate) for rate in rates]
        run.measured(measure, tasks, f"{study.folder}: times")
        if last:
            rate = study.rates[-1]
            wanted = _memory_wanted(run.pieces, study)
            memory = [MemoryTask(run.pieces, prepared, rate, m, k) for m, k in wanted]
            run.measured(measure_memory, memory, f"{study.folder}: memory", fresh=True)
    run.done_with(study)


def _memory_wanted(pieces: Pieces, study: Study) -> list[tuple[str, str]]:
    """The methods of the highest rate whose memory is not known yet, BaseL's first."""
    found = pieces.find(study.piece(study.rates[-1]))
    if found is None or found["failed"] is not None:
        return []
    methods = [(BASEL, NO_PROVENANCE), *((u["method"], u["kind"]) for u in found["updates"])]
    return [one for one in methods if pieces.find(study.memory_piece(*one)) is None]


def run_repeated(
    out: Path, settings: Settings, asked: Asked, folds: Folds, update: Update
) -> dict[str, Any]:
    """Delete subset after subset; return the summary, with the ``folder``. Raises as ``run_single``."""
    settings.check()
    with open_results(out, REPEATED, settings.identity()) as pieces:
        run = _Run(pieces, settings, asked, folds, update, {})
        sweep_discarded(pieces.root)
        wanted = studies(asked)
        for study in wanted:
            if SETS[study.data_set].algorithm in SPARSE_ALGORITHMS:
                run.missing[study.folder] = f"set {study.data_set}: sparse rows leave but once here"
                continue
            if pieces.find(study.repeated_piece) is None:
                prepared = run.prepared(study)
                if prepared is None:
                    continue
                tasks = [Task(pieces, prepared, settings.rate)]
                run.measured(measure_repeated, tasks, f"{study.folder}: subsets")
            run.done_with(study)
        _check_any(run, wanted)
        update("tables and plots")
        names = [study.repeated_piece for study in wanted]
        return report_repeated(pieces, run.missing, _absent(pieces, names))


def _check_any(run: _Run, wanted: Sequence[Study]) -> None:
    if len(run.missing) == len(wanted) and not run.pieces.names():
        raise UsageError("no set can be measured: " + "; ".join(run.missing.values()))


def _unfinished(pieces: Pieces, wanted: Sequence[Study]) -> list[str]:
    return _absent(pieces, [study.piece(rate) for study in wanted for rate in study.rates])


def _absent(pieces: Pieces, names: Sequence[str]) -> list[str]:
    """The pieces that were asked for and are not there."""
    there = set(pieces.names())
    return [name for name in names if name not in there]
