"""The estimated distance to BaseL against the distance itself, and its parts one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from expunge.pipeline.averaged import rebase_averaged_block, update_averaged
from expunge.pipeline.descent import Descent, Trace, Window, descend
from expunge.pipeline.estimate import (
    LEAST_ROWS,
    LEAST_STRATA,
    MOST_ROWS,
    MOST_STRATA,
    Estimate,
    accumulated,
    estimate_distance,
    sample_size,
    strata,
    update_work,
)
from expunge.pipeline.forces import Batches
from expunge.pipeline.lanczos import STEPS, geometric, hessian_times, summed
from expunge.pipeline.losses import Loss
from expunge.pipeline.provenance import (
    Blocks,
    MeanCurvature,
    Real,
    add_curvature,
    curvature,
    decompose,
    pack,
    packed_size,
)
from expunge.pipeline.remainders import Rows
from expunge.pipeline.schedule import Schedule
from expunge.pipeline.update import Updated, rebase_block, update
from expunge.pipeline.visits import Leaving, Visits, find_visits

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A small problem and how it is trained."""

    loss: Loss
    columns: int
    classes: int
    iterations: int
    learning_rate: float
    scale: float = 0.5
    rows: int = 20000
    batch: int = 200


SETTINGS = {
    "logistic": Setting(Loss.LOGISTIC, 10, 1, 600, 0.5),
    "logistic, barely trained": Setting(Loss.LOGISTIC, 10, 1, 600, 0.005),
    "logistic, well trained": Setting(Loss.LOGISTIC, 10, 1, 2000, 0.5, scale=1.5),
    "softmax": Setting(Loss.SOFTMAX, 8, 4, 600, 0.5),
}


@dataclass
class Packed:
    """Exact curvature in memory."""

    blocks: Blocks
    values: NDArray[Real]
    longest_run: int = 1000

    def packed(self, first: int, last: int) -> NDArray[Real]:
        return self.values[self.blocks.span(first)[0] : self.blocks.span(last - 1)[1]]

    def product(self, block: int) -> None:
        return None


@dataclass
class Means:
    """Averaged curvature in memory."""

    blocks: Blocks
    parts: list[tuple[NDArray[Real], NDArray[Real]]]

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        return self.parts[block]


