"""Runs the k-means experiments and writes their tables, figures and summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage import files
from .console import Update
from .errors import UsageError
from .experiment_kmeans import Task, describe_sets, run_replicate, unfinished_series
from .experiment_kmeans_figures import draw_figures
from .experiment_results import Pieces, Row, open_results, write_json, write_table
from .experiment_settings import NAME, Settings, piece_name
from .experiment_summary import LIMITS, explain, summarise
from .experiment_tables import COLUMNS, Tables, collect, make_tables
from .experiment_theory import BOUNDS, FITS, fits, loss_bounds
from .experiment_workers import run_in_processes


@dataclass(frozen=True, slots=True)
class Asked:
    """Which pieces are wanted: they may be asked for bit by bit, into the same folder."""

    data_dir: Path
    data: Sequence[str]
    series: Sequence[str]
    replicates: int


def run_kmeans_table(out: Path, settings: Settings, asked: Asked, update: Update) -> dict[str, Any]:
    """Run every piece that is not there yet; return the summary, with the ``folder``.

    Raises UsageError for wrong settings, a folder of something else, or where every set is missing.
    """
    settings.check()
    if asked.replicates < 1:
        raise UsageError(f"--replicates is {asked.replicates}; at least 1 is needed")
    with open_results(out, NAME, settings.identity()) as pieces:
        update("reading the data sets")
        sets, missing = describe_sets(pieces, settings, asked.data_dir, asked.data)
        if not sets:
            raise UsageError("every data set is missing: " + "; ".join(missing.values()))
        tasks = _tasks(pieces, settings, asked, list(sets))
        unfinished = [task for task in tasks if unfinished_series(task)]
        run_in_processes(
            run_replicate, unfinished, settings.workers, lambda: _show(pieces, tasks, update)
        )
        update("tables and plots")
        return _report(pieces, missing, tasks)


def _tasks(pieces: Pieces, settings: Settings, asked: Asked, names: Sequence[str]) -> list[Task]:
    """One task a data set and replicate, in the order in which the sets were given."""
    data_dir = asked.data_dir.absolute()
    return [
        Task(pieces, settings, data_dir, name, replicate, tuple(asked.series))
        for name in names
        for replicate in range(asked.replicates)
    ]


def _show(pieces: Pieces, tasks: Sequence[Task], update: Update) -> None:
    """Show how many of the pieces asked for are there."""
    there = set(pieces.names())
    names = [piece_name(t.data, series, t.replicate) for t in tasks for series in t.series]
    done = sum(name in there for name in names)
    update(f"{done} of {len(names)} series", done / len(names))


def _report(pieces: Pieces, missing: dict[str, str], tasks: Sequence[Task]) -> dict[str, Any]:
    """Write tables, figures, README.md and summary.json, from the pieces alone."""
    root, settings = pieces.root, pieces.settings
    found = collect(pieces)
    tables = make_tables(found, settings["deletions"])
    theory = fits(tables), loss_bounds(found, tables)
    _write_tables(root, tables, theory)
    figures = draw_figures(root, tables, list(LIMITS.items()), found.sets)
    summary = summarise(settings, found, tables, theory, missing, tasks)
    files.write_whole(root / "README.md", explain(figures).encode())
    write_json(root / "summary.json", {**summary, "figures": figures})
    files.sync_folder(root)
    return {**summary, "figures": figures, "folder": str(root)}


def _write_tables(root: Path, tables: Tables, theory: tuple[Sequence[Row], Sequence[Row]]) -> None:
    for name, columns in COLUMNS.items():
        write_table(root / f"{name}.csv", list(columns), getattr(tables, name))
        means: Sequence[Row] = getattr(tables, f"mean_{name}")
        if means:
            write_table(root / f"mean_{name}.csv", list(means[0]), means)
    write_table(root / "fits.csv", list(FITS), theory[0])
    write_table(root / "loss_bound.csv", list(BOUNDS), theory[1])
