"""Verification of a model against a retrain from the rows on the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline import quantized
from ..pipeline.quantized import Record
from ..pipeline.regression import BASEL
from ..storage.dataset import CellStatistics, DataSet
from ..storage.erase import measure_cell
from ..storage.errors import StorageError
from ..storage.metadata import check_metadata
from ..storage.versions import check_version, digest, open_version, read_version
from . import divided_arrays, divided_models, kmeans_arrays, kmeans_models, sparse_models
from .errors import UsageError, VerifyError
from .fold import Fold, split_cells
from .pending import check_nothing_pending
from .replay_store import open_replay
from .train_divided import StoredLeaves
from .train_kmeans import StoredPasses, warm_up
from .verifying_regression import verify_against_basel
from .workspace import Workspace

RETRAIN = "retrain"
MEASURE_RATE = 5e8
"""Values whose extremes a thread finds in a second, roughly."""

Arrays = Mapping[str, NDArray[Any]]


def verify_model(
    ws: Workspace,
    model: str,
    against: str | None,
    fold: Fold,
    progress: Callable[[str], None],
) -> tuple[dict[str, Any], str | None]:
    """Verify by the way that fits the model; return what was found, and what is wrong with it.

    UsageError where ``against`` does not fit the model.
    """
    algorithm = ws.ledger.model(model)["algorithm"]
    fits = RETRAIN if algorithm in _RETRAINS else BASEL
    if against not in (None, fits):
        raise UsageError(f"--against is {against!r}; for a {algorithm} model it is {fits}")
    if algorithm in sparse_models.ALGORITHMS:
        return sparse_models.verify_sparse(ws, model, progress)
    if fits == BASEL:
        return verify_against_basel(ws, model, fold, progress)
    return verify_against_retrain(ws, model, fold, progress)


@dataclass(frozen=True, slots=True)
class _Retraining:
    """What a retrain takes: nothing of the model but its resolved settings."""

    settings: Mapping[str, Any]
    data_set: DataSet
    statistics: CellStatistics
    fold: Fold
    salt: bytes
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Retrained:
    model: Record
    arrays: Arrays
    passes: int
    digest: Callable[[Arrays], str]
    """The digest of a version of such arrays."""


def _retrain_kmeans(what: _Retraining) -> _Retrained:
    settings = kmeans_arrays.settings_from_json(what.settings)
    passes = StoredPasses(what.data_set, what.statistics, what.fold, progress=what.progress)
    record = quantized.fit(passes, settings)
    arrays = {n: a.values for n, a in kmeans_arrays.to_arrays(record, settings).items()}
    return _Retrained(record, arrays, passes.passes, digest)


def _retrain_divided(what: _Retraining) -> _Retrained:
    settings = divided_arrays.settings_from_json(what.settings)
    leaves = StoredLeaves(
        what.data_set, what.statistics, settings, what.salt, what.fold, progress=what.progress
    )
    tree = leaves.fit()
    arrays = {n: a.values for n, a in divided_arrays.stored_arrays(tree, settings).items()}
    return _Retrained(tree.model, arrays, tree.outcome.passes, divided_arrays.digest_of)


_RETRAINS: dict[str, Callable[[_Retraining], _Retrained]] = {
    **dict.fromkeys(kmeans_models.ALGORITHMS, _retrain_kmeans),
    **dict.fromkeys(divided_models.ALGORITHMS, _retrain_divided),
}
"""How the models are trained anew that a deletion leaves bit for bit a retrain."""


def verify_against_retrain(
    ws: Workspace, model: str, fold: Fold, progress: Callable[[str], None]
) -> tuple[dict[str, Any], str | None]:
    """Train anew on the rows that are stored and compare every array of the digest; see above.

    The retrain gets the model's resolved settings from the ledger and opens no array of the model.
    Labels and margins, which are no part of the digest, are held against their own one.
    """
    ledger = ws.ledger
    with ws.lock(f"verification of model {model}"):
        row = ledger.model(model)
        check_nothing_pending(ledger, row["data_set"])
        _, data_set = ledger.open_data_set(row["data_set"], ws.root)
        progress("measuring cells")
        statistics = measure(data_set, fold)
        warm_up(data_set, fold)
        started = perf_counter()
        settings = json.loads(row["settings"])
        what = _Retraining(settings, data_set, statistics, fold, ledger.salt, progress)
        again = _RETRAINS[row["algorithm"]](what)
        retrained = again.arrays
        seconds = perf_counter() - started
        try:
            found, _ = read_version(ws.root / row["folder"])
            model_digest, retrained_digest = again.digest(found), again.digest(retrained)
            exact = model_digest == retrained_digest == row["digest"]
            if exact:
                # Arrays that are right are of no use in a version that can't be opened.
                open_version(ws.root / row["folder"], row["digest"])
        except StorageError as error:
            raise VerifyError(str(error)) from error
        progress("labels and margins")
        intact, fault = _check_labels(ws, row, data_set)
        fault = fault or _metadata_fault(ws, row)
    differing = sorted(n for n in {*found, *retrained} if not _same(found, retrained, n))
    if not exact:
        fault = f"model {model} is not what a retrain gives: {differing} differ"
    return {
        "model": model,
        "against": "retrain",
        "exact": exact,
        "model_digest": model_digest,
        "retrained_digest": retrained_digest,
        "ledger_digest": row["digest"],
        "max_abs_difference": _difference(found, retrained),
        "differing": differing,
        "rows": again.model.extent.rows,
        "empty": again.model.empty,
        "passes": again.passes,
        "retrain_seconds": seconds,
        "intact": intact,
    }, fault


def _check_labels(
    ws: Workspace, row: Mapping[str, Any], data_set: DataSet
) -> tuple[bool | None, str | None]:
    """Whether each byte kept for replay is what was written, and what is not; None where none is."""
    try:
        stored = open_replay(ws, row, data_set)
        if stored is None:
            return None, None
        check_version(stored.version)
    except StorageError as error:
        return False, f"model {row['name']} stands, but not what it keeps for deletions: {error}"
    return True, None


def _metadata_fault(ws: Workspace, row: Mapping[str, Any]) -> str | None:
    """What is wrong with the files beside a version's chunks, if anything."""
    try:
        check_metadata(ws.root / row["folder"], row["metadata"])
    except StorageError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class _MeasureTask:
    data_set: DataSet
    cells: tuple[int, ...]


def _measure_cells(task: _MeasureTask) -> CellStatistics:
    return CellStatistics.join([measure_cell(task.data_set, c) for c in task.cells])


def measure(data_set: DataSet, fold: Fold) -> CellStatistics:
    """Return the statistics of all cells from their rows: the stored ones are not believed."""
    cells = range(data_set.cells)
    seconds = data_set.cells * data_set.capacity * data_set.features / MEASURE_RATE
    tasks = [_MeasureTask(data_set, part) for part in split_cells(cells, seconds, fold.workers)]
    return fold(_measure_cells, tasks, lambda one, other: CellStatistics.join([one, other]))


def _same(one: Arrays, other: Arrays, name: str) -> bool:
    if name not in one or name not in other:
        return False
    a, b = one[name], other[name]
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _difference(one: Arrays, other: Arrays) -> float | None:
    """The largest difference of final centroids in scaled units; None where they can't be paired."""
    a, b = one.get("quantized_centroids"), other.get("quantized_centroids")
    if a is None or b is None or a.shape[1:] != b.shape[1:] or len(a) != len(b):
        return None
    return float(np.abs(a[-1].astype(float) - b[-1]).max()) if len(a) else 0.0
