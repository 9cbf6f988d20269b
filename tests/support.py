"""Helpers that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from expunge.pipeline import quantized
from expunge.pipeline.arrays import ArrayPasses, ordinals_of
from expunge.pipeline.quantized import Record, Settings

Cli = Callable[..., Any]
INLINE = ("--cluster", "inline")


def same(a: Record, b: Record) -> None:
    """Fail unless two records agree in every bit."""
    assert a.extent.rows == b.extent.rows
    for name in ("lower", "upper", "lower_count", "upper_count"):
        np.testing.assert_array_equal(getattr(a.extent, name), getattr(b.extent, name))
    assert a.square_sum == b.square_sum
    assert len(a.steps) == len(b.steps)
    for s, t in zip(a.steps, b.steps, strict=True):
        for name in ("analog", "quantized", "phase", "present", "drawn"):
            one, other = getattr(s.centroids, name), getattr(t.centroids, name)
            assert one.tobytes() == other.tobytes(), name
        assert s.tally.sizes.tobytes() == t.tally.sizes.tobytes()
        assert s.tally.sums.tobytes() == t.tally.sums.tobytes()
        assert s.loss == t.loss


def refit(x: np.ndarray, units: np.ndarray, config: Settings) -> Record:
    """Train from nothing with resolved settings; fewer rows than clusters are allowed."""
    return quantized.fit(ArrayPasses(x.copy(), units.copy(), ordinals_of(units)), config)


@st.composite
def small_rows(draw: st.DrawFn, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Rows (n, d) of a kind that k-means finds hard in its own way."""
    kind = draw(st.sampled_from(["uniform", "ties", "blobs", "outlier"]))
    if kind == "uniform":
        return rng.random((n, d))
    if kind == "ties":
        return rng.integers(0, 3, (n, d)).astype(float)
    if kind == "blobs":
        blobs: np.ndarray = rng.integers(0, 4, (n, 1)) + rng.normal(0, 0.1, (n, d))
        return blobs
    outlier: np.ndarray = rng.normal(size=(n, d)) ** 3 * 10.0 ** draw(st.integers(-30, 30))
    return outlier
