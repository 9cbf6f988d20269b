"""Replay from blocks that lie elsewhere equals a fit on the rows that are left, bit for bit."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refit, same

from expunge.pipeline import quantized, stored_replay
from expunge.pipeline.arrays import ArrayPasses, GridPasses, ordinals_of
from expunge.pipeline.fixedpoint import Scaling
from expunge.pipeline.lloyd import Tally
from expunge.pipeline.quantized import Record, Settings
from expunge.pipeline.removal import CONTINUE, DONE
from expunge.pipeline.replay import Removed, go_on
from expunge.pipeline.stored_replay import (
    STORED_BLOCK,
    Changes,
    Found,
    Kept,
    Leaving,
    least_of_blocks,
    no_changes,
    replay,
    whole,
)
from expunge.pipeline.validation import resolve_settings

LABEL = np.dtype(np.uint8)


class Shelf:
    """A model whose labels and margins are kept as a stored model keeps them, but in memory.

    Implements ``stored_replay.Rows``. Blocks keep what they had until ``tidy`` writes them.
    """

    def __init__(self, x: np.ndarray, units: np.ndarray, config: Settings) -> None:
        self.x, self.units, self.config = x.copy(), units.copy(), config
        self.ordinals = ordinals_of(units)
        self.looked_at = self.passes = 0
        self._label_all(quantized.fit(self._passes(), config))

    def _passes(self) -> ArrayPasses:
        return ArrayPasses(self.x.copy(), self.units.copy(), self.ordinals)

    def _label_all(self, record: Record) -> None:
        k = self.config.n_clusters
        self._keep(record, Kept(np.zeros((0, k)), np.zeros(0), ()), {}, set())

    def _keep(
        self, record: Record, kept: Kept, minima: dict[int, np.ndarray], passed: set[int]
    ) -> None:
        """Take what a deletion left; label the rows of steps that are new."""
        held, count = len(kept.changes), len(record.steps)
        self.record = record
        if not whole(record):
            self.kept = None
            return
        labels = getattr(self, "labels", [])[:held]
        margins = getattr(self, "margins", [])[:held]
        least = [minima.get(t, m) for t, m in enumerate(getattr(self, "least", [])[:held])]
        credits, drifts = np.zeros((count, self.config.n_clusters)), np.zeros(count)
        credits[:held], drifts[:held] = kept.credits, kept.drifts
        changes = [*kept.changes, *[no_changes(LABEL)] * (count - held)]
        blocks = -(-len(self.x) // STORED_BLOCK)
        for t in sorted({*passed, *range(held, count)}):
            now = np.zeros((blocks, STORED_BLOCK), LABEL)
            far = np.full((blocks, STORED_BLOCK), np.inf, np.float32)
            n = len(self.x)
            rows = GridPasses(record.scaling.fixed(self.x), self.units, self.ordinals, 1)
            here = now.reshape(-1)[:n], far.reshape(-1)[:n]
            rows.label(record.scaling, record.steps[t].centroids.quantized, *here)
            low = least_of_blocks(now, far, credits[t], 0.0)
            for made, kind in ((now, labels), (far, margins), (low, least)):
                kind[t:] = [made, *kind[t + 1 :]]
        self.labels, self.margins, self.least = labels, margins, least
        self.kept = Kept(credits, drifts, tuple(changes))

    def delete(self, gone: np.ndarray) -> str:
        """Take units out; return what it came to."""
        index = np.flatnonzero(np.isin(self.units, gone) & (self.units >= 0))
        removed = Removed(self.units[index], self.ordinals[index], self.x[index])
        found = None
        if self.kept is not None and len(index) < self.record.extent.rows:
            rows = np.random.default_rng(len(index)).permutation(len(index))
            shuffled = Removed(removed.units[rows], removed.ordinals[rows], removed.x[rows])
            leaving = Leaving(shuffled, index[rows])
            self.units[index] = -1
            found = replay(self.record, self.config, leaving, self.kept, self)
        self.units[index] = -1
        action = self._take(found, removed)
        for t in range(len(self.labels) if self.kept is not None else 0):
            self.labels[t].reshape(-1)[index] = 0
            self.margins[t].reshape(-1)[index] = np.inf
        if self.kept is not None:
            self._check_bounds(index)
        return action

    def _check_bounds(self, index: np.ndarray) -> None:
        """Fail unless the bounds of blocks that lost rows are those of the rows that stay."""
        blocks = np.unique(index // STORED_BLOCK)
        for t in range(len(self.record.steps) if len(blocks) else 0):
            assert self.kept is not None
            labels, margins = self.blocks(t, blocks)
            self.kept.changes[t].enter(blocks, labels, margins)
            credit, drift = self.kept.credits[t], float(self.kept.drifts[t])
            found = least_of_blocks(labels, margins, credit, drift)
            np.testing.assert_array_equal(found, self.least[t][blocks])

    def _take(self, found: Found | None, removed: Removed) -> str:
        if found is None or found.todo not in (DONE, CONTINUE):
            self._label_all(quantized.fit(self._passes(), self.config))
            return "retrained"
        self.looked_at += found.looked_at
        record, passes = found.record, len(found.fresh)
        if found.todo == CONTINUE:
            record, more = go_on(found.record, removed, self._passes(), self.config)
            passes += more
        self._keep(record, found.kept, found.minima, found.fresh)
        if found.first < 0:
            return "unchanged"
        return "resumed" if passes else "replayed"

    def tidy(self, chosen: Callable[[np.ndarray], np.ndarray]) -> None:
        """Write what changed in some blocks to them."""
        if self.kept is None:
            return
        changes = []
        for t, change in enumerate(self.kept.changes):
            block, lane = np.divmod(change.places, STORED_BLOCK)
            to_write = chosen(block)
            self.labels[t][block[to_write], lane[to_write]] = change.labels[to_write]
            self.margins[t][block[to_write], lane[to_write]] = change.margins[to_write]
            changes.append(change.at(~to_write))
        self.kept = Kept(self.kept.credits, self.kept.drifts, tuple(changes))

    def compare(self) -> None:
        """Fail unless the model is a fit on the rows left, and what is kept tells the truth."""
        live = self.units >= 0
        same(self.record, refit(self.x[live], self.units[live], self.config))
        if self.kept is not None:
            self._check_kept(live)

    def _check_kept(self, live: np.ndarray) -> None:
        assert self.kept is not None
        fixed = self.record.scaling.fixed(self.x).astype(np.int64)
        every = np.arange(len(self.least[0]))
        for t, step in enumerate(self.record.steps):
            centres = 2 * step.centroids.quantized
            squares = np.stack([((fixed - c) ** 2).sum(axis=1) for c in centres], axis=1)
            ordered = np.sqrt(np.sort(squares, axis=1)[:, :2].astype(np.longdouble))
            true = ordered[:, -1] - ordered[:, 0]
            true = true if len(centres) > 1 else np.full(len(true), np.inf)
            labels, margins = self.blocks(t, every)
            self.kept.changes[t].enter(every, labels, margins)
            now, held = labels.reshape(-1)[: len(fixed)], margins.reshape(-1)[: len(fixed)]
            np.testing.assert_array_equal(now[live], squares.argmin(axis=1)[live])
            left = held.astype(np.longdouble) - self.kept.credits[t][now]
            assert (left[live] <= true[live]).all()
            assert np.isposinf(held[~live]).all() and not now[~live].any()
            low = self.least[t][np.arange(len(fixed)) // STORED_BLOCK].astype(np.longdouble)
            assert (low - self.kept.drifts[t] <= true)[live].all()
            assert not np.isin(self.kept.changes[t].places, np.flatnonzero(~live)).any()

    def minima(self, step: int) -> np.ndarray:
        found: np.ndarray = self.least[step].copy()
        return found

    def blocks(self, step: int, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert (np.diff(blocks) > 0).all()
        return self.labels[step][blocks], self.margins[step][blocks]

    def grid(self, places: np.ndarray) -> np.ndarray:
        assert (np.diff(places) > 0).all() and (self.units[places] >= 0).all()
        return self.record.scaling.fixed(self.x[places])

    def assign(self, scaling: Scaling, centroids: np.ndarray) -> Tally:
        self.passes += 1
        return self._passes().assign(scaling, centroids, np.ones(len(centroids), np.bool_))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Settings, list[int]]:
    n = draw(st.integers(1, 700) if draw(st.booleans()) else st.integers(1, 12))
    d = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["uniform", "ties", "blobs"]))
    if kind == "uniform":
        x = rng.random((n, d))
    elif kind == "ties":
        x = rng.integers(0, 3, (n, d)).astype(float)
    else:
        x = rng.integers(0, 4, (n, 1)) + rng.normal(0, 0.2, (n, d))
    units = rng.permutation(n * 3)[:n] if draw(st.booleans()) else rng.integers(0, n, n)
    config = resolve_settings(
        n,
        d,
        n_clusters=draw(st.integers(1, min(8, n))),
        epsilon=draw(st.sampled_from([0.0, 0.0, 1e-3, 0.05, 0.3])),
        gamma=draw(st.sampled_from([0.0, 0.2, 1.0])),
        max_iter=draw(st.sampled_from([0, 1, 3, 10])),
        random_state=draw(st.integers(0, 10_000)),
        bounds=draw(st.sampled_from([None, (-1.0, 2.0), (-1.0, 4.0)])),
    )
    batches = draw(st.lists(st.sampled_from([1, 1, 1, 3, 40]), min_size=1, max_size=6))
    return x.astype(np.float32), units.astype(np.int64), config, batches


def chosen_units(shelf: Shelf, size: int, rng: np.random.Generator) -> np.ndarray:
    """Units to delete, with a leaning to seeds, extremes and whole clusters."""
    live = np.flatnonzero(shelf.units >= 0)
    if not len(live):
        return np.empty(0, np.int64)
    kind = rng.integers(6)
    if kind == 0:
        drawn = shelf.record.steps[0].centroids.drawn[:, 0]
        return np.asarray(drawn[drawn >= 0][:1])
    if kind == 1:
        return np.asarray(shelf.units[live[np.argmax(shelf.x[live, 0])]][np.newaxis])
    if kind == 2 and size == 40 and shelf.kept is not None:
        labels = shelf.labels[-1].reshape(-1)[live]
        return np.asarray(shelf.units[live][labels == labels[0]])
    return rng.choice(shelf.units[live], min(size, len(live)), replace=False)


@settings(max_examples=400, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_replay_from_blocks_equals_a_fit(
    problem: tuple[np.ndarray, np.ndarray, Settings, list[int]], state: int
) -> None:
    x, units, config, batches = problem
    rng = np.random.default_rng(state)
    shelf = Shelf(x, units, config)
    shelf.compare()
    for size in batches:
        shelf.delete(chosen_units(shelf, size, rng))
        if rng.random() < 0.5:
            odd = int(rng.integers(2))
            shelf.tidy(lambda block, odd=odd: block % 2 == odd)  # type: ignore[misc]
        shelf.compare()


def overlapping(rows: int, features: int, state: int) -> np.ndarray:
    rng = np.random.default_rng(state)
    return (rng.integers(0, 4, (rows, 1)) + rng.normal(0, 0.4, (rows, features))).astype(np.float32)


def settings_of(n: int, d: int, epsilon: float, state: int = 3) -> Settings:
    fixed: dict[str, Any] = {"n_clusters": 4, "max_iter": 10, "bounds": (-2.0, 5.0)}
    gamma = 0.2 if epsilon else 0.0
    return resolve_settings(n, d, epsilon=epsilon, gamma=gamma, random_state=state, **fixed)


def test_shares_of_what_deletions_come_to() -> None:
    x = overlapping(6000, 4, 5)
    order = np.random.default_rng(0).permutation(6000)[:150]
    found: dict[float, Counter[str]] = {}
    for epsilon in (0.0, 0.02):
        shelf = Shelf(x, np.arange(6000), settings_of(6000, 4, epsilon))
        found[epsilon] = Counter(shelf.delete(order[i : i + 1]) for i in range(150))
        shelf.compare()
        # Of all rows at every step, few are looked at.
        assert shelf.looked_at < 0.02 * 150 * 6000 * len(shelf.record.steps)
    own = Shelf(x, np.arange(6000), replace(settings_of(6000, 4, 0.02), bounds=None))
    extreme = np.array([x[:, 2].argmax()])
    actions = [own.delete(gone) for gone in (order[:1], extreme, order[1:2])]
    assert actions[1] == "retrained" and "retrained" not in (actions[0], actions[2])
    own.compare()
    assert found[0.0]["replayed"] >= 140, found
    assert found[0.02]["unchanged"] >= 125, found


class Blind(Shelf):
    """Refuses to show rows."""

    def grid(self, places: np.ndarray) -> NoReturn:
        raise LookupError

    def assign(self, scaling: Scaling, centroids: np.ndarray) -> NoReturn:
        raise LookupError


def test_an_unchanged_deletion_asks_for_no_row() -> None:
    shelf = Blind(overlapping(2000, 4, 6), np.arange(2000), settings_of(2000, 4, 0.05))
    unchanged = 0
    for unit in range(60):
        trial = copy.deepcopy(shelf)
        with contextlib.suppress(LookupError):
            assert trial.delete(np.array([unit])) == "unchanged"
            unchanged += 1
    assert 45 <= unchanged < 60


def test_no_bound_is_left_of_a_row_that_is_gone() -> None:
    """The row with the least margin of its block is what the block's bound tells of."""
    shelf = Shelf(overlapping(2000, 4, 6), np.arange(2000), settings_of(2000, 4, 0.05))
    for t in range(len(shelf.record.steps)):
        lane = shelf.margins[t].argmin(axis=1)
        block = int(np.argmax(shelf.margins[t].min(axis=1)))
        before = shelf.least[t][block]
        gone = block * STORED_BLOCK + int(lane[block])
        assert before <= shelf.margins[t][block, lane[block]]
        if shelf.delete(np.array([gone])) == "unchanged":
            assert shelf.least[t][block] > before


