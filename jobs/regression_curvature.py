"""Stored curvature of the kinds lowrank and frozen."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.frozen import FrozenBlocks, FrozenMean, leaving_terms, remaining_mean
from ..pipeline.lowrank import LowRankBlock
from ..pipeline.provenance import Blocks
from ..pipeline.regression import RegressionSettings
from ..pipeline.visits import Leaving
from ..storage.versions import Version
from .regression_arrays import MEAN, SVD, RegressionModel, StoredExact, StoredTrace


class StoredLowRank:
    """Truncated curvature of a stored model; implements ``pipeline.lowrank.LowRank``."""

    def __init__(self, version: Version, settings: RegressionSettings) -> None:
        self._version = version
        self._reader = StoredTrace(version)
        self.blocks: Blocks = settings.blocks

    def part(self, block: int) -> LowRankBlock:
        first, last = self.blocks.span(block)
        return self.parts(first, last)

    def parts(self, first: int, last: int) -> LowRankBlock:
        """Return the factors of the iterations first <= t < last."""
        found = []
        for name in SVD:
            spec = self._version.specs[name]
            out = np.empty((last - first, *spec.shape[1:]), spec.dtype)
            if out.size:
                self._reader.read(name, first, out)
            found.append(out)
        return LowRankBlock(*found)


class StoredFrozen:
    """Frozen curvature of a stored model, all rows' mean; implements ``pipeline.frozen.Frozen``."""

    def __init__(self, version: Version, settings: RegressionSettings) -> None:
        self._version = version
        self.blocks: Blocks = settings.blocks
        first = settings.frozen(1).first
        self.exact = StoredExact(version, settings, Blocks(first, settings.block))

    @cached_property
    def mean(self) -> FrozenMean:
        return read_mean(self._version)


def frozen_without(
    model: RegressionModel, leaving: Leaving, used: NDArray[np.int64]
) -> FrozenBlocks:
    """Return a model's frozen curvature with the mean of the rows that stay.

    used: the leaving row of each use that C* counts.
    """
    kept, loss = StoredFrozen(model.version, model.settings), model.settings.loss
    w = parameters_at(model, kept.exact.blocks.iterations)
    own = Leaving(
        leaving.rows[used], leaving.labels[used], leaving.cells[used], leaving.slots[used]
    )
    mean = remaining_mean(loss, kept.mean, leaving_terms(loss, own, w))
    return FrozenBlocks(kept.blocks, kept.exact, mean)


def parameters_at(model: RegressionModel, iteration: int) -> NDArray[np.float64]:
    """Return w_t (P,), unchecked."""
    w = np.empty((1, model.parameters.size))
    StoredTrace(model.version).read("trajectory", iteration, w)
    found: NDArray[np.float64] = w[0]
    return found


def read_mean(version: Version) -> FrozenMean:
    """Return the rows' terms at t_s, each chunk checked."""
    return mean_from(version.read)


def mean_from(read: Callable[[str], NDArray[Any]]) -> FrozenMean:
    """Return the rows' terms at t_s in the arrays of ``MEAN``, read by name."""
    values, vectors, gradient, rows = (read(name) for name in MEAN)
    return FrozenMean(values, vectors, gradient, int(rows[0]))


def mean_arrays(mean: FrozenMean) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``MEAN``."""
    rows = np.array([mean.rows], np.int64)
    return dict(zip(MEAN, (mean.values, mean.vectors, mean.gradient, rows), strict=True))


def svd_arrays(part: LowRankBlock) -> dict[str, NDArray[Any]]:
    """Return a block's chunks of the arrays of ``SVD``."""
    found = (part.scaled, part.vectors, part.ranks, part.rests)
    return dict(zip(SVD, found, strict=True))
