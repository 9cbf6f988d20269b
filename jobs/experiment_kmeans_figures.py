"""The figures of the k-means experiments; figures 1 to 6 are the k-means paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .experiment_plots import Plot, Points, Reference, draw_bars, draw_lines
from .experiment_results import Row
from .experiment_sets import COMPLETE
from .experiment_settings import ALGORITHMS, BASELINE
from .experiment_tables import Tables

LABELS = {
    BASELINE: "scikit-learn, retrained each time",
    "k-means": "k-means",
    "q-kmeans": "Q-k-means",
    "dc-kmeans": "DC-k-means",
    "k-means-none": "k-means without labels",
    "q-kmeans-none": "Q-k-means without labels",
}
ORDER = list(LABELS)
_DEVIATIONS = "Error bars: standard deviation over replicates."
_EXTRAPOLATED = "Where deletions did not all run, the rest is extrapolated: see series.csv."
_BASELINE = (
    "scikit-learn: k-means++, Lloyd, n_init=1, tol=0, the same number of iterations and threads."
)


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Where figures go, and what they are drawn from."""

    folder: Path
    tables: Tables
    remark: str
    """Which sets are not the paper's own; stands below every figure."""

    def lines(
        self,
        file: str,
        plot: Plot,
        panels: Sequence[tuple[str, Sequence[Points]]],
        references: Sequence[Reference] = (),
    ) -> str:
        """Draw panels of lines; return the file's name, empty where there is nothing to draw."""
        if not panels:
            return ""
        draw_lines(self.folder / file, self._remarked(plot), panels, references)
        return file

    def bars(
        self,
        file: str,
        plot: Plot,
        rows: Sequence[Row],
        value: str,
        references: Sequence[Reference],
    ) -> str:
        """Draw a bar for every data set and algorithm whose value is known; as ``lines``."""
        known = [row for row in rows if row[value] is not None]
        bars = [
            _points([row for row in known if row["algorithm"] == name], value, name, x="data")
            for name in ALGORITHMS
            if any(row["algorithm"] == name for row in known)
        ]
        if not bars:
            return ""
        draw_bars(self.folder / file, self._remarked(plot), bars, references)
        return file

    def _remarked(self, plot: Plot) -> Plot:
        return replace(plot, note=f"{plot.note} {self.remark}".strip())


