"""The race's law is that of k-means++, and after a deletion that of a fresh k-means++.

Laws are exact: rational probabilities of ordered tuples of seeds, by enumeration. Points are
numbers on a line and are named by their place in the list.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.pipeline import quantized, seeding
from expunge.pipeline.arrays import ArrayPasses
from expunge.pipeline.clusterer import delete_rows
from expunge.pipeline.fixedpoint import ROW_GRID, Scaling
from expunge.pipeline.keyed import exponential
from expunge.pipeline.lloyd import Tally
from expunge.pipeline.quantized import Centroids, Record, Settings, Step
from expunge.pipeline.replay import Remembering, Removed
from expunge.pipeline.seeding import Winner, first_of, race

Law = dict[tuple[int, ...], Fraction]
EXAMPLE = [0, 1, 3, 10]


def next_seed(points: list[int], alive: list[int], seeds: tuple[int, ...]) -> dict[int, Fraction]:
    """The law of the next seed of k-means++; empty when every living point lies on a seed."""
    weights = {
        j: Fraction(min((points[j] - points[s]) ** 2 for s in seeds)) if seeds else Fraction(1)
        for j in alive
    }
    total = sum(weights.values())
    return {j: w / total for j, w in weights.items() if w}


def continued(points: list[int], alive: list[int], seeds: tuple[int, ...], k: int) -> Law:
    """The law of k ordered seeds of k-means++ among living points that starts with ``seeds``."""
    law = {seeds: Fraction(1)}
    for _ in range(k - len(seeds)):
        longer: Law = {}
        for chosen, p in law.items():
            choice = next_seed(points, alive, chosen)
            for j, q in choice.items():
                longer[*chosen, j] = p * q
            if not choice:
                longer[chosen] = p
        law = longer
    return law


def fresh(points: list[int], alive: list[int], k: int) -> Law:
    return continued(points, alive, (), k)


def mixture(law: Law, then: dict[tuple[int, ...], Law]) -> Law:
    """The law of what ``then`` makes of a draw from ``law``."""
    mixed: Law = {}
    for seeds, p in law.items():
        for result, q in then[seeds].items():
            mixed[result] = mixed.get(result, Fraction(0)) + p * q
    return mixed


def redrawn_from_the_deleted_seed_on(points: list[int], gone: int, k: int) -> Law:
    """Our rule: keep the seeds before the deleted one and go on from there."""
    alive = [i for i in range(len(points)) if i != gone]
    before = fresh(points, list(range(len(points))), k)
    then = {}
    for seeds in before:
        kept = seeds[: seeds.index(gone)] if gone in seeds else seeds
        then[seeds] = continued(points, alive, kept, k)
    return mixture(before, then)


def retrained_when_a_seed_goes(points: list[int], gone: int, k: int) -> Law:
    """The paper's rule (algorithm 5): from scratch when a seed is deleted, else nothing."""
    alive = [i for i in range(len(points)) if i != gone]
    before = fresh(points, list(range(len(points))), k)
    again = fresh(points, alive, k)
    return mixture(before, {s: again if gone in s else {s: Fraction(1)} for s in before})


def total_variation(one: Law, other: Law) -> Fraction:
    zero = Fraction(0)
    return sum((abs(one.get(s, zero) - other.get(s, zero)) for s in {*one, *other}), zero) / 2


def test_laws_of_the_example_by_hand() -> None:
    """On 0, 1, 3: from 0 the weights are 1 and 9, from 1 they are 1 and 4, from 3 9 and 4."""
    expected = {
        (0, 1): Fraction(1, 30),
        (0, 2): Fraction(9, 30),
        (1, 0): Fraction(1, 15),
        (1, 2): Fraction(4, 15),
        (2, 0): Fraction(9, 39),
        (2, 1): Fraction(4, 39),
    }
    assert fresh(EXAMPLE, [0, 1, 2], 2) == expected


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(
    "points", [EXAMPLE, [0, 1, 2, 4, 9], [5, 5, 0, 1], [2, 2, 2, 7], [-3, 0, 1, 100, 101], [1, 1]]
)
def test_redrawing_from_the_deleted_seed_on_gives_exactly_a_fresh_seeding(
    points: list[int], k: int
) -> None:
    for gone in range(len(points)):
        alive = [i for i in range(len(points)) if i != gone]
        ours = redrawn_from_the_deleted_seed_on(points, gone, k)
        assert sum(ours.values()) == 1
        assert total_variation(ours, fresh(points, alive, k)) == 0


def test_the_papers_rule_is_off_by_0_0225_on_the_example() -> None:
    distance = total_variation(
        retrained_when_a_seed_goes(EXAMPLE, 3, 2), fresh(EXAMPLE, [0, 1, 2], 2)
    )
    assert round(float(distance), 4) == 0.0225


UNIT_LINE = Scaling(np.zeros(1), np.full(1, ROW_GRID / 10.0))
"""0 .. 10 to the row grid, whichever rows there are."""


