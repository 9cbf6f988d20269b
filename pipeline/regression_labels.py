"""Labels as users give them, checked and turned into what the losses want."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def checked_labels(y: ArrayLike, rows: int) -> NDArray[Any]:
    """Return y as an array (rows,), or ValueError saying what it is instead."""
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise ValueError(f"y has shape {labels.shape}; {rows} labels are needed, one a row")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.argmin(np.isfinite(labels)))
        raise ValueError(f"y[{row}] is {labels[row]}: not finite")
    return labels


def real_labels(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return labels (n,) as float64; ValueError unless they are finite numbers."""
    if labels.dtype.kind not in "biuf":
        raise ValueError(f"y holds {labels.dtype}; numbers are needed")
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