class Trained:
    """A model with its provenance, from which rows can be deleted one after the other."""

    def __init__(self, setting: Setting, averaged: bool, dirty: NDArray[np.int64]) -> None:
        rng = np.random.default_rng(0)
        n, m = setting.rows, setting.columns
        self.x = rng.normal(size=(n, m)) * rng.uniform(0.2, 1.5, m)
        self.x[:, -1] = 1.0
        scores = self.x @ (rng.normal(size=(setting.classes, m)) * setting.scale).T
        if setting.loss == Loss.SOFTMAX:
            self.y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.float64)
        else:
            noisy = scores[:, 0] + rng.logistic(size=n)
            linear = setting.loss == Loss.LINEAR
            self.y = noisy if linear else np.where(noisy > 0, 1.0, -1.0)
        self.x[dirty, :-1] *= 10.0
        self.averaged = averaged
        self.setting = setting
        self.descent = Descent(setting.loss, setting.learning_rate, 0.01)
        self.schedule = Schedule(1, 1, n, 1, setting.batch, setting.iterations)
        self.gone = np.empty(0, np.int64)
        self.trace = Trace.empty(setting.iterations, setting.classes * m)
        self.w = self.basel(self.trace)
        self._capture()

    def windows(self) -> Iterator[Window]:
        alive = np.ones(len(self.x), bool)
        alive[self.gone] = False
        s = self.schedule
        for epoch in range(-(-s.iterations // s.per_epoch)):
            count = min(s.per_epoch, s.iterations - epoch * s.per_epoch)
            order = s.window_order(epoch, 0)
            keep = alive[order]
            ends = np.minimum(np.arange(count + 1) * s.batch_slots, len(order))
            edges = np.append(0, np.cumsum(keep))[ends]
            own = order[keep]
            yield Window(self.x[own], self.y[own], edges, epoch * s.per_epoch, True)

    def basel(self, trace: Trace | None = None) -> Array:
        start = np.zeros((self.setting.classes, self.setting.columns))
        return descend(self.descent, start, self.windows(), trace).ravel()

    def _capture(self) -> None:
        tau, size, loss = self.setting.iterations, self.trace.trajectory.shape[1], self.setting.loss
        kind = np.float64 if loss == Loss.LINEAR else np.float32
        self.blocks = Blocks(tau, tau // 10 if self.averaged else int(tau**0.5) + 1)
        means = [MeanCurvature(loss, size, kind) for _ in range(self.blocks.count)]
        self.values = np.empty((0 if self.averaged else tau, packed_size(size)), kind)
        for window in self.windows():
            for k, (a, b) in enumerate(zip(window.edges[:-1], window.edges[1:], strict=True)):
                t = window.first + k
                w = self.trace.trajectory[t].reshape(self.setting.classes, -1)
                curved = curvature(loss, w, window.rows[a:b], window.labels[a:b])
                if self.averaged:
                    block = means[t // self.blocks.length]
                    block.add(window.rows[a:b], curved, int(b - a), True)
                else:
                    full = np.zeros((size, size), kind, order="F")
                    add_curvature(full, loss, window.rows[a:b], curved)
                    pack(full, self.values[t])
        self.parts = [decompose(m.mean()) for m in means] if self.averaged else []

    def delete(self, dead: NDArray[np.int64], rows: int = 128) -> tuple[Estimate, float]:
        """Delete rows and rebase; return the estimate for this deletion and the true distance."""
        none = np.zeros(len(dead), np.int64)
        leaving = Leaving(self.x[dead], self.y[dead], none, dead)
        visits = find_visits(self.setting.loss, self.schedule, leaving, self.trace.trajectory)
        if self.averaged:
            means = Means(self.blocks, self.parts)
            updated = update_averaged(self.descent, self.trace, means, visits)
        else:
            packed = Packed(self.blocks, self.values)
            updated = update(self.descent, self.trace, packed, visits)
        before = len(self.x) - len(self.gone)
        self.gone = np.append(self.gone, dead)
        found = self._estimate(updated, visits, dead, rows, before)
        self.w = self.w + updated.change
        self._rebase(updated, visits)
        return found, float(np.linalg.norm(self.w - self.basel()))

    def _estimate(
        self, updated: Updated, visits: Visits, dead: NDArray[np.int64], rows: int, before: int
    ) -> Estimate:
        alive = np.setdiff1d(np.arange(len(self.x)), self.gone)
        sample = alive[1000 : 1000 + rows]
        first = int(visits.iteration[0]) // self.blocks.length
        spans = strata(self.blocks, first, 20, self.averaged)
        batch = float(self.trace.live.mean())
        return estimate_distance(
            self.descent,
            updated,
            spans,
            self.trace.trajectory[spans.middles],
            Rows(self.x[sample], self.y[sample]),
            Rows(self.x[dead], self.y[dead]),
            Batches(batch, batch * (1.0 - len(dead) / before), self.schedule.per_epoch),
        )

    def _rebase(self, updated: Updated, visits: Visits) -> None:
        traces, values = [], []
        for block in range(self.blocks.count):
            a, b = self.blocks.span(block)
            own = replace(visits.between(a, b), iteration=visits.between(a, b).iteration - a)
            part = Trace(
                self.trace.trajectory[a:b], self.trace.gradients[a:b], self.trace.live[a:b]
            )
            start = updated.starts[block]
            if self.averaged:
                mean = rebase_averaged_block(self.descent, part, self.parts[block], own, start)
                self.parts[block] = mean.eigen
                traces.append(mean.trace)
            else:
                exact = rebase_block(self.descent, part, self.values[a:b], own, start)
                values.append(exact.packed)
                traces.append(exact.trace)
        if values:
            self.values = np.concatenate(values)
        self.trace = Trace(
            np.concatenate([t.trajectory for t in traces]),
            np.concatenate([t.gradients for t in traces]),
            np.concatenate([t.live for t in traces]),
        )


def chosen(setting: Setting, count: int, seed: int = 5) -> NDArray[np.int64]:
    return np.random.default_rng(seed).choice(setting.rows, count, replace=False)


def ratios(name: str, averaged: bool, dirty: bool, seed: int) -> list[float]:
    """Estimate over truth for one row, 0.1%, 1% and 20% of them."""
    setting = SETTINGS[name]
    out = []
    for count in (1, 20, 200, 4000):
        dead = chosen(setting, count, seed)
        model = Trained(setting, averaged, dead if dirty else dead[:0])
        found, truth = model.delete(dead)
        out.append(found.distance / truth)
    return out


def within(found: list[float], factor: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.abs(np.log(found)) < np.log(factor)
    return near


@pytest.mark.parametrize("dirty", [False, True], ids=["random", "dirty"])
@pytest.mark.parametrize("averaged", [False, True], ids=["exact", "averaged"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_estimate_is_near_the_distance(name: str, averaged: bool, dirty: bool) -> None:
    found = ratios(name, averaged, dirty, 5)
    assert within(found, 10.0).all(), found
    assert within(found, 3.0).sum() >= 2, found


@pytest.mark.slow
@pytest.mark.parametrize("averaged", [False, True], ids=["exact", "averaged"])
def test_most_estimates_are_within_a_factor_of_three(averaged: bool) -> None:
    found = [
        ratio
        for name in SETTINGS
        for dirty in (False, True)
        for seed in (6, 7)
        for ratio in ratios(name, averaged, dirty, seed)
    ]
    assert within(found, 10.0).mean() >= 0.95, found
    assert within(found, 3.0).mean() >= 0.85, found
    assert 0.5 < np.median(found) < 2.0


@pytest.mark.parametrize("dirty", [False, True], ids=["random", "dirty"])
@pytest.mark.parametrize("averaged", [False, True], ids=["exact", "averaged"])
@pytest.mark.parametrize("count", [20, 200])
def test_ten_deletions_add_up(averaged: bool, dirty: bool, count: int) -> None:
    setting = SETTINGS["logistic"]
    dead = chosen(setting, 10 * count, 9)
    model = Trained(setting, averaged, dead if dirty else dead[:0])
    total = Estimate(0.0, 0.0, 0.0)
    for part in dead.reshape(10, count):
        found, truth = model.delete(part)
        total = accumulated(total, found)
    assert within([total.distance / truth], 10.0).all(), total.distance / truth


@pytest.mark.parametrize("dirty", [False, True], ids=["random", "dirty"])
def test_a_linear_model_with_exact_curvature_is_off_by_rounding_alone(dirty: bool) -> None:
    setting = Setting(Loss.LINEAR, 6, 1, 300, 0.005, rows=3000)
    dead = chosen(setting, 30)
    found, truth = Trained(setting, False, dead if dirty else dead[:0]).delete(dead)
    assert found.trend == found.fluctuation == 0.0
    assert found.distance == found.rounding < 1e-13
    assert truth < 20.0 * found.rounding


def test_rounding_of_the_stored_curvature_counts() -> None:
    assert still(0.1, 64).rounding < 1e-15
    assert still(0.1, 64, 6e-8).rounding == pytest.approx(6e-8 * 0.1, rel=1e-6)


def test_a_linear_model_with_averaged_curvature_fluctuates() -> None:
    setting = Setting(Loss.LINEAR, 6, 1, 300, 0.005, rows=3000)
    dead = chosen(setting, 30)
    found, truth = Trained(setting, True, dead[:0]).delete(dead)
    assert found.trend < 0.2 * found.fluctuation
    assert within([found.distance / truth], 10.0).all()


def still(change: float, rows: int, precision: float = 0.0) -> Estimate:
    """The estimate for an update that moves every parameter by ``change`` in even steps."""
    spans = strata(Blocks(100, 10), 0, 8, False)
    starts = np.linspace(0.0, change, 11)[:, np.newaxis] * np.ones(3)
    sample = Rows(np.random.default_rng(1).normal(size=(rows, 3)), np.ones(rows))
    return estimate_distance(
        Descent(Loss.LOGISTIC, 0.1, 0.01),
        Updated(starts[-1], starts),
        spans,
        np.ones((len(spans.middles), 3)),
        sample,
        sample,
        Batches(10.0, 9.0, 5),
        precision,
    )


def test_nothing_lost_nothing_estimated() -> None:
    found = still(0.0, 64)
    assert found.trend == found.fluctuation == 0.0


def test_a_sample_of_one_row_is_refused() -> None:
    assert still(0.1, 2).distance > 0.0
    with pytest.raises(ValueError, match="1 live rows; it needs 2"):
        still(0.1, 1)


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize(("iterations", "length"), [(600, 25), (601, 60), (7, 3), (5, 1), (1, 1)])
def test_strata_cover_the_rest_of_the_training(
    averaged: bool, iterations: int, length: int
) -> None:
    blocks = Blocks(iterations, length)
    for first in range(blocks.count):
        spans = strata(blocks, first, 16, averaged)
        assert spans.edges[0] == blocks.span(first)[0] and spans.edges[-1] == iterations
        assert (spans.lengths > 0).all() and spans.middles[-1] < iterations
        if averaged:
            starts = [blocks.span(b)[0] for b in range(first, blocks.count)]
            assert set(starts) <= set(spans.edges.tolist())
            assert set(spans.block.tolist()) == set(range(first, blocks.count))
        else:
            assert spans.lengths[-1] <= spans.lengths[0]


def test_a_sample_grows_with_the_update() -> None:
    assert sample_size(0.0, 29, 1) == (LEAST_ROWS, LEAST_STRATA)
    assert sample_size(1e15, 29, 1) == (MOST_ROWS, MOST_STRATA)
    small, large = sample_size(1e8, 29, 1), sample_size(1e9, 29, 1)
    assert small[0] * small[1] < large[0] * large[1]


def test_the_work_of_an_update_counts_touched_blocks() -> None:
    blocks = Blocks(100, 10)
    for averaged in (False, True):
        assert update_work(blocks, 20, np.empty(0, np.int64), averaged) == 0.0
        few = update_work(blocks, 20, np.array([55]), averaged)
        many = update_work(blocks, 20, np.array([5, 55, 95]), averaged)
        assert 0.0 < few < many


@pytest.mark.parametrize("loss", [Loss.LOGISTIC, Loss.SOFTMAX])
def test_lanczos_steps_sum_powers_of_the_step(loss: Loss) -> None:
    rng = np.random.default_rng(3)
    q, m, rate, l2, length = (
        (2, 3, 0.3, 0.01, 40) if loss == Loss.SOFTMAX else (1, 5, 0.3, 0.01, 40)
    )
    assert q * m <= STEPS
    x, w, z = rng.normal(size=(50, m)), rng.normal(size=(q, m)), rng.normal(size=q * m)
    curved = curvature(loss, w, x, np.ones(50))
    size = q * m
    hessian = np.array([hessian_times(int(loss), x, curved, row) for row in np.eye(size)])
    if loss == Loss.LOGISTIC:
        np.testing.assert_allclose(hessian, (x.T * curved[:, 0]) @ x / 50, atol=1e-14)
    step = (1.0 - rate * l2) * np.eye(size) - rate * hessian
    expected = sum(np.linalg.matrix_power(step, k) @ z for k in range(length))
    found = summed(int(loss), rate, l2, x, curved, float(length), z, STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_geometric_sums() -> None:
    for a in (0.0, 0.5, 0.999999, 1.0, -0.5, -1.2):
        for length in (1, 2, 7):
            expected = sum(a**k for k in range(length))
            assert geometric(a, length) == pytest.approx(expected, rel=1e-5)
