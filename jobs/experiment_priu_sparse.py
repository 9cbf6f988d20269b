"""One deletion from a model on sparse rows, measured as ``experiment_priu_measure`` does.

BaseL and the updates both have the rows in memory already. An update gives the coefficients to go on
from by itself, so that no rebase follows.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.regression import BASEL
from .errors import JobError
from .experiment_priu_compare import compared, finite
from .experiment_priu_rows import DATA
from .fold import InlineFold
from .pending import open_readable
from .plan import gather
from .regression_store import folder_size
from .sparse_deletion import METHODS, update_stored_sparse
from .sparse_rows import SparseModelRows
from .sparse_store import COEFFICIENTS, SparseModel, open_sparse_model
from .sparse_training import descend, scores
from .workspace import Workspace

SPARSE = "sparse"
"""How BaseL computes its gradients here."""


class SparseLeaver:
    """Rows that leave a model on sparse rows."""

    def __init__(self, ws: Workspace, units: NDArray[np.int64]) -> None:
        self.model: SparseModel = open_sparse_model(ws, COEFFICIENTS)[1]
        settings, classes = self.model.settings, self.model.classes
        _, data = open_readable(ws.ledger, DATA, ws.root)
        started = perf_counter()
        gathered = gather(data, units, ws.ledger.salt, InlineFold())
        self.gather_seconds = perf_counter() - started
        self.before = SparseModelRows(data, settings, classes)
        self.after = SparseModelRows(data, settings, classes, gathered.slots)
        self.stays = ~self.before.training | self.after.training

    def run(self, method: str) -> NDArray[np.float64]:
        """Return the parameters (m + 1,) that BaseL or an update gives."""
        if method == BASEL:
            self.after.hold()
            return descend(self.after, lambda _: None)[0]
        self.before.hold()
        found, _ = update_stored_sparse(self.model, self.before, self.stays, method)
        w: NDArray[np.float64] = self.model.parameters + found.change
        return w


def measured_sparse(
    ws: Workspace, units: NDArray[np.int64], methods: tuple[str, ...], repeats: int
) -> dict[str, Any]:
    """Return what a piece says of sparse rows, but for what tells it from others."""
    leaver = SparseLeaver(ws, units)
    wanted = [method for method in methods if method in METHODS and method != BASEL]
    failed: list[dict[str, str]] = []
    for method in list(wanted):
        try:
            leaver.run(method)
        except (JobError, ValueError) as error:
            failed.append({"method": method, "kind": COEFFICIENTS, "why": str(error)})
            wanted.remove(method)
    leaver.run(BASEL)
    times: dict[str, list[float]] = {method: [] for method in (BASEL, *wanted)}
    found: dict[str, NDArray[np.float64]] = {}
    for _ in range(repeats):
        for method, seconds in times.items():
            found[method] = _timed(leaver, method, seconds)
    first, base = leaver.model.parameters, found[BASEL]

    def told(method: str) -> dict[str, Any]:
        return {
            "seconds": median(times[method]),
            "all_seconds": times[method],
            **finite(compared(found[method], base, first)),
            **_scores(leaver, found[method]),
            "w": None,
        }

    size = {"bytes": folder_size(leaver.model.version.path)}
    return {
        **_facts(leaver),
        "deleted": len(units),
        "failed": None,
        "before": _scores(leaver, first),
        "gather_seconds": leaver.gather_seconds,
        "visits": int((~leaver.stays).sum()) * leaver.before.epochs,
        "base_l": {**told(BASEL), "by": SPARSE},
        "updates": [{**told(m), "method": m, "kind": COEFFICIENTS} for m in wanted],
        "not_applicable": failed,
        "provenance": {COEFFICIENTS: {**size, "rebase_seconds": None, "sync_seconds": None}},
    }


def _timed(leaver: SparseLeaver, method: str, seconds: list[float]) -> NDArray[np.float64]:
    started = perf_counter()
    found = leaver.run(method)
    seconds.append(perf_counter() - started)
    return found


def _scores(leaver: SparseLeaver, w: NDArray[np.float64]) -> dict[str, Any]:
    found = scores(leaver.after, w)
    kept = {name: found[name] for name in ("objective", "accuracy")}
    return finite({**kept, "mse": None, "r2": None})


def _facts(leaver: SparseLeaver) -> dict[str, Any]:
    rows, settings = leaver.before, leaver.model.settings
    found = scores(rows, leaver.model.parameters)
    return {
        "loss": settings.loss.name.lower(),
        "parameters": leaver.model.parameters.size,
        "training_rows": int(rows.training.sum()),
        "validation_rows": found["validation_rows"],
        "majority_rate": found["majority_rate"],
        "learning_rate": settings.learning_rate,
        "l2": settings.l2,
        "iterations": settings.iterations,
        "batch_slots": settings.batch_slots,
        "epochs": settings.iterations / rows.schedule.per_epoch,
    }
