"""What users give, checked before anything is computed: hyper-parameters, rows, unit ids."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import quantized
from .fixedpoint import MAX_FEATURES
from .quantized import Settings

DEFAULT_CLUSTERS = 8
DEFAULT_GAMMA = 0.2
DEFAULT_MAX_ITER = 10


class InvalidParameterError(ValueError, TypeError):
    """An argument is of a kind that can't be used."""


def resolve_settings(
    rows: int,
    features: int,
    *,
    n_clusters: int = DEFAULT_CLUSTERS,
    epsilon: float | None = None,
    gamma: float = DEFAULT_GAMMA,
    max_iter: int = DEFAULT_MAX_ITER,
    random_state: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Settings:
    """Check hyper-parameters against the data's shape and resolve them for good.

    epsilon None: the rule of thumb 2^(-floor(log10 n) - 3). Raises ValueError with what was found.
    """
    n_clusters = whole("n_clusters", n_clusters)
    max_iter = whole("max_iter", max_iter)
    random_state = whole("random_state", random_state)
    if n_clusters < 1:
        raise ValueError(f"n_clusters is {n_clusters}; it must be at least 1")
    if n_clusters > rows:
        raise ValueError(f"n_clusters is {n_clusters}, but there are only {rows} rows")
    if features > MAX_FEATURES or features < 1:
        raise ValueError(f"{features} features; there may be 1 to {MAX_FEATURES}")
    epsilon = quantized.rule_of_thumb_epsilon(rows) if epsilon is None else real("epsilon", epsilon)
    gamma = real("gamma", gamma)
    if not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"epsilon is {epsilon}; it must lie in [0, 1], the scaled features' range")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}; it must lie in [0, 1]")
    if max_iter < 0:
        raise ValueError(f"max_iter is {max_iter}; it must not be negative")
    if bounds is not None:
        with np.errstate(over="ignore"):
            lower, upper = (float(np.float32(b)) for b in bounds)
        if not (np.isfinite([lower, upper]).all() and lower < upper):
            raise ValueError(f"bounds are {bounds}; two finite numbers are needed, the lower first")
        bounds = lower, upper
    return Settings(
        n_clusters,
        quantized.lattice_spacing(epsilon),
        Fraction(repr(gamma)),
        max_iter,
        random_state,
        bounds,
    )


def whole(name: str, value: Any) -> int:
    """A whole number, or ValueError naming the parameter."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise InvalidParameterError(f"{name} is {value!r}; a whole number is needed")
    return int(value)


def real(name: str, value: Any) -> float:
    """A number, or ValueError naming the parameter."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidParameterError(f"{name} is {value!r}; a number is needed")
    return float(value)


def checked_rows(X: ArrayLike, features: int | None) -> NDArray[np.float32]:
    """X as a fresh (n, features) float32 array of finite values, or ValueError saying where not."""
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise ValueError("X has masked values: missing values can't be used")
    wide: NDArray[Any] = np.asarray(X)
    if wide.dtype.kind not in "biuf":
        raise ValueError(f"X holds {wide.dtype}; numbers are needed")
    if wide.ndim != 2:
        raise ValueError(f"X has {wide.ndim} dimensions; rows by features are needed: 2")
    if features is not None and wide.shape[1] != features:
        raise ValueError(f"X has {wide.shape[1]} features; the model has {features}")
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.array(wide, dtype=np.float32, order="C", copy=True)
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(f"X[{row}, {column}] is {wide[row, column]}: not finite in float32")
    return x


def listed(units: Any) -> NDArray[Any]:
    """One unit, an array or any iterable of units, as an array."""
    if isinstance(units, int | np.integer | np.ndarray):
        return np.atleast_1d(np.asarray(units))
    return np.asarray(list(units))


def checked_units(units: ArrayLike, rows: int | None) -> NDArray[np.int64]:
    """Unit ids as a fresh int64 array, or ValueError."""
    ids = np.asarray(units)
    if ids.ndim != 1 or (rows is not None and len(ids) != rows):
        expected = "one list" if rows is None else f"{rows}, one a row"
        raise ValueError(f"units have shape {ids.shape}; expected {expected}")
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"units are {ids.dtype}; whole numbers are needed")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > np.iinfo(np.int64).max):
        raise ValueError(f"unit ids must lie in [0, 2^63); found {ids.min()} to {ids.max()}")
    return np.array(ids, dtype=np.int64, copy=True)
