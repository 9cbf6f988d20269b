"""Training a regression on stored rows: the descent first, then its provenance as tasks.

The descent is sequential and cheap: it runs in the driver, window by window, read ahead, and
writes its trajectory block by block. Given the trajectory, each block's curvature is a task of its
own. Both go on where they were when the process is killed: a chunk that is there is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.descent import Descender, DivergedError, Trace
from ..pipeline.frozen import FrozenCapture
from ..pipeline.losses import Loss
from ..pipeline.lowrank import stacked
from ..pipeline.provenance import (
    MeanCurvature,
    add_curvature,
    block_product,
    curvature,
    decompose,
    pack,
    packed_size,
)
from ..pipeline.regression import (
    FROZEN,
    LOWRANK,
    MEANS,
    NO_PROVENANCE,
    PROJECTED,
    RegressionSettings,
)
from ..pipeline.truncation import Factor, LowRankCapture, tolerance
from ..storage.chunks import (
    Index,
    chunk_indices,
    chunk_slices,
    has_chunk,
    hash_chunk,
    read_chunk,
    write_chunk,
)
from ..storage.fence import Fence
from ..storage.schema import ArraySpec
from .errors import DivergenceError
from .fold import Fold, split_cells
from .regression_arrays import (
    BASIS,
    MEAN,
    PRODUCT,
    TRACE,
    UNDIVIDED,
    Digests,
    curvature_names,
    frozen_block,
)
from .regression_curvature import mean_arrays, svd_arrays
from .regression_projected import basis_arrays, basis_from, found_basis
from .regression_rows import RegressionRows, cut
from .threads import one_blas_thread

STRETCH_BYTES = 64 << 20
"""Trace that the descent holds before it writes it down."""
CAPTURE_RATE = 2e10
"""Floating-point operations that a thread does in a second when it captures, roughly."""
CAPTURE_TASKS = 20
"""A capturing task is so many times longer than others: it reads whole windows."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """Where a version's chunks are written, and by whose leave."""

    path: Path
    specs: Mapping[str, ArraySpec]
    fence: Fence

    def index(self, name: str, block: int) -> Index:
        """Return a block's chunk index in an array; arrays of the whole model have one."""
        block = 0 if name in UNDIVIDED else block
        return (block, *([0] * (len(self.specs[name].shape) - 1)))

    def has(self, name: str, block: int) -> bool:
        """Whether a block's chunk is there already."""
        return has_chunk(self.path, name, self.index(name, block))

    def write(self, name: str, block: int, values: NDArray[np.generic]) -> Digests:
        """Write a block's chunk; return its digest."""
        index = self.index(name, block)
        with self.fence.writing():
            return {(name, index): write_chunk(self.path, name, self.specs[name], index, values)}

    def written(self, name: str, block: int) -> Digests:
        """Return the digest of a chunk from before a crash."""
        index = self.index(name, block)
        return {(name, index): hash_chunk(self.path, name, self.specs[name], index)}

    def read(self, name: str, block: int) -> NDArray[Any]:
        """Return a block's chunk as this training wrote it."""
        return read_chunk(self.path, name, self.specs[name], self.index(name, block), None)

    def trace(self, block: int) -> Trace:
        """Return a block's trace."""
        trajectory, gradients, live = (self.read(name, block) for name in TRACE)
        return Trace(trajectory, gradients, live)


