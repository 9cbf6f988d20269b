"""Tables, plot, README.md and summary.json of an extended experiment, from its pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..pipeline.regression import BASEL
from .console import table
from .experiment_extended_settings import ExtendedAsked, ExtendedSettings, facts_piece
from .experiment_extended_tables import (
    COLUMNS,
    extended_medians,
    extended_not_applicable,
    extended_rows,
)
from .experiment_plots import Plot, Points, draw_lines
from .experiment_priu_answers import text_of
from .experiment_priu_paper import ANSWERS, QUESTIONS, paper_numbers
from .experiment_priu_report import written_report
from .experiment_results import Pieces, Row

PLOT = "extended.png"
MEASURING = {
    "regressions": "in one process of one thread on one core. An update runs from the deleted rows in "
    "memory to the new parameters and reads the provenance from disk; gathering, rebasing and syncing "
    "stand beside",
    "basel": "trains on the rows left, with the same mini-batches less the deleted rows, out of core and "
    "read ahead, by the faster of a fused loop and BLAS, which a few iterations of each decide; once a "
    "subset, in the same process, right before its updates",
    "k-means family": "on the cluster that was asked for. An update runs from the deleted rows in memory "
    "to the next version on disk, synced; the retrain is the first fit on the same stored rows less the "
    "subset, nothing written, right after it on the same cluster. Subsets always leave the first model: "
    "deletions are exact, so a sequence would end in the same bits",
    "peak_bytes": "VmHWM, forgotten before each step, of the driver and of the largest worker; the "
    "interpreter and its libraries are part of it",
    "bytes": "counted where files are opened, in the driver and in all workers",
    "commits": "none: data sets and models are made by the usual jobs below work/, and deletions are "
    "planned, gathered and updated, never committed or erased",
}


def report_extended(
    pieces: Pieces, settings: ExtendedSettings, asked: ExtendedAsked, unfinished: Sequence[str]
) -> dict[str, Any]:
    """Write everything about an extended experiment; return the summary, with the ``folder``."""
    facts = pieces.find(facts_piece(asked)) or {"data": {"note": ""}, "models": {}, "left_out": {}}
    rows = extended_rows(pieces, settings, asked, facts)
    medians = extended_medians(rows)
    lacking = extended_not_applicable(pieces, settings, asked, facts)
    environments = [
        found["environment"] for name in pieces.names() if (found := pieces.whole(name))
    ]
    summary = {
        "experiment": asked.data_set,
        "settings": dict(pieces.settings),
        "environments": [e for i, e in enumerate(environments) if e not in environments[:i]],
        "measuring": MEASURING,
        "sets": {asked.data_set: facts["data"]["note"]},
        "missing": {},
        "unfinished": list(unfinished),
        "paper": paper_numbers(),
        "answers": {"Q2": _answer(medians)},
        "data": facts["data"],
        "models": facts["models"],
        "rows": [_whole(row) for row in rows],
        "medians": medians,
    }
    tables = {"extended": rows, "medians": medians, "not_applicable": lacking}
    figures = _draw(pieces.root, rows)
    return written_report(pieces.root, summary, COLUMNS, tables, figures)


def _whole(row: Row) -> dict[str, Any]:
    """A row with all columns."""
    return {name: row.get(name) for name in COLUMNS["extended"]}


def _answer(medians: Sequence[Row]) -> dict[str, Any]:
    """What the medians say to Q2, a method a sentence."""
    parts = [
        f"{row['method']} {row['kind']}{_preset(row)}: {text_of(row['update_seconds'])} s beside "
        f"{text_of(row['basel_seconds'])} s ({text_of(row['ratio'])} times), "
        f"{text_of(row['distance_share'])} of the change apart" + ("" if row["counts"] else _NOT)
        for row in medians
        if row["method"] != BASEL
    ]
    return {
        "question": QUESTIONS["Q2"],
        "answer": "; ".join(parts) + "." if parts else "Nothing was measured yet.",
        "numbers": list(medians),
        "paper": ANSWERS["Q2"],
    }


_NOT = " (too far, or not compared: does not count)"


def _preset(row: Row) -> str:
    return f" ({row['preset']})" if row["preset"] else ""


def _draw(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Seconds of every update and retrain by subset: regressions by preset, then the k-means family."""
    presets = list(dict.fromkeys(row["preset"] for row in rows))
    panels: list[tuple[str, list[Points]]] = []
    for preset in presets:
        mine = [row for row in rows if row["preset"] == preset]
        name = f"{mine[0]['set']}, {preset or 'k-means family'}"
        drawn = sum(len(lines) for _, lines in panels)
        panels.append((name, _lines(mine, "" if preset else ", retrain", drawn)))
    if not panels:
        return []
    plot = Plot(
        "A subset of the rows leaves trained models: time of the update, and of a retrain",
        "number of the subset",
        "seconds",
        "Lower is better. Regressions: one thread on one core, from the deleted rows in memory to the new "
        "parameters; k-means family: all workers, to the next version on disk.",
        log_y=True,
    )
    draw_lines(folder / PLOT, plot, panels)
    return [PLOT]


def _lines(rows: Sequence[Row], retrain: str, drawn: int) -> list[Points]:
    """A line a method; retrain: ends the name of one more line a method, for its retrain.

    drawn: lines that other panels have: these get colours of their own.
    """
    groups: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        name = "BaseL (retrain)" if row["method"] == BASEL else f"{row['method']}, {row['kind']}"
        groups.setdefault(name, []).append((row["subset"], row["update_seconds"]))
        if retrain and row["basel"] == "measured":
            point = (row["subset"], row["basel_seconds"])
            groups.setdefault(row["method"] + retrain, []).append(point)
    return [
        Points(name, [x for x, _ in points], [y for _, y in points], [None] * len(points), number)
        for number, (name, points) in enumerate(groups.items(), drawn)
    ]


def show_extended(out: Console, result: Mapping[str, Any]) -> None:
    """Print the medians, what the rows are, and where the files are."""
    columns = (
        *("preset", "method", "kind", "subsets", "update_seconds", "basel_seconds", "ratio"),
        *("rebase_seconds", "distance_share", "counts", "peak_bytes", "paper_seconds"),
    )
    out.print(table(columns, [[row[c] for c in columns] for row in result["medians"]]))
    for name, note in result["sets"].items():
        out.print(f"{name}: {note}")
    for name in result["unfinished"]:
        out.print(f"unfinished: {name}")
    out.print(f"tables, plot and summary.json are in {result['folder']}")
