"""What the command line shares: the session, results to stdout, progress and errors to stderr."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sqlite3 import DatabaseError
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..cluster.errors import ClusterError
from ..storage.errors import StorageError
from .errors import JobError, UsageError
from .workspace import Workspace

if TYPE_CHECKING:
    from distributed import Client

    from .fold import Fold

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Cluster = Annotated[
    str,
    typer.Option(
        help="Where work is done: local processes, a scheduler's address like tcp://HOST:8786, "
        "or inline (in this process).",
    ),
]
Workers = Annotated[int | None, typer.Option(help="Local worker processes; one a core if unset.")]
MemoryLimit = Annotated[str | None, typer.Option(help="Memory a local worker may use, e.g. 1GiB.")]
Seed = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1)]
PLAIN = (JobError, StorageError, ClusterError, OSError, DatabaseError)
"""Errors whose text is for the user; they repeat no subject that was asked for."""
INLINE = "inline"
PIPE_WIDTH = 1000
QUIET_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""
_FILLING = re.compile(" +$", re.MULTILINE)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d+\+00:00")


class Update(Protocol):
    """Shows progress: what is being done, and the share that is done where it is known."""

    def __call__(self, what: str, share: float | None = None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Session:
    """The global options."""

    root: Path
    json: bool
    debug: bool

    def open(self) -> Workspace:
        """Open the workspace that the command works on."""
        return Workspace.open(self.root)

    def emit(
        self, result: Mapping[str, Any], json_flag: bool, show: Callable[[Console], object]
    ) -> None:
        """Print a result: as JSON where asked for, else as ``show`` prints it."""
        if self.json or json_flag:
            sys.stdout.write(json.dumps(result) + "\n")
        else:
            show_plain(show)


def show_plain(show: Callable[[Console], object]) -> None:
    """Print to a terminal; or to a pipe or file, where nothing is cut to a width or filled up to one."""
    if sys.stdout.isatty():
        show(Console())
        return
    text = io.StringIO()
    show(Console(width=PIPE_WIDTH, file=text))
    sys.stdout.write(_FILLING.sub("", text.getvalue()))


def session(ctx: typer.Context) -> Session:
    """Return the session that the main callback set up."""
    found: Session = ctx.obj
    return found


@contextmanager
def open_fold(
    ws: Workspace, cluster: str, workers: int | None, memory_limit: str | None
) -> Iterator[Fold]:
    """Yield a fold on the cluster that the options describe; it starts with its first task."""
    from ..cluster.clients import check_cluster
    from .fold import DaskFold, InlineFold

    if cluster == INLINE:
        yield InlineFold()
        return
    check_cluster(cluster, workers, memory_limit)
    fold = DaskFold(partial(_connect, ws, cluster, workers, memory_limit))
    try:
        yield fold
    finally:
        fold.close()


@contextmanager
def _connect(
    ws: Workspace, cluster: str, workers: int | None, memory_limit: str | None
) -> Iterator[Client]:
    from ..cluster.clients import connect

    with ws.spill_folder() as spill, connect(cluster, workers, memory_limit, spill) as client:
        yield client


@contextmanager
def showing(what: str) -> Iterator[Update]:
    """Show progress on stderr while the block runs; yields a function (what, share or None).

    Without a terminal, as in a log, a line tells every now and then what is being done.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _logging(what)
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(now: str, share: float | None = None) -> None:
            known = {} if share is None else {"total": 1.0, "completed": share}
            bar.update(task, description=f"{what}: {now}", **known)  # type: ignore[arg-type]

        yield update


def _logging(what: str) -> Update:
    """Write a line to stderr where more than QUIET_SECONDS have passed since the start or the last one."""
    started = last = monotonic()

    def update(now: str, share: float | None = None) -> None:
        nonlocal last
        if monotonic() - last < QUIET_SECONDS:
            return
        last = monotonic()
        done = "" if share is None else f", {share:.0%}"
        typer.echo(f"{what}: {now}{done} ({last - started:.0f} s)", err=True)

    return update


def existing(file: Path) -> Path:
    """Return a file that the user named; UsageError if there is none."""
    if not file.exists():
        raise UsageError(f"{file}: there is no such file")
    return file


def check_new(file: Path | None) -> None:
    """UsageError unless a file that the user named can be written anew; None is none."""
    if file is not None and file.exists():
        raise UsageError(f"{file} exists; name a new file")
    if file is not None and not file.parent.is_dir():
        raise UsageError(f"{file}: there is no such folder")


def confirm(question: str, yes: bool) -> None:
    """Ask before something destructive; without a terminal only ``--yes`` will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this deletes data for good; say so with --yes")
    typer.confirm(question, abort=True, err=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a plain table; numbers stand to the right."""
    result = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        result.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(shown(value)) for value in row))
    return result


def shown(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, str) and (time := _TIME.fullmatch(value)):
        return f"{time[1]} {time[2]}Z"
    return "-" if value is None else str(value)


def pairs(values: Mapping[str, Any], names: Sequence[str]) -> Table:
    """Return a two-column table of some of a result's values."""
    result = Table(box=None, show_header=False, pad_edge=False)
    for name in names:
        result.add_row(name.replace("_", " "), Text(shown(values[name])))
    return result
