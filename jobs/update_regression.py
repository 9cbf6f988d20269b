"""Deleting rows from a stored regression model: the update, then the rebase as tasks.

The update reads the trajectory from the first visit on and the blocks that it needs, and gives the
new parameters. The rebase rewrites the provenance, one task some blocks, so that later deletions add
up and no stored array holds a deleted row's term.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..pipeline.averaged import update_averaged
from ..pipeline.descent import Trace
from ..pipeline.frozen import FrozenBlocks, FrozenMean, update_frozen
from ..pipeline.lowrank import update_lowrank
from ..pipeline.projected import update_projected
from ..pipeline.regression import (
    AVERAGED,
    DELTA,
    EXACT,
    FROZEN,
    LOWRANK,
    NO_PROVENANCE,
    PRIU,
    PRIU_OPT,
    PROJECTED,
    RegressionSettings,
)
from ..pipeline.regression_methods import FrozenEnd, Known, change_by
from ..pipeline.update import Updated, update, update_priu
from ..pipeline.visits import Leaving, Visits, visits_at
from .fold import Fold, split_cells
from .regression_arrays import (
    PRODUCT,
    TRACE,
    Digests,
    RegressionModel,
    StoredAveraged,
    StoredExact,
    StoredTrace,
    curvature_names,
    read_trace,
)
from .regression_curvature import (
    StoredFrozen,
    StoredLowRank,
    frozen_without,
    parameters_at,
)
from .regression_projected import StoredProjected, StoredTouches
from .regression_rebase import link_part, rebased_block, write_sums
from .regression_rows import RegressionRows
from .threads import one_blas_thread
from .train_regression import Progress, Target, Written, joined, products_in, write_products
from .update_outcome import Outcome

KEPT_BYTES = 16 << 20
"""Of a trajectory that an update has read, at most, to be kept until its estimate."""
REBASE_RATE = 2e9
"""Curvature values that a thread rebases in a second, roughly."""


@dataclass(frozen=True)
class _Deletion:
    """Rows that leave a stored model, and when they were used."""

    model: RegressionModel
    rows: RegressionRows
    leaving: Leaving
    when: NDArray[np.int64]
    which: NDArray[np.int64]

    @property
    def kind(self) -> str:
        return self.model.settings.provenance

    @cached_property
    def reader(self) -> StoredTrace:
        return StoredTrace(self.model.version)

    @cached_property
    def visited(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Trace]:
        """(k,) the iterations that use deleted rows, each visit's place among them, the trace there."""
        at, place = np.unique(self.when, return_inverse=True)
        return at, place, self.reader.trace_at(at)

    @property
    def known(self) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """See ``Outcome``; None where that would take much memory, or was not read."""
        if self.kind != AVERAGED or not len(self.when):
            return None
        at, _, trace = self.visited
        return (at, trace.trajectory) if trace.trajectory.nbytes <= KEPT_BYTES else None

    @cached_property
    def frozen(self) -> FrozenBlocks:
        """Kind frozen's curvature, with the mean of the rows that stay."""
        span = self.model.settings.frozen(self.rows.schedule.per_epoch)
        used = self.which[(self.when >= span.first) & (self.when < span.sampled)]
        return frozen_without(self.model, self.leaving, used)

    @property
    def mean(self) -> FrozenMean | None:
        """See ``Outcome``."""
        return self.frozen.mean if self.kind == FROZEN and len(self.when) else None

    def trace(self, spans: Iterable[tuple[int, int]]) -> tuple[Trace, Visits]:
        """Return room for the whole trace with some of it read, and the visits' terms there."""
        settings = self.model.settings
        trace = self.reader.trace(spans, settings.iterations)
        gone, labels = self.leaving.rows, self.leaving.labels
        return trace, visits_at(
            settings.loss, self.when, gone, labels, trace.trajectory, self.which
        )


def update_stored(
    model: RegressionModel, rows: RegressionRows, leaving: Leaving, method: str
) -> Outcome:
    """Return the change of the parameters by a method that the model can be updated by.

    Finite or not: a caller checks what it gets. ValueError where the model keeps nothing for it.
    """
    settings = model.settings
    started = perf_counter()
    with one_blas_thread():
        when, which = rows.schedule.visits(leaving.cells, leaving.slots)
        here = _Deletion(model, rows, leaving, when, which)
        first = settings.blocks.count
        if len(when) and here.kind != NO_PROVENANCE:
            first = int(when[0]) // settings.block
        if method in (DELTA, PRIU):
            found = _by_delta(here, method)
            seconds = perf_counter() - started
            return Outcome(found, first, when, which, seconds, known=here.known, mean=here.mean)
        change = _by_method(here, method)
        seconds = perf_counter() - started
        starts = np.zeros((settings.composed.count + 1, change.size))
        if settings.provenance != NO_PROVENANCE:
            starts = _by_delta(here, DELTA).starts
        preparing = perf_counter() - started - seconds
        found = Updated(change, starts)
        return Outcome(found, first, when, which, seconds, preparing, here.known, here.mean)


