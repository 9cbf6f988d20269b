"""The tables of one deletion, computed from the pieces alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..pipeline.regression import BASEL, INFL, NO_PROVENANCE
from .experiment_priu_compare import distance_bound
from .experiment_priu_paper import MEMORY_GB, TABLE_4
from .experiment_priu_sets import SETS, SOURCES
from .experiment_results import Pieces, Row

KEY = {
    "set": "name of a setting of the paper's Table 2",
    "preset": "paper: the paper's hyper-parameters; trained: those of a well trained model",
    "leaving": "which rows leave: dirty (rescaled before training) or random ones",
    "rate": "share of the training rows that leave",
    "method": "basel retrains on the rows left; the others update",
    "kind": "kind of provenance that the update reads; none where it reads none",
}
QUALITY = {
    "distance": "Euclidean distance of the parameters to BaseL's, for standardised features",
    "change": "distance between BaseL's parameters and those before the deletion",
    "distance_share": "distance / change",
    "bound": "the largest distance_share with which the row's time counts: 0.005 for exact provenance "
    "at rates up to 0.01 and 0.02 beyond, 0.03 for the others",
    "counts": "whether distance_share is within the bound",
    "cosine": "cosine of the angle between the parameters and BaseL's",
    "sign_flips": "coordinates of another sign than BaseL's",
    "coordinates": "parameters of the model",
    "largest_flipped": "largest of BaseL's coordinates that flipped / largest of all, by magnitude",
    "median_magnitude_change": "median over the coordinates of ||a| - |b|| / |b|, b being BaseL's",
    "largest_magnitude_change": "the largest of these",
}
_SCORES = {
    "accuracy": "share of the validation rows that are classified right",
    "majority_rate": "share of the most frequent class among the validation rows",
    "mse": "mean squared error of the validation rows (linear)",
    "r2": "R^2 of the validation rows (linear)",
    "objective": "mean loss of the training rows left, with the penalty",
}
COLUMNS: dict[str, dict[str, str]] = {
    "updates": {
        **KEY,
        "deleted": "rows that leave",
        "seconds": "median seconds from the deleted rows in memory to the new parameters; basel: of the "
        "faster of the fused loop and BLAS",
        "base_l_seconds": "BaseL's seconds, of the same process",
        "speedup": "base_l_seconds / seconds",
        "base_l_by": "fused or blas: how BaseL was faster",
        "gather_seconds": "reading the leaving rows, which the update then has in memory",
        "rebase_seconds": "rewriting the provenance after the update",
        "sync_seconds": "writing the small arrays and making the version durable",
        **QUALITY,
        **_SCORES,
        "base_l_accuracy": "BaseL's accuracy",
        "base_l_mse": "BaseL's mean squared error",
        "visits": "uses of the leaving rows in training",
        "provenance_bytes": "bytes of the model's version on disk",
    },
    "coordinates": {
        **KEY,
        "coordinate": "number of the parameter (class by class, the bias last)",
        "base_l": "its value by BaseL",
        "updated": "its value by the update",
        "flipped": "whether the signs differ",
        "magnitude_change": "||updated| - |base_l|| / |base_l|",
    },
    "table1": {
        "set": KEY["set"],
        "data": "data set",
        "rows": "rows here, validation rows included",
        "features": "features here",
        "classes": "classes here",
        "paper_rows": "rows in the paper",
        "paper_features": "features in the paper",
        "paper_classes": "classes in the paper",
        "note": "complete, partial or a stand-in, and how it differs",
    },
    "table2": {
        **{name: KEY[name] for name in ("set", "preset", "leaving", "rate")},
        "batch_size": "rows of a mini-batch",
        "iterations": "steps of the descent",
        "learning_rate": "eta",
        "l2": "lambda",
        "epochs": "passes over the rows",
        "parameters": "parameters of the model",
        "training_rows": "rows that are trained on",
        "accuracy": "validation accuracy before the deletion",
        "majority_rate": _SCORES["majority_rate"],
        "mse": "validation mean squared error before the deletion (linear)",
        "r2": "validation R^2 before the deletion (linear)",
        "reference": "accuracy (linear: R^2) of a well trained reference model",
    },
    "table3": {
        **KEY,
        "peak_bytes": "VmHWM of a process that ran this method alone",
        "idle_bytes": "VmHWM of the same process before, the leaving rows in memory",
        "ratio": "peak_bytes / BaseL's",
        "provenance_bytes": "bytes of the model's version on disk",
        "paper_gb": "the paper's Table 3, GB of its own process",
    },
    "table4": {
        **KEY,
        "accuracy": _SCORES["accuracy"],
        "mse": _SCORES["mse"],
        "base_l_accuracy": "BaseL's accuracy",
        "base_l_mse": "BaseL's mean squared error",
        "majority_rate": _SCORES["majority_rate"],
        **{name: QUALITY[name] for name in ("distance", "distance_share", "cosine", "sign_flips")},
        "paper_score": "the paper's accuracy or MSE at a rate of 20%: of INFL, else of BaseL = PrIU-opt",
        "paper_distance": "the paper's distance: of INFL, else of PrIU-opt",
        "paper_cosine": "the paper's similarity: of INFL, else of PrIU-opt",
    },
    "not_applicable": {
        **KEY,
        "why": "why there are no numbers",
    },
}


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that the pieces say."""

    measured: list[dict[str, Any]]
    """One a set, preset, kind of leaving rows and rate."""
    memory: list[dict[str, Any]]
    environments: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows by table; the names are the files'."""

    updates: list[Row]
    coordinates: list[Row]
    table1: list[Row]
    table2: list[Row]
    table3: list[Row]
    table4: list[Row]
    not_applicable: list[Row]