def test_many_rows_near_a_boundary_take_a_pass_and_the_chain_goes_on() -> None:
    x = overlapping(3000, 3, 9)
    shelf = Shelf(x, np.arange(3000), settings_of(3000, 3, 0.0))
    seeds = shelf.record.steps[0].centroids.drawn[:, 0]
    gone = np.setdiff1d(np.flatnonzero(x[:, 0] > 2.4), seeds)
    assert shelf.delete(gone) == "resumed" and shelf.passes
    shelf.compare()
    assert shelf.delete(np.array([int(np.flatnonzero(shelf.units >= 0)[0])])) != "retrained"
    shelf.compare()


Tamper = Callable[[Shelf], None]


def _inflate(shelf: Shelf) -> None:
    for margins, least in zip(shelf.margins, shelf.least, strict=True):
        margins *= np.float32(1.5)
        np.multiply(least, 1.5, out=least, where=least > 0)


def _forget_changes(shelf: Shelf) -> None:
    assert shelf.kept is not None
    none = tuple(no_changes(LABEL) for _ in shelf.kept.changes)
    shelf.kept = Kept(shelf.kept.credits, shelf.kept.drifts, none)


def _forget_credits(shelf: Shelf) -> None:
    assert shelf.kept is not None
    shelf.kept = Kept(0 * shelf.kept.credits, 0 * shelf.kept.drifts, shelf.kept.changes)


