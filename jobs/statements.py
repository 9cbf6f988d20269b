"""What a receipt says in words: what was done, and what is outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STATEMENT = (
    "All rows of this unit were deleted from the data set and from every model listed; each model "
    "is bit for bit the one that training without them gives, and the rows' bytes were overwritten."
)
NO_MODEL = (
    "All rows of this unit were deleted from the data set, and their bytes were overwritten. When that "
    "was done, the workspace had no model trained on it."
)
APPROXIMATE = (
    "All rows of this unit were deleted from the data set, and their bytes were overwritten. They "
    "were deleted from every model listed: a model marked exact is bit for bit the one that training "
    "without them gives; a model marked approximate was updated by the method and the kind of "
    "provenance named. "
    "Its distance from a retrain on the same mini-batches is estimated, to within ten times, and it "
    "still depends on the deleted rows through the residual of the linearisation and through the "
    "standardisation of its first fit."
)
FAILED_TOO = (
    "A model marked failed is none any more: training without the rows diverges, so it has no "
    "parameters and nothing of them."
)
EXACT_OR_FAILED = (
    "All rows of this unit were deleted from the data set, and their bytes were overwritten. They "
    "were deleted from every model listed: a model marked exact is bit for bit the one that training "
    "without them gives."
)
RETIRED_TOO = (
    "Models named as retired had been trained on them and were removed, with all their versions."
)
RETIRED = (
    "All rows of this unit were deleted from the data set, and their bytes were overwritten. "
    + RETIRED_TOO
)
COPIES_LIMIT = (
    "This receipt says what this program did with one workspace. Copies elsewhere are outside it: "
    "backups, exports, the files that were imported, models and predictions that were handed out."
)
BLOCKS_LIMIT = (
    "Freed blocks of the disk, of its controller, and of a copy-on-write file system or snapshot may "
    "still hold what was overwritten or removed."
)
HASH_LIMIT = (
    "The unit is named by a keyed hash; whoever has the workspace has the key, and can try ids."
)
APPROXIMATE_LIMIT = (
    "An approximate model still depends on the deleted rows, through the residual of its "
    "linearisation; training it anew removes that."
)
STANDARD_LIMIT = (
    "The standardisation and the classes of a regression are those of its first fit, which keep a "
    "trace of rows deleted since; so does the basis of projected provenance, until a retrain."
)
UNSIGNED_LIMIT = (
    "This receipt is not signed: the workspace had no key when it was issued. Nobody can tell "
    "whether it was changed since."
)
_WITHOUT_STANDARD = ("sparse-logistic",)
"""Algorithms with a loss whose features are used as they are."""


def statement(models: Sequence[dict[str, Any]], retired: Sequence[dict[str, Any]] = ()) -> str:
    """Return what a receipt says of the models that saw a unit: more where one is approximate or failed.

    retired: those that were given up instead of updated.
    """
    if not models:
        return RETIRED if retired else NO_MODEL
    approximate = any(m["exactness"] == "approximate" for m in models)
    if any(m["action"] == "failed" for m in models):
        found = f"{APPROXIMATE if approximate else EXACT_OR_FAILED} {FAILED_TOO}"
    else:
        found = APPROXIMATE if approximate else STATEMENT
    return f"{found} {RETIRED_TOO}" if retired else found


def limits(models: Sequence[dict[str, Any]], signed: bool) -> list[str]:
    """Return what is outside a receipt that speaks of these models."""
    found = [COPIES_LIMIT, BLOCKS_LIMIT, HASH_LIMIT]
    if any(m["exactness"] == "approximate" for m in models):
        found.append(APPROXIMATE_LIMIT)
    if any("kind" in m and m["algorithm"] not in _WITHOUT_STANDARD for m in models):
        found.append(STANDARD_LIMIT)
    return found if signed else [*found, UNSIGNED_LIMIT]
