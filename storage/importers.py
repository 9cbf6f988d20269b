"""The formats that rows are imported from, and how their files are opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from .cifar10 import IMAGES, Cifar10Source, is_batch
from .errors import BadInputError
from .idx import IdxSource, image_columns, images_alone, is_idx, paired
from .layout import (
    Layout,
    Roles,
    column_of,
    duplicates,
    features_layout,
    listed,
    training_layout,
)
from .parquet import ParquetFile, ParquetSource, is_parquet
from .rows import RowSource
from .svmlight import SVMLIGHT
from .tabular import TableFile, TableSource, first_line
from .tabular_diagnosis import is_number
from .tabular_incomplete import IncompleteSource
from .tabular_published import PUBLISHED

CSV = "csv"
"""Any table of numbers; the first line names the columns unless it is said to have no header."""
PARQUET = "parquet"
"""Any table of numbers; the files name the columns."""

MNIST = "mnist"
"""Images and their labels in idx files; any size of image will do."""
CIFAR10 = "cifar10"
"""Batches of CIFAR-10's binary version."""
FORMATS: tuple[str, ...] = (*PUBLISHED, MNIST, CIFAR10, CSV, PARQUET, SVMLIGHT)

_NUMBERED = re.compile("(c[0-9]+)(?:=.*)?", re.DOTALL)
"""A feature of a csv file without header: a column's number, and a category if it is one-hot."""


def open_source(
    files: Sequence[Path],
    format: str,
    *,
    label: str | None = None,
    drop: Sequence[str] = (),
    header: bool = True,
    drop_invalid: bool = False,
    subject: str | None = None,
    salt: bytes | None = None,
    one_hot: Sequence[str] = (),
    progress: Callable[[float], None] = lambda share: None,
) -> RowSource:
    """Open files as one stream of rows: features and, where there is one, a label.

    Parameters
    ----------
    files : read in this order; all must have the same columns. Text may be gzipped, or be the one
        csv file of a zip. For mnist, as many files of images as of labels.
    format : one of FORMATS.
    label : name of the label column (the published formats know theirs; sgemm has two to choose
        from, "log_mean_run_ms" if unset and "mean_run_ms").
    drop : names of columns to leave out.
    header : whether the first line names the columns (csv); if not, they are c0, c1, ...
    drop_invalid : skip rows that cannot be used and count them, instead of raising. The first
        line must have the right number of columns all the same, as it tells what the file is.
        Rows of postures that lack a feature are skipped and counted in any case.
    subject : name of the column that says which data subject a row belongs to (csv, parquet, and
        postures, where it is "User"): an integer or a text, hashed to the row's unit by
        `subject_units` and kept nowhere else.
    salt : the data set's 16 secret bytes; needed for subjects.
    one_hot : names of columns of categories (csv, parquet), each of which becomes one feature of
        zeros and ones per category, `COLUMN=VALUE`, where the column stood. The files are read
        once to find the categories, before this returns.
    progress : called with the share of that reading that is done.

    Raises BadInputError for a wrong argument, file or header, and MissingError for a missing file,
    before anything else is read.
    """
    _check_format(files, format)
    roles = Roles(label, tuple(drop), subject, tuple(one_hot))
    if subject is not None and not salt:
        raise BadInputError("a subject column needs the data set's salt to hash it with")
    provenance = _provenance(files, format, drop_invalid)
    if format == MNIST:
        return _idx_source(files, roles, provenance)
    if format == CIFAR10:
        roles = IMAGES.roles(format, roles)
        layout = training_layout(IMAGES.columns, roles, {})
        provenance |= _told(roles)
        return Cifar10Source(files, layout, provenance=provenance, drop_invalid=drop_invalid)
    if format in PUBLISHED:
        roles, header = PUBLISHED[format].roles(format, roles), PUBLISHED[format].header
    provenance |= _told(roles)
    if format == CSV:
        provenance["header"] = int(header)
    table = _parquet_table(files) if format == PARQUET else _text_table(files, format, header)
    options = _Options(provenance=provenance, drop_invalid=drop_invalid, salt=salt or b"")
    categories: dict[str, tuple[str, ...]] = {}
    if one_hot:
        layout = training_layout(table.columns, roles, {})
        if not drop_invalid:
            # No row will be skipped, so that the other columns need not be looked at yet.
            layout = replace(layout, features=(), label=None, subject=None)
        categories = table.opened(layout, options).categories(progress)
    return table.opened(training_layout(table.columns, roles, categories), options)


