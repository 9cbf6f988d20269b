"""Deleting rows from a stored regression model: the update, then the rebase as tasks.

The update reads the trajectory from the first visit on and the blocks that it needs, and gives the
new parameters. The rebase rewrites the provenance, one task some blocks, so that later deletions add
up and no stored array holds a deleted row's term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..pipeline.averaged import rebase_averaged_block, update_averaged
from ..pipeline.regression import AVERAGED, PRIU
from ..pipeline.update import Updated, rebase_block, update, update_priu
from ..pipeline.visits import Leaving, visits_at
from ..storage.chunks import link_chunk
from .fold import Fold, split_cells
from .regression_arrays import (
    PRODUCT,
    TRACE,
    Digests,
    RegressionModel,
    StoredAveraged,
    StoredExact,
    StoredTrace,
    read_trace,
)
from .regression_rows import RegressionRows
from .threads import one_blas_thread
from .train_regression import Progress, Target, Written, joined, products_in, write_products

REBASE_RATE = 2e9
"""Curvature values that a thread rebases in a second, roughly."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An update, and what it took."""

    updated: Updated
    first_block: int
    """The first block that has a visit; the number of blocks if none has."""
    when: NDArray[np.int64]
    """(v,) the iterations that use deleted rows, ascending."""
    which: NDArray[np.int64]
    """(v,) the row of each use."""
    seconds: float
    """From the deleted rows in memory to the new parameters."""


def update_stored(
    model: RegressionModel, rows: RegressionRows, leaving: Leaving, method: str
) -> Outcome:
    """Return the change of the parameters by ``delta``, or by ``priu`` with exact provenance.

    Finite or not: a caller checks what it gets.
    """
    settings, version = model.settings, model.version
    started = perf_counter()
    with one_blas_thread():
        when, which = rows.schedule.visits(leaving.cells, leaving.slots)
        first = int(when[0]) // settings.block if len(when) else settings.blocks.count
        reader = StoredTrace(version)
        gone, labels = leaving.rows[which], leaving.labels[which]
        if settings.provenance == AVERAGED:
            at, place = np.unique(when, return_inverse=True)
            trace = reader.trace_at(at)
            terms = visits_at(settings.loss, place, gone, labels, trace.trajectory)
            found = update_averaged(
                settings.descent,
                trace,
                StoredAveraged(version, settings),
                replace(terms, iteration=when),
                at,
            )
        else:
            trace = reader.trace(_needed(model, when, method), settings.iterations)
            visits = visits_at(settings.loss, when, gone, labels, trace.trajectory)
            exact = StoredExact(version, settings)
            found = update(settings.descent, trace, exact, visits)
            if method == PRIU:
                start = trace.trajectory[0]
                w = update_priu(settings.descent, trace, exact, visits, start)
                found = Updated(w - model.parameters.ravel(), found.starts)
    return Outcome(found, first, when, which, perf_counter() - started)


def _needed(model: RegressionModel, when: NDArray[np.int64], method: str) -> list[tuple[int, int]]:
    """The iterations whose trace an update with exact curvature looks at.

    The visited composed blocks', or all from the first visit on where no products are kept; ``priu``
    takes every one.
    """
    settings = model.settings
    if method == PRIU:
        return [(0, settings.iterations)]
    if not len(when):
        return []
    composed = settings.composed
    if not StoredExact(model.version, settings).has_products:
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
    descent = settings.descent
    trace = read_trace(model.version, block)
    rows, labels = gone.rows[gone.which], gone.labels[gone.which]
    visits = visits_at(settings.loss, gone.when, rows, labels, trace.trajectory)
    touched = len(gone.when) > 0
    products: dict[int, NDArray[np.float64]] = {}
    if settings.provenance == AVERAGED:
        version = model.version
        eigen = (
            version.chunk("eigenvalues", (block, 0))[0],
            version.chunk("eigenvectors", (block, 0, 0))[0],
        )
        mean = rebase_averaged_block(descent, trace, eigen, visits, start)
        after = mean.trace
        changed = {
            "eigenvalues": mean.eigen[0][np.newaxis],
            "eigenvectors": mean.eigen[1][np.newaxis],
        }
    else:
        packed = model.version.chunk("C", (block, 0))
        rebased = rebase_block(descent, trace, packed, visits, start)
        after = rebased.trace
        changed = {"C": rebased.packed}
        if touched and PRODUCT in target.specs:
            products = products_in(settings, block, rebased.packed, after.live)
    found: Digests = {}
    for name, values in zip(TRACE, (after.trajectory, after.gradients, after.live), strict=True):
        found |= target.write(name, block, values)
    for name in (n for n in target.specs if n not in (*TRACE, PRODUCT)):
        if touched:
            found |= target.write(name, block, changed[name])
        else:
            found |= _link(model, target, name, block)
    return Written(found, products)


def _link(model: RegressionModel, target: Target, name: str, block: int) -> Digests:
    index = target.index(name, block)
    with target.fence.writing():
        link_chunk(model.version.path, target.path, name, index)
    return {(name, index): model.version.digests[name][index]}


def rebase_stored(
    model: RegressionModel,
    target: Target,
    leaving: Leaving,
    outcome: Outcome,
    fold: Fold,
    progress: Progress,
) -> Digests:
    """Write the next version's provenance; return the digests of all its chunks."""
    blocks = model.settings.blocks
    found = Written({}, {})
    for block in range(outcome.first_block):
        for name in (n for n in target.specs if n != PRODUCT):
            # Read as well: damage must show before the commit, as in the blocks that change.
            model.version.chunk(name, target.index(name, block))
            found.digests.update(_link(model, target, name, block))
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
