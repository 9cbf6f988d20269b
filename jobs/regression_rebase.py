"""What a deletion leaves of a stored block of provenance, by its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.averaged import rebase_averaged_block
from ..pipeline.descent import Trace
from ..pipeline.frozen import FrozenMean, rebase_frozen_block, rebase_mean
from ..pipeline.lowrank import LowRankBlock, rebase_lowrank_block
from ..pipeline.projected import rebase_projected_block
from ..pipeline.regression import AVERAGED, FROZEN, LOWRANK, PROJECTED
from ..pipeline.truncation import tolerance
from ..pipeline.update import rebase_block
from ..pipeline.visits import Leaving, Visits, visits_at
from .regression_arrays import RegressionModel, frozen_block, read_trace
from .regression_curvature import read_mean, svd_arrays
from .regression_projected import read_basis

Arrays = list[NDArray[Any]]
"""A block's chunks of the arrays that ``curvature_names`` lists, in that order."""


def rebased_block(
    model: RegressionModel,
    block: int,
    trace: Trace,
    old: Arrays,
    visits: Visits,
    start: NDArray[np.float64],
) -> tuple[Trace, Arrays]:
    """Return a block's trace and curvature without the visits' rows.

    trace, old: as the model has them. visits: the block's, counted from its first iteration. start:
    (P,) u there.
    """
    settings, descent = model.settings, model.settings.descent
    if settings.provenance == AVERAGED:
        mean = rebase_averaged_block(descent, trace, (old[0][0], old[1][0]), visits, start)
        return mean.trace, [part[np.newaxis] for part in mean.eigen]
    if settings.provenance == PROJECTED:
        basis, eigen = read_basis(model.version, settings.rank), (old[0][0], old[1][0])
        mean = rebase_projected_block(descent, trace, basis, eigen, visits, start)
        return mean.trace, [part[np.newaxis] for part in mean.eigen]
    if settings.provenance == LOWRANK:
        left_out = tolerance(descent, settings.iterations)
        part = LowRankBlock(*old)
        lowrank = rebase_lowrank_block(descent, trace, part, visits, start, left_out)
        return lowrank.trace, list(svd_arrays(lowrank.part).values())
    if settings.provenance == FROZEN and block >= frozen_block(settings):
        frozen = read_mean(model.version)
        return rebase_frozen_block(descent, trace, frozen, visits, start), []
    exact = rebase_block(descent, trace, old[0], visits, start)
    return exact.trace, [exact.packed]


def rebased_mean(
    model: RegressionModel,
    leaving: Leaving,
    when: NDArray[np.int64],
    which: NDArray[np.int64],
    starts: NDArray[np.float64],
    per_epoch: int,
) -> FrozenMean | None:
    """Return kind frozen's mean without some rows; None where it stays as it is.

    when, which: (v,) the leaving rows' uses. starts: (blocks + 1, P) u.
    """
    settings = model.settings
    span, block = settings.frozen(per_epoch), frozen_block(settings)
    used = which[(when >= span.first) & (when < span.sampled)]
    if not len(used) and not starts[block].any():
        return None
    w = read_trace(model.version, block).trajectory[0]
    at = np.zeros(len(used), np.int64)
    gone = visits_at(settings.loss, at, leaving.rows[used], leaving.labels[used], w[np.newaxis])
    return rebase_mean(settings.descent, read_mean(model.version), gone, starts[block])
