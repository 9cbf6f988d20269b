"""``expunge settings``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .console import Json, pairs, session
from .verification_records import SETTING, WAYS, set_verify, verify_setting


def register(app: typer.Typer) -> None:
    """Add this command to the main application."""
    app.command("settings")(settings)


def settings(
    ctx: typer.Context,
    verify: Annotated[
        str | None,
        typer.Option(
            help=f"How deletion jobs are verified before their receipts: {', '.join(WAYS)}. sample and "
            "retrain compare one model or all with a retrain, scan searches every byte for the rows."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the workspace's settings, or change them."""
    with session(ctx).open() as ws:
        if verify is not None:
            set_verify(ws, verify)
        found: dict[str, Any] = {SETTING: verify_setting(ws)}
    session(ctx).emit(found, as_json, lambda out: out.print(pairs(found, list(found))))
