"""Commands by name, and the group that loads a command's module when the command is given.

Deletion and training import Numba, Dask and more, which takes seconds; a command that needs none of
them, such as those of requests, holds and receipts, ``job list``, and ``--help`` start without. A
module of such commands imports what is heavy inside the command that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is."""

    help: str
    """The first line of its help, as ``expunge --help`` lists it."""
    modules: Sequence[str]
    """The modules that register it; those that add to a group stand after the group's."""


PLACES = {
    "data": Place("Data sets: import, generate, list, show.", ["cli_data"]),
    "train": Place("Train a model on a stored data set.", ["cli_training"]),
    "model": Place("Models: list, show, retire.", ["cli_models"]),
    "predict": Place(
        "Print the cluster, class or value of every row of a file, a line each.", ["cli_training"]
    ),
    "verify": Place(
        "Compare a model with a retrain on the rows that are stored; exit 5 if it is not what it "
        "should.",
        ["cli_training"],
    ),
    "forget": Place(
        "Queue deletion requests, one a unit or subject; the next batch carries them out.",
        ["cli_requests"],
    ),
    "request": Place("Requests: list, show, cancel, extend.", ["cli_requests"]),
    "hold": Place("Holds on deletion: place, list, show, lift.", ["cli_holds"]),
    "batch": Place("Deletion batches.", ["cli_deletion", "cli_schedule"]),
    "job": Place("Jobs: list, show, resume, retry, cancel.", ["cli_jobs"]),
    "receipt": Place("Receipts: list, show, verify, keygen.", ["cli_receipts"]),
    "settings": Place("Show the workspace's settings, or change them.", ["cli_settings"]),
    "scan": Place(
        "Search every byte below the workspace for rows, in every stored encoding; exit 5 if found.",
        ["cli_deletion"],
    ),
    "experiment": Place(
        "The papers' experiments: kmeans-table, priu-single, priu-repeated, and PrIU's largest sets.",
        ["cli_experiment", "cli_extended"],
    ),
    "demo": Place(
        "The whole path on this machine: data, models, a deletion batch, proof.", ["cli_deletion"]
    ),
}


@cache
def load_command(name: str) -> TyperGroup | TyperCommand:
    """Import the modules of a command of PLACES, and return it."""
    whole = typer.Typer()
    for module in PLACES[name].modules:
        import_module(f".{module}", __package__).register(whole)
    found: TyperGroup | TyperCommand = get_group(whole).commands[name]  # type: ignore[assignment]
    return found


class LazyGroup(TyperGroup):
    """The main group; knows of each command of PLACES the name and what the list of help says."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        listed = {name: TyperCommand(name, help=place.help) for name, place in PLACES.items()}
        self.commands = {**self.commands, **listed}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, loaded."""
        return load_command(cmd_name) if cmd_name in PLACES else self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of a group of the same commands that has no need to load them."""
        plain = TyperGroup(
            name=self.name,
            commands=dict(self.commands),
            params=self.params,
            help=self.help,
            rich_markup_mode=self.rich_markup_mode,
        )
        plain.format_help(ctx, formatter)
