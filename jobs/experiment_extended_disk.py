"""How much disk an extended experiment takes, told and refused before any of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path

from ..pipeline.losses import Loss
from ..pipeline.validation import DEFAULT_MAX_ITER, resolve_divided
from ..storage.cells import choose_cells
from ..storage.rows import blocks_of
from ..storage.space import FILE_OVERHEAD, free_bytes, no_space, shown
from . import kmeans_models
from .errors import JobError
from .experiment_extended_settings import (
    PLANNED,
    ExtendedAsked,
    ExtendedSettings,
    regression_name,
)
from .experiment_priu_models import WORK
from .experiment_priu_rows import Origin, opened_rows
from .experiment_priu_sets import SETS, SOURCES, Source
from .provenance_plan import MEMORY, Shape, plan_provenance
from .regression_store import folder_size

DEVIATIONS = 5
"""Standard deviations by which the fullest cell is taken to exceed the mean."""
STAGED_BYTES = 24
"""Of a staged row beside its features: hash, unit, label."""
UNLIMITED = 1 << 62
LABEL_BYTES = 5
"""Of a slot's label and margin at a step."""
ROW_BYTES = 12
"""Of a stored row beside its features: unit, label."""


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """Bytes by what takes them; the import's staging is gone before models are trained."""

    rows: int
    """Of the data set, as far as that is known before it is read."""
    data: int
    staging: int
    models: Mapping[str, int]
    """By model: trajectory and provenance, or labels and margins."""
    aside: int
    """Next versions that are written and swept."""
    held: int
    """Taken already by a run that goes on."""
    free: int
    root: Path

    @property
    def most(self) -> int:
        """Bytes at the fullest moment."""
        return self.data + max(self.staging, sum(self.models.values()) + self.aside)

    @property
    def needed(self) -> int:
        """Bytes that must be free now."""
        return max(0, self.most - self.held)

    def text(self) -> str:
        """Return the plan in one line."""
        models = ", ".join(f"{name} {shown(size)}" for name, size in self.models.items())
        held = f", {shown(self.held)} of them taken already" if self.held else ""
        return (
            f"disk below {self.root}: {self.rows:,} rows {shown(self.data)}, beside them "
            f"{shown(self.staging)} while they are imported; then models ({models}) and next versions "
            f"aside {shown(self.aside)}; at most {shown(self.most)}{held}, {shown(self.free)} free"
        )

    def check(self) -> None:
        """Raise NoSpaceError unless all of it fits."""
        if self.free < self.needed:
            raise no_space(self.root, "this experiment", self.needed, self.free)


def plan_disk(
    root: Path, settings: ExtendedSettings, asked: ExtendedAsked, origin: Origin
) -> DiskPlan:
    """Return what an experiment below ``root`` takes; JobError where no provenance would fit."""
    features = _source(asked).features
    rows = expected_rows(settings, origin)
    cells = choose_cells(rows, features)
    mean = rows / cells
    capacity = ceil(mean + DEVIATIONS * sqrt(mean))
    data = cells * (capacity * (4 * features + ROW_BYTES) + 3 * FILE_OVERHEAD)
    staging = rows * (4 * features + STAGED_BYTES)
    free = free_bytes(root)
    regressions = _regressions(settings, asked, rows, max(0, free - data) // 2)
    clusters = _clusters(settings, asked, cells * capacity, features)
    versions = 2 if settings.sequential else 1
    aside = max(versions * sum(regressions.values()), max(clusters.values(), default=0))
    work = root / WORK / asked.study.folder
    held = folder_size(work) if work.is_dir() else 0
    return DiskPlan(rows, data, staging, {**regressions, **clusters}, aside, held, free, root)


def expected_rows(settings: ExtendedSettings, origin: Origin) -> int:
    """Return how many rows there will be; of a file, by what its first rows take of it."""
    if not origin.files:
        assert origin.rows is not None  # A generator makes as many as it is told.
        return origin.rows
    source = opened_rows(origin, settings.regression)
    found = source.expected_rows
    if found is None:
        with blocks_of(source) as blocks:
            first = next(iter(blocks), None)
            found = 0 if first is None else round(len(first.rows) / max(source.progress, 1e-9))
    return origin.copies * (found if origin.rows is None else min(found, origin.rows))


def _source(asked: ExtendedAsked) -> Source:
    return SOURCES[SETS[asked.data_set].data]


def _regressions(
    settings: ExtendedSettings, asked: ExtendedAsked, rows: int, room: int
) -> dict[str, int]:
    """Bytes of each regression, as the planner would have it."""
    source, setting = _source(asked), SETS[asked.data_set]
    loss = Loss.LOGISTIC if setting.algorithm == "logistic" else Loss.SOFTMAX
    columns = source.features + 1
    outputs = (source.classes or 1) if loss == Loss.SOFTMAX else 1
    batch = min(setting.batch_size, rows)
    shape = Shape(loss, columns * outputs, setting.iterations, batch, None, columns)
    memory, disk = settings.regression.memory or MEMORY, settings.regression.disk or room
    found = {}
    for preset in asked.presets:
        for kind in settings.kinds:
            found[regression_name(preset, kind)] = _planned(shape, kind, memory, disk)
    return found


def _planned(shape: Shape, kind: str, memory: int, disk: int) -> int:
    """Bytes of a kind; where none fits that is left, those that the disk should have had room for."""
    asked = None if kind == PLANNED else kind
    try:
        return plan_provenance(shape, asked, None, memory, disk).disk
    except JobError:
        return plan_provenance(shape, asked, None, memory, UNLIMITED).disk


def _clusters(
    settings: ExtendedSettings, asked: ExtendedAsked, slots: int, features: int
) -> dict[str, int]:
    """Bytes of each model of the k-means family; all steps, and what is kept of each slot."""
    steps = DEFAULT_MAX_ITER + 1
    step = 8 * settings.clusters * (3 * features + 3)
    found = {}
    for algorithm in asked.algorithms:
        if algorithm in kmeans_models.ALGORITHMS:
            found[algorithm] = steps * (step + LABEL_BYTES * slots * settings.labels)
        else:
            leaves = resolve_divided(slots, features, n_clusters=settings.clusters).n_leaves
            found[algorithm] = leaves * steps * step
    return found
