"""Thousands of single deletions from real data by incremental replay, each set against a refit."""

from __future__ import annotations

import gzip
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from replay_checks import check_steps, compare, steps_of

from expunge import KMeans, QKMeans

DELETIONS = 10_000
DATA = Path(__file__).parents[2] / "shared" / "data"
FILES = {
    "celltype": ("celltype_12009.csv.gz", 1, 4),
    "covtype 15,120": ("covtype_kaggle_15120.data.gz", 0, 7),
    "covtype 92,962": ("covtype_92962.data.gz", 0, 7),
    "mnist": ("train-images-idx3-ubyte.gz", 0, 10),
}
"""File, header lines, clusters; a csv file's last column is its label."""


@cache
def rows_of(name: str) -> np.ndarray:
    file, header, _ = FILES[name]
    if not (DATA / file).exists():
        pytest.skip(f"../shared/data/{file} is not there")
    if name == "mnist":
        pixels = gzip.decompress((DATA / file).read_bytes())[16:]
        return np.frombuffer(pixels, np.uint8).reshape(60_000, 784).astype(np.float32)
    table = np.loadtxt(DATA / file, np.float32, delimiter=",", skiprows=header)
    return table[:, :-1]


def delete_singly(model: KMeans, x: np.ndarray, deletions: int, checked: set[int]) -> Counter[str]:
    """Delete random rows one by one; compare at the numbers that are checked, and at the end."""
    model.fit(x)
    done: Counter[str] = Counter()
    for number, unit in enumerate(
        np.random.default_rng(5).permutation(len(x))[:deletions].tolist()
    ):
        done[model.delete(unit).action] += 1
        if number in checked:
            compare(model)
    compare(model)
    return done


def model_of(name: str, epsilon: float | None) -> KMeans:
    clusters = FILES[name][2]
    return KMeans(clusters, random_state=1) if epsilon == 0 else QKMeans(clusters, random_state=1)


@pytest.mark.parametrize("epsilon", [0.0, None])
@pytest.mark.parametrize("name", ["celltype", "covtype 15,120"])
def test_hundreds_of_single_deletions(name: str, epsilon: float | None) -> None:
    model = model_of(name, epsilon)
    done = delete_singly(model, rows_of(name), 300, {0, 30, 150})
    check_steps(model)
    assert done["unchanged"] + done["replayed"] >= 270, done


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, None])
@pytest.mark.parametrize("name", ["celltype", "covtype 15,120"])
def test_thousands_of_single_deletions(name: str, epsilon: float | None) -> None:
    model = model_of(name, epsilon)
    delete_singly(model, rows_of(name), 3_000, set(range(0, 3_000, 500)))
    check_steps(model)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, None])
def test_ten_thousand_single_deletions_from_covertype(epsilon: float | None) -> None:
    model = model_of("covtype 92,962", epsilon)
    done = delete_singly(model, rows_of("covtype 92,962"), DELETIONS, {100, 2_000, 5_000})
    check_steps(model)
    assert done["unchanged"] + done["replayed"] >= 0.95 * DELETIONS, done


@pytest.mark.slow
def test_deletions_from_mnist() -> None:
    x = rows_of("mnist")
    model = model_of("mnist", 0.0)
    done = delete_singly(model, x, 200, {5})
    assert done["replayed"] >= 150, done
    assert int(steps_of(model).state[1]) == 11
