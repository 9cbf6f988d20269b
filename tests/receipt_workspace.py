"""A workspace with people, models and a key, made once a module; what tests of receipts share."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from support import INLINE

from expunge.jobs.cli import run

PEOPLE = 60
GONE = ("Person-3", "Person-8")
KMEANS = ("--algorithm", "k-means", "-p", "n_clusters=3", "-p", "provenance=labels")


def command(root: Path, *arguments: object, code: int = 0) -> Any:
    """Run ``expunge -w ROOT/ws --json ARGS...``; return its JSON."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert run(["-w", str(root / "ws"), "--json", *map(str, arguments)]) == code
    return json.loads(out.getvalue()) if out.getvalue() else None


def visits(path: Path, rows: int = 300, seed: int = 6) -> np.ndarray:
    """Write rows of people with a label as a csv file; return the rows' features."""
    rng = np.random.default_rng(seed)
    x: np.ndarray = rng.normal(size=(rows, 3)).astype(np.float32)
    people = rng.integers(0, PEOPLE, rows)
    lines = [
        f"{','.join(map(str, row))},{int(row[0] > 0)},Person-{p}"
        for row, p in zip(x, people, strict=True)
    ]
    path.write_text("\n".join(["a,b,c,ill,who", *lines]) + "\n")
    return x


def people(root: Path) -> None:
    """Make a workspace with data set ``t`` of people and model ``km``."""
    visits(root / "visits.csv")
    command(root, "init", root / "ws")
    given = ("--format", "csv", "--subject", "who", "--label", "ill")
    command(root, "data", "import", "t", root / "visits.csv", *given)
    command(root, "train", "km", "--data", "t", *KMEANS, *INLINE)


def forget(root: Path, *subjects: str) -> None:
    """Queue requests of people."""
    named = [part for subject in subjects for part in ("--subject", subject)]
    command(root, "forget", "--data", "t", *named)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every leaf of a JSON value; empty objects and lists are leaves too."""
    if isinstance(value, dict | list) and value:
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(member, (*path, name))
    else:
        yield path


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every object and list of a JSON value, the whole first."""
    if isinstance(value, dict | list):
        yield path
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from objects(member, (*path, name))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """Return what stands at a path."""
    for name in path:
        value = value[name]
    return value
