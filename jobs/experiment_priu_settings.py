"""What is asked of the regression experiments: settings and pieces, checked.

Loads neither SciPy's solvers nor matplotlib, so that other commands don't wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..pipeline.regression import BASEL, KINDS, METHODS, NO_PROVENANCE
from .errors import UsageError
from .experiment_priu_sets import PRESETS, SETS
from .experiment_settings import chosen

SINGLE, REPEATED = "priu-single", "priu-repeated"
DIRTY, RANDOM = "dirty", "random"
UPDATES = tuple(name for name in METHODS if name != BASEL)
"""Methods that are compared with BaseL."""
PROVENANCE = tuple(name for name in KINDS if name != NO_PROVENANCE)
DEFAULT_SETS = "sgemm,higgs"
DEFAULT_REPEATED = "higgs-extended"
DEFAULT_RATES = "0.0001,0.001,0.01,0.2"
DEFAULT_ROWS = 50_000
RATE_DIGITS = 6
"""Pieces of different rates are told apart by so many digits after the point."""
VALIDATION = 0.1
"""Share of the rows that validate, as in the paper."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every piece depends on; results of other settings are not gone on with."""

    rows: int | None = DEFAULT_ROWS
    """At most so many rows of every set; None: all."""
    seed: int = 0
    repeats: int = 3
    """How often everything is timed; medians count."""
    kinds: tuple[str, ...] = PROVENANCE
    methods: tuple[str, ...] = UPDATES
    memory: int | None = None
    """Bytes that an update may use; as ``train`` takes it."""
    disk: int | None = None
    """Bytes that the provenance of one model may use."""
    generate: bool = False
    """Whether rows are generated even where there is a file."""
    dirty_scale: float = 10.0
    """What the features of dirty rows are multiplied with."""
    rate: float = 0.001
    """Share of the training rows in each subset of repeated deletions."""
    subsets: int = 10
    sequential: bool = True
    """Whether a subset leaves what the last one left; else each leaves the first models."""

    def check(self) -> None:
        """Raise UsageError for what can't be run."""
        if self.rows is not None and self.rows < 100:
            raise UsageError(f"--rows is {self.rows}; at least 100 are needed")
        if self.repeats < 1:
            raise UsageError(f"--repeats is {self.repeats}; at least 1 is needed")
        if not 0.0 < abs(self.dirty_scale) < float("inf"):
            raise UsageError(f"--dirty-scale is {self.dirty_scale}; a number but 0 is needed")
        if self.subsets < 1:
            raise UsageError(f"--subsets is {self.subsets}; at least 1 is needed")
        if not 0.0 < self.rate * self.subsets < 1.0:
            raise UsageError(
                f"{self.subsets} subsets of {self.rate} are not a share between 0 and 1 of the rows"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        found = {**asdict(self), "validation": VALIDATION}
        if self.sequential:
            # As it always was: folders from before there was a choice can be gone on with.
            del found["sequential"]
        return {**found, "kinds": list(self.kinds), "methods": list(self.methods)}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which pieces are wanted: they may be asked for bit by bit, into the same folder."""

    data_dir: Path
    sets: tuple[str, ...]
    presets: tuple[str, ...]
    leaving: str = RANDOM
    """Which rows leave: DIRTY or RANDOM."""
    rates: tuple[float, ...] = ()
    keep: bool = False
    """Whether the workspaces stay when they are done with."""


@dataclass(frozen=True, slots=True)
class Study:
    """One setting of Table 2 on one version of its rows: a workspace with a model a kind."""

    data_set: str
    """One of SETS."""
    preset: str
    leaving: str
    rates: tuple[float, ...]
    """One for dirty rows, which are others at each rate."""

    @property
    def name(self) -> str:
        """The name of its folder, and how its pieces' names begin."""
        return f"{self.data_set}.{self.preset}.{self.leaving}"

    @property
    def folder(self) -> str:
        """The name of its own folder."""
        rate = f".{self.rates[0]:g}" if self.leaving == DIRTY else ""
        return self.name + rate

    def piece(self, rate: float) -> str:
        """The piece with all times and distances at a rate."""
        return f"{self.name}.{rate:.{RATE_DIGITS}f}"

    def memory_piece(self, method: str, kind: str) -> str:
        """The piece with one method's memory."""
        return f"{self.name}.memory.{method}.{kind}"

    @property
    def repeated_piece(self) -> str:
        """The piece with all subsets of repeated deletions."""
        return f"{self.name}.repeated"


def studies(asked: Asked) -> list[Study]:
    """Return the studies that are asked for, the sets in the order in which they were given."""
    found = [
        Study(name, preset, asked.leaving, asked.rates)
        for name in asked.sets
        for preset in asked.presets
    ]
    if asked.leaving == RANDOM:
        return found
    return [replace(study, rates=(rate,)) for study in found for rate in asked.rates]


def chosen_sets(given: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list of Table 2's settings."""
    return chosen("--set", given, tuple(SETS))


def chosen_presets(given: str) -> tuple[str, ...]:
    """Return the presets in a comma-separated list."""
    return chosen("--preset", given, PRESETS)


def chosen_names(option: str, given: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds or methods in a comma-separated list, in their own order; None: all."""
    if given is None:
        return tuple(known)
    names = chosen(option, given, known)
    return tuple(name for name in known if name in names)


def chosen_rates(given: str) -> tuple[float, ...]:
    """Return the deletion rates in a comma-separated list, ascending; UsageError for others."""
    try:
        found = [float(text) for text in given.split(",") if text.strip()]
    except ValueError:
        raise UsageError(f"--rates {given!r}: give numbers by commas, like 0.001,0.01") from None
    if not found or not all(1e-6 <= rate < 1.0 for rate in found):
        raise UsageError(f"--rates {given!r}: shares from 0.000001 on and below 1 are needed")
    if any(rate != round(rate, RATE_DIGITS) for rate in found):
        raise UsageError(f"--rates {given!r}: give at most {RATE_DIGITS} digits after the point")
    return tuple(sorted(set(found)))
