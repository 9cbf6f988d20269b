"""The tables of an extended experiment, computed from its pieces alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from ..pipeline.regression import BASEL, NO_PROVENANCE
from .experiment_extended_settings import (
    ExtendedAsked,
    ExtendedSettings,
    basel_piece,
    cluster_piece,
    regression_name,
    update_piece,
)
from .experiment_priu_compare import compared, distance_bound, finite
from .experiment_priu_paper import REPEATED_SECONDS
from .experiment_results import Pieces, Row
from .kmeans_models import PROVENANCE

MEASURED, MEDIAN = "measured", "median"
COLUMNS: dict[str, dict[str, str]] = {
    "extended": {
        "set": "data set",
        "preset": "hyper-parameters of the regression; empty for the k-means family",
        "method": "how rows leave; basel: the retrain itself",
        "kind": "kind of provenance",
        "subset": "number of the subset, from 1",
        "deleted": "rows of the subset",
        "update_seconds": "regressions: from the deleted rows in memory to the new parameters (median "
        "of the repeats); k-means family: to the next version on disk, synced",
        "basel_seconds": "the retrain's seconds",
        "basel": f"{MEASURED}, or {MEDIAN} of those measured where this subset has none of its own",
        "ratio": "basel_seconds / update_seconds",
        "gather_seconds": "reading the subset's rows",
        "rebase_seconds": "rewriting the provenance for a later deletion",
        "sync_seconds": "making that version durable",
        "distance": "Euclidean distance to the retrain: parameters for standardised features, or "
        "centroids in scaled units",
        "change": "distance that the retrain moves; the update where there is no retrain",
        "distance_share": "distance / change",
        "bound": "the largest distance_share with which the time counts; 0 for exact deletions",
        "counts": "whether it is within the bound; of the k-means family whether both are the same bits",
        "action": "k-means family: unchanged, replayed, resumed or retrained",
        "passes": "over the rows; dc-kmeans: over a leaf's",
        "looked_at": "rows that were decided again, with labels and margins",
        "reason": "why that was done",
        "peak_bytes": "most memory of the driver and of any worker meanwhile (VmHWM)",
        "bytes_read": "by gathering, update and rebase",
        "bytes_written": "by the rebase, or the next version",
    },
    "medians": {
        "set": "data set",
        "preset": "hyper-parameters of the regression; empty for the k-means family",
        "method": "how rows leave; basel: the retrain itself",
        "kind": "kind of provenance",
        "subsets": "how many were measured",
        "update_seconds": "median",
        "basel_seconds": "median",
        "ratio": "median",
        "gather_seconds": "median",
        "rebase_seconds": "median",
        "distance_share": "median",
        "largest_share": "largest distance_share",
        "counts": "whether all subsets' times count",
        "peak_bytes": "largest",
        "bytes_read": "median",
        "bytes_written": "median",
        "total_seconds": "all subsets' updates; basel: retrains",
        "paper_seconds": "the paper's total of ten subsets, on its authors' machine",
    },
    "not_applicable": {
        "set": "data set",
        "preset": "hyper-parameters",
        "method": "method",
        "kind": "kind of provenance, or the model that could not be trained",
        "why": "why there are no numbers",
    },
}


def extended_rows(
    pieces: Pieces, settings: ExtendedSettings, asked: ExtendedAsked, facts: Row
) -> list[dict[str, Any]]:
    """Return a row a subset and method, in the order of presets, algorithms and subsets."""
    rows: list[dict[str, Any]] = []
    subsets = range(settings.regression.subsets)
    for preset in asked.presets:
        retrains = _found(pieces, (basel_piece(asked, preset, k) for k in subsets))
        updates = _found(pieces, (update_piece(asked, preset, k) for k in subsets))
        rows += _regression(settings, asked, preset, retrains, updates, facts)
    for algorithm in asked.algorithms:
        names = {
            what: [cluster_piece(asked, algorithm, what, k) for k in subsets]
            for what in ("update", "retrain")
        }
        retrains, updates = (_found(pieces, names[what]) for what in ("retrain", "update"))
        kind = facts["models"].get(algorithm, {}).get("settings", {}).get(PROVENANCE)
        rows += _clusters(asked, algorithm, kind or NO_PROVENANCE, retrains, updates)
    return rows


def _found(pieces: Pieces, names: Iterable[str]) -> dict[int, Row]:
    """The pieces that are there, by subset."""
    found = (pieces.find(name) for name in names)
    return {piece["subset"]: piece for piece in found if piece is not None}


def _basel(retrains: Mapping[int, Row], subset: int) -> tuple[float | None, str | None]:
    """A retrain's seconds, and whether they are this subset's own."""
    known = {k: one["seconds"] for k, one in retrains.items() if one.get("failed") is None}
    if subset in known:
        return float(known[subset]), MEASURED
    return (median(known.values()), MEDIAN) if known else (None, None)


def _regression(
    settings: ExtendedSettings,
    asked: ExtendedAsked,
    preset: str,
    retrains: Mapping[int, Row],
    updates: Mapping[int, Row],
    facts: Row,
) -> Iterable[dict[str, Any]]:
    """BaseL's rows and the updates' of one preset."""
    shared = {"set": asked.data_set, "preset": preset}
    for subset, one in sorted(retrains.items()):
        if one["failed"] is None:
            measured = {name: one[name] for name in ("peak_bytes", "bytes_read", "bytes_written")}
            named = {**shared, "method": BASEL, "kind": NO_PROVENANCE, "subset": subset + 1}
            took = {"update_seconds": one["seconds"], "basel_seconds": one["seconds"]}
            yield {**named, **took, "basel": MEASURED, "ratio": 1.0, "counts": True, **measured}
    gone = 0
    for subset, one in sorted(updates.items()):
        gone = one["deleted"] + (gone if settings.sequential else 0)
        seconds, how = _basel(retrains, subset)
        base = retrains.get(subset)
        for update in one["updates"]:
            trained = facts["models"][regression_name(preset, update["model"])]["rows"]
            w = None if base is None or base["failed"] is not None else base["w"]
            rebase = one["rebases"][update["model"]] or {}
            parts = [one["gather"], update, rebase]
            yield {
                **shared,
                "method": update["method"],
                "kind": update["kind"],
                "subset": subset + 1,
                "deleted": one["deleted"],
                "update_seconds": update["seconds"],
                "basel_seconds": seconds,
                "basel": how,
                "ratio": None if seconds is None else seconds / update["seconds"],
                "gather_seconds": one["gather"]["seconds"],
                "rebase_seconds": rebase.get("seconds"),
                "sync_seconds": rebase.get("sync_seconds"),
                **_apart(update, w, one["before"], gone / trained),
                "peak_bytes": max(part.get("peak_bytes", 0) for part in parts),
                "bytes_read": sum(part.get("bytes_read", 0) for part in parts),
                "bytes_written": sum(part.get("bytes_written", 0) for part in parts),
            }


def _apart(
    update: Row, base: Sequence[float] | None, before: Sequence[float], rate: float
) -> dict[str, Any]:
    """How far an update is from BaseL, and whether that is near enough."""
    bound = distance_bound(update["kind"], rate)
    if update["w"] is None:
        return {"distance": None, "change": None, "distance_share": None, "counts": False}
    w, first = np.array(update["w"]), np.array(before)
    if base is None:
        change = float(np.linalg.norm(w - first))
        return {"distance": None, "change": change, "distance_share": None, "bound": bound}
    found = finite(compared(w, np.array(base), first))
    share = found["distance_share"]
    near = found["distance"] == 0.0 if share is None else share <= bound
    kept = {name: found[name] for name in ("distance", "change", "distance_share")}
    return {**kept, "bound": bound, "counts": bool(near)}


def _clusters(
    asked: ExtendedAsked,
    algorithm: str,
    kind: str,
    retrains: Mapping[int, Row],
    updates: Mapping[int, Row],
) -> Iterable[dict[str, Any]]:
    """The rows of a model of the k-means family."""
    for subset, one in sorted(updates.items()):
        seconds, how = _basel(retrains, subset)
        base = retrains.get(subset)
        yield {
            "set": asked.data_set,
            "preset": None,
            "method": algorithm,
            "kind": kind,
            "subset": subset + 1,
            "deleted": one["deleted"],
            "update_seconds": one["seconds"],
            "basel_seconds": seconds,
            "basel": how,
            "ratio": None if seconds is None else seconds / one["seconds"],
            "gather_seconds": one["gather_seconds"],
            **_centroids_apart(one, base),
            **{name: one.get(name) for name in ("action", "passes", "looked_at", "reason")},
            "peak_bytes": one["peak_bytes"],
            "bytes_read": one["gather_bytes"] + one["bytes_read"],
            "bytes_written": one["bytes_written"],
        }


def _centroids_apart(update: Row, base: Row | None) -> dict[str, Any]:
    """Distances of centroids; None where they can't be paired. Exact: equal digests."""
    change = _norm(update["centroids"], update["before"])
    if base is None:
        return {"distance": None, "change": change, "distance_share": None, "bound": 0.0}
    distance = _norm(update["centroids"], base["centroids"])
    moved = _norm(base["centroids"], update["before"])
    share = distance / moved if distance is not None and moved else None
    same = update["digest"] == base["digest"]
    return {
        "distance": distance,
        "change": moved,
        "distance_share": share,
        "bound": 0.0,
        "counts": same,
    }