def descend_stored(
    rows: RegressionRows, target: Target | None, progress: Progress, fused: bool | None = None
) -> tuple[NDArray[np.float64], Digests]:
    """Train on stored rows; return the parameters (q, m) and the digests of the trace's chunks.

    Goes on after the last block that ``target`` holds; None keeps no trace. fused: which gradient,
    by shape if None. DivergenceError names the iteration.
    """
    settings = rows.settings
    blocks, tau = settings.blocks, settings.iterations
    w = np.zeros((rows.outputs, rows.width))
    digests: Digests = {}
    done = 0
    if target is not None:
        while done < blocks.count and all(target.has(name, done) for name in TRACE):
            for name in TRACE:
                digests |= target.written(name, done)
            done += 1
        if done:
            w = _after(rows, target.trace(done - 1))
    stretch = max(1, STRETCH_BYTES // (16 * rows.parameters * blocks.length))
    with one_blas_thread():
        for first in range(done, blocks.count, stretch):
            last = min(first + stretch, blocks.count)
            begin, end = blocks.span(first)[0], blocks.span(last - 1)[1]
            trace = Trace.empty(end - begin if target else 0, rows.parameters)
            w = _descend(rows, w, trace, begin, end, fused)
            if target is not None:
                digests |= _write_trace(rows, target, trace, first, last)
            progress(f"iteration {end} of {tau}")
    return w, digests


def _descend(
    rows: RegressionRows,
    w: NDArray[np.float64],
    trace: Trace,
    begin: int,
    end: int,
    fused: bool | None,
) -> NDArray[np.float64]:
    descender = Descender(rows.settings.descent, w.copy(), trace, fused)
    try:
        for window in rows.windows(begin, end):
            descender.take(window.shifted(begin))
    except DivergedError as error:
        raise DivergenceError(
            f"training diverged at iteration {error.iteration + begin}: choose a smaller "
            "learning_rate"
        ) from error
    return descender.w


def _after(rows: RegressionRows, trace: Trace) -> NDArray[np.float64]:
    """The parameters after a trace's last iteration, as the descent itself computes them."""
    descent, live = rows.settings.descent, int(trace.live[-1])
    factor = descent.learning_rate / live if live else 0.0
    w: NDArray[np.float64] = descent.decay * trace.trajectory[-1] + factor * trace.gradients[-1]
    return w.reshape(rows.outputs, rows.width)


def _write_trace(
    rows: RegressionRows, target: Target, trace: Trace, first: int, last: int
) -> Digests:
    found: Digests = {}
    blocks = rows.settings.blocks
    begin = blocks.span(first)[0]
    for block in range(first, last):
        a, b = (t - begin for t in blocks.span(block))
        parts = (trace.trajectory[a:b], trace.gradients[a:b], trace.live[a:b])
        for name, part in zip(TRACE, parts, strict=True):
            found |= target.write(name, block, part)
    return found


@dataclass(frozen=True, slots=True)
class Written:
    """What some tasks wrote, and the products of their blocks, which the driver writes."""

    digests: Digests
    products: dict[int, NDArray[np.float64]]

    def __or__(self, other: Written) -> Written:
        return Written(self.digests | other.digests, self.products | other.products)


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """Consecutive blocks whose curvature is to be captured."""

    rows: RegressionRows
    target: Target
    blocks: tuple[int, ...]


def capture_blocks(task: CaptureTask) -> Written:
    """Capture the blocks that are not there yet, each in one reading of its windows."""
    found = Written({}, {})
    rows, target = task.rows, task.target
    with one_blas_thread():
        for block in task.blocks:
            names = captured_names(rows.settings, block)
            if all(target.has(name, block) for name in names):
                for name in names:
                    found.digests.update(target.written(name, block))
            else:
                found.digests.update(_capture(rows, target, block))
            if PRODUCT in target.specs:
                found.products.update(_products(rows, target, block))
    return found


def captured_names(settings: RegressionSettings, block: int) -> tuple[str, ...]:
    """Return the arrays that are written with a block's curvature; the frozen mean is with the first
    block that it stands for."""
    frozen = settings.provenance == FROZEN and block == frozen_block(settings)
    return MEAN if frozen else curvature_names(settings, block)


def _capture(rows: RegressionRows, target: Target, block: int) -> Digests:
    settings = rows.settings
    if settings.provenance in MEANS:
        return _capture_mean(rows, target, block)
    if settings.provenance == LOWRANK:
        return _capture_lowrank(rows, target, block)
    if settings.provenance == FROZEN and block == frozen_block(settings):
        return _capture_frozen(rows, target, block)
    return _capture_exact(rows, target, block)


def _products(rows: RegressionRows, target: Target, block: int) -> dict[int, NDArray[np.float64]]:
    """The products of a block's composed blocks."""
    packed, live = target.read("C", block), target.read("live", block)
    return products_in(rows.settings, block, packed, live)


def products_in(
    settings: RegressionSettings, block: int, packed: NDArray[Any], live: NDArray[np.int64]
) -> dict[int, NDArray[np.float64]]:
    """Return the product of each composed block that a block of provenance holds."""
    descent, composed = settings.descent, settings.composed
    first, last = settings.blocks.span(block)
    found = {}
    for number in range(first // composed.length, -(-last // composed.length)):
        a, b = (t - first for t in composed.span(number))
        found[number] = block_product(packed[a:b], live[a:b], descent.learning_rate, descent.decay)
    return found


def _capture_exact(rows: RegressionRows, target: Target, block: int) -> Digests:
    settings, size = rows.settings, rows.parameters
    first, last = settings.blocks.span(block)
    trace = target.trace(block)
    kind = np.dtype(settings.dtype).type
    packed = np.empty((last - first, packed_size(size)), kind)
    total = np.zeros((size, size), kind, order="F")
    for window in rows.windows(first, last):
        for t, x, y, ends in cut(window):
            _add(rows, trace, t - first, x, y, total)
            if ends:
                pack(total, packed[t - first])
                total[:] = 0.0
    return target.write("C", block, packed)


def _add(
    rows: RegressionRows,
    trace: Trace,
    t: int,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    total: NDArray[np.floating],
) -> None:
    if len(x):
        w = trace.trajectory[t].reshape(rows.outputs, rows.width)
        loss = rows.settings.loss
        add_curvature(total, loss, x, curvature(loss, w, x, y))


def _capture_mean(rows: RegressionRows, target: Target, block: int) -> Digests:
    settings = rows.settings
    first, last = settings.blocks.span(block)
    trace = target.trace(block)
    kind, size, basis = np.dtype(settings.dtype).type, rows.parameters, None
    if settings.provenance == PROJECTED:
        basis = basis_from(lambda name: target.read(name, 0), settings.rank)
        size = rows.outputs * basis.rank
    mean = MeanCurvature(settings.loss, size, kind)
    for window in rows.windows(first, last):
        for t, x, y, ends in cut(window):
            w = trace.trajectory[t - first].reshape(rows.outputs, rows.width)
            curved = curvature(settings.loss, w, x, y)
            mean.add(basis.inside(x) if basis else x, curved, int(trace.live[t - first]), ends)
    values, vectors = decompose(mean.mean())
    return target.write("eigenvalues", block, values[np.newaxis]) | target.write(
        "eigenvectors", block, vectors[np.newaxis]
    )


def _capture_lowrank(rows: RegressionRows, target: Target, block: int) -> Digests:
    settings, size = rows.settings, rows.parameters
    first, last = settings.blocks.span(block)
    trace = target.trace(block)
    left_out = tolerance(settings.descent, settings.iterations)
    capture = LowRankCapture(settings.loss, size, left_out)
    factors: list[Factor] = []
    for window in rows.windows(first, last):
        for t, x, y, ends in cut(window):
            w = trace.trajectory[t - first].reshape(rows.outputs, rows.width)
            curved = curvature(settings.loss, w, x, y)
            found = capture.add(x, curved, int(trace.live[t - first]), ends)
            if found is not None:
                factors.append(found)
    kind = np.dtype(settings.dtype).type
    part = stacked(factors, size, kind, settings.rank)
    written: Digests = {}
    for name, values in svd_arrays(part).items():
        written |= target.write(name, block, values)
    return written


def _capture_frozen(rows: RegressionRows, target: Target, block: int) -> Digests:
    """The rows of up to an epoch of mini-batches, at the parameters of the first of them."""
    settings = rows.settings
    span = settings.frozen(rows.schedule.per_epoch)
    w = target.trace(block).trajectory[0].reshape(rows.outputs, rows.width)
    capture = FrozenCapture(settings.loss, w, np.dtype(settings.dtype).type)
    for window in rows.windows(span.first, span.sampled):
        capture.add(window.rows, window.labels)
    written: Digests = {}
    for name, values in mean_arrays(capture.mean()).items():
        written |= target.write(name, block, values)
    return written


def joined(one: Written, other: Written) -> Written:
    """What both wrote."""
    return one | other


def write_products(target: Target, products: Mapping[int, NDArray[np.float64]]) -> Digests:
    """Write every chunk of the products of all blocks."""
    if PRODUCT not in target.specs:
        return {}
    spec = target.specs[PRODUCT]
    values = np.stack([products[block] for block in range(spec.shape[0])])
    found: Digests = {}
    for index in chunk_indices(spec):
        part = values[chunk_slices(spec, index)]
        with target.fence.writing():
            found[PRODUCT, index] = write_chunk(target.path, PRODUCT, spec, index, part)
    return found


def capture_stored(rows: RegressionRows, target: Target, fold: Fold, progress: Progress) -> Digests:
    """Capture the provenance of a trajectory that ``target`` holds; return the chunks' digests."""
    settings = rows.settings
    if settings.provenance == NO_PROVENANCE:
        return {}
    basis = _captured_basis(rows, target, progress)
    slots = settings.iterations * settings.batch_slots
    outputs = 1 if settings.loss != Loss.SOFTMAX else 2
    seconds = slots * rows.parameters**2 * outputs / CAPTURE_RATE
    count = settings.blocks.count
    groups = split_cells(range(count), seconds / CAPTURE_TASKS, fold.workers)
    found = Written({}, {})
    done = 0
    for start in range(0, len(groups), 2 * fold.workers):
        tasks = [CaptureTask(rows, target, g) for g in groups[start : start + 2 * fold.workers]]
        written: Written = fold(capture_blocks, tasks, joined)
        found |= written
        done += sum(len(task.blocks) for task in tasks)
        progress(f"provenance: block {done} of {count}")
    return basis | found.digests | write_products(target, found.products)


def _captured_basis(rows: RegressionRows, target: Target, progress: Progress) -> Digests:
    """Write kind projected's basis, before the blocks that are captured in it."""
    if rows.settings.provenance != PROJECTED:
        return {}
    if not all(target.has(name, 0) for name in BASIS):
        progress("provenance: basis")
        for name, values in basis_arrays(found_basis(rows)).items():
            target.write(name, 0, values)
    return target.written(BASIS[0], 0) | target.written(BASIS[1], 0)
