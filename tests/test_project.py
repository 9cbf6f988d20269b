"""The project itself: its floors, its wheel, the demo."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from expunge.jobs.cli import run

ROOT = Path(__file__).resolve().parents[1]


def test_imports_go_one_way() -> None:
    command = [sys.executable, "-m", "importlinter.cli", "lint"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    """An editable install would hide a folder that the wheel leaves out."""
    source = tmp_path / "source"
    folders = ("pipeline", "storage", "jobs", "cluster")
    for folder in folders:
        shutil.copytree(ROOT / folder, source / folder)
    for name in ("pyproject.toml", "README.md", "__init__.py", "py.typed"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*command, str(source)], check=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for folder in folders:
        for file in (ROOT / folder).glob("*.py"):
            assert f"expunge/{folder}/{file.name}" in names
    assert "expunge/storage/higgs_like.json" in names and "expunge/py.typed" in names
    assert "expunge/jobs/receipt_schema.json" in names


@pytest.mark.slow
def test_the_demo_runs_and_starts_afresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--json", "demo", "--rows", "20000", "--dir", str(tmp_path / "demo")]
    for _ in range(2):
        assert run([*arguments, "--deletions", "50"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["receipts"]) == 50
        assert {m["model"] for m in found["models"]} == {"k-means", "q-kmeans", "logistic"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    assert run(["demo", "--dir", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    capsys.readouterr()


@pytest.mark.slow
def test_the_demo_takes_a_file(
    tmp_path: Path, csv_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = csv_file(np.random.default_rng(0).random((500, 3)))
    arguments = ["demo", "--file", str(path), "--format", "csv", "--dir", str(tmp_path / "demo")]
    assert run([*arguments, "--deletions", "5"]) == 0
    assert "5 receipts" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format"),
    [("HIGGS_7000.csv.gz", "higgs"), ("covtype_kaggle_15120.data.gz", "covtype")],
)
def test_the_demo_on_real_data(
    tmp_path: Path, real_data: Path, name: str, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Import, train, delete, verify against a retrain, scan before and after: on real files."""
    arguments = ["--json", "demo", "--file", str(real_data / name), "--format", format]
    assert run([*arguments, "--dir", str(tmp_path / "demo"), "--deletions", "200"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["receipts"]) == 200
    touched = {line["what"]: line["touched"] for line in found["table"]}
    assert touched["verify k-means"] == touched["verify q-kmeans"] == "bit for bit a retrain"
    regression = {"higgs": "logistic", "covtype": "softmax"}[format]
    near, _, rest = touched[f"verify {regression}"].partition(" ")
    assert float(near) < 0.5 and rest == "of the change from a retrain"
    assert "0 of 200 rows found" in touched["scan after"]


def outputs(notebook: str, *expressions: str) -> list[float]:
    """Run a notebook's cells and return the values, at the end, of some expressions."""
    cells = json.loads((ROOT / "notebooks" / notebook).read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "outputs are not kept"
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    code.append(f"print(); print({', '.join(expressions)})")
    command = [sys.executable, "-W", "error", "-c", "\n".join(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(value) for value in done.stdout.splitlines()[-1].split()]


def test_the_first_notebook_runs() -> None:
    loss_ratio, unchanged = outputs(
        "first_deletion.ipynb", "loss_ratio", "actions.count('unchanged')"
    )
    assert 0.9 < loss_ratio < 3 and unchanged > 150


def test_the_notebook_on_provenance_runs() -> None:
    """The deletion is a retrain; one theorem's vector grows and the other's settles."""
    ratios = "table[-1][4] / table[0][4]", "table[-1][5] / table[-2][5]"
    distance, growth, settled = outputs("provenance_of_three_rows.ipynb", "distance", *ratios)
    assert distance < 1e-14 and growth > 100 and abs(settled - 1) < 0.02


def test_every_notebook_is_run() -> None:
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert names == {"first_deletion.ipynb", "provenance_of_three_rows.ipynb"}
