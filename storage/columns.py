"""The columns of some rows, read from any format, become features, labels and coded texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .cells import subject_units
from .layout import Layout, OneHot

FLOAT32_END = 2.0**128 - 2.0**103
"""The smallest value that rounds to infinity in float32."""
_ROWS_IN_CACHE = 2048
"""Columns are interleaved in pieces of so many rows, so that each piece is written from cache."""


@dataclass(frozen=True, slots=True)
class Coded:
    """The texts of some rows, each different one kept once."""

    codes: NDArray[np.int32]
    """(n,) each row's place in `texts`."""
    texts: tuple[str | None, ...]
    """Stripped of spaces; None where there is no text, or none in UTF-8."""

    @classmethod
    def of(cls, column: pa.Array) -> Self:
        """From a binary column, dictionary-encoded or not."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        texts = tuple(_text(value) for value in column.dictionary.to_pylist())
        codes = column.indices.fill_null(len(texts)).to_numpy()
        return cls(codes, (*texts, None))

    def only(self, chosen: NDArray[np.bool_]) -> Coded:
        """Return the rows chosen."""
        return Coded(self.codes[chosen], self.texts)

    def each(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (n,) each row's value, given the value of each text."""
        return values[self.codes]

    def present(self) -> set[str]:
        """Return the different texts that occur."""
        found = (self.texts[code] for code in np.unique(self.codes))
        return {text for text in found if text is not None}

    def units(self, salt: bytes) -> NDArray[np.int64]:
        """Return (n,) the unit ids of rows whose subjects these texts are, hashing each once."""
        return self.each(subject_units([text or "" for text in self.texts], salt))


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode().strip() or None
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Values:
    """What a layout says is to be read of n rows."""

    x: NDArray[np.float32]
    """(n, features), C-contiguous; negative zeros have become positive."""
    y: NDArray[np.float64] | None
    """(n,) labels, where the layout has one."""
    texts: Mapping[int, Coded]
    """The layout's columns of text, by position."""
    sound: NDArray[np.bool_]
    """(n,) whether all values of a row can be used."""

    def only(self, chosen: NDArray[np.bool_]) -> Values:
        """Return the rows chosen."""
        return Values(
            self.x[chosen],
            None if self.y is None else self.y[chosen],
            {i: coded.only(chosen) for i, coded in self.texts.items()},
            self.sound[chosen],
        )


def assemble(
    numbers: Mapping[int, NDArray[Any]], texts: Mapping[int, Coded], layout: Layout
) -> Values:
    """Bring columns of n values, by position, into a layout's order, and judge each row.

    A number must be finite in 32 bits (a missing one is NaN), a label one of those allowed, a text
    must be there and be one of its column's categories, where these are known.
    """
    rows = len(next(iter((*numbers.values(), *(coded.codes for coded in texts.values())))))
    x = _features(rows, numbers, layout)
    sound: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(x), axis=1)
    y = None
    if layout.label is not None:
        y = numbers[layout.label].astype(np.float64, copy=False) + 0.0
        sound &= np.abs(y) < FLOAT32_END
        if layout.label_values:
            sound &= np.isin(y, layout.label_values)
    for coded in texts.values():
        sound &= coded.each(np.array([text is not None for text in coded.texts]))
    for one in layout.one_hot:
        if one.categories:
            sound &= _encode(texts[one.column], one, layout, x)
    return Values(x, y, texts, sound)


def _features(
    rows: int, numbers: Mapping[int, NDArray[Any]], layout: Layout
) -> NDArray[np.float32]:
    """The (n, features) block, with zeros in place of the categories' features."""
    columns = [(j, numbers[i]) for j, i in enumerate(layout.features) if i in numbers]
    x = (np.zeros if layout.one_hot else np.empty)((rows, len(layout.features)), np.float32)
    with np.errstate(over="ignore"):
        for start in range(0, rows, _ROWS_IN_CACHE):
            part = x[start : start + _ROWS_IN_CACHE]
            for j, column in columns:
                part[:, j] = column[start : start + _ROWS_IN_CACHE]
            part += 0.0
    return x


def _encode(coded: Coded, one: OneHot, layout: Layout, x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Write ones into the features of the rows' categories; returns (n,) whether each has one."""
    places = dict(zip(one.categories, _places(one, layout), strict=True))
    place = coded.each(np.array([places.get(text or "", -1) for text in coded.texts]))
    known: NDArray[np.bool_] = place >= 0
    x[np.flatnonzero(known), place[known]] = 1.0
    return known


def _places(one: OneHot, layout: Layout) -> list[int]:
    return [j for j, i in enumerate(layout.features) if i == one.column]
