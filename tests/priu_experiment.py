"""What the tests of the regression experiments share: short runs, and their files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expunge.jobs import experiment_priu_sets as priu_sets
from expunge.jobs.experiment_priu_settings import RANDOM, Study

ROWS = 600
BASE = ("--rows", ROWS, "--repeats", 1, "--cluster", "inline", "--preset", "paper")


@contextmanager
def shortened_trainings() -> Iterator[None]:
    """Table 2's sets with few iterations; the rest of a set is the same in every process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, setting in priu_sets.SETS.items():
            short = replace(setting, batch_size=50, iterations=80, learning_rate=0.05)
            patch.setitem(priu_sets.SETS, name, short)
        yield


def arguments(command: str, out: Path, *more: object) -> list[str]:
    given = ("experiment", command, "--out", out, "--data-dir", out.parent, *more)
    return [str(value) for value in given]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def study(leaving: str = RANDOM, rate: float = 0.1, data_set: str = "higgs") -> Study:
    return Study(data_set, "paper", leaving, (rate,))