def _norm(one: Sequence[Any], other: Sequence[Any]) -> float | None:
    a, b = np.array(one), np.array(other)
    return float(np.linalg.norm(a - b)) if a.shape == b.shape else None


def extended_medians(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one row a preset and method: medians over the subsets."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row["set"], row["preset"], row["method"], row["kind"])
        groups.setdefault(key, []).append(row)
    return [_median_row(key, mine) for key, mine in groups.items()]


def _median_row(key: tuple[Any, ...], mine: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(("set", "preset", "method", "kind"), key, strict=True))
    found["subsets"] = len(mine)
    for name in (
        *("update_seconds", "basel_seconds", "ratio", "gather_seconds", "rebase_seconds"),
        *("distance_share", "bytes_read", "bytes_written"),
    ):
        known = [row[name] for row in mine if row.get(name) is not None]
        found[name] = median(known) if known else None
    shares = [row["distance_share"] for row in mine if row.get("distance_share") is not None]
    judged = [row["counts"] for row in mine if row.get("counts") is not None]
    return {
        **found,
        "largest_share": max(shares, default=None),
        "counts": all(judged) if judged else None,
        "peak_bytes": max(row["peak_bytes"] for row in mine),
        "total_seconds": sum(row["update_seconds"] for row in mine),
        "paper_seconds": REPEATED_SECONDS.get(found["set"], {}).get(found["method"]),
    }


def extended_not_applicable(
    pieces: Pieces, settings: ExtendedSettings, asked: ExtendedAsked, facts: Row
) -> list[dict[str, Any]]:
    """Return the methods and kinds that have no numbers, and why."""
    found = []
    for preset in asked.presets:
        shared = {"set": asked.data_set, "preset": preset}
        for subset in range(settings.regression.subsets):
            base = pieces.find(basel_piece(asked, preset, subset))
            if base is not None and base["failed"] is not None:
                named = {"method": BASEL, "kind": NO_PROVENANCE, "why": base["failed"]}
                found.append({**shared, **named})
        one = pieces.find(update_piece(asked, preset, 0))
        found += [{**shared, **lack} for lack in (one or {}).get("not_applicable", [])]
    for name, why in facts["left_out"].items():
        preset, _, kind = name.partition(".")
        found.append(
            {"set": asked.data_set, "preset": preset, "method": "all", "kind": kind, "why": why}
        )
    return found
