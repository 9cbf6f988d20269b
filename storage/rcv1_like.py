"""Sparse rows that resemble RCV1 (LYRL2004): weighted words of news stories, label -1 or +1.

A row is a story of a topic. Its length is lognormal; each of its words is drawn from the topic's
own vocabulary or from a Zipf-Mandelbrot law over all columns. A word that occurs f times weighs
(1 + log f) log(1 / share of the rows that have it), and the row is divided by its norm. The label is
drawn from a logistic model of the row, sparse in the columns, whose signs are those of the topics
that use a word.

Made like RCV1's sample: 47,236 columns, about 78 entries a row, the shares of rows that have the most
frequent words; the best model is right for 94 rows in 100, one trained on 20,000 rows for 92.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .errors import BadInputError
from .sparse import SparseRows
from .sparse_rows import SparseBlock, SparseSource

FEATURES = 47_236
BLOCK_ROWS = 8192
KIND = "rcv1-like-1"
_EXPONENT, _SHIFT = 1.1, 30.0
"""Of the law over all columns: the word of rank r has the weight (r + shift)^-exponent."""
_TOPICS, _VOCABULARY = 60, 400
_OWN_EXPONENT, _OWN_SHIFT = 0.9, 8.0
"""Of the law over a topic's own vocabulary."""
_OWN_SHARE = 0.45
"""Of a row's words."""
_POSITIVE_SHARE = 0.47
"""Of the topics."""
_MEAN_WORDS, _SIGMA, _LEAST_WORDS = 88.0, 0.55, 3
_SHARPNESS = 4.5
"""Log-odds of the label in deviations of the planted score."""
_PILOT, _PILOT_ROWS = 2**32 - 1, 2000
"""A block that no source gives; it tells the planted scores' middle and deviation."""


class _Purpose(IntEnum):
    """What a random stream is for: streams of different purposes are independent."""

    LENGTHS = 0
    TOPICS = 1
    WORDS = 2
    LABELS = 3
    LAW = 4


def _stream(seed: int, purpose: _Purpose, block: int = 0) -> np.random.Generator:
    key = np.random.SeedSequence(seed, spawn_key=(int(purpose), block))
    return np.random.Generator(np.random.Philox(key))


@dataclass(frozen=True, slots=True)
class _Law:
    """What the seed alone decides."""

    ends: NDArray[np.float64]
    """(columns,) cumulative law of ranks."""
    own_ends: NDArray[np.float64]
    """(vocabulary,) cumulative law within a topic's vocabulary."""
    vocabulary: NDArray[np.int64]
    """(topics, vocabulary) ranks of the topics' words."""
    column: NDArray[np.int64]
    """(columns,) of each rank."""
    weight: NDArray[np.float64]
    """(columns,) by rank: log(1 / share of rows that have the word)."""
    slope: NDArray[np.float64]
    """(columns,) by rank: the planted model."""


def _decaying(count: int, shift: float, exponent: float) -> NDArray[np.float64]:
    """Return shares (count,) that fall as (rank + shift)^-exponent."""
    shares = np.asarray((np.arange(count) + shift) ** -exponent, np.float64)
    shares /= shares.sum()
    return shares