def _by_delta(here: _Deletion, method: str) -> Updated:
    """Method ``delta``, or ``priu`` with exact provenance."""
    model, settings = here.model, here.model.settings
    descent, version = settings.descent, model.version
    if here.kind == AVERAGED:
        return _by_averages(here)
    if here.kind == PROJECTED:
        touches = StoredTouches(model, here.leaving, here.when, here.which)
        return update_projected(descent, StoredProjected(version, settings), touches)
    if here.kind not in (EXACT, LOWRANK, FROZEN):
        raise ValueError(f"the model keeps no provenance that method {method!r} could use")
    trace, visits = here.trace(_needed(model, here.when, method))
    if here.kind == LOWRANK:
        return update_lowrank(descent, trace, StoredLowRank(version, settings), visits)
    if here.kind == FROZEN:
        return update_frozen(descent, trace, here.frozen, visits)
    exact = StoredExact(version, settings)
    found = update(descent, trace, exact, visits)
    if method == PRIU:
        w = update_priu(descent, trace, exact, visits, trace.trajectory[0])
        found = Updated(w - model.parameters.ravel(), found.starts)
    return found


def _by_averages(here: _Deletion) -> Updated:
    settings, leaving = here.model.settings, here.leaving
    at, place, trace = here.visited
    gone, labels = leaving.rows, leaving.labels
    terms = visits_at(settings.loss, place, gone, labels, trace.trajectory, here.which)
    averaged = StoredAveraged(here.model.version, settings)
    return update_averaged(
        settings.descent, trace, averaged, replace(terms, iteration=here.when), at
    )


def _by_method(here: _Deletion, method: str) -> NDArray[np.float64]:
    """The change (P,) by a method that needs no trace, but for kind frozen's up to t_s."""
    model = here.model
    statistics = model.statistics()
    end = None
    if method == PRIU_OPT and statistics.normal is None and here.kind == FROZEN:
        end = _until_frozen(here)
    known = Known(
        model.settings,
        model.parameters.ravel(),
        model.lineage.rows,
        here.leaving,
        statistics.normal,
        statistics.hessian,
        end,
    )
    return change_by(method, known, np.empty(0))


def _until_frozen(here: _Deletion) -> FrozenEnd:
    """Kind frozen's update up to t_s, by ``delta``."""
    settings, version = here.model.settings, here.model.version
    frozen = StoredFrozen(version, settings)
    first = frozen.exact.blocks.iterations
    early = here.when[here.when < first]
    u = np.zeros(here.model.parameters.size)
    if len(early):
        begin = int(early[0]) // settings.block * settings.block
        trace, visits = here.trace([(begin, first)])
        before = visits.between(0, first)
        u = update(settings.descent, trace.part(0, first), frozen.exact, before).change
    return FrozenEnd(parameters_at(here.model, first), u, frozen.mean, first)


