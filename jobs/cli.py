"""The command line: ``expunge``.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 partly
done, 4 held, 5 verification failed, 75 locked, try again.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from sqlite3 import SQLITE_FULL, SQLITE_IOERR, DatabaseError
from typing import Annotated

import typer

from ..cluster.errors import BadClusterError
from ..storage.errors import BadInputError
from .command_table import LazyGroup
from .console import PLAIN, Json, Session, session
from .error_texts import told
from .errors import JobError
from .workspace import Workspace

INTERRUPTED = 130
_INTERRUPTED = (
    "interrupted; expunge job list shows what can be resumed, and an experiment goes on when its "
    "command is given again\n"
)
app = typer.Typer(
    name="expunge",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Delete people from trained models, and from the data behind them.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"expunge {version('expunge')}\n")
        raise typer.Exit()


@app.callback()
def _main(
    ctx: typer.Context,
    workspace: Annotated[
        Path,
        typer.Option("-w", "--workspace", envvar="EXPUNGE_WORKSPACE", help="The workspace folder."),
    ] = Path(),
    as_json: Json = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it, exit."),
    ] = False,
) -> None:
    ctx.obj = Session(workspace, as_json, debug)


@app.command()
def init(
    ctx: typer.Context,
    workspace: Annotated[Path, typer.Argument(help="A folder that is new or empty.")],
    as_json: Json = False,
) -> None:
    """Make a workspace."""
    with Workspace.create(workspace):
        result = {"workspace": str(workspace)}
    session(ctx).emit(result, as_json, lambda out: out.print(f"made workspace {workspace}"))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    debug = "--debug" in arguments
    if sys.stdout is None:
        sys.stdout = io.StringIO()
    try:
        app(args=list(arguments))
    except SystemExit as end:
        if end.code == INTERRUPTED:
            sys.stderr.write(_INTERRUPTED)
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        sys.stderr.write(_INTERRUPTED)
        return INTERRUPTED
    except PLAIN as error:
        if debug:
            traceback.print_exc()
        damaged = _ledgers_fault(error) if isinstance(error, DatabaseError) else ""
        sys.stderr.write(f"error: {damaged}{error}\n")
        if isinstance(error, JobError):
            return error.exit_code
        return 2 if isinstance(error, BadInputError | BadClusterError) else 1
    except Exception as error:  # noqa: BLE001 - a person gets a line, not a traceback
        if debug:
            traceback.print_exc()
        sys.stderr.write(f"error: {told(error)}; --debug shows more\n")
        return 1
    return 0


def _ledgers_fault(error: DatabaseError) -> str:
    """What an error of SQLite means to a user."""
    if error.sqlite_errorcode & 0xFF in (SQLITE_IOERR, SQLITE_FULL):
        return (
            "the ledger can't be read or written, and stands as it was; is the disk full, or the size of "
            "files limited? "
        )
    return "the ledger is damaged: "


def main() -> None:
    """Entry point of the ``expunge`` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
