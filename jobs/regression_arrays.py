"""A regression model as named arrays of a model version: layout, small arrays, stored provenance.

The arrays carry the paper's names. By iteration: ``trajectory`` w_t, ``G`` the gradient sums,
``live`` the mini-batches' rows; ``C`` the packed curvature and ``product`` of kind exact, by block
``eigenvalues`` and ``eigenvectors`` of kind averaged; ``svd_P`` and ``svd_V`` of kind lowrank; ``C``
up to t_s and then ``frozen_values`` and their like of kind frozen; ``eigenvalues`` and
``eigenvectors`` in the ``basis`` of kind projected. One chunk a block of iterations.
Linear models have ``gram`` X^T X and ``moment`` X^T y, others ``hessian`` where it was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.closed_form import NormalEquations
from ..pipeline.descent import Trace
from ..pipeline.design import Design
from ..pipeline.estimate import Estimate
from ..pipeline.losses import Loss
from ..pipeline.provenance import Blocks, Real, packed_size
from ..pipeline.regression import (
    AVERAGED,
    EXACT,
    FROZEN,
    LOWRANK,
    MEANS,
    NO_PROVENANCE,
    PROJECTED,
    RegressionSettings,
)
from ..storage.chunks import Index, read_items, read_part
from ..storage.schema import ArraySpec, whole
from ..storage.versions import NamedArray, Version

RUN_BYTES = 64 << 20
"""Curvature that an update holds in memory at once."""
PRODUCT_BYTES = 1 << 20
"""Products of blocks share chunks of about this size: an update for one row reads nearly all."""
PRODUCT = "product"
STATISTICS = ("gram", "moment", "hessian")
Digests = dict[tuple[str, Index], str]
"""Digest by (array, chunk)."""
TRACE = ("trajectory", "G", "live")
EIGEN = ("eigenvalues", "eigenvectors")
SVD = ("svd_P", "svd_V", "svd_rank", "svd_rest")
MEAN = ("frozen_values", "frozen_vectors", "frozen_G", "frozen_rows")
BASIS = ("basis", "basis_values")
UNDIVIDED = (*MEAN, *BASIS)
"""One chunk each for the whole model."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What has happened to a model since its first fit."""

    rows_at_fit: int
    """Training rows then."""
    rows: int
    """Training rows now."""
    estimate: Estimate
    """A-posteriori, of the distance to BaseL."""
    change: float
    """Sum of the norms of all updates."""
    failed: bool = False
    """Whether no descent converged on the rows that were left: there are no parameters then."""

    @classmethod
    def first(cls, rows: int) -> Lineage:
        """That of a fit: BaseL is the model itself."""
        return cls(rows, rows, Estimate(0.0, 0.0, 0.0), 0.0)

    @property
    def share_deleted(self) -> float:
        """Share of the training rows that were deleted since the first fit."""
        return 1.0 - self.rows / self.rows_at_fit


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sums over the training rows that methods need besides the provenance."""

    normal: NormalEquations | None = None
    """Of linear models."""
    hessian: NDArray[np.float64] | None = None
    """(P, P) the summed Hessian at the parameters, in the lower triangle; other models, if asked for."""

    def __add__(self, other: Statistics) -> Statistics:
        if self.normal is not None and other.normal is not None:
            return Statistics(self.normal + other.normal)
        if self.hessian is not None and other.hessian is not None:
            return Statistics(None, self.hessian + other.hessian)
        return self

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the arrays of ``STATISTICS`` that there are."""
        normal = self.normal
        gram, moment = (None, None) if normal is None else (normal.gram, normal.moment)
        found = zip(STATISTICS, (gram, moment, self.hessian), strict=True)
        return {name: values for name, values in found if values is not None}


@dataclass(frozen=True)
class RegressionModel:
    """A stored model, opened: small arrays read, provenance left where it is."""

    version: Version
    settings: RegressionSettings
    parameters: NDArray[np.float64]
    """(q, m)"""
    design: Design
    classes: tuple[float, ...]
    lineage: Lineage

    def statistics(self) -> Statistics:
        """Read the statistics that the version has, each chunk checked."""
        version, rows = self.version, self.lineage.rows
        normal = hessian = None
        if "gram" in version.specs:
            normal = NormalEquations(version.read("gram"), version.read("moment"), rows)
        if "hessian" in version.specs:
            hessian = version.read("hessian")
        return Statistics(normal, hessian)


def curvature_names(settings: RegressionSettings, block: int) -> tuple[str, ...]:
    """Return the arrays besides the trace that have a chunk of a block of iterations."""
    if settings.provenance == FROZEN:
        return ("C",) if block < frozen_block(settings) else ()
    if settings.provenance in MEANS:
        return EIGEN
    return {EXACT: ("C",), LOWRANK: SVD}.get(settings.provenance, ())


