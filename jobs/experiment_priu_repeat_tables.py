"""The tables of repeated deletions, computed from the pieces alone, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..pipeline.regression import BASEL, NO_PROVENANCE
from .experiment_priu_answers import case_of, cases, named, text_of
from .experiment_priu_paper import ANSWERS, QUESTIONS, REPEATED_SECONDS
from .experiment_priu_tables import COLUMNS as SINGLE_COLUMNS
from .experiment_priu_tables import KEY, QUALITY, counted
from .experiment_results import Row

COLUMNS: dict[str, dict[str, str]] = {
    "repeated": {
        **KEY,
        "rate": "share of the training rows that have left so far; with --from-first, of this subset",
        "step": "subsets deleted so far, this one too",
        "deleted": "rows of this subset",
        "seconds": "median seconds of this subset's update; basel: of the retrain",
        "base_l_seconds": "BaseL's seconds, of the same process",
        "cumulative_seconds": "seconds of all subsets so far",
        "cumulative_speedup": "BaseL's cumulative seconds / cumulative_seconds",
        "gather_seconds": "reading this subset's rows",
        "rebase_seconds": "rewriting the provenance for the next subset",
        "sync_seconds": "making that version durable",
        "cumulative_with_rebase": "cumulative seconds of updates, rebases and syncs",
        **QUALITY,
    },
    "table1": SINGLE_COLUMNS["table1"],
    "not_applicable": {**KEY, "why": "why there are no numbers"},
}


def repeated_rows(found: Sequence[Row]) -> list[Row]:
    """Return a row a study, step and method."""
    return [row for one in found for row in _chain(one)]


def _chain(one: Row) -> Iterable[Row]:
    """The rows of one study; distances and changes are those since the first training."""
    totals: dict[tuple[str, str], float] = {}
    whole: dict[tuple[str, str], float] = {}
    base, deleted = 0.0, 0
    for number, step in enumerate(one["steps"], 1):
        base += step["base_l"]["seconds"]
        # A piece from before there was a choice does not say.
        deleted = step["deleted"] + (deleted if one.get("sequential", True) else 0)
        shared = {
            **case_of(one),
            "rate": deleted / one["training_rows"],
            "step": number,
            **{name: step[name] for name in ("deleted", "gather_seconds")},
            "base_l_seconds": step["base_l"]["seconds"],
        }
        yield {
            **shared,
            "method": BASEL,
            "kind": NO_PROVENANCE,
            "seconds": step["base_l"]["seconds"],
            "cumulative_seconds": base,
            "cumulative_with_rebase": base,
            "cumulative_speedup": 1.0,
            "counts": True,
        }
        for update in step["updates"]:
            key = update["method"], update["kind"]
            rebase = step["rebases"][update["kind"]]
            totals[key] = totals.get(key, 0.0) + update["seconds"]
            whole[key] = whole.get(key, 0.0) + update["seconds"] + sum(rebase.values())
            yield {
                **update,
                **shared,
                **rebase,
                "cumulative_seconds": totals[key],
                "cumulative_speedup": base / totals[key],
                "cumulative_with_rebase": whole[key],
                **counted(update, shared["rate"]),
            }


def repeated_totals(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the last step's row of every method, with the paper's seconds."""
    names = (
        *("set", "preset", "method", "kind", "step", "rate", "cumulative_seconds"),
        *("cumulative_speedup", "cumulative_with_rebase", "distance_share", "cosine", "counts"),
    )
    found = []
    for mine in cases(rows):
        last = max(row["step"] for row in mine)
        for row in mine:
            if row["step"] == last:
                paper = REPEATED_SECONDS.get(row["set"], {}).get(row["method"])
                found.append({**{name: row.get(name) for name in names}, "paper_seconds": paper})
    return found


def repeated_answer(totals: Sequence[Row]) -> dict[str, Any]:
    """Return what repeated deletions say to Q2: the best total that counts, a study a sentence."""
    parts = []
    for mine in cases({**row, "leaving": "random"} for row in totals):
        updates = [row for row in mine if row["method"] != BASEL]
        best = max(
            (row for row in updates if row["counts"]),
            key=lambda row: row["cumulative_speedup"],
            default=None,
        )
        if best is None:
            parts.append(f"{named(mine[0])}: no update is near enough to count")
            continue
        base = next(row for row in mine if row["method"] == BASEL)
        parts.append(
            f"{named(best)}: {best['step']} subsets take BaseL {text_of(base['cumulative_seconds'])} s "
            f"and {best['method']} {best['kind']} {text_of(best['cumulative_seconds'])} s "
            f"({text_of(best['cumulative_speedup'])} times), "
            f"{text_of(best['cumulative_with_rebase'])} s with rebases, "
            f"{text_of(best['distance_share'])} of the change apart"
        )
    return {
        "question": QUESTIONS["Q2"],
        "answer": "; ".join(parts) + "." if parts else "Not in this run: any chain of deletions.",
        "numbers": list(totals),
        "paper": ANSWERS["Q2"],
    }
