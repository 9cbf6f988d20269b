"""delete(fit(D), R) equals fit(D minus R), bit for bit, on Celltype, HIGGS and Covertype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.pipeline import quantized
from expunge.pipeline.arrays import ArrayPasses, ordinals_of
from expunge.pipeline.clusterers import KMeans, QKMeans

DATA = Path(__file__).parents[2] / "shared" / "data"
FILES = {
    "celltype": ("celltype_12009.csv.gz", 1, slice(0, -1), (12_009, 10), 4),
    "higgs": ("HIGGS_7000.csv.gz", 0, slice(1, None), (7_000, 28), 10),
    "covtype": ("covtype_kaggle_15120.data.gz", 0, slice(0, -1), (15_120, 54), 7),
}
"""File, header lines, feature columns, shape, clusters."""
BATCHES, MANY_BATCHES = 20, 100


@cache
def rows_of(name: str) -> np.ndarray:
    file, header, columns, shape, _ = FILES[name]
    path = DATA / file
    if not path.exists():
        pytest.skip(f"../shared/data/{file} is not there")
    x = np.loadtxt(path, np.float32, delimiter=",", skiprows=header)[:, columns]
    assert x.shape == shape
    return x


MODELS: dict[str, Callable[[int], KMeans]] = {
    "kmeans": lambda k: KMeans(k, random_state=1),
    "kmeans in given bounds": lambda k: KMeans(k, random_state=1, bounds=(0.0, 1.0)),
    "coarse": lambda k: QKMeans(k, epsilon=0.05, gamma=0.2, random_state=1),
    "rule of thumb": lambda k: QKMeans(k, gamma=0.2, random_state=1),
    "coarse in given bounds": lambda k: QKMeans(
        k, epsilon=0.05, gamma=0.2, random_state=1, bounds=(0.0, 1.0)
    ),
}


def differences(one: Any, other: Any, place: str = "record") -> Iterator[str]:
    """The places at which two records differ in any field, bit or type."""
    assert type(one) is type(other), place
    if is_dataclass(one):
        for field in fields(one):
            mine, theirs = getattr(one, field.name), getattr(other, field.name)
            yield from differences(mine, theirs, f"{place}.{field.name}")
    elif isinstance(one, tuple):
        if len(one) != len(other):
            yield f"{place}: {len(one)} and {len(other)} long"
        for i, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from differences(mine, theirs, f"{place}[{i}]")
    elif isinstance(one, np.ndarray):
        if (one.dtype, one.shape, one.tobytes()) != (other.dtype, other.shape, other.tobytes()):
            yield place
    elif one != other:
        yield f"{place}: {one} and {other}"


def batch(
    number: int, x: np.ndarray, units: np.ndarray, model: KMeans, rng: np.random.Generator
) -> np.ndarray:
    """Units to delete: 1 or up to 500 random ones, some with a seed, some with an extreme row."""
    live = np.unique(units[model._rows.units >= 0])
    size = 1 if number % 3 == 0 else min(round(500 ** rng.random()), len(live))
    gone: np.ndarray = rng.choice(live, size, replace=False)
    if number % 5 == 1:
        drawn = model.record_.steps[0].centroids.drawn[:, 0]
        gone = np.append(gone, rng.choice(drawn[drawn >= 0]))
    if number % 5 == 3:
        left = np.flatnonzero(model._rows.units >= 0)
        feature = rng.integers(x.shape[1])
        gone = np.append(gone, units[left[np.argmax(x[left, feature])]])
    return gone


def delete_and_compare(name: str, kind: str, batches: int) -> Counter[str]:
    """Delete batch after batch, or until no row is left, each time against a refit on the rest.

    About two rows in three share their unit with another row.
    """
    x = rows_of(name)
    if "bounds" in kind:
        low, high = x.min(axis=0), x.max(axis=0)
        x = (x - low) / np.where(high > low, high - low, 1)
    rng = np.random.default_rng([len(x), batches])
    units = rng.integers(0, len(x), len(x))
    model = MODELS[kind](FILES[name][-1]).fit(x, units=units)
    actions: Counter[str] = Counter()
    for number in range(batches):
        if model.empty_:
            break
        gone = batch(number, x, units, model, rng)
        done = model.delete(gone)
        actions[done.action] += 1
        kept = ~np.isin(units, gone) & (model._rows.units >= 0)
        assert model.n_rows_ == kept.sum()
        rest = ArrayPasses(x[kept], units[kept], ordinals_of(units[kept]))
        expected = quantized.fit(rest, model._settings)
        assert list(differences(model.record_, expected)) == [], (number, done)
    return actions


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", FILES)
def test_every_batch_gives_the_refit(name: str, kind: str) -> None:
    actions = delete_and_compare(name, kind, BATCHES)
    if "bounds" in kind:
        assert not actions["retrained"]
    if kind == "coarse in given bounds":
        assert actions["unchanged"] >= 2
        assert actions["resumed"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", FILES)
def test_every_one_of_many_batches_gives_the_refit(name: str, kind: str) -> None:
    delete_and_compare(name, kind, MANY_BATCHES)


def test_the_comparison_sees_one_flipped_bit() -> None:
    x = np.random.default_rng(0).random((50, 2))
    one, other = (KMeans(3, random_state=0).fit(x).record_ for _ in range(2))
    assert list(differences(one, other)) == []
    other.steps[1].tally.sums[1, 1] ^= 1
    assert list(differences(one, other)) == ["record.steps[1].tally.sums"]
