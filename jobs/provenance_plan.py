"""Which kind of provenance a training keeps: by what fits, and by what pays.

Of regressions; for k-means, what labels and margins cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..pipeline.components import MOST_COLUMNS, most_rank, projected_bytes
from ..pipeline.losses import Loss
from ..pipeline.provenance import packed_size
from ..pipeline.regression import (
    AVERAGED,
    BLOCK_BYTES,
    EXACT,
    FROZEN,
    KINDS,
    LOWRANK,
    NO_PROVENANCE,
    PROJECTED,
    block_length,
    provenance_bytes,
)
from ..storage.space import shown
from .errors import JobError
from .replay_store import LABELS

MEMORY = 1 << 30
"""Bytes that an update or a capturing task may use, unless said otherwise."""
PAYS = 10
"""Exact curvature pays where a step reads at least so many times fewer numbers than BaseL's."""
NEGLECTS = 0.03
"""Projected curvature is chosen where what it neglects changes an update by this share at most."""


@dataclass(frozen=True, slots=True)
class ProvenancePlan:
    """What is kept, and why."""

    kind: str
    dtype: str
    disk: int
    """Bytes on disk."""
    memory: int
    """Bytes at the peak of an update or a capturing task, its rows not counted."""
    why: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What the costs depend on."""

    loss: Loss
    parameters: int
    """P"""
    iterations: int
    batch_rows: int
    """Rows of an average mini-batch."""
    rank: int | None = None
    """Singular vectors of an iteration's curvature at most; P if None."""
    columns: int = 0
    """m; 0 where that is not known, and kind ``projected`` is out of the question."""
    basis: int | None = None
    """Components that kind ``projected`` follows; None: the most that it may."""
    neglected: float = 0.0
    """What else there is changes an update by this share of itself, about."""

    @property
    def gain(self) -> float:
        """How many times fewer numbers a step of exact curvature reads than BaseL's arithmetic does.

        0 where they are more than all numbers of the mini-batch: BaseL is as fast then.
        """
        if self.columns and packed_size(self.parameters) > self.batch_rows * self.columns:
            return 0.0
        return 4 * self.batch_rows / self.parameters

    @property
    def inside(self) -> int:
        """q d"""
        outputs = self.parameters // self.columns
        rank = most_rank(self.columns, outputs) if self.basis is None else self.basis
        return outputs * rank


def memory_bytes(kind: str, shape: Shape, dtype: str) -> int:
    """Return the peak memory of an update or of capturing a block."""
    size, item = shape.parameters, 4 if dtype == "float32" else 8
    trace = 2 * 8 * size * shape.iterations
    if kind in (EXACT, FROZEN):
        block = block_length(EXACT, shape.iterations)
        # Frozen: a decomposition besides.
        squares = 2 if kind == EXACT else 6
        return trace + 2 * block * packed_size(size) * item + squares * size * size * 8
    if kind == LOWRANK:
        # A block and what it is made of, and a mini-batch's curvature or basis, decomposed.
        factors = 2 * (size if shape.rank is None else shape.rank) * size * item
        return trace + 2 * max(BLOCK_BYTES, factors) + 4 * size * size * 8
    if kind == AVERAGED:
        # The decomposition's workspace, and a block's u in both coordinates.
        block = block_length(AVERAGED, shape.iterations)
        return trace + 6 * size * size * item + 4 * block * size * 8
    if kind == PROJECTED:
        # The basis being found or in double precision, a block's trace, and what the averages take.
        block, inside = block_length(AVERAGED, shape.iterations), shape.inside
        whole = 5 * 8 * shape.columns**2 + 8 * 8 * block * size
        return whole + 6 * inside * inside * item + 8 * 8 * shape.iterations * inside
    return 0