def rows_of(points: list[int]) -> ArrayPasses:
    n = len(points)
    x = np.array(points, np.float32)[:, np.newaxis]
    return ArrayPasses(x, np.arange(n), np.zeros(n, np.int64))


def config(k: int, state: int) -> Settings:
    return Settings(k, 1, Fraction(0), 0, state, (0.0, 10.0))


def chi_square(counts: Counter[tuple[int, ...]], law: Law) -> float:
    n = counts.total()
    assert set(counts) <= set(law)
    return sum((counts[s] - n * float(p)) ** 2 / (n * float(p)) for s, p in law.items())


def critical(freedom: int, normal: float = 3.72) -> float:
    """The chi-square quantile at 1 - 10^-4 (Wilson and Hilferty's approximation)."""
    return float(freedom * (1 - 2 / (9 * freedom) + normal * (2 / (9 * freedom)) ** 0.5) ** 3)


@pytest.mark.parametrize(("k", "runs"), [(2, 40_000), (3, 20_000)])
def test_seeds_of_the_real_race_follow_the_law(k: int, runs: int) -> None:
    rows = rows_of(EXAMPLE)
    counts: Counter[tuple[int, ...]] = Counter()
    for state in range(runs):
        drawn = quantized.seed(rows, UNIT_LINE, config(k, state)).drawn
        counts[tuple(drawn[:, 0].tolist())] += 1
    law = fresh(EXAMPLE, [0, 1, 2, 3], k)
    assert chi_square(counts, law) < critical(len(law) - 1)
    uniform = {s: Fraction(1, len(law)) for s in law}
    assert chi_square(counts, uniform) > 10 * critical(len(law) - 1)


GONE = Removed(np.array([3]), np.array([0]), np.array([[10.0]], np.float32))
"""Point 10 of the example."""


def seeds_after_deletion(before: Centroids, rest: ArrayPasses, settings: Settings) -> Centroids:
    """Step 0 of a deletion, and no more of it: many runs are needed to see a law."""
    nothing = Tally(np.zeros(0, np.int64), np.zeros((0, 1), np.int64))
    extent = rest.extent()
    record = Record(extent, 0, (Step(before, nothing, 0),))
    memory = Remembering(rest, record, GONE, extent, lambda *_: nothing, 0)
    return quantized.seed(memory, UNIT_LINE, settings)


def test_seeds_after_a_deletion_follow_the_law_of_a_fresh_seeding() -> None:
    runs = 40_000
    whole, rest = rows_of(EXAMPLE), rows_of(EXAMPLE[:3])
    counts: Counter[tuple[int, ...]] = Counter()
    for state in range(runs):
        chosen = config(2, state)
        before = quantized.seed(whole, UNIT_LINE, chosen)
        after = seeds_after_deletion(before, rest, chosen)
        counts[tuple(after.drawn[:, 0].tolist())] += 1
    law = fresh(EXAMPLE, [0, 1, 2], 2)
    assert chi_square(counts, law) < critical(len(law) - 1)
    paper = retrained_when_a_seed_goes(EXAMPLE, 3, 2)
    assert chi_square(counts, paper) > critical(len(law) - 1), "too few runs to tell the two apart"


def drawn_of(record: Record) -> tuple[int, ...]:
    return tuple(record.steps[0].centroids.drawn[:, 0].tolist())


def test_seeds_after_a_deletion_are_those_of_a_fresh_fit_run_by_run() -> None:
    runs = 1500
    whole, rest = rows_of(EXAMPLE), rows_of(EXAMPLE[:3])
    hits = 0
    for state in range(runs):
        chosen = config(2, state)
        before = quantized.fit(whole, chosen)
        after, outcome = delete_rows(before, GONE, rest, chosen)
        assert drawn_of(after) == drawn_of(quantized.fit(rest, chosen))
        short = seeds_after_deletion(before.steps[0].centroids, rest, chosen)
        np.testing.assert_array_equal(short.drawn, after.steps[0].centroids.drawn)
        hits += 3 in drawn_of(before)
        assert (outcome.first_step == 0) == (3 in drawn_of(before))
        if 3 in drawn_of(before):
            stage = drawn_of(before).index(3)
            assert drawn_of(after)[:stage] == drawn_of(before)[:stage]
    assert 0 < hits < runs


def test_rows_on_a_seed_never_win() -> None:
    points = [4, 4, 4, 4, 5]
    rows = rows_of(points)
    for state in range(300):
        drawn = quantized.seed(rows, UNIT_LINE, config(2, state)).drawn[:, 0]
        assert (drawn == 4).sum() == 1


def test_seeds_beyond_the_distinct_rows_are_absent() -> None:
    seeds = quantized.seed(rows_of([7, 7, 2, 7]), UNIT_LINE, config(4, 1))
    assert seeds.present.tolist() == [True, True, False, False]
    assert (seeds.drawn[2:] == -1).all() and (seeds.drawn[:2, 0] >= 0).all()
    assert not seeds.quantized[2:].any() and not seeds.analog[2:].any()
    none = np.empty((0, 1), np.int64)
    assert race(np.empty((0, 1), np.int32), none[:, 0], none[:, 0], None, none, 1, 0) is None


