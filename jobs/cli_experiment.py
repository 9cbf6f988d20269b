"""``expunge experiment``: the papers' experiments, on estimators in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Json, Seed, session, showing
from .experiment_sets import SETS
from .experiment_settings import DEFAULT_BUDGET, NAME, Settings, chosen_series, chosen_sets

experiment = typer.Typer(
    no_args_is_help=True, help="The papers' experiments, in memory: kmeans-table."
)


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(experiment, name="experiment")


@experiment.command(NAME)
def kmeans_table(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Folder of the results: new, empty, or one to go on with.")
    ],
    data_dir: Annotated[Path, typer.Option(help="Folder with the data sets' files.")] = Path(),
    data: Annotated[str, typer.Option(help="Data sets, by commas.")] = ",".join(SETS),
    only: Annotated[
        str | None,
        typer.Option(
            help="Series, by commas: sklearn, k-means, q-kmeans, dc-kmeans, sweeps (or "
            "sweep-epsilon, sweep-leaves, sweep-rows); all if unset."
        ),
    ] = None,
    deletions: Annotated[int, typer.Option(help="Single deletions, one after another.")] = 1000,
    replicates: Annotated[int, typer.Option(help="Runs with fresh randomness.")] = 5,
    budget: Annotated[
        float,
        typer.Option(
            help="Seconds for the deletions of a series; what would take longer is extrapolated."
        ),
    ] = DEFAULT_BUDGET,
    rows: Annotated[int | None, typer.Option(help="At most so many rows of a data set.")] = None,
    workers: Annotated[
        int, typer.Option(help="Replicates at once, each in a process of one thread.")
    ] = 1,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Delete row after row from k-means, Q-k-means and DC-k-means; compare with scikit-learn.

    The tables and figures of Making AI Forget You. A run that was killed goes on when the same
    command is given again. Data sets whose files are not there are named and skipped.
    """
    # These load scikit-learn and matplotlib, which other commands need not wait for.
    from .experiment_kmeans_run import Asked, run_kmeans_table
    from .experiment_summary import show_summary

    settings = Settings(deletions, budget, rows, seed, workers)
    asked = Asked(data_dir, chosen_sets(data), chosen_series(only), replicates)
    try:
        with showing(NAME) as update:
            result = run_kmeans_table(out, settings, asked, update)
    except KeyboardInterrupt:
        typer.echo("the same command goes on with what is not finished", err=True)
        raise
    session(ctx).emit(result, as_json, lambda console: show_summary(console, result))
