"""Training and deleting over rows that lie in memory: one cell, whose slots are the rows.

Nothing here changes what it is given: a deletion returns the next version of a trained model, which
shares the blocks of provenance that the deleted rows never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .closed_form import NormalEquations
from .components import BASIS_ROWS, basis_of
from .descent import Trace, Window, descend
from .design import Design
from .frozen import FrozenBlocks, FrozenCapture
from .influence import add_hessians
from .losses import Loss
from .lowrank import LowRankBlock, LowRankBlocks, stacked
from .projected import ProjectedBlocks
from .provenance import (
    Blocks,
    MeanCurvature,
    Real,
    add_curvature,
    curvature,
    decompose,
    pack,
    packed_size,
)
from .regression import (
    AVERAGED,
    CLOSED_FORM,
    EXACT,
    FROZEN,
    LOWRANK,
    NO_PROVENANCE,
    PRIU,
    PRIU_OPT,
    PROJECTED,
    RegressionSettings,
    keeps_products,
    unusable,
)
from .regression_kinds import (
    AveragedBlocks,
    Deletion,
    ExactBlocks,
    Kept,
    block_product_of,
    rebased,
    stepped_with,
    updated_by_delta,
)
from .regression_methods import FrozenEnd, Known, change_by
from .schedule import Schedule
from .truncation import Factor, LowRankCapture, tolerance
from .update import Updated, strays, update_priu
from .visits import Leaving, find_visits

__all__ = [
    "AveragedBlocks",
    "ExactBlocks",
    "Rows",
    "StrayedError",
    "Trained",
    "delete",
    "summed_hessian",
    "train",
    "windows",
]
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
class Trained:
    """Parameters, and what a deletion needs."""

    w: NDArray[np.float64]
    """(q, m)"""
    trace: Trace
    """Empty where no provenance is kept."""
    kept: Kept | None
    rows: int = 0
    """Live rows."""
    normal: NormalEquations | None = None
    """Of linear models."""


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
    capture = _CAPTURES.get(settings.provenance)
    kept = None if capture is None else capture(settings, design, rows, schedule, trace)
    normal = _normal(design, rows) if settings.loss == Loss.LINEAR else None
    return Trained(w, trace, kept, rows.live, normal)


def _live(design: Design, rows: Rows) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield design rows and labels of the live rows, a piece at a time."""
    index = np.flatnonzero(rows.units >= 0)
    for first in range(0, len(index), PIECE):
        chosen = index[first : first + PIECE]
        yield design.take(rows.x, chosen), rows.labels[chosen]


def _normal(design: Design, rows: Rows) -> NormalEquations:
    total = NormalEquations.none(design.width)
    for x, y in _live(design, rows):
        total += NormalEquations.of(x, y)
    return total


