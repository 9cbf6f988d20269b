"""Sparse descent and updates against the dense code, on small problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_problems import Trainable

from expunge.pipeline.descent import Descender, Descent, Window
from expunge.pipeline.losses import Loss
from expunge.pipeline.sparse_descent import SlotRows, SparseDescender, SparseStep, SparseWindow
from expunge.pipeline.sparse_linear import LinearisedUpdate
from expunge.pipeline.sparse_survey import decision, largest_curvature, tally
from expunge.pipeline.sparse_update import SparseUpdated, update_sparse


@dataclass
class Problem(Trainable):
    """Rows of few features, also as a dense array."""

    x: np.ndarray
    labels: np.ndarray
    live: np.ndarray
    orders: list[np.ndarray]
    batch: int
    step: SparseStep

    slot_rows: SlotRows = field(init=False)
    features: int = field(init=False)

    def __post_init__(self) -> None:
        lengths = (self.x != 0).sum(axis=1)
        pointers = np.r_[0, np.cumsum(lengths)].astype(np.int64)
        columns = np.nonzero(self.x)[1].astype(np.int32)
        values = self.x[self.x != 0].astype(np.float32)
        self.slot_rows = SlotRows(values, columns, pointers, self.labels)
        self.features = self.x.shape[1]

    def pieces(self) -> Iterator[tuple[int, SlotRows]]:
        half = len(self.x) // 2
        for first, last in ((0, half), (half, len(self.x))):
            rows = self.slot_rows
            a, b = rows.pointers[first], rows.pointers[last]
            yield (
                first,
                SlotRows(
                    rows.values[a:b],
                    rows.columns[a:b],
                    rows.pointers[first : last + 1] - a,
                    rows.labels[first:last],
                ),
            )

    def without(self, gone: np.ndarray) -> Problem:
        live = self.live.copy()
        live[gone] = False
        return Problem(self.x, self.labels, live, self.orders, self.batch, self.step)


def problem(
    seed: int, n: int = 240, features: int = 30, epochs: int = 12, batch: int = 20, l2: float = 1e-3
) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.random((n, features)) * (rng.random((n, features)) < 0.2)
    x = (x / np.maximum(1e-9, np.linalg.norm(x, axis=1))[:, np.newaxis]).astype(np.float32)
    labels = np.where(x @ rng.normal(size=features) + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    live = rng.random(n) < 0.9
    orders = [rng.permutation(n) for _ in range(epochs)]
    return Problem(x.astype(float), labels, live, orders, batch, SparseStep(1.0, l2))


def dense(p: Problem) -> np.ndarray:
    """What the dense descent gives, with a bias column and no standardisation."""
    descender = Descender(
        Descent(Loss.LOGISTIC, p.step.rate, p.step.l2), np.zeros((1, p.x.shape[1] + 1))
    )
    design = np.c_[p.x, np.ones(len(p.x))]
    for number in range(p.epochs):
        order, edges = p.epoch(number)
        descender.take(Window(design[order], p.labels[order], edges, 0, True))
    found: np.ndarray = descender.w[0]
    return found


def update(
    p: Problem, gone: np.ndarray, c: list[np.ndarray]
) -> tuple[SparseUpdated, list[np.ndarray]]:
    stays = np.ones(len(p.x), np.bool_)
    stays[gone] = False
    kept: dict[int, np.ndarray] = {}
    found = update_sparse(p.step, p, stays, p.x.shape[1], c.__getitem__, kept.__setitem__)
    return found, [kept[i] for i in range(p.epochs)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.sampled_from([0.0, 1e-3, 0.3, 0.9]))
def test_the_descent_is_the_dense_one(seed: int, batch: int, l2: float) -> None:
    p = problem(seed, n=80, features=12, epochs=3, batch=batch, l2=l2)
    np.testing.assert_allclose(p.descend()[0], dense(p), rtol=1e-5, atol=1e-6)


def test_a_strong_decay_neither_underflows_nor_is_forgotten() -> None:
    p = problem(1, n=400, epochs=4, batch=1, l2=0.9)
    np.testing.assert_allclose(p.descend()[0], dense(p), rtol=1e-5)
    w, c = p.descend()
    gone = np.flatnonzero(p.live)[:4]
    found, _ = update(p, gone, c)
    basel, _ = p.without(gone).descend()
    assert np.isfinite(found.change).all()
    assert np.linalg.norm(w + found.change - basel) < 1e-4 * np.linalg.norm(w)


def test_mini_batches_may_stretch_over_windows() -> None:
    p = problem(2, batch=50)
    descender = SparseDescender(p.step, np.zeros(p.x.shape[1] + 1))
    for number in range(p.epochs):
        order, edges = p.epoch(number)
        c = np.zeros(len(p.x), np.float32)
        middle = (edges[1] + edges[2]) // 2
        descender.take(
            SparseWindow(p.slot_rows, order[:middle], np.r_[edges[:2], middle], False), c
        )
        rest = np.r_[0, edges[2:] - middle]
        descender.take(SparseWindow(p.slot_rows, order[middle:], rest, True), c)
    np.testing.assert_allclose(descender.w, p.descend()[0], rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_the_update_is_near_basel(seed: int) -> None:
    p = problem(seed, n=600, batch=60, epochs=20)
    rng = np.random.default_rng(seed)
    gone = rng.choice(np.flatnonzero(p.live), 6, replace=False)
    w, c = p.descend()
    found, changed = update(p, gone, c)
    basel, wanted = p.without(gone).descend()
    size = np.linalg.norm(basel - w)
    distance = np.linalg.norm(w + found.change - basel)
    assert distance < 0.05 * size
    assert distance < 10 * found.estimate + 1e-6 * np.linalg.norm(w)
    assert all((one[gone] == 0.0).all() for one in changed)
    moved = sum(float(np.square(a - b).sum()) for a, b in zip(changed, wanted, strict=True))
    whole = sum(float(np.square(a - b)[p.live].sum()) for a, b in zip(c, wanted, strict=True))
    assert moved < 0.05 * whole


def test_a_deletion_of_nothing_changes_nothing() -> None:
    p = problem(3)
    _, c = p.descend()
    found, changed = update(p, np.empty(0, np.int64), c)
    assert np.abs(found.change).max() < 1e-12 and found.estimate < 1e-12
    for one, other in zip(c, changed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_deletion_of_everything_leaves_nothing() -> None:
    p = problem(4)
    w, c = p.descend()
    found, changed = update(p, np.flatnonzero(p.live), c)
    np.testing.assert_allclose(found.change, -w, atol=1e-6)
    assert not np.any(changed)


def test_deletions_add_up() -> None:
    p = problem(5, n=600, batch=60, epochs=20)
    first, second = np.split(np.flatnonzero(p.live)[:10], 2)
    w, c = p.descend()
    one, changed = update(p, first, c)
    two, _ = update(p.without(first), second, changed)
    basel, _ = p.without(np.r_[first, second]).descend()
    assert np.linalg.norm(w + one.change + two.change - basel) < 0.01 * np.linalg.norm(basel - w)


def test_the_linearised_rule_is_the_papers() -> None:
    """Against the rule written out with matrices, iteration by iteration."""
    p = problem(6, batch=25)
    gone = np.flatnonzero(p.live)[::37]
    stays = np.ones(len(p.x), np.bool_)
    stays[gone] = False
    w, c = p.descend()
    linear = LinearisedUpdate(p.step, p.x.shape[1], len(p.x))
    design, u = np.c_[p.x, np.ones(len(p.x))], np.zeros(p.x.shape[1] + 1)
    for number in range(p.epochs):
        order, edges = p.epoch(number)
        changed = np.zeros_like(c[number])
        linear.take(SparseWindow(p.slot_rows, order, edges, True), stays, c[number], changed)
        for a, b in pairwise(edges.tolist()):
            batch = order[a:b]
            own = c[number][batch].astype(float)
            slope = np.abs(own) * (1 - np.abs(own))
            left = stays[batch]
            new = (own - slope * (design[batch] @ u))[left] @ design[batch][left]
            old = own @ design[batch]
            u = p.step.decay * u
            u = u + p.step.rate * (new / max(1, left.sum()) - old / max(1, len(batch)))
    np.testing.assert_allclose(linear.change, u, rtol=1e-9, atol=1e-12)
    basel, _ = p.without(gone).descend()
    distance = np.linalg.norm(w + u - basel)
    assert distance < 0.05 * np.linalg.norm(basel - w)


def test_an_update_refuses_half_an_iteration() -> None:
    p = problem(7)
    linear = LinearisedUpdate(p.step, p.x.shape[1], len(p.x))
    c = np.zeros(len(p.x), np.float32)
    with pytest.raises(ValueError, match="whole iterations"):
        linear.take(SparseWindow(p.slot_rows, *p.epoch(0), False), p.live, c, c.copy())


def test_the_survey_is_the_dense_one() -> None:
    p = problem(8)
    design = np.c_[p.x, np.ones(len(p.x))][p.live]
    top = np.linalg.eigvalsh(design.T @ design / len(design))[-1]
    assert 0.98 * top < largest_curvature(p, p.live, p.x.shape[1]) <= top * (1 + 1e-9)
    w = np.random.default_rng(0).normal(size=p.x.shape[1] + 1)
    z, y = design @ w, p.labels[p.live]
    found = tally(p, p.live, w)
    assert (found.rows, found.positive) == (len(y), (y > 0).sum())
    assert found.right == ((z > 0) == (y > 0)).sum()
    assert found.loss == pytest.approx(np.log1p(np.exp(-y * z)).sum())
    rows = p.slot_rows
    all_scores = decision(rows.values, rows.columns, rows.pointers, w)
    np.testing.assert_allclose(all_scores[p.live], z, rtol=1e-9)


def test_a_decay_of_more_than_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="learning_rate times l2"):
        SparseStep(2.0, 0.5)
