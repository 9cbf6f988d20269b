"""The tables of the k-means experiments, computed from their pieces alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..pipeline.scores import loss_ratio
from .experiment_results import Pieces, Row, grouped_means
from .experiment_series import ACTIONS, log_spaced
from .experiment_settings import BASELINE, PROVENANCE, SERIES, SWEEPS

KEY = {
    "data": "data set",
    "algorithm": "sklearn: scikit-learn's retrain on the rows left; or the algorithm, -none without "
    "labels and margins (the same models)",
    "replicate": "number of the replicate",
}
_TIMES = {
    "seconds_per_deletion": "seconds a deletion, training apart (sklearn: the median retrain)",
    "amortised_seconds": "(training once + deletions) / deletions, in seconds, as the paper's Table 4",
}
COLUMNS: dict[str, dict[str, str]] = {
    "series": {
        **KEY,
        "rows": "rows at the start",
        "features": "features of a row",
        "clusters": "clusters asked for",
        "provenance": "labels: each row's label and margin at every step are kept, for incremental "
        "replay; none: deletions go by passes over the rows",
        "epsilon": "spacing of the lattice in units of scaled features (q-kmeans)",
        "n_leaves": "leaves (dc-kmeans)",
        "deletions": "deletions that the row is about",
        "ran": "deletions that really ran (sklearn: retrains)",
        "ran_from_start": "how many of them ran from the start on, none left out",
        "extrapolated": "True where not all ran: totals are then extrapolated from those that did",
        "baseline_same_process": "whether the baseline of this replicate ran in the same process",
        "train_seconds": "seconds of the first training",
        "deletion_seconds": "seconds of all deletions",
        **_TIMES,
        "median_seconds": "median seconds of the deletions that ran",
        "speedup_amortised": "amortised_seconds of sklearn / of this algorithm",
        "speedup_deletions": "seconds_per_deletion of sklearn / of this algorithm",
        "unchanged": "share of the deletions that ran that left every centroid as it was",
        "replayed": "share that changed centroids without a pass: rows near boundaries were decided again",
        "resumed": "share after which training went on from a step that still held",
        "retrained": "share after which training began anew, as a scaling bound lost its last row",
        **{
            f"{action}_seconds": f"mean seconds of the deletions that were {action}"
            for action in ACTIONS
        },
        "seconds_without_refits": "mean seconds of the deletions that ran and were not retrained",
        "speedup_without_refits": "seconds_per_deletion of sklearn / seconds_without_refits",
        "passes": "passes over the rows left, of the deletions that ran",
        "n_iter": "mean n_iter_ of the timed retrains (sklearn)",
    },
    "quality": {
        **KEY,
        "deletions": "deletions before",
        "loss": "sum of squared distances of the rows left, each feature min-max scaled to [0, 1] "
        "by the rows left, to their nearest centres (sklearn: mean of several trainings)",
        "baseline_loss": "sklearn's loss on the same rows in the same scale",
        "loss_ratio": "loss / baseline_loss",
        "silhouette": "mean silhouette of at most 10,000 rows, the same ones for all algorithms",
        "nmi": "normalized mutual information of clusters and true classes",
    },
    "curves": {
        **KEY,
        "deletions": "number of deletions",
        "seconds": "seconds of these deletions together",
        **_TIMES,
        "changed": "deletions that did not leave the model unchanged",
        "changed_rate": "changed / deletions",
        "extrapolated": "True where some of these deletions did not run",
    },
    "sweeps": {
        "data": "data set",
        "sweep": "what is swept: sweep-epsilon, sweep-leaves or sweep-rows",
        "algorithm": "algorithm",
        "replicate": "number of the replicate",
        "value": "epsilon, leaves, or rows",
        "rows": "rows at the start",
        "loss": "as in quality.csv, of the first training",
        "loss_ratio": "loss / sklearn's loss before deletions; empty for sweep-rows",
        "train_seconds": "seconds of the first training",
        "ran": "deletions that ran; 0 where they are not timed",
        "seconds_per_deletion": "mean of those that ran",
        "amortised_seconds": "(train_seconds + m seconds_per_deletion) / m, m as in the settings",
        "changed_rate": "share of the deletions that ran that did not leave the model unchanged",
    },
}
"""Tables, with what their columns mean."""
SERIES_VALUES = (
    "train_seconds",
    "deletion_seconds",
    *_TIMES,
    "speedup_amortised",
    "speedup_deletions",
    *ACTIONS,
    *(f"{action}_seconds" for action in ACTIONS),
    "seconds_without_refits",
    "speedup_without_refits",
)
QUALITY_VALUES = ("loss", "loss_ratio", "silhouette", "nmi")
CURVE_VALUES = ("seconds", *_TIMES, "changed", "changed_rate")
SWEEP_VALUES = ("loss", "loss_ratio", *_TIMES, "changed_rate")


@dataclass(frozen=True, slots=True)
class Found:
    """All finished pieces."""

    sets: dict[str, dict[str, Any]]
    """What every data set is."""
    results: dict[tuple[str, str, int], dict[str, Any]]
    """Result of (data set, series, replicate), in the order of the series."""
    environments: list[dict[str, Any]]
    """The different environments that they were made in."""

    def baseline(self, data: str, replicate: int) -> dict[str, Any] | None:
        """Return the baseline of a replicate, where it is finished."""
        return self.results.get((data, BASELINE, replicate))


def collect(pieces: Pieces) -> Found:
    """Read all finished pieces of a folder."""
    sets, results, environments = {}, {}, []
    for name in pieces.names():
        whole = pieces.whole(name)
        assert whole is not None
        data, series, *replicate = name.split(".")
        if not replicate:
            sets[data] = whole["result"]
            continue
        results[data, series, int(replicate[0])] = whole["result"]
        if whole["environment"] not in environments:
            environments.append(whole["environment"])
    in_order = sorted(results, key=lambda key: (key[0], SERIES.index(key[1]), key[2]))
    return Found(sets, {key: results[key] for key in in_order}, environments)


def series_rows(found: Found) -> list[Row]:
    """Return the rows of series.csv."""
    rows: list[Row] = []
    for (data, name, replicate), result in found.results.items():
        if name in SWEEPS:
            continue
        base = found.baseline(data, replicate)
        key = {"data": data, "algorithm": name, "replicate": replicate}
        facts = {k: found.sets[data][k] for k in ("rows", "features", "clusters")}
        own = _retrains(result) if name == BASELINE else _deletions(result)
        kept = {"provenance": PROVENANCE.get(name)}
        rows.append({**key, **facts, **kept, **own, **_speedups(own, base, result)})
    return rows


def _retrains(result: Mapping[str, Any]) -> dict[str, Any]:
    """scikit-learn's numbers as those of a series: every deletion is a retrain."""
    asked, once = result["deletions"], result["retrain_seconds"]
    return {
        **{name: result[name] for name in ("deletions", "ran", "extrapolated", "train_seconds")},
        "deletion_seconds": asked * once,
        "seconds_per_deletion": once,
        "amortised_seconds": (result["train_seconds"] + asked * once) / asked,
        "median_seconds": once,
        **dict.fromkeys(ACTIONS, 0.0),
        "retrained": 1.0,
        "n_iter": sum(result["n_iter"]) / len(result["n_iter"]),
    }


