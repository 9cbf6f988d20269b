"""From which ranges models scaled the rows that a job deletes, as its scan must know them.

A k-means model's next version may have another range, and bytes of a former one are nothing that can
be searched for by the new one. Ranges are values of rows, so nothing is kept of them but a keyed hash:
a retry of the job tells by it which range a model had that an earlier attempt updated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..storage.sparse import SparseRows
from .scanning import Range, Rows, range_of, scaling_models
from .updating import concerns_all
from .verification_records import SCAN, verify_setting
from .workspace import Workspace

MARKS = "former_ranges"
"""Where the report of a job that is not done has the marks of ranges."""
Marks = dict[str, str | None]
"""A keyed hash of each model's former range; None where it could not be read."""


@dataclass(frozen=True, slots=True)
class Former:
    """The ranges of the models that saw the rows, by data set; nothing where no scan is asked for."""

    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    unknown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The models whose range is not known, of each data set."""
    marks: Mapping[str, Marks] = field(default_factory=dict)


def ranges_before(ws: Workspace, data_sets: Iterable[str]) -> Former:
    """Return the ranges of data sets' models as they are; call before the commit.

    A model whose files can't be read is ``unknown``: it must not stop the others.
    """
    read = _read(ws, data_sets)
    marks = {
        data: {model: None if one is None else _mark(ws, one) for model, one in here.items()}
        for data, here in read.items()
    }
    return _former(read, marks)


def ranges_again(
    ws: Workspace, rows: Mapping[str, Rows], kept: Mapping[str, Marks], late: Collection[str]
) -> Former:
    """Return ``ranges_before`` as it was in a job's first attempt; call before a retry's commit.

    rows: what is to go, by data set. kept: the marks of the first attempt. late: the models that are
    behind, whose range is still the one under which they saw the rows. Another model's former range
    is one that a model has now, or that one widened by the rows: if neither has its mark, it is unknown.
    """
    found = {}
    for data, here in _read(ws, rows).items():
        present = [one for one in here.values() if one is not None]
        tried = [*present, *(_widened(one, rows[data]) for one in present)]
        by_mark = {_mark(ws, one): one for one in tried}
        marks: Marks = {**dict.fromkeys(here), **kept.get(data, {})}
        found[data] = {
            model: here[model] if model in late and model in here else by_mark.get(mark or "")
            for model, mark in marks.items()
        }
    return _former(found, kept)


def _read(ws: Workspace, data_sets: Iterable[str]) -> dict[str, dict[str, Range | None]]:
    """The range of every model that scales rows and has any, by data set; None where it can't be read."""
    found: dict[str, dict[str, Range | None]] = {}
    for data in data_sets if verify_setting(ws) == SCAN else ():
        found[data] = {}
        for model in scaling_models(ws, data):
            try:
                one = range_of(ws, model)
            except Exception as error:
                if concerns_all(error):
                    raise
                found[data][model] = None
            else:
                found[data] |= {} if one is None else {model: one}
    return found


def _former(read: Mapping[str, Mapping[str, Range | None]], marks: Mapping[str, Marks]) -> Former:
    """Ranges under other names than those of models to come: an encoding of a row is one pattern."""
    ranges = {
        data: tuple(replace(r, model=f"{m} before") for m, r in here.items() if r is not None)
        for data, here in read.items()
    }
    unknown = {data: [m for m, r in here.items() if r is None] for data, here in read.items()}
    return Former(ranges, unknown, marks)


def _widened(one: Range, x: Rows) -> Range:
    """A range that also has rows x; sparse rows are never scaled."""
    if isinstance(x, SparseRows) or not len(x):
        return one
    lower, upper = np.minimum(one.lower, x.min(axis=0)), np.maximum(one.upper, x.max(axis=0))
    return Range(one.model, lower, upper)


def _mark(ws: Workspace, one: Range) -> str:
    """A keyed hash of a range: tells whether another is the same, not what it is."""
    message = b"range" + one.lower.tobytes() + one.upper.tobytes()
    return hashlib.blake2b(message, key=ws.ledger.salt, digest_size=16).hexdigest()
