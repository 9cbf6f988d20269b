"""The figures of the regression experiments; figures 1 to 4 are the PrIU paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..pipeline.regression import BASEL, EXACT, NO_PROVENANCE
from .experiment_plots import Plot, Points, Reference, draw_bars, draw_lines
from .experiment_priu_answers import cases
from .experiment_priu_compare import OTHER_BOUND
from .experiment_priu_settings import PROVENANCE, UPDATES
from .experiment_results import Row
from .sparse_store import COEFFICIENTS

_ORDER = [
    (BASEL, NO_PROVENANCE),
    *((method, kind) for method in UPDATES for kind in (*PROVENANCE, COEFFICIENTS, NO_PROVENANCE)),
]
_TIMES = (
    "BaseL: a retrain on the rows left, the faster of a fused loop and BLAS. One thread, medians. "
    "Updates: from the deleted rows in memory to the new parameters."
)
_HOLLOW = "Updates that are too far from BaseL to count are in the table with their distance."
FIGURES = {
    "figure1-linear.png": ("sgemm", "sgemm-extended"),
    "figure2-covtype.png": ("cov-small", "cov-large-1", "cov-large-2"),
    "figure3-others.png": ("higgs", "heartbeat", "rcv1", "cifar10"),
    "figure3-extended.png": ("higgs-extended", "cov-extended", "heartbeat-extended"),
}


def named(row: Row) -> str:
    """A method with its kind, as legends have it."""
    if row["method"] == BASEL:
        return "BaseL (retrain)"
    return row["method"] if row["kind"] == NO_PROVENANCE else f"{row['method']}, {row['kind']}"


def draw_single(folder: Path, updates: Sequence[Row], memory: Sequence[Row]) -> list[str]:
    """Draw the figures of single deletions for which there are numbers; return their names."""
    drawn = []
    for file, sets in FIGURES.items():
        mine = [row for row in updates if row["set"] in sets]
        drawn += _panels(folder / file, _time_plot(), mine, "seconds")
        apart = [row for row in mine if row["method"] != BASEL]
        name = file.replace(".png", "-distance.png")
        bound = [Reference("bound of times that count (but exact)", OTHER_BOUND)]
        drawn += _panels(folder / name, _distance_plot(), apart, "distance_share", bound)
    return drawn + _memory_bars(folder, memory)


def _time_plot() -> Plot:
    return Plot(
        "Time to delete rows from a trained model",
        "share of the training rows that are deleted",
        "seconds",
        f"Lower is better. {_TIMES} {_HOLLOW}",
        log_x=True,
        log_y=True,
    )


def _distance_plot() -> Plot:
    return Plot(
        "How far an updated model is from a retrained one",
        "share of the training rows that are deleted",
        "distance to BaseL /\nchange that BaseL makes",
        "Lower is better; 1 is as far as doing nothing. For exact provenance times count up to 0.005, "
        "and 0.02 beyond a rate of 0.01.",
        log_x=True,
        log_y=True,
    )


def _panels(
    path: Path,
    plot: Plot,
    rows: Sequence[Row],
    value: str,
    references: Sequence[Reference] = (),
    x: str = "rate",
) -> list[str]:
    """Draw a panel a study and a line a method; return the file's name, if there is anything."""
    known = [row for row in rows if row[value] is not None and row[value] > 0]
    panels = [
        (
            f"{mine[0]['set']} ({mine[0]['preset']}, {mine[0]['leaving']} rows)",
            _lines(mine, x, value),
        )
        for mine in cases(known)
    ]
    if not panels:
        return []
    draw_lines(path, plot, panels, references)
    return [path.name]


def _lines(rows: Iterable[Row], x: str, value: str) -> list[Points]:
    """A line a method and kind."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["kind"]), []).append(row)
    return [
        Points(
            named(mine[0]),
            [row[x] for row in mine],
            [row[value] for row in mine],
            [None] * len(mine),
            _number(key),
        )
        for key, mine in sorted(groups.items(), key=lambda one: _ORDER.index(one[0]))
    ]


def _number(key: tuple[str, str]) -> int:
    """Colour and marker, the same in all figures; sparse rows have one kind only."""
    method, kind = key
    key = (method, EXACT) if kind == COEFFICIENTS else key
    return _DRAWN.index(key) if key in _DRAWN else len(_DRAWN)


_DRAWN = [
    (BASEL, NO_PROVENANCE),
    *(("delta", kind) for kind in PROVENANCE),
    ("priu", EXACT),
    ("priu-opt", "frozen"),
    ("priu-opt", NO_PROVENANCE),
    ("closed-form", NO_PROVENANCE),
    ("infl", NO_PROVENANCE),
]


def _memory_bars(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Table 3 as bars: peaks by study and method."""
    if not rows:
        return []
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["kind"]), []).append(row)
    bars = [
        Points(
            named(mine[0]),
            [f"{row['set']}\n{row['preset']}, {row['leaving']}" for row in mine],
            [row["peak_bytes"] / 1e6 for row in mine],
            [None] * len(mine),
            _number(key),
        )
        for key, mine in sorted(groups.items(), key=lambda one: _ORDER.index(one[0]))
    ]
    plot = Plot(
        "Most memory of a process that runs one method",
        "set",
        "MB (VmHWM)",
        "Lower is better. The interpreter and its libraries are part of it: see idle_bytes in "
        "table3.csv. The provenance is on disk: see provenance_bytes.",
    )
    draw_bars(folder / "table3-memory.png", plot, bars)
    return ["table3-memory.png"]


def draw_repeated(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Draw figure 4 and the distances along the way; return the files' names."""
    subsets = "subsets deleted so far"
    total = Plot(
        "Subsets deleted one after another: time until the last model",
        subsets,
        "seconds, all so far",
        f"Lower is better. {_TIMES} Rebasing the provenance for the next subset comes on top: see "
        "repeated.csv.",
        log_y=True,
    )
    apart = Plot(
        "Subsets deleted one after another: distance to a retrained model",
        subsets,
        "distance to BaseL /\nchange that BaseL makes",
        "Lower is better; both since the first training.",
        log_y=True,
    )
    updates = [row for row in rows if row["method"] != BASEL]
    times, distances = folder / "figure4-repeated.png", folder / "figure4-distance.png"
    return [
        *_panels(times, total, rows, "cumulative_seconds", x="step"),
        *_panels(distances, apart, updates, "distance_share", x="step"),
    ]
