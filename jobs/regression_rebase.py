"""What a deletion leaves of a stored block of provenance, by its kind, and of the whole model's sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.averaged import rebase_averaged_block
from ..pipeline.descent import Trace
from ..pipeline.frozen import FrozenMean, moved_mean, rebase_frozen_block
from ..pipeline.lowrank import LowRankBlock, rebase_lowrank_block
from ..pipeline.projected import rebase_projected_block
from ..pipeline.regression import AVERAGED, FROZEN, LOWRANK, PROJECTED
from ..pipeline.truncation import tolerance
from ..pipeline.update import rebase_block
from ..pipeline.visits import Leaving, Visits
from ..storage.chunks import link_chunk
from .regression_arrays import BASIS, MEAN, STATISTICS, Digests, RegressionModel, frozen_block
from .regression_curvature import mean_arrays, mean_from, svd_arrays
from .regression_projected import read_basis
from .regression_statistics import statistics_without, write_statistics
from .threads import one_blas_thread
from .train_regression import Target

Arrays = list[NDArray[Any]]
"""A block's chunks of the arrays that ``curvature_names`` lists, in that order."""


def rebased_block(
    model: RegressionModel,
    target: Target,
    block: int,
    trace: Trace,
    old: Arrays,
    visits: Visits,
    start: NDArray[np.float64],
) -> tuple[Trace, Arrays]:
    """Return a block's trace and curvature without the visits' rows.

    trace, old: as the model has them. visits: the block's, counted from its first iteration. start:
    (P,) u there. target: has kind frozen's mean of the rows that stay.
    """
    settings, descent = model.settings, model.settings.descent
    if settings.provenance == AVERAGED:
        found = rebase_averaged_block(descent, trace, (old[0][0], old[1][0]), visits, start)
        return found.trace, [part[np.newaxis] for part in found.eigen]
    if settings.provenance == PROJECTED:
        basis, eigen = read_basis(model.version, settings.rank), (old[0][0], old[1][0])
        found = rebase_projected_block(descent, trace, basis, eigen, visits, start)
        return found.trace, [part[np.newaxis] for part in found.eigen]
    if settings.provenance == LOWRANK:
        left_out = tolerance(descent, settings.iterations)
        part = LowRankBlock(*old)
        lowrank = rebase_lowrank_block(descent, trace, part, visits, start, left_out)
        return lowrank.trace, list(svd_arrays(lowrank.part).values())
    if settings.provenance == FROZEN and block >= frozen_block(settings):
        mean = mean_from(partial(target.read, block=0))
        return rebase_frozen_block(descent, trace, mean, visits, start), []
    exact = rebase_block(descent, trace, old[0], visits, start)
    return exact.trace, [exact.packed]


def link_part(model: RegressionModel, target: Target, name: str, block: int) -> Digests:
    """Share a block's chunk of an array with the next version."""
    index = target.index(name, block)
    with target.fence.writing():
        link_chunk(model.version.path, target.path, name, index)
    return {(name, index): model.version.digests[name][index]}


def write_sums(
    model: RegressionModel,
    target: Target,
    leaving: Leaving,
    mean: FrozenMean | None,
    starts: NDArray[np.float64],
) -> Digests:
    """Write what there is once for the whole model: the statistics, kind frozen's mean, and the basis
    of kind projected, which stays.

    mean: of the rows that stay, at the old w_{t_s}; None if nothing moves. starts: (blocks + 1, P) u.
    """
    found: Digests = {}
    with one_blas_thread():
        if any(name in target.specs for name in STATISTICS):
            found |= write_statistics(target, statistics_without(model, leaving))
        new = {}
        if mean is not None:
            new = mean_arrays(moved_mean(mean, starts[frozen_block(model.settings)]))
        for name in (name for name in (*BASIS, *MEAN) if name in target.specs):
            if name in new:
                found |= target.write(name, 0, new[name])
            else:
                model.version.chunk(name, target.index(name, 0))
                found |= link_part(model, target, name, 0)
    return found
