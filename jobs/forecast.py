"""What a deletion would do to a model, found without a pass over the rows."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ..pipeline.arrays import unit_extent
from ..pipeline.fixedpoint import Extent, Scaling, merge_extents
from ..pipeline.quantized import Draw
from ..storage.dataset import CellStatistics


class PassNeeded(Exception):
    """Raised where a deletion would have to read the remaining rows."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action


class ForecastPasses:
    """Passes that stop at the first one; implements ``pipeline.quantized.Passes``.

    A deletion asks for the extent of the rows itself only when it starts from scratch.
    """

    def __init__(self, statistics: CellStatistics) -> None:
        self._statistics = statistics
        self._action = "resumed"

    def extent(self) -> Extent:
        self._action = "retrained"
        s = self._statistics
        return merge_extents(s.minimum, s.maximum, s.minimum_count, s.maximum_count, s.live)

    def square_sum(self, scaling: Scaling) -> NoReturn:
        raise PassNeeded(self._action)

    def race(
        self, scaling: Scaling, draw: Draw, random_state: int, centres: NDArray[np.int64]
    ) -> NoReturn:
        raise PassNeeded(self._action)

    def assign(
        self, scaling: Scaling, centroids: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> NoReturn:
        raise PassNeeded(self._action)


class LeafForecast(ForecastPasses):
    """The same for a leaf of DC-k-means, whose extent is asked for when no row of it is left."""

    def extent(self) -> Extent:
        return unit_extent(0, self._statistics.minimum.shape[1])
