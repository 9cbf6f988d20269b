"""``expunge forget | request``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from .console import Json, Seed, pairs, session, shown, table
from .errors import HeldError, UsageError
from .request_life import Chosen, cancel_request, extend_request, list_requests, show_request
from .request_states import STATES, Terms
from .request_times import parse_span
from .requests import (
    all_held,
    forget,
    given_subjects,
    parse_units,
    read_subjects_file,
    read_units_file,
    sampled_units,
    units_of_subjects,
)
from .workspace import Workspace

request = typer.Typer(no_args_is_help=True, help="Requests: list, show, cancel, extend.")
_QUEUED = ("queued", "held", "already_requested", "already_erased", "repeated", "missing", "due")
_LISTED = ("request", "state", "data", "unit", "reference", "received", "due", "overdue")
_HISTORY = ("at", "state", "before", "due", "reason")
NAMED = 5
"""How many requests or holds a line names."""
RequestId = Annotated[
    int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="See request list.")
]
Unit = Annotated[str | None, typer.Option(help="Unit ids, separated by commas.")]
UnitsFile = Annotated[Path | None, typer.Option(help="Unit ids, one a line.")]
Subject = Annotated[
    list[str] | None, typer.Option(help="A subject, as in the imported file; repeatable.")
]
SubjectsFile = Annotated[Path | None, typer.Option(help="Subjects, one a line.")]
Places = dict[int, str] | None


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.command("forget")(forget_)
    app.add_typer(request, name="request")


def forget_(
    ctx: typer.Context,
    data: Annotated[str, typer.Option(help="Data set that holds the units.")],
    unit: Unit = None,
    units_file: UnitsFile = None,
    subject: Subject = None,
    subjects_file: SubjectsFile = None,
    sample: Annotated[
        float | None, typer.Option(help="Share of live units, at random: 0.001 is 0.1%.")
    ] = None,
    seed: Seed = 0,
    missing: Annotated[str, typer.Option(help="Unknown units: error or ignore.")] = "error",
    reference: Annotated[
        str | None, typer.Option(help="Another system's number of the request; not a name.")
    ] = None,
    requester: Annotated[str | None, typer.Option(help="Who asked; not the person.")] = None,
    ground: Annotated[str | None, typer.Option(help='Such as "GDPR Art. 17(1)(b)".')] = None,
    received: Annotated[
        str | None, typer.Option(help="Date or time at which it came; now if unset.")
    ] = None,
    due: Annotated[
        str | None, typer.Option(help="Last day or time; 30 days after it came if unset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Queue deletion requests, one a unit or subject; the next batch carries them out."""
    named = (unit, units_file, subject, subjects_file)
    if sum(given is not None for given in (*named, sample)) != 1:
        raise UsageError(
            "name the units by exactly one of --unit, --units-file, --subject, --subjects-file and "
            "--sample"
        )
    places: Places = None
    with session(ctx).open() as ws:
        if sample is None:
            units, places = named_units(ws, data, *named)
        else:
            units = sampled_units(ws, data, sample, seed)
        terms = Terms(reference, requester, ground, received, due)
        found = forget(ws, data, units, missing, places, terms)
    session(ctx).emit(found, as_json, lambda out: _print_queued(out, found))
    if all_held(found):
        raise HeldError(
            "all that was asked for is under a hold and waits until it ends; expunge hold list shows "
            "holds"
        )


def named_units(
    ws: Workspace,
    data: str,
    unit: str | None,
    units_file: Path | None,
    subject: list[str] | None,
    subjects_file: Path | None,
) -> tuple[NDArray[np.int64], Places]:
    """Return the units that options name (exactly one does), and the places of subjects."""
    if unit is not None:
        return parse_units(unit.split(","), "--unit, id"), None
    if units_file is not None:
        return read_units_file(units_file), None
    if subject is not None:
        named = given_subjects(subject)
    else:
        named = read_subjects_file(subjects_file or Path())
    units = units_of_subjects(ws, data, [text for text, _ in named])
    places = dict(zip(units.tolist(), (place for _, place in named), strict=True))
    return units, places


