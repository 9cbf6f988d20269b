"""Which columns of a file are features, label, subject or categories: the same for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .errors import BadInputError

_LISTED = 40
"""A message names so many columns at most."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """A column of categories, each of which is a feature of zeros and ones."""

    column: int
    """Position of the column."""
    categories: tuple[str, ...] = ()
    """In the order of their features; empty: not known yet, any text will do."""


@dataclass(frozen=True, slots=True)
class Average:
    """A label that is no column itself: the mean of columns of positive numbers, or its log."""

    name: str
    columns: tuple[str, ...]
    """Names of the columns; none of them is a feature."""
    logarithm: bool
    """Whether the label is the natural logarithm of the mean."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one file and which of them are read."""

    columns: tuple[str, ...]
    """Names of all columns in the file's order."""
    features: tuple[int, ...]
    """Position of each feature's column, in the order in which the features are handed on; a
    one-hot column stands there once for each of its categories."""
    label: int | None
    """Position of the label column; None: there is no label or it is not read."""
    label_values: tuple[float, ...] = ()
    """The labels allowed; empty: any finite number."""
    droppable: bool = True
    """Whether the reader's user may leave a column out, so that messages can advise it."""
    subject: int | None = None
    """Position of the column that says which data subject a row belongs to; None: there is none."""
    one_hot: tuple[OneHot, ...] = ()
    average: Average | None = None
    """The label where it is no column; `label` is None then."""

    @property
    def label_name(self) -> str | None:
        """The label's name; None where there is no label."""
        if self.average is not None:
            return self.average.name
        return None if self.label is None else self.columns[self.label]

    @property
    def averaged(self) -> tuple[int, ...]:
        """Positions of the columns whose mean is the label."""
        return () if self.average is None else tuple(map(self.columns.index, self.average.columns))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Positions of the columns that are read as numbers, the label or its columns last."""
        encoded = {one.column for one in self.one_hot}
        features = tuple(i for i in self.features if i not in encoded)
        return (*features, *self.averaged, *(() if self.label is None else (self.label,)))

    @property
    def texts(self) -> tuple[int, ...]:
        """Positions of the columns that are read as text, the subject last."""
        encoded = tuple(one.column for one in self.one_hot)
        return encoded if self.subject is None else (*encoded, self.subject)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features' names; a category's is `COLUMN=VALUE`."""
        values = {one.column: iter(one.categories) for one in self.one_hot}
        return tuple(
            f"{self.columns[i]}={next(values[i])}" if i in values else self.columns[i]
            for i in self.features
        )


@dataclass(frozen=True, slots=True)
class Roles:
    """What the user wants of some columns, by name; all others are features."""

    label: str | None = None
    drop: tuple[str, ...] = ()
    subject: str | None = None
    one_hot: tuple[str, ...] = ()
    label_values: tuple[float, ...] = ()
    """The labels allowed; empty: any finite number."""
    average: Average | None = None
    """The label where it is no column; `label` is None then."""

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Names of the columns that make the label."""
        if self.average is not None:
            return self.average.columns
        return () if self.label is None else (self.label,)

    def check(self, columns: Collection[str]) -> None:
        """Raise BadInputError where a column is not there or is to be two things at once."""
        named = [
            *((name, "dropped") for name in self.drop),
            *((name, "the label") for name in self.label_columns),
            *((name, "the subject") for name in (self.subject,) if name is not None),
            *((name, "one-hot") for name in self.one_hot),
        ]
        unknown = [name for name, _ in named if name not in columns]
        if unknown:
            raise BadInputError(f"no column {listed(unknown)}; the columns are {listed(columns)}")
        taken: dict[str, str] = {}
        for name, role in reversed(named):
            if taken.setdefault(name, role) != role:
                raise BadInputError(
                    f"column {name!r} is {taken[name]} and cannot be {role} as well"
                )


def training_layout(
    columns: tuple[str, ...], roles: Roles, categories: Mapping[str, Sequence[str]]
) -> Layout:
    """Return which columns become features, in the file's order, and which ones something else.

    categories: of each one-hot column; empty where they are still to be found, and then the column
    gives no feature yet. Raises BadInputError for roles that do not fit the columns.
    """
    roles.check(columns)
    others = {*roles.label_columns, roles.subject, *roles.drop}
    if others.issuperset(columns):
        raise BadInputError("no feature column is left; drop fewer columns")
    layout = Layout(
        columns,
        features=tuple(
            i
            for i, name in enumerate(columns)
            if name not in others
            for _ in (categories.get(name, ()) if name in roles.one_hot else (name,))
        ),
        label=None if roles.label is None else columns.index(roles.label),
        label_values=roles.label_values,
        subject=None if roles.subject is None else columns.index(roles.subject),
        one_hot=tuple(
            OneHot(i, tuple(categories.get(name, ())))
            for i, name in enumerate(columns)
            if name in roles.one_hot
        ),
        average=roles.average,
    )
    twice = duplicates(layout.feature_names)
    if twice:
        raise BadInputError(
            f"features that one-hot names like another column: {listed(twice)}; "
            "rename or drop one of them"
        )
    return layout


def features_layout(
    columns: tuple[str, ...], names: Sequence[str], place: str, cure: str
) -> Layout:
    """Return where a file holds the features named.

    Where there is no column of a feature's name `COLUMN=VALUE`, it is a category of COLUMN. Raises
    BadInputError that begins with `place` and ends with `cure` where features are missing.
    """
    index = {name: i for i, name in enumerate(columns)}
    features: list[int] = []
    missing: list[str] = []
    categories: dict[int, list[str]] = {}
    alone = index.keys() - set(names)
    for name in names:
        column = name if name in index else column_of(name, alone)
        if column is None:
            missing.append(name)
            continue
        features.append(index[column])
        if column != name:
            categories.setdefault(index[column], []).append(name[len(column) + 1 :])
    if missing:
        raise BadInputError(f"{place}: columns missing: {listed(missing)}; {cure}")
    one_hot = tuple(OneHot(i, tuple(values)) for i, values in categories.items())
    return Layout(columns, tuple(features), label=None, droppable=False, one_hot=one_hot)


def column_of(name: str, columns: Collection[str]) -> str | None:
    """Return the column that gives a feature: its name, or that of a category's column.

    A feature `COLUMN=VALUE` belongs to the longest COLUMN that fits; None if there is none.
    """
    ends = (i for i in range(len(name) - 1, -1, -1) if name[i] == "=")
    return next((part for part in (name, *(name[:i] for i in ends)) if part in columns), None)


def duplicates(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def listed(names: Collection[str]) -> str:
    """Return the names quoted and separated by commas, the first ones if there are very many."""
    shown = [repr(name) for name in names]
    more = len(shown) - _LISTED
    return ", ".join(shown[:_LISTED]) + (f" and {more} more" if more > 0 else "")
