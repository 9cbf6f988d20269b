"""The PrIU paper's questions Q1 to Q8, answered from this run's own tables, beside the paper's answers.

An answer is a sentence made of numbers, and these numbers; where a run lacks what a question is
about, it says what to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..pipeline.regression import BASEL, CLOSED_FORM, DELTA, EXACT, INFL, PRIU, PRIU_OPT
from .experiment_priu_compare import BOUNDED_RATE
from .experiment_priu_paper import ANSWERS, QUESTIONS
from .experiment_priu_tables import Tables
from .experiment_results import Row

FAR = 10.0
"""INFL is called far worse than delta from this many times its distance on."""
Answer = tuple[str, list[Row]]


def answers(tables: Tables) -> dict[str, dict[str, Any]]:
    """Return for every question its text, our answer with its numbers, and the paper's answer."""
    by_name: dict[str, Callable[[Tables], Answer]] = {
        "Q1": _optimised,
        "Q2": _speed,
        "Q3": _accuracy,
        "Q4": _nearness,
        "Q5": _influence,
        "Q6": _batches,
        "Q7": _sizes,
        "Q8": _memory,
    }
    found = {}
    for name, answer in by_name.items():
        text, numbers = answer(tables)
        found[name] = {
            "question": QUESTIONS[name],
            "answer": text,
            "numbers": numbers,
            "paper": ANSWERS[name],
        }
    return found


def _lacking(what: str) -> Answer:
    return f"Not in this run: {what}.", []


def case_of(row: Row) -> dict[str, Any]:
    """What tells a study from others."""
    return {name: row[name] for name in ("set", "preset", "leaving")}


def named(row: Row) -> str:
    """A study as the answers name it."""
    return f"{row['set']} ({row['preset']}, {row['leaving']})"


def cases(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by study, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(case_of(row).values()), []).append(row)
    return list(groups.values())


def _score(row: Row) -> float | None:
    """How far a row's accuracy or MSE is from BaseL's."""
    for name in ("accuracy", "mse"):
        if row[name] is not None and row[f"base_l_{name}"] is not None:
            return abs(float(row[name]) - float(row[f"base_l_{name}"]))
    return None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def text_of(value: float | None) -> str:
    """A number as the answers have it."""
    return "unknown" if value is None else f"{value:.3g}"


def _optimised(tables: Tables) -> Answer:
    """Q1: PrIU against PrIU-opt, at the same rates."""
    numbers: list[Row] = []
    for mine in cases(tables.updates):
        opt = {row["rate"]: row for row in mine if row["method"] == PRIU_OPT}
        both = [
            (row, opt[row["rate"]]) for row in mine if row["method"] == PRIU and row["rate"] in opt
        ]
        for priu, fast in both:
            numbers.append(
                {
                    **case_of(priu),
                    "rate": priu["rate"],
                    "times_faster": priu["seconds"] / fast["seconds"],
                    "score_apart": _score(fast),
                    "distance_share": fast["distance_share"],
                }
            )
    if not numbers:
        return _lacking("both priu and priu-opt on one set")
    parts = []
    for mine in cases(numbers):
        gains = sorted({text_of(row["times_faster"]) for row in mine}, key=float)
        apart = _most(row["score_apart"] for row in mine)
        parts.append(
            f"{named(mine[0])}: priu-opt takes {' to '.join(f'1/{gain}' for gain in _ends(gains))} of "
            f"priu's time, and validates at most {text_of(apart)} apart from BaseL"
        )
    return "; ".join(parts) + ".", numbers


def _ends(ascending: list[str]) -> list[str]:
    """The first and the last, or the only one."""
    return ascending[:1] + ascending[1:][-1:]


def _updates(tables: Tables) -> list[Row]:
    return [row for row in tables.updates if row["method"] != BASEL]


def _small(rows: Iterable[Row]) -> list[Row]:
    """Rows of rates at which the bounds of small deletions hold."""
    return [row for row in rows if row["rate"] <= BOUNDED_RATE]


_SPEED = ("rate", "method", "kind", "seconds", "speedup", "distance_share", "counts")


def _best(rows: Iterable[Row]) -> Row | None:
    return max(rows, key=lambda row: row["speedup"], default=None)


