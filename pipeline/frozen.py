"""PrIU-opt for logistic and softmax models (section 5.4): curvature that stays as it is from t_s on.

Up to t_s, FROZEN_FROM of the iterations, every C_t is kept. From there on the rows' Hessians are
those at w_{t_s}, and a mini-batch is taken for all rows: C_t / b_t is C* / n, the mean over the rows
of at most one epoch of mini-batches from t_s on, as Q diag(e) Q^T. In Q's coordinates a step is a
product with numbers (they may be 0 or negative: powers are squared up, no logarithms).

- Method ``delta`` takes each visit's forcing at its own w_t, and from t_s on C*' / n', the mean over
  the rows that stay: their Hessians' sum at w_{t_s} less the deleted rows', decomposed anew. Less the
  deleted rows' Hessians iteration by iteration would be the same on average over an epoch, but for a
  large row (b / n - 1) H_i in one iteration and (b / n) H_i in the others is no small fluctuation.
- Method ``priu-opt``, the paper's, has no visits after t_s: forcing and curvature are those of all
  rows at w_{t_s}, less the deleted ones', so that what is left is a closed sum. With v = w - w_{t_s}
  both descents, with the deleted rows and without, are v <- A v + f, and

      u_tau = A'^K u_{t_s} + S_K(A') f' - S_K(A) f,  S_K(A) = I + A + ... + A^(K-1),  K = tau - t_s

  A' keeps the eigenvectors and takes the diagonal of Q^T C*' Q (equation 18). In these coordinates
  it multiplies u and the steps since t_s, both small, not w: what it leaves out is of second order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .closed_form import power_and_sum
from .descent import Descent, Trace
from .losses import Loss
from .provenance import Blocks, Exact, Real, add_curvature, decompose
from .schedule import Schedule
from .update import NONE, Updated, update
from .visits import Leaving, Visits, add_gradients, visits_at

FROZEN_FROM = 0.7
"""t_s over tau, the paper's rule of thumb."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which iterations are frozen."""

    first: int
    """t_s: a block begins there."""
    sampled: int
    """One after the last iteration whose rows make C*."""

    def unevenness(self, per_epoch: int) -> float:
        """Return n times the sum of (c_i / k - 1 / n)^2, with c_i how often C* counts one of n rows.

        Rows that two epochs visit count twice, others not at all: as a mean of H_i over rows drawn at
        random, C* is off by that share of a row's variance over n.
        """
        length = self.sampled - self.first
        early = min(length, per_epoch - self.first % per_epoch)
        counted = length / per_epoch
        twice = early * (length - early) / per_epoch**2
        return max(0.0, (counted + 2.0 * twice) / counted**2 - 1.0)


def frozen_span(blocks: Blocks, per_epoch: int, share: float = FROZEN_FROM) -> Span:
    """Return what is frozen: from the block on that begins at ``share`` of the iterations or later.

    The last block is frozen at least. C* is of one epoch's rows, or of those until the end.
    """
    block = min(int(np.ceil(share * blocks.iterations / blocks.length)), blocks.count - 1)
    first = block * blocks.length
    return Span(first, min(blocks.iterations, first + per_epoch))


@dataclass(frozen=True, slots=True)
class FrozenMean:
    """The rows' terms at w_{t_s}."""

    values: NDArray[Real]
    """(P,) e, ascending."""
    vectors: NDArray[Real]
    """(P, P) Q, in columns."""
    gradient: NDArray[np.float64]
    """(P,) G*, the rows' summed negative gradients."""
    rows: int
    """How many rows; one that two epochs visit counts twice."""


class Frozen(Protocol):
    """Exact curvature before t_s, and one mean after."""

    @property
    def blocks(self) -> Blocks:
        """Of all iterations."""
        ...

    @property
    def exact(self) -> Exact:
        """Of the iterations before t_s, in blocks of the same length."""
        ...

    @property
    def mean(self) -> FrozenMean: ...


@dataclass(frozen=True, slots=True)
class FrozenBlocks:
    """Frozen curvature in memory; implements ``Frozen``."""

    blocks: Blocks
    exact: Exact
    mean: FrozenMean