def open_features(
    files: Sequence[Path],
    format: str,
    feature_names: Sequence[str],
    *,
    drop_invalid: bool = False,
) -> RowSource:
    """Open files that hold at least the features named, as a stream of rows without labels.

    A file whose first line names the features is read by name, whatever its format and the order
    of its columns; other columns are not looked at; so are parquet files and idx files of images,
    which are known by their content, whatever format is said, and batches if cifar10 is. Without
    such a line a text file is read by position: in a published data set's format with or without
    the label; in the others only for data that had no header (features named c0, c1, ...), where a
    file of just the features holds them in order and any other one in the columns of those numbers.

    A feature `COLUMN=VALUE` that is no column itself is one category of COLUMN. Raises
    BadInputError where features are missing or a value is none of the categories, else as
    `open_source`.
    """
    _check_format(files, format)
    names = tuple(feature_names)
    provenance = _provenance(files, format, drop_invalid)
    if is_parquet(files[0]):
        heads = [ParquetFile.read(path) for path in files]
        return ParquetSource(
            [(head, _parquet_features(head, names)) for head in heads],
            provenance=provenance,
            drop_invalid=drop_invalid,
        )
    if is_idx(files[0]):
        pairs = images_alone(files)
        columns = image_columns(pairs[0].images).unlabelled
        cure = "give images of the size of those trained on"
        layout = features_layout(columns, names, str(files[0]), cure)
        return IdxSource(pairs, layout, provenance=provenance)
    if format == CIFAR10 and is_batch(files[0]):
        cure = f"the features are {listed(IMAGES.unlabelled)}"
        layout = features_layout(IMAGES.columns, names, str(files[0]), cure)
        return Cifar10Source(files, layout, provenance=provenance, drop_invalid=drop_invalid)
    options = _Options(provenance=provenance, drop_invalid=drop_invalid, salt=b"")
    return _text_source([_features_file(path, format, names) for path in files], format, options)


class _Options(TypedDict):
    provenance: dict[str, str | int | float]
    drop_invalid: bool
    salt: bytes


@dataclass(frozen=True, slots=True)
class _Table:
    """Files to train from, which all have the same columns."""

    columns: tuple[str, ...]
    opened: Callable[[Layout, _Options], ParquetSource | TableSource]


def _idx_source(
    files: Sequence[Path], roles: Roles, provenance: dict[str, str | int | float]
) -> IdxSource:
    """Images and labels to train from."""
    pairs = paired(files)
    published = image_columns(pairs[0].images)
    roles = published.roles(MNIST, roles)
    layout = training_layout(published.columns, roles, {})
    return IdxSource(pairs, layout, provenance=provenance | _told(roles))


def _parquet_table(files: Sequence[Path]) -> _Table:
    heads = [ParquetFile.read(path) for path in files]
    return _Table(
        _same_columns([(str(head.path), head.columns) for head in heads]),
        lambda layout, options: ParquetSource([(head, layout) for head in heads], **options),
    )


def _text_table(files: Sequence[Path], format: str, header: bool) -> _Table:
    return _Table(
        _same_columns([(f"{path}, line 1", _text_columns(path, format, header)) for path in files]),
        lambda layout, options: _text_source(
            [TableFile(path, layout, header) for path in files], format, options
        ),
    )


def _text_source(files: Sequence[TableFile], format: str, options: _Options) -> TableSource:
    """Text files as rows; formats with gaps have a source that knows them."""
    gaps = PUBLISHED[format].gaps if format in PUBLISHED else None
    if gaps is None:
        return TableSource(files, **options)
    return IncompleteSource(files, gaps, **options)


def _check_format(files: Sequence[Path], format: str) -> None:
    if format not in FORMATS:
        raise BadInputError(f"unknown format {format!r}; the formats are {', '.join(FORMATS)}")
    if format == SVMLIGHT:
        raise BadInputError(
            "svmlight files hold sparse rows, but rows with named columns are needed"
        )
    if not files:
        raise BadInputError("no file given; name at least one")


def _provenance(
    files: Sequence[Path], format: str, drop_invalid: bool
) -> dict[str, str | int | float]:
    names = ", ".join(path.name for path in files)
    return {"format": format, "files": names, "drop_invalid": int(drop_invalid)}


