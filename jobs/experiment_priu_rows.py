"""Where the rows of a regression experiment come from, which of them leave, and how they get dirty.

Whole files and generated rows are imported as they are. A subset of a file, and rows some of which
are dirty, are written as a parquet file first: the import then is like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..pipeline.losses import Loss
from ..pipeline.regression import NO_PROVENANCE, RegressionSettings, held_out
from ..storage.importers import open_source
from ..storage.random_features import WithRandomFeatures
from ..storage.rows import RowBlock, RowSource, blocks_of
from ..storage.tabular_published import PUBLISHED
from .errors import JobError
from .experiment_priu_sets import SETS, SOURCES, Source
from .experiment_priu_settings import DIRTY, VALIDATION, Settings, Study
from .importing import open_generator
from .sparse_importing import SPARSE_GENERATORS

DATA = "rows"
"""Name of the data set in a study's workspace."""
BLOCK_ROWS = 16_384
_SUBSET, _LEAVING, SUBSETS = 1, 2, 3
"""Keep the draws of one seed apart."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The rows of a set: files, or a generator."""

    source: Source
    files: tuple[Path, ...]
    """None: the generator."""
    rows: int | None
    """So many of them; None: all."""
    note: str
    """``complete``, or ``partial: ...`` or ``stand-in: ...`` and how they differ from the paper's."""
    copies: int = 1
    """How often every row is there, as units of their own."""

    @property
    def sparse(self) -> bool:
        """Whether the rows are sparse."""
        return self.source.format == "svmlight" or self.source.like in SPARSE_GENERATORS


def find_origin(study: Study, settings: Settings, data_dir: Path) -> Origin:
    """Return where a study's rows come from; JobError, saying what was looked for, if from nowhere."""
    name = SETS[study.data_set].data
    source = SOURCES[name]
    files = () if settings.generate and source.like else _files(source, data_dir)
    if files:
        return Origin(source, files, settings.rows, f"{', '.join(f.name for f in files)}")
    if source.like is None:
        looked_for = " or ".join(source.patterns)
        raise JobError(
            f"set {study.data_set}: no file {looked_for} in {data_dir}, and nothing generates rows like "
            "these; put it there or leave the set out"
        )
    rows = source.rows if settings.rows is None else min(settings.rows, source.rows)
    fewer = f", {rows:,} of {source.rows:,}" if rows < source.rows else ""
    note = f"stand-in: rows generated like those of {source.like}{fewer}"
    return Origin(source, (), rows, note)


def _files(source: Source, folder: Path) -> tuple[Path, ...]:
    """The first file that fits a pattern; of batches all."""
    for pattern in source.patterns:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return tuple(found) if source.format == "cifar10" else (found[0],)
    return ()


def describe(origin: Origin, rows: int, features: int) -> str:
    """Return whether a set is complete, partial or a stand-in, now that its rows are known."""
    if not origin.files:
        return origin.note
    if origin.copies > 1:
        return f"{origin.copies} copies of {origin.note}: {rows:,} rows, {features} features"
    # The paper counts features after an encoding of its own: they are told, and decide nothing.
    if rows == origin.source.rows:
        return f"complete: {origin.note}, {rows:,} rows, {features} features"
    return f"partial: {origin.note}, {rows:,} rows of {origin.source.rows:,}"


def asked_rows(
    study: Study, origin: Origin, settings: Settings, folder: Path
) -> tuple[dict[str, Any], Path | None]:
    """Return the import or generation job that makes a study's rows, and the file made for it.

    folder: where a parquet file may be written; it is not written again if it is there.
    """
    if origin.sparse:
        if study.leaving == DIRTY:
            raise JobError(f"set {study.data_set}: sparse rows are not made dirty; say --random")
        return _import(origin, settings), None
    fitting = not origin.files or (origin.rows is None and origin.files[0].suffix != ".npz")
    if study.leaving != DIRTY and fitting:
        return _import(origin, settings), None
    path = folder / "rows.parquet"
    source = opened_rows(origin, settings)
    if not path.is_file():
        _write(path, source, _Cut.of(study, source, origin, settings))
    asked = {**_EMPTY, "kind": "import", "files": [str(path)], "format": "parquet"}
    return {**asked, "label": source.label_name, "seed": settings.seed}, path


_EMPTY: dict[str, Any] = {
    "subject": None,
    "one_hot": [],
    "drop": [],
    "header": True,
    "cells": None,
    "drop_invalid": False,
    "copies": 1,
    "random_features": None,
    "first_column": None,
}


def _import(origin: Origin, settings: Settings) -> dict[str, Any]:
    """The job that imports whole files or generates rows."""
    source, seed = origin.source, settings.seed
    if not origin.files:
        shape = {"like": source.like, "rows": origin.rows, "seed": seed, "cells": None, "copies": 1}
        return {"kind": "generate", **shape, "features": None, "clusters": None, "deviation": None}
    asked = {**_EMPTY, "kind": "import", "format": source.format, "label": None, "seed": seed}
    files = [str(path.absolute()) for path in origin.files]
    return {**asked, "files": files, "random_features": source.random_features}


