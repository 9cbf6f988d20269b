"""Which rows leave in an extended experiment, drawn without an array of all rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import held_out
from .experiment_priu_rows import SUBSETS, split_of, stream
from .experiment_priu_settings import Settings, Study

COUNTED = 1 << 20
"""Units that are counted, or drawn, together."""


def training_rows(settings: Settings, rows: int) -> int:
    """Return how many of the units 0 to rows - 1 are trained on."""
    split = split_of(settings)
    return sum(
        int((~held_out(np.arange(first, min(first + COUNTED, rows)), split)).sum())
        for first in range(0, rows, COUNTED)
    )


def random_subsets(study: Study, settings: Settings, rows: int) -> list[NDArray[np.int64]]:
    """Return disjoint random subsets of the training units, each ascending.

    Each has a share ``settings.rate`` of them, at least one. Memory follows their size alone.
    """
    size = max(1, round(settings.rate * training_rows(settings, rows)))
    wanted = size * settings.subsets
    found = np.empty(0, np.int64)
    draws = _training_draws(study, settings, rows)
    while len(found) < wanted:
        both = np.concatenate([found, next(draws)])
        # The first time that a unit is drawn counts: the order stays that of the draws.
        _, first = np.unique(both, return_index=True)
        found = both[np.sort(first)]
    return [np.sort(found[k * size : (k + 1) * size]) for k in range(settings.subsets)]


def _training_draws(study: Study, settings: Settings, rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield random training units, with repetitions, without end."""
    draw, split = stream(study, settings, SUBSETS), split_of(settings)
    while True:
        units = draw.integers(rows, size=min(rows, COUNTED))
        yield units[~held_out(units, split)]
