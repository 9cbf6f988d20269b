"""A workspace whose next batch can't update one of three models; what tests of that share."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from receipt_workspace import command, prepare_batch
from support import INLINE, Cli

from expunge.jobs.cli import run
from expunge.jobs.workspace import Workspace

SMALL = ("-p", "iterations=60", "-p", "batch_size=100", "-p", "provenance=exact")
BATCH = ("batch", "run", "--yes", *INLINE)


def prepare_three(root: Path) -> None:
    """Make a workspace with two k-means models, a regression, a key and two queued requests."""
    prepare_batch(root)
    command(root, "train", "lg", "--data", "t", "--algorithm", "logistic", *SMALL, *INLINE)


def prepare(root: Path) -> None:
    """Make the same with a regression whose trajectory is damaged: it can't be updated."""
    prepare_three(root)
    damage(root)


def damage(root: Path, model: str = "lg", array: str = "trajectory") -> None:
    """Flip a bit of a block of a model's newest version."""
    folder = max((root / "ws" / "models" / model).glob("v*.zarr"))
    flip(min((folder / array).glob("c.*")))


def flip(file: Path) -> None:
    """Flip a bit in the middle of a file, through a copy: another version may link it."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    copy = file.with_name(f"{file.name}.new")
    copy.write_bytes(data)
    copy.rename(file)


def run_partly(root: Path, *arguments: object) -> tuple[Any, str]:
    """Run a command that must exit with 3; return its JSON and what it says on stderr."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = run(["-w", str(root / "ws"), "--json", *map(str, arguments)])
    assert code == 3, errors.getvalue()
    return json.loads(out.getvalue()), errors.getvalue()


def last_job(cli: Cli) -> dict[str, Any]:
    """The newest job, as ``job list`` has it."""
    found: dict[str, Any] = cli("job", "list")["jobs"][-1]
    return found


def request_states(root: Path) -> set[str]:
    """The states of all requests."""
    with Workspace.open(root / "ws") as ws:
        return {row["state"] for row in ws.ledger.rows("SELECT state FROM requests")}


def end_state(cli: Cli, names: tuple[str, ...] = ("km", "qk", "lg")) -> dict[str, Any]:
    """What must come out the same, however often the job was killed."""
    models = {name: cli("model", "show", name) for name in names}
    return {
        "digests": {name: m["digest"] for name, m in models.items()},
        "versions": {name: m["version"] for name, m in models.items()},
        "rows": cli("data", "show", "t")["rows"],
        "receipts": sorted(r["unit_hash"] for r in cli("receipt", "list")["receipts"]),
        "state": [j["state"] for j in cli("job", "list")["jobs"] if j["kind"] == "deletion"],
    }


def leftovers(root: Path) -> list[str]:
    """The folders of data sets, of model versions and of workers, by their places."""
    ws = root / "ws"
    found = [*ws.glob("data/*"), *ws.glob("models/*/*"), *ws.glob("spill/*")]
    return sorted(str(p.relative_to(ws)).split("-")[0] for p in found)


def swap(source: Path, target: Path) -> None:
    """Put a copy of a prepared workspace in place of another."""
    shutil.rmtree(target / "ws", ignore_errors=True)
    shutil.copytree(source / "ws", target / "ws")
