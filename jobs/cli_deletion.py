"""``expunge batch | scan | demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..pipeline.regression import DELTA, METHODS
from .batch_tables import NOTHING, batch_tables
from .batches import faults, forecast, run_batch, worst
from .cancelling import ended_by_signals
from .console import (
    Cluster,
    Json,
    MemoryLimit,
    Workers,
    confirm,
    existing,
    open_fold,
    pairs,
    session,
    showing,
    table,
)
from .demo import run_demo
from .errors import JobError, UsageError, VerifyError
from .holds import release_ended_holds
from .scanning import scan
from .signing import KEYGEN

batch = typer.Typer(no_args_is_help=True, help="Deletion batches.")
_PLAN = ("requests", "units", "cells")
RECOMMENDED = (
    "much was deleted, or the estimated distance to a retrain is large for the change; train it anew, "
    "or run the next batch with --method basel"
)

UNSIGNED = f"the receipts are not signed: {KEYGEN} makes a key for those to come"


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(batch, name="batch")
    app.command("scan")(scan_)
    app.command("demo")(demo)


@batch.command("run")
def run(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would happen.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            help="How regressions update: delta; basel (retrain on the rows left); of the paper, priu "
            "(exact provenance), priu-opt (linear models, or frozen provenance), closed-form (linear "
            "models), infl (influence function: linear models, or those trained with hessian=true). "
            "k-means is exact by itself."
        ),
    ] = DELTA,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Carry out all queued requests: update every model, erase the rows, issue receipts.

    One job a data set; one that can't go on is skipped, and the others run. Exit 3 while some models
    could not be updated, now or by an earlier batch: the rows wait for job retry, or model retire.
    """
    if method not in METHODS:
        raise UsageError(f"--method is {method!r}; it is one of {', '.join(METHODS)}")
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
    ):
        release_ended_holds(ws)
        if dry_run:
            plan = forecast(ws, fold, method)
            shown = table(
                ("model", "action", "first_step"),
                [[m["model"], m["action"], m["first_step"]] for m in plan["models"]],
            )
            summary = pairs(plan, _PLAN) if plan["units"] else NOTHING
            session(ctx).emit(plan, as_json, lambda out: out.print(summary, shown))
            if wrong := faults(ws.ledger, plan):
                raise worst(wrong)
            return
        queued = ws.ledger.value("SELECT count(*) FROM requests WHERE state = 'queued'")
        if queued:
            confirm(f"Delete {queued} unit(s) from their data sets and models for good?", yes)
        with showing("batch") as update, ended_by_signals():
            found = run_batch(ws, fold, update, method)
        wrong = faults(ws.ledger, found)
    for report in found["models"]:
        if report.get("retrain_recommended"):
            typer.echo(f"model {report['model']}: {RECOMMENDED}", err=True)
    if found["receipts"] and not found["signed"]:
        typer.echo(UNSIGNED, err=True)
    session(ctx).emit(found, as_json, lambda out: out.print(*batch_tables(found)))
    for model in found["behind"]:
        typer.echo(f"model {model['model']}: {model['error']}: {model['problem']}", err=True)
    if wrong:
        raise worst(wrong)


def scan_(
    ctx: typer.Context,
    rows: Annotated[Path, typer.Option(help="File with the rows to look for.")],
    data: Annotated[str | None, typer.Option(help="Data set whose columns it has.")] = None,
    format: Annotated[
        str, typer.Option(help="As for data import: csv, higgs, svmlight ...")
    ] = "csv",
    as_json: Json = False,
) -> None:
    """Search every byte below the workspace for rows, in every stored encoding; exit 5 if found."""
    with session(ctx).open() as ws, showing("scan") as update:
        found = scan(
            ws,
            existing(rows),
            data,
            format,
            lambda done, total: update("bytes", done / max(1, total)),
        )
    names = ("data", "rows", "matches", "live_twins", "files_scanned", "bytes_scanned")
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, names)))
    if found["matches"]:
        where = ", ".join(found["files"][:5])
        raise VerifyError(
            f"{len(found['rows_found'])} of {found['rows']} rows found, at {found['matches']} "
            f"places, in {where}"
        )
    unsure = []
    if count := len(found["not_searchable"]):
        alike = "whose bytes are all alike, or zeros and ones alone, in some encoding"
        unsure = [f"{count} rows {alike}"]
    if unsure or found["skipped"]:
        raise JobError(f"nothing found, but not searched: {', '.join(unsure + found['skipped'])}")


def demo(
    ctx: typer.Context,
    rows: Annotated[int, typer.Option(help="HIGGS-like rows to generate.")] = 1_000_000,
    dir: Annotated[Path, typer.Option(help="Folder of the demo; made anew.")] = Path(
        "expunge-demo"
    ),
    file: Annotated[Path | None, typer.Option(help="Rows to import instead.")] = None,
    format: Annotated[str, typer.Option(help="Format of --file.")] = "higgs",
    deletions: Annotated[int, typer.Option(min=1, help="Random rows to delete.")] = 1000,
    as_json: Json = False,
) -> None:
    """The whole path on this machine: data, models, a deletion batch, proof."""
    with showing("demo") as update:
        found = run_demo(dir, rows, file, format, deletions, update)
    session(ctx).emit(found.result, as_json, found.show)