def plan_provenance(
    shape: Shape, asked: str | None, dtype: str | None, memory: int, disk: int
) -> ProvenancePlan:
    """Choose a kind that fits into ``memory`` and ``disk`` bytes; JobError where none or the asked
    one doesn't, saying what would."""
    number = dtype or ("float64" if shape.loss == Loss.LINEAR else "float32")
    possible = (kind for kind in KINDS if kind != PROJECTED or 1 < shape.columns <= MOST_COLUMNS)
    plans = {kind: _plan(kind, shape, number) for kind in possible}
    fits = {kind: p.memory <= memory and p.disk <= disk for kind, p in plans.items()}
    room = f"{shown(memory)} of memory and {shown(disk)} of disk are allowed"
    if asked is not None:
        if asked not in plans:
            raise JobError(
                f"provenance={asked} decomposes the rows' mean square, for up to {MOST_COLUMNS:,} "
                f"columns; these have {shape.columns:,}. Say -p provenance=none: deletions then retrain"
            )
        if not fits[asked]:
            others = [k for k in (EXACT, AVERAGED, LOWRANK, PROJECTED) if fits.get(k)] or [
                NO_PROVENANCE
            ]
            raise JobError(
                f"provenance={asked} needs {_needs(plans[asked])}; {room}. "
                f"provenance={others[0]} fits ({_needs(plans[others[0]])}); or raise --memory, --disk"
            )
        return _because(plans[asked], "asked for" + _follows(asked, shape))
    linear = shape.loss == Loss.LINEAR
    gain = shape.gain
    if fits[EXACT] and (linear or gain >= PAYS):
        why = f"a step reads {gain:.0f} times less than BaseL's"
        return _because(plans[EXACT], f"fits; {'exact for linear models' if linear else why}")
    if fits[AVERAGED]:
        small = f"exact would read but {gain:.1f} times less than BaseL"
        if not gain:
            small = "a step of exact would read more numbers than its mini-batch has"
        why = small if fits[EXACT] else f"exact needs {_needs(plans[EXACT])}, but {room}"
        return _because(plans[AVERAGED], why)
    if fits[EXACT]:
        return _because(plans[EXACT], f"averaged needs {_needs(plans[AVERAGED])}, but {room}")
    why = f"exact needs {_needs(plans[EXACT])}, averaged {_needs(plans[AVERAGED])}, but {room}"
    if fits.get(PROJECTED) and shape.neglected <= NEGLECTS:
        return _because(plans[PROJECTED], why + _follows(PROJECTED, shape))
    if fits[LOWRANK]:
        return _because(plans[LOWRANK], why)
    raise JobError(
        f"no provenance fits: exact needs {_needs(plans[EXACT])}, averaged needs "
        f"{_needs(plans[AVERAGED])}; {room}. Raise --memory or --disk, or say -p provenance=none: "
        "deletions then retrain"
    )


def plan_labels(
    asked: str | None, quantized: bool, max_iter: int, disk: int, memory: int
) -> ProvenancePlan:
    """Tell what labels and margins of k-means cost, and what deletions cost without them.

    They are kept where asked for, in ``disk`` bytes at most. quantized: whether few deletions move a
    centroid.
    """
    which = "a deletion that moves a centroid, as few do," if quantized else "nearly every deletion"
    passes = f"{which} takes a pass over the rows for each step it repeats, {max_iter} at most"
    room = f"{shown(disk)} at most for labels and margins"
    if (asked or NO_PROVENANCE) == NO_PROVENANCE:
        why = "asked for" if asked else "by default"
        why = f"{why}; {passes}; provenance=labels would take none, but {room}"
        return ProvenancePlan(NO_PROVENANCE, "", 0, 0, why)
    why = f"asked for; {room}, and no pass a deletion, but where a seed or a range's end goes; else {passes}"
    return ProvenancePlan(LABELS, "float32", disk, memory, why)


def _plan(kind: str, shape: Shape, dtype: str) -> ProvenancePlan:
    disk = 0
    if kind == PROJECTED:
        blocks = -(-shape.iterations // block_length(AVERAGED, shape.iterations))
        disk = provenance_bytes(kind, shape.parameters, shape.iterations, dtype)
        disk += projected_bytes(shape.columns, shape.inside, blocks, dtype)
    elif kind != NO_PROVENANCE:
        disk = provenance_bytes(kind, shape.parameters, shape.iterations, dtype, shape.rank)
    return ProvenancePlan(kind, dtype, disk, memory_bytes(kind, shape, dtype), "")


def _because(plan: ProvenancePlan, why: str) -> ProvenancePlan:
    return ProvenancePlan(plan.kind, plan.dtype, plan.disk, plan.memory, why)


def _follows(kind: str, shape: Shape) -> str:
    """What kind ``projected`` follows, once that is known."""
    if kind != PROJECTED or shape.basis is None:
        return ""
    return (
        f"; follows {shape.basis:,} of {shape.columns:,} components, the others change an update by "
        f"{shape.neglected:.1%} of itself, about"
    )


def _needs(plan: ProvenancePlan) -> str:
    return f"{shown(plan.disk)} of disk and {shown(plan.memory)} of memory"
