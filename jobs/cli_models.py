"""``expunge model``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from .console import Json, confirm, pairs, session, table
from .retiring import retire_model

model = typer.Typer(no_args_is_help=True, help="Models: list, show, retire.")


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(model, name="model")


@model.command("list")
def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the models; one that is behind has seen rows which the job named there has deleted."""
    with session(ctx).open() as ws:
        rows = ws.ledger.rows(
            "SELECT name, algorithm, data_set, version, m.rows, b.job AS behind FROM models m "
            "LEFT JOIN behind b ON b.model = m.name ORDER BY name"
        )
    for row in rows:
        row["empty"] = row["rows"] == 0
    names = ("name", "algorithm", "data_set", "version", "rows", "empty", "behind")
    shown = table(names, [[r[n] for n in names] for r in rows])
    session(ctx).emit({"models": rows}, as_json, lambda out: out.print(shown))


@model.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL")],
    as_json: Json = False,
) -> None:
    """Show a model: settings, version, and centres or coefficients in the features' own units."""
    from .training import describe_model

    with session(ctx).open() as ws:
        found = describe_model(ws, name)
    matrix = ("cluster_centers", "sizes", "coefficients", "versions")
    plain = [n for n in found if n not in matrix]
    heads = ("version", "job", "created", "state")
    history = table(heads, [[v[n] for n in heads] for v in found["versions"]])
    shown = _rows_of(found)
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, plain), history, shown))


@model.command()
def retire(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a model and all its versions for good; its name is free then."""
    with session(ctx).open() as ws:
        ws.ledger.model(name)
        confirm(f"Remove model {name} and all its versions for good?", yes)
        found = retire_model(ws, name)
    for job in found["jobs"]:
        typer.echo(f"job {job} waits no more for it: expunge job retry {job}", err=True)
    shown = ("model", "data", "algorithm", "versions")
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, shown)))


def _rows_of(found: dict[str, Any]) -> Table:
    """A model's matrix: a line a cluster, or a line an output."""
    if "cluster_centers" in found:
        named, values = "centre", zip(found["sizes"], found["cluster_centers"], strict=True)
        heads = ("cluster", "rows")
    else:
        named, values = "coefficients", zip(found["intercepts"], found["coefficients"], strict=True)
        heads = ("output", "intercept")
    lines = [
        [number, first, " ".join(f"{value:.4g}" for value in row)]
        for number, (first, row) in enumerate(values)
    ]
    return table((*heads, named), lines)
