"""What is asked of the k-means experiments: settings, series and sets, checked.

Loads neither scikit-learn nor matplotlib, so that other commands don't wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .errors import UsageError
from .experiment_sets import SETS

NAME = "kmeans-table"
BASELINE = "sklearn"
ALGORITHMS = ("k-means", "k-means-none", "q-kmeans", "q-kmeans-none", "dc-kmeans")
PROVENANCE = {
    "k-means": "labels",
    "k-means-none": "none",
    "q-kmeans": "labels",
    "q-kmeans-none": "none",
}
"""What is kept for deletions: labels, for incremental replay, which is the default in memory, or none.
The models are the same."""
SWEEPS = {"sweep-epsilon": "q-kmeans", "sweep-leaves": "dc-kmeans", "sweep-rows": "q-kmeans"}
"""What is swept, and in which algorithm."""
SERIES = (BASELINE, *ALGORITHMS, *SWEEPS)
NAMED_ONLY = tuple(name for name, kept in PROVENANCE.items() if kept == "none")
"""Series that take far longer than the others and run only when they are named."""
MAX_ITER = 10
RETRAINS = 30
"""Retrains of the baseline that are timed, spread evenly over the deletions."""
BASELINE_RUNS = 3
"""Trainings of the baseline at every checkpoint, whose mean loss is what losses are compared with."""
DEFAULT_BUDGET = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What every piece depends on; results of other settings are not gone on with."""

    deletions: int = 1000
    budget: float = DEFAULT_BUDGET
    """Seconds that the deletions of one series may take."""
    rows: int | None = None
    """At most so many rows of every set."""
    seed: int = 0
    workers: int = 1
    """Processes at once: they share the machine's caches and memory, so times depend on it."""

    def check(self) -> None:
        """Raise UsageError for what can't be run."""
        if self.deletions < 1:
            raise UsageError(f"--deletions is {self.deletions}; at least 1 is needed")
        if not 0 < self.budget < float("inf"):
            raise UsageError(f"--budget is {self.budget}; seconds above 0 are needed")
        if self.rows is not None and self.rows < 1:
            raise UsageError(f"--rows is {self.rows}; at least 1 is needed")
        if self.workers < 1:
            raise UsageError(f"--workers is {self.workers}; at least 1 is needed")

    def identity(self) -> dict[str, Any]:
        """Return the settings and the constants that results depend on."""
        return {
            **asdict(self),
            "max_iter": MAX_ITER,
            "retrains": RETRAINS,
            "baseline_runs": BASELINE_RUNS,
            "provenance": "labels, or none",
        }


def piece_name(data: str, series: str, replicate: int) -> str:
    """Return the name under which a series of a replicate is kept."""
    return f"{data}.{series}.{replicate:03d}"


def chosen(what: str, given: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once; UsageError for one that is not known."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise UsageError(f"{what} {name!r} is not known; there are {', '.join(known)}")
    if not names:
        raise UsageError(f"{what} is empty; there are {', '.join(known)}")
    return names


def chosen_sets(given: str) -> tuple[str, ...]:
    """Return the data sets in a comma-separated list."""
    return chosen("--data", given, SETS)


def chosen_series(given: str | None) -> tuple[str, ...]:
    """Return the series in a comma-separated list, ``sweeps`` for all sweeps.

    None: all but NAMED_ONLY.
    """
    if given is None:
        return tuple(name for name in SERIES if name not in NAMED_ONLY)
    names = chosen("--only", given, (*SERIES, "sweeps"))
    wanted = {*names, *(SWEEPS if "sweeps" in names else ())}
    return tuple(name for name in SERIES if name in wanted)
