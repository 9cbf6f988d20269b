"""Shared by the tests: a workspace driven through the command line, and the real data's folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster
from support import Cli

from expunge.jobs.cli import run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests come first: no process is left with a long one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session", autouse=True)
def same_salt() -> Iterator[None]:
    """Every workspace made in this process has one salt: rows fall into the same cells in every run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.jobs.workspace._new_salt", lambda: bytes(range(16)))
        yield


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run ``expunge -w WS --json ARGS...`` in this process; return its JSON, or stderr's text."""

    def call(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        found = run(["-w", str(tmp_path / "ws"), "--json", *map(str, arguments)])
        captured = capsys.readouterr()
        assert found == code, captured.err
        if captured.out:
            return json.loads(captured.out)
        return captured.err

    return call


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as a csv file with the header f0, f1, ... and return its path."""

    def write(x: np.ndarray, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        header = ",".join(f"f{i}" for i in range(x.shape[1]))
        lines = [",".join(str(v) for v in row) for row in x.astype(np.float32)]
        path.write_text("\n".join([header, *lines]) + "\n")
        return path

    return write


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets; skips where it is absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder with real data sets is not beside the project")
    return folder


@pytest.fixture(scope="module", params=[1, 2, 4])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The scheduler of a cluster with 1, 2 or 4 worker processes."""
    with LocalCluster(
        n_workers=request.param,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        local_directory=str(tmp_path_factory.mktemp("spill")),
    ) as local:
        yield local.scheduler_address
