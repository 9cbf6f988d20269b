"""The k-means paper's predictions beside what was measured: exponents of costs, a bound of losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..pipeline.theory import divided_deletion_cost, fit_power_law, quantized_loss_bound
from .experiment_results import Row, mean_and_deviation
from .experiment_tables import Found, Tables

Q, DC = "q-kmeans", "dc-kmeans"
Q_NONE = "q-kmeans-none"
"""The paper's own algorithm: a changed model goes on by passes."""
FITS = {
    "data": "data set",
    "algorithm": "algorithm",
    "measured": "what is measured: means over the replicates",
    "against": "what it is a power of",
    "exponent": "fitted: least squares of logarithms on logarithms",
    "predicted": "exponent of the paper's bound on the expected value; less is within the bound",
    "source": "where the paper says so",
    "points": "points that the fit stands on: those above 0, shares below 1",
    "smallest": "least value of what it is a power of",
    "largest": "greatest value of it",
    "r2": "share of the variance of logarithms that the fit explains",
}
BOUNDS = {
    "data": "data set",
    "epsilon": "spacing of the lattice",
    "mean_loss": "mean loss of Q-k-means over the replicates, before deletions",
    "best_loss": "the least loss of any training on these rows, which stands for L*",
    "bound": "Corollary 4.1.1 with best_loss as L*: at least the true bound",
    "share": "mean_loss / bound",
    "holds": "whether mean_loss is at most the bound",
}
_THEOREM = "Theorem 4.1: m deletions cost m^2 d^(5/2) / epsilon, whatever n"
_SHARE = "share of deletions that change the model"
_PROPOSITION = "Proposition 4.2: a deletion costs max(w, n / w)"


def fits(tables: Tables) -> list[Row]:
    """Return the rows of fits.csv."""
    made: list[Row] = []
    for data in dict.fromkeys(row["data"] for row in tables.mean_series):
        made += _in_number(data, tables.mean_curves)
    for sweep, against, predicted in (("epsilon", "epsilon", -1.0), ("rows", "n", -1.0)):
        for data, points in _timed(tables.mean_sweeps, f"sweep-{sweep}"):
            rates = _unsaturated(points, "value")
            made += _fit(data, Q, _SHARE, against, rates, predicted, _THEOREM)
    for data, points in _timed(tables.mean_sweeps, "sweep-leaves"):
        made += _in_leaves(data, points)
    return made


def _in_number(data: str, curves: Sequence[Row]) -> list[Row]:
    """Q-k-means: how the rate of changed models and the cost grow with the number of deletions."""
    made: list[Row] = []
    for name in (Q, Q_NONE):
        mine = [row for row in curves if row["data"] == data and row["algorithm"] == name]
        if name == Q:
            made += _fit(data, Q, _SHARE, "m", _unsaturated(mine, "deletions"), 1.0, _THEOREM)
        costs = [(row["deletions"], row["seconds"]) for row in mine]
        made += _fit(data, name, "seconds of m deletions", "m", costs, 2.0, _THEOREM)
    return made


def _unsaturated(rows: Sequence[Row], x: str) -> list[tuple[float, float | None]]:
    """Rates of changed models that can still grow: where all deletions change it no power shows."""
    return [(row[x], row["changed_rate"]) for row in rows if row["changed_rate"] < 1]


def _in_leaves(data: str, points: Sequence[Row]) -> list[Row]:
    """DC-k-means: how a deletion's cost falls and then grows with the number of leaves."""
    costs = [(p["value"], p["seconds_per_deletion"]) for p in points]
    cheapest = min(costs, key=lambda point: point[1])[0]
    few = [point for point in costs if point[0] <= cheapest]
    many = [point for point in costs if point[0] >= cheapest]
    both = [
        (divided_deletion_cost(p["rows"], int(p["value"])), p["seconds_per_deletion"])
        for p in points
    ]
    what = "seconds per deletion"
    return [
        *_fit(data, DC, what, f"w up to the cheapest, {cheapest:g}", few, -1.0, _PROPOSITION),
        *_fit(data, DC, what, f"w from the cheapest, {cheapest:g}", many, 1.0, _PROPOSITION),
        *_fit(data, DC, what, "max(w, n / w)", both, 1.0, _PROPOSITION),
    ]


def _fit(
    data: str,
    algorithm: str,
    measured: str,
    against: str,
    points: Sequence[tuple[float, float | None]],
    predicted: float,
    source: str,
) -> list[Row]:
    """One row of fits.csv, or none where there are too few points."""
    known = [(x, y) for x, y in points if y is not None and y > 0]
    law = fit_power_law([x for x, _ in known], [y for _, y in known])
    if law is None:
        return []
    return [
        {
            "data": data,
            "algorithm": algorithm,
            "measured": measured,
            "against": against,
            "exponent": law.exponent,
            "predicted": predicted,
            "source": source,
            "points": law.points,
            "smallest": min(x for x, _ in known),
            "largest": max(x for x, _ in known),
            "r2": law.r2,
        }
    ]


def _timed(sweeps: Sequence[Row], sweep: str) -> list[tuple[str, list[Row]]]:
    """The points of a sweep in which deletions were timed, a list a data set."""
    known = [r for r in sweeps if r["sweep"] == sweep and r["seconds_per_deletion"] is not None]
    names = dict.fromkeys(row["data"] for row in known)
    return [(name, [row for row in known if row["data"] == name]) for name in names]


def loss_bounds(found: Found, tables: Tables) -> list[Row]:
    """Return the rows of loss_bound.csv: the sweep's spacings, and the default one."""
    made: list[Row] = []
    for data, facts in found.sets.items():
        best = _best_loss(data, tables)
        if best is None:
            continue
        for epsilon, losses in _losses_by_epsilon(data, tables):
            mean = mean_and_deviation(losses)["mean"]
            n, d, k = facts["rows"], facts["features"], facts["clusters"]
            bound = quantized_loss_bound(best, n, d, k, epsilon)
            row: dict[str, Any] = {"data": data, "epsilon": epsilon, "mean_loss": mean}
            row |= {"best_loss": best, "bound": bound, "share": mean / bound}
            made.append({**row, "holds": mean <= bound})
    return made


def _before_deletions(data: str) -> Callable[[Row], bool]:
    return lambda row: row["data"] == data and row["deletions"] == 0


def _best_loss(data: str, tables: Tables) -> float | None:
    """The least loss of any training on all rows of a set."""
    losses = [
        min(row.get("losses", [row["loss"]]))
        for row in filter(_before_deletions(data), tables.quality)
    ]
    losses += [
        row["loss"] for row in tables.sweeps if row["data"] == data and row["sweep"] != "sweep-rows"
    ]
    return min(losses, default=None)


def _losses_by_epsilon(data: str, tables: Tables) -> list[tuple[float, list[float]]]:
    """Losses of Q-k-means before deletions at every spacing that was tried, the coarsest first."""
    losses: dict[float, list[float]] = {}
    for row in tables.sweeps:
        if row["data"] == data and row["sweep"] == "sweep-epsilon":
            losses.setdefault(row["value"], []).append(row["loss"])
    default = {
        (row["data"], row["replicate"]): row["epsilon"] for row in tables.series if "epsilon" in row
    }
    for row in filter(_before_deletions(data), tables.quality):
        if row["algorithm"] == Q:
            losses.setdefault(default[data, row["replicate"]], []).append(row["loss"])
    return sorted(losses.items(), reverse=True)
