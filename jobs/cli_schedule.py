"""``expunge batch schedule``."""

from __future__ import annotations

import os
import pwd
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..pipeline.regression import DELTA, METHODS
from .cli_deletion import batch
from .console import (
    Cluster,
    Json,
    MemoryLimit,
    Workers,
    open_fold,
    session,
)
from .cron import Schedule, parse_schedule
from .errors import UsageError
from .schedule import Folds, Keeper, carry_out, serve
from .service_units import MOUNT, check_path, cron_job, crontab, systemd_service
from .workspace import Workspace

UNITS = ("systemd", "cron", "kubernetes")


def register(_: typer.Typer) -> None:
    """Add this command to ``batch``, which the main application has."""
    batch.command("schedule")(schedule)


def schedule(
    ctx: typer.Context,
    cron: Annotated[
        str | None,
        typer.Option(help="When: minute, hour, day, month, weekday; '0 2 * * *' is at two."),
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone of --cron: UTC or a name like Europe/Berlin.")
    ] = "UTC",
    method: Annotated[str, typer.Option(help="How regressions update; as for batch run.")] = DELTA,
    catch_up: Annotated[
        bool,
        typer.Option(
            "--catch-up/--no-catch-up", help="Run once at the start if a due time was missed."
        ),
    ] = True,
    once: Annotated[
        bool,
        typer.Option("--once", help="Do now, once, what is done at a due time; for other timers."),
    ] = False,
    unit: Annotated[
        str | None,
        typer.Option("--print", help=f"Only print a unit: {', '.join(UNITS)}."),
    ] = None,
    image: Annotated[
        str, typer.Option(help="Container image with expunge, for --print kubernetes.")
    ] = "expunge",
    claim: Annotated[
        str | None,
        typer.Option(
            help="Volume claim that holds the workspace, for --print kubernetes; else its folder "
            "on the node."
        ),
    ] = None,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    as_json: Json = False,
) -> None:
    """Run a batch at every due time, in the foreground, until SIGTERM or Ctrl-C.

    Each resumes deletions that were interrupted, then carries out all queued requests.
    """
    if once == (cron is not None):
        raise UsageError("say when by --cron, like --cron '0 2 * * *', or say --once")
    if once and unit is not None:
        raise UsageError("a unit needs due times: give --cron instead of --once")
    if method not in METHODS:
        raise UsageError(f"--method is {method!r}; it is one of {', '.join(METHODS)}")
    here = session(ctx)
    folds = partial(open_fold, cluster=cluster, workers=workers, memory_limit=memory_limit)
    due = None if cron is None else parse_schedule(cron, timezone)
    if due is None:
        with here.open() as ws:
            found = carry_out(ws, _tell, folds, method)
        here.emit(found, as_json, lambda _: None)
    elif unit is None:
        ended = _serve(here.root, due, folds, method, catch_up)
        here.emit(ended, as_json, lambda _: None)
    else:
        options = _options(method, cluster, workers, memory_limit)
        text = _unit(unit, here.root, due, catch_up, options, image, claim)
        here.emit({"unit": unit, "text": text}, as_json, lambda _: sys.stdout.write(text))


def _serve(root: Path, due: Schedule, folds: Folds, method: str, catch_up: bool) -> dict[str, Any]:
    """Keep the schedule until a signal; return how many batches there were."""
    work = partial(carry_out, folds=folds, method=method)
    with Workspace.open(root) as ws, folds(ws):
        pass  # Both are only tried here: nothing stays open between batches.
    keeper = Keeper(root, due, work, _tell)
    with Workspace.scheduling(root, f"scheduler '{due.text}' {due.zone_name}"):
        keeper.begin(catch_up)
        _tell(f"scheduler of '{due.text}' {due.zone_name}; next due {keeper.next_due()}")
        name = serve(keeper)
    _tell("ended")
    return {"batches": keeper.batches, "failed": keeper.failed, "signal": name}


def _tell(line: str) -> None:
    """Write a line of the log."""
    typer.echo(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}", err=True)


def _options(method: str, cluster: str, workers: int | None, memory_limit: str | None) -> list[str]:
    """How batches run, as words of a command."""
    given = {"--method": method, "--cluster": cluster}
    if workers is not None:
        given["--workers"] = str(workers)
    if memory_limit is not None:
        given["--memory-limit"] = memory_limit
    return [word for pair in given.items() for word in pair]


def _unit(
    unit: str,
    root: Path,
    due: Schedule,
    catch_up: bool,
    options: list[str],
    image: str,
    claim: str | None,
) -> str:
    """The text of a unit; nothing is written, and no lock is needed."""
    workspace = Path(os.path.normpath(Workspace.find(root)))
    check_path(workspace)
    schedule = [*_program(), "-w", str(workspace), "batch", "schedule"]
    if unit == "systemd":
        when = ["--cron", due.text, "--timezone", due.zone_name]
        when += [] if catch_up else ["--no-catch-up"]
        user = pwd.getpwuid(os.getuid()).pw_name
        return systemd_service([*schedule, *when, *options], user)
    if unit == "cron":
        return crontab([*schedule, "--once", *options], due)
    if unit != "kubernetes":
        raise UsageError(f"--print is {unit!r}; it is one of {', '.join(UNITS)}")
    command = ["expunge", "-w", MOUNT, "batch", "schedule", "--once", *options]
    return cron_job(command, due, catch_up, image, _volume(workspace, claim))


def _volume(workspace: Path, claim: str | None) -> dict[str, object]:
    """The workspace's volume: a claim, or its folder on the node."""
    if claim is not None:
        return {"persistentVolumeClaim": {"claimName": claim}}
    return {"hostPath": {"path": str(workspace), "type": "Directory"}}


def _program() -> list[str]:
    """The words that start this program, with absolute paths: the command, or the interpreter."""
    python = Path(sys.executable)
    command = python.with_name("expunge")
    if command.is_file() and os.access(command, os.X_OK):
        return [str(command)]
    return [str(python), "-m", "expunge.jobs.cli"]
