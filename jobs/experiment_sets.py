"""The six data sets of the k-means paper's tables, in memory, read from their users' files.

Rows come from the same importers and generators as those of stored data sets, but no workspace is
needed. What is said of a set tells whether it is the paper's, a part of it or a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..storage.generators import BotnetLike, GaussianMixture
from ..storage.importers import open_source
from ..storage.rows import RowSource
from .errors import JobError, UsageError

COMPLETE = "complete"
"""The note of a set that has the paper's rows and features."""
_SUBSET = 0x5E75
"""Keeps the draw of a subset apart from other draws of the same seed."""

Table = tuple[NDArray[np.float32], NDArray[np.int32]]


class MissingSet(JobError):
    """No file of a data set is in the folder; the message says what was looked for, and where."""


@dataclass(frozen=True, slots=True)
class ExperimentSet:
    """One data set of the experiments."""

    name: str
    x: NDArray[np.float32]
    """(n, d) rows in the file's order and units, not scaled."""
    labels: NDArray[np.int32]
    """(n,) classes as the file numbers them, or the components that rows were drawn from."""
    n_clusters: int
    """Clusters that the paper asks for (k)."""
    note: str
    """`complete`, or `partial: ...` or `stand-in: ...` and how it differs from the paper's."""


@dataclass(frozen=True, slots=True)
class _File:
    """Where the rows of a set are looked for: the first file by name that fits a pattern."""

    format: str
    patterns: tuple[str, ...]
    """Of files with the paper's rows, the preferred ones first."""
    stand_ins: tuple[str, ...] = ()
    """Of files with other rows of the same kind."""
    labels: str = ""
    """Pattern of the file of labels where it is another file."""
    drop_constants: bool = False
    """Whether the paper leaves columns of a single value out."""


@dataclass(frozen=True, slots=True)
class _Generator:
    """How the rows of a set are made."""

    open: Callable[[int, int], RowSource]
    """Called with the number of rows and the seed."""
    differs: str
    """How the rows differ from the paper's."""


@dataclass(frozen=True, slots=True)
class _Set:
    """What the paper says of a set, and where its rows come from."""

    rows: int
    features: int
    n_clusters: int
    origin: _File | _Generator


def _paper_gaussian(rows: int, seed: int) -> RowSource:
    return GaussianMixture(rows, 25, 5, seed, GaussianMixture.OVERLAPPING)


_SETS = {
    "celltype": _Set(12_009, 10, 4, _File("celltype", ("celltype*.csv*",))),
    "covtype": _Set(
        15_120,
        52,
        7,
        _File(
            "covtype",
            ("covtype_kaggle_15120.data*",),
            stand_ins=("covtype*.data*",),
            drop_constants=True,
        ),
    ),
    "mnist": _Set(
        60_000,
        784,
        10,
        _File("mnist", ("train-images*idx3-ubyte*",), labels="train-labels*idx1-ubyte*"),
    ),
    "postures": _Set(74_975, 15, 5, _File("postures", ("[Pp]ostures*.csv*", "[Pp]ostures*.zip"))),
    "botnet": _Set(
        1_018_298,
        115,
        11,
        _Generator(BotnetLike, "rows generated with the shape of N-BaIoT, none of its own"),
    ),
    "gaussian": _Set(
        100_000,
        25,
        5,
        _Generator(_paper_gaussian, "a mixture drawn anew; the paper's draw is not published"),
    ),
}
SETS = tuple(_SETS)
"""Names of the sets."""


def load(name: str, data_dir: Path, *, rows: int | None = None, seed: int = 0) -> ExperimentSet:
    """Read or generate a set.

    data_dir: the folder with the files; not looked at for generated sets.
    rows: at most so many (None: as many as the file or the paper has): of a file a random subset in
        the file's order, of a generator the first ones.
    seed: of generated rows and of a subset; any whole number, taken modulo 2^64.

    Raises MissingSet without the set's file, UsageError for an unknown name or rows < 1, and
    BadInputError where the file is not what its format says.
    """
    if name not in _SETS:
        raise UsageError(f"there is no data set {name!r}; known: {', '.join(SETS)}")
    if rows is not None and rows < 1:
        raise UsageError(f"rows is {rows}; at least 1 is needed")
    seed %= 2**64
    wanted = _SETS[name]
    if isinstance(wanted.origin, _Generator):
        table, note = _generated(wanted, wanted.origin, rows, seed)
    else:
        files, papers = _files(name, wanted.origin, data_dir)
        whole = _collected(open_source(files, wanted.origin.format))
        table = _subset(_varying(whole) if wanted.origin.drop_constants else whole, rows, seed)
        note = _note(wanted, "" if papers else files[0].name, len(whole[0]), table[0])
    return ExperimentSet(name, *table, wanted.n_clusters, note)