def _ends(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cumulative law, which ends above every draw."""
    ends = np.cumsum(shares)
    ends[-1] = 1.0
    return ends


def _law(seed: int) -> _Law:
    stream = _stream(seed, _Purpose.LAW)
    shares = _decaying(FEATURES, _SHIFT, _EXPONENT)
    own = _decaying(_VOCABULARY, _OWN_SHIFT, _OWN_EXPONENT)
    ends = _ends(shares)
    vocabulary = np.searchsorted(ends, stream.random((_TOPICS, _VOCABULARY)), side="right")
    positive = stream.permutation(_TOPICS) < _POSITIVE_SHARE * _TOPICS
    used = np.zeros(FEATURES)
    signed = np.zeros(FEATURES)
    for words, sign in zip(vocabulary, np.where(positive, 1.0, -1.0), strict=True):
        np.add.at(used, words, own * _OWN_SHARE / _TOPICS)
        np.add.at(signed, words, sign * own * _OWN_SHARE / _TOPICS)
    often = (1.0 - _OWN_SHARE) * shares + used
    weight = -np.log(-np.expm1(_MEAN_WORDS * np.log1p(-often)))
    column = stream.permutation(FEATURES)
    return _Law(ends, _ends(own), vocabulary, column, weight, signed / often)


@dataclass(frozen=True, slots=True)
class _Stories:
    """Some rows by rank, and their planted scores."""

    ranks: NDArray[np.int64]
    values: NDArray[np.float64]
    pointers: NDArray[np.int64]
    scores: NDArray[np.float64]


def _stories(law: _Law, count: int, seed: int, block: int) -> _Stories:
    """Draw rows; a longer draw begins with a shorter one's rows."""
    purposes = (_Purpose.LENGTHS, _Purpose.TOPICS, _Purpose.WORDS)
    lengths, topics, words = (_stream(seed, purpose, block) for purpose in purposes)
    size = np.exp(np.log(_MEAN_WORDS) - _SIGMA**2 / 2 + _SIGMA * lengths.standard_normal(count))
    number = np.maximum(_LEAST_WORDS, size).astype(np.int64)
    topic = topics.integers(_TOPICS, size=count)
    row = np.repeat(np.arange(count), number)
    uniform = words.random((len(row), 2))
    common = np.searchsorted(law.ends, uniform[:, 1], side="right")
    own = law.vocabulary[topic[row], np.searchsorted(law.own_ends, uniform[:, 1], side="right")]
    rank = np.where(uniform[:, 0] < _OWN_SHARE, own, common)
    key, times = np.unique(row * FEATURES + rank, return_counts=True)
    row, rank = np.divmod(key, FEATURES)
    values = (1.0 + np.log(times)) * law.weight[rank]
    values /= np.sqrt(np.bincount(row, values * values, count))[row]
    pointers = np.r_[0, np.cumsum(np.bincount(row, minlength=count))].astype(np.int64)
    scores = np.bincount(row, values * law.slope[rank], count).astype(np.float64)
    return _Stories(rank, values, pointers, scores)


class Rcv1Like(SparseSource):
    """Rows made up on the spot, block by block; the first n are the same whatever their number.

    Raises BadInputError for rows < 1 or seed < 0. NumPy may change how it draws normals from one
    release to another: the provenance names the release.
    """

    label_name = "label"

    def __init__(self, rows: int, seed: int) -> None:
        if rows < 1 or seed < 0:
            raise BadInputError(f"rows is {rows} and seed {seed}; they must be at least 1 and 0")
        self._rows, self._seed, self._given = rows, seed, 0
        self._law = _law(seed)
        pilot = _stories(self._law, _PILOT_ROWS, seed, _PILOT).scores
        self._middle, self._deviation = float(np.median(pilot)), float(pilot.std())

    @property
    def provenance(self) -> dict[str, str | int | float]:
        """Everything needed to make the same rows again."""
        numbers = {"rows": self._rows, "seed": self._seed}
        return {"generator": KIND, **numbers, "numpy": np.__version__}

    @property
    def first_column(self) -> int:
        return 0

    @property
    def features(self) -> int:
        return FEATURES

    @property
    def progress(self) -> float:
        return self._given / self._rows

    def blocks(self) -> Iterator[SparseBlock]:
        """Yield all blocks in order; may be called again."""
        self._given = 0
        for first in range(0, self._rows, BLOCK_ROWS):
            count = min(BLOCK_ROWS, self._rows - first)
            self._given += count
            yield self._block(first // BLOCK_ROWS, count)

    def _block(self, index: int, count: int) -> SparseBlock:
        made = _stories(self._law, count, self._seed, index)
        log_odds = _SHARPNESS * (made.scores - self._middle) / self._deviation
        uniform = _stream(self._seed, _Purpose.LABELS, index).random(count)
        labels = np.where(uniform < 1.0 / (1.0 + np.exp(-log_odds)), 1.0, -1.0)
        columns = self._law.column[made.ranks].astype(np.int32)
        row = np.repeat(np.arange(count), np.diff(made.pointers))
        order = np.lexsort((columns, row))
        x = SparseRows(made.values[order].astype(np.float32), columns[order], made.pointers)
        rows = index * BLOCK_ROWS + np.arange(count, dtype=np.int64)
        return SparseBlock(rows, x, labels)
