"""DC-k-means: rows are divided over leaves, and the leaves' centroids are clustered again.

"Making AI Forget You", section 4.2, algorithms 2 and 6. A row's leaf is the top bits of a keyed
hash of its unit, so it depends on the unit alone: leaves are independent and uniformly random, and
no deletion moves another row. (Leaves of equal size would not be exact: which rows they get depends
on all of them.) Every node of the tree is the plain k-means of ``quantized`` with randomness of its
own, T iterations in each.

Leaves see their rows on the row grid, under the scaling of all live rows; nodes above them see
their children's centroids, which are on that grid too. So all nodes work within the unit cube,
whose bounds no deletion moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2, prod

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import quantized
from .arrays import unit_extent
from .fixedpoint import ROW_GRID, Extent, Scaling
from .keyed import derive_key, exponential, keyed_bits
from .lloyd import Tally, exact_distance
from .quantized import Draw, Record, Settings
from .replay import Outcome, Removed, listed_numbers
from .seeding import Winner

LEAF, NODE = "leaf", "node"
"""Purposes of keys: of the hash that places units, and of a node's own randomness."""
CUBE = (0.0, 1.0)
"""The bounds within which all nodes work."""
MAX_LEAVES = 1 << 16


@dataclass(frozen=True)
class DividedSettings:
    """Resolved hyper-parameters: fixed at the first fit, so that a deletion does not move them."""

    plain: Settings
    """k-means in every node; ``bounds`` are the rows' own or the user's."""
    branching: tuple[int, ...]
    """Children of a node at each depth, from the root's on; powers of two."""
    weighted: bool
    """Whether a centroid counts as many times as its cluster has rows; the paper's don't."""

    @property
    def n_leaves(self) -> int:
        return prod(self.branching)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Nodes at each depth above the leaves: 1 for the root."""
        return tuple(prod(self.branching[:depth]) for depth in range(len(self.branching)))

    @property
    def depth(self) -> int:
        """How many levels stand above the leaves."""
        return len(self.branching)

    def node(self, depth: int, index: int) -> Settings:
        """Return the settings of a node: the root is (0, 0), leaf i is (depth, i)."""
        path = []
        for width in reversed(self.branching[:depth]):
            index, digit = divmod(index, width)
            path.append(digit)
        state = derive_key(self.plain.random_state, NODE, *reversed(path))
        return replace(self.plain, random_state=state, bounds=CUBE)

    @cached_property
    def leaf_settings(self) -> tuple[Settings, ...]:
        return tuple(self.node(self.depth, leaf) for leaf in range(self.n_leaves))


def rule_of_thumb_leaves(rows: int) -> int:
    """Return the power of two near n^0.3, a rule of thumb after the paper's app. D.1.2."""
    return int(1 << round(0.3 * log2(max(1, rows))))


@njit(cache=True, nogil=True)
def _hash_units(key, units, out):  # type: ignore[no-untyped-def]
    for i in range(units.size):
        out[i] = keyed_bits(key, units[i], 0, 0)


def unit_hashes(units: NDArray[np.int64], random_state: int) -> NDArray[np.uint64]:
    """Return the keyed 64-bit hash (n,) by which units in memory are placed."""
    out = np.empty(len(units), np.uint64)
    _hash_units(np.uint64(derive_key(random_state, LEAF)), units, out)
    return out


