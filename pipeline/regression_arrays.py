"""Training and deleting over rows that lie in memory: one cell, whose slots are the rows.

Nothing here changes what it is given: a deletion returns the next version of a trained model, which
shares the blocks of provenance that the deleted rows never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .averaged import rebase_averaged_block, update_averaged
from .descent import Trace, Window, descend
from .design import Design
from .losses import Loss
from .provenance import (
    Blocks,
    MeanCurvature,
    Real,
    add_curvature,
    block_product,
    curvature,
    decompose,
    pack,
    packed_size,
)
from .regression import AVERAGED, EXACT, NO_PROVENANCE, PRIU, RegressionSettings, keeps_products
from .schedule import Schedule
from .update import Updated, rebase_block, strays, update, update_priu
from .visits import Leaving, Visits, find_visits

PIECE = 65_536
"""Rows that are standardised at a time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Training rows as given: the only place that holds them."""

    x: NDArray[np.float32]
    """(n, d)"""
    labels: NDArray[np.float64]
    """(n,) y, +-1 or the class's number."""
    units: NDArray[np.int64]
    """(n,) -1 where a row was deleted."""

    @property
    def live(self) -> int:
        """Rows that are not deleted."""
        return int(np.count_nonzero(self.units >= 0))

    def erase(self, index: NDArray[np.int64]) -> None:
        """Overwrite some rows with holes."""
        self.x[index] = 0
        self.labels[index] = 0
        self.units[index] = -1

    def without(self, index: NDArray[np.int64]) -> Rows:
        """Return the same rows with holes at ``index``; x and labels are shared."""
        units = self.units.copy()
        units[index] = -1
        return Rows(self.x, self.labels, units)

    def leaving(self, design: Design, index: NDArray[np.int64]) -> Leaving:
        """Return some rows as an update wants them."""
        cells = np.zeros(len(index), np.int64)
        return Leaving(design.take(self.x, index), self.labels[index], cells, index)


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


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters, and what a deletion needs."""

    w: NDArray[np.float64]
    """(q, m)"""
    trace: Trace
    """Empty where no provenance is kept."""
    kept: ExactBlocks | AveragedBlocks | None


def windows(rows: Rows, design: Design, schedule: Schedule) -> Iterator[Window]:
    """Yield the live rows as the iterations take them, at most ``PIECE`` slots at a time."""
    size = schedule.batch_slots
    for epoch in range(-(-schedule.iterations // schedule.per_epoch)):
        order = schedule.window_order(epoch, 0)
        begun = epoch * schedule.per_epoch
        stop = min(schedule.slots, (schedule.iterations - begun) * size)
        for first in range(0, stop, PIECE):
            last = min(first + PIECE, stop)
            slots = order[first:last]
            live = rows.units[slots] >= 0
            cuts = np.arange(first // size, -(-last // size) + 1) * size
            before = np.r_[0, np.cumsum(live)]
            edges = before[np.clip(cuts, first, last) - first]
            chosen = slots[live]
            yield Window(
                design.take(rows.x, chosen),
                rows.labels[chosen],
                edges,
                begun + first // size,
                last == stop or last % size == 0,
            )


def train(settings: RegressionSettings, design: Design, rows: Rows, q: int) -> Trained:
    """Return the model of the live rows with q rows of parameters; DivergedError if there is none."""
    schedule = settings.schedule(1, len(rows.x))
    parameters = q * design.width
    keeps = settings.provenance != NO_PROVENANCE
    trace = Trace.empty(settings.iterations if keeps else 0, parameters)
    start = np.zeros((q, design.width))
    w = descend(settings.descent, start, windows(rows, design, schedule), trace)
    if settings.provenance == EXACT:
        return Trained(w, trace, _exact(settings, design, rows, schedule, trace))
    if settings.provenance == AVERAGED:
        return Trained(w, trace, _averaged(settings, design, rows, schedule, trace))
    return Trained(w, trace, None)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of one iteration and their curvature at its w_t."""

    iteration: int
    rows: NDArray[np.float64]
    curved: NDArray[np.float64]
    ends: bool
    """Whether no more rows of the iteration follow."""


