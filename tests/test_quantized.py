"""Q-k-means and k-means: a step by hand, their parts against fractions, and what deletion checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.cluster import KMeans as ReferenceKMeans
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import make_blobs

from expunge.pipeline import quantized, replay, validation
from expunge.pipeline.arrays import ArrayPasses, ordinals_of
from expunge.pipeline.clusterers import KMeans, QKMeans
from expunge.pipeline.fixedpoint import (
    CENTROID_GRID,
    LOSS_UNIT,
    ROW_GRID,
    Extent,
    Scaling,
    exact_loss,
)
from expunge.pipeline.lloyd import Tally
from expunge.pipeline.quantized import (
    Centroids,
    Draw,
    Passes,
    Record,
    Settings,
    momentum,
    snap,
)
from expunge.pipeline.replay import Remembering, Removed
from expunge.pipeline.seeding import Winner

# ----------------------------------------------------------------------- one run by hand

THIRTY_SECOND = CENTROID_GRID // 32
"""1/32 in centroid units; below, all positions are in 32nds."""


def test_three_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows on [0, 1], k = 2, epsilon = 1/8 = 4/32, gamma = 1: small is below 5 rows.

    Rows, in 32nds: 0 4 8 | 24 24 24 24 24 20 21. Seeds 0 and 32.
    Step 0: sizes 3, 7; sums 12, 161; loss 0 + 16 + 64 + 5 * 64 + 144 + 121 = 665.
    Step 1, phase 1, lattice 1 5 9 .. 21 25: small cluster (12 + 2 * 0) / 5 = 2.4 -> 1;
            161 / 7 = 23, half way between 21 and 25, goes up -> 25.
            Loss 1 + 9 + 49 + 5 * 1 + 25 + 16 = 105 < 665: accepted.
    Step 2, phase -2, lattice 2 6 .. 22 26: (12 + 2 * 1) / 5 = 2.8 -> 2; 23 -> 22.
            Loss 4 + 4 + 36 + 5 * 4 + 4 + 1 = 69 < 105: accepted.
    Step 3, phase 3/2, lattice 1.5 5.5 .. 21.5 25.5: (12 + 2 * 2) / 5 = 3.2 -> 1.5; 23 -> 21.5.
            Loss 2.25 + 6.25 + 42.25 + 5 * 6.25 + 2.25 + 0.25 = 84.5 >= 69: rejected.
    """
    phases = {1: 1.0, 2: -2.0, 3: 1.5}
    seeds = Centroids(
        np.array([[0.0], [1.0]]),
        np.array([[0], [CENTROID_GRID]]),
        np.zeros(1, np.int64),
        np.ones(2, np.bool_),
        np.array([[0, 0], [3, 0]]),
    )

    def phase_of(key: int, step: int, spacing: int, size: int) -> np.ndarray:
        assert spacing == 4 * THIRTY_SECOND
        return np.full(size, int(phases.get(step, 0.0) * THIRTY_SECOND))

    monkeypatch.setattr(quantized, "lattice_phase", phase_of)
    monkeypatch.setattr(quantized, "seed", lambda *_: seeds)
    rows = np.array([[0, 4, 8, 24, 24, 24, 24, 24, 20, 21]]).T / 32
    model = QKMeans(2, epsilon=0.125, gamma=1.0, random_state=0, bounds=(0.0, 1.0)).fit(rows)

    steps = model.record_.steps
    assert [s.loss * 1024 / LOSS_UNIT for s in steps] == [665, 105, 69, 84.5]
    found = [(s.centroids.quantized / THIRTY_SECOND).ravel().tolist() for s in steps]
    assert found == [[0, 32], [1, 25], [2, 22], [1.5, 21.5]]
    analog = [s.centroids.analog.ravel().tolist() for s in steps]
    assert analog[1:] == [[2.4 / 32, 23 / 32], [14 / 160, 23 / 32], [0.1, 23 / 32]]
    assert all(s.tally.sizes.tolist() == [3, 7] for s in steps)
    assert all((s.tally.sums / (2 * THIRTY_SECOND)).tolist() == [[12], [161]] for s in steps)
    assert model.n_iter_ == 2
    assert model.inertia_ * 1024 == 69
    np.testing.assert_array_equal(model.cluster_centers_, [[2 / 32], [22 / 32]])


