"""An experiment's folder: what it is a run of, its finished pieces, and the tables made of them.

Every piece is one small JSON file that is written whole: whatever kills a run, the pieces that are
there stand, and the same command goes on with the others.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage import files
from .errors import JobError, LockedError, UsageError

HEAD = "experiment.json"
PIECES = "pieces"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The finished pieces of one experiment; may be sent to another process."""

    root: Path
    """The experiment's folder."""
    settings: Mapping[str, Any]
    """What every piece depends on."""

    def find(self, name: str) -> dict[str, Any] | None:
        """Return a finished piece's result, or None; JobError where its file can't be used."""
        found = self.whole(name)
        return None if found is None else dict(found["result"])

    def whole(self, name: str) -> dict[str, Any] | None:
        """Return a piece with the settings and the environment it was made with, or None."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            same = found["settings"] == dict(self.settings) and "result" in found
        except (ValueError, KeyError, TypeError):
            raise JobError(f"{path} is damaged; remove it, and its piece runs again") from None
        if not same:
            raise JobError(f"{path} was made with other settings; remove it, or name another --out")
        return found

    def keep(self, name: str, result: Row, environment: Row) -> None:
        """Write a piece whole and durably: after this it is finished."""
        whole = {"settings": dict(self.settings), "environment": dict(environment)}
        path = self._path(name)
        write_json(path, {**whole, "result": dict(result)})
        files.sync_folder(path.parent)

    def names(self) -> list[str]:
        """Return the names of all finished pieces, in order."""
        return sorted(path.stem for path in (self.root / PIECES).glob("*.json"))

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} can't be the name of a piece")
        return self.root / PIECES / f"{name}.json"


@contextmanager
def open_results(root: Path, experiment: str, settings: Mapping[str, Any]) -> Iterator[Pieces]:
    """Make an experiment's folder, or go on with one of the same settings; holds its lock.

    Raises UsageError for a folder of something else or of other settings, and LockedError while
    another process works in it.
    """
    root = root.absolute()
    if root.exists() and not root.is_dir():
        raise UsageError(f"--out {root} is not a folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except NotADirectoryError:
        raise UsageError(f"--out {root} is below a file, not a folder") from None
    with _locked(root):
        _check_head(root, experiment, settings)
        files.sweep_partials(root)
        (root / PIECES).mkdir(exist_ok=True)
        files.sync_folder(root)
        yield Pieces(root, settings)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel takes from a process that dies."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LockedError(
            f"another process runs an experiment in {root}; try again later"
        ) from None
    finally:
        os.close(descriptor)


def _check_head(root: Path, experiment: str, settings: Mapping[str, Any]) -> None:
    """Write what the folder is a run of; where it has pieces, compare with what is written there."""
    head = root / HEAD
    asked = {"experiment": experiment, "settings": dict(settings)}
    if not head.is_file():
        others = [path.name for path in root.iterdir() if not path.name.endswith(files.PARTIAL)]
        if others:
            raise UsageError(
                f"--out {root} holds {others[0]!r} and is no experiment's folder; name one that is "
                "new or empty"
            )
        write_json(head, asked)
        return
    try:
        found = json.loads(head.read_bytes())
        made, old = str(found["experiment"]), dict(found["settings"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{head} can't be read; name another folder with --out") from None
    if made != experiment:
        raise UsageError(f"--out {root} has results of {made!r}, not of {experiment!r}")
    if any((root / PIECES).glob("*.json")):
        _refuse_differences(root, old, asked["settings"])
    else:
        write_json(head, asked)


def _refuse_differences(root: Path, old: Row, new: Any) -> None:
    """UsageError naming every setting that is not what the folder's pieces were made with."""
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if keys:
        named = ", ".join(f"{key} {old.get(key)} there, {new.get(key)} here" for key in keys)
        raise UsageError(
            f"--out {root} has results of other settings ({named}); give the same, or name another "
            "folder"
        )


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, whole; NaN and infinity are refused."""
    files.write_whole(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows as a csv file with a header, whole; what is None, or not there, is left empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if row.get(c) is None else row[c] for c in columns] for row in rows])
    files.write_whole(path, out.getvalue().encode())


def mean_and_deviation(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean, sample standard deviation (None of fewer than two) and number of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "deviation": None, "values": 0}
    mean = sum(known) / len(known)
    squares = sum((value - mean) ** 2 for value in known)
    deviation = (squares / (len(known) - 1)) ** 0.5 if len(known) > 1 else None
    return {"mean": mean, "deviation": deviation, "values": len(known)}


def grouped_means(rows: Sequence[Row], keys: Sequence[str], values: Sequence[str]) -> list[Row]:
    """Return one row a group of equal keys, in order of appearance: means and deviations of values.

    Columns: the keys, ``replicates`` (rows of the group), and NAME and NAME_deviation of each value.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    means: list[Row] = []
    for key, members in groups.items():
        made: dict[str, Any] = {**dict(zip(keys, key, strict=True)), "replicates": len(members)}
        for value in values:
            found = mean_and_deviation([member[value] for member in members])
            made[value], made[f"{value}_deviation"] = found["mean"], found["deviation"]
        means.append(made)
    return means