def winner(key: float, unit: int, ordinal: int) -> Winner:
    return Winner(key, unit, ordinal, np.zeros(1, np.int32))


def test_ties_go_by_key_then_unit_then_ordinal() -> None:
    ordered = [winner(*w) for w in product((0.5, 1.0), (3, 2**40), (0, 1))]
    for i, one in enumerate(ordered):
        for j, other in enumerate(ordered):
            assert first_of(one, other) is ordered[min(i, j)]
            mine, theirs = ((w.key, w.unit, w.ordinal) for w in (one, other))
            assert seeding._comes_first(*mine, theirs) == (i < j)
        assert first_of(one, None) is one and first_of(None, one) is one
    assert first_of(None, None) is None


def brute_race(
    fixed: np.ndarray, units: np.ndarray, ordinals: np.ndarray, centres: np.ndarray, key: int
) -> tuple[float, int, int] | None:
    """The smallest (E / D^2, unit, ordinal) by a plain loop over live rows off the centres."""
    heats = []
    for row, unit, ordinal in zip(
        fixed.astype(np.int64), units.tolist(), ordinals.tolist(), strict=True
    ):
        square = int(((row - centres) ** 2).sum(axis=1).min()) if len(centres) else 1
        if unit >= 0 and square:
            heats.append((exponential(np.uint64(key), unit, ordinal, 3) / square, unit, ordinal))
    return min(heats, default=None)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (130, 1), (500, 3), (200, 28), (70, 784)])
@pytest.mark.parametrize("seeds", [0, 1, 4])
@pytest.mark.parametrize("kind", ["random", "tied", "near"])
def test_the_race_is_the_plain_minimum(n: int, d: int, seeds: int, kind: str) -> None:
    rng = np.random.default_rng([n, d, seeds])
    for key in range(20):
        if kind == "random":
            fixed = rng.integers(0, ROW_GRID + 1, (n, d), dtype=np.int32)
        elif kind == "tied":
            fixed = (rng.integers(0, 3, (n, d)) << 23).astype(np.int32)
        else:
            fixed = ((1 << 23) + rng.integers(-2, 3, (n, d))).astype(np.int32)
        centres = fixed[rng.integers(0, n, seeds)].astype(np.int64)
        units, ordinals = rng.permutation(n), rng.integers(0, 3, n)
        units[1:][rng.random(n - 1) < 0.2] = -1
        found = race(fixed, units, ordinals, None, centres, key, 3)
        expected = brute_race(fixed, units, ordinals, centres, key)
        if expected is None:
            assert found is None
            continue
        assert found is not None and (found.key, found.unit, found.ordinal) == expected
        np.testing.assert_array_equal(found.row, fixed[units == found.unit][0])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 3), st.lists(st.integers(0, 300), max_size=5))
def test_neither_order_nor_parts_nor_layout_matter(state: int, seeds: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(state)
    x = rng.integers(0, 4, (300, 2)).astype(np.float32)
    scaling = Scaling(np.zeros(2), np.full(2, ROW_GRID / 3))
    units, ordinals = rng.integers(-1, 40, 300), np.arange(300)
    fixed = scaling.fixed(x)
    centres = fixed[rng.integers(0, 300, seeds)].astype(np.int64)

    def run(index: np.ndarray, raw: bool) -> Winner | None:
        rows = x[index] if raw else fixed[index]
        chosen = scaling if raw else None
        return race(rows, units[index], ordinals[index], chosen, centres, state, 1)

    whole = run(np.arange(300), raw=True)
    order = rng.permutation(300)
    merged = None
    for part in np.split(order, sorted(cuts)):
        merged = first_of(merged, run(part, raw=False))
    for other in (run(order, raw=False), merged):
        assert whole is not None and other is not None
        assert (other.key, other.unit, other.ordinal) == (whole.key, whole.unit, whole.ordinal)
        np.testing.assert_array_equal(other.row, whole.row)


def test_a_race_s_winner_stays_when_losers_go() -> None:
    """The ground on which a deletion keeps its seeds."""
    rng = np.random.default_rng(8)
    fixed = rng.integers(0, ROW_GRID, (60, 2), dtype=np.int32)
    units, ordinals = np.arange(60), np.zeros(60, np.int64)
    centres = np.zeros((1, 2), np.int64)
    whole = race(fixed, units, ordinals, None, centres, 9, 1)
    assert whole is not None
    for _ in range(50):
        kept = np.flatnonzero((rng.random(60) < 0.5) | (units == whole.unit))
        rest = race(fixed[kept], units[kept], ordinals[kept], None, centres, 9, 1)
        assert rest is not None and (rest.key, rest.unit) == (whole.key, whole.unit)
