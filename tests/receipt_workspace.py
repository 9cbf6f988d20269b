"""A workspace with people, models and a key, made once a module; what tests of receipts share."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli

from expunge.jobs.cli import run
from expunge.jobs.receipt_checks import verify_file
from expunge.jobs.receipt_page import page
from expunge.jobs.receipt_schema import check_receipt

PEOPLE = 60
GONE = ("Person-3", "Person-8")
REFERENCE, GROUND = "DSR-2026-0042", "Art. 17(1)(b)"
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


def forget(root: Path, *subjects: str, terms: tuple[str, ...] = ()) -> None:
    """Queue requests of people; terms: further options."""
    named = [part for subject in subjects for part in ("--subject", subject)]
    command(root, "forget", "--data", "t", *named, *terms)


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


def prepare_batch(root: Path) -> None:
    """Make a workspace with two models, a key and two queued requests."""
    people(root)
    command(root, "train", "qk", "--data", "t", "--algorithm", "q-kmeans", *KMEANS[2:4], *INLINE)
    command(root, "receipt", "keygen", "--out", root / "public.pem")
    forget(root, *GONE)


def prepared_by(prepare: Callable[[Path], None]) -> Any:
    """Return a fixture ``prepared``: a folder that ``prepare`` filled, once a module."""

    @pytest.fixture(scope="module", name="prepared")
    def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
        root = tmp_path_factory.mktemp("prepared")
        prepare(root)
        return root

    return prepared


@pytest.fixture(name="root")
def copied(prepared: Path, tmp_path: Path) -> Path:
    """A copy of what ``prepared`` has, for one test."""
    copy_workspace(prepared, tmp_path)
    return tmp_path


def copy_workspace(source: Path, target: Path) -> None:
    """Copy a workspace and what lies beside it."""
    shutil.copytree(source / "ws", target / "ws")
    for name in ("public.pem", "visits.csv"):
        shutil.copy(source / name, target / name)


def checked_receipt(root: Path, cli: Cli, name: str = "R00000001") -> dict[str, Any]:
    """A receipt, which must be signed, good, and as the schema says."""
    found: dict[str, Any] = cli("receipt", "show", name)
    file = root / f"{name}.json"
    file.write_text(json.dumps(found))
    checked = verify_file(file, root / "public.pem")
    assert checked["valid"], checked
    assert check_receipt(found) is None
    assert page(found).count("How it was verified") == 1
    return found


def gone_rows(root: Path) -> np.ndarray:
    """The features of the people who go."""
    x = visits(root / "again.csv")
    names = [line.rsplit(",", 1)[1] for line in (root / "again.csv").read_text().split()[1:]]
    assert np.isin(names, GONE).sum() > 4
    found: np.ndarray = x[np.isin(names, GONE)]
    return found


def issue(root: Path) -> None:
    """Make a workspace that has issued two signed receipts, of which one lies beside it."""
    people(root)
    command(root, "receipt", "keygen", "--out", root / "public.pem")
    forget(root, *GONE, terms=("--reference", REFERENCE, "--ground", GROUND))
    command(root, "settings", "--verify", "retrain")
    assert command(root, "batch", "run", "--yes", *INLINE)["signed"]
    command(root, "receipt", "show", "R00000001", "--out", root / "receipt.json")


def read(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "receipt.json").read_text())
    return found


def problem(root: Path, document: Any, key: Path | None = None) -> str | None:
    """What ``receipt verify`` says of a document; None where it is good."""
    file = root / "candidate.json"
    text = document if isinstance(document, str) else json.dumps(document)
    file.write_bytes(text.encode())
    found = verify_file(file, key or root / "public.pem")
    assert found["valid"] == (found["problem"] is None)
    problem: str | None = found["problem"]
    return problem
