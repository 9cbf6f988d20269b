"""Commands that neither train nor delete start without Numba, Dask and other libraries that take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import expunge
from expunge.jobs.cli import app, run
from expunge.jobs.command_table import PLACES, load_command

HEAVY = {
    *("apscheduler", "dask", "distributed", "llvmlite", "matplotlib", "numba", "pandas"),
    *("pyarrow", "scipy", "sklearn", "xarray", "zarr"),
}
CODE = """
import json, sys
from expunge.jobs.cli import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]), file=sys.stderr)
"""
LIGHT = [
    "--help",
    "--version",
    "request --help",
    "forget --data t --unit 3",
    "forget --data people --subject ann",
    "request list",
    "request show 1",
    "request extend 1 --until 2031-01-01 --reason more",
    "request cancel 1",
    "hold place --data t --unit 2 --ground suit",
    "hold list",
    "hold show 1",
    "hold lift 1",
    "receipt keygen",
    "receipt list",
    "job list",
    "job show 1",
    "job --help",
    "model list",
    "model --help",
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with data sets t (units) and people (subjects), a request and a hold."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "rows.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    (folder / "people.csv").write_text("a,who\n1,ann\n2,bea\n3,cem\n")
    for words in (
        f"init {folder / 'ws'}",
        f"data import t {folder / 'rows.csv'} --format csv",
        f"data import people {folder / 'people.csv'} --format csv --subject who",
        "forget --data t --unit 1",
        "hold place --data t --unit 5 --ground suit",
    ):
        assert run(["-w", str(folder / "ws"), *words.split()]) == 0
    return folder / "ws"


@pytest.mark.parametrize("command", LIGHT)
def test_a_light_command_loads_no_heavy_library(workspace: Path, command: str) -> None:
    words = [sys.executable, "-c", CODE, "-w", str(workspace), *command.split()]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    assert not HEAVY & set(loaded)


def test_the_list_of_help_says_what_commands_say_themselves() -> None:
    for name, place in PLACES.items():
        command = load_command(name)
        assert command.name == name
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == place.help, name


def test_help_lists_all_commands() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(f" {name} " in text for name in (*PLACES, "init"))


def test_an_unknown_command_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["reqest"]) == 2
    assert "request" in capsys.readouterr().err


def test_estimators_are_imported_when_asked_for() -> None:
    assert expunge.KMeans.__module__ == "expunge.pipeline.clusterers"
    assert set(expunge.__all__) <= set(dir(expunge))
    assert all(getattr(expunge, name).__name__ == name for name in expunge.__all__)
    with pytest.raises(AttributeError, match="KMeens"):
        getattr(expunge, "KMeens")  # noqa: B009
