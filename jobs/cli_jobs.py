"""``expunge job``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from .batch_tables import batch_tables
from .console import Cluster, Json, MemoryLimit, Workers, open_fold, pairs, session, showing, table
from .errors import PartlyDoneError, UsageError
from .pending import cure, models_behind

job = typer.Typer(no_args_is_help=True, help="Jobs: list, show, resume, retry, cancel.")
JobId = Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="See job list.")]
CANCELLING = "cancelling"


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(job, name="job")


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
    from .cancelling import ended_by_signals
    from .resuming import resume

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
        shown += batch_tables(found)
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
    from ..pipeline.regression import METHODS
    from .cancelling import ended_by_signals
    from .retrying import retry

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
    from .cancelling import CANCELLED, cancel

    with session(ctx).open() as ws:
        found = cancel(ws, number)
    told = f"job {number} is {found['state']}"
    if found["state"] == CANCELLING:
        told += ": it ends when its present task does"
    elif found["state"] != CANCELLED:
        told += ": it had come to its end before it could be cancelled"
    session(ctx).emit(found, as_json, lambda out: out.print(told))


def _check_whole(found: dict[str, Any], way: str | None) -> None:
    """PartlyDoneError where models are behind, with what went wrong and the ways to go on."""
    late = found.get("behind", [])
    if late:
        failed = "; ".join(f"model {m['model']}: {m['error']}: {m['problem']}" for m in late)
        raise PartlyDoneError(
            f"job {found['job']} is partly done: {failed}; the rows are not erased yet and no receipt "
            f"is issued; {way}"
        )