def _pieces(
    loss: Loss, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> Iterator[_Piece]:
    for window in windows(rows, design, schedule):
        last = len(window.edges) - 2
        for k in range(last + 1):
            here = slice(window.edges[k], window.edges[k + 1])
            w = trace.trajectory[window.first + k].reshape(-1, design.width)
            curved = curvature(loss, w, window.rows[here], window.labels[here])
            ends = k < last or window.closed
            yield _Piece(window.first + k, window.rows[here], curved, ends)


def _exact(
    settings: RegressionSettings, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> ExactBlocks:
    blocks, size = settings.blocks, trace.trajectory.shape[1]
    spans = [blocks.span(block) for block in range(blocks.count)]
    parts = tuple(np.empty((b - a, packed_size(size)), settings.dtype) for a, b in spans)
    total = np.zeros((size, size), settings.dtype, order="F")
    for piece in _pieces(settings.loss, design, rows, schedule, trace):
        if len(piece.rows):
            add_curvature(total, settings.loss, piece.rows, piece.curved)
        if piece.ends:
            pack(total, parts[piece.iteration // blocks.length][piece.iteration % blocks.length])
            total[:] = 0.0
    epochs = -(-schedule.iterations // schedule.per_epoch)
    products: tuple[NDArray[np.float64], ...] = ()
    if keeps_products(settings, size, epochs):
        products = tuple(
            _product(settings, part, trace.live[a:b])
            for part, (a, b) in zip(parts, spans, strict=True)
        )
    return ExactBlocks(blocks, parts, products)


def _product(
    settings: RegressionSettings, packed: NDArray[Real], live: NDArray[np.int64]
) -> NDArray[np.float64]:
    return block_product(packed, live, settings.learning_rate, settings.descent.decay)


def _averaged(
    settings: RegressionSettings, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> AveragedBlocks:
    blocks, size = settings.blocks, trace.trajectory.shape[1]
    kind = np.dtype(settings.dtype).type
    parts: list[tuple[NDArray[Real], NDArray[Real]]] = []
    mean = MeanCurvature(settings.loss, size, kind)
    for piece in _pieces(settings.loss, design, rows, schedule, trace):
        live = int(trace.live[piece.iteration])
        mean.add(piece.rows, piece.curved, live, piece.ends)
        if piece.ends and piece.iteration + 1 == blocks.span(len(parts))[1]:
            parts.append(decompose(mean.mean()))
            mean = MeanCurvature(settings.loss, size, kind)
    return AveragedBlocks(blocks, tuple(parts))


class StrayedError(ArithmeticError):
    """An update went where the linearisation does not hold."""


def _check(updated: Updated, trained: Trained, exactly: bool) -> None:
    if (reason := strays(updated, trained.w, exactly)) is not None:
        raise StrayedError(reason)


def delete(
    settings: RegressionSettings,
    schedule: Schedule,
    trained: Trained,
    leaving: Leaving,
    method: str,
) -> Trained:
    """Return the model without some rows, by ``delta`` or ``priu``, ready for the next deletion.

    ``priu`` needs exact provenance, and both need some. Raises ValueError otherwise, and
    StrayedError where the update can't be what a retrain gives.
    """
    trace, kept = trained.trace, trained.kept
    if kept is None or (method == PRIU and isinstance(kept, AveragedBlocks)):
        raise ValueError(f"method {method!r} can't be used with provenance {settings.provenance!r}")
    visits = find_visits(settings.loss, schedule, leaving, trace.trajectory)
    if isinstance(kept, AveragedBlocks):
        updated = update_averaged(settings.descent, trace, kept, visits)
        _check(updated, trained, False)
        w = trained.w + updated.change.reshape(trained.w.shape)
        return Trained(w, *_rebased_averaged(settings, trace, kept, visits, updated))
    updated = update(settings.descent, trace, kept, visits)
    _check(updated, trained, settings.loss == Loss.LINEAR)
    w = trained.w + updated.change.reshape(trained.w.shape)
    if method == PRIU:
        w = update_priu(settings.descent, trace, kept, visits, np.zeros(w.size)).reshape(w.shape)
    return Trained(w, *_rebased_exact(settings, trace, kept, visits, updated))


def _rebased_exact(
    settings: RegressionSettings, trace: Trace, kept: ExactBlocks, visits: Visits, updated: Updated
) -> tuple[Trace, ExactBlocks]:
    fresh, parts, products = _copied(trace), list(kept.parts), list(kept.products)
    for block, first, last, own in _moved_blocks(kept.blocks, visits):
        start = updated.starts[block]
        here = rebase_block(
            settings.descent, trace.part(first, last), kept.parts[block], own, start
        )
        _put(fresh, first, last, here.trace)
        if len(own.iteration):
            parts[block] = here.packed
            if products:
                products[block] = _product(settings, here.packed, here.trace.live)
    return fresh, ExactBlocks(kept.blocks, tuple(parts), tuple(products))


def _rebased_averaged(
    settings: RegressionSettings,
    trace: Trace,
    kept: AveragedBlocks,
    visits: Visits,
    updated: Updated,
) -> tuple[Trace, AveragedBlocks]:
    fresh, parts = _copied(trace), list(kept.parts)
    for block, first, last, own in _moved_blocks(kept.blocks, visits):
        start = updated.starts[block]
        here = rebase_averaged_block(
            settings.descent, trace.part(first, last), kept.parts[block], own, start
        )
        _put(fresh, first, last, here.trace)
        parts[block] = here.eigen
    return fresh, AveragedBlocks(kept.blocks, tuple(parts))


def _moved_blocks(blocks: Blocks, visits: Visits) -> Iterator[tuple[int, int, int, Visits]]:
    """Yield (block, its first iteration, one after its last, its visits) from the first visit on."""
    if not len(visits.iteration):
        return
    for block in range(int(visits.iteration[0]) // blocks.length, blocks.count):
        first, last = blocks.span(block)
        yield block, first, last, visits.part(first, last)


def _copied(trace: Trace) -> Trace:
    """Return a trace of the same numbers in memory of its own."""
    return Trace(trace.trajectory.copy(), trace.gradients.copy(), trace.live.copy())


def _put(trace: Trace, first: int, last: int, part: Trace) -> None:
    """Write a block's trace over the iterations first <= t < last."""
    trace.trajectory[first:last] = part.trajectory
    trace.gradients[first:last] = part.gradients
    trace.live[first:last] = part.live
