"""What is asked of the extended experiments: PrIU's largest sets, out of core, checked.

Loads neither SciPy's solvers nor matplotlib, so that other commands don't wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pipeline.regression import DELTA, PRIU, PRIU_OPT
from .errors import UsageError
from .experiment_priu_sets import EXTENDED
from .experiment_priu_settings import RANDOM, Settings, Study
from .experiment_settings import chosen

PLANNED = "planned"
"""Stands for the one kind of provenance that the planner takes."""
DEFAULT_METHODS = f"{DELTA},{PRIU},{PRIU_OPT}"
ALGORITHMS = ("k-means", "q-kmeans", "dc-kmeans")
DEFAULT_ALGORITHMS = ",".join(ALGORITHMS)
DEFAULT_CLUSTERS = 10
NO_ALGORITHM = "none"
HIGGS = EXTENDED[0]
"""The set whose rows may come from a file."""


@dataclass(frozen=True, slots=True)
class ExtendedSettings:
    """What every piece depends on; results of other settings are not gone on with."""

    regression: Settings
    """Its ``kinds`` are empty where the planner is to choose."""
    clusters: int = DEFAULT_CLUSTERS
    labels: bool = False
    """Whether k-means and Q-k-means keep labels and margins."""
    file: Path | None = None
    """Import these rows instead of generating some."""
    copies: int = 1

    def check(self) -> None:
        """Raise UsageError for what can't be run."""
        self.regression.check()
        if self.clusters < 1:
            raise UsageError(f"--clusters is {self.clusters}; at least 1 is needed")
        if self.copies < 1:
            raise UsageError(f"--copies is {self.copies}; at least 1 is needed")
        if self.copies > 1 and self.file is None:
            raise UsageError("--copies are of the rows of a file: name it with --file")
        if self.file is not None and not self.file.is_file():
            raise UsageError(f"{self.file}: there is no such file")

    def identity(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        found = self.regression.identity()
        del found["dirty_scale"]
        return {
            **found,
            "kinds": list(self.regression.kinds) or [PLANNED],
            "sequential": self.sequential,
            "clusters": self.clusters,
            "labels": self.labels,
            "file": None if self.file is None else str(self.file.absolute()),
            "copies": self.copies,
        }

    @property
    def sequential(self) -> bool:
        """Whether a subset leaves what the last one left; else each leaves the first models."""
        return self.regression.sequential

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of provenance that there is a regression of."""
        return self.regression.kinds or (PLANNED,)


@dataclass(frozen=True, slots=True)
class ExtendedAsked:
    """Which pieces are wanted: they may be asked for bit by bit, into the same folder."""

    data_set: str
    """One of EXTENDED."""
    presets: tuple[str, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    """Of the k-means family."""
    basel_subsets: int | None = None
    """How many subsets are retrained without, the first ones; None: all."""
    keep: bool = False
    """Whether the workspace stays when it is done with."""

    @property
    def study(self) -> Study:
        """What the rows, and those that leave, are drawn for: the same for all presets."""
        return Study(self.data_set, "extended", RANDOM, ())

    def retrained(self, subsets: int) -> int:
        """How many of so many subsets are retrained without."""
        return subsets if self.basel_subsets is None else min(subsets, self.basel_subsets)


def regression_name(preset: str, kind: str) -> str:
    """The name of the model of a preset with a kind of provenance."""
    return f"{preset}.{kind}"


def basel_piece(asked: ExtendedAsked, preset: str, subset: int) -> str:
    """The piece with a retrain of the regression on the rows left."""
    return f"{asked.data_set}.{preset}.basel.{subset:03d}"


def update_piece(asked: ExtendedAsked, preset: str, subset: int) -> str:
    """The piece with all updates of a preset's regressions."""
    return f"{asked.data_set}.{preset}.update.{subset:03d}"


def side_piece(asked: ExtendedAsked, preset: str) -> str:
    """The piece that says which side of BaseL is faster."""
    return f"{asked.data_set}.{preset}.side"


def cluster_piece(asked: ExtendedAsked, algorithm: str, what: str, subset: int) -> str:
    """The piece with an ``update`` or a ``retrain`` of a model of the k-means family."""
    return f"{asked.data_set}.{algorithm}.{what}.{subset:03d}"


def facts_piece(asked: ExtendedAsked) -> str:
    """The piece with what the rows and the models are."""
    return f"{asked.data_set}.facts"


def chosen_algorithms(given: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list of the k-means family; ``none``: none of it."""
    return () if given == NO_ALGORITHM else chosen("--clusterings", given, ALGORITHMS)
