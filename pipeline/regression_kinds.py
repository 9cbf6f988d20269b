"""The kinds of provenance over rows in memory: an update by method ``delta`` from each, and its rebase.

Nothing here changes what it is given; what a deletion does not touch is shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .averaged import rebase_averaged_block, update_averaged
from .descent import Descent, Trace
from .frozen import (
    FrozenBlocks,
    moved_mean,
    rebase_frozen_block,
    remaining_mean,
    sampled_visits,
    update_frozen,
)
from .lowrank import LowRankBlocks, rebase_lowrank_block, update_lowrank
from .projected import (
    ProjectedBlocks,
    TracedTouches,
    rebase_projected_block,
    update_projected,
)
from .provenance import Blocks, Real, block_product
from .regression import RegressionSettings
from .schedule import Schedule
from .truncation import tolerance
from .update import Updated, rebase_block, update
from .visits import Leaving, Visits


@dataclass(frozen=True, slots=True)
class ExactBlocks:
    """Exact curvature in memory, block by block; implements ``provenance.Exact``."""

    blocks: Blocks
    parts: tuple[NDArray[Real], ...]
    """C_t of each block, packed: (iterations, packed size)."""
    products: tuple[NDArray[np.float64], ...]
    """(P, P) each; none at all where they are not worth keeping."""
    longest_run: int = 1

    def packed(self, first: int, last: int) -> NDArray[Real]:
        """Return C_t of the one block first = last - 1."""
        return self.parts[first]

    def product(self, block: int) -> NDArray[Real] | None:
        """Return the product of a block's steps, if it is kept."""
        return self.products[block] if self.products else None


@dataclass(frozen=True, slots=True)
class AveragedBlocks:
    """Averaged curvature in memory; implements ``provenance.Averaged``."""

    blocks: Blocks
    parts: tuple[tuple[NDArray[Real], NDArray[Real]], ...]

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        """Return a block's eigenvalues (P,) and eigenvectors (P, P)."""
        return self.parts[block]


Kept = ExactBlocks | AveragedBlocks | LowRankBlocks | FrozenBlocks | ProjectedBlocks


def stepped_with(
    settings: RegressionSettings, schedule: Schedule, trace: Trace, kept: Kept, leaving: Leaving
) -> Kept:
    """Return the curvature that an update steps with: kind frozen's mean is that of the rows that stay."""
    if not isinstance(kept, FrozenBlocks):
        return kept
    span = settings.frozen(schedule.per_epoch)
    w = trace.trajectory[span.first]
    gone = sampled_visits(settings.loss, schedule, span, leaving, w)
    return replace(kept, mean=remaining_mean(settings.loss, kept.mean, gone))


def updated_by_delta(descent: Descent, trace: Trace, kept: Kept, visits: Visits) -> Updated:
    """Return the change of the parameters (method ``delta``); kept: as ``stepped_with`` gives."""
    if isinstance(kept, AveragedBlocks):
        return update_averaged(descent, trace, kept, visits)
    if isinstance(kept, LowRankBlocks):
        return update_lowrank(descent, trace, kept, visits)
    if isinstance(kept, FrozenBlocks):
        return update_frozen(descent, trace, kept, visits)
    if isinstance(kept, ProjectedBlocks):
        return update_projected(descent, kept, TracedTouches(trace, visits))
    return update(descent, trace, kept, visits)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion on its way: what left, and what that did to u."""

    settings: RegressionSettings
    trace: Trace
    visits: Visits
    updated: Updated

    def block(self, blocks: Blocks, block: int) -> tuple[Trace, Visits, NDArray[np.float64]]:
        """Return a block's own trace, its visits, and u at its first iteration."""
        first, last = blocks.span(block)
        own = self.visits.part(first, last)
        return self.trace.part(first, last), own, self.updated.starts[block]


def rebased(deletion: Deletion, kept: Kept) -> tuple[Trace, Kept]:
    """Return the provenance without the leaving rows, in memory of its own where it changes.

    kept: as ``stepped_with`` gives.
    """
    trace = deletion.trace
    fresh = Trace(trace.trajectory.copy(), trace.gradients.copy(), trace.live.copy())
    if isinstance(kept, ExactBlocks):
        return fresh, _exact(deletion, kept, fresh)
    if isinstance(kept, AveragedBlocks):
        return fresh, _averaged(deletion, kept, fresh)
    if isinstance(kept, LowRankBlocks):
        return fresh, _lowrank(deletion, kept, fresh)
    if isinstance(kept, ProjectedBlocks):
        return fresh, _projected(deletion, kept, fresh)
    return fresh, _frozen(deletion, kept, fresh)


