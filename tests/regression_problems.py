"""Made-up regression problems, and what the tests of the numerics compare: updates and BaseL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from expunge import LinearRegression, LogisticRegression, SoftmaxRegression
from expunge.pipeline.design import Design
from expunge.pipeline.estimate import (
    MOST_ROWS,
    Estimate,
    estimate_distance,
    sample_size,
    strata,
    update_work,
)
from expunge.pipeline.forces import Batches
from expunge.pipeline.frozen import FrozenBlocks
from expunge.pipeline.left_out import Course, frozen_error, together, truncation_error
from expunge.pipeline.losses import Loss
from expunge.pipeline.lowrank import LowRankBlocks
from expunge.pipeline.projected import ProjectedBlocks
from expunge.pipeline.projection_error import projection_error
from expunge.pipeline.regression import MEANS, RegressionSettings
from expunge.pipeline.regression_arrays import Rows, Trained, train
from expunge.pipeline.regression_estimator import Regression
from expunge.pipeline.regression_kinds import stepped_with, updated_by_delta
from expunge.pipeline.remainders import Rows as Sample
from expunge.pipeline.schedule import Schedule
from expunge.pipeline.update import Updated
from expunge.pipeline.visits import Leaving, Visits, find_visits

LOSSES = [(Loss.LINEAR, 1), (Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]
"""With how many rows of parameters."""


@dataclass(frozen=True)
class Problem:
    """Rows, and how to train on them; features are taken as they are."""

    settings: RegressionSettings
    rows: Rows
    q: int

    @property
    def design(self) -> Design:
        d = self.rows.x.shape[1]
        return Design(np.zeros(d), np.ones(d))

    @property
    def schedule(self) -> Schedule:
        return self.settings.schedule(1, len(self.rows.x))

    def trained(self) -> Trained:
        return train(self.settings, self.design, self.rows, self.q)

    def base_l(self, gone: np.ndarray) -> np.ndarray:
        """The parameters (P,) of a training without some rows."""
        bare = replace(self, settings=replace(self.settings, provenance="none"))
        return bare.without(gone).trained().w.ravel()

    def without(self, gone: np.ndarray) -> Problem:
        return replace(self, rows=self.rows.without(gone))

    def leaving(self, gone: np.ndarray) -> Leaving:
        return self.rows.leaving(self.design, gone)

    def visits(self, trained: Trained, gone: np.ndarray) -> Visits:
        trajectory = trained.trace.trajectory
        return find_visits(self.settings.loss, self.schedule, self.leaving(gone), trajectory)

    def updated(self, trained: Trained, gone: np.ndarray) -> Updated:
        """By method ``delta``."""
        assert trained.kept is not None
        trace, leaving = trained.trace, self.leaving(gone)
        kept = stepped_with(self.settings, self.schedule, trace, trained.kept, leaving)
        return updated_by_delta(self.settings.descent, trace, kept, self.visits(trained, gone))

    def some(self, count: int, seed: int = 0) -> np.ndarray:
        """Random rows."""
        rng = np.random.default_rng(seed)
        return rng.choice(len(self.rows.x), count, replace=False).astype(np.int64)


def problem(
    loss: Loss,
    rows: int,
    features: int,
    classes: int = 1,
    *,
    batch: int,
    iterations: int,
    rate: float = 0.1,
    l2: float = 0.01,
    seed: int = 0,
    provenance: str = "exact",
    dtype: str = "float64",
    block: int | None = None,
) -> Problem:
    """Rows of normal features of unequal spread, and labels drawn from a model of the kind."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(rows, features)) * rng.uniform(0.3, 1.5, features)).astype(np.float32)
    truth = rng.normal(size=(classes, features + 1))
    scores = np.hstack([x, np.ones((rows, 1))]) @ truth.T
    if loss == Loss.LINEAR:
        labels = scores[:, 0] + rng.normal(size=rows)
    elif loss == Loss.LOGISTIC:
        labels = np.where(scores[:, 0] + rng.logistic(size=rows) > 0, 1.0, -1.0)
    else:
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.float64)
    settings = RegressionSettings(
        loss=loss,
        learning_rate=rate,
        l2=l2,
        batch_slots=min(batch, rows),
        iterations=iterations,
        random_state=seed,
        window=1,
        validation=0.0,
        provenance=provenance,
        dtype=dtype,
        block=block or max(1, round(iterations**0.5)),
    )
    return Problem(settings, Rows(x, labels, np.arange(rows)), classes)


def relative(found: np.ndarray, wanted: np.ndarray, scale: np.ndarray) -> float:
    """The distance of two vectors over the length of a third."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(scale))


def order(sizes: list[float], errors: list[float]) -> float:
    """The slope of the errors against the sizes, both in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


