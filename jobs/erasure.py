"""The deletion job after its commit: erase, retire, verify, receipt.

Everything here works from what the commit put into the ledger and may be repeated: after a crash
it is simply done again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from ..storage.dataset import CellStatistics, DataSet
from ..storage.erase import check_erased, erase_slots, measure_cell
from ..storage.errors import StorageError
from ..storage.fence import Fence
from ..storage.files import metered
from ..storage.metadata import check_metadata
from ..storage.versions import check_version, open_version
from .fold import Fold, split_cells
from .former_ranges import MARKS
from .holds import clear_held
from .job_scanning import Deleted
from .job_verifying import verify_job
from .ledger import now
from .plan import CELL_SECONDS
from .receipts import issue
from .verification_records import AT_FAULT, BY_DATA, FAILURES, READ_BACK, unverified
from .workspace import Workspace


@dataclass(frozen=True, slots=True)
class EraseTask:
    """The slots to overwrite in some cells, and the cells' new statistics where known."""

    fence: Fence
    data_set: DataSet
    slots: dict[int, NDArray[np.int64]]
    statistics: dict[int, CellStatistics]


def erase_cells(task: EraseTask) -> list[tuple[int, CellStatistics]]:
    """Overwrite the slots; return each cell's statistics afterwards (measured where unknown)."""
    done = []
    for cell, slots in task.slots.items():
        with task.fence.writing():
            erase_slots(task.data_set, cell, slots)
        known = task.statistics.get(cell)
        done.append((cell, measure_cell(task.data_set, cell) if known is None else known))
    return done


def addresses(ws: Workspace, job: int) -> dict[str, dict[int, NDArray[np.int64]]]:
    """The committed addresses of a job: data set -> cell -> slots."""
    found: dict[str, dict[int, NDArray[np.int64]]] = {}
    for row in ws.ledger.rows("SELECT * FROM tombstones WHERE job = ? ORDER BY cell", job):
        slots = np.array(BitMap.deserialize(row["slots"]), np.int64)
        found.setdefault(row["data_set"], {})[row["cell"]] = slots
    return found


def _erase(
    ws: Workspace, job: int, fence: Fence, fold: Fold, known: dict[tuple[str, int], CellStatistics]
) -> None:
    """Overwrite every committed address and put the cells' statistics right; idempotent."""
    for name, slots in addresses(ws, job).items():
        data_set = DataSet.open(ws.root / ws.ledger.data_set(name)["folder"])
        tasks = [
            EraseTask(
                fence,
                data_set,
                {c: slots[c] for c in cells},
                {c: known[name, c] for c in cells if (name, c) in known},
            )
            for cells in split_cells(list(slots), len(slots) * CELL_SECONDS, fold.workers)
        ]
        done = fold(erase_cells, tasks, lambda one, other: one + other)
        cells = np.array([cell for cell, _ in done], np.int64)
        merged = data_set.statistics().replaced(cells, [s for _, s in done])
        data_set.write_statistics(cells, merged.at(cells))


@dataclass(frozen=True, slots=True)
class Committed:
    """A job after its commit: what it reports, and what it still has in memory."""

    job: int
    report: dict[str, Any]
    known: dict[tuple[str, int], CellStatistics]
    """Statistics of cells, by data set and cell; others are measured."""
    deleted: Deleted | None
    """None where the job was resumed: the rows are nowhere any more."""


def finish(
    ws: Workspace, done: Committed, fence: Fence, fold: Fold, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Everything after the commit; repeating it is harmless."""
    ledger, job, report = ws.ledger, done.job, done.report
    with metered() as meter:
        with ledger.step(job, "erase"):
            progress("erase")
            _erase(ws, job, fence, fold, done.known)
            with ledger.transaction():
                ledger.run("UPDATE tombstones SET erased = ? WHERE job = ?", now(), job)
        with ledger.step(job, "retire"):
            progress("retire")
            # Workers may have spilled gathered rows: they go before the receipt.
            fold.close()
            ws.sweep_garbage()
    with ledger.step(job, "verify"):
        progress("verify")
        with metered() as reading:
            read_back = _read_back(ws, job)
        meter.add(reading)
        tasks = fold.tasks
        verification = verify_job(ws, job, done.deleted, fold, progress)
    report = {name: value for name, value in report.items() if name not in (FAILURES, MARKS)}
    report |= {
        "cells_read": max(report["cells_read"], len(meter.cells)),
        "bytes_read": report["bytes_read"] + meter.bytes_read,
        "bytes_written": report["bytes_written"] + meter.bytes_written,
        "tasks": tasks,
        "verification": {**verification.whole, "read_back": read_back},
    }
    by_data = {
        name: {**found, "read_back": read_back} for name, found in verification.by_data.items()
    }
    progress("receipts")
    with ledger.step(job, "receipt"):
        with ledger.transaction():
            ledger.run("UPDATE requests SET unit = NULL WHERE job = ?", job)
            clear_held(ledger, job)
        # No receipt is out before the ids are gone from every page of the ledger and its log.
        ledger.truncate_log()
        receipts, signed = issue(ws, job, report, by_data)
    return {**report, "receipts": receipts, "signed": signed}


def _read_back(ws: Workspace, job: int) -> dict[str, int]:
    """Read back what the job wrote: slots empty, old versions gone, new ones whole; count them."""
    ledger, slots_read = ws.ledger, 0
    for name, cells in addresses(ws, job).items():
        try:
            data_set = DataSet.open(ws.root / ledger.data_set(name)["folder"])
            for cell, slots in cells.items():
                check_erased(data_set, cell, slots)
                slots_read += len(slots)
        except StorageError as error:
            raise unverified(ws, job, _fault(str(error), name)) from error
    versions = "SELECT v.*, m.data_set FROM versions v JOIN models m ON m.name = v.model"
    for row in ledger.rows(f"{versions} WHERE v.state = 'retired'"):
        if (ws.root / row["folder"]).exists():
            problem = f"{row['folder']} should be gone and is still there"
            raise unverified(ws, job, _fault(problem, row["data_set"]))
    live = ledger.rows(f"{versions} WHERE v.job = ? AND v.state = 'live'", job)
    for row in live:
        try:
            check_version(open_version(ws.root / row["folder"], row["digest"]))
            check_metadata(ws.root / row["folder"], row["metadata"])
        except StorageError as error:
            failure = {**_fault(str(error), row["data_set"]), AT_FAULT: [row["model"]]}
            raise unverified(ws, job, failure) from error
    return {"slots": slots_read, "versions": len(live)}


def _fault(problem: str, data: str) -> dict[str, Any]:
    """What was found when a data set's files were read back, or those of one of its models."""
    return {"verify": READ_BACK, "problem": problem, BY_DATA: {data: problem}}
