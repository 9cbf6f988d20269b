"""``expunge train | model | predict | verify``."""

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
    table,
)
from .errors import UsageError, VerifyError
from .training import describe_model, load_model, parse_parameters, predict, train
from .verifying import verify_against_retrain

model = typer.Typer(no_args_is_help=True, help="Models: list, show.")
_TRAINED = ("model", "version", "rows", "steps", "loss", "passes", "seconds", "digest")
_VERIFIED = (
    "model",
    "exact",
    "model_digest",
    "retrained_digest",
    "max_abs_difference",
    "retrain_seconds",
)


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.command("train")(train_)
    app.add_typer(model, name="model")
    app.command("predict")(predict_)
    app.command("verify")(verify)


def train_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the new model.")],
    data: Annotated[str, typer.Option(help="Data set to train on.")],
    algorithm: Annotated[str, typer.Option(help="k-means or q-kmeans.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            help="Hyper-parameter as key=value: n_clusters (8), max_iter (10), bounds=LOWER:UPPER; "
            "q-kmeans also epsilon (by size) and gamma (0.2).",
        ),
    ] = None,
    seed: Seed = 0,
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
    }
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
        showing(f"train {name}") as update,
    ):
        summary = train(ws, name, asked, fold, update)
    session(ctx).emit(summary, as_json, lambda out: out.print(pairs(summary, _TRAINED)))


@model.command("list")
def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the models."""
    with session(ctx).open() as ws:
        rows = ws.ledger.rows(
            "SELECT name, algorithm, data_set, version, rows FROM models ORDER BY name"
        )
    for row in rows:
        row["empty"] = row["rows"] == 0
    names = ("name", "algorithm", "data_set", "version", "rows", "empty")
    shown = table(names, [[r[n] for n in names] for r in rows])
    session(ctx).emit({"models": rows}, as_json, lambda out: out.print(shown))


@model.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL")],
    as_json: Json = False,
) -> None:
    """Show a model: settings, version, loss, centres in the features' own units."""
    with session(ctx).open() as ws:
        found = describe_model(ws, name)
    plain = [n for n in found if n not in ("cluster_centers", "sizes")]
    centres = table(
        ("cluster", "rows", "centre"),
        [
            [number, rows, " ".join(f"{value:.4g}" for value in centre)]
            for number, (rows, centre) in enumerate(
                zip(found["sizes"], found["cluster_centers"], strict=True)
            )
        ],
    )
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, plain), centres))


def predict_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL")],
    file: Annotated[Path, typer.Argument(help="Rows; other columns than features are ignored.")],
    format: Annotated[
        str | None, typer.Option(help="higgs, covtype or csv; as the training data's if unset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the cluster of every row of a file, a line each."""
    with session(ctx).open() as ws:
        row, _, _ = load_model(ws, name)
        data_set = DataSet.open(ws.root / ws.ledger.data_set(row["data_set"])["folder"])
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
    against: Annotated[str, typer.Option(help="What to compare with: retrain.")] = "retrain",
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Compare a model, bit for bit, with a retrain on the rows that are stored; exit 5 if unlike."""
    if against != "retrain":
        raise UsageError(f"--against is {against!r}; it is retrain")
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
        showing(f"verify {name}") as update,
    ):
        found = verify_against_retrain(ws, name, fold, update)
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, _VERIFIED)))
    if not found["exact"]:
        raise VerifyError(f"model {name} is not what a retrain gives: {found['differing']} differ")
