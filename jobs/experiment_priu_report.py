"""Tables, figures, README.md and summary.json of the regression experiments, from their pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..storage import files
from .console import table
from .experiment_priu_answers import answers
from .experiment_priu_figures import draw_repeated, draw_single
from .experiment_priu_paper import paper_numbers
from .experiment_priu_repeat_tables import COLUMNS as REPEATED_COLUMNS
from .experiment_priu_repeat_tables import repeated_answer, repeated_rows, repeated_totals
from .experiment_priu_settings import REPEATED, SINGLE
from .experiment_priu_tables import (
    COLUMNS,
    Found,
    collect,
    make_tables,
    not_applicable,
    set_facts,
)
from .experiment_results import Pieces, Row, write_json, write_table

FILES = (
    "summary.json has settings, versions, answers and their numbers. pieces/ has one file a "
    "measurement: everything else is computed from them."
)
MEASURING = {
    "seconds": "from the deleted rows in memory to the new parameters; the provenance is read from disk. "
    "Gathering, rebasing and syncing stand beside",
    "basel": "trains on the rows left, with the same mini-batches less the deleted rows, out of core and "
    "read ahead, by the faster of a fused loop and BLAS; in the same process, alternating with the updates",
    "medians": "of the repeats in the settings, after one warm-up, on one core, with one thread in every "
    "library",
    "distance": "of the parameters for standardised features, to BaseL of the same run; as a share of the "
    "change that BaseL makes. Times of rows beyond `bound` do not count",
    "memory": "VmHWM of a process that runs one method once, at the highest rate",
    "standardised": "features are standardised with statistics of the training rows, dirty ones included, "
    "so that distances and accuracies are not on the paper's scale",
    "commits": "none: data sets and models are made by the usual jobs below work/, and deletions are "
    "planned, gathered and updated, never committed or erased",
}


def report_single(
    pieces: Pieces, missing: Mapping[str, str], unfinished: Sequence[str]
) -> dict[str, Any]:
    """Write everything about single deletions; return the summary, with the ``folder``."""
    found = collect(pieces)
    tables = make_tables(found)
    rows = {name: getattr(tables, name) for name in COLUMNS}
    figures = draw_single(pieces.root, tables.updates, tables.table3)
    summary = {
        **_head(SINGLE, pieces, found, missing, unfinished),
        "answers": answers(tables),
        "beyond_bound": [
            {name: row[name] for name in _BEYOND} for row in tables.updates if not row["counts"]
        ],
    }
    return written_report(pieces.root, summary, COLUMNS, rows, figures)


_BEYOND = ("set", "preset", "leaving", "rate", "method", "kind", "distance_share", "bound")


def report_repeated(
    pieces: Pieces, missing: Mapping[str, str], unfinished: Sequence[str]
) -> dict[str, Any]:
    """Write everything about repeated deletions; return the summary, with the ``folder``."""
    found = collect(pieces)
    rows = repeated_rows(found.measured)
    totals = repeated_totals(rows)
    figures = draw_repeated(pieces.root, rows)
    lacking = [row for one in found.measured for row in not_applicable(one)]
    summary = {
        **_head(REPEATED, pieces, found, missing, unfinished),
        "answers": {"Q2": repeated_answer(totals)},
        "totals": totals,
    }
    tables = {
        "repeated": rows,
        "table1": set_facts(found.measured),
        "not_applicable": lacking,
    }
    return written_report(pieces.root, summary, REPEATED_COLUMNS, tables, figures)


def _head(
    experiment: str,
    pieces: Pieces,
    found: Found,
    missing: Mapping[str, str],
    unfinished: Sequence[str],
) -> dict[str, Any]:
    """What both summaries begin with."""
    return {
        "experiment": experiment,
        "settings": dict(pieces.settings),
        "environments": found.environments,
        "measuring": MEASURING,
        "sets": {row["set"]: row["note"] for row in set_facts(found.measured)},
        "missing": dict(missing),
        "unfinished": list(unfinished),
        "paper": paper_numbers(),
    }


def written_report(
    root: Path,
    summary: dict[str, Any],
    columns: Mapping[str, Mapping[str, str]],
    rows: Mapping[str, Sequence[Row]],
    figures: list[str],
) -> dict[str, Any]:
    """Write an experiment's tables, README.md and summary.json; return it, with the ``folder``."""
    for name, documented in columns.items():
        write_table(root / f"{name}.csv", list(documented), rows[name])
    files.write_whole(root / "README.md", _explained(summary, columns, figures).encode())
    write_json(root / "summary.json", {**summary, "figures": figures})
    files.sync_folder(root)
    return {**summary, "figures": figures, "folder": str(root)}


def _explained(
    summary: Mapping[str, Any], columns: Mapping[str, Mapping[str, str]], figures: Sequence[str]
) -> str:
    """README.md: the answers, the figures, and what the folder's files and columns are."""
    lines = [
        f"# {summary['experiment']}",
        "",
        FILES,
        "",
        *(f"- {name}: {text}" for name, text in summary["measuring"].items()),
        "",
        "## Answers",
    ]
    for name, found in summary["answers"].items():
        lines += ["", f"**{name}. {found['question']}**", "", found["answer"], ""]
        lines += [f"The paper: {found['paper']}"]
    lines += ["", "## Data sets", ""]
    lines += [f"- {name}: {note}" for name, note in summary["sets"].items()]
    lines += [f"- skipped: {why}" for why in summary["missing"].values()]
    lines += ["", *(f"![{name}]({name})" for name in figures)]
    for name, documented in columns.items():
        lines += ["", f"## {name}.csv", "", "| column | what |", "|---|---|"]
        lines += [
            f"| `{column}` | {text.replace('|', chr(92) + '|')} |"
            for column, text in documented.items()
        ]
    return "\n".join(lines) + "\n"


def show_answers(out: Console, result: Mapping[str, Any]) -> None:
    """Print the answers, what is missing, and where the files are."""
    for name, found in result["answers"].items():
        out.print(f"{name}. {found['question']}\n   here: {found['answer']}")
        out.print(f"   the paper: {found['paper']}")
    if "totals" in result:
        columns = (
            *("set", "preset", "method", "kind", "cumulative_seconds", "cumulative_speedup"),
            *("distance_share", "counts", "paper_seconds"),
        )
        out.print(table(columns, [[row[c] for c in columns] for row in result["totals"]]))
    for name, note in result["sets"].items():
        out.print(f"{name}: {note}")
    for name, why in result["missing"].items():
        out.print(f"skipped: {name}: {why}")
    out.print(f"tables, plots and summary.json are in {result['folder']}")
