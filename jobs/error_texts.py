"""What may be quoted of an error where rows are at hand: the text of an unexpected one may hold a value."""

from __future__ import annotations

import os
from sqlite3 import Error
from traceback import walk_tb

_PACKAGE = __name__.partition(".")[0]


def told(error: BaseException) -> str:
    """Return an error's text where it is one of this program's own types, which quote no row.

    Of the operating system's it is the error number's meaning and the file, of SQLite's the name of
    its code, and of all others the type and the place in this program that it came from.
    """
    kind = type(error)
    if _is_own(kind.__module__):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        file = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
        return f"{os.strerror(error.errno)}{file}"
    code = getattr(error, "sqlite_errorname", None) if isinstance(error, Error) else None
    name = kind.__name__ if code is None else f"{kind.__name__} ({code})"
    return f"unexpected {name}{_place(error)}"


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _place(error: BaseException) -> str:
    """The innermost line of this program that an error passed."""
    places = [
        f" in {frame.f_globals['__name__'].partition('.')[2]}, line {line}"
        for frame, line in walk_tb(error.__traceback__)
        if _is_own(frame.f_globals.get("__name__", ""))
    ]
    return places[-1] if places else ""
