"""The summary of the k-means experiments, and the text that explains its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from .console import table
from .experiment_kmeans import Task
from .experiment_results import Row, mean_and_deviation
from .experiment_series import ACTIONS
from .experiment_settings import ALGORITHMS, BASELINE, NAME, piece_name
from .experiment_tables import COLUMNS, QUALITY_VALUES, SERIES_VALUES, Found, Tables
from .experiment_theory import BOUNDS, FITS

LIMITS = {"dc-kmeans": 1.58, "q-kmeans": 1.26}
"""Mean loss ratios that no data set is to exceed: the paper's worst plus its deviation."""
PAPER: dict[str, Any] = {
    "what": "numbers of Making AI Forget You (Ginart et al. 2019), speed-ups against its own baseline, "
    "a k-means in NumPy that is far slower than scikit-learn's: not to be compared with ours",
    "loss_ratio": {
        "celltype": {
            "dc-kmeans": {"mean": 1.439, "deviation": 0.157},
            "q-kmeans": {"mean": 1.158, "deviation": 0.099},
        }
    },
    "worst_loss_ratio_plus_deviation": {"dc-kmeans": [1.58, 1.596], "q-kmeans": [1.26]},
    "speedup_amortised": {"mnist": {"q-kmeans": 2.2}},
    "mean_speedup_amortised": {"q-kmeans": 226, "dc-kmeans": 30},
}
SPEEDUPS = ("speedup_amortised", "speedup_deletions", "speedup_without_refits")
MEASURING = {
    "baseline": "scikit-learn KMeans, lloyd, k-means++, n_init=1, tol=0, on float32 rows already scaled "
    "(scaling is not timed); the median of the timed retrains counts for every deletion",
    "loss_ratio": "loss / mean loss of scikit-learn's trainings at the same checkpoint of the same "
    "replicate: the same rows left, every feature min-max scaled to [0, 1] by the rows left; both losses "
    "computed by one function in float64",
    "amortised_seconds": "(seconds of the first training + seconds of m deletions) / m",
    "provenance": "k-means and q-kmeans keep each row's label and margin at every step and replay from "
    "them; k-means-none and q-kmeans-none go by passes and give the same models",
    "speedup_without_refits": "without the deletions after which training begins anew, as the last row at "
    "an end of a feature's range went",
    "threads": "one in every library",
}


def summarise(
    settings: Mapping[str, Any],
    found: Found,
    tables: Tables,
    theory: tuple[Sequence[Row], Sequence[Row]],
    missing: Mapping[str, str],
    tasks: Sequence[Task],
) -> dict[str, Any]:
    """Return summary.json; theory: the rows of fits.csv and of loss_bound.csv."""
    return {
        "experiment": NAME,
        "settings": dict(settings),
        "environments": found.environments,
        "processes_at_once": settings["workers"],
        "measuring": MEASURING,
        "sets": {name: _set(name, facts, found) for name, facts in found.sets.items()},
        "missing": dict(missing),
        "unfinished": _unfinished(found, tasks),
        "results": _results(tables),
        "mean_speedups": _mean_speedups(tables),
        "limits": limits_held(tables),
        "paper": PAPER,
        "fits": list(theory[0]),
        "loss_bound": {
            "what": BOUNDS,
            "holds": all(row["holds"] for row in theory[1]),
            "largest_share": max((row["share"] for row in theory[1]), default=None),
        },
    }