def _needed(model: RegressionModel, when: NDArray[np.int64], method: str) -> list[tuple[int, int]]:
    """The iterations whose trace an update looks at, but for averaged curvature.

    The visited composed blocks', or all from the first visit on where no products are kept; ``priu``
    takes every one.
    """
    settings = model.settings
    if method == PRIU:
        return [(0, settings.iterations)]
    if not len(when):
        return []
    composed = settings.composed
    if PRODUCT not in model.version.specs:
        return [(composed.span(int(when[0]) // composed.length)[0], settings.iterations)]
    touched = np.unique(when // composed.length)
    runs = np.split(touched, np.flatnonzero(np.diff(touched) != 1) + 1)
    return [(composed.span(int(r[0]))[0], composed.span(int(r[-1]))[1]) for r in runs]


@dataclass(frozen=True, slots=True)
class _Gone:
    """The deleted rows that visit some block, and when."""

    when: NDArray[np.int64]
    """(v,) iterations counted from the block's first."""
    which: NDArray[np.int64]
    """(v,) the row of each visit."""
    rows: NDArray[np.float64]
    """(n, m)"""
    labels: NDArray[np.float64]
    """(n,)"""


@dataclass(frozen=True, slots=True)
class RebaseTask:
    """Blocks to write into the next version."""

    model: RegressionModel
    target: Target
    blocks: tuple[int, ...]
    gone: tuple[_Gone, ...]
    starts: NDArray[np.float64]
    """(blocks, P) u at each block's first iteration."""


def rebase_blocks(task: RebaseTask) -> Written:
    """Write the chunks of some blocks: rebased where rows or u change them, linked where not."""
    found = Written({}, {})
    with one_blas_thread():
        for block, gone, start in zip(task.blocks, task.gone, task.starts, strict=True):
            found |= _rebase(task.model, task.target, block, gone, start)
    return found


def _rebase(
    model: RegressionModel,
    target: Target,
    block: int,
    gone: _Gone,
    start: NDArray[np.float64],
) -> Written:
    settings = model.settings
    trace = read_trace(model.version, block)
    rows, labels = gone.rows[gone.which], gone.labels[gone.which]
    visits = visits_at(settings.loss, gone.when, rows, labels, trace.trajectory)
    names = curvature_names(settings, block)
    old = [model.version.chunk(name, target.index(name, block)) for name in names]
    after, new = rebased_block(model, target, block, trace, old, visits, start)
    products: dict[int, NDArray[np.float64]] = {}
    touched = len(gone.when) > 0
    if touched and PRODUCT in target.specs:
        products = products_in(settings, block, new[0], after.live)
    found: Digests = {}
    for name, values in zip(TRACE, (after.trajectory, after.gradients, after.live), strict=True):
        found |= target.write(name, block, values)
    for name, values in zip(names, new, strict=True):
        if touched:
            found |= target.write(name, block, values)
        else:
            found |= link_part(model, target, name, block)
    return Written(found, products)


def rebase_stored(
    model: RegressionModel,
    target: Target,
    leaving: Leaving,
    outcome: Outcome,
    fold: Fold,
    progress: Progress,
) -> Digests:
    """Write the next version's provenance; return the digests of all its chunks."""
    found = Written({}, {})
    blocks = model.settings.blocks
    found.digests.update(write_sums(model, target, leaving, outcome.mean, outcome.updated.starts))
    for block in range(outcome.first_block):
        for name in _block_names(model.settings, block):
            # Read as well: damage must show before the commit, as in the blocks that change.
            model.version.chunk(name, target.index(name, block))
            found.digests.update(link_part(model, target, name, block))
    todo = range(outcome.first_block, blocks.count)
    if not todo:
        return found.digests | _products(model, target, {})
    when, which = outcome.when, outcome.which
    edges = np.searchsorted(when, np.arange(blocks.count + 1) * blocks.length)
    per = blocks.length // model.settings.composed.length
    values = model.settings.iterations * model.parameters.size**2
    groups = split_cells(todo, values / REBASE_RATE, fold.workers)
    for start in range(0, len(groups), 2 * fold.workers):
        tasks = [
            RebaseTask(
                model,
                target,
                group,
                tuple(_gone(leaving, when, which, edges, b, blocks.length) for b in group),
                outcome.updated.starts[[b * per for b in group]],
            )
            for group in groups[start : start + 2 * fold.workers]
        ]
        written: Written = fold(rebase_blocks, tasks, joined)
        found |= written
        progress(f"rebase: block {tasks[-1].blocks[-1] + 1} of {blocks.count}")
    return found.digests | _products(model, target, found.products)


def _block_names(settings: RegressionSettings, block: int) -> tuple[str, ...]:
    """The arrays that have a chunk of a block."""
    if settings.provenance == NO_PROVENANCE:
        return ()
    return (*TRACE, *curvature_names(settings, block))


def _products(
    model: RegressionModel, target: Target, changed: dict[int, NDArray[np.float64]]
) -> Digests:
    """Write the products, changed and unchanged."""
    if PRODUCT not in target.specs:
        return {}
    old = model.version.read(PRODUCT)
    return write_products(target, dict(enumerate(old)) | changed)


def _gone(
    leaving: Leaving,
    when: NDArray[np.int64],
    which: NDArray[np.int64],
    edges: NDArray[np.int64],
    block: int,
    length: int,
) -> _Gone:
    here = slice(edges[block], edges[block + 1])
    own, place = np.unique(which[here], return_inverse=True)
    return _Gone(when[here] - block * length, place, leaving.rows[own], leaving.labels[own])
