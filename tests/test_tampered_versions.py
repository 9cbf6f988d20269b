"""Every file of a model version, changed or removed: ``verify`` notices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from receipt_workspace import command
from support import INLINE

from expunge.jobs.cli import run

REGRESSION = ("-p", "iterations=12", "-p", "batch_size=60")
FAMILIES = {
    "k-means": ("-p", "n_clusters=3", "-p", "max_iter=4", "-p", "provenance=labels"),
    "q-kmeans": ("-p", "n_clusters=3", "-p", "max_iter=4", "-p", "epsilon=0.1"),
    "dc-kmeans": ("-p", "n_clusters=2", "-p", "n_leaves=2", "-p", "max_iter=4"),
    "logistic": (*REGRESSION, "-p", "provenance=averaged", "-p", "hessian=true"),
}


def prepare(root: Path, algorithm: str, given: Sequence[str]) -> Path:
    """Train a model, delete a row from it, and return its version's folder."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    lines = [f"{','.join(map(str, row))},{int(row[0] > 0)}" for row in x]
    (root / "rows.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    command(root, "init", root / "ws")
    imported = ("--format", "csv", "--label", "y", "--cells", 2)
    command(root, "data", "import", "t", root / "rows.csv", *imported)
    command(root, "train", "m", "--data", "t", "--algorithm", algorithm, *given, *INLINE)
    command(root, "forget", "--data", "t", "--unit", 5)
    command(root, "batch", "run", "--yes", *INLINE)
    (folder,) = (root / "ws" / "models" / "m").iterdir()
    return folder


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(n, marks=[pytest.mark.slow] if n != "q-kmeans" else []) for n in FAMILIES],
)
def test_every_file_of_a_version(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(tmp_path, algorithm, FAMILIES[algorithm])
    verify = ["-w", str(tmp_path / "ws"), "verify", "m", *INLINE]
    assert run(verify) == 0
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) > 20
    for file in files:
        whole = file.read_bytes()
        place = len(whole) // 2
        for harmed in (
            whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
            whole + b" ",
            whole[:-1],
            None,
        ):
            # A version's chunks may be links of another's: never in place.
            file.unlink()
            if harmed is not None:
                file.write_bytes(harmed)
            name = file.relative_to(folder)
            assert run(verify) == 5, (name, harmed is None)
            file.unlink(missing_ok=True)
            file.write_bytes(whole)
    assert run(verify) == 0
    capsys.readouterr()


def test_attributes_and_their_copies_are_what_was_written(tmp_path: Path) -> None:
    """A version's digest is of its chunks; what its attributes say is checked beside it."""
    folder = prepare(tmp_path, "q-kmeans", FAMILIES["q-kmeans"])
    text = (folder / "zarr.json").read_text()
    assert '"algorithm": "q-kmeans"' in text
    (folder / "zarr.json").write_text(text.replace('"q-kmeans"', '"k-means"'))
    command(tmp_path, "verify", "m", *INLINE, code=5)
