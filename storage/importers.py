"""The text formats that rows are imported from, and how their files are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BadInputError
from .rows import RowSource
from .tabular import TableFile, TableSource, first_line
from .tabular_diagnosis import Layout, is_number

CSV = "csv"
"""Any table of numbers; the first line names the columns unless it is said to have no header."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A published data set's format: no header, the same columns in every file."""

    columns: tuple[str, ...]
    label: str
    label_values: tuple[float, ...]


_HIGGS = _Fixed(
    columns=(
        "label",
        *("lepton_pT", "lepton_eta", "lepton_phi"),
        *("missing_energy_magnitude", "missing_energy_phi"),
        *(f"jet_{i}_{what}" for i in range(1, 5) for what in ("pt", "eta", "phi", "btag")),
        *("m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb"),
    ),
    label="label",
    label_values=(0.0, 1.0),
)
"""UCI's HIGGS.csv: 1 = signal, 0 = background."""

_COVTYPE = _Fixed(
    columns=(
        *("Elevation", "Aspect", "Slope"),
        *("Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology"),
        "Horizontal_Distance_To_Roadways",
        *("Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm"),
        "Horizontal_Distance_To_Fire_Points",
        *(f"Wilderness_Area{i}" for i in range(1, 5)),
        *(f"Soil_Type{i}" for i in range(1, 41)),
        "Cover_Type",
    ),
    label="Cover_Type",
    label_values=tuple(float(i) for i in range(1, 8)),
)
"""UCI's covtype.data: seven kinds of forest."""

_FIXED = {"higgs": _HIGGS, "covtype": _COVTYPE}
FORMATS: tuple[str, ...] = (*_FIXED, CSV)


def open_source(
    files: Sequence[Path],
    format: str,
    *,
    label: str | None = None,
    drop: Sequence[str] = (),
    header: bool = True,
    drop_invalid: bool = False,
) -> RowSource:
    """Open files as one stream of rows: features and, where there is one, a label.

    Parameters
    ----------
    files : read in this order; all must have the same columns. Plain or gzip.
    format : one of FORMATS.
    label : name of the label column (csv; the other formats know theirs).
    drop : names of columns to leave out.
    header : whether the first line names the columns (csv); if not, they are c0, c1, ...
    drop_invalid : skip lines that cannot be read and count them, instead of raising. The first
        line must have the right number of columns all the same, as it tells what the file is.

    Raises BadInputError for a wrong argument, file or header, and MissingError for a missing file,
    before anything else is read.
    """
    _check_format(files, format)
    if format == CSV:
        columns = _csv_columns(files, header)
    else:
        columns = _fixed_columns(files, format, label)
        label, header = _FIXED[format].label, False
    layout = _training_layout(columns, label, drop, format)
    provenance = _provenance(files, format) | {"drop_invalid": int(drop_invalid)}
    if label is not None:
        provenance["label"] = label
    if drop:
        provenance["drop"] = ", ".join(drop)
    if format == CSV:
        provenance["header"] = int(header)
    return TableSource(
        [TableFile(path, layout, header) for path in files],
        provenance=provenance,
        drop_invalid=drop_invalid,
    )


def open_features(
    files: Sequence[Path],
    format: str,
    feature_names: Sequence[str],
    *,
    drop_invalid: bool = False,
) -> RowSource:
    """Open files that hold at least the features named, as a stream of rows without labels.

    A file whose first line names the features is read by name, whatever its format and the order
    of its columns; other columns are not looked at. Without such a line a file is read by
    position: in format higgs or covtype with or without the label; in format csv only for data
    that had no header (features named c0, c1, ...), where a file of just the features holds them
    in order and any other one in the columns of those numbers.

    Raises BadInputError where features are missing, else as `open_source`.
    """
    _check_format(files, format)
    names = tuple(feature_names)
    return TableSource(
        [_features_file(path, format, names) for path in files],
        provenance=_provenance(files, format) | {"drop_invalid": int(drop_invalid)},
        drop_invalid=drop_invalid,
    )


def _check_format(files: Sequence[Path], format: str) -> None:
    if format not in FORMATS:
        raise BadInputError(f"unknown format {format!r}; the formats are {', '.join(FORMATS)}")
    if not files:
        raise BadInputError("no file given; name at least one")


def _provenance(files: Sequence[Path], format: str) -> dict[str, str | int | float]:
    return {"format": format, "files": ", ".join(path.name for path in files)}