def _deletions(result: Mapping[str, Any]) -> dict[str, Any]:
    asked, total = result["deletions"], result["deletion_seconds"]
    plain = ("deletions", "ran", "ran_from_start", "extrapolated", "train_seconds", "passes")
    return {
        **{name: result[name] for name in (*plain, "deletion_seconds", "median_seconds")},
        **result["parameters"],
        "seconds_per_deletion": total / asked,
        "amortised_seconds": (result["train_seconds"] + total) / asked,
        **{action: result["actions"][action] / result["ran"] for action in ACTIONS},
        **_seconds_by_action(result),
    }


def _seconds_by_action(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Mean seconds of the deletions of each action, and of all but the refits; None where there are none."""
    counts, seconds = result["actions"], result["action_seconds"]
    others = [action for action in ACTIONS if action != "retrained"]
    groups = {f"{action}_seconds": [action] for action in ACTIONS}
    groups["seconds_without_refits"] = others
    means: dict[str, float | None] = {}
    for name, actions in groups.items():
        ran = sum(counts[action] for action in actions)
        means[name] = sum(seconds[action] for action in actions) / ran if ran else None
    return means


def _speedups(
    own: Mapping[str, Any], base: Mapping[str, Any] | None, result: Mapping[str, Any]
) -> dict[str, Any]:
    if base is None:
        return {}
    theirs = _retrains(base)
    once, alone = theirs["seconds_per_deletion"], own.get("seconds_without_refits")
    return {
        "speedup_without_refits": once / alone if alone else None,
        "speedup_amortised": theirs["amortised_seconds"] / own["amortised_seconds"],
        "speedup_deletions": once / own["seconds_per_deletion"],
        "baseline_same_process": base["process"] == result["process"],
    }


def quality_rows(found: Found) -> list[Row]:
    """Return the rows of quality.csv."""
    rows: list[Row] = []
    for (data, name, replicate), result in found.results.items():
        base = found.baseline(data, replicate)
        losses = {} if base is None else {q["deletions"]: q["loss"] for q in base["quality"]}
        for quality in result.get("quality", ()):
            baseline_loss = losses.get(quality["deletions"])
            row = {"data": data, "algorithm": name, "replicate": replicate, **quality}
            row["baseline_loss"] = baseline_loss
            row["loss_ratio"] = ratio(quality["loss"], baseline_loss)
            rows.append(row)
    return rows


def ratio(loss: float, baseline: float | None) -> float | None:
    """Return a loss over the baseline's; None without one, or where it is 0 and the loss is not."""
    if baseline is None:
        return None
    found = loss_ratio(loss, baseline)
    return found if isfinite(found) else None


def curve_rows(found: Found) -> list[Row]:
    """Return the rows of curves.csv."""
    rows: list[Row] = []
    for (data, name, replicate), result in found.results.items():
        if name in SWEEPS:
            continue
        for point in _curve(result):
            done, seconds = point["deletions"], point["seconds"]
            rows.append(
                {
                    "data": data,
                    "algorithm": name,
                    "replicate": replicate,
                    **point,
                    "seconds_per_deletion": seconds / done,
                    "amortised_seconds": (result["train_seconds"] + seconds) / done,
                    "changed_rate": point["changed"] / done,
                }
            )
    return rows


def _curve(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "curve" in result:
        yield from result["curve"]
        return
    for number in log_spaced(result["deletions"]):
        seconds = number * result["retrain_seconds"]
        flag = {"extrapolated": result["extrapolated"]}
        yield {"deletions": number, "seconds": seconds, "changed": number, **flag}


def sweep_rows(found: Found, deletions: int) -> list[Row]:
    """Return the rows of sweeps.csv; deletions: over how many training is amortised."""
    rows: list[Row] = []
    for (data, name, replicate), result in found.results.items():
        if name not in SWEEPS:
            continue
        base = found.baseline(data, replicate)
        baseline = None if base is None or name == "sweep-rows" else base["quality"][0]["loss"]
        key = {"data": data, "sweep": name, "algorithm": SWEEPS[name], "replicate": replicate}
        for point in result["points"]:
            kept = {n: point[n] for n in ("value", "rows", "loss", "train_seconds", "ran")}
            score = {"loss_ratio": ratio(point["loss"], baseline)}
            rows.append({**key, **kept, **score, **_point_times(point, deletions)})
    return rows


def _point_times(point: Mapping[str, Any], deletions: int) -> dict[str, Any]:
    ran = point["ran"]
    if not ran:
        return dict.fromkeys(("seconds_per_deletion", "amortised_seconds", "changed_rate"))
    each = point["deletion_seconds"] / ran
    return {
        "seconds_per_deletion": each,
        "amortised_seconds": point["train_seconds"] / deletions + each,
        "changed_rate": point["changed"] / ran,
    }


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables: a row a replicate, and a row a mean over the replicates."""

    series: list[Row]
    quality: list[Row]
    curves: list[Row]
    sweeps: list[Row]
    mean_series: list[Row]
    mean_quality: list[Row]
    mean_curves: list[Row]
    mean_sweeps: list[Row]


def make_tables(found: Found, deletions: int) -> Tables:
    """Compute all tables."""
    series, quality, curves = series_rows(found), quality_rows(found), curve_rows(found)
    sweeps = sweep_rows(found, deletions)
    key = ("data", "algorithm")
    return Tables(
        series,
        quality,
        curves,
        sweeps,
        grouped_means([_whole(row) for row in series], key, SERIES_VALUES),
        grouped_means(quality, (*key, "deletions"), QUALITY_VALUES),
        grouped_means(curves, (*key, "deletions"), CURVE_VALUES),
        grouped_means(sweeps, ("data", "sweep", "algorithm", "value", "rows"), SWEEP_VALUES),
    )


def _whole(row: Row) -> Row:
    """A row of series.csv in which what is not known is None."""
    return {**dict.fromkeys(COLUMNS["series"]), **row}