def _set(name: str, facts: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """What a set is (complete, partial or a stand-in), and how many replicates of what are done."""
    done: dict[str, int] = {}
    for data, series, _ in found.results:
        if data == name:
            done[series] = done.get(series, 0) + 1
    return {**facts, "state": facts["note"].partition(":")[0], "replicates": done}


def _unfinished(found: Found, tasks: Sequence[Task]) -> list[str]:
    """The pieces that were asked for and are not there."""
    return [
        piece_name(task.data, series, task.replicate)
        for task in tasks
        for series in task.series
        if (task.data, series, task.replicate) not in found.results
    ]


def _results(tables: Tables) -> dict[str, dict[str, Any]]:
    """Means and deviations by data set and algorithm."""
    results: dict[str, dict[str, Any]] = {}
    for row in tables.mean_series:
        mine = [r for r in tables.series if _key(r) == _key(row)]
        results.setdefault(row["data"], {})[row["algorithm"]] = {
            "replicates": row["replicates"],
            "extrapolated": any(r["extrapolated"] for r in mine),
            "ran": [r["ran"] for r in mine],
            "baseline_same_process": all(r.get("baseline_same_process") for r in mine),
            **_values(row, SERIES_VALUES),
            "quality": [
                {"deletions": r["deletions"], **_values(r, QUALITY_VALUES)}
                for r in tables.mean_quality
                if _key(r) == _key(row)
            ],
        }
    return results


def _key(row: Row) -> tuple[str, str]:
    return row["data"], row["algorithm"]


def _values(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {name: {"mean": row[name], "deviation": row[f"{name}_deviation"]} for name in names}


def _mean_speedups(tables: Tables) -> dict[str, Any]:
    """Means over the data sets of their mean speed-ups, by algorithm."""
    means: dict[str, Any] = {}
    for name in ALGORITHMS:
        mine = [row for row in tables.mean_series if row["algorithm"] == name]
        if mine:
            means[name] = {
                value: mean_and_deviation([row[value] for row in mine]) for value in SPEEDUPS
            }
    return means


def limits_held(tables: Tables) -> list[dict[str, Any]]:
    """Return for every limit the worst mean loss ratio of all sets and checkpoints."""
    held = []
    for name, limit in LIMITS.items():
        mine = [
            row
            for row in tables.mean_quality
            if row["algorithm"] == name and row["loss_ratio"] is not None
        ]
        if mine:
            worst = max(mine, key=lambda row: row["loss_ratio"])
            held.append(
                {
                    "algorithm": name,
                    "limit": limit,
                    "worst": worst["loss_ratio"],
                    "deviation": worst["loss_ratio_deviation"],
                    "data": worst["data"],
                    "deletions": worst["deletions"],
                    "holds": worst["loss_ratio"] <= limit,
                }
            )
    return held


def show_summary(out: Console, result: Mapping[str, Any]) -> None:
    """Print the summary as a table, with what is missing and where the files are."""
    rows = [
        _line(data, name, values)
        for data, by_name in result["results"].items()
        for name, values in by_name.items()
    ]
    columns = (
        *("data", "algorithm", "loss ratio", "silhouette", "NMI", "training s", "s per deletion"),
        *("amortised s", "speed-up", "deletions alone", "without refits"),
        *("unchanged, replayed, resumed, retrained", "ran"),
    )
    out.print(table(columns, rows))
    for held in result["limits"]:
        verdict = "holds" if held["holds"] else "does NOT hold"
        out.print(
            f"{held['algorithm']}: worst mean loss ratio at any checkpoint {held['worst']:.3f} "
            f"({held['data']}, after {held['deletions']:,} deletions), limit {held['limit']}: {verdict}"
        )
    for name, facts in result["sets"].items():
        out.print(f"{name}: {facts['rows']:,} x {facts['features']}, {facts['note']}")
    for why in result["missing"].values():
        out.print(f"skipped: {why}")
    out.print(f"tables, plots and summary.json are in {result['folder']}")


def _line(data: str, name: str, values: Mapping[str, Any]) -> list[object]:
    last = values["quality"][-1]
    ran = f"{min(values['ran']):,}" + (" (extrapolated)" if values["extrapolated"] else "")
    times = ("train_seconds", "seconds_per_deletion", "amortised_seconds")
    shares = ", ".join(f"{values[action]['mean']:.1%}" for action in ACTIONS)
    return [
        data,
        name,
        *(_spread(last[value]) for value in ("loss_ratio", "silhouette", "nmi")),
        *(values[value]["mean"] for value in times),
        *(_spread(values[value]) for value in SPEEDUPS),
        "-" if name == BASELINE else shares,
        ran,
    ]


def _spread(value: Mapping[str, Any]) -> str:
    if value["mean"] is None:
        return "-"
    deviation = "" if value["deviation"] is None else f" ±{value['deviation']:.2g}"
    return f"{value['mean']:.4g}{deviation}"


def explain(figures: Sequence[str]) -> str:
    """Return README.md: what the folder's files and columns are."""
    documented = {**COLUMNS, "fits": FITS, "loss_bound": BOUNDS}
    files = (
        "summary.json has settings, versions, means and deviations. pieces/ has one file a finished "
        "series of a replicate: everything else is computed from them. mean_*.csv are means over the "
        "replicates, with the sample standard deviation in columns NAME_deviation."
    )
    lines = [
        f"# {NAME}",
        "",
        files,
        "",
        *(f"- {name}: {text}" for name, text in MEASURING.items()),
        "",
        *(f"![{name}]({name})" for name in figures),
    ]
    for name, columns in documented.items():
        lines += ["", f"## {name}.csv", "", "| column | what |", "|---|---|"]
        lines += [f"| `{column}` | {text} |" for column, text in columns.items()]
    return "\n".join(lines) + "\n"