def leaf_of(hashes: NDArray[np.uint64], n_leaves: int) -> NDArray[np.int64]:
    """Return the leaf of each hash: its top log2(w) bits."""
    bits = n_leaves.bit_length() - 1
    if bits == 0:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def on_cube(removed: Removed, scaling: Scaling) -> Removed:
    """Return rows as the leaves know them: in [0, 1], on the row grid, which float32 holds."""
    fixed = scaling.fixed(removed.x)
    return replace(removed, x=(fixed / ROW_GRID).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a node gives to the one above: its final centroids as rows."""

    rows: NDArray[np.int32]
    """(m, features) on the row grid; no rows where the node has none."""
    ordinals: NDArray[np.int64]
    """(m,) number of the cluster."""
    sizes: NDArray[np.int64]
    """(m,) rows of the cluster."""

    def same(self, other: Pooled, weighted: bool) -> bool:
        """Whether the node above sees the same bits."""
        return self is other or (
            np.array_equal(self.rows, other.rows)
            and np.array_equal(self.ordinals, other.ordinals)
            and (not weighted or np.array_equal(self.sizes, other.sizes))
        )


def pooled(record: Record) -> Pooled:
    """Return what a node's record gives to the node above."""
    if record.empty:
        none = np.empty(0, np.int64)
        return Pooled(np.empty((0, len(record.extent.lower)), np.int32), none, none)
    final = record.final
    index = np.flatnonzero(final.centroids.present)
    rows = (final.centroids.quantized[index] * 2).astype(np.int32)
    return Pooled(rows, index, final.tally.sizes[index])


@njit(cache=True, nogil=True)
def _assign_pooled(rows, weights, centres, present, sizes, sums):  # type: ignore[no-untyped-def]
    """Add each row, ``weights`` times, to the nearest present centre's count and sum.

    rows (m, features) and centres (k, features) in 2^-24; ties to the lowest index.
    """
    for i in range(rows.shape[0]):
        winner = -1
        least = np.int64(0)
        for j in range(centres.shape[0]):
            if not present[j]:
                continue
            exact = exact_distance(rows[i], centres[j])
            if winner < 0 or exact < least:
                winner = j
                least = exact
        sizes[winner] += weights[i]
        for f in range(rows.shape[1]):
            sums[winner, f] += weights[i] * rows[i, f]


@njit(cache=True, nogil=True)
def _race_pooled(rows, units, ordinals, weights, centres, key, stage):  # type: ignore[no-untyped-def]
    """The race with rates D^2 w: return (index, key), index -1 where no row has any.

    Without centres the rates are w.
    """
    winner = -1
    best = np.inf
    for i in range(rows.shape[0]):
        rate = np.float64(weights[i])
        if centres.shape[0] > 0:
            least = exact_distance(rows[i], centres[0])
            for j in range(1, centres.shape[0]):
                least = min(least, exact_distance(rows[i], centres[j]))
            rate *= np.float64(least)
        if rate == 0.0:
            continue
        ratio = exponential(key, units[i], ordinals[i], stage) / rate
        # Rows stand in the order of (unit, ordinal), so of equals the first one wins.
        if winner < 0 or ratio < best:
            winner = i
            best = ratio
    return winner, best


@njit(cache=True, nogil=True)
def _square_sum_pooled(rows, weights):  # type: ignore[no-untyped-def]
    high = np.int64(0)
    low = np.int64(0)
    for i in range(rows.shape[0]):
        total = np.int64(0)
        for f in range(rows.shape[1]):
            total += np.int64(rows[i, f]) * rows[i, f]
        high += weights[i] * (total >> 32)
        low += weights[i] * (total & 0xFFFFFFFF)
    return high, low


class PooledPasses:
    """The centroids of a node's children as rows; implements ``quantized.Passes``.

    A row's unit is its child's number, its ordinal that of the cluster. Weighted, it counts as many
    times as its cluster has rows: weight 0 never wins a race.
    """

    def __init__(self, children: Sequence[Pooled], weighted: bool) -> None:
        self._rows = np.concatenate([c.rows for c in children])
        lengths = [len(c.rows) for c in children]
        self._units = np.repeat(np.arange(len(children)), lengths)
        self._ordinals = np.concatenate([c.ordinals for c in children])
        sizes = np.concatenate([c.sizes for c in children])
        self._weights = sizes if weighted else np.ones_like(sizes)

    def extent(self) -> Extent:
        return unit_extent(int(self._weights.sum()), self._rows.shape[1])

    def square_sum(self, scaling: Scaling) -> int:
        high, low = _square_sum_pooled(self._rows, self._weights)
        return (int(high) << 32) + int(low)

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> Winner | None:
        key = np.uint64(draw.key(random_state))
        keys = self._units, self._ordinals
        index, ratio = _race_pooled(self._rows, *keys, self._weights, centres, key, draw.stage)
        if index < 0:
            return None
        return Winner(
            float(ratio), int(keys[0][index]), int(keys[1][index]), self._rows[index].copy()
        )

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> Tally:
        tally = Tally(np.zeros(len(centroids), np.int64), np.zeros_like(centroids))
        _assign_pooled(self._rows, self._weights, centroids * 2, present, tally.sizes, tally.sums)
        return tally


@dataclass(frozen=True, slots=True)
class Upper:
    """The tree above the leaves, and what they gave to it."""

    leaves: tuple[Pooled, ...]
    levels: tuple[tuple[Record, ...], ...]
    """The root alone, then the nodes of each depth below it, in order; without the leaves."""

    @property
    def root(self) -> Record:
        return self.levels[0][0]


def climb(
    leaves: Sequence[Pooled], settings: DividedSettings, before: Upper | None = None
) -> tuple[Upper, int]:
    """Return the tree above these leaves, and how many nodes were run.

    before: a tree of the same shape, of which nodes stand whose children give the same bits.
    """
    children, known = tuple(leaves), None if before is None else before.leaves
    levels: list[tuple[Record, ...]] = []
    runs = 0
    for depth in reversed(range(settings.depth)):
        width = settings.branching[depth]
        records = []
        for index in range(len(children) // width):
            part = slice(index * width, (index + 1) * width)
            if (
                before is not None
                and known is not None
                and _stand(children[part], known[part], settings.weighted)
            ):
                records.append(before.levels[depth][index])
                continue
            passes = PooledPasses(children[part], settings.weighted)
            records.append(quantized.fit(passes, settings.node(depth, index)))
            runs += 1
        levels.insert(0, tuple(records))
        if depth:
            children = tuple(pooled(r) for r in records)
            known = None if before is None else tuple(pooled(r) for r in before.levels[depth])
    return Upper(tuple(leaves), tuple(levels)), runs


def _stand(now: Sequence[Pooled], before: Sequence[Pooled], weighted: bool) -> bool:
    return all(a.same(b, weighted) for a, b in zip(now, before, strict=True))


def outcome(before: Upper, after: Upper, passes: int) -> Outcome:
    """Tell what a deletion came to that left the scaling as it was.

    ``unchanged``: the final centroids of every node stand. Else some leaves' moved, or the weights
    with which they count, and the nodes above them were run again: ``resumed`` if that took passes
    over leaves, ``replayed`` if not.
    """
    action = "resumed" if passes else "replayed"
    pairs = enumerate(zip(before.leaves, after.leaves, strict=True))
    moved = [leaf for leaf, (old, new) in pairs if not new.same(old, False)]
    if moved:
        reason = f"the centroids of leaf {listed_numbers(moved)} moved"
        return Outcome(action, None, passes, reason)
    levels = zip(before.levels, after.levels, strict=True)
    nodes = [pair for old, new in levels for pair in zip(old, new, strict=True)]
    if all(old is new or pooled(new).same(pooled(old), False) for old, new in nodes):
        return Outcome("unchanged", None, passes, "")
    return Outcome(action, None, passes, "the weights of a leaf's centroids changed")


@dataclass(frozen=True, slots=True)
class DividedRecord:
    """A trained tree with all that a deletion needs; no array depends on a deleted row."""

    extent: Extent
    """Of all rows, in the features' own units."""
    leaves: tuple[Record, ...]
    """On the unit cube, as all nodes; empty where a leaf has no row."""
    upper: Upper

    @property
    def model(self) -> Record:
        """The root, whose final centroids are the model, in the features' own units."""
        return as_model(self.extent, self.upper.root)


def as_model(extent: Extent, root: Record) -> Record:
    """Return the root's record with the extent of all rows for its scaling."""
    return Record(extent, root.square_sum, root.steps)
