"""What every family of models can do: the face that training and deletion jobs see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..storage.dataset import DataSet
from ..storage.fence import Fence
from .fold import Fold
from .plan import Gathered
from .workspace import Workspace

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Training:
    """A first fit that is asked for."""

    ws: Workspace
    fence: Fence
    fold: Fold
    progress: Progress
    model: str
    job: int
    asked: Mapping[str, Any]
    """``data``, ``algorithm``, ``parameters`` (parsed), ``seed``, ``memory`` and ``disk``."""
    data_row: Mapping[str, Any]
    data_set: DataSet


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """A new model's first version: written and synced, not in the ledger yet."""

    path: Path
    digest: str
    rows: int
    """Rows that the model depends on."""
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    """What the command prints beside what all families have."""


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that leave a model."""

    ws: Workspace
    fence: Fence
    fold: Fold
    progress: Progress
    model: str
    data_row: Mapping[str, Any]
    gathered: Gathered
    method: str
    """How models update that are not deleted from exactly."""


@dataclass(frozen=True, slots=True)
class NextVersion:
    """A model's next version: written and synced, not yet current."""

    model: str
    number: int
    folder: str
    digest: str
    rows: int
    report: dict[str, Any]


class Family(Protocol):
    """A family of models; modules implement it."""

    ALGORITHMS: tuple[str, ...]

    def parse(self, algorithm: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Turn ``-p key=value`` texts into values; UsageError names what is allowed."""
        ...

    def check(
        self, algorithm: str, parameters: Mapping[str, Any], data_set: DataSet, rows: int, seed: int
    ) -> None:
        """UsageError unless these hyper-parameters can be trained on so many rows."""
        ...

    def first_version(self, training: Training) -> FirstVersion:
        """Train and write the first version."""
        ...

    def next_version(self, change: Change) -> NextVersion:
        """Write the version without the gathered rows."""
        ...

    def forecast(
        self, ws: Workspace, model: str, gathered: Gathered, method: str
    ) -> dict[str, Any]:
        """Tell what a deletion would do (``action``, ``first_step``), without a pass over rows."""
        ...

    def describe(self, ws: Workspace, model: str) -> dict[str, Any]:
        """Return what ``model show`` tells beside what all families have."""
        ...

    def predict(self, ws: Workspace, model: str, x: NDArray[np.float32]) -> NDArray[Any]:
        """Return the predictions (n,) for raw rows x."""
        ...
