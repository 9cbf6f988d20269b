"""Rows made up on the spot, for tests and for experiments at sizes that no file here has.

Every block has its own random streams, keyed by (seed, block number). So any block can be made
without the others, and the first n rows are the same whatever the total number of rows.
NumPy may change how it draws normals from one release to another: the provenance names the release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from . import botnet_like, covtype_like, heartbeat_like, higgs_like
from .errors import BadInputError
from .rows import RowBlock
from .tabular_published import PUBLISHED

MAX_BLOCK_ROWS = 65_536
MAX_BLOCK_VALUES = 4_194_304
"""A block's features stay below 16 MB."""
MAKERS, AHEAD = 2, 4
"""Threads that make blocks, and blocks that they make before they are asked for."""
_LARGEST_NORMAL = 100.0
"""No draw of a standard normal comes near."""


class _Purpose(IntEnum):
    """What a random stream is for: streams of different purposes are independent."""

    FEATURES = 0
    LABELS = 1
    CENTRES = 2


def _stream(seed: int, purpose: _Purpose, block: int = 0) -> np.random.Generator:
    key = np.random.SeedSequence(seed, spawn_key=(int(purpose), block))
    return np.random.Generator(np.random.Philox(key))


def _require_at_least(minimum: int, **values: int) -> None:
    for name, value in values.items():
        if value < minimum:
            raise BadInputError(f"{name} is {value}, but must be at least {minimum}")


