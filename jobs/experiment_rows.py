"""The rows of one replicate of a clustering experiment: who goes when, and how good centres are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_argmin

from ..pipeline.scores import SILHOUETTE_ROWS, normalized_mutual_information, silhouette
from .experiment_sets import ExperimentSet

CHUNK_ROWS = 512
PURPOSES = ("placement", "model", "baseline", "sweep")
"""What a replicate's random numbers are for; each has its own stream."""


def stream(purpose: str, data: str, seed: int, replicate: int) -> np.random.Generator:
    """Return the random numbers of one purpose in one replicate of one data set."""
    keys = (seed, replicate, PURPOSES.index(purpose), crc32(data.encode()))
    return np.random.default_rng([key % 2**64 for key in keys])


@dataclass(frozen=True)
class Left:
    """The rows that are left after some deletions."""

    x: NDArray[np.float32]
    """(n, d) in the features' own units."""
    units: NDArray[np.int64]
    labels: NDArray[np.int32]
    """(n,) true classes."""
    sample: NDArray[np.intp]
    """(at most SILHOUETTE_ROWS,) rows that the silhouette is taken of."""

    @cached_property
    def range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least value (d,) of every feature, and its range, 1 where it is constant."""
        lower = self.x.min(axis=0).astype(np.float64)
        width = self.x.max(axis=0) - lower
        return lower, np.where(width > 0, width, 1.0)

    @cached_property
    def scaled(self) -> NDArray[np.float32]:
        """The rows (n, d) with every feature mapped to [0, 1] by the range of the rows left."""
        lower, width = self.range
        out = np.empty_like(self.x)
        for part in _parts(len(out)):
            out[part] = (self.x[part] - lower) / width
        return out

    def in_scale(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return centres (k, d) in the features' own units as they are in ``scaled``."""
        lower, width = self.range
        scaled: NDArray[np.float64] = (centres - lower) / width
        return scaled

    def loss(self, centres: NDArray[np.float64]) -> float:
        """Return the sum of squared distances of the scaled rows to the nearest centre (k, d)."""
        return self._loss(centres, self._nearest(centres))

    def quality(self, centres: NDArray[np.float64]) -> dict[str, Any]:
        """Return loss, silhouette and NMI of scaled centres (k, d); silhouette None where it has none."""
        nearest = self._nearest(centres)
        return {
            "loss": self._loss(centres, nearest),
            "silhouette": silhouette(self.scaled[self.sample], nearest[self.sample]),
            "nmi": normalized_mutual_information(self.labels, nearest),
        }

    def _nearest(self, centres: NDArray[np.float64]) -> NDArray[np.intp]:
        found: NDArray[np.intp] = pairwise_distances_argmin(self.scaled, centres.astype(np.float32))
        return found

    def _loss(self, centres: NDArray[np.float64], nearest: NDArray[np.intp]) -> float:
        total = 0.0
        for part in _parts(len(nearest)):
            apart = self.scaled[part] - centres[nearest[part]]
            total += float(np.einsum("ij,ij->", apart, apart))
        return total


@dataclass(frozen=True, slots=True)
class Rows:
    """A data set with the units and the order of deletions of one replicate."""

    data: ExperimentSet
    units: NDArray[np.int64]
    """(n,) which unit a row is: a permutation, fresh in every replicate."""
    order: NDArray[np.intp]
    """(m,) the rows that are deleted, in order: random, without replacement."""
    sampling: NDArray[np.intp]
    """(n,) all rows in a random order, the same in all replicates: the first ones that are left
    make the sample for the silhouette."""

    @classmethod
    def of(cls, data: ExperimentSet, deletions: int, seed: int, replicate: int) -> Rows:
        """Draw units and order of a replicate."""
        random = stream("placement", data.name, seed, replicate)
        units = random.permutation(len(data.x)).astype(np.int64)
        order = random.permutation(len(data.x))[:deletions]
        sampling = np.random.default_rng(crc32(data.name.encode())).permutation(len(data.x))
        return cls(data, units, order, sampling)

    def left(self, deletions: int) -> Left:
        """Return the rows after so many deletions."""
        stays = np.ones(len(self.units), np.bool_)
        stays[self.order[:deletions]] = False
        place = np.cumsum(stays) - 1
        sample = self.sampling[stays[self.sampling]][:SILHOUETTE_ROWS]
        return Left(
            self.data.x[stays],
            self.units[stays],
            self.data.labels[stays],
            np.sort(place[sample]),
        )


def _parts(rows: int) -> Iterator[slice]:
    """Slices of rows that are worked on at once."""
    for start in range(0, rows, CHUNK_ROWS):
        yield slice(start, min(rows, start + CHUNK_ROWS))