def summed_hessian(
    loss: Loss, design: Design, rows: Rows, w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sum of the live rows' Hessians (P, P) at w (q, m), in its lower triangle."""
    total = np.zeros((w.size, w.size), order="F")
    for x, y in _live(design, rows):
        add_hessians(total, loss, x, curvature(loss, w, x, y))
    return total


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
    return _exact_until(settings, settings.iterations, design, rows, schedule, trace)


def _exact_until(
    settings: RegressionSettings,
    end: int,
    design: Design,
    rows: Rows,
    schedule: Schedule,
    trace: Trace,
) -> ExactBlocks:
    """The curvature of the iterations before ``end``."""
    blocks, size = Blocks(end, settings.block), trace.trajectory.shape[1]
    spans = [blocks.span(block) for block in range(blocks.count)]
    parts = tuple(np.empty((b - a, packed_size(size)), settings.dtype) for a, b in spans)
    total = np.zeros((size, size), settings.dtype, order="F")
    for piece in _pieces(settings.loss, design, rows, schedule, trace):
        if piece.iteration >= end:
            break
        if len(piece.rows):
            add_curvature(total, settings.loss, piece.rows, piece.curved)
        if piece.ends:
            pack(total, parts[piece.iteration // blocks.length][piece.iteration % blocks.length])
            total[:] = 0.0
    epochs = -(-schedule.iterations // schedule.per_epoch)
    products: tuple[NDArray[np.float64], ...] = ()
    if keeps_products(settings, size, epochs):
        products = tuple(
            block_product_of(settings, part, trace.live[a:b])
            for part, (a, b) in zip(parts, spans, strict=True)
        )
    return ExactBlocks(blocks, parts, products)


def _averaged(
    settings: RegressionSettings, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> AveragedBlocks:
    parts = _means(settings, trace.trajectory.shape[1], design, rows, schedule, trace)
    return AveragedBlocks(settings.blocks, tuple(parts))


def _means(
    settings: RegressionSettings,
    size: int,
    design: Design,
    rows: Rows,
    schedule: Schedule,
    trace: Trace,
    seen: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda rows: rows,
) -> list[tuple[NDArray[Real], NDArray[Real]]]:
    """Each block's mean curvature (size, size) of the rows as they are seen, decomposed."""
    kind = np.dtype(settings.dtype).type
    parts: list[tuple[NDArray[Real], NDArray[Real]]] = []
    mean = MeanCurvature(settings.loss, size, kind)
    for piece in _pieces(settings.loss, design, rows, schedule, trace):
        live = int(trace.live[piece.iteration])
        mean.add(seen(piece.rows), piece.curved, live, piece.ends)
        if piece.ends and piece.iteration + 1 == settings.blocks.span(len(parts))[1]:
            parts.append(decompose(mean.mean()))
            mean = MeanCurvature(settings.loss, size, kind)
    return parts


def mean_gram(design: Design, rows: Rows) -> NDArray[np.float64]:
    """Return the mean of x x^T (m, m) over ``BASIS_ROWS`` of the live rows at most."""
    live = np.flatnonzero(rows.units >= 0)
    x = design.take(rows.x, live[:: max(1, -(-len(live) // BASIS_ROWS))])
    gram: NDArray[np.float64] = x.T @ x / len(x)
    return gram


def _projected(
    settings: RegressionSettings, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> ProjectedBlocks:
    kind = np.dtype(settings.dtype).type
    basis = basis_of(mean_gram(design, rows), settings.rank, kind)
    size = trace.trajectory.shape[1] // design.width * settings.rank
    parts = _means(settings, size, design, rows, schedule, trace, basis.inside)
    return ProjectedBlocks(settings.blocks, basis, tuple(parts))


def _lowrank(
    settings: RegressionSettings, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> LowRankBlocks:
    blocks, size = settings.blocks, trace.trajectory.shape[1]
    left_out = tolerance(settings.descent, settings.iterations)
    kind = np.dtype(settings.dtype).type
    capture = LowRankCapture(settings.loss, size, left_out)
    parts: list[LowRankBlock] = []
    factors: list[Factor] = []
    for piece in _pieces(settings.loss, design, rows, schedule, trace):
        live = int(trace.live[piece.iteration])
        found = capture.add(piece.rows, piece.curved, live, piece.ends)
        if found is not None:
            factors.append(found)
            if piece.iteration + 1 == blocks.span(len(parts))[1]:
                parts.append(stacked(factors, size, kind))
                factors = []
                capture = LowRankCapture(settings.loss, size, left_out)
    return LowRankBlocks(blocks, tuple(parts))


def _frozen(
    settings: RegressionSettings, design: Design, rows: Rows, schedule: Schedule, trace: Trace
) -> FrozenBlocks:
    span = settings.frozen(schedule.per_epoch)
    exact = _exact_until(settings, span.first, design, rows, schedule, trace)
    w = trace.trajectory[span.first].reshape(-1, design.width)
    capture = FrozenCapture(settings.loss, w, np.dtype(settings.dtype).type)
    for window in windows(rows, design, schedule):
        for k in range(len(window.edges) - 1):
            if span.first <= window.first + k < span.sampled:
                here = slice(window.edges[k], window.edges[k + 1])
                capture.add(window.rows[here], window.labels[here])
    return FrozenBlocks(settings.blocks, exact, capture.mean())


_CAPTURES: dict[str, Callable[[RegressionSettings, Design, Rows, Schedule, Trace], Kept]] = {
    EXACT: _exact,
    AVERAGED: _averaged,
    LOWRANK: _lowrank,
    FROZEN: _frozen,
    PROJECTED: _projected,
}


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
    hessian: NDArray[np.float64] | None = None,
) -> Trained:
    """Return the model without some rows, by any method but ``basel``, ready for the next deletion.

    hessian: as ``summed_hessian`` gives, for ``infl`` of models that are not linear. Raises
    ValueError where the model lacks what the method needs, and StrayedError where the update can't
    be what a retrain gives.
    """
    kind, kept = settings.provenance, trained.kept
    reason = unusable(method, settings.loss, kind)
    if reason is not None or (kept is None and method != CLOSED_FORM):
        raise ValueError(
            f"method {method!r} {reason or 'needs provenance'}; this model's is {kind!r}"
        )
    known = Known(settings, trained.w.ravel(), trained.rows, leaving, trained.normal, hessian)
    rows, left = trained.rows - len(leaving.rows), known.left
    if kept is None:
        change = change_by(method, known, np.zeros(trained.w.size))
        _check(Updated(change, change[np.newaxis]), trained, True)
        w = trained.w + change.reshape(trained.w.shape)
        return Trained(w, trained.trace, None, rows, left)
    trace = trained.trace
    visits = find_visits(settings.loss, schedule, leaving, trace.trajectory)
    fewer = stepped_with(settings, schedule, trace, kept, leaving)
    updated = updated_by_delta(settings.descent, trace, fewer, visits)
    _check(updated, trained, settings.loss == Loss.LINEAR and kind == EXACT)
    deletion = Deletion(settings, trace, visits, updated)
    if method == PRIU and isinstance(kept, ExactBlocks):
        start = np.zeros(trained.w.size)
        change = update_priu(settings.descent, trace, kept, visits, start) - known.w
    else:
        change = change_by(method, _with_frozen(known, deletion, kept), updated.change)
        # The other methods are asked for whatever their error.
        exactly = settings.loss == Loss.LINEAR or method != PRIU_OPT
        _check(Updated(change, change[np.newaxis]), trained, exactly)
    w = trained.w + change.reshape(trained.w.shape)
    return Trained(w, *rebased(deletion, fewer), rows, left)


def _with_frozen(known: Known, deletion: Deletion, kept: Kept) -> Known:
    """Add what kind ``frozen`` has at t_s."""
    if not isinstance(kept, FrozenBlocks):
        return known
    first = kept.exact.blocks.iterations
    u = deletion.updated.starts[kept.exact.blocks.count]
    end = FrozenEnd(deletion.trace.trajectory[first], u, kept.mean, first)
    return replace(known, frozen=end)