def _print_queued(out: Console, found: dict[str, Any]) -> None:
    """Counts, the numbers of the new requests, and which were there already."""
    out.print(pairs(found, _QUEUED))
    if made := [new["request"] for new in found["requests"]]:
        # They are given in one transaction, so none is left out between the first and the last.
        out.print(f"request {made[0]}" if len(made) == 1 else f"requests {made[0]} to {made[-1]}")
    for there in found["existing"][:NAMED]:
        out.print(f"there already: request {there['request']}, {there['state']}")
    if (more := len(found["existing"]) - NAMED) > 0:
        out.print(f"and {more:,} more; --json names all")


@request.command("list")
def list_(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help=f"One of {', '.join(STATES)}.")] = None,
    data: Annotated[str | None, typer.Option(help="Only those of this data set.")] = None,
    overdue: Annotated[
        bool, typer.Option("--overdue", help="Only open ones whose time is past.")
    ] = False,
    due_within: Annotated[
        str | None, typer.Option(help="Only open ones due by then or overdue: 12h, 7d, 2w.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Only those asked under this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=2**63 - 1, help="How many to list.")] = 100,
    as_json: Json = False,
) -> None:
    """List requests, open ones first, as they are due; how many there are of each state."""
    span = None if due_within is None else parse_span(due_within, "--due-within")
    with session(ctx).open() as ws:
        found = list_requests(ws, Chosen(state, data, reference, overdue, span), limit)
    session(ctx).emit(found, as_json, lambda out: _print_list(out, found))


def _print_list(out: Console, found: dict[str, Any]) -> None:
    """Counts by state, then a line a request."""
    rows = found["requests"]
    if not rows:
        out.print("there is no such request")
        return
    out.print(pairs(found["counts"], list(found["counts"])))
    held = [[_held_by(row)] for row in rows]
    hold = any(row["holds"] for row in rows)
    heads = (*_LISTED, "held by") if hold else _LISTED
    out.print(
        table(
            heads,
            [
                [*(id_cell(name, row[name]) for name in _LISTED), *(by if hold else ())]
                for row, by in zip(rows, held, strict=True)
            ],
        )
    )
    if (more := found["matching"] - len(rows)) > 0:
        out.print(f"and {more:,} more; --limit says how many are listed")


def id_cell(name: str, value: object) -> object:
    """A value for a table; ids are no numbers, and can be given to commands as they are shown."""
    return str(value) if name in ("request", "unit") and value is not None else value


def _held_by(row: dict[str, Any]) -> str | None:
    """The holds of a request, each with its end."""
    holds = [f"{held['hold']} until {shown(held['until'] or 'lifted')}" for held in row["holds"]]
    return "; ".join(holds) or None


@request.command("show")
def show(ctx: typer.Context, number: RequestId, as_json: Json = False) -> None:
    """Show a request: its terms, state, holds and history."""
    with session(ctx).open() as ws:
        found = show_request(ws, number)
    _emit(ctx, found, as_json)


@request.command("cancel")
def cancel(
    ctx: typer.Context,
    number: RequestId,
    reason: Annotated[str | None, typer.Option(help="Why; kept in the log of events.")] = None,
    as_json: Json = False,
) -> None:
    """Take a request back that is queued or held."""
    with session(ctx).open() as ws:
        found = cancel_request(ws, number, reason)
    _emit(ctx, found, as_json)


@request.command("extend")
def extend(
    ctx: typer.Context,
    number: RequestId,
    until: Annotated[str, typer.Option(help="The new last day or time.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the log of events.")],
    as_json: Json = False,
) -> None:
    """Put off the time by which a request must be done."""
    with session(ctx).open() as ws:
        found = extend_request(ws, number, until, reason)
    _emit(ctx, found, as_json)


def _emit(ctx: typer.Context, found: dict[str, Any], as_json: bool) -> None:
    """Print one request."""
    told = {**found, "held_by": _held_by(found), "other_references": None}
    told["other_references"] = ", ".join(found["other_references"]) or None
    told |= {name: id_cell(name, told[name]) for name in ("request", "unit")}
    names = [n for n in told if n not in ("holds", "history") and told[n] is not None]
    lines = [[line.get(name) for name in _HISTORY] for line in found["history"]]
    history = [table(_HISTORY, lines)] if lines else []
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(told, names), *history))