def collect(pieces: Pieces) -> Found:
    """Read every piece of a folder, in the order of Table 2 and of the rates."""
    wholes = [found for name in pieces.names() if (found := pieces.whole(name)) is not None]
    results = sorted((whole["result"] for whole in wholes), key=_order)
    environments: list[dict[str, Any]] = []
    for whole in wholes:
        if whole["environment"] not in environments:
            environments.append(whole["environment"])
    return Found(
        [result for result in results if "peak_bytes" not in result],
        [result for result in results if "peak_bytes" in result],
        environments,
    )


def _order(result: Row) -> tuple[int, str, str, float]:
    place = list(SETS).index(result["set"])
    return place, result["preset"], result["leaving"], result.get("rate", 0.0)


def make_tables(found: Found) -> Tables:
    """Return all tables."""
    held = [one for one in found.measured if one["failed"] is None]
    updates = [row for one in held for row in _updates(one)]
    return Tables(
        updates,
        [row for one in held for row in _coordinates(one)],
        set_facts(found.measured),
        [_setting(one) for one in held],
        _memory(found.memory),
        [_paper_beside(row) for row in _highest(updates)],
        [row for one in found.measured for row in not_applicable(one)],
    )


def keys_of(one: Row) -> dict[str, Any]:
    """The first columns of a piece's rows."""
    return {name: one[name] for name in ("set", "preset", "leaving", "rate")}


def _updates(one: Row) -> Iterable[Row]:
    """BaseL and every update of a piece."""
    base = one["base_l"]
    shared = {
        **keys_of(one),
        **{name: one[name] for name in ("deleted", "majority_rate", "gather_seconds", "visits")},
        "base_l_seconds": base["seconds"],
        "base_l_by": base["by"],
        "base_l_accuracy": base["accuracy"],
        "base_l_mse": base["mse"],
    }
    yield {**base, **shared, "method": BASEL, "kind": NO_PROVENANCE, "speedup": 1.0, "counts": True}
    for update in one["updates"]:
        kept = one["provenance"].get(update["kind"], {})
        yield {
            **update,
            **shared,
            "speedup": base["seconds"] / update["seconds"],
            "rebase_seconds": kept.get("rebase_seconds"),
            "sync_seconds": kept.get("sync_seconds"),
            "provenance_bytes": kept.get("bytes"),
            **counted(update, one["rate"]),
        }


