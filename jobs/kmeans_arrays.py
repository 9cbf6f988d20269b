"""A k-means record as named arrays of a model version, and back.

The arrays carry the papers' names. Scaled units: features mapped to [0, 1] by ``lower`` and
``upper``. All of them enter the digest; together they are all that a deletion needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.fixedpoint import CENTROID_GRID, LOSS_UNIT, Extent, exact_loss
from ..pipeline.lloyd import Tally
from ..pipeline.quantized import Centroids, Record, Settings, Step
from ..storage.versions import NamedArray

_LIMB = 42


def to_arrays(record: Record, settings: Settings) -> dict[str, NamedArray]:
    """Return the arrays of a record; without rows, those with a step dimension are empty."""
    k, d = settings.n_clusters, len(record.extent.lower)
    steps = [s.centroids for s in record.steps]
    drawn = _stack([c.drawn for c in steps], (k, 2), np.int64)
    seeds = drawn[0] if len(drawn) else np.full((k, 2), -1, np.int64)
    quantized = _stack([c.quantized for c in steps], (k, d), np.int64)
    phases = _stack([c.phase for c in steps], (d,), np.int64)
    per_step = ("step", "cluster")
    limbs = [record.square_sum >> _LIMB, record.square_sum & ((1 << _LIMB) - 1)]
    loss = [s.loss / LOSS_UNIT for s in record.steps]
    return {
        "analog_centroids": NamedArray(
            (*per_step, "feature"), _stack([c.analog for c in steps], (k, d), np.float64)
        ),
        "quantized_centroids": NamedArray(
            (*per_step, "feature"), (quantized / CENTROID_GRID).astype(np.float32)
        ),
        "phases": NamedArray(("step", "feature"), phases / settings.spacing),
        "present": NamedArray(per_step, _stack([c.present for c in steps], (k,), np.bool_)),
        "sizes": NamedArray(
            per_step, _stack([s.tally.sizes for s in record.steps], (k,), np.int64)
        ),
        "sums": NamedArray(
            (*per_step, "feature"), _stack([s.tally.sums for s in record.steps], (k, d), np.int64)
        ),
        "loss": NamedArray(("step",), np.array(loss, np.float64)),
        "seeds": NamedArray(("cluster", "row_key"), seeds),
        "reseeds": NamedArray((*per_step, "row_key"), drawn),
        "lower": NamedArray(("feature",), record.extent.lower),
        "upper": NamedArray(("feature",), record.extent.upper),
        "lower_count": NamedArray(("feature",), record.extent.lower_count),
        "upper_count": NamedArray(("feature",), record.extent.upper_count),
        "square_sum": NamedArray(("limb",), np.array(limbs, np.int64)),
    }


def _stack(
    parts: list[NDArray[Any]], shape: tuple[int, ...], dtype: type[np.generic]
) -> NDArray[Any]:
    return np.stack(parts).astype(dtype) if parts else np.empty((0, *shape), dtype)


def from_arrays(arrays: Mapping[str, NDArray[Any]], settings: Settings) -> Record:
    """Return the record that ``to_arrays`` wrote."""
    high, low = arrays["square_sum"].tolist()
    square_sum = (high << _LIMB) + low
    steps = []
    for i in range(len(arrays["sizes"])):
        centroids = Centroids(
            arrays["analog_centroids"][i],
            np.rint(arrays["quantized_centroids"][i] * float(CENTROID_GRID)).astype(np.int64),
            np.rint(arrays["phases"][i] * settings.spacing).astype(np.int64),
            arrays["present"][i],
            arrays["reseeds"][i],
        )
        tally = Tally(arrays["sizes"][i], arrays["sums"][i])
        loss = exact_loss(square_sum, centroids.quantized, tally.sizes, tally.sums)
        steps.append(Step(centroids, tally, loss))
    rows = int(arrays["sizes"][0].sum()) if steps else 0
    extent = Extent(
        rows, arrays["lower"], arrays["upper"], arrays["lower_count"], arrays["upper_count"]
    )
    return Record(extent, square_sum, tuple(steps))


def settings_to_json(settings: Settings) -> dict[str, Any]:
    """Return resolved settings as JSON values; ``epsilon`` and ``gamma`` as users know them."""
    return {
        "n_clusters": settings.n_clusters,
        "epsilon": settings.spacing / CENTROID_GRID if settings.spacing > 1 else 0.0,
        "gamma": float(settings.gamma),
        "max_iter": settings.max_iter,
        "random_state": settings.random_state,
        "bounds": None if settings.bounds is None else list(settings.bounds),
        "spacing": settings.spacing,
    }


def settings_from_json(found: Mapping[str, Any]) -> Settings:
    """Return the settings that ``settings_to_json`` wrote."""
    bounds = found["bounds"]
    return Settings(
        found["n_clusters"],
        found["spacing"],
        Fraction(repr(found["gamma"])),
        found["max_iter"],
        found["random_state"],
        None if bounds is None else (bounds[0], bounds[1]),
    )