def block_product_of(
    settings: RegressionSettings, packed: NDArray[Real], live: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the (P, P) product of a block's steps."""
    return block_product(packed, live, settings.learning_rate, settings.descent.decay)


def _exact(deletion: Deletion, kept: ExactBlocks, fresh: Trace) -> ExactBlocks:
    settings = deletion.settings
    parts, products = list(kept.parts), list(kept.products)
    for block in _moved_blocks(kept.blocks, deletion.visits):
        trace, own, start = deletion.block(kept.blocks, block)
        here = rebase_block(settings.descent, trace, kept.parts[block], own, start)
        _put(fresh, kept.blocks.span(block), here.trace)
        if len(own.iteration):
            parts[block] = here.packed
            if products:
                products[block] = block_product_of(settings, here.packed, here.trace.live)
    return ExactBlocks(kept.blocks, tuple(parts), tuple(products))


def _averaged(deletion: Deletion, kept: AveragedBlocks, fresh: Trace) -> AveragedBlocks:
    parts = list(kept.parts)
    for block in _moved_blocks(kept.blocks, deletion.visits):
        trace, own, start = deletion.block(kept.blocks, block)
        here = rebase_averaged_block(
            deletion.settings.descent, trace, kept.parts[block], own, start
        )
        _put(fresh, kept.blocks.span(block), here.trace)
        parts[block] = here.eigen
    return AveragedBlocks(kept.blocks, tuple(parts))


def _lowrank(deletion: Deletion, kept: LowRankBlocks, fresh: Trace) -> LowRankBlocks:
    descent = deletion.settings.descent
    left_out = tolerance(descent, deletion.settings.iterations)
    parts = list(kept.parts)
    for block in _moved_blocks(kept.blocks, deletion.visits):
        trace, own, start = deletion.block(kept.blocks, block)
        here = rebase_lowrank_block(descent, trace, kept.parts[block], own, start, left_out)
        _put(fresh, kept.blocks.span(block), here.trace)
        parts[block] = here.part
    return LowRankBlocks(kept.blocks, tuple(parts))


def _projected(deletion: Deletion, kept: ProjectedBlocks, fresh: Trace) -> ProjectedBlocks:
    descent, parts = deletion.settings.descent, list(kept.parts)
    for block in _moved_blocks(kept.blocks, deletion.visits):
        trace, own, start = deletion.block(kept.blocks, block)
        here = rebase_projected_block(descent, trace, kept.basis, parts[block], own, start)
        _put(fresh, kept.blocks.span(block), here.trace)
        parts[block] = here.eigen
    return ProjectedBlocks(kept.blocks, kept.basis, tuple(parts))


def _frozen(deletion: Deletion, kept: FrozenBlocks, fresh: Trace) -> FrozenBlocks:
    descent, blocks = deletion.settings.descent, kept.blocks
    begin = kept.exact.blocks.count
    exact = kept.exact
    if isinstance(exact, ExactBlocks):
        exact = _exact(deletion, exact, fresh)
    for block in (b for b in _moved_blocks(blocks, deletion.visits) if b >= begin):
        trace, own, start = deletion.block(blocks, block)
        _put(fresh, blocks.span(block), rebase_frozen_block(descent, trace, kept.mean, own, start))
    return FrozenBlocks(blocks, exact, moved_mean(kept.mean, deletion.updated.starts[begin]))


def _moved_blocks(blocks: Blocks, visits: Visits) -> Iterator[int]:
    """Yield the blocks from the first visit on."""
    if len(visits.iteration):
        yield from range(int(visits.iteration[0]) // blocks.length, blocks.count)


def _put(trace: Trace, span: tuple[int, int], part: Trace) -> None:
    """Write a block's trace over its iterations."""
    first, last = span
    trace.trajectory[first:last] = part.trajectory
    trace.gradients[first:last] = part.gradients
    trace.live[first:last] = part.live