class GeneratedRows(ABC):
    """A `RowSource` of `rows` rows; subclasses say what a block holds.

    `blocks()` may be called again and then starts over. Raises BadInputError for rows < 1,
    features < 1 or seed < 0.
    """

    kind: ClassVar[str]
    """The generator's name in the provenance; it changes when the same parameters give other
    rows."""

    def __init__(self, rows: int, seed: int, feature_names: tuple[str, ...], label: str) -> None:
        _require_at_least(1, rows=rows, features=len(feature_names))
        _require_at_least(0, seed=seed)
        self._rows = rows
        self._seed = seed
        self._feature_names = feature_names
        self._label_name = label
        self._rows_given = 0
        self._block_rows = max(1, min(MAX_BLOCK_ROWS, MAX_BLOCK_VALUES // len(feature_names)))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self._feature_names

    @property
    def label_name(self) -> str:
        return self._label_name

    @property
    def provenance(self) -> dict[str, str | int | float]:
        """Everything needed to make the same rows again."""
        return {
            "generator": self.kind,
            "rows": self._rows,
            "seed": self._seed,
            "numpy": np.__version__,
        }

    @property
    def expected_rows(self) -> int:
        return self._rows

    @property
    def dropped(self) -> int:
        """Always 0."""
        return 0

    @property
    def progress(self) -> float:
        return self._rows_given / self._rows

    @property
    def block_count(self) -> int:
        """How many blocks `blocks()` yields."""
        return -(-self._rows // self._block_rows)

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all blocks in order; threads make the next ones while one is being used."""
        self._rows_given = 0
        waiting: deque[Future[RowBlock]] = deque()
        with ThreadPoolExecutor(MAKERS) as pool:
            try:
                for index in range(self.block_count + AHEAD):
                    if index < self.block_count:
                        waiting.append(pool.submit(self.block, index))
                    if index >= AHEAD:
                        block = waiting.popleft().result()
                        self._rows_given += block.rows.size
                        yield block
            finally:
                for unused in waiting:
                    unused.cancel()

    def block(self, index: int) -> RowBlock:
        """Make one block by itself; raises BadInputError where there is no such block."""
        if not 0 <= index < self.block_count:
            raise BadInputError(f"block {index} does not exist: there are {self.block_count}")
        first = index * self._block_rows
        rows = np.arange(first, min(first + self._block_rows, self._rows), dtype=np.int64)
        x, y = self._draw(index, rows.size)
        return RowBlock(rows=rows, x=x, y=y)

    def _normals(self, index: int, count: int, width: int) -> NDArray[np.float32]:
        """(count, width) standard normals; a longer block starts with a shorter one's rows."""
        stream = _stream(self._seed, _Purpose.FEATURES, index)
        return stream.standard_normal((count, width), np.float32)

    def _uniforms(self, index: int, count: int) -> NDArray[np.float64]:
        """(count,) uniform numbers in [0, 1) for the labels, prefixes of each other likewise."""
        return _stream(self._seed, _Purpose.LABELS, index).random(count)

    @abstractmethod
    def _draw(self, index: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """The first `count` rows of a block: features (count, features) and labels (count,)."""


class HiggsLike(GeneratedRows):
    """Rows with the marginals, correlations and class means of UCI HIGGS; label 0 or 1.

    The label is drawn with `planted_probabilities` (see `higgs_like`), so a logistic regression
    is the true model. A class's deviations and the features' higher-order dependence are not
    those of HIGGS: a tree or a network finds no more here than a linear model does.
    """

    kind = "higgs-like-1"

    def __init__(self, rows: int, seed: int) -> None:
        self._constants = higgs_like.load_constants()
        super().__init__(rows, seed, self._constants.feature_names, "label")

    @property
    def provenance(self) -> dict[str, str | int | float]:
        return super().provenance | {"constants": self._constants.digest}

    def _draw(self, index: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        x = self._normals(index, count, len(self._feature_names))
        labels = np.empty(count, np.float64)
        higgs_like.fill_rows(x, self._uniforms(index, count), labels, self._constants.law)
        return x, labels


class CovtypeLike(GeneratedRows):
    """Rows with the marginals, correlations and class means of UCI Covertype; label 1 to 7.

    Each class has its own law (see `covtype_like`), so that no linear model is the true one; a
    softmax regression is right for 73% of the rows, as on Covertype itself. The features are
    named as UCI's are by the covtype format.
    """

    kind = "covtype-like-1"

    def __init__(self, rows: int, seed: int) -> None:
        self._constants = covtype_like.load_constants()
        super().__init__(rows, seed, self._constants.feature_names, "Cover_Type")

    @property
    def provenance(self) -> dict[str, str | int | float]:
        return super().provenance | {"constants": self._constants.digest}

    def _draw(self, index: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        normals = self._normals(index, count, covtype_like.SCORES)
        x = np.empty((count, len(self._feature_names)), np.float32)
        labels = np.empty(count, np.float64)
        uniforms = self._uniforms(index, count)
        covtype_like.fill_rows(normals, uniforms, x, labels, self._constants.law)
        return x, labels


class HeartbeatLike(GeneratedRows):
    """Rows with the mean curves and spreads of the classes of ECG heartbeats; label 0 to 4.

    Each class has its own law (see `heartbeat_like`), so that no linear model is the true one; a
    softmax regression is right for 92% of the rows, as on real beats. The features are named as
    those of the heartbeat format are.
    """

    kind = "heartbeat-like-1"

    def __init__(self, rows: int, seed: int) -> None:
        self._constants = heartbeat_like.load_constants()
        super().__init__(rows, seed, PUBLISHED["heartbeat"].unlabelled, "class")

    @property
    def provenance(self) -> dict[str, str | int | float]:
        return super().provenance | {"constants": self._constants.digest}

    def _draw(self, index: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        normals = self._normals(index, count, self._constants.normals)
        x = np.empty((count, len(self._feature_names)), np.float32)
        labels = np.empty(count, np.float64)
        uniforms = self._uniforms(index, count)
        heartbeat_like.fill_rows(normals, uniforms, x, labels, self._constants.law)
        return x, labels


class BotnetLike(GeneratedRows):
    """Rows with the columns, classes and shares of N-BaIoT's doorbell; label `class`, 0 to 10.

    Columns are positive and heavy-tailed and correlate in blocks (see `botnet_like`); each class
    has its own law, drawn from the seed and not fitted to any measurement.
    """

    kind = "botnet-like-1"

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__(rows, seed, botnet_like.feature_names(), "class")
        self._law = botnet_like.law(_stream(seed, _Purpose.CENTRES))

    @property
    def law(self) -> botnet_like.BotnetLaw:
        """Shares, locations and spreads of the classes."""
        return self._law

    def _draw(self, index: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        normals = self._normals(index, count, self._law.normals)
        x = np.empty((count, len(self._feature_names)), np.float32)
        labels = np.empty(count, np.float64)
        botnet_like.fill_rows(normals, self._uniforms(index, count), x, labels, self._law)
        return x, labels


class GaussianMixture(GeneratedRows):
    """Equally likely round clusters; the label `cluster` is the row's component, 0 to k - 1.

    Centres are uniform in the unit cube and do not depend on `rows`; each feature then gets normal
    noise of the standard deviation given. With few clusters or many features most clusters stand
    apart at DEVIATION; with many clusters in few features neighbours overlap, and all of them do
    at OVERLAPPING. Raises BadInputError for rows < 1, features < 1, clusters < 1, seed < 0 or a
    deviation that is not above zero and finite.
    """

    kind = "gaussian-mixture-1"
    DEVIATION: ClassVar[float] = 0.05
    """Standard deviation of every feature within a cluster, unless another one is given."""
    OVERLAPPING: ClassVar[float] = 0.84
    """The deviation at which five clusters in 25 features overlap as those of the k-means paper:
    after ten iterations k-means agrees with the components by a normalized mutual information
    near 0.32 on average, from 0.19 to 0.42 by seed and start."""

    def __init__(
        self, rows: int, features: int, clusters: int, seed: int, deviation: float = DEVIATION
    ) -> None:
        _require_at_least(1, features=features, clusters=clusters)
        if not 0.0 < deviation < float(np.finfo(np.float32).max) / _LARGEST_NORMAL:
            raise BadInputError(f"deviation is {deviation}, but must be above zero and finite")
        self._deviation = deviation
        super().__init__(rows, seed, tuple(f"x{j}" for j in range(features)), "cluster")
        centres = _stream(seed, _Purpose.CENTRES).random((clusters, features), np.float32)
        centres.flags.writeable = False
        self._centres = centres

    @property
    def centres(self) -> NDArray[np.float32]:
        """(clusters, features) means of the components, read-only."""
        return self._centres

    @property
    def provenance(self) -> dict[str, str | int | float]:
        clusters, features = self._centres.shape
        return super().provenance | {
            "features": features,
            "clusters": clusters,
            "deviation": self._deviation,
        }

    def _draw(self, index: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        stream = _stream(self._seed, _Purpose.LABELS, index)
        clusters = stream.integers(self._centres.shape[0], size=count)
        x = self._normals(index, count, len(self._feature_names))
        x *= np.float32(self._deviation)
        x += self._centres[clusters]
        return x, clusters.astype(np.float64)