def _speed(tables: Tables) -> Answer:
    """Q2: the best speed-up of a study, of rows that are near enough to BaseL to count."""
    numbers: list[Row] = []
    parts = []
    for mine in cases(_updates(tables)):
        small = _small(mine) or mine
        best = _best(row for row in small if row["counts"])
        if best is None:
            nearest = min(small, key=lambda row: row["distance_share"] or 0.0)
            share = text_of(nearest["distance_share"])
            parts.append(f"{named(mine[0])}: no update is near enough to count (nearest {share})")
            continue
        numbers.append({**case_of(best), **{name: best[name] for name in _SPEED}})
        parts.append(
            f"{named(best)}: {text_of(best['speedup'])} times at a rate of {best['rate']:g} by "
            f"{best['method']} {best['kind']} ({text_of(best['distance_share'])} of the change apart)"
        )
    if not parts:
        return _lacking("any update")
    return "; ".join(parts) + "." + _against_closed_form(tables), numbers


def _against_closed_form(tables: Tables) -> str:
    """Whether priu-opt is always faster than the closed form."""
    slower = faster = 0
    for mine in cases(tables.updates):
        opt = {row["rate"]: row["seconds"] for row in mine if row["method"] == PRIU_OPT}
        for row in mine:
            if row["method"] == CLOSED_FORM and row["rate"] in opt:
                faster += opt[row["rate"]] < row["seconds"]
                slower += opt[row["rate"]] >= row["seconds"]
    if not faster + slower:
        return ""
    return f" priu-opt is faster than closed-form in {faster} of {faster + slower} cases."


def _last(rows: Iterable[Row]) -> list[Row]:
    """The rows of a study's highest rate."""
    found = list(rows)
    last = max(row["rate"] for row in found)
    return [row for row in found if row["rate"] == last]


def _accuracy(tables: Tables) -> Answer:
    """Q3: how far validation is from BaseL's at the highest rate."""
    numbers: list[Row] = []
    parts = []
    for mine in cases(row for row in _updates(tables) if row["method"] != CLOSED_FORM):
        last = [row for row in _last(mine) if _score(row) is not None]
        for row in last:
            values = {name: row[name] for name in ("rate", "method", "kind", "accuracy", "mse")}
            base = {name: row[name] for name in ("base_l_accuracy", "base_l_mse", "majority_rate")}
            numbers.append({**case_of(row), **values, **base, "apart": _score(row)})
        ours = [row for row in last if row["method"] != INFL]
        if ours:
            worst = max(ours, key=lambda row: _score(row) or 0.0)
            parts.append(
                f"{named(worst)}: at most {text_of(_score(worst))} apart at a rate of "
                f"{worst['rate']:g} ({worst['method']} {worst['kind']})"
            )
    if not parts:
        return _lacking("any validation score")
    return "Accuracy (linear: MSE) against BaseL's; " + "; ".join(parts) + ".", numbers


def _nearness(tables: Tables) -> Answer:
    """Q4: distances, cosines and sign flips of delta and of the paper's methods."""
    numbers: list[Row] = []
    parts = []
    methods = (DELTA, PRIU, PRIU_OPT)
    for mine in cases(row for row in _updates(tables) if row["method"] in methods):
        names = (*("rate", "method", "kind", "distance", "distance_share", "cosine"),)
        more = ("sign_flips", "coordinates", "median_magnitude_change", "largest_magnitude_change")
        numbers += [
            {**case_of(row), **{name: row[name] for name in (*names, *more)}} for row in mine
        ]
        ours = [row for row in mine if row["method"] == DELTA] or mine
        near = min(_last(ours), key=_share)
        small = _small(ours)
        flips = _most(row["sign_flips"] for row in small)
        exact = [row for row in small if row["kind"] == EXACT] or small
        share = _most(row["distance_share"] for row in exact)
        kind = exact[0]["kind"] if exact else "none"
        parts.append(
            f"{named(near)}: up to a rate of {BOUNDED_RATE:g} {near['method']} {kind} is at most "
            f"{text_of(share)} of the change away, with at most {text_of(flips)} sign flips by any "
            f"kind; at {near['rate']:g} the nearest is {near['kind']} with "
            f"{text_of(near['distance_share'])}, cosine {text_of(near['cosine'])}, "
            f"{near['sign_flips']} of {near['coordinates']} signs flipped"
        )
    if not parts:
        return _lacking("any of delta, priu and priu-opt")
    return "; ".join(parts) + ".", numbers


def _share(row: Row) -> float:
    share = row["distance_share"]
    return float("inf") if share is None else float(share)


