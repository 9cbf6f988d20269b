"""``expunge experiment``: the papers' experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import (
    Cluster,
    Json,
    MemoryLimit,
    Seed,
    Update,
    Workers,
    open_fold,
    session,
    showing,
)
from .errors import UsageError
from .experiment_priu_sets import PRESETS, TRAINED
from .experiment_priu_sets import SETS as TABLE2
from .experiment_priu_settings import (
    DEFAULT_RATES,
    DEFAULT_REPEATED,
    DEFAULT_ROWS,
    DEFAULT_SETS,
    DIRTY,
    PROVENANCE,
    RANDOM,
    REPEATED,
    SINGLE,
    UPDATES,
    chosen_names,
    chosen_presets,
    chosen_rates,
)
from .experiment_priu_settings import Asked as RegressionAsked
from .experiment_priu_settings import Settings as RegressionSettings
from .experiment_priu_settings import chosen_sets as chosen_table2
from .experiment_sets import SETS
from .experiment_settings import DEFAULT_BUDGET, NAME, Settings, chosen_series, chosen_sets
from .memory import parse_bytes

Out = Annotated[Path, typer.Option(help="Folder of the results: new, empty, or one to go on with.")]
DataDir = Annotated[Path, typer.Option(help="Folder with the data sets' files.")]
Sets = Annotated[str, typer.Option("--set", help=f"By commas, of {', '.join(TABLE2)}.")]

Presets = Annotated[
    str,
    typer.Option(
        help=f"By commas, of {', '.join(PRESETS)}: the paper's hyper-parameters, or those that reach "
        "about the accuracy of a well trained model."
    ),
]
Rows = Annotated[int, typer.Option(help="At most so many rows of a set.")]
Full = Annotated[bool, typer.Option("--full", help="All rows that a set has in the paper.")]
Generate = Annotated[
    bool, typer.Option("--generate", help="Generate rows even where there is a file.")
]
Kinds = Annotated[
    str | None,
    typer.Option(help=f"Kinds of provenance, by commas, of {', '.join(PROVENANCE)}; all if unset."),
]
Methods = Annotated[
    str | None,
    typer.Option(help=f"Methods beside basel, by commas, of {', '.join(UPDATES)}; all if unset."),
]
Repeats = Annotated[int, typer.Option(help="How often everything is timed.")]
Memory = Annotated[
    str | None, typer.Option(help="What an update may use, e.g. 1GiB (the default).")
]
Disk = Annotated[
    str | None,
    typer.Option(help="What a model's provenance may use; half of what is free if unset."),
]
Sequential = Annotated[
    bool,
    typer.Option(
        "--sequential/--from-first",
        help="Whether each subset leaves what the last one left, the provenance rebased in between, or "
        "each leaves the first models.",
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the workspaces below OUT/work when they are done with.")
]

experiment = typer.Typer(
    no_args_is_help=True,
    help="The papers' experiments: kmeans-table, priu-single, priu-repeated, and PrIU's largest sets.",
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
            help="Series, by commas: sklearn, k-means, q-kmeans, dc-kmeans, sweeps (or sweep-epsilon, "
            "sweep-leaves, sweep-rows): these if unset; k-means-none and q-kmeans-none (without labels)."
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
    with showing(NAME) as update:
        result = run_kmeans_table(out, settings, asked, update)
    session(ctx).emit(result, as_json, lambda console: show_summary(console, result))


@experiment.command(SINGLE)
def priu_single(
    ctx: typer.Context,
    out: Out,
    data_dir: DataDir = Path(),
    sets: Sets = DEFAULT_SETS,
    preset: Presets = TRAINED,
    dirty_scale: Annotated[
        float | None,
        typer.Option(help="Rows that leave are rescaled by this before training; 10 if unset."),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Rows that leave are random ones, as they are.")
    ] = False,
    rates: Annotated[
        str, typer.Option(help="Shares of the training rows that leave, by commas.")
    ] = DEFAULT_RATES,
    rows: Rows = DEFAULT_ROWS,
    full: Full = False,
    generate: Generate = False,
    kinds: Kinds = None,
    methods: Methods = None,
    repeats: Repeats = 3,
    memory: Memory = None,
    disk: Disk = None,
    keep: Keep = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Delete one set of rows from regressions by every method; compare with a retrain (PrIU).

    Tables 1 to 4 and figures 1 to 3 of PrIU, and answers to its questions. A run that was killed
    goes on when the same command is given again; other sets, presets and rates may be added to a
    folder, and --random to dirty rows. Trainings run on the cluster; everything is timed in this
    machine's processes of one thread.
    """
    if random and dirty_scale is not None:
        raise UsageError("--random rows are not rescaled: leave out --dirty-scale")
    settings = _settings(
        None if full else rows, generate, kinds, methods, repeats, memory, disk, seed
    )
    if dirty_scale is not None:
        settings = replace(settings, dirty_scale=dirty_scale)
    asked = RegressionAsked(
        data_dir,
        chosen_table2(sets),
        chosen_presets(preset),
        RANDOM if random else DIRTY,
        chosen_rates(rates),
        keep,
    )
    from .experiment_priu_run import run_single

    folds = partial(open_fold, cluster=cluster, workers=workers, memory_limit=memory_limit)
    _regressions(ctx, SINGLE, partial(run_single, out, settings, asked, folds), as_json)


