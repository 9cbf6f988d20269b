"""Kind projected on stored rows: the basis, its rank, and what an update reads.

The basis is a statistic of the training rows of a fit, like the standardisation: a deletion's update
keeps it, and a retrain takes it anew from the rows that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.components import BASIS_ROWS, Basis, basis_of, choose_rank, spectrum
from ..pipeline.projected import Touched
from ..pipeline.provenance import Blocks, Real
from ..pipeline.regression import RegressionSettings
from ..pipeline.visits import Leaving, visits_at
from ..storage.versions import Version
from .regression_arrays import BASIS, RegressionModel, StoredAveraged, StoredTrace
from .regression_rows import RegressionRows
from .threads import one_blas_thread


class StoredProjected:
    """Projected curvature of a stored model; implements ``pipeline.projected.Projected``."""

    def __init__(self, version: Version, settings: RegressionSettings) -> None:
        self._version, self._rank = version, settings.rank
        self._averaged = StoredAveraged(version, settings)
        self.blocks: Blocks = settings.blocks

    @cached_property
    def basis(self) -> Basis:
        """Read unchecked, as an update reads; the rebase checks it."""
        return basis_from(self._read, self._rank)

    def _read(self, name: str) -> NDArray[Any]:
        spec = self._version.specs[name]
        out = np.empty(spec.shape, spec.dtype)
        StoredTrace(self._version).read(name, 0, out)
        return out

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        return self._averaged.eigen(block)


class StoredTouches:
    """Where a deletion touches a stored model, a block in memory; implements ``Touches``."""

    def __init__(
        self,
        model: RegressionModel,
        leaving: Leaving,
        when: NDArray[np.int64],
        which: NDArray[np.int64],
    ) -> None:
        """when, which: (v,) the iterations that use leaving rows, ascending, and the row of each use."""
        self._loss, self._leaving = model.settings.loss, leaving
        self._reader = StoredTrace(model.version)
        self._which = which
        self.when = when
        self.parameters = model.parameters.size

    def block(self, first: int, last: int) -> Touched:
        a, b = np.searchsorted(self.when, (first, last))
        which = self._which[a:b]
        at, place = np.unique(self.when[a:b], return_inverse=True)
        trace = self._reader.trace_at(at)
        rows, labels = self._leaving.rows[which], self._leaving.labels[which]
        terms = visits_at(self._loss, place, rows, labels, trace.trajectory)
        return Touched(at - first, trace, replace(terms, iteration=self.when[a:b] - first))


def read_basis(version: Version, rank: int) -> Basis:
    """Return a version's basis, each chunk checked; rank: d."""
    return basis_from(version.read, rank)


def basis_from(read: Callable[[str], NDArray[Any]], rank: int) -> Basis:
    """Return the basis in the arrays of ``BASIS``, read by name."""
    vectors, values = (read(name) for name in BASIS)
    return Basis(vectors, values, rank)


def basis_arrays(basis: Basis) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``BASIS``."""
    return dict(zip(BASIS, (basis.vectors, basis.values), strict=True))


def found_basis(rows: RegressionRows) -> Basis:
    """Return the basis of stored rows with the settings' rank, the same on any machine's cores."""
    with one_blas_thread():
        kind = np.dtype(rows.settings.dtype).type
        return basis_of(_mean_gram(rows), rows.settings.rank, kind)


def rank_of(rows: RegressionRows) -> tuple[int, float]:
    """Return how many components kind projected follows, and what the others change of u, about."""
    with one_blas_thread():
        values = spectrum(_mean_gram(rows))
    return choose_rank(values, rows.settings.descent, rows.settings.iterations, rows.outputs)


def _mean_gram(rows: RegressionRows) -> NDArray[np.float64]:
    """The mean of x x^T over the first cells' training rows: a uniform sample."""
    total = np.zeros((rows.width, rows.width))
    count = 0
    for cell in range(rows.data_set.cells):
        x = rows.cell(cell)[0][: BASIS_ROWS - count]
        total += x.T @ x
        count += len(x)
        if count >= BASIS_ROWS:
            break
    return total / max(1, count)