def _influence(tables: Tables) -> Answer:
    """Q5: INFL against the nearest delta; says where it is not far worse."""
    numbers: list[Row] = []
    for mine in cases(_updates(tables)):
        for row in mine:
            deltas = [r for r in mine if r["method"] == DELTA and r["rate"] == row["rate"]]
            if row["method"] != INFL or not deltas:
                continue
            near = min(deltas, key=_share)
            known = row["distance"] is not None and near["distance"]
            numbers.append(
                {
                    **case_of(row),
                    "rate": row["rate"],
                    "infl_seconds": row["seconds"],
                    "delta_seconds": near["seconds"],
                    "infl_distance_share": row["distance_share"],
                    "delta_distance_share": near["distance_share"],
                    "delta_kind": near["kind"],
                    "times_farther": row["distance"] / near["distance"] if known else None,
                    "infl_score_apart": _score(row),
                    "delta_score_apart": _score(near),
                    "infl_cosine": row["cosine"],
                }
            )
    if not numbers:
        return _lacking("infl beside delta")
    known = [row for row in numbers if row["times_farther"] is not None]
    close = [row for row in known if row["times_farther"] < FAR]
    where = "; ".join(
        f"{named(row)} at {row['rate']:g} ({text_of(row['times_farther'])} times)" for row in close
    )
    speed = [row["delta_seconds"] / row["infl_seconds"] for row in numbers]
    return (
        f"infl is at least {FAR:g} times as far from BaseL as delta in {len(known) - len(close)} of "
        f"{len(known)} cases, {text_of(_most(r['infl_distance_share'] for r in numbers))} of the change "
        f"away at worst; it takes 1/{text_of(max(speed))} to 1/{text_of(min(speed))} of delta's time."
        + (f" Not far worse: {where}." if close else " It is far worse in each of them."),
        numbers,
    )


def _batches(tables: Tables) -> Answer:
    """Q6: Cov (small), (large 1) and (large 2)."""
    mine = [
        row for row in _updates(tables) if row["set"].startswith("cov-") and row["method"] == DELTA
    ]
    numbers = _best_deltas(row for row in mine if not row["set"].endswith("extended"))
    if len({row["set"] for row in numbers}) < 2:
        return _lacking("two of cov-small, cov-large-1 and cov-large-2 with the same preset")
    parts = [_told(row) for row in numbers]
    return "Mini-batches and iterations: " + "; ".join(parts) + ".", numbers


def _sizes(tables: Tables) -> Answer:
    """Q7: the speed-up against the number of parameters."""
    numbers = _best_deltas(row for row in _updates(tables) if row["method"] == DELTA)
    if len({row["parameters"] for row in numbers}) < 2:
        return _lacking("sets of different numbers of parameters")
    numbers = sorted(numbers, key=lambda row: row["parameters"])
    return "By parameters: " + "; ".join(_told(row) for row in numbers) + ".", numbers


def _told(row: Row) -> str:
    size = (
        "unknown" if row["provenance_bytes"] is None else f"{row['provenance_bytes'] / 1e6:,.0f} MB"
    )
    marked = "" if row["counts"] else ", which does not count"
    return (
        f"{named(row)}, {row['parameters']:,} parameters: {text_of(row['speedup'])} times at "
        f"{row['rate']:g} with {row['kind']} ({size}){marked}"
    )


def _best_deltas(rows: Iterable[Row]) -> list[Row]:
    """The best speed-up by delta of every study at the rate nearest to 0.1%; those that count first."""
    found: list[Row] = []
    for mine in cases(rows):
        rate = min({row["rate"] for row in mine}, key=lambda r: abs(r - 0.001))
        here = [row for row in mine if row["rate"] == rate]
        best = _best(row for row in here if row["counts"]) or _best(here)
        assert best is not None  # A case has a row at least.
        names = (*_SPEED, "provenance_bytes")
        values = {**case_of(best), **{name: best[name] for name in names}}
        found.append({**values, "parameters": best["coordinates"]})
    return found


def _memory(tables: Tables) -> Answer:
    """Q8: peaks against BaseL's, and bytes on disk."""
    numbers: Sequence[Row] = [row for row in tables.table3 if row["method"] != BASEL]
    if not numbers:
        return _lacking("any measurement of memory")
    parts = []
    for mine in cases(numbers):
        highest = max(mine, key=lambda row: row["ratio"] or 0.0)
        largest = max(mine, key=lambda row: row["provenance_bytes"])
        parts.append(
            f"{named(highest)}: at most {text_of(highest['ratio'])} times BaseL's process "
            f"({highest['method']} {highest['kind']}, {highest['peak_bytes'] / 1e6:,.0f} MB); the "
            f"provenance takes up to {largest['provenance_bytes'] / 1e6:,.0f} MB on disk "
            f"({largest['kind']})"
        )
    return "; ".join(parts) + ".", list(numbers)
