"""PrIU's truncated SVD of every iteration's curvature (sections 5.1 and 5.3), in difference form.

C_t is symmetric and a sum of row terms, so its singular vectors are its eigenvectors: C_t is about
P V^T with P = V diag(s). The paper keeps the first r with |C_r| >= (1 - epsilon) |C|, which every
r >= 1 meets, as both spectral norms are the largest singular value. But a direction that is dropped
decays at the L2 rate alone, and an error there lives for min(tau, 1 / (eta lambda)) iterations. So
this keeps r with

    s_{r+1} / b <= LEFT_OUT max(lambda, 1 / (eta tau))

and what is dropped moves u by LEFT_OUT of itself at most, since C multiplies the small u (the
forcing, of which u is made, is exact).

``rebase`` truncates anew: the eigenvectors of P V^T less the deleted rows' Hessians, of which the
same rule with b' keeps some; none where no row is left. No factor holds a deleted row's term beside
the others', and each rebase leaves out as much again as a training does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from .descent import Descent, Trace
from .losses import Loss
from .provenance import Blocks, Real
from .truncation import Factor, hessian_times, hessian_trace
from .update import NONE, Updated
from .visits import Visits, add_curved, add_gradients


@dataclass(frozen=True, slots=True)
class LowRankBlock:
    """The factors of consecutive iterations, padded with zeros to R rows: C_t is about P V^T."""

    scaled: NDArray[Real]
    """(n, R, P) P_t, transposed (``svd_P``)."""
    vectors: NDArray[Real]
    """(n, R, P) V_t, transposed (``svd_V``)."""
    ranks: NDArray[np.int64]
    """(n,)"""
    rests: NDArray[np.float64]
    """(n,) the sum of the eigenvalues of C_t that are left out."""

    def factor(self, t: int) -> Factor:
        """Return an iteration's factors."""
        rank = int(self.ranks[t])
        vectors = self.vectors[t, :rank].astype(np.float64)
        values = np.einsum("ij,ij->i", self.scaled[t, :rank], vectors)
        return Factor(values, vectors, float(values.sum() + self.rests[t]))


class LowRank(Protocol):
    """Truncated curvature of every iteration."""

    @property
    def blocks(self) -> Blocks: ...

    def part(self, block: int) -> LowRankBlock:
        """Return a block's factors."""
        ...


@dataclass(frozen=True, slots=True)
class LowRankBlocks:
    """Truncated curvature in memory; implements ``LowRank``."""

    blocks: Blocks
    parts: tuple[LowRankBlock, ...]

    def part(self, block: int) -> LowRankBlock:
        return self.parts[block]


def stacked(
    factors: Sequence[Factor], parameters: int, kind: type[Real], most: int | None = None
) -> LowRankBlock:
    """Return a block of factors; most: R, the largest rank that is kept (by default all that occur)."""
    ranks = np.array([len(f.values) for f in factors], np.int64)
    width = int(ranks.max(initial=0)) if most is None else most
    scaled = np.zeros((len(factors), width, parameters), kind)
    vectors = np.zeros_like(scaled)
    for t, factor in enumerate(factors):
        rank = min(width, len(factor.values))
        vectors[t, :rank] = factor.vectors[:rank]
        scaled[t, :rank] = factor.values[:rank, np.newaxis] * factor.vectors[:rank]
    rests = np.array([f.trace - f.values[:width].sum() for f in factors])
    return LowRankBlock(scaled, vectors, np.minimum(ranks, width), np.maximum(rests, 0.0))


# ------------------------------------------------------------------ update


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def factor_times(scaled, vectors, rank, u, out):  # type: ignore[no-untyped-def]
    """Fill out (P,) with P V^T u; scaled, vectors (R, P)."""
    out[:] = 0.0
    for k in range(rank):
        score = 0.0
        for j in range(len(u)):
            score += vectors[k, j] * u[j]
        for j in range(len(u)):
            out[j] += scaled[k, j] * score


@njit(cache=True, nogil=True)
def _step(  # type: ignore[no-untyped-def]
    loss,
    rate,
    decay,
    scaled,
    vectors,
    ranks,
    live,
    gradients,
    edges,
    rows,
    coefficients,
    curvature,
    u,
    history,
    remaining,
):
    """Take u (P,) through a block's iterations, in place, as ``update.step_through`` does."""
    cu, lost = np.empty(len(u)), np.empty(len(u))
    for t in range(len(live)):
        first, last = edges[t], edges[t + 1]
        before, after = live[t], live[t] - (last - first)
        if len(history):
            history[t] = u
        factor_times(scaled[t], vectors[t], ranks[t], u, cu)
        lost[:] = 0.0
        add_curved(loss, rows[first:last], curvature[first:last], u, -1.0, cu)
        add_gradients(rows[first:last], coefficients[first:last], lost)
        old = rate / before if before else 0.0
        new = rate / after if after else 0.0
        for j in range(len(u)):
            left = gradients[t, j] - lost[j] - cu[j] if after else 0.0
            # Apart, (new - old) G would lose digits where no row leaves.
            forced = new * left - old * gradients[t, j] if last > first else -new * cu[j]
            u[j] = decay * u[j] + forced
            if len(remaining):
                remaining[t, j] = left


