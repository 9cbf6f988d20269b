"""``expunge hold``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .cli_requests import Subject, SubjectsFile, Unit, UnitsFile, id_cell, named_units
from .console import Json, pairs, session, table
from .errors import UsageError
from .holds import lift_hold, list_holds, place_hold, show_hold

hold = typer.Typer(no_args_is_help=True, help="Holds on deletion: place, list, show, lift.")
_PLACED = ("hold", "units", "requests_held", "running", "too_late", "repeated", "until")
_LISTED = ("hold", "state", "data", "units", "requests_held", "placed", "until", "ended", "ground")
HoldId = Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="See hold list.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(hold, name="hold")


@hold.command("place")
def place(
    ctx: typer.Context,
    data: Annotated[str, typer.Option(help="Data set that holds the units.")],
    ground: Annotated[str, typer.Option(help="Why; kept for good, and not a name.")],
    unit: Unit = None,
    units_file: UnitsFile = None,
    subject: Subject = None,
    subjects_file: SubjectsFile = None,
    until: Annotated[
        str | None, typer.Option(help="Last day or time; if unset, until it is lifted.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Keep units from deletion; their requests wait, those to come too."""
    ways = (unit, units_file, subject, subjects_file)
    if sum(given is not None for given in ways) != 1:
        raise UsageError(
            "name the units by exactly one of --unit, --units-file, --subject and --subjects-file"
        )
    with session(ctx).open() as ws:
        units, places = named_units(ws, data, *ways)
        found = place_hold(ws, data, units, ground, until, places)
    if found["running"]:
        typer.echo(f"{found['running']} of these units are in a job that runs already", err=True)
    if found["too_late"]:
        typer.echo(f"{found['too_late']} of these units are deleted, or being so", err=True)
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, _PLACED)))


@hold.command("list")
def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List holds, those that are on first."""
    with session(ctx).open() as ws:
        rows = list_holds(ws)
    shown = table(_LISTED, [[row[name] for name in _LISTED] for row in rows])
    session(ctx).emit({"holds": rows}, as_json, lambda out: out.print(shown))


@hold.command("show")
def show(ctx: typer.Context, number: HoldId, as_json: Json = False) -> None:
    """Show a hold with its units and their requests."""
    with session(ctx).open() as ws:
        found = show_hold(ws, number)
    _emit(ctx, found, as_json)


@hold.command("lift")
def lift(ctx: typer.Context, number: HoldId, as_json: Json = False) -> None:
    """End a hold; its requests go back to the queue."""
    with session(ctx).open() as ws:
        found = lift_hold(ws, number)
    _emit(ctx, found, as_json)


def _emit(ctx: typer.Context, found: dict[str, Any], as_json: bool) -> None:
    """Print one hold."""
    heads = ("unit", "unit_hash", "request", "state")
    units = table(
        heads, [[id_cell(name, unit[name]) for name in heads] for unit in found["held_units"]]
    )
    names = [name for name in _LISTED if found[name] is not None]
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, names), units))