def counted(update: Row, rate: float) -> dict[str, Any]:
    """The bound on an update's distance, and whether it is within."""
    bound, share = distance_bound(update["kind"], rate), update["distance_share"]
    # Where BaseL did not move, nothing but no distance at all will do.
    near = share <= bound if share is not None else update["distance"] == 0.0
    return {"bound": bound, "counts": bool(near and update["finite"])}


def _coordinates(one: Row) -> Iterable[Row]:
    base = one["base_l"]["w"]
    if base is None:
        return
    for update in one["updates"]:
        named = {**keys_of(one), "method": update["method"], "kind": update["kind"]}
        for number, (b, a) in enumerate(zip(base, update["w"], strict=True)):
            known = a is not None and b is not None
            yield {
                **named,
                "coordinate": number,
                "base_l": b,
                "updated": a,
                "flipped": a * b < 0 if known else None,
                "magnitude_change": abs(abs(a) - abs(b)) / abs(b) if known and b else None,
            }


def set_facts(measured: Sequence[Row]) -> list[Row]:
    """One row a set: what its rows are here and in the paper."""
    rows: dict[str, Row] = {}
    for one in measured:
        source, data = SOURCES[SETS[one["set"]].data], one["data"]
        # Sparse rows are all of a logistic model.
        outputs = one["parameters"] // (data["features"] + 1)
        classes = {"linear": None, "logistic": 2}.get(one["loss"], outputs)
        rows[one["set"]] = {
            "set": one["set"],
            **{name: data[name] for name in ("data", "rows", "features", "note")},
            "classes": classes,
            "paper_rows": source.rows,
            "paper_features": source.features,
            "paper_classes": source.classes,
        }
    return list(rows.values())


def _setting(one: Row) -> Row:
    setting = SETS[one["set"]]
    before = {name: one["before"][name] for name in ("accuracy", "mse", "r2")}
    return {
        **{name: one[name] for name in COLUMNS["table2"] if name in one},
        **before,
        "batch_size": setting.batch_size,
        "reference": SOURCES[setting.data].reference,
    }


def _memory(found: Sequence[Row]) -> list[Row]:
    """Table 3: a method's peak beside BaseL's."""
    base = {_study(row): row["peak_bytes"] for row in found if row["method"] == BASEL}
    rows: list[Row] = []
    for row in found:
        peak, own = base.get(_study(row)), row["peak_bytes"]
        paper = MEMORY_GB.get(row["set"], {}).get(row["method"])
        rows.append({**row, "ratio": own / peak if peak else None, "paper_gb": paper})
        if row["method"] == BASEL:
            rows[-1] = {**rows[-1], "provenance_bytes": None}
    return sorted(rows, key=lambda row: (*_study(row), row["method"] != BASEL))


def _study(row: Row) -> tuple[str, str, str]:
    return row["set"], row["preset"], row["leaving"]


def _highest(updates: Sequence[Row]) -> list[Row]:
    """The rows of each study's highest rate."""
    last: dict[tuple[str, str, str], float] = {}
    for row in updates:
        last[_study(row)] = max(last.get(_study(row), 0.0), row["rate"])
    return [row for row in updates if row["rate"] == last[_study(row)]]


def _paper_beside(row: Row) -> Row:
    paper = TABLE_4.get(row["set"], {})
    before = "infl_" if row["method"] == INFL else ""
    names = ("score", "distance", "cosine")
    return {**row, **{f"paper_{name}": paper.get(f"{before}{name}") for name in names}}


def not_applicable(one: Row) -> Iterable[Row]:
    """What a piece has no numbers of, and why."""
    keys = {name: one.get(name) for name in ("set", "preset", "leaving", "rate")}
    if one["failed"] is not None:
        yield {**keys, "method": BASEL, "kind": NO_PROVENANCE, "why": one["failed"]}
    for kind, why in one.get("left_out", {}).items():
        yield {**keys, "method": "all", "kind": kind, "why": why}
    for entry in one.get("not_applicable", ()):
        yield {**keys, **entry}
