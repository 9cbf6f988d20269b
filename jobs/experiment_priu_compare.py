"""How an updated model compares with BaseL's, and whether that is near enough for its time to count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import EXACT

MOST_COORDINATES = 1000
"""Parameters of the largest models whose single coordinates are kept."""
EXACT_BOUND, OTHER_BOUND, LARGE_BOUND = 0.005, 0.03, 0.02
BOUNDED_RATE = 0.01
"""Up to here EXACT_BOUND holds for exact provenance, beyond LARGE_BOUND; else OTHER_BOUND."""


def distance_bound(kind: str, rate: float) -> float:
    """Return the largest distance to BaseL, as a share of BaseL's change, with which a time counts."""
    if kind != EXACT:
        return OTHER_BOUND
    return EXACT_BOUND if rate <= BOUNDED_RATE else LARGE_BOUND


def compared(
    w: NDArray[np.float64], base_l: NDArray[np.float64], before: NDArray[np.float64]
) -> dict[str, Any]:
    """Compare parameters (q, m) with BaseL's and with those before the deletion.

    Distances are Euclidean, for standardised features. The change of a coordinate's magnitude is
    ||a| - |b|| / |b| for the updated a and BaseL's b; None where b is 0 for all of them.
    """
    a, b = w.ravel(), base_l.ravel()
    distance, moved = float(np.linalg.norm(a - b)), float(np.linalg.norm(b - before.ravel()))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    some = b != 0
    sizes = np.abs(np.abs(a[some]) - np.abs(b[some])) / np.abs(b[some])
    flipped = np.sign(a) * np.sign(b) < 0
    largest = float(np.abs(b).max())
    return {
        "finite": bool(np.isfinite(a).all()),
        "distance": distance,
        "change": moved,
        "distance_share": distance / moved if moved else None,
        "cosine": float(a @ b) / norms if norms else None,
        "coordinates": len(a),
        "sign_flips": int(flipped.sum()),
        "largest_flipped": float(np.abs(b[flipped]).max()) / largest if flipped.any() else None,
        "median_magnitude_change": float(np.median(sizes)) if len(sizes) else None,
        "largest_magnitude_change": float(sizes.max()) if len(sizes) else None,
    }


def finite(found: dict[str, Any]) -> dict[str, Any]:
    """Return a record with None for numbers that are none, as JSON has no others."""
    return {
        key: None if isinstance(value, float) and not np.isfinite(value) else value
        for key, value in found.items()
    }


def kept_coordinates(w: NDArray[np.float64]) -> list[float | None] | None:
    """Return the parameters for the table of coordinates; None of models that are too large."""
    if w.size > MOST_COORDINATES:
        return None
    return [value if np.isfinite(value) else None for value in w.ravel().tolist()]