def opened_rows(origin: Origin, settings: Settings) -> RowSource:
    """Return the rows as a stream, each once."""
    source = origin.source
    if not origin.files:
        assert source.like is not None and origin.rows is not None
        return open_generator(source.like, origin.rows, None, None, settings.seed)
    if origin.files[0].suffix == ".npz":
        return _ArrayRows(origin.files[0], source.format)
    found = open_source(list(origin.files), source.format)
    if source.random_features is None:
        return found
    return WithRandomFeatures(found, source.random_features, settings.seed)


class _ArrayRows:
    """A ``RowSource`` of an npz file with X (n, features) and y (n,)."""

    provenance: dict[str, str | int | float]
    dropped = 0
    progress = 0.0

    def __init__(self, path: Path, format: str) -> None:
        with np.load(path) as stored:
            self._x, self._y = stored["X"], stored["y"]
        published = PUBLISHED[format]
        self.feature_names: tuple[str, ...] = published.unlabelled
        self.label_name: str = published.label or "label"
        self.expected_rows: int = len(self._x)
        self.provenance = {"file": path.name}

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows in order."""
        for first in range(0, len(self._x), BLOCK_ROWS):
            part = slice(first, first + BLOCK_ROWS)
            x = np.ascontiguousarray(self._x[part], np.float32)
            rows = np.arange(first, first + len(x), dtype=np.int64)
            yield RowBlock(rows, x, self._y[part].astype(np.float64))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Which rows of a source are taken, and which of these are dirty."""

    taken: NDArray[np.bool_]
    """(rows of the source,)"""
    dirty: NDArray[np.bool_]
    """(rows of the source,)"""
    scale: float

    @classmethod
    def of(cls, study: Study, source: RowSource, origin: Origin, settings: Settings) -> _Cut:
        """Draw a subset, and its dirty rows: those that will leave."""
        total = source.expected_rows or _counted(source)
        taken = np.ones(total, np.bool_)
        if origin.rows is not None and origin.rows < total:
            draw = stream(study, settings, _SUBSET)
            taken[:] = False
            taken[draw.choice(total, origin.rows, replace=False)] = True
        dirty = np.zeros(total, np.bool_)
        if study.leaving == DIRTY:
            units = leaving_units(study, settings, int(taken.sum()), study.rates[0])
            dirty[np.flatnonzero(taken)[units]] = True
        return cls(taken, dirty, settings.dirty_scale)


def _counted(source: RowSource) -> int:
    """How many rows a file has: it is read for that."""
    with blocks_of(source) as blocks:
        return sum(len(block.rows) for block in blocks)


def _write(path: Path, source: RowSource, cut: _Cut) -> None:
    """Write the rows that are taken, the dirty ones rescaled, whole."""
    names = [*source.feature_names, source.label_name]
    types = [pa.float32()] * len(source.feature_names) + [pa.float64()]
    schema = pa.schema(list(zip(names, types, strict=True)))
    partial = path.with_name(f"{path.name}.partial")
    with (
        pq.ParquetWriter(partial, schema, compression="none", use_dictionary=False) as writer,
        blocks_of(source) as blocks,
    ):
        for block in blocks:
            chosen = np.flatnonzero(cut.taken[block.rows])
            x = block.x[chosen]
            x[cut.dirty[block.rows[chosen]]] *= np.float32(cut.scale)
            assert block.y is not None  # The sets' formats and generators have labels.
            columns = [np.ascontiguousarray(column) for column in x.T]
            writer.write_table(pa.table([*columns, block.y[chosen]], schema=schema))
    partial.replace(path)


def leaving_units(study: Study, settings: Settings, rows: int, rate: float) -> NDArray[np.int64]:
    """Return the training rows (as units 0 to rows - 1) that leave at a rate, ascending.

    Those of a lower rate are among those of a higher one. At least one leaves.
    """
    order = training_order(study, settings, rows)
    return np.sort(order[: max(1, round(rate * len(order)))])


def training_order(study: Study, settings: Settings, rows: int) -> NDArray[np.int64]:
    """Return all training units in a random order."""
    units = np.arange(rows, dtype=np.int64)
    training = units[~held_out(units, split_of(settings))]
    return stream(study, settings, _LEAVING).permutation(training)


def stream(study: Study, settings: Settings, purpose: int) -> np.random.Generator:
    """Return random numbers for a purpose: the same for all settings and presets of a data set."""
    data = crc32(SETS[study.data_set].data.encode())
    return np.random.default_rng([settings.seed % 2**64, data, purpose])


def split_of(settings: Settings) -> RegressionSettings:
    """Return as much of a regression's settings as tells training rows from validation rows."""
    return RegressionSettings(
        Loss.LINEAR, 1.0, 0.0, 1, 1, settings.seed, 1, VALIDATION, NO_PROVENANCE, "float64", 1
    )
