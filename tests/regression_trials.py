"""Deletions from models trained on real rows: how near to BaseL, and how good the estimate of that.

Distances are Euclidean, for standardised features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expunge.pipeline.averaged import update_averaged
from expunge.pipeline.descent import Trace, descend
from expunge.pipeline.design import Design
from expunge.pipeline.estimate import (
    Estimate,
    accumulated,
    estimate_distance,
    sample_size,
    strata,
    update_work,
)
from expunge.pipeline.forces import Batches
from expunge.pipeline.provenance import curvature
from expunge.pipeline.regression import DELTA, RegressionSettings
from expunge.pipeline.regression_arrays import (
    AveragedBlocks,
    ExactBlocks,
    Rows,
    Trained,
    delete,
    train,
    windows,
)
from expunge.pipeline.regression_estimator import Regression
from expunge.pipeline.remainders import Rows as Sample
from expunge.pipeline.schedule import Schedule
from expunge.pipeline.update import Updated, update
from expunge.pipeline.visits import Leaving, Visits, add_gradients, find_visits

EXACT, AVERAGED, MATRIX_FREE = "exact", "averaged", "matrix-free"
"""Provenance of the package, and exact curvature that is built from the rows again, never stored."""
FLOAT32 = 2.0**-24
"""Unit roundoff of the stored curvature."""


@dataclass(frozen=True)
class Split:
    """Four fifths to train on, one to validate with, in random order."""

    x: np.ndarray
    y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray


def split(x: np.ndarray, y: np.ndarray) -> Split:
    order = np.random.default_rng(0).permutation(len(x))
    kept, held = order[len(x) // 5 :], order[: len(x) // 5]
    return Split(x[kept], y[kept], x[held], y[held])


def chosen(rows: Split, rate: float, seed: int = 7) -> np.ndarray:
    """Numbers of a random share of the training rows."""
    n = len(rows.x)
    return np.random.default_rng(seed).choice(n, round(rate * n), replace=False).astype(np.int64)


def dirty(rows: Split, rate: float) -> Split:
    """The same rows, but for those that ``chosen`` gives: their features are ten times as large."""
    x = rows.x.copy()
    x[chosen(rows, rate)] *= 10.0
    return replace(rows, x=x)


@dataclass(frozen=True)
class Fitted:
    """What a training consists of besides its outcome."""

    settings: RegressionSettings
    design: Design
    rows: Rows
    q: int

    @property
    def schedule(self) -> Schedule:
        return self.settings.schedule(1, len(self.rows.x))

    def base_l(self, gone: np.ndarray) -> np.ndarray:
        """The parameters (q, m) of a training on the other rows."""
        plain = replace(self.settings, provenance="none")
        return train(plain, self.design, self.rows.without(gone), self.q).w

    def traced(self) -> Trained:
        """A training that keeps its trajectory and no curvature."""
        trace = Trace.empty(self.settings.iterations, self.q * self.design.width)
        start = np.zeros((self.q, self.design.width))
        taken = windows(self.rows, self.design, self.schedule)
        return Trained(descend(self.settings.descent, start, taken, trace), trace, None)

    def visits(self, gone: np.ndarray, trace: Trace) -> tuple[Leaving, Visits]:
        leaving = self.rows.leaving(self.design, gone)
        return leaving, find_visits(self.settings.loss, self.schedule, leaving, trace.trajectory)

    def update(self, trained: Trained, visits: Visits, gone: np.ndarray) -> Updated:
        kept, descent = trained.kept, self.settings.descent
        if isinstance(kept, AveragedBlocks):
            return update_averaged(descent, trained.trace, kept, visits)
        if isinstance(kept, ExactBlocks):
            return update(descent, trained.trace, kept, visits)
        return self._matrix_free(trained.trace, visits, gone)

    def _matrix_free(self, trace: Trace, visits: Visits, gone: np.ndarray) -> Updated:
        """The recursion of pipeline/update.py, with C'u from the rows that stay."""
        descent, blocks = self.settings.descent, self.settings.blocks
        u = np.zeros(trace.trajectory.shape[1])
        starts = np.zeros((blocks.count + 1, len(u)))
        for t, rows, labels in self._mini_batches(gone):
            if t % blocks.length == 0:
                starts[t // blocks.length] = u
            w = trace.trajectory[t].reshape(self.q, -1)
            here, lost = visits.between(t, t + 1), np.zeros_like(u)
            add_gradients(here.rows, here.coefficients, lost)
            left = trace.gradients[t] - lost
            left -= curved(curvature(descent.loss, w, rows, labels), rows, u)
            forcing = left / len(rows) - trace.gradients[t] / trace.live[t]
            u = descent.decay * u + descent.learning_rate * forcing
        starts[-1] = u
        return Updated(u, starts)

    def _mini_batches(self, gone: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (iteration, rows, labels) of the rows that stay."""
        staying, schedule = self.rows.without(gone), self.schedule
        for t in range(self.settings.iterations):
            epoch, first, last = schedule.span(t)
            if first == 0:
                order = schedule.window_order(epoch, 0)
            slots = order[first:last]
            slots = slots[staying.units[slots] >= 0]
            yield t, self.design.take(staying.x, slots), staying.labels[slots]

    def estimate(
        self, trained: Trained, leaving: Leaving, visits: Visits, updated: Updated
    ) -> Estimate:
        """The estimate from as many of the first rows that stay as the update's work affords."""
        averaged = isinstance(trained.kept, AveragedBlocks)
        blocks = self.settings.blocks
        m = self.design.width
        work = update_work(blocks, self.q * m, visits.iteration, averaged)
        size, count = sample_size(work, m, self.q)
        spans = strata(blocks, int(visits.iteration[0]) // blocks.length, count, averaged)
        stay = np.setdiff1d(np.flatnonzero(self.rows.units >= 0), leaving.slots)
        sample = stay[:size]
        batch = float(trained.trace.live.mean())
        left = len(stay) / (len(stay) + len(leaving.slots))
        return estimate_distance(
            self.settings.descent,
            updated,
            spans,
            trained.trace.trajectory[spans.middles],
            Sample(self.design.take(self.rows.x, sample), self.rows.labels[sample]),
            Sample(leaving.rows, leaving.labels),
            Batches(batch, batch * left, self.schedule.per_epoch),
            FLOAT32,
        )


def curved(p: np.ndarray, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The sum of softmax rows' Hessians times u (P,); p (n, q): their probabilities."""
    scores = rows @ u.reshape(p.shape[1], -1).T
    scores -= (p * scores).sum(axis=1, keepdims=True)
    return np.asarray((p * scores).T @ rows).ravel()


@dataclass(frozen=True)
class Outcome:
    """One deletion against BaseL."""

    rate: float
    """Deleted share of the training rows."""
    share: float
    """|update - BaseL| over |BaseL - before|."""
    accuracy: float
    """The update's validation accuracy less BaseL's."""
    estimate: float
    """The estimated distance over the distance."""

    def __str__(self) -> str:
        return (
            f"{100 * self.rate:g}%: {100 * self.share:.3f}% of the change,"
            f" {100 * self.accuracy:+.3f} points, estimate x{self.estimate:.2f}"
        )


class Trial:
    """One model, and deletions from it."""

    def __init__(
        self, kind: type[Regression], rows: Split, provenance: str, **settings: Any
    ) -> None:
        iterations = 1 if provenance == MATRIX_FREE else settings["iterations"]
        kept = "none" if provenance == MATRIX_FREE else provenance
        given = {**settings, "iterations": iterations, "provenance": kept}
        model: Any = kind(random_state=3, **given).fit(rows.x, rows.y)
        self.held, self.classes = rows, model.classes_
        state = model._state
        self.fitted = Fitted(state.settings, state.design, model._rows, len(state.trained.w))
        self.trained: Trained = state.trained
        if provenance == MATRIX_FREE:
            length = max(1, round(settings["iterations"] ** 0.5))
            whole = replace(state.settings, iterations=settings["iterations"], block=length)
            self.fitted = replace(self.fitted, settings=whole)
            self.trained = self.fitted.traced()

    @property
    def accuracy(self) -> float:
        return self.score(self.trained.w)

    def score(self, w: np.ndarray) -> float:
        """The validation accuracy of parameters (q, m)."""
        scores = self.fitted.design.rows(self.held.validation_x) @ w.T
        best = np.argmax(scores, axis=1) if len(w) > 1 else (scores[:, 0] > 0).astype(int)
        return float(np.mean(self.classes[best] == self.held.validation_y))

    def outcome(self, rate: float, seed: int = 7) -> Outcome:
        """Delete a random share of the rows from the model with all of them."""
        gone = chosen(self.held, rate, seed)
        leaving, visits = self.fitted.visits(gone, self.trained.trace)
        updated = self.fitted.update(self.trained, visits, gone)
        found = self.fitted.estimate(self.trained, leaving, visits, updated)
        return self.compared(rate, gone, updated.change, found)

    def compared(
        self, rate: float, gone: np.ndarray, change: np.ndarray, found: Estimate
    ) -> Outcome:
        before, wanted = self.trained.w, self.fitted.base_l(gone)
        after = before + change.reshape(before.shape)
        distance = float(np.linalg.norm(after - wanted))
        share = distance / float(np.linalg.norm(wanted - before))
        accuracy = self.score(after) - self.score(wanted)
        return Outcome(rate, share, accuracy, found.distance / distance)

    def in_ten_parts(self, rate: float) -> Outcome:
        """Delete the same rows in ten parts, each from what the one before left."""
        gone = chosen(self.held, rate)
        fitted, trained = self.fitted, self.trained
        total = Estimate(0.0, 0.0, 0.0)
        for part in np.array_split(gone, 10):
            leaving, visits = fitted.visits(part, trained.trace)
            updated = fitted.update(trained, visits, part)
            total = accumulated(total, fitted.estimate(trained, leaving, visits, updated))
            trained = delete(fitted.settings, fitted.schedule, trained, leaving, DELTA)
            fitted = replace(fitted, rows=fitted.rows.without(part))
        return self.compared(rate, gone, (trained.w - self.trained.w).ravel(), total)