def frozen_block(settings: RegressionSettings) -> int:
    """Return the first block that kind ``frozen`` freezes."""
    return settings.frozen(1).first // settings.block


def chunked_specs(
    settings: RegressionSettings, parameters: int, products: bool, columns: int = 1
) -> dict[str, ArraySpec]:
    """Return the specs of the provenance's arrays; none without provenance.

    columns: m, for kind projected.
    """
    if settings.provenance == NO_PROVENANCE:
        return {}
    blocks, f8 = settings.blocks, np.dtype("<f8")
    tau, length = settings.iterations, blocks.length
    count = settings.composed.count
    kind = np.dtype(settings.dtype).newbyteorder("<")
    each, size = ("iteration", "parameter"), parameters
    specs = {
        "trajectory": ArraySpec(each, (tau, size), f8, (length, size)),
        "G": ArraySpec(each, (tau, size), f8, (length, size)),
        "live": ArraySpec(("iteration",), (tau,), np.dtype("<i8"), (length,)),
    }
    if settings.provenance == EXACT:
        packed = packed_size(size)
        specs["C"] = ArraySpec(("iteration", "packed"), (tau, packed), kind, (length, packed))
    if settings.provenance == LOWRANK:
        specs |= _svd_specs(settings, size, kind)
    if settings.provenance == FROZEN:
        specs |= _frozen_specs(settings, size, kind)
    if settings.provenance == AVERAGED:
        specs |= _eigen_specs(count, size, kind)
    if settings.provenance == PROJECTED:
        specs |= _eigen_specs(count, size // columns * settings.rank, kind)
        specs["basis"] = ArraySpec(
            ("column", "component"), (columns, columns), kind, (columns, columns)
        )
        specs["basis_values"] = ArraySpec(("component",), (columns,), f8, (columns,))
    if products:
        together = min(count, max(1, PRODUCT_BYTES // (8 * size * size)))
        dims = ("composed", "parameter", "start")
        specs[PRODUCT] = ArraySpec(dims, (count, size, size), f8, (together, size, size))
    return specs


def _eigen_specs(count: int, size: int, kind: np.dtype[Any]) -> dict[str, ArraySpec]:
    dims, shape = ("block", "parameter", "eigen"), (count, size, size)
    return {
        "eigenvalues": ArraySpec(dims[::2], shape[:2], kind, (1, size)),
        "eigenvectors": ArraySpec(dims, shape, kind, (1, size, size)),
    }


def _svd_specs(
    settings: RegressionSettings, size: int, kind: np.dtype[Any]
) -> dict[str, ArraySpec]:
    """Padded to the same rank everywhere."""
    tau, length, rank = settings.iterations, settings.block, settings.rank
    dims = ("iteration", "singular", "parameter")
    factor = ArraySpec(dims, (tau, rank, size), kind, (length, max(1, rank), size))
    return {
        "svd_P": factor,
        "svd_V": factor,
        "svd_rank": ArraySpec(("iteration",), (tau,), np.dtype("<i8"), (length,)),
        "svd_rest": ArraySpec(("iteration",), (tau,), np.dtype("<f8"), (length,)),
    }


def _frozen_specs(
    settings: RegressionSettings, size: int, kind: np.dtype[Any]
) -> dict[str, ArraySpec]:
    packed, first = packed_size(size), settings.frozen(1).first
    vectors = ArraySpec(("parameter", "eigen"), (size, size), kind, (size, size))
    return {
        "C": ArraySpec(
            ("early_iteration", "packed"), (first, packed), kind, (settings.block, packed)
        ),
        "frozen_values": ArraySpec(("eigen",), (size,), kind, (size,)),
        "frozen_vectors": vectors,
        "frozen_G": ArraySpec(("parameter",), (size,), np.dtype("<f8"), (size,)),
        "frozen_rows": ArraySpec(("count",), (1,), np.dtype("<i8"), (1,)),
    }


def small_arrays(
    parameters: NDArray[np.float64],
    design: Design,
    classes: tuple[float, ...],
    lineage: Lineage,
) -> dict[str, NamedArray]:
    """Return the arrays of one chunk, in the order of ``RegressionModel``."""
    return {
        "parameters": NamedArray(("output", "column"), parameters),
        "mean": NamedArray(("feature",), design.mean),
        "scale": NamedArray(("feature",), design.scale),
        "classes": NamedArray(("class",), np.array(classes, np.float64)),
        "rows": NamedArray(
            ("when",), np.array([lineage.rows_at_fit, lineage.rows, lineage.failed], np.int64)
        ),
        "distance": NamedArray(("part",), np.array([*astuple(lineage.estimate), lineage.change])),
    }


def small_specs(arrays: Mapping[str, NamedArray]) -> dict[str, ArraySpec]:
    """Return the specs of small arrays."""
    return {name: whole(a.dims, a.values) for name, a in arrays.items()}


def read_model(version: Version, settings: RegressionSettings) -> RegressionModel:
    """Read a version's small arrays, each checked."""
    rows, distance = version.read("rows").tolist(), version.read("distance").tolist()
    return RegressionModel(
        version,
        settings,
        version.read("parameters"),
        Design(version.read("mean"), version.read("scale")),
        tuple(version.read("classes").tolist()),
        Lineage(rows[0], rows[1], Estimate(*distance[:-1]), distance[-1], bool(rows[2])),
    )


def read_trace(version: Version, block: int) -> Trace:
    """Return the trace of a block, each chunk checked."""
    trajectory, gradients, live = (
        version.chunk(n, (block, *([0] * (len(version.specs[n].shape) - 1)))) for n in TRACE
    )
    return Trace(trajectory, gradients, live)


class StoredTrace:
    """Reads parts of a stored model's trace and curvature, unchecked, just the bytes asked for.

    For updates: the rebase that follows reads the same chunks and checks them, before anything is
    committed.
    """

    def __init__(self, version: Version) -> None:
        self._version = version

    def read(self, name: str, first: int, out: NDArray[Any]) -> None:
        """Fill out with an array's iterations from ``first`` on."""
        read_part(self._version.path, name, self._version.specs[name], first, out)

    def trace_at(self, iterations: NDArray[np.int64]) -> Trace:
        """Return the trace of some iterations, ascending."""
        version = self._version
        trace = Trace.empty(len(iterations), version.specs["trajectory"].shape[1])
        for name, array in zip(TRACE, (trace.trajectory, trace.gradients, trace.live), strict=True):
            read_items(version.path, name, version.specs[name], iterations, array)
        return trace

    def trace(self, spans: Iterable[tuple[int, int]], iterations: int) -> Trace:
        """Return the whole trace's room with the iterations first <= t < last of each span read."""
        trace = Trace.empty(iterations, self._version.specs["trajectory"].shape[1])
        for first, last in spans:
            for name, array in zip(
                TRACE, (trace.trajectory, trace.gradients, trace.live), strict=True
            ):
                self.read(name, first, array[first:last])
        return trace


class StoredExact:
    """Exact curvature of a stored model; implements ``pipeline.provenance.Exact``."""

    def __init__(
        self, version: Version, settings: RegressionSettings, blocks: Blocks | None = None
    ) -> None:
        """blocks: those whose curvature the version has, where they are not all."""
        self._version = version
        self._reader = StoredTrace(version)
        self.blocks: Blocks = settings.composed if blocks is None else blocks
        spec = version.specs["C"]
        self._size, self._dtype = spec.shape[1], spec.dtype
        block = self.blocks.length * self._size * spec.dtype.itemsize
        self.longest_run = max(1, RUN_BYTES // block)

    def packed(self, first: int, last: int) -> NDArray[Real]:
        begin, end = self.blocks.span(first)[0], self.blocks.span(last - 1)[1]
        found = np.empty((end - begin, self._size), self._dtype)
        self._reader.read("C", begin, found)
        return found

    @property
    def has_products(self) -> bool:
        """Whether blocks' products are kept."""
        return PRODUCT in self._version.specs

    def product(self, block: int) -> NDArray[Real] | None:
        return self._products[block] if self.has_products else None

    @cached_property
    def _products(self) -> NDArray[Real]:
        """(blocks, P, P): small models only."""
        spec = self._version.specs[PRODUCT]
        found = np.empty(spec.shape, spec.dtype)
        self._reader.read(PRODUCT, 0, found)
        return found


class StoredAveraged:
    """Averaged curvature of a stored model; implements ``pipeline.provenance.Averaged``."""

    def __init__(self, version: Version, settings: RegressionSettings) -> None:
        self._version = version
        self._reader = StoredTrace(version)
        self.blocks: Blocks = settings.blocks

    def eigen(self, block: int) -> tuple[NDArray[Real], NDArray[Real]]:
        found = []
        for name in ("eigenvalues", "eigenvectors"):
            spec = self._version.specs[name]
            out = np.empty((1, *spec.shape[1:]), spec.dtype)
            self._reader.read(name, block, out)
            found.append(out[0])
        return found[0], found[1]


def grouped(digests: Digests) -> dict[str, dict[Index, str]]:
    """Return digests by array, then chunk."""
    found: dict[str, dict[Index, str]] = {}
    for (name, index), value in digests.items():
        found.setdefault(name, {})[index] = value
    return found


def settings_to_json(settings: RegressionSettings) -> dict[str, Any]:
    """Return resolved settings as JSON values."""
    return {**asdict(settings), "loss": settings.loss.name.lower()}


def settings_from_json(text: str) -> RegressionSettings:
    """Return the settings that ``settings_to_json`` wrote."""
    found = json.loads(text)
    return RegressionSettings(**{**found, "loss": Loss[found["loss"].upper()]})
