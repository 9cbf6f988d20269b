"""Settings of a regression: given by users, resolved at the first fit, kept by every deletion."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .descent import Descent
from .design import SPLIT
from .frozen import FROZEN_FROM, Span, frozen_span
from .keyed import derive_key, keyed_bits
from .losses import Loss
from .provenance import Blocks, packed_size
from .schedule import Schedule
from .validation import real, whole

EXACT, AVERAGED, LOWRANK, FROZEN = "exact", "averaged", "lowrank", "frozen"
PROJECTED = "projected"
NO_PROVENANCE = "none"
KINDS = (EXACT, AVERAGED, NO_PROVENANCE, LOWRANK, FROZEN, PROJECTED)
MEANS = (AVERAGED, PROJECTED)
"""Kinds that keep one mean curvature a block."""
DELTA, PRIU, BASEL = "delta", "priu", "basel"
PRIU_OPT, CLOSED_FORM, INFL = "priu-opt", "closed-form", "infl"
METHODS = (DELTA, PRIU, BASEL, PRIU_OPT, CLOSED_FORM, INFL)
DTYPES = ("float32", "float64")
DEFAULT_L2 = 0.001
DEFAULT_BATCH_SIZE = 1000
DEFAULT_ITERATIONS = 1000
MOST_ITERATIONS = 100_000_000
SMOOTHNESS_ROWS = 20_000
"""Training rows that the Lipschitz constant is taken from, at most."""
DEFAULT_BLOCKS = 10
"""Blocks of the averaged kind."""
BLOCK_BYTES = 4 << 20
FEWEST_BLOCKS = 8
PRODUCT_SIZE = 256
"""Products of blocks are kept for models of up to this many parameters."""
FEWEST_ROWS = 2
"""An update leaves so many training rows at least; fewer are trained anew."""


@dataclass(frozen=True, slots=True)
class RegressionSettings:
    """Everything that training, an update and BaseL must agree on."""

    loss: Loss
    learning_rate: float
    """eta"""
    l2: float
    """lambda"""
    batch_slots: int
    """Slots a mini-batch: as many as held ``batch_size`` training rows on average at the first fit."""
    iterations: int
    """tau"""
    random_state: int
    window: int
    """Cells whose slots are permuted together."""
    validation: float
    """Share of the units that are kept from training."""
    provenance: str
    """One of KINDS."""
    dtype: str
    """Of the curvature."""
    block: int
    """Iterations a block of provenance: what is kept, read and rewritten together."""
    hessian: bool = False
    """Whether the summed Hessian at the final parameters is stored, for method ``infl``."""
    rank: int = 0
    """Singular vectors of an iteration's curvature that are stored at most, by kind ``lowrank``; columns
    of the basis, by kind ``projected``."""

    @property
    def descent(self) -> Descent:
        return Descent(self.loss, self.learning_rate, self.l2)

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.iterations, self.block)

    @property
    def composed(self) -> Blocks:
        """The blocks that have one product each: a block of provenance holds some of them, whole."""
        length = block_length(EXACT, self.iterations)
        fits = self.provenance == EXACT and self.block % length == 0
        return Blocks(self.iterations, length if fits else self.block)

    def frozen(self, per_epoch: int) -> Span:
        """Return which iterations kind ``frozen`` freezes; per_epoch: iterations of an epoch."""
        return frozen_span(self.blocks, per_epoch)

    def schedule(self, cells: int, capacity: int) -> Schedule:
        """Return the mini-batches over so many cells of so many slots."""
        return Schedule(
            self.random_state, cells, capacity, self.window, self.batch_slots, self.iterations
        )


def check_settings(
    *,
    learning_rate: float | None,
    l2: float,
    batch_size: int,
    iterations: int,
    validation: float,
    provenance: str | None,
    dtype: str | None,
    random_state: int,
) -> None:
    """Raise ValueError, naming what was found, unless the hyper-parameters can be used.

    None stands for "to be chosen".
    """
    if learning_rate is not None and not 0.0 < real("learning_rate", learning_rate) < np.inf:
        raise ValueError(f"learning_rate is {learning_rate}; it must be positive")
    if not 0.0 <= real("l2", l2) < np.inf:
        raise ValueError(f"l2 is {l2}; it must not be negative")
    for name, value in (("batch_size", batch_size), ("iterations", iterations)):
        if whole(name, value) < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if iterations > MOST_ITERATIONS:
        raise ValueError(f"iterations is {iterations}; it may be {MOST_ITERATIONS:,} at most")
    whole("random_state", random_state)
    if not 0.0 <= real("validation", validation) < 1.0:
        raise ValueError(f"validation is {validation}; it must lie in [0, 1)")
    if provenance is not None and provenance not in KINDS:
        raise ValueError(f"provenance is {provenance!r}; it is one of {', '.join(KINDS)}")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it is one of {', '.join(DTYPES)}")


def unusable(method: str, loss: Loss, provenance: str) -> str | None:
    """Return what a model lacks for a method, as "needs ..."; None where it may be used.

    Without provenance every method is a retrain, but for ``closed-form``.
    """
    linear = loss == Loss.LINEAR
    if method == PRIU and provenance != EXACT:
        return "needs provenance 'exact'"
    if method == PRIU_OPT and not linear and provenance != FROZEN:
        return "needs provenance 'frozen', or a linear model"
    if method == CLOSED_FORM and not linear:
        return "needs a linear model"
    return None


def batch_slots(batch_size: int, slots: int, rows: int) -> int:
    """Return how many slots hold ``batch_size`` of ``rows`` training rows on average."""
    if batch_size >= rows:
        return slots
    return min(slots, max(1, round(batch_size * slots / rows)))


def block_length(provenance: str, iterations: int) -> int:
    """Return the iterations a block: about sqrt(tau), or a tenth of tau for kinds in ``MEANS``."""
    if provenance in MEANS:
        return -(-iterations // DEFAULT_BLOCKS)
    return max(1, isqrt(iterations - 1) + 1)


def keeps_products(settings: RegressionSettings, parameters: int, epochs: int) -> bool:
    """Return whether products of blocks are worth keeping: small, and most blocks miss a row."""
    exact = settings.provenance == EXACT
    count = -(-settings.iterations // block_length(EXACT, settings.iterations))
    return exact and parameters <= PRODUCT_SIZE and 2 * epochs <= count


def chunk_length(settings: RegressionSettings, parameters: int, products: bool) -> int:
    """Return the iterations a block of provenance on disk: about BLOCK_BYTES of curvature.

    Few enough for FEWEST_BLOCKS blocks, and whole composed blocks where products are kept.
    """
    tau = settings.iterations
    if settings.provenance in (*MEANS, NO_PROVENANCE):
        return block_length(settings.provenance, tau)
    values = packed_size(parameters)
    if settings.provenance == LOWRANK:
        values = 2 * settings.rank * parameters
    row = max(1, values) * np.dtype(settings.dtype).itemsize
    length = max(1, min(BLOCK_BYTES // row, -(-tau // FEWEST_BLOCKS)))
    if products:
        composed = block_length(EXACT, tau)
        length = max(1, length // composed) * composed
    return length


def provenance_bytes(
    provenance: str, parameters: int, iterations: int, dtype: str, rank: int | None = None
) -> int:
    """Return the bytes of a kind's curvature, the trajectory and G; products not counted.

    rank: of an iteration's curvature, for ``lowrank``; by default P.
    """
    item = np.dtype(dtype).itemsize
    traced = 2 * 8 * parameters * iterations + 8 * iterations
    if provenance == EXACT:
        return traced + item * packed_size(parameters) * iterations
    if provenance == LOWRANK:
        factors = 2 * item * parameters * (parameters if rank is None else rank)
        return traced + (factors + 16) * iterations
    if provenance == FROZEN:
        before = int(np.ceil(FROZEN_FROM * iterations))
        ending = item * parameters * (parameters + 1) + 8 * (parameters + 1)
        return traced + item * packed_size(parameters) * before + ending
    if provenance == AVERAGED:
        blocks = -(-iterations // block_length(AVERAGED, iterations))
        return traced + item * blocks * parameters * (parameters + 1)
    return traced


@njit(cache=True)
def _held_out(key, limit, units):  # type: ignore[no-untyped-def]
    out = np.empty(len(units), np.bool_)
    for i in range(len(units)):
        out[i] = keyed_bits(key, units[i], 0, 0) < limit
    return out


def held_out(units: NDArray[np.int64], settings: RegressionSettings) -> NDArray[np.bool_]:
    """Return which units (n,) are kept for validation: a keyed hash of the unit alone decides."""
    limit = np.uint64(min(int(settings.validation * 2.0**64), 2**64 - 1))
    key = np.uint64(derive_key(settings.random_state, SPLIT))
    chosen: NDArray[np.bool_] = _held_out(key, limit, units)
    return chosen
