"""Helpers that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