class FrozenCapture:
    """Sums up the rows' terms at w_{t_s}."""

    def __init__(self, loss: Loss, w: NDArray[np.float64], kind: type[Real]) -> None:
        """w: (q, m) at t_s."""
        self._loss, self._w = loss, w
        self._total = np.zeros((w.size, w.size), kind, order="F")
        self._gradient = np.zeros(w.size)
        self._rows = 0

    def add(self, rows: NDArray[np.float64], labels: NDArray[np.float64]) -> None:
        """Add some rows (n, m) of a mini-batch."""
        if len(rows):
            at = np.zeros(len(rows), np.int64)
            terms = visits_at(self._loss, at, rows, labels, self._w.reshape(1, -1))
            add_curvature(self._total, self._loss, rows, terms.curvature)
            self._gradient += (terms.coefficients.T @ rows).ravel()
            self._rows += len(rows)

    def mean(self) -> FrozenMean:
        """Return what was summed up."""
        values, vectors = decompose(self._total / max(1, self._rows))
        return FrozenMean(values, vectors, self._gradient, self._rows)


def sampled_visits(
    loss: Loss,
    schedule: Schedule,
    span: Span,
    leaving: Leaving,
    w: NDArray[np.float64],
) -> Visits:
    """Return the uses of leaving rows that C* counts, their terms at w (P,) = w_{t_s}."""
    when, which = schedule.visits(leaving.cells, leaving.slots)
    chosen = which[(when >= span.first) & (when < span.sampled)]
    return _terms(loss, leaving.rows[chosen], leaving.labels[chosen], w)


def remaining_mean(loss: Loss, mean: FrozenMean, gone: Visits) -> FrozenMean:
    """Return the terms of the rows that stay; exact zeros where none does.

    gone: the uses that C* counts, as ``sampled_visits`` gives.
    """
    left = mean.rows - len(gone.rows)
    kind = mean.vectors.dtype
    if not len(gone.rows):
        return mean
    if left == 0:
        size = len(mean.values)
        return FrozenMean(np.zeros(size, kind), np.eye(size, dtype=kind), np.zeros(size), 0)
    values, vectors = mean.values.astype(np.float64), mean.vectors.astype(np.float64)
    gradient = mean.gradient.copy()
    add_gradients(gone.rows, -gone.coefficients, gradient)
    total = np.asfortranarray((vectors * (mean.rows * values)) @ vectors.T)
    lost = np.zeros_like(total, order="F")
    add_curvature(lost, loss, gone.rows, gone.curvature)
    fewer = decompose((np.tril(total) - np.tril(lost)) / left)
    return FrozenMean(fewer[0].astype(kind), fewer[1].astype(kind), gradient, left)


def leaving_terms(loss: Loss, leaving: Leaving, w: NDArray[np.float64]) -> Visits:
    """Return each leaving row once, its terms at w (P,)."""
    return _terms(loss, leaving.rows, leaving.labels, w)


def _terms(
    loss: Loss, rows: NDArray[np.float64], labels: NDArray[np.float64], w: NDArray[np.float64]
) -> Visits:
    return visits_at(loss, np.zeros(len(rows), np.int64), rows, labels, w.reshape(1, -1))


# ------------------------------------------------------------------ update


def update_frozen(descent: Descent, trace: Trace, frozen: Frozen, visits: Visits) -> Updated:
    """Return the change of the parameters (method ``delta`` on kind ``frozen``).

    frozen: with the mean of the rows that stay, as ``remaining_mean`` gives.
    """
    blocks, begin = frozen.blocks, frozen.exact.blocks.iterations
    before = update(descent, trace.part(0, begin), frozen.exact, visits.between(0, begin))
    starts = np.zeros((blocks.count + 1, trace.trajectory.shape[1]))
    starts[: len(before.starts)] = before.starts
    u = before.change
    for block in range(frozen.exact.blocks.count, blocks.count):
        first, last = blocks.span(block)
        own = visits.part(first, last)
        if u.any() or len(own.iteration):
            u, _ = _through(descent, trace.part(first, last), frozen.mean, own, u, False)
        starts[block + 1] = u
    return Updated(u, starts)