@experiment.command(REPEATED)
def priu_repeated(
    ctx: typer.Context,
    out: Out,
    data_dir: DataDir = Path(),
    sets: Sets = DEFAULT_REPEATED,
    preset: Presets = TRAINED,
    rate: Annotated[float, typer.Option(help="Share of the training rows in a subset.")] = 0.001,
    subsets: Annotated[int, typer.Option(help="Subsets, one after another.")] = 10,
    sequential: Sequential = True,
    rows: Rows = DEFAULT_ROWS,
    full: Full = False,
    generate: Generate = False,
    kinds: Kinds = None,
    methods: Methods = None,
    repeats: Repeats = 1,
    memory: Memory = None,
    disk: Disk = None,
    keep: Keep = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Delete subset after subset of random rows from regressions; compare with retrains (PrIU).

    Figure 4 of PrIU. Each subset is deleted from what the last one left, the provenance rebased in
    between, or with --from-first from the first models. Killed runs go on with the sets that are not
    finished.
    """
    settings = _settings(
        None if full else rows, generate, kinds, methods, repeats, memory, disk, seed
    )
    settings = replace(settings, rate=rate, subsets=subsets, sequential=sequential)
    asked = RegressionAsked(data_dir, chosen_table2(sets), chosen_presets(preset), keep=keep)
    from .experiment_priu_run import run_repeated

    folds = partial(open_fold, cluster=cluster, workers=workers, memory_limit=memory_limit)
    _regressions(ctx, REPEATED, partial(run_repeated, out, settings, asked, folds), as_json)


def _settings(
    rows: int | None,
    generate: bool,
    kinds: str | None,
    methods: str | None,
    repeats: int,
    memory: str | None,
    disk: str | None,
    seed: int,
) -> RegressionSettings:
    """The options that both experiments with regressions have, read; UsageError for bad ones."""
    return RegressionSettings(
        rows=rows,
        seed=seed,
        repeats=repeats,
        kinds=chosen_names("--kinds", kinds, PROVENANCE),
        methods=chosen_names("--methods", methods, UPDATES),
        memory=bytes_of("--memory", memory),
        disk=bytes_of("--disk", disk),
        generate=generate,
    )


def bytes_of(option: str, text: str | None) -> int | None:
    """Return the bytes that an option means; None where it is unset."""
    return None if text is None else parse_bytes(option, text)


def _regressions(
    ctx: typer.Context, name: str, run: Callable[[Update], dict[str, Any]], as_json: bool
) -> None:
    """Run an experiment with regressions and print its answers."""
    from .experiment_priu_report import show_answers

    with showing(name) as update:
        result = run(update)
    session(ctx).emit(result, as_json, lambda console: show_answers(console, result))