# ----------------------------------------------------------------------- parts against fractions

spacings = st.one_of(st.integers(1, 9), st.integers(1, CENTROID_GRID))


@settings(deadline=None)
@given(st.data(), spacings)
def test_snap_gives_the_nearest_lattice_point_ties_upward(
    data: st.DataObject, spacing: int
) -> None:
    phase = data.draw(st.integers(-(spacing // 2), (spacing - 1) // 2))
    denominator = data.draw(st.integers(1, 4 * 10**7))
    if data.draw(st.booleans()):
        # A point half way between two lattice points, or next to it.
        middle = (data.draw(st.integers(0, CENTROID_GRID // spacing)) * 2 + 1) * spacing
        numerator = denominator * (middle + 2 * phase) + data.draw(st.integers(-1, 1))
    else:
        numerator = data.draw(st.integers(0, denominator * ROW_GRID))
    point = Fraction(numerator, 2 * denominator)
    result = snap(np.array([[numerator]]), np.array([[denominator]]), np.array([phase]), spacing)
    found = int(result[0, 0])
    assert (found - phase) % spacing == 0
    assert found - Fraction(spacing, 2) <= point < found + Fraction(spacing, 2)


def test_snap_to_the_centroid_grid_itself_rounds_halves_up() -> None:
    numerator, denominator = np.array([[0, 1, 2, 3, 5]]), np.array([[1]])
    phase = np.zeros(5, np.int64)
    assert snap(numerator, denominator, phase, 1).tolist() == [[0, 1, 1, 2, 3]]


@settings(deadline=None)
@given(st.data(), st.integers(0, 12))
def test_momentum_is_the_weighted_mean_within_0_and_1(data: st.DataObject, threshold: int) -> None:
    k, d = 3, 2
    sizes = data.draw(hnp.arrays(np.int64, k, elements=st.integers(0, 20)))
    means = data.draw(hnp.arrays(np.int64, (k, d), elements=st.integers(0, ROW_GRID)))
    wide = st.integers(-CENTROID_GRID // 2, 3 * CENTROID_GRID // 2)
    previous = data.draw(hnp.arrays(np.int64, (k, d), elements=wide))
    numerator, denominator = momentum(Tally(sizes, means * sizes[:, None]), previous, threshold)
    assert denominator.shape == (k, 1) and numerator.shape == (k, d)
    for j, size in enumerate(sizes.tolist()):
        assert denominator[j, 0] == max(size, threshold)
        weight = min(Fraction(1), Fraction(size, threshold)) if threshold else Fraction(1)
        for f in range(d) if denominator[j, 0] else ():
            true = weight * int(means[j, f]) + (1 - weight) * 2 * int(previous[j, f])
            inside = min(max(true, Fraction(0)), Fraction(ROW_GRID))
            assert Fraction(int(numerator[j, f]), int(denominator[j, 0])) == inside


@pytest.mark.parametrize("gamma", ["0.2", "0.3", "0.7", "1.0", "0.0", "0.07", "0.55"])
@pytest.mark.parametrize("k", [1, 3, 7, 10])
def test_small_is_exactly_below_gamma_n_over_k(gamma: str, k: int) -> None:
    chosen = validation.resolve_settings(50, 1, n_clusters=k, gamma=float(gamma))
    for rows in [*range(1, 300), 10**6, 3 * 10**7, 40_000_000]:
        limit = Fraction(gamma) * rows / k
        below = chosen.small_below(rows)
        assert below == ceil(limit)
        assert all((size < limit) == (size < below) for size in (below - 1, below, below + 1))


@pytest.mark.parametrize(
    ("rows", "epsilon"), [(1, 2**-3), (9, 2**-3), (10, 2**-4), (99_999, 2**-7), (100_000, 2**-8)]
)
def test_the_rule_of_thumb_for_epsilon(rows: int, epsilon: float) -> None:
    assert quantized.rule_of_thumb_epsilon(rows) == epsilon
    resolved = validation.resolve_settings(rows, 1, n_clusters=1)
    assert resolved.spacing == epsilon * CENTROID_GRID


# ----------------------------------------------------------------------- whole runs


@settings(max_examples=200, deadline=None)
@given(
    st.integers(8, 120),
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.integers(0, 12),
    st.integers(0, 2**32 - 1),
)
def test_the_loss_falls_over_accepted_steps_and_training_ends_for_a_reason(
    n: int, d: int, k: int, epsilon: float, gamma: float, max_iter: int, state: int
) -> None:
    x = np.random.default_rng(state).random((n, d))
    model = QKMeans(k, epsilon, gamma, max_iter, state).fit(x)
    losses = [s.loss for s in model.record_.steps]
    assert all(after < before for before, after in pairwise(losses[:-1]))
    rejected = len(losses) > 1 and losses[-1] >= losses[-2]
    assert rejected or len(losses) == max_iter + 1
    assert len(losses) <= max_iter + 1
    assert model.n_iter_ == len(losses) - 1 - rejected
    assert model.inertia_ == min(losses) / LOSS_UNIT
    for number, step in enumerate(model.record_.steps[1:], 1):
        spacing = model._settings.spacing
        points = step.centroids.quantized[step.centroids.present]
        assert ((points - step.centroids.phase) % spacing == 0).all(), number
        assert (np.abs(points - CENTROID_GRID // 2) <= CENTROID_GRID).all(), "beyond [-1/2, 3/2]"
        assert step.tally.sizes.sum() == n


def plain_lloyd(
    fixed: np.ndarray, seeds: list[list[int]], max_iter: int
) -> list[tuple[list[list[int]], int]]:
    """k-means in integers as one would write it on paper: (centroids in 2^-23, loss) a step."""
    rows = fixed.tolist()
    centres = seeds
    steps: list[tuple[list[list[int]], int]] = []
    while True:
        squares = [
            [sum((v - 2 * c) ** 2 for v, c in zip(row, centre, strict=True)) for centre in centres]
            for row in rows
        ]
        labels = [s.index(min(s)) for s in squares]
        steps.append((centres, sum(min(s) for s in squares)))
        if len(steps) > max_iter or (len(steps) > 1 and steps[-1][1] >= steps[-2][1]):
            return steps
        members = [
            [r for r, j in zip(rows, labels, strict=True) if j == c] for c in range(len(centres))
        ]
        assume(all(members))
        centres = [
            [
                floor(Fraction(sum(column), 2 * len(own)) + Fraction(1, 2))
                for column in zip(*own, strict=True)
            ]
            for own in members
        ]


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 60), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_kmeans_is_plain_lloyd_from_the_same_seeds(n: int, d: int, k: int, state: int) -> None:
    x = np.random.default_rng(state).random((n, d)).astype(np.float32)
    model = KMeans(k, 20, state).fit(x)
    record = model.record_
    fixed = record.scaling.fixed(x)
    drawn = record.steps[0].centroids.drawn[:, 0]
    seeds = [[(v + 1) // 2 for v in row] for row in fixed[drawn].tolist()]
    expected = plain_lloyd(fixed, seeds, 20)
    assert [(s.centroids.quantized.tolist(), s.loss) for s in record.steps] == expected


def test_kmeans_is_as_good_as_scikit_learns_from_the_same_kind_of_start() -> None:
    """Both seeded by plain k-means++ (one trial a seed), ten Lloyd steps, on scaled blobs."""
    x, _ = make_blobs(2000, 4, centers=6, cluster_std=2.5, random_state=3)
    x = (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))
    ours, theirs = [], []
    for state in range(20):
        ours.append(KMeans(6, 10, state).fit(x).inertia_)
        start, _ = kmeans_plusplus(x, 6, random_state=state, n_local_trials=1)
        other = ReferenceKMeans(6, init=start, n_init=1, max_iter=10, tol=0.0)
        theirs.append(other.fit(x).inertia_)
    assert abs(np.mean(ours) / np.mean(theirs) - 1) < 0.05
    assert abs(min(ours) / min(theirs) - 1) < 0.001


@pytest.mark.parametrize("model", [KMeans(5, random_state=2), QKMeans(5, 0.1, random_state=2)])
def test_prediction_on_training_rows_is_the_last_assignment(model: KMeans) -> None:
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(500, 3)) * [1, 100, 1e-3] + [0, 5, -1]).astype(np.float32)
    model.fit(x)
    labels = model.predict(x)
    np.testing.assert_array_equal(np.bincount(labels, minlength=5), model.record_.final.tally.sizes)
    assert model.score(x) == -model.inertia_
    # The same in the features' own units, in floating point.
    low, width = x.min(axis=0), np.ptp(x, axis=0)
    centres = model.cluster_centers_
    squares = (((x[:, np.newaxis] - centres) / width) ** 2).sum(axis=2)
    assert squares.min(axis=1).sum() == pytest.approx(model.inertia_, rel=1e-5)
    assert (np.argmin(squares, axis=1) == labels).mean() > 0.99
    np.testing.assert_allclose(
        (centres - low) / width, model.record_.final.centroids.quantized / CENTROID_GRID, atol=1e-6
    )
    means = np.array([x[labels == j].mean(axis=0) for j in range(5)])
    slack = width * (0.06 if isinstance(model, QKMeans) else 0.02)
    assert (np.abs(means - centres) < slack).all()


# ----------------------------------------------------------------------- what deletion checks

Mutation = Callable[[pytest.MonkeyPatch, Record], None]


def moved_bounds_unseen(patch: pytest.MonkeyPatch, before: Record) -> None:
    def shrunk(extent: Extent, x: np.ndarray, bounds: tuple[float, float] | None) -> Extent:
        return replace(extent, rows=extent.rows - len(x))

    patch.setattr(replay, "shrunk", shrunk)


def keep_deleted_winners(purpose: str) -> Mutation:
    def mutate(patch: pytest.MonkeyPatch, before: Record) -> None:
        class Keeping(Remembering):
            def __init__(self, rows: Passes, record: Record, removed: Removed, *rest: Any) -> None:
                super().__init__(rows, record, removed, *rest)
                for draw, centres, winner in replay._races(record.steps):
                    if draw.purpose == purpose:
                        self._winners[draw, centres.tobytes()] = winner

        patch.setattr(replay, "Remembering", Keeping)

    return mutate


def winners_whatever_the_centres(patch: pytest.MonkeyPatch, before: Record) -> None:
    class Blind(Remembering):
        def race(self, scaling: Scaling, draw: Draw, state: int, centres: Any) -> Winner | None:
            for (known, _), winner in self._winners.items():
                if known == draw:
                    return winner
            return super().race(scaling, draw, state, centres)

    patch.setattr(replay, "Remembering", Blind)


def threshold_of_old_size(patch: pytest.MonkeyPatch, before: Record) -> None:
    right = Settings.small_below
    patch.setattr(Settings, "small_below", lambda self, _: right(self, before.extent.rows))


def old_losses(patch: pytest.MonkeyPatch, before: Record) -> None:
    """Accept decisions are not looked at again."""
    known = {s.centroids.quantized.tobytes(): s.loss for s in before.steps}

    def loss(square_sum: int, centroids: np.ndarray, *rest: Any) -> int:
        return known.get(centroids.tobytes()) or exact_loss(square_sum, centroids, *rest)

    patch.setattr(quantized, "exact_loss", loss)


def partition_of_analog_centroids(patch: pytest.MonkeyPatch, before: Record) -> None:
    class Analog(Remembering):
        def assign(self, scaling: Scaling, centroids: Any, present: Any) -> Tally:
            right = self._assign_removed

            def wrong(scaling: Scaling, step: Centroids) -> Tally:
                near = np.rint(step.analog * CENTROID_GRID).astype(np.int64)
                return right(scaling, replace(step, quantized=near))

            self._assign_removed = wrong
            try:
                return super().assign(scaling, centroids, present)
            finally:
                self._assign_removed = right

    patch.setattr(replay, "Remembering", Analog)


def subtracted_at_no_step(patch: pytest.MonkeyPatch, before: Record) -> None:
    class Stale(Remembering):
        def assign(self, scaling: Scaling, centroids: Any, present: Any) -> Tally:
            step = self._steps.get((centroids.tobytes(), present.tobytes()))
            return step.tally if step else super().assign(scaling, centroids, present)

    patch.setattr(replay, "Remembering", Stale)


def nothing_wrong(patch: pytest.MonkeyPatch, before: Record) -> None:
    pass


MUTATIONS: dict[str, Mutation] = {
    "bounds": moved_bounds_unseen,
    "deleted seeds": keep_deleted_winners(quantized.SEED),
    "deleted re-seeded rows": keep_deleted_winners(quantized.RESEED),
    "races against other centres": winners_whatever_the_centres,
    "threshold": threshold_of_old_size,
    "accept decisions": old_losses,
    "analog partition": partition_of_analog_centroids,
    "subtraction": subtracted_at_no_step,
}


def model_bits(record: Record) -> list[bytes]:
    """What a user would see of a model: centroids, rows drawn, scaling, and the number of steps."""
    bits = [record.extent.lower.tobytes(), record.extent.upper.tobytes()]
    for step in record.steps:
        bits += [step.centroids.quantized.tobytes(), step.centroids.drawn.tobytes()]
    return bits


def small_problem(state: int) -> tuple[np.ndarray, QKMeans]:
    rng = np.random.default_rng(state)
    x = rng.random((int(rng.integers(12, 40)), 2)).astype(np.float32)
    gamma = (0.0, 1.0)[state % 2]
    bounds = (None, (0.0, 1.0))[state // 2 % 2]
    model = QKMeans(5, 0.4, gamma, 10, state, bounds=bounds, provenance="none")
    return x, model.fit(x)


def rows_to_delete(x: np.ndarray, record: Record, state: int) -> np.ndarray:
    """By turns: anything, a seed, a row drawn at a later step, an extreme row."""
    rng = np.random.default_rng([state, 1])
    drawn = [s.centroids.drawn[:, 0] for s in record.steps]
    later = np.concatenate([d[d >= 0] for d in drawn[1:]] or [drawn[0][:0]])
    seeds = drawn[0][drawn[0] >= 0]
    some = rng.choice(len(x), 3, replace=False)
    return (some, seeds[:1], later[:1] if len(later) else some, np.argmax(x[:, :1], axis=0))[
        state // 4 % 4
    ]


def times_differing_from_a_refit(mutation: Mutation, problems: int) -> int:
    """How often a deletion with the mutation gives another model than training on the rest."""
    count = 0
    for state in range(problems):
        x, model = small_problem(state)
        gone = rows_to_delete(x, model.record_, state)
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch, model.record_)
            model.delete(gone)
        units = np.delete(np.arange(len(x)), gone)
        rest = ArrayPasses(x[units], units, ordinals_of(units))
        expected = quantized.fit(rest, model._settings)
        count += model_bits(model.record_) != model_bits(expected)
    return count


def test_without_a_mutation_no_deletion_differs_from_a_refit() -> None:
    assert times_differing_from_a_refit(nothing_wrong, 320) == 0


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_part_of_the_check_is_needed(name: str) -> None:
    """Leave one part out, and deletions no longer give the model of a refit."""
    assert times_differing_from_a_refit(MUTATIONS[name], 320) >= 3