def _raise_least(shelf: Shelf) -> None:
    shelf.least = [np.full_like(least, np.inf) for least in shelf.least]


@pytest.mark.parametrize("tamper", [None, _inflate, _forget_changes, _forget_credits, _raise_least])
def test_tampering_with_what_is_kept_shows(tamper: Tamper | None) -> None:
    x = np.random.default_rng(0).random((3000, 2)).astype(np.float32)
    config = replace(settings_of(3000, 2, 0.0, 0), n_clusters=5, bounds=(0.0, 1.0))
    shelf = Shelf(x, np.arange(3000), config)
    for unit in np.random.default_rng(1).permutation(3000)[:40]:
        shelf.delete(np.array([unit]))
        if tamper:
            tamper(shelf)
    live = shelf.units >= 0
    again = refit(x[live], shelf.units[live], config)
    if tamper is None:
        same(shelf.record, again)
        return
    with pytest.raises(AssertionError):
        same(shelf.record, again)


def test_changes_win_over_older_ones_and_over_blocks() -> None:
    def made(places: list[int], label: int) -> Changes:
        n = len(places)
        return Changes(
            np.array(places, np.int64), np.full(n, label, np.uint8), np.full(n, label, np.float32)
        )

    both = made([3, 200, 500], 1).under(made([1, 200, 900], 2))
    assert both.places.tolist() == [1, 3, 200, 500, 900]
    assert both.labels.tolist() == [2, 1, 2, 1, 2]
    blocks = np.array([0, 3])
    labels, margins = np.zeros((2, STORED_BLOCK), np.uint8), np.zeros((2, STORED_BLOCK), np.float32)
    both.enter(blocks, labels, margins)
    where = [(0, 1), (0, 3), (1, 500 - 3 * STORED_BLOCK)]
    assert [int(labels[at]) for at in where] == [2, 1, 1]
    assert np.count_nonzero(labels) == np.count_nonzero(margins) == 3


@pytest.mark.parametrize("at_once", [1, 3])
def test_blocks_that_come_in_parts_give_the_same(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(stored_replay, "BLOCKS_AT_ONCE", at_once)
    x = overlapping(1500, 3, 8)
    shelf = Shelf(x, np.arange(1500), settings_of(1500, 3, 0.0))
    for unit in range(0, 60, 2):
        shelf.delete(np.array([unit]))
    shelf.compare()
