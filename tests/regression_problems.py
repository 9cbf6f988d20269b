"""Made-up regression problems, and what the tests of the numerics compare: updates and BaseL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expunge import LinearRegression, LogisticRegression, SoftmaxRegression
from expunge.pipeline.design import Design
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression import RegressionSettings
from expunge.pipeline.regression_arrays import Rows, Trained, train
from expunge.pipeline.regression_estimator import Regression
from expunge.pipeline.schedule import Schedule
from expunge.pipeline.visits import Leaving, Visits, find_visits


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
