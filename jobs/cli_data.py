"""``expunge data ...``: import, generate, list, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..storage.generators import GaussianMixture
from ..storage.importers import FORMATS
from .console import Json, Seed, pairs, session, showing, table
from .importing import GENERATORS, describe_data_set, make_data_set

data = typer.Typer(no_args_is_help=True, help="Data sets: import, generate, list, show.")
_SHAPE = ("data", "rows", "dropped", "features", "label", "cells", "capacity")
Cells = Annotated[
    int | None, typer.Option(help="Number of cells, a power of two; by size if unset")
]
Copies = Annotated[
    int,
    typer.Option(
        min=1, help="Take all n rows so many times; copy c (from 0) of unit u is unit c n + u."
    ),
]


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(data, name="data")


def _make(ctx: typer.Context, name: str, asked: dict[str, Any], as_json: bool) -> None:
    with session(ctx).open() as ws, showing(f"{asked['kind']} {name}") as update:
        summary = make_data_set(ws, name, asked, update)
    session(ctx).emit(summary, as_json, lambda out: out.print(pairs(summary, _SHAPE)))


@data.command("import")
def import_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the new data set.")],
    files: Annotated[
        list[Path],
        typer.Argument(help="Files, read in this order; .gz as well, and a csv in a .zip."),
    ],
    format: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}.")],
    label: Annotated[
        str | None,
        typer.Option(help="Column of the label (csv, parquet); for sgemm, mean_run_ms: no log."),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="Column that tells whose a row is: all rows of a subject go together."),
    ] = None,
    one_hot: Annotated[
        list[str] | None, typer.Option(help="Column of categories: a 0/1 feature each; repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; repeatable.")] = None,
    header: Annotated[bool, typer.Option(help="Whether csv files begin with names.")] = True,
    cells: Cells = None,
    drop_invalid: Annotated[bool, typer.Option(help="Skip and count bad lines.")] = False,
    copies: Copies = 1,
    random_features: Annotated[
        int | None,
        typer.Option(help="Add so many random features, uniform on [0, 1), to each row."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random features.")] = 0,
    first_column: Annotated[
        int | None, typer.Option(help="Of svmlight files, 0 or 1; found out if unset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import rows; the unit of a row is its subject, or its zero-based number across the files."""
    asked = {
        "kind": "import",
        "files": [str(f.absolute()) for f in files],
        "format": format,
        "label": label,
        "subject": subject,
        "one_hot": one_hot or [],
        "drop": drop or [],
        "header": header,
        "cells": cells,
        "drop_invalid": drop_invalid,
        "copies": copies,
        "random_features": random_features,
        "seed": seed,
        "first_column": first_column,
    }
    _make(ctx, name, asked, as_json)


@data.command()
def generate(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the new data set.")],
    like: Annotated[str, typer.Option(help=f"One of {', '.join(GENERATORS)}.")],
    rows: Annotated[int, typer.Option(help="Rows to generate.")],
    features: Annotated[int | None, typer.Option(help="Features (gaussian; 25).")] = None,
    clusters: Annotated[int | None, typer.Option(help="Components (gaussian; 5).")] = None,
    deviation: Annotated[
        float | None,
        typer.Option(
            help=f"Within a component (gaussian; {GaussianMixture.DEVIATION}, apart; "
            f"{GaussianMixture.OVERLAPPING}: overlapping as in the k-means paper)."
        ),
    ] = None,
    seed: Seed = 0,
    cells: Cells = None,
    copies: Copies = 1,
    as_json: Json = False,
) -> None:
    """Generate rows like those of a published data set, or from a mixture of Gaussians."""
    asked = {
        "kind": "generate",
        "like": like,
        "rows": rows,
        "features": features,
        "clusters": clusters,
        "deviation": deviation,
        "seed": seed,
        "cells": cells,
        "copies": copies,
    }
    _make(ctx, name, asked, as_json)


@data.command("list")
def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the data sets."""
    with session(ctx).open() as ws:
        rows = ws.ledger.rows("SELECT name, generation, rows, created FROM data_sets ORDER BY name")
    names = ("name", "generation", "rows", "created")
    shown = table(names, [[r[n] for n in names] for r in rows])
    session(ctx).emit({"data_sets": rows}, as_json, lambda out: out.print(shown))


@data.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the data set.")],
    as_json: Json = False,
) -> None:
    """Show a data set: shape, source, live rows, models."""
    with session(ctx).open() as ws:
        found = describe_data_set(ws, name)
    plain = [name for name in found if name != "lineage"]
    heads = ("model", "algorithm", "generation", "version", "job", "created", "state")
    models = table(heads, [[m[n] for n in heads] for m in found["lineage"]])
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, plain), models))
