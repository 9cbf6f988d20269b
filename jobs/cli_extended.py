"""``expunge experiment higgs-extended | cov-extended | heartbeat-extended``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .cli_experiment import (
    Disk,
    Keep,
    Memory,
    Out,
    Presets,
    Sequential,
    bytes_of,
    experiment,
)
from .console import Cluster, Json, MemoryLimit, Seed, Workers, open_fold, session, showing
from .experiment_extended_settings import (
    ALGORITHMS,
    DEFAULT_ALGORITHMS,
    DEFAULT_CLUSTERS,
    DEFAULT_METHODS,
    NO_ALGORITHM,
    ExtendedAsked,
    ExtendedSettings,
    chosen_algorithms,
)
from .experiment_priu_sets import EXTENDED, SETS, SOURCES, TRAINED
from .experiment_priu_settings import PROVENANCE, UPDATES, Settings, chosen_names, chosen_presets

Rate = Annotated[float, typer.Option(help="Share of the training rows in a subset.")]
Subsets = Annotated[int, typer.Option(help="Random subsets.")]
Rows = Annotated[int | None, typer.Option(help="At most so many rows; all if unset.")]
Kinds = Annotated[
    str | None,
    typer.Option(
        help=f"Kinds of provenance, by commas, of {', '.join(PROVENANCE)}; the one that the planner "
        "takes if unset."
    ),
]
Methods = Annotated[
    str, typer.Option(help=f"Methods beside basel, by commas, of {', '.join(UPDATES)}.")
]
Clusterings = Annotated[
    str,
    typer.Option(help=f"By commas, of {', '.join(ALGORITHMS)}; {NO_ALGORITHM} for none of them."),
]
Clusters = Annotated[int, typer.Option(help="Clusters of the k-means family.")]
Labels = Annotated[
    bool,
    typer.Option("--labels", help="k-means and q-kmeans keep labels and margins for deletions."),
]
BaselSubsets = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Retrain without so many of the subsets only, the first ones; ratios of the others take "
        "the median, and are marked.",
    ),
]
Repeats = Annotated[int, typer.Option(help="How often an update is timed.")]
File = Annotated[
    Path | None,
    typer.Option(
        help="Import these rows (HIGGS.csv.gz, for higgs-extended) instead of generating some."
    ),
]
Copies = Annotated[int, typer.Option(help="Of every row of the file, as units of their own.")]


def register(_: typer.Typer) -> None:
    """Add these commands to ``expunge experiment``, which the main application has."""
    for name in EXTENDED:
        source = SOURCES[SETS[name].data]
        shape = f"{source.rows:,} x {source.features}"
        text = f"Delete random subsets from all models of {name} ({shape}), out of core."
        experiment.command(name, help=f"{text}\n\n{_LONG}")(_command(name))


_LONG = (
    "The PrIU paper's largest experiments, with its regression and with the k-means family on the same "
    "stored rows: ten random subsets of 0.1%, each from the first models, beside retrains on the rows "
    "left. A run that was killed goes on when the same command is given again."
)


def _command(name: str) -> Callable[..., None]:
    """The command of a set."""

    def extended(
        ctx: typer.Context,
        out: Out,
        preset: Presets = TRAINED,
        rate: Rate = 0.001,
        subsets: Subsets = 10,
        rows: Rows = None,
        sequential: Sequential = False,
        kinds: Kinds = None,
        methods: Methods = DEFAULT_METHODS,
        clusterings: Clusterings = DEFAULT_ALGORITHMS,
        clusters: Clusters = DEFAULT_CLUSTERS,
        labels: Labels = False,
        basel_subsets: BaselSubsets = None,
        repeats: Repeats = 3,
        memory: Memory = None,
        disk: Disk = None,
        keep: Keep = False,
        cluster: Cluster = "local",
        workers: Workers = None,
        memory_limit: MemoryLimit = None,
        seed: Seed = 0,
        file: File = None,
        copies: Copies = 1,
        as_json: Json = False,
    ) -> None:
        regression = Settings(
            rows=rows,
            seed=seed,
            repeats=repeats,
            kinds=() if kinds is None else chosen_names("--kinds", kinds, PROVENANCE),
            methods=chosen_names("--methods", methods, UPDATES),
            memory=bytes_of("--memory", memory),
            disk=bytes_of("--disk", disk),
            rate=rate,
            subsets=subsets,
            sequential=sequential,
        )
        settings = ExtendedSettings(regression, clusters, labels, file, copies)
        asked = ExtendedAsked(
            name, chosen_presets(preset), chosen_algorithms(clusterings), basel_subsets, keep
        )
        folds = partial(open_fold, cluster=cluster, workers=workers, memory_limit=memory_limit)
        # These load matplotlib, which other commands need not wait for.
        from .experiment_extended_report import show_extended
        from .experiment_extended_run import planned, run_extended

        plan = planned(out, settings, asked)
        if plan is not None:
            typer.echo(plan.text(), err=True)
        with showing(name) as update:
            result = run_extended(out, settings, asked, folds, update)
        session(ctx).emit(result, as_json, lambda console: show_extended(console, result))

    return extended
