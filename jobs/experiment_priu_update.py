"""What the regression experiments do to stored models: update, rebase aside, retrain.

All of it is what deletion jobs do, up to the commit: nothing is committed, nothing is erased, and
what is written is swept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..pipeline.losses import Loss
from ..pipeline.regression import CLOSED_FORM, INFL, NO_PROVENANCE, PRIU_OPT, unusable
from ..storage import files
from ..storage.dataset import DataSet
from ..storage.fence import Fence
from ..storage.versions import create_version, open_version
from .experiment_priu_rows import DATA
from .fold import InlineFold
from .pending import open_readable
from .plan import Gathered, gather
from .regression_arrays import RegressionModel, read_model, small_arrays
from .regression_deletion import leaving_rows
from .regression_rows import RegressionRows
from .regression_store import open_model, seal
from .train_regression import Target, descend_stored
from .update_outcome import Outcome
from .update_regression import rebase_stored, update_stored
from .workspace import Workspace

SIDES = ("fused", "blas")
"""How BaseL computes its gradients: by one compiled loop, or by BLAS."""


def competitors(
    loss: Loss, kinds: tuple[str, ...], methods: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Return the methods that apply, each with every kind of provenance that it can use.

    A method that needs no provenance is there once, with kind ``none``.
    """
    found: list[tuple[str, str]] = []
    for method in methods:
        if needs_no_trace(method, loss):
            if unusable(method, loss, NO_PROVENANCE) is None:
                found.append((method, NO_PROVENANCE))
            continue
        kept = (kind for kind in kinds if kind != NO_PROVENANCE)
        found += [(method, kind) for kind in kept if unusable(method, loss, kind) is None]
    return found


def needs_no_trace(method: str, loss: Loss) -> bool:
    """Whether a method looks at no provenance of iterations, and so is the same with every kind."""
    return method in (CLOSED_FORM, INFL) or (method == PRIU_OPT and loss == Loss.LINEAR)


@dataclass(frozen=True)
class Leaver:
    """Rows that leave, read into memory, and the models that they leave."""

    data_set: DataSet
    gathered: Gathered
    gather_seconds: float
    excluded: dict[int, NDArray[np.int64]]
    """Slots by cell that have left, these rows' too."""

    @classmethod
    def of(
        cls, ws: Workspace, units: NDArray[np.int64], before: dict[int, NDArray[np.int64]]
    ) -> Leaver:
        """Gather units; before: the slots that left earlier and still stand on the disk."""
        _, data_set = open_readable(ws.ledger, DATA, ws.root)
        started = perf_counter()
        gathered = gather(data_set, units, ws.ledger.salt, InlineFold())
        seconds = perf_counter() - started
        excluded = dict(before)
        for cell, slots in gathered.slots.items():
            excluded[cell] = np.union1d(excluded.get(cell, np.empty(0, np.int64)), slots)
        return cls(data_set, gathered, seconds, excluded)

    def rows(self, model: RegressionModel) -> RegressionRows:
        """The rows that are left, as a model takes them."""
        return RegressionRows(
            self.data_set, model.settings, model.design, model.classes, self.excluded
        )

    def update(self, model: RegressionModel, method: str) -> Outcome:
        """Return an update of a model: from the rows in memory to the parameters."""
        rows = self.rows(model)
        return update_stored(model, rows, leaving_rows(rows, self.gathered), method)

    def base_l(self, model: RegressionModel, side: str) -> tuple[NDArray[np.float64], float]:
        """Retrain on the rows left; return the parameters (q, m) and the seconds it took."""
        rows = self.rows(model)
        started = perf_counter()
        w, _ = descend_stored(rows, None, lambda _: None, side == "fused")
        return w, perf_counter() - started

    def warm_up(self, model: RegressionModel) -> None:
        """Compile what BaseL runs, so that no timing pays for it."""
        rows = self.rows(model)
        few = replace(rows.settings, iterations=min(2, rows.settings.iterations), block=1)
        for side in SIDES:
            descend_stored(replace(rows, settings=few), None, lambda _: None, side == "fused")


def opened(ws: Workspace, kind: str) -> RegressionModel:
    """Return the model of a kind of provenance, as it was first trained."""
    return open_model(ws, kind)[1]


@dataclass(frozen=True, slots=True)
class Rebased:
    """A next version, written aside: no ledger knows it."""

    model: RegressionModel
    path: Path
    rebase_seconds: float
    sync_seconds: float


def rebase_aside(
    ws: Workspace, fence: Fence, kind: str, model: RegressionModel, leaver: Leaver, outcome: Outcome
) -> Rebased:
    """Write the version of a model after a deletion, without committing it; ``sweep`` it later."""
    rows = leaver.rows(model)
    leaving = leaving_rows(rows, leaver.gathered)
    specs = dict(model.version.specs)
    small = small_arrays(model.parameters, model.design, model.classes, model.lineage)
    path = ws.new_version_path(kind, 2)
    create_version(path, specs, {})
    target = Target(path, {n: s for n, s in specs.items() if n not in small}, fence)
    started = perf_counter()
    digests = rebase_stored(model, target, leaving, outcome, InlineFold(), lambda _: None)
    rebased = perf_counter() - started
    w = model.parameters + outcome.updated.change.reshape(model.parameters.shape)
    lineage = replace(model.lineage, rows=model.lineage.rows - len(leaving.rows))
    started = perf_counter()
    digest = seal(target, specs, digests, w, rows, lineage)
    synced = perf_counter() - started
    after = read_model(open_version(path, digest), model.settings)
    return Rebased(after, path, rebased, synced)


def sweep(path: Path) -> None:
    """Remove a version that was written aside."""
    files.sweep(path)
