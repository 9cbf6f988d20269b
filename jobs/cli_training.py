"""``expunge train | predict | verify``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ..storage.dataset import DataSet
from ..storage.importers import FORMATS, open_features
from .console import (
    Cluster,
    Json,
    MemoryLimit,
    Seed,
    Workers,
    existing,
    open_fold,
    pairs,
    session,
    showing,
)
from .errors import UsageError, VerifyError
from .memory import parse_bytes
from .pending import refuse_behind
from .regression_training import ALGORITHMS as REGRESSIONS
from .sparse_models import predict_file
from .training import parse_parameters, predict, train
from .verifying import verify_model

_HIDDEN = ("job", "settings", "warnings", "differing", "ledger_digest", "against")


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.command("train")(train_)
    app.command("predict")(predict_)
    app.command("verify")(verify)


def train_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the new model.")],
    data: Annotated[str, typer.Option(help="Data set to train on.")],
    algorithm: Annotated[
        str,
        typer.Option(
            help="k-means, q-kmeans, dc-kmeans, linear, logistic or softmax; for sparse rows "
            "sparse-logistic."
        ),
    ],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            help="Hyper-parameter as key=value: n_clusters (8), max_iter (10), bounds=LOWER:UPPER; "
            "provenance (none, or labels: for deletions without passes); q-kmeans also epsilon (by "
            "size) and gamma (0.2); dc-kmeans no provenance, but n_leaves (a power of two; by "
            "size), root (unweighted or weighted), branching=8x8 (a deeper tree). Regressions: "
            "learning_rate (half of the rate that is safe), l2 (0.001), batch_size (1000), "
            "iterations (1000), validation (0.1), "
            "provenance (exact, averaged, lowrank, frozen, projected or none; chosen if unset), hessian (true for "
            "--method infl), dtype (float32 or float64). sparse-logistic: learning_rate, l2, batch_size, "
            "iterations, validation, provenance (coefficients or none). One -p for each; given twice, the last counts.",
        ),
    ] = None,
    seed: Seed = 0,
    memory: Annotated[
        str | None,
        typer.Option(help="What a regression's update may use, e.g. 1GiB (the default)."),
    ] = None,
    disk: Annotated[
        str | None, typer.Option(help="What its provenance may use; half of what is free if unset.")
    ] = None,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Train a model on a stored data set."""
    given = {}
    for text in parameter or []:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"-p {text!r}: give it as key=value")
        given[key] = value
    asked = {
        "data": data,
        "algorithm": algorithm,
        "parameters": parse_parameters(algorithm, given),
        "seed": seed,
        "memory": None if memory is None else parse_bytes("--memory", memory),
        "disk": None if disk is None else parse_bytes("--disk", disk),
    }
    if algorithm not in REGRESSIONS and (memory or disk) is not None:
        raise UsageError(
            f"--memory and --disk are for regressions' provenance; {algorithm} has none"
        )
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
        showing(f"train {name}") as update,
    ):
        summary = train(ws, name, asked, fold, update)
    for warning in summary.get("warnings", ()):
        typer.echo(f"warning: {warning}", err=True)
    shown = [key for key in summary if key not in _HIDDEN]
    session(ctx).emit(summary, as_json, lambda out: out.print(pairs(summary, shown)))


def predict_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL")],
    file: Annotated[Path, typer.Argument(help="Rows; other columns than features are ignored.")],
    format: Annotated[
        str | None, typer.Option(help="one of data import's; as the training data's if unset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the cluster, class or value of every row of a file, a line each."""
    with session(ctx).open() as ws:
        row = ws.ledger.model(name)
        refuse_behind(ws.ledger, name)
        data_set = DataSet.open(ws.root / ws.ledger.data_set(row["data_set"])["folder"])
        if data_set.sparse:
            found = predict_file(ws, name, existing(file), format, data_set)
        else:
            made = str(data_set.attrs["source"].get("format", "csv"))
            given = format or (made if made in FORMATS else "csv")
            source = open_features([existing(file)], given, data_set.feature_names)
            labels = [predict(ws, name, block.x) for block in source.blocks()]
            found = np.concatenate(labels).tolist() if labels else []
    session(ctx).emit(
        {"model": name, "rows": len(found), "labels": found},
        as_json,
        lambda out: sys.stdout.write("".join(f"{label}\n" for label in found)) and None,
    )


def verify(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL")],
    against: Annotated[
        str | None,
        typer.Option(
            help="What to compare with: retrain (k-means) or basel (regressions); by the model if unset."
        ),
    ] = None,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Compare a model with a retrain on the rows that are stored; exit 5 if it is not what it should.

    k-means must be the same bit for bit. A regression is compared with BaseL, a retrain on the same
    mini-batches: it must be no farther than ten times its estimate.
    """
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
        showing(f"verify {name}") as update,
    ):
        found, fault = verify_model(ws, name, against, fold, update)
    told = {n: v for n, v in found.items() if n not in _HIDDEN and (n, v) != ("intact", None)}
    # A kind "exact" would read as what became of the verification.
    shown = {"provenance" if n == "kind" else n: v for n, v in told.items()} | {
        "holds": fault is None
    }
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(shown, list(shown))))
    if fault is not None:
        raise VerifyError(fault)
