"""``expunge receipt``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..storage.files import write_new
from .console import Json, check_new, pairs, session, table
from .errors import VerifyError
from .receipt_checks import verify_file
from .receipt_page import page
from .receipts import receipt as read_receipt
from .receipts import receipts
from .requests import parse_units, units_of_subjects
from .signing import make_key

receipt = typer.Typer(no_args_is_help=True, help="Receipts: list, show, verify, keygen.")
_LISTED = ("receipt", "request", "data", "rows", "received", "issued", "key")


def register(app: typer.Typer) -> None:
    """Add these commands to the main application."""
    app.add_typer(receipt, name="receipt")


@receipt.command("list")
def list_receipts(
    ctx: typer.Context,
    data: Annotated[str | None, typer.Option(help="Only those of this data set.")] = None,
    unit: Annotated[str | None, typer.Option(help="Only those of this unit of it.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only those of this subject of it.")] = None,
    as_json: Json = False,
) -> None:
    """List receipts: all, or a data set's, or a unit's."""
    with session(ctx).open() as ws:
        chosen = None if unit is None else int(parse_units([unit], "--unit, id")[0])
        if subject is not None:
            chosen = int(units_of_subjects(ws, data or "", [subject])[0])
        rows = receipts(ws.ledger, data, chosen)
    shown = table(_LISTED, [[r[n] if n != "key" else _short(r[n]) for n in _LISTED] for r in rows])
    session(ctx).emit({"receipts": rows}, as_json, lambda out: out.print(shown))


def _short(key: str | None) -> str:
    return "not signed" if key is None else key[:16]


@receipt.command("show")
def show_receipt(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="ID")],
    html: Annotated[bool, typer.Option("--html", help="As a page to print and file.")] = False,
    out: Annotated[Path | None, typer.Option(help="A new file for it, instead of stdout.")] = None,
    as_json: Json = False,
) -> None:
    """Print a receipt: as JSON, which receipt verify takes, or as one page of HTML."""
    check_new(out)
    with session(ctx).open() as ws:
        found = read_receipt(ws.ledger, name)
    text = page(found) if html else json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if out is not None:
        write_new(out, text.encode())
        result = {"receipt": name, "file": str(out)}
        session(ctx).emit(result, as_json, lambda to: to.print(f"wrote {out}"))
    elif html:
        sys.stdout.write(text)
    else:
        session(ctx).emit(found, as_json, lambda to: to.print_json(data=found))


@receipt.command("verify")
def verify_receipt(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A receipt as receipt show prints it.")],
    public_key: Annotated[Path, typer.Option(help="The public key that receipt keygen named.")],
    as_json: Json = False,
) -> None:
    """Tell whether a receipt was signed with a key and is unchanged; exit 5 if not. Needs no workspace."""
    found = verify_file(file, public_key)
    shown = [name for name in found if found[name] is not None]
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, shown)))
    if not found["valid"]:
        raise VerifyError(f"{file}: {found['problem']}: {found['message']}")


@receipt.command("keygen")
def keygen(
    ctx: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="A new file for the public key, to hand to auditors.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Make another key where there is one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make the workspace's key; receipts that are issued from now on are signed with it."""
    check_new(out)
    with session(ctx).open() as ws:
        made = make_key(ws, replace)
    if out is not None:
        write_new(out, Path(made["public_key"]).read_bytes())
        made["public_key"] = str(out)
    shown = [name for name in made if made[name] is not None]
    session(ctx).emit(made, as_json, lambda to: to.print(pairs(made, shown)))
