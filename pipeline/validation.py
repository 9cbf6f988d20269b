"""What users give, checked before anything is computed: hyper-parameters, rows, unit ids."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import quantized
from .divided import MAX_LEAVES, DividedSettings, rule_of_thumb_leaves
from .fixedpoint import MAX_FEATURES
from .quantized import Settings

DEFAULT_CLUSTERS = 8
DEFAULT_GAMMA = 0.2
DEFAULT_MAX_ITER = 10
LABELS = "labels"
PROVENANCES = (LABELS, "none")
"""What is kept in memory for deletions: every row's label and margin at every step, or nothing."""
GREATEST_UNIT = (1 << 63) - 1
MOST_STEPS = (1 << 31) - 1


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
    if not 0 <= max_iter <= MOST_STEPS:
        raise ValueError(f"max_iter is {max_iter}; it must lie in [0, {MOST_STEPS}]")
    if bounds is not None:
        if isinstance(bounds, str | bytes) or not isinstance(bounds, Iterable):
            raise InvalidParameterError(f"bounds are {bounds!r}; give two numbers, the lower first")
        ends = [real("an end of bounds", end) for end in bounds]
        if len(ends) != 2:
            raise ValueError(f"bounds are {bounds!r}; two numbers are needed, the lower first")
        with np.errstate(over="ignore"):
            lower, upper = (float(np.float32(end)) for end in ends)
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


ROOTS = ("unweighted", "weighted")
"""How pooled centroids count at the nodes of DC-k-means."""


def resolve_divided(
    rows: int,
    features: int,
    *,
    n_clusters: int = DEFAULT_CLUSTERS,
    n_leaves: int | None = None,
    max_iter: int = DEFAULT_MAX_ITER,
    random_state: int = 0,
    root: str = ROOTS[0],
    branching: Iterable[int] | None = None,
    bounds: tuple[float, float] | None = None,
) -> DividedSettings:
    """Check DC-k-means' hyper-parameters against the data's shape and resolve them for good.

    n_leaves None: branching's product, or else the rule of thumb, the power of two near n^0.3.
    Raises ValueError with what was found.
    """
    plain = resolve_settings(
        rows,
        features,
        n_clusters=n_clusters,
        epsilon=0.0,
        gamma=0.0,
        max_iter=max_iter,
        random_state=random_state,
        bounds=bounds,
    )
    if root not in ROOTS:
        raise ValueError(f"root is {root!r}; it must be {' or '.join(ROOTS)}")
    if n_leaves is not None:
        n_leaves = _power_of_two("n_leaves", n_leaves)
    tree: tuple[int, ...]
    if branching is None:
        tree = (rule_of_thumb_leaves(rows) if n_leaves is None else n_leaves,)
    else:
        if isinstance(branching, str | bytes) or not isinstance(branching, Iterable):
            raise InvalidParameterError(f"branching is {branching!r}; give numbers, e.g. [8, 8]")
        tree = tuple(_power_of_two("a number in branching", width) for width in branching)
    if not tree:
        raise ValueError("branching is empty; give the children of a node at each depth")
    if n_leaves is not None and prod(tree) != n_leaves:
        raise ValueError(
            f"n_leaves is {n_leaves}, but branching {list(tree)} makes {prod(tree)} leaves: "
            "leave n_leaves out"
        )
    if prod(tree) > MAX_LEAVES:
        raise ValueError(f"{prod(tree)} leaves; there may be {MAX_LEAVES} at most")
    return DividedSettings(plain, tree, root == "weighted")


def _power_of_two(name: str, value: Any) -> int:
    number = whole(name, value)
    if number < 1 or number & (number - 1):
        raise ValueError(f"{name} is {number}; a power of two is needed, e.g. 8, 16 or 32")
    return number


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
    if not isinstance(units, Iterable):
        raise InvalidParameterError(f"units are {units!r}; a whole number or several are needed")
    return np.asarray(list(units))


def asked_units(units: int | Iterable[int]) -> NDArray[np.int64]:
    """Unit ids that are to be deleted, ascending and different, or ValueError."""
    if type(units) is int and 0 <= units <= GREATEST_UNIT:
        # What is below takes longer than the deletion of one row.
        return np.array([units], np.int64)
    if isinstance(units, str | bytes):
        raise InvalidParameterError("units are text; whole numbers are needed")
    asked = checked_units(listed(units), None)
    return np.unique(asked) if len(asked) != 1 else asked


def checked_units(units: ArrayLike, rows: int | None) -> NDArray[np.int64]:
    """Unit ids as a fresh int64 array, or ValueError."""
    ids = np.asarray(units)
    if ids.ndim != 1 or (rows is not None and len(ids) != rows):
        expected = "one list" if rows is None else f"{rows}, one a row"
        raise ValueError(f"units have shape {ids.shape}; expected {expected}")
    # NumPy has no type for whole numbers beyond 2^64.
    large = ids.dtype == object and all(isinstance(unit, int) for unit in ids.tolist())
    if ids.size and not (large or np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"units are {ids.dtype}; whole numbers are needed")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > GREATEST_UNIT):
        raise ValueError(f"unit ids must lie in [0, 2^63); found {ids.min()} to {ids.max()}")
    return np.array(ids, dtype=np.int64, copy=True)


def checked_provenance(provenance: str) -> str:
    """Return what is to be kept for deletions; InvalidParameterError for a kind that there is not."""
    if provenance not in PROVENANCES:
        raise InvalidParameterError(f"provenance is {provenance!r}; it must be labels or none")
    return provenance


def checked_hashes(hashes: ArrayLike, units: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hashes of rows' units as uint64, or ValueError."""
    found = np.asarray(hashes)
    if found.shape != units.shape or found.dtype != np.uint64:
        raise ValueError(
            f"hashes are {found.dtype} of shape {found.shape}; uint64 of {units.shape} is needed"
        )
    _, first, inverse = np.unique(units, return_index=True, return_inverse=True)
    if not np.array_equal(found, found[first][inverse]):
        raise ValueError("rows of one unit have different hashes: a unit has one place")
    return found