def _generated(wanted: _Set, origin: _Generator, rows: int | None, seed: int) -> tuple[Table, str]:
    """The rows of a generator, and how they differ from the paper's."""
    count = wanted.rows if rows is None else min(rows, wanted.rows)
    fewer = f"; {count:,} rows of {wanted.rows:,}" if count < wanted.rows else ""
    return _collected(origin.open(count, seed)), f"stand-in: {origin.differs}{fewer}"


def _files(name: str, origin: _File, folder: Path) -> tuple[list[Path], bool]:
    """A set's files in the folder, and whether the paper's rows are in them."""
    for pattern in (*origin.patterns, *origin.stand_ins):
        found = _first(folder, pattern)
        if found is None:
            continue
        papers = pattern in origin.patterns
        if not origin.labels:
            return [found], papers
        labels = _first(folder, origin.labels)
        if labels is None:
            raise MissingSet(
                f"data set {name}: {found.name} is in {folder}, but no file {origin.labels}; "
                "put the labels beside it"
            )
        return [found, labels], papers
    looked_for = " or ".join((*origin.patterns, *origin.stand_ins))
    raise MissingSet(
        f"data set {name}: no file {looked_for} in {folder}; put it there or leave the set out"
    )


def _first(folder: Path, pattern: str) -> Path | None:
    """The first file by name that fits a pattern."""
    return min((path for path in folder.glob(pattern) if path.is_file()), default=None)


def _collected(source: RowSource) -> Table:
    """All rows of a source and their labels; without a second copy where their number is known."""
    if source.expected_rows is None:
        blocks = list(source.blocks())
        x = np.concatenate([block.x for block in blocks])
        return x, np.concatenate([_whole(block.y) for block in blocks])
    x = np.empty((source.expected_rows, len(source.feature_names)), np.float32)
    labels = np.empty(source.expected_rows, np.int32)
    first = 0
    for block in source.blocks():
        stop = first + len(block.x)
        x[first:stop], labels[first:stop] = block.x, _whole(block.y)
        first = stop
    return x, labels


def _whole(labels: NDArray[np.float64] | None) -> NDArray[np.int32]:
    """Labels as integers: the sets' formats and generators have no others."""
    assert labels is not None
    return labels.astype(np.int32)


def _varying(table: Table) -> Table:
    """The rows without the columns that hold one value only."""
    x, labels = table
    varies = x.min(axis=0) < x.max(axis=0)
    return (x if varies.all() else np.ascontiguousarray(x[:, varies])), labels


def _subset(table: Table, rows: int | None, seed: int) -> Table:
    """So many rows at random, in order; all where there are no more."""
    x, labels = table
    if rows is None or rows >= len(x):
        return table
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence((_SUBSET, seed))))
    chosen = np.sort(stream.choice(len(x), rows, replace=False))
    return x[chosen], labels[chosen]


def _note(wanted: _Set, stand_in: str, found: int, x: NDArray[np.float32]) -> str:
    """How rows that were read compare with the paper's.

    stand_in: name of a file whose rows are not the paper's; found: rows in the file.
    """
    rows, features = x.shape
    here = [f"{stand_in}, whose rows are not the paper's"] if stand_in else []
    if found != wanted.rows:
        here.append(f"the file has {found:,} rows, the paper's {wanted.rows:,}")
    if features != wanted.features:
        here.append(f"{features} features where the paper has {wanted.features}")
    if rows < found:
        here.append(f"{rows:,} of the file's {found:,} rows")
    if not here:
        return COMPLETE
    return f"{'stand-in' if stand_in else 'partial'}: {'; '.join(here)}"
