"""The joint law of rows shaped like the N-BaIoT Botnet set: a mixture of heavy-tailed classes.

N-BaIoT describes the traffic of a device by 23 statistics (of five streams of packets), each over
five windows of time. A row is made from independent standard normals, one of each stream, one of
each statistic and one of each column, and one uniform number:

1. the uniform number picks one of eleven classes by its share: benign traffic and ten attacks, with
   the row counts of N-BaIoT's doorbell;
2. score of a column = sum of the three normals, weighted so that its variance is 1: the windows of
   a statistic correlate by 0.9, the statistics of a stream by 0.5, streams not at all;
3. column = location * swell(spread * score), where locations and spreads are the class's own, drawn
   once from the seed; swell(s) = (1 + s / 8)^8 is close to exp(s), but made of products alone, so
   that rows do not depend on the processor.

All columns are positive and none is a measurement: only the set's shape is N-BaIoT's.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

WINDOWS = ("L5", "L3", "L1", "L0.1", "L0.01")
"""Windows of time, the shortest first."""
_THREE = ("weight", "mean", "variance")
_SEVEN = ("weight", "mean", "std", "magnitude", "radius", "covariance", "pcc")
_STREAMS = {"MI_dir": _THREE, "H": _THREE, "HH": _SEVEN, "HH_jit": _THREE, "HpHp": _SEVEN}
"""The statistics of each stream, in N-BaIoT's order."""
_TYPICAL = {
    "weight": 60.0,
    "mean": 200.0,
    "variance": 20_000.0,
    "std": 60.0,
    "magnitude": 300.0,
    "radius": 5_000.0,
    "covariance": 500.0,
    "pcc": 0.05,
}
"""Locations before classes and windows change them."""
_ROWS_OF_CLASSES = (
    *(49_548, 59_718, 29_068, 29_849, 92_141, 105_874),
    *(102_195, 107_685, 122_573, 237_665, 81_982),
)
"""Benign; gafgyt's combo, junk, scan, tcp, udp; mirai's ack, scan, syn, udp, udpplain."""
CLASSES = len(_ROWS_OF_CLASSES)
ROWS = sum(_ROWS_OF_CLASSES)
"""Rows of the set as the k-means paper uses it: 1,018,298."""
_OF_STREAM, _OF_STATISTIC, _OF_COLUMN = 0.5, 0.4, 0.1
"""Parts of a score's variance."""
_STREAMS_APART, _STATISTICS_APART, _WINDOWS_APART = 0.5, 0.4, 0.1
"""Deviations, in units of swell's argument, by which a class's locations differ from the others'."""
_LEAST_SPREAD, _MOST_SPREAD = 0.2, 0.7
"""Of a class within a statistic, in units of swell's argument."""


def feature_names() -> tuple[str, ...]:
    """The 115 columns, named and ordered as N-BaIoT's."""
    return tuple(
        f"{stream}_{window}_{statistic}"
        for stream, statistics in _STREAMS.items()
        for window in WINDOWS
        for statistic in statistics
    )


class BotnetLaw(NamedTuple):
    """The constants in the form that the compiled loop reads (d = 115 columns)."""

    cumulative: NDArray[np.float64]
    """(CLASSES,) the uniform numbers below which a row is of this class or an earlier one."""
    location: NDArray[np.float32]
    """(CLASSES, d) what a column is where its score is 0."""
    spread: NDArray[np.float32]
    """(CLASSES, d) what one unit of score adds to swell's argument."""
    stream: NDArray[np.int64]
    """(d,) which normal is that of the column's stream."""
    statistic: NDArray[np.int64]
    """(d,) which normal is that of the column's statistic."""
    first_own: int
    """The normal of the first column."""
    loadings: NDArray[np.float32]
    """(3,) weights of the normals of stream, statistic and column."""

    @property
    def normals(self) -> int:
        """How many normals a row is made from."""
        return self.first_own + len(self.stream)


def law(stream: np.random.Generator) -> BotnetLaw:
    """Draw the classes' locations and spreads."""
    of_stream, of_statistic, typical = _columns()
    statistics, columns = int(of_statistic[-1]) + 1, len(of_stream)
    apart = _STREAMS_APART * stream.standard_normal((CLASSES, len(_STREAMS)))[:, of_stream]
    apart += _STATISTICS_APART * stream.standard_normal((CLASSES, statistics))[:, of_statistic]
    apart += _WINDOWS_APART * stream.standard_normal((CLASSES, columns))
    spread = stream.uniform(_LEAST_SPREAD, _MOST_SPREAD, (CLASSES, statistics))[:, of_statistic]
    return BotnetLaw(
        cumulative=np.cumsum(_ROWS_OF_CLASSES) / ROWS,
        location=(typical * _swollen(apart)).astype(np.float32),
        spread=spread.astype(np.float32),
        stream=of_stream,
        statistic=of_statistic + len(_STREAMS),
        first_own=len(_STREAMS) + statistics,
        loadings=np.sqrt(np.array([_OF_STREAM, _OF_STATISTIC, _OF_COLUMN])).astype(np.float32),
    )


def _columns() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(d,) number of each column's stream and of its statistic, and its typical value."""
    streams: list[int] = []
    numbers: list[int] = []
    typical: list[float] = []
    done = 0
    for number, statistics in enumerate(_STREAMS.values()):
        for longer in range(len(WINDOWS)):
            streams += [number] * len(statistics)
            numbers += range(done, done + len(statistics))
            # A longer window holds more packets; the other statistics keep their level.
            typical += [
                _TYPICAL[one] * (2.0**longer if one == "weight" else 1.0) for one in statistics
            ]
        done += len(statistics)
    return np.array(streams), np.array(numbers), np.array(typical)


def _swollen(argument: NDArray[np.float64]) -> NDArray[np.float64]:
    """swell of each value."""
    root = np.maximum(1.0 + argument / 8.0, 0.0)
    square = root * root
    fourth = square * square
    return np.asarray(fourth * fourth)


@numba.njit(nogil=True, cache=True)  # fastmath would let rows depend on the processor
def fill_rows(
    normals: NDArray[np.float32],
    uniforms: NDArray[np.float64],
    x: NDArray[np.float32],
    labels: NDArray[np.float64],
    law: BotnetLaw,
) -> None:
    """Make rows and their classes; validation assumed.

    normals: (n, law.normals) independent standard normals.
    uniforms: (n,) independent uniform numbers in [0, 1).
    x: (n, 115) overwritten with the columns, none negative.
    labels: (n,) overwritten with the classes, 0 to CLASSES - 1.
    """
    one, eighth, zero = np.float32(1.0), np.float32(0.125), np.float32(0.0)
    for row in range(normals.shape[0]):
        kind = 0
        while kind < law.cumulative.size - 1 and uniforms[row] >= law.cumulative[kind]:
            kind += 1
        labels[row] = kind
        for j in range(x.shape[1]):
            score = (
                law.loadings[0] * normals[row, law.stream[j]]
                + law.loadings[1] * normals[row, law.statistic[j]]
                + law.loadings[2] * normals[row, law.first_own + j]
            )
            root = max(one + law.spread[kind, j] * score * eighth, zero)
            square = root * root
            fourth = square * square
            x[row, j] = law.location[kind, j] * (fourth * fourth)