@st.composite
def small_problems(
    draw: st.DrawFn, provenance: str, block: int | None = None
) -> tuple[Problem, np.ndarray]:
    """A problem and any rows to delete.

    Among them are mini-batches that lose all their rows, one row alone, and no row left.
    """
    loss, q = draw(st.sampled_from(LOSSES))
    n, d = draw(st.integers(1, 30)), draw(st.integers(1, 3))
    here = problem(
        loss,
        n,
        d,
        q,
        batch=draw(st.integers(1, 35)),
        iterations=draw(st.integers(1, 25)),
        l2=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(0, 1000)),
        provenance=provenance,
        block=block,
    )
    gone = draw(st.sets(st.integers(0, n - 1)))
    return here, np.array(sorted(gone), np.int64)


# ------------------------------------------------------------------ estimates


@dataclass(frozen=True)
class Estimated:
    """An update and its estimate, as deletion jobs put it together."""

    updated: Updated
    whole: Estimate
    own: Estimate
    """Of what the kind of provenance leaves out alone."""

    def distance(self, trained: Trained, wanted: np.ndarray) -> float:
        """The true distance to parameters (P,)."""
        return float(np.linalg.norm(trained.w.ravel() + self.updated.change - wanted))


def estimated(here: Problem, trained: Trained, gone: np.ndarray) -> Estimated:
    """Delete some rows of a problem whose rows stand in random order."""
    settings, kept, updated = here.settings, trained.kept, here.updated(trained, gone)
    visits, leaving = here.visits(trained, gone), here.leaving(gone)
    projected, averaged = isinstance(kept, ProjectedBlocks), settings.provenance in MEANS
    followed = here.q * settings.rank if projected else trained.w.size
    work = update_work(settings.blocks, followed, visits.iteration, averaged)
    size, count = sample_size(work, here.design.width, here.q)
    spans = strata(settings.blocks, int(visits.iteration[0]) // settings.block, count, averaged)
    stay = np.setdiff1d(np.arange(len(here.rows.x)), gone)[: MOST_ROWS if projected else size]
    sample = Sample(here.design.take(here.rows.x, stay), here.rows.labels[stay])
    own = Sample(leaving.rows, leaving.labels)
    batch, share = float(trained.trace.live.mean()), 1.0 - len(gone) / len(here.rows.x)
    batches = Batches(batch, batch * share, here.schedule.per_epoch)
    trajectory = trained.trace.trajectory[spans.middles]
    found = estimate_distance(
        settings.descent, updated, spans, trajectory, sample, own, batches, 2.0**-53
    )
    course = Course(settings.descent, spans, trajectory, updated, sample)
    left_out = _left_out(here, trained, course, own, batches)
    return Estimated(updated, together(found, left_out), left_out)


def _left_out(
    here: Problem, trained: Trained, course: Course, own: Sample, batches: Batches
) -> Estimate:
    """What the kind leaves out; own: the rows that leave."""
    settings, trace, kept = here.settings, trained.trace, trained.kept
    if isinstance(kept, FrozenBlocks):
        span = settings.frozen(batches.per_epoch)
        return frozen_error(course, span, trace.trajectory[span.first], own, batches)
    if isinstance(kept, ProjectedBlocks):
        return projection_error(course, kept.basis, own, len(here.rows.x) - len(own.rows))
    if not isinstance(kept, LowRankBlocks):
        return Estimate(0.0, 0.0, 0.0)
    factors, rests = [], []
    for t in course.spans.middles.tolist():
        block, place = divmod(t, settings.block)
        first, last = settings.blocks.span(block)
        factors.append(kept.parts[block].factor(place))
        rests.append(np.mean(kept.parts[block].rests / trace.live[first:last]))
    return truncation_error(course, factors, np.array(rests))


# ------------------------------------------------------------------ estimators

MODELS = [LinearRegression, LogisticRegression, SoftmaxRegression]
N = 600


def data(kind: type[Regression], n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose features have units of their own, and labels of the kind."""
    rng = np.random.default_rng(seed)
    x = rng.normal([5.0, -100.0, 0.01], [2.0, 30.0, 0.001], (n, 3)).astype(np.float32)
    z = (x - [5.0, -100.0, 0.01]) / [2.0, 30.0, 0.001]
    if kind is LinearRegression:
        return x, 3.0 + z @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=n)
    if kind is LogisticRegression:
        return x, np.where(z @ [1.0, -2.0, 0.5] + rng.logistic(size=n) > 0, "yes", "no")
    scores = z @ rng.normal(size=(3, 3)) + rng.gumbel(size=(n, 3))
    return x, np.array([10, 20, 40])[np.argmax(scores, axis=1)]


def small(kind: type[Regression], **others: Any) -> Any:
    return kind(**{"batch_size": 100, "iterations": 120, "random_state": 1} | others)


def fitted(kind: type[Regression], **others: Any) -> Any:
    return small(kind, **others).fit(*data(kind))


def parameters(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])