def _remark(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """Which sets are partial or stand-ins."""
    states = {name: facts["note"].partition(":")[0] for name, facts in sets.items()}
    others = [f"{name}: {state}" for name, state in states.items() if state != COMPLETE]
    return f"Not the paper's rows: {', '.join(others)}." if others else ""


def draw_figures(
    folder: Path,
    tables: Tables,
    loss_limits: Sequence[tuple[str, float]],
    sets: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Draw every figure for which there are numbers; return their files' names.

    loss_limits: algorithms and the loss ratios that they are to stay below.
    """
    sheet = _Sheet(folder, tables, _remark(sets))
    drawn = [
        _runtime(sheet),
        _rate(sheet),
        *(_loss_sweep(sheet, sweep) for sweep in ("sweep-epsilon", "sweep-leaves")),
        *(_time_sweep(sheet, sweep) for sweep in ("sweep-epsilon", "sweep-leaves")),
        _loss_bars(sheet, loss_limits),
        _speedup_bars(sheet),
    ]
    return [name for name in drawn if name]


def _runtime(sheet: _Sheet) -> str:
    """Figure 1: amortised runtime against the number of deletions, a panel a data set."""
    rows = sheet.tables.mean_curves
    panels = [
        (
            data,
            [
                _points(
                    [row for row in mine if row["algorithm"] == name], "amortised_seconds", name
                )
                for name in dict.fromkeys(row["algorithm"] for row in mine)
            ],
        )
        for data, mine in _by_data(rows)
    ]
    plot = Plot(
        "Time per deletion when rows are deleted one at a time, with the first training shared out",
        "number of deletions m",
        "seconds per deletion\n(training once + m deletions) / m",
        f"Lower is better. {_BASELINE} {_DEVIATIONS} {_EXTRAPOLATED}",
        log_x=True,
        log_y=True,
    )
    return sheet.lines("figure1-runtime.png", plot, panels)


def _rate(sheet: _Sheet) -> str:
    """Figure 2: how many deletions change Q-k-means."""
    rows = [row for row in sheet.tables.mean_curves if row["algorithm"] == "q-kmeans"]
    lines = [
        _points(mine, "changed_rate", data, number)
        for number, (data, mine) in enumerate(_by_data(rows))
    ]
    plot = Plot(
        "Q-k-means: share of the deletions that change the model",
        "number of deletions m",
        "changed models / m",
        "The others leave every centroid as it is and read no row but the deleted one. In a changed "
        "model the steps from the first that differs on are replayed, or trained anew. "
        f"{_DEVIATIONS} {_EXTRAPOLATED}",
        log_x=True,
    )
    return sheet.lines("figure2-retrain-rate.png", plot, [("", lines)] if lines else [])


SWEPT = {
    "sweep-epsilon": ("Q-k-means", "lattice spacing epsilon (of scaled features)", 3, 5),
    "sweep-leaves": ("DC-k-means", "number of leaves w", 4, 6),
}
"""Algorithm, axis, and the paper's figures of loss and of runtime."""


def _loss_sweep(sheet: _Sheet, sweep: str) -> str:
    """Figures 3 and 4: the loss ratio against what is swept."""
    name, axis, figure, _ = SWEPT[sweep]
    rows = [
        r for r in sheet.tables.mean_sweeps if r["sweep"] == sweep and r["loss_ratio"] is not None
    ]
    lines = [
        _points(mine, "loss_ratio", data, number, "value")
        for number, (data, mine) in enumerate(_by_data(rows))
    ]
    plot = Plot(
        f"{name}: loss compared with plain k-means, before deletions",
        axis,
        "loss / scikit-learn's loss",
        f"1 is as good as scikit-learn's k-means on the same rows, above is worse. {_DEVIATIONS}",
        log_x=True,
    )
    file = f"figure{figure}-loss.png"
    references = [Reference("as good as scikit-learn", 1.0)]
    return sheet.lines(file, plot, [("", lines)] if lines else [], references)


def _time_sweep(sheet: _Sheet, sweep: str) -> str:
    """Figures 5 and 6: the amortised runtime against what is swept."""
    name, axis, _, figure = SWEPT[sweep]
    rows = [
        r
        for r in sheet.tables.mean_sweeps
        if r["sweep"] == sweep and r["amortised_seconds"] is not None
    ]
    panels = []
    for data, mine in _by_data(rows):
        lines = [
            Points(
                label,
                [row["value"] for row in mine],
                [row[value] for row in mine],
                [row[f"{value}_deviation"] for row in mine],
                number,
            )
            for number, (label, value) in enumerate(
                (
                    ("with the first training shared out", "amortised_seconds"),
                    ("deletions alone", "seconds_per_deletion"),
                )
            )
        ]
        panels.append((data, lines))
    plot = Plot(
        f"{name}: time per deletion",
        axis,
        "seconds per deletion",
        f"Lower is better. From up to 100 deletions at every value. {_DEVIATIONS}",
        log_x=True,
        log_y=True,
    )
    return sheet.lines(f"figure{figure}-runtime.png", plot, panels)


def _loss_bars(sheet: _Sheet, limits: Sequence[tuple[str, float]]) -> str:
    """The loss ratios after all deletions."""
    last = max((row["deletions"] for row in sheet.tables.mean_quality), default=0)
    rows = [
        row
        for row in sheet.tables.mean_quality
        if row["deletions"] == last and row["algorithm"] in ALGORITHMS
    ]
    plot = Plot(
        f"Loss compared with plain k-means, after {last:,} deletions",
        "data set",
        "loss / scikit-learn's loss",
        f"1 is as good as scikit-learn's k-means on the same rows, above is worse. {_DEVIATIONS}",
    )
    references = [
        Reference(
            f"the paper's worst + deviation, {LABELS[name]}: {limit}", limit, ORDER.index(name)
        )
        for name, limit in limits
    ]
    return sheet.bars("loss-ratio.png", plot, rows, "loss_ratio", references)


def _speedup_bars(sheet: _Sheet) -> str:
    """The speed-ups against scikit-learn's retrain."""
    rows = [row for row in sheet.tables.mean_series if row["algorithm"] in ALGORITHMS]
    plot = Plot(
        "How many times as fast as retraining with scikit-learn after each deletion",
        "data set",
        "scikit-learn's time / ours,\nboth with the first training shared out",
        f"Higher is better. {_BASELINE} {_DEVIATIONS} {_EXTRAPOLATED}",
        log_y=True,
    )
    even = [Reference("as fast as a retrain", 1.0)]
    return sheet.bars("speedup.png", plot, rows, "speedup_amortised", even)


def _points(
    rows: Sequence[Row], value: str, name: str, number: int | None = None, x: str = "deletions"
) -> Points:
    """A line or colour of one value with its deviations."""
    return Points(
        LABELS.get(name, name),
        [row[x] for row in rows],
        [row[value] for row in rows],
        [row[f"{value}_deviation"] for row in rows],
        ORDER.index(name) if number is None else number,
    )


def _by_data(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by data set, in order of appearance."""
    names = dict.fromkeys(row["data"] for row in rows)
    return [(name, [row for row in rows if row["data"] == name]) for name in names]