def _csv_columns(files: Sequence[Path], header: bool) -> tuple[str, ...]:
    """Names of the columns, which all files must share."""
    read = _header if header else _numbered_columns
    columns = read(files[0])
    for path in files[1:]:
        if read(path) != columns:
            raise BadInputError(
                f"{path}, line 1: other columns than {files[0]} has; import files of different "
                "columns one by one, or give them the same header"
            )
    return columns


def _header(path: Path) -> tuple[str, ...]:
    return _names(path, first_line(path))


def _names(path: Path, fields: list[str]) -> tuple[str, ...]:
    """Check a header; a column without a name becomes unnamed_1, ... by its position."""
    # Plain integers may be names (years, pixels); other numbers are surely a row.
    if all(map(is_number, fields)) and not all(field.isdecimal() for field in fields):
        raise BadInputError(
            f"{path}, line 1: numbers instead of the columns' names; "
            "say --no-header if the file has no header"
        )
    names = tuple(field or f"unnamed_{i}" for i, field in enumerate(fields, 1))
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise BadInputError(
            f"{path}, line 1: column names that occur twice: {_listed(twice)}; rename them, "
            "or say --no-header if the file has no header"
        )
    return names


def _numbered_columns(path: Path) -> tuple[str, ...]:
    return tuple(f"c{i}" for i in range(len(first_line(path))))


def _fixed_columns(files: Sequence[Path], format: str, label: str | None) -> tuple[str, ...]:
    """The format's columns, after a look at the first line of each file."""
    fixed = _FIXED[format]
    if label not in (None, fixed.label):
        raise BadInputError(
            f"the label of {format} is {fixed.label!r}, not {label!r}; "
            "leave --label out, or use --format csv --no-header"
        )
    for path in files:
        found = len(first_line(path))
        if found != len(fixed.columns):
            raise _unlike_format(path, format, found, str(len(fixed.columns)))
    return fixed.columns


def _unlike_format(path: Path, format: str, found: int, expected: str) -> BadInputError:
    return BadInputError(
        f"{path}, line 1: {found} column{'' if found == 1 else 's'} found, but format {format} "
        f"has {expected}; use --format csv for other files"
    )


def _training_layout(
    columns: tuple[str, ...], label: str | None, drop: Sequence[str], format: str
) -> Layout:
    """Which columns become features and which one the label."""
    unknown = [name for name in (*drop, *([] if label is None else [label])) if name not in columns]
    if unknown:
        raise BadInputError(f"no column {_listed(unknown)}; the columns are {_listed(columns)}")
    if label in drop:
        raise BadInputError(f"column {label!r} is the label and cannot be dropped as well")
    features = tuple(i for i, name in enumerate(columns) if name != label and name not in drop)
    if not features:
        raise BadInputError("no feature column is left; drop fewer columns")
    allowed = _FIXED[format].label_values if format in _FIXED else ()
    return Layout(columns, features, None if label is None else columns.index(label), allowed)


def _features_file(path: Path, format: str, names: tuple[str, ...]) -> TableFile:
    """How to find the named features in one file."""
    fields = first_line(path)
    header = set(names) <= set(fields) or not any(map(is_number, fields))
    if header:
        columns = _names(path, fields)
    elif format in _FIXED:
        columns = _fixed_positions(path, format, len(fields))
    else:
        columns = _csv_positions(names, len(fields))
    missing = [name for name in names if name not in columns]
    if missing:
        raise BadInputError(
            f"{path}, line 1: columns missing: {_listed(missing)}; "
            "name the columns in the first line, in any order"
        )
    features = tuple(columns.index(name) for name in names)
    return TableFile(path, Layout(columns, features, label=None, droppable=False), header)


def _fixed_positions(path: Path, format: str, found: int) -> tuple[str, ...]:
    """The format's columns with or without the label, whichever the file has."""
    fixed = _FIXED[format]
    unlabelled = tuple(name for name in fixed.columns if name != fixed.label)
    for columns in (fixed.columns, unlabelled):
        if found == len(columns):
            return columns
    total = len(fixed.columns)
    raise _unlike_format(path, format, found, f"{total} (or {total - 1} without the label)")


def _csv_positions(names: tuple[str, ...], found: int) -> tuple[str, ...]:
    """Columns of a file without header: just the features, or numbered from c0."""
    numbered = tuple(f"c{i}" for i in range(found))
    just_features = found == len(names) and all(
        name[:1] == "c" and name[1:].isdecimal() for name in names
    )
    return names if just_features else numbered


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
