"""Where the rows of sparse data sets come from: svmlight files, or a generator of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..storage.rcv1_like import Rcv1Like
from ..storage.sparse_rows import SparseSource
from ..storage.svmlight import SVMLIGHT, SvmlightSource
from .errors import UsageError
from .input_files import input_files

SPARSE_GENERATORS: dict[str, Callable[[int, int], SparseSource]] = {"rcv1": Rcv1Like}
_UNFIT = (
    *("label", "subject", "one_hot", "drop", "random_features"),
    *("features", "clusters", "deviation"),
)
"""What is asked for in terms of named columns, or of other generators."""


def is_sparse(asked: dict[str, Any]) -> bool:
    """Whether an import or generation job asks for a sparse data set."""
    return asked.get("format") == SVMLIGHT or asked.get("like") in SPARSE_GENERATORS


def open_sparse(asked: dict[str, Any]) -> SparseSource:
    """Open the source that a job asked for.

    UsageError for options that sparse rows don't have, and for files that aren't there.
    """
    what = asked.get("format") or asked["like"]
    unfit = [name for name in _UNFIT if asked.get(name) not in (None, [], ())]
    if asked.get("copies", 1) != 1:
        unfit.append("copies")
    if unfit:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise UsageError(f"{options}: not for {what}, whose rows are sparse")
    if asked["kind"] == "generate":
        return SPARSE_GENERATORS[asked["like"]](asked["rows"], asked["seed"])
    files = input_files(asked["files"])
    first = asked.get("first_column")
    return SvmlightSource(files, first_column=first, drop_invalid=asked["drop_invalid"])