def _through(
    descent: Descent,
    trace: Trace,
    part: LowRankBlock,
    visits: Visits,
    u: NDArray[np.float64],
    history: NDArray[np.float64],
    remaining: NDArray[np.float64],
) -> None:
    """``_step`` a block; visits: its own, with iterations counted from its first."""
    _step(
        int(descent.loss),
        descent.learning_rate,
        descent.decay,
        part.scaled,
        part.vectors,
        part.ranks,
        trace.live,
        trace.gradients,
        np.searchsorted(visits.iteration, np.arange(len(trace.live) + 1)),
        visits.rows,
        visits.coefficients,
        visits.curvature,
        u,
        history,
        remaining,
    )


def update_lowrank(descent: Descent, trace: Trace, kept: LowRank, visits: Visits) -> Updated:
    """Return the change of the parameters (method ``delta`` on kind ``lowrank``; equation 20).

    Reads the factors from the first block with a visit on.
    """
    blocks = kept.blocks
    starts = np.zeros((blocks.count + 1, trace.trajectory.shape[1]))
    u = starts[0].copy()
    begun = visits.iteration[0] // blocks.length if len(visits.iteration) else blocks.count
    for block in range(int(begun), blocks.count):
        first, last = blocks.span(block)
        own = visits.part(first, last)
        _through(descent, trace.part(first, last), kept.part(block), own, u, NONE, NONE)
        starts[block + 1] = u
    return Updated(u, starts)


# ------------------------------------------------------------------ rebase


@dataclass(frozen=True, slots=True)
class RebasedLowRank:
    """A block of the next version: nothing in it depends on the deleted rows' own terms."""

    trace: Trace
    part: LowRankBlock


def rebase_lowrank_block(
    descent: Descent,
    trace: Trace,
    part: LowRankBlock,
    visits: Visits,
    start: NDArray[np.float64],
    left_out: float,
) -> RebasedLowRank:
    """Return a block without the deleted rows, as ``update.rebase_block`` does.

    left_out: as ``tolerance`` gives.
    """
    length, size = trace.trajectory.shape
    history, remaining = np.empty((length, size)), np.empty((length, size))
    _through(descent, trace, part, visits, start.copy(), history, remaining)
    left = trace.live - visits.counts(0, length)
    fewer = _without(descent.loss, part, visits, left, left_out)
    return RebasedLowRank(Trace(trace.trajectory + history, remaining, left), fewer)


def _without(
    loss: Loss, part: LowRankBlock, visits: Visits, left: NDArray[np.int64], left_out: float
) -> LowRankBlock:
    """The factors without the visits' Hessians, truncated anew where rows are lost."""
    if not len(visits.iteration):
        return part
    scaled, vectors = part.scaled.copy(), part.vectors.copy()
    ranks, rests = part.ranks.copy(), part.rests.copy()
    for t in np.unique(visits.iteration).tolist():
        own = visits.between(t, t + 1)
        scaled[t], vectors[t], ranks[t], rests[t] = 0.0, 0.0, 0, 0.0
        if left[t]:
            fewer = _truncated(loss, part.factor(t), own, left_out * left[t])
            ranks[t] = len(fewer.values)
            rests[t] = max(0.0, fewer.trace - float(fewer.values.sum()))
            vectors[t, : ranks[t]] = fewer.vectors
            scaled[t, : ranks[t]] = fewer.values[:, np.newaxis] * fewer.vectors
    return LowRankBlock(scaled, vectors, ranks, rests)


def _truncated(loss: Loss, factor: Factor, gone: Visits, least: float) -> Factor:
    """Return P V^T less the rows' Hessians, with the eigenvalues above ``least``.

    Taking something positive away makes no further eigenvalue positive: the rank never grows. What
    is negative is what the truncation left of the rows' own terms, and is dropped like it.
    """
    (n, m), q = gone.rows.shape, gone.curvature.shape[1]
    size = factor.vectors.shape[1]
    own = np.zeros((q, m, q, n))
    for k in range(q):
        own[k, :, k, :] = gone.rows.T
    spanning = np.hstack([factor.vectors.T, own.reshape(size, q * n)])
    basis = qr(spanning, mode="economic", check_finite=False)[0]
    kept = factor.vectors @ basis
    inner = (kept.T * factor.values) @ kept
    inner -= basis.T @ hessian_times(loss, gone.rows, gone.curvature, np.ascontiguousarray(basis))
    values, turned = eigh((inner + inner.T) / 2.0)
    chosen = np.flatnonzero(values > least)[::-1][: len(factor.values)]
    trace = factor.trace - hessian_trace(gone.rows, gone.curvature, loss)
    return Factor(values[chosen], (basis @ turned[:, chosen]).T, max(trace, 0.0))
