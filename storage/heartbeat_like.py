"""The joint law of rows that resemble Kaggle's ECG heartbeats: in each class, a cut-off Gaussian.

A row is made from k common normals, one normal of its own for each of the 187 samples, and one
uniform number:

1. the uniform number picks the class by its prior;
2. score of a sample = loadings . common normals + rest * own normal, of variance 1, with the rest
   such that the variances add up; the common normals move neighbouring samples together;
3. sample = location + scale * score, cut off at 0 and 1: beats are padded with zeros at their end,
   and each is scaled so that its highest sample is 1.

The constants are in heartbeat_like.json, which says how each was found.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from .constants import read_constants


class HeartbeatLaw(NamedTuple):
    """The constants in the form that the compiled loop reads (5 classes, d = 187, k factors)."""

    labels: NDArray[np.float64]
    """(5,) the classes."""
    cumulative: NDArray[np.float64]
    """(5,) the uniform numbers below which a row is of this class or an earlier one."""
    location: NDArray[np.float32]
    """(5, d) means before the cut."""
    common: NDArray[np.float32]
    """(5, k, d) what each common normal adds to the samples."""
    own: NDArray[np.float32]
    """(5, d) what a sample's own normal adds to it."""


class HeartbeatConstants(NamedTuple):
    """What heartbeat_like.json holds."""

    law: HeartbeatLaw
    """The numbers."""
    digest: str
    """Names the constants in a provenance."""

    @property
    def normals(self) -> int:
        """How many normals a row is made from: the common ones, then the samples' own."""
        return int(self.law.common.shape[1] + self.law.common.shape[2])


@functools.cache
def load_constants() -> HeartbeatConstants:
    """The package's constants (read once a process)."""
    table, digest = read_constants("heartbeat_like.json")
    return HeartbeatConstants(_law(table), digest)


def _law(table: dict[str, Any]) -> HeartbeatLaw:
    """Unpack the file's classes into arrays with one entry a class."""
    classes = table["classes"]
    loadings = np.array([one["loadings"] for one in classes])
    scale = np.array([one["scale"] for one in classes])
    rest = np.sqrt(1.0 - (loadings**2).sum(axis=2))
    common = (loadings * scale[:, :, None]).transpose(0, 2, 1)
    return HeartbeatLaw(
        labels=np.array([one["label"] for one in classes], np.float64),
        cumulative=np.cumsum([one["prior"] for one in classes]),
        location=np.array([one["location"] for one in classes], np.float32),
        common=np.ascontiguousarray(common, np.float32),
        own=(scale * rest).astype(np.float32),
    )


@numba.njit(nogil=True, cache=True)  # fastmath would let rows depend on the processor
def fill_rows(
    normals: NDArray[np.float32],
    uniforms: NDArray[np.float64],
    x: NDArray[np.float32],
    labels: NDArray[np.float64],
    law: HeartbeatLaw,
) -> None:
    """Make rows and their classes; validation assumed.

    normals: (n, k + 187) independent standard normals.
    uniforms: (n,) independent uniform numbers in [0, 1).
    x: (n, 187) overwritten with the samples, from 0 to 1.
    labels: (n,) overwritten with the classes, 0 to 4.
    """
    factors = law.common.shape[1]
    zero, one = np.float32(0.0), np.float32(1.0)
    for row in range(normals.shape[0]):
        kind = 0
        while kind < law.cumulative.size - 1 and uniforms[row] >= law.cumulative[kind]:
            kind += 1
        labels[row] = law.labels[kind]
        samples = x[row]
        for j in range(samples.size):
            samples[j] = law.location[kind, j] + law.own[kind, j] * normals[row, factors + j]
        for k in range(factors):
            for j in range(samples.size):
                samples[j] += law.common[kind, k, j] * normals[row, k]
        for j in range(samples.size):
            # Adding zero turns a negative zero into a positive one.
            samples[j] = min(max(samples[j], zero), one) + zero
