"""``expunge batch | job | scan | demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..pipeline.regression import DELTA, METHODS
from .batches import faults, forecast, run_batch, worst
from .cancelling import CANCELLED, cancel, ended_by_signals
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
from .errors import JobError, PartlyDoneError, UsageError, VerifyError
from .holds import release_ended_holds
from .pending import cure, models_behind
from .resuming import resume
from .retrying import retry
from .scanning import scan
from .signing import KEYGEN
from .verification_records import NONE

batch = typer.Typer(no_args_is_help=True, help="Deletion batches.")
job = typer.Typer(no_args_is_help=True, help="Jobs: list, show, resume, retry, cancel.")
_PLAN = ("requests", "units", "cells")
_BATCH = ("job", "units", "rows", "cells_read", "bytes_read", "bytes_written")
_MODELS = ("model", "action", "exactness", "passes", "seconds", "rows", "version", "reason")
_APPROXIMATE = (
    "model",
    "method",
    "kind",
    "change",
    "estimate",
    "share_deleted",
    "update_seconds",
    "rebase_seconds",
    "estimate_seconds",
)
JobId = Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="See job list.")]
CANCELLING = "cancelling"
NOTHING = "nothing is queued"
RECOMMENDED = (
    "much was deleted, or the estimated distance to a retrain is large for the change; train it anew, "
    "or run the next batch with --method basel"
)

UNSIGNED = f"the receipts are not signed: {KEYGEN} makes a key for those to come"


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(batch, name="batch")
    app.add_typer(job, name="job")
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
    session(ctx).emit(found, as_json, lambda out: out.print(*_batch_tables(found)))
    for model in found["behind"]:
        typer.echo(f"model {model['model']}: {model['error']}: {model['problem']}", err=True)
    if wrong:
        raise worst(wrong)


def _check_whole(found: dict[str, Any], way: str | None) -> None:
    """PartlyDoneError where models are behind, with what went wrong and the ways to go on."""
    late = found.get("behind", [])
    if late:
        failed = "; ".join(f"model {m['model']}: {m['error']}: {m['problem']}" for m in late)
        raise PartlyDoneError(
            f"job {found['job']} is partly done: {failed}; the rows are not erased yet and no receipt "
            f"is issued; {way}"
        )


def _batch_tables(found: dict[str, Any]) -> list[Table | str]:
    """What a batch did, what became of each model, and how near the approximate ones are."""
    if found.get("jobs", [found["job"]]) == []:
        return [NOTHING]
    named = {"job": ", ".join(map(str, found["jobs"]))} if "jobs" in found else {}
    shown: list[Table | str] = [pairs({**found, **named}, _BATCH)]
    for names, chosen in (
        (_MODELS, found["models"]),
        (_APPROXIMATE, [m for m in found["models"] if m["exactness"] == "approximate"]),
    ):
        if chosen:
            # A kind "exact" beside an approximate model would read as a contradiction.
            heads = ["provenance" if n == "kind" else n.replace("_", " ") for n in names]
            shown.append(table(heads, [[m.get(n) for n in names] for m in chosen]))
    done = found["verification"]
    if done is None:
        return [*shown, "partly done: the rows wait for the models that are behind"]
    if done["verify"] == NONE:
        return [*shown, "what was written was read back; expunge settings --verify asks for more"]
    return [*shown, f"verification {done['verify']}, {done['outcome']}: {done['what']}"]


@job.command("list")
def list_jobs(ctx: typer.Context, as_json: Json = False) -> None:
    """List all jobs."""
    with session(ctx).open() as ws:
        ws.note_dead_jobs()
        rows = ws.ledger.rows("SELECT id, kind, state, created, finished FROM jobs ORDER BY id")
    names = ("id", "kind", "state", "created", "finished")
    shown = table(names, [[r[n] for n in names] for r in rows])
    session(ctx).emit({"jobs": rows}, as_json, lambda out: out.print(shown))


@job.command("show")
def show_job(ctx: typer.Context, number: JobId, as_json: Json = False) -> None:
    """Show a job: what was asked, its steps, its report."""
    with session(ctx).open() as ws:
        ws.note_dead_jobs()
        found = ws.ledger.job(number)
        found["behind"] = models_behind(ws.ledger, number)
    plain = [n for n in found if n != "steps"]
    steps = [[s["name"], s["started"], s["finished"]] for s in found["steps"]]
    shown = table(("step", "started", "finished"), steps)
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, plain), shown))


@job.command("resume")
def resume_job(
    ctx: typer.Context,
    number: JobId,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Finish a job that was interrupted."""
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
        showing(f"resume job {number}") as update,
        ended_by_signals(),
    ):
        found = resume(ws, number, fold, update)
        way = cure(ws.ledger, number)
    _emit_job(ctx, number, found, way, as_json)


def _emit_job(
    ctx: typer.Context, number: int, found: dict[str, Any], way: str, as_json: bool
) -> None:
    """Show what became of a job that was taken up again."""
    shown: list[Table | str] = [f"job {number} is {found.get('state', 'done')}"]
    if "verification" in found:
        shown += _batch_tables(found)
    session(ctx).emit(found, as_json, lambda out: out.print(*shown))
    _check_whole(found, way)


@job.command("retry")
def retry_job(
    ctx: typer.Context,
    number: JobId,
    method: Annotated[
        str | None,
        typer.Option(
            help="How regressions update this time; as batch run has it. As then if unset."
        ),
    ] = None,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Take a job's models that are behind once more, and finish the job; exit 3 if one fails again.

    Of a job whose verification failed, the regressions that were not right are trained anew.
    """
    if method is not None and method not in METHODS:
        raise UsageError(f"--method is {method!r}; it is one of {', '.join(METHODS)}")
    with (
        session(ctx).open() as ws,
        open_fold(ws, cluster, workers, memory_limit) as fold,
        showing(f"retry job {number}") as update,
        ended_by_signals(),
    ):
        found = retry(ws, number, fold, update, method)
        way = cure(ws.ledger, number)
    _emit_job(ctx, number, found, way, as_json)


@job.command("cancel")
def cancel_job(ctx: typer.Context, number: JobId, as_json: Json = False) -> None:
    """Stop a deletion job before its commit, from any terminal; its requests go back to the queue."""
    with session(ctx).open() as ws:
        found = cancel(ws, number)
    told = f"job {number} is {found['state']}"
    if found["state"] == CANCELLING:
        told += ": it ends when its present task does"
    elif found["state"] != CANCELLED:
        told += ": it had come to its end before it could be cancelled"
    session(ctx).emit(found, as_json, lambda out: out.print(told))


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