def _told(roles: Roles) -> dict[str, str | int | float]:
    """What the user said about the columns, for the provenance: names, never values."""
    told = {
        "label": roles.label if roles.average is None else roles.average.name,
        "drop": ", ".join(roles.drop),
        "subject": roles.subject,
        "one_hot": ", ".join(roles.one_hot),
    }
    return {role: names for role, names in told.items() if names}


def _same_columns(found: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """The columns that all files share, given what was found at each place."""
    first, columns = found[0]
    for place, others in found[1:]:
        if others != columns:
            raise BadInputError(
                f"{place}: other columns than {first} has; import files of different columns one "
                "by one, or give them the same columns in the same order"
            )
    return columns


def _text_columns(path: Path, format: str, header: bool) -> tuple[str, ...]:
    """The columns of a text file to train from, after a look at its first line."""
    fields = first_line(path)
    if format in PUBLISHED:
        columns = PUBLISHED[format].columns
        if len(fields) != len(columns):
            raise _unlike_format(path, format, len(fields), str(len(columns)))
        if PUBLISHED[format].header and tuple(fields) != columns:
            raise BadInputError(
                f"{path}, line 1: other columns than format {format} has, which are "
                f"{listed(columns)}; use --format csv for other files"
            )
        return columns
    return _names(path, fields) if header else tuple(f"c{i}" for i in range(len(fields)))


def _names(path: Path, fields: list[str]) -> tuple[str, ...]:
    """Check a header; a column without a name becomes unnamed_1, ... by its position."""
    # Plain integers may be names (years, pixels); other numbers are surely a row.
    if all(map(is_number, fields)) and not all(field.isdecimal() for field in fields):
        raise BadInputError(
            f"{path}, line 1: numbers instead of the columns' names; "
            "say --no-header if the file has no header"
        )
    names = tuple(field or f"unnamed_{i}" for i, field in enumerate(fields, 1))
    twice = duplicates(names)
    if twice:
        raise BadInputError(
            f"{path}, line 1: column names that occur twice: {listed(twice)}; rename them, "
            "or say --no-header if the file has no header"
        )
    return names


def _unlike_format(path: Path, format: str, found: int, expected: str) -> BadInputError:
    return BadInputError(
        f"{path}, line 1: {found} column{'' if found == 1 else 's'} found, but format {format} "
        f"has {expected}; use --format csv for other files"
    )


def _parquet_features(head: ParquetFile, names: tuple[str, ...]) -> Layout:
    return features_layout(
        head.columns, names, str(head.path), f"the columns are {listed(head.columns)}"
    )


def _features_file(path: Path, format: str, names: tuple[str, ...]) -> TableFile:
    """How to find the named features in one text file."""
    fields = first_line(path)
    header = _is_header(fields, names)
    if header:
        columns = _names(path, fields)
    elif format in PUBLISHED:
        columns = _published_positions(path, format, len(fields))
    else:
        columns = _csv_positions(names, len(fields))
    cure = "name the columns in the first line, in any order"
    return TableFile(path, features_layout(columns, names, f"{path}, line 1", cure), header)


def _is_header(fields: list[str], names: tuple[str, ...]) -> bool:
    """Whether a first line names columns: the features', or at least it holds no number."""
    found = set(fields)
    if all(column_of(name, found) is not None for name in names):
        return True
    # Where features are categories, a line of data may well hold no number.
    without_header = _numbered_columns(names) is not None and any("=" in name for name in names)
    return not without_header and not any(map(is_number, fields))


def _published_positions(path: Path, format: str, found: int) -> tuple[str, ...]:
    """The format's columns with or without the label, whichever the file has."""
    columns, unlabelled = PUBLISHED[format].columns, PUBLISHED[format].unlabelled
    for these in (columns, unlabelled):
        if found == len(these):
            return these
    expected = f"{len(columns)} (or {len(unlabelled)} without the label)"
    raise _unlike_format(path, format, found, expected)


def _csv_positions(names: tuple[str, ...], found: int) -> tuple[str, ...]:
    """Columns of a file without header: just the features', or numbered from c0."""
    columns = _numbered_columns(names)
    if columns is not None and len(columns) == found:
        return columns
    return tuple(f"c{i}" for i in range(found))


def _numbered_columns(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns that the features of data without header stand in; None for other data."""
    matches = [_NUMBERED.fullmatch(name) for name in names]
    columns = dict.fromkeys(match[1] for match in matches if match is not None)
    return tuple(columns) if all(matches) else None
