"""Experiment priu-repeated end to end, on few rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from priu_experiment import BASE, arguments, read, rows_of, shortened_trainings

from expunge.jobs.cli import run


@pytest.fixture(autouse=True, scope="module")
def short_trainings() -> Iterator[None]:
    with shortened_trainings():
        yield


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("repeated") / "out"
    given = (*BASE, "--kinds", "exact,averaged", "--set", "higgs-extended", "--subsets", 3)
    assert run(arguments("priu-repeated", out, *given, "--rate", 0.02)) == 0
    return out


def test_repeated(repeated: Path) -> None:
    """Subsets add up: seconds, deleted rows, and a distance to BaseL that stays small."""
    rows = rows_of(repeated / "repeated.csv")
    mine = [r for r in rows if (r["method"], r["kind"]) == ("delta", "exact")]
    base = [r for r in rows if r["method"] == "basel"]
    assert [int(r["step"]) for r in mine] == [1, 2, 3]
    totals = np.cumsum([float(r["seconds"]) for r in mine])
    assert [float(r["cumulative_seconds"]) for r in mine] == pytest.approx(totals.tolist())
    speedup = sum(float(r["seconds"]) for r in base) / totals[-1]
    assert float(mine[-1]["cumulative_speedup"]) == pytest.approx(speedup)
    assert float(mine[-1]["cumulative_with_rebase"]) > totals[-1]
    assert float(mine[-1]["rate"]) == pytest.approx(0.06, abs=0.005)
    # Were the models not rebased, the second subset's update would miss the first one.
    assert all(float(r["distance_share"]) < 0.02 for r in mine)
    assert "infl" not in {r["method"] for r in rows}
    found = read(repeated / "summary.json")
    assert found["answers"]["Q2"]["numbers"] == found["totals"]
    assert {t["method"]: t["paper_seconds"] for t in found["totals"]}["basel"] == 1933.0
    assert (repeated / "figure4-repeated.png").is_file()
    assert not list((repeated / "work").iterdir())


def test_repeated_goes_on(repeated: Path) -> None:
    stamps = {p.name: p.stat().st_mtime_ns for p in (repeated / "pieces").iterdir()}
    given = (*BASE, "--kinds", "exact,averaged", "--set", "higgs-extended", "--subsets", 3)
    assert run(arguments("priu-repeated", repeated, *given, "--rate", 0.02)) == 0
    assert stamps == {p.name: p.stat().st_mtime_ns for p in (repeated / "pieces").iterdir()}


def test_each_from_the_first_models(tmp_path: Path) -> None:
    """Nothing adds up but the seconds: every subset is its own share, and is near its own BaseL."""
    given = (*BASE, "--kinds", "exact", "--methods", "delta", "--set", "higgs-extended")
    more = ("--subsets", 2, "--rate", 0.02, "--from-first")
    assert run(arguments("priu-repeated", tmp_path / "out", *given, *more)) == 0
    mine = [r for r in rows_of(tmp_path / "out" / "repeated.csv") if r["method"] == "delta"]
    assert [float(r["rate"]) for r in mine] == pytest.approx([0.02, 0.02], abs=0.002)
    assert all(float(r["distance_share"]) < 0.02 for r in mine)
    assert float(mine[1]["cumulative_seconds"]) > float(mine[1]["seconds"])
