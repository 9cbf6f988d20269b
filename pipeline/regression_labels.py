"""Labels as users give them, checked and turned into what the losses want."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST = float(np.finfo(np.float32).max)
"""Of the numbers that a linear model takes, by magnitude: what stored labels hold, too."""


def checked_labels(y: ArrayLike, rows: int) -> NDArray[Any]:
    """Return y as an array (rows,), or ValueError saying what it is instead."""
    if isinstance(y, np.ma.MaskedArray) and np.ma.is_masked(y):
        raise ValueError("y has masked values: missing labels can't be used")
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise ValueError(f"y has shape {labels.shape}; {rows} labels are needed, one a row")
    if isinstance(labels.dtype, np.dtypes.StringDType):
        # Only as objects do they tell what is missing.
        labels = labels.astype(object)
    # What is missing differs from itself, whatever its type.
    unfit = ~np.isfinite(labels) if labels.dtype.kind in "fc" else labels != labels  # noqa: PLR0124
    if np.any(unfit):
        row = int(np.argmax(unfit))
        raise ValueError(f"y[{row}] is {labels[row]}: not finite")
    return labels


def scored_labels(y: ArrayLike, rows: int) -> NDArray[Any]:
    """Return y as ``checked_labels``; ValueError where there is none to compare with."""
    if not rows:
        raise ValueError("X has no row; at least one is needed for a score")
    return checked_labels(y, rows)


def real_labels(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return labels (n,) as float64; ValueError unless they are numbers of float32's range."""
    if labels.dtype.kind not in "biuf":
        raise ValueError(f"y holds {labels.dtype}; numbers are needed")
    # No float16 holds the bound.
    wide = labels if labels.dtype.itemsize > 8 else labels.astype(np.float64)
    large = np.abs(wide) > LARGEST
    if large.any():
        row = int(np.argmax(large))
        raise ValueError(
            f"y[{row}] is {labels[row]}: beyond {LARGEST:.3g}, the most that float32 holds; rescale y"
        )
    return labels.astype(np.float64)


def class_numbers(labels: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return each label's class number (n,) and the sorted classes (k,); ValueError for one alone."""
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"y holds labels that have no common order: {error}") from None
    if len(classes) < 2:
        raise ValueError(f"y has the one class {classes.tolist()[0]!r}; at least 2 are needed")
    return numbers, classes
