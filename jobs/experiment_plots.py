"""Plots of experiments as PNG files: panels of lines with error bars, and grouped bars.

Figures are made without pyplot: nothing of a plot outlives its file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ..storage import files

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#8C564B"),
)
"""Colours that colour-blind readers can tell apart."""
MARKERS = "osD^vPX<>*"
DOTS_PER_INCH = 120
COLUMNS = 3
"""Panels side by side, at most."""


LEAST = 0.9
"""Share of a value that an error bar takes off at most where the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Points:
    """What one line, or one colour of bars, stands for."""

    label: str
    x: Sequence[Any]
    """Numbers of a line; names of bars' groups."""
    y: Sequence[float]
    errors: Sequence[float | None]
    """Standard deviations; None where unknown."""
    number: int
    """Which colour and marker: the same for the same thing in all panels and plots."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A horizontal line to compare with."""

    label: str
    y: float
    number: int | None = None
    """Which colour; None: grey."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One file: its words and axes."""

    title: str
    x_label: str
    y_label: str
    note: str
    """Below the plot: what the reader has to know besides."""
    log_x: bool = False
    log_y: bool = False


def draw_lines(
    path: Path,
    plot: Plot,
    panels: Sequence[tuple[str, Sequence[Points]]],
    references: Sequence[Reference] = (),
) -> None:
    """Draw panels, each with a name and lines with error bars."""
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(6.4, 4.0 * columns), 0.9 + 3.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, (name, lines) in zip(grid.flat, panels, strict=False):
        axes.set_title(name, fontsize="medium")
        for line in lines:
            _line(axes, line, plot.log_y)
        _finish(axes, plot, references)
    _save(figure, plot, path)


def _line(axes: Axes, line: Points, log_y: bool) -> None:
    colour, marker = _look(line.number)
    axes.errorbar(
        line.x,
        line.y,
        yerr=_errors(line, log_y),
        label=line.label,
        color=colour,
        marker=marker,
        markersize=4,
        linewidth=1.2,
        capsize=2,
    )


def draw_bars(
    path: Path, plot: Plot, bars: Sequence[Points], references: Sequence[Reference] = ()
) -> None:
    """Draw groups of bars with error bars and their values; a group is a name in ``x``."""
    groups = list(dict.fromkeys(name for bar in bars for name in bar.x))
    width = 0.8 / len(bars)
    figure = Figure(figsize=(max(6.4, 1.6 * len(groups) + 2.5), 4.4), layout="constrained")
    axes = figure.subplots()
    for number, bar in enumerate(bars):
        places = [groups.index(name) + (number + 0.5) * width - 0.4 for name in bar.x]
        errors = _errors(bar, plot.log_y)
        colour = _look(bar.number)[0]
        drawn = axes.bar(
            places, bar.y, width, yerr=errors, label=bar.label, color=colour, capsize=2
        )
        axes.bar_label(drawn, fmt="{:.3g}", fontsize="x-small", padding=2)
    axes.set_xticks(range(len(groups)), groups)
    _finish(axes, plot, references)
    _save(figure, plot, path)


def _errors(points: Points, log_y: bool) -> tuple[list[float], list[float]]:
    """Lengths of error bars below and above; on a logarithmic axis none reaches down to 0."""
    above = [error or 0.0 for error in points.errors]
    if not log_y:
        return above, above
    return [min(e, LEAST * abs(y)) for e, y in zip(above, points.y, strict=True)], above


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def _finish(axes: Axes, plot: Plot, references: Sequence[Reference]) -> None:
    """Scales, labels, lines to compare with, and the legend."""
    for reference in references:
        colour = "#777777" if reference.number is None else _look(reference.number)[0]
        axes.axhline(reference.y, color=colour, linestyle="--", linewidth=1, label=reference.label)
    if plot.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    if plot.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(True, alpha=0.3)
    axes.margins(y=0.12)


class _Plain(LogFormatter):
    """Says 0.01 and not 10 to the power of -2."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _plain_numbers(axis: Axis) -> None:
    """Let a logarithmic axis say plain numbers; between decades only where there are few."""
    axis.set_major_formatter(_Plain())
    axis.set_minor_formatter(_Plain(minor_thresholds=(1.2, 0.5)))


def _legend(figure: Figure, note: str) -> None:
    """One legend for all panels below them, each label once, with the note above it."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    inches = figure.get_size_inches()[0]
    figure.legend(
        list(named.values()),
        list(named),
        title=fill(note, int(inches * 16)),
        title_fontsize="x-small",
        loc="outside lower center",
        ncols=max(1, int(inches / 2.4)),
        fontsize="small",
        frameon=False,
    )


def _save(figure: Figure, plot: Plot, path: Path) -> None:
    _legend(figure, plot.note)
    figure.suptitle(fill(plot.title, int(figure.get_size_inches()[0] * 10)))
    out = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(out, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    files.write_whole(path, out.getvalue())