def _through(
    descent: Descent,
    trace: Trace,
    mean: FrozenMean,
    visits: Visits,
    start: NDArray[np.float64],
    whole: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return u (P,) after frozen iterations, and u (n, P) before each of them if ``whole``.

    mean: of the rows that stay.
    """
    vectors = np.ascontiguousarray(mean.vectors, np.float64)
    values = mean.values.astype(np.float64)
    length = len(trace.live)
    edges = np.searchsorted(visits.iteration, np.arange(length + 1))
    history = np.empty((length, len(start))) if whole else NONE
    v = vectors.T @ start
    _step(
        descent.learning_rate,
        descent.decay,
        values,
        vectors,
        trace.live,
        trace.gradients,
        edges,
        visits.rows,
        visits.coefficients,
        v,
        history,
    )
    return vectors @ v, history @ vectors.T if whole else NONE


@njit(cache=True, nogil=True)
def _step(  # type: ignore[no-untyped-def]
    rate, decay, values, vectors, live, gradients, edges, rows, coefficients, v, history
):
    """Take v = Q^T u (P,) through the iterations, in place; history (n, P) gets it before each."""
    size = len(v)
    forcing, lost = np.empty(size), np.empty(size)
    factors = decay - rate * values
    powers = factors.copy()
    t = 0
    while t < len(live):
        first, last = edges[t], edges[t + 1]
        before, after = live[t], live[t] - (last - first)
        if len(history):
            history[t] = v
        if last == first and before > 0:
            following = t + 1
            if not len(history):
                while following < len(live) and edges[following + 1] == first and live[following]:
                    following += 1
            _multiply(factors, following - t, powers, v)
            t = following
            continue
        if before == 0:
            v *= decay
            t += 1
            continue
        old = rate / before
        new = rate / after if after else 0.0
        lost[:] = 0.0
        if after:
            add_gradients(rows[first:last], coefficients[first:last], lost)
        for j in range(size):
            forcing[j] = (new - old) * gradients[t, j] - new * lost[j]
        turned = np.dot(forcing, vectors)
        for j in range(size):
            v[j] = (factors[j] if after else decay) * v[j] + turned[j]
        t += 1


@njit(cache=True, nogil=True)
def _multiply(factors, power, square, out):  # type: ignore[no-untyped-def]
    """Multiply out (P,) by factors to a whole power; square (P,) is room to work in."""
    square[:] = factors
    while power:
        if power & 1:
            out *= square
        power >>= 1
        if power:
            square *= square


def priu_opt_change(
    descent: Descent,
    w: NDArray[np.float64],
    mean: FrozenMean,
    u: NDArray[np.float64],
    steps: int,
    rows: int,
    gone: Visits,
) -> NDArray[np.float64]:
    """Return w'_tau - w_tau (P,) by method ``priu-opt``, so many steps after t_s.

    w, u (P,): the parameters and their change at t_s. rows: the training's, the leaving ones
    included. gone: each leaving row once, its terms at w.
    """
    values, vectors = mean.values.astype(np.float64), mean.vectors.astype(np.float64)
    rate, left = descent.learning_rate, rows - len(gone.rows)
    pull, lost = mean.gradient / max(1, mean.rows), np.zeros_like(w)
    add_gradients(gone.rows, gone.coefficients, lost)
    remaining = (rows * pull - lost) / max(1, left)
    fewer = (rows * values - _diagonal(descent.loss, vectors, gone)) / max(1, left)
    ends = []
    for some, force, start in ((values, pull, None), (fewer, remaining, u)):
        power, total = power_and_sum(descent.decay - rate * some, steps)
        end = total * (vectors.T @ (rate * force - rate * descent.l2 * w))
        ends.append(end if start is None else end + power * (vectors.T @ start))
    change: NDArray[np.float64] = vectors @ (ends[1] - ends[0])
    return change


def _diagonal(loss: Loss, vectors: NDArray[np.float64], gone: Visits) -> NDArray[np.float64]:
    """The diagonal (P,) of Q^T dC Q."""
    size = len(vectors)
    lost = np.zeros((size, size), order="F")
    if len(gone.rows):
        add_curvature(lost, loss, gone.rows, gone.curvature)
    whole = np.tril(lost) + np.tril(lost, -1).T
    found: NDArray[np.float64] = np.einsum("ij,ij->j", vectors, whole @ vectors)
    return found


# ------------------------------------------------------------------ rebase


def rebase_frozen_block(
    descent: Descent,
    trace: Trace,
    mean: FrozenMean,
    visits: Visits,
    start: NDArray[np.float64],
) -> Trace:
    """Return a frozen block's trace without the deleted rows: w + u, b', and G' as its steps say.

    mean: of the rows that stay. (eta / b') G' = u_{t+1} - (1 - eta lambda) u_t + (eta / b) G.
    """
    end, history = _through(descent, trace, mean, visits, start, True)
    after = np.vstack([history[1:], end])
    left = trace.live - visits.counts(0, len(trace.live))
    ratio = left / np.maximum(trace.live, 1)
    moved = (left / descent.learning_rate)[:, np.newaxis] * (after - descent.decay * history)
    remaining = moved + ratio[:, np.newaxis] * trace.gradients
    return Trace(trace.trajectory + history, remaining, left)


def moved_mean(mean: FrozenMean, u: NDArray[np.float64]) -> FrozenMean:
    """Return the rows' terms at w_{t_s} + u; u: (P,) at t_s."""
    values, vectors = mean.values.astype(np.float64), mean.vectors.astype(np.float64)
    pulled = mean.rows * (vectors @ (values * (vectors.T @ u)))
    return replace(mean, gradient=mean.gradient - pulled)
