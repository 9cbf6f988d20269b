"""How near the updates come to BaseL on real rows, with models trained near their best accuracy.

Distances are Euclidean, for standardised features, in shares of the change that BaseL makes.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from expunge import LinearRegression, LogisticRegression, SoftmaxRegression
from expunge.pipeline.averaged import update_averaged
from expunge.pipeline.regression_arrays import AveragedBlocks
from expunge.pipeline.regression_estimator import Regression
from expunge.pipeline.update import update
from expunge.pipeline.visits import find_visits
from expunge.storage.generators import HiggsLike

pytestmark = pytest.mark.slow
RATES = (0.001, 0.01, 0.2)
"""Deleted shares of the training rows."""


@dataclass(frozen=True)
class Split:
    """Four fifths to train on, one to validate with."""

    x: np.ndarray
    y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray


def split(x: np.ndarray, y: np.ndarray) -> Split:
    order = np.random.default_rng(0).permutation(len(x))
    kept, held = order[len(x) // 5 :], order[: len(x) // 5]
    return Split(x[kept], y[kept], x[held], y[held])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """BLAS threads that wait for busy cores make these small products a hundred times slower."""
    with threadpool_limits(1):
        yield


@dataclass(frozen=True)
class Distance:
    """One deletion against BaseL."""

    rate: float
    share: float
    """|update - BaseL| over |BaseL - before|."""
    accuracy: float
    """The update's validation accuracy less BaseL's."""


class Trial:
    """One model, trained with every kind of provenance, and deletions from it."""

    def __init__(self, kind: type[Regression], rows: Split, **settings: Any) -> None:
        self._rows = rows
        self._make: Callable[[str], Any] = lambda provenance: kind(
            random_state=3, provenance=provenance, **settings
        )
        self._base_l: dict[float, Any] = {}
        self.plain: Any = self._make("none").fit(rows.x, rows.y)

    @property
    def accuracy(self) -> float:
        return float(self.plain.score(self._rows.validation_x, self._rows.validation_y))

    def gone(self, rate: float) -> np.ndarray:
        n = len(self._rows.x)
        return np.random.default_rng(7).choice(n, round(rate * n), replace=False).astype(np.int64)

    def base_l(self, rate: float) -> Any:
        if rate not in self._base_l:
            model = self._make("none").fit(self._rows.x, self._rows.y)
            model.delete(self.gone(rate), "basel")
            self._base_l[rate] = model
        return self._base_l[rate]

    def distances(self, provenance: str, rates: tuple[float, ...] = RATES) -> list[Distance]:
        """The distance at each rate, every time from the model with all rows."""
        model = self._make(provenance).fit(self._rows.x, self._rows.y)
        before = model._state.trained.w
        np.testing.assert_array_equal(before, self.plain._state.trained.w)
        return [self._distance(model, before, rate) for rate in rates]

    def _distance(self, model: Any, before: np.ndarray, rate: float) -> Distance:
        state, gone = model._state, self.gone(rate)
        trained, settings = state.trained, state.settings
        leaving = model._rows.leaving(state.design, gone)
        schedule = settings.schedule(1, len(self._rows.x))
        visits = find_visits(settings.loss, schedule, leaving, trained.trace.trajectory)
        step = update_averaged if isinstance(trained.kept, AveragedBlocks) else update
        change = step(settings.descent, trained.trace, trained.kept, visits).change
        found, other = before + change.reshape(before.shape), self.base_l(rate)
        wanted = other._state.trained.w
        share = np.linalg.norm(found - wanted) / np.linalg.norm(wanted - before)
        accuracy = self._accuracy(found, state) - self._accuracy(wanted, state)
        return Distance(rate, float(share), accuracy)

    def _accuracy(self, w: np.ndarray, state: Any) -> float:
        scores = state.design.rows(self._rows.validation_x) @ w.T
        classes = self.plain.classes_
        best = np.argmax(scores, axis=1) if len(w) > 1 else (scores[:, 0] > 0).astype(int)
        return float(np.mean(classes[best] == self._rows.validation_y))


def report(name: str, trial: Trial, found: list[Distance]) -> None:
    lines = [f"{d.rate:g}: {100 * d.share:.3f}% {100 * d.accuracy:+.3f} points" for d in found]
    print(f"{name}: accuracy {trial.accuracy:.4f}; " + "; ".join(lines))


def hold(found: list[Distance], *bounds: float) -> None:
    """Fail unless every distance is within its bound and accuracies within 0.1 point."""
    assert len(found) == len(bounds)
    for distance, bound in zip(found, bounds, strict=True):
        assert distance.share <= bound, distance
        assert abs(distance.accuracy) <= 0.001, distance


def calm(x: np.ndarray) -> np.ndarray:
    """The features whose standardised values stay within +-10: no rare indicator, no dead pixel.

    The few rows where another feature is not zero decide its parameter alone. Deleting one of them
    changes that parameter by a good part of itself, and no expansion around it is near.
    """
    deviation = x.std(axis=0)
    farthest = np.abs(x - x.mean(axis=0)).max(axis=0)
    return np.asarray(x[:, farthest <= 10.0 * deviation])


def read(path: Path) -> np.ndarray:
    return np.loadtxt(path, np.float32, delimiter=",")


# ---------------------------------------------------------------------------------- the sets


def test_higgs(real_data: Path) -> None:
    """7,000 rows: 1,400 to validate with, so one row is 0.07 points and the accuracy +-1.3."""
    rows = read(real_data / "HIGGS_7000.csv.gz")
    trial = Trial(
        LogisticRegression,
        split(rows[:, 1:], rows[:, 0]),
        l2=0.01,
        batch_size=2000,
        iterations=500,
    )
    assert trial.accuracy > 0.62
    exact = trial.distances("exact")
    report("HIGGS, exact", trial, exact)
    hold(exact, 0.005, 0.005, 0.02)
    averaged = trial.distances("averaged", RATES[:2])
    report("HIGGS, averaged", trial, averaged)
    hold(averaged, 0.03, 0.03)


def test_rows_like_higgs() -> None:
    blocks = list(HiggsLike(200_000, 1).blocks())
    x, y = (np.concatenate(parts) for parts in zip(*((b.x, b.y) for b in blocks), strict=True))
    trial = Trial(LogisticRegression, split(x, y), batch_size=5000, iterations=600)
    assert trial.accuracy > 0.625
    exact = trial.distances("exact")
    report("HIGGS-like, exact", trial, exact)
    hold(exact, 0.005, 0.005, 0.02)
    averaged = trial.distances("averaged", RATES[:2])
    report("HIGGS-like, averaged", trial, averaged)
    hold(averaged, 0.03, 0.03)


def covtype(real_data: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = read(real_data / "covtype_92962.data.gz")
    return rows[:, :-1], rows[:, -1].astype(int)


COVTYPE = {"l2": 0.01, "batch_size": 10_000, "iterations": 200, "learning_rate": 0.5}


def test_covtype_without_rare_columns(real_data: Path) -> None:
    """34 of 54 features; the learning rate is just below 1/L."""
    x, y = covtype(real_data)
    trial = Trial(SoftmaxRegression, split(calm(x), y), **COVTYPE)
    assert trial.accuracy > 0.7
    exact = trial.distances("exact")
    report("Covtype, calm features, exact", trial, exact)
    averaged = trial.distances("averaged", RATES[:2])
    report("Covtype, calm features, averaged", trial, averaged)
    hold(exact, 0.005, 0.005, 0.02)
    hold(averaged, 0.03, 0.03)


def test_covtype_with_rare_columns(real_data: Path) -> None:
    """All 54 features: one row with a rare kind of soil is most of the distance."""
    x, y = covtype(real_data)
    trial = Trial(SoftmaxRegression, split(x, y), **COVTYPE | {"batch_size": 5000})
    assert trial.accuracy > 0.7
    exact = trial.distances("exact")
    report("Covtype, all features, exact", trial, exact)
    hold(exact, 0.03, 0.015, 0.08)


def heartbeat(real_data: Path) -> Trial:
    """187 features, 5 classes, 940 parameters: above 1/L, but no class is ever near even odds."""
    with np.load(real_data / "heartbeat_109441.npz") as stored:
        rows = split(stored["X"].astype(np.float32), stored["y"].astype(int))
    settings = {"batch_size": 5000, "iterations": 150, "learning_rate": 0.1}
    trial = Trial(SoftmaxRegression, rows, **settings)
    assert trial.accuracy > 0.9
    return trial


@pytest.mark.filterwarnings("ignore:learning_rate is 0.1, above 1/L")
def test_heartbeat(real_data: Path) -> None:
    trial = heartbeat(real_data)
    exact = trial.distances("exact")
    report("Heartbeat, exact", trial, exact)
    hold(exact, 0.005, 0.005, 0.02)


@pytest.mark.filterwarnings("ignore:learning_rate is 0.1, above 1/L")
def test_heartbeat_averaged(real_data: Path) -> None:
    trial = heartbeat(real_data)
    averaged = trial.distances("averaged", RATES[:2])
    report("Heartbeat, averaged", trial, averaged)
    hold(averaged, 0.03, 0.03)


def idx(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as stream:
        return np.frombuffer(stream.read(), np.uint8, offset=header)


def mnist(real_data: Path) -> tuple[np.ndarray, np.ndarray]:
    """7 x 7 means of 4 x 4 pixels: 784 would be 7,850 parameters, 123 MB an iteration."""
    images = idx(real_data / "train-images-idx3-ubyte.gz", 16).reshape(-1, 7, 4, 7, 4)
    labels = idx(real_data / "train-labels-idx1-ubyte.gz", 8).astype(int)
    return images.mean(axis=(2, 4), dtype=np.float32).reshape(-1, 49), labels


def test_mnist_without_dead_pixels(real_data: Path) -> None:
    x, y = mnist(real_data)
    trial = Trial(SoftmaxRegression, split(calm(x), y), batch_size=5000, iterations=120)
    assert trial.accuracy > 0.83
    exact = trial.distances("exact")
    report("MNIST, calm pixels, exact", trial, exact)
    averaged = trial.distances("averaged", RATES[:2])
    report("MNIST, calm pixels, averaged", trial, averaged)
    hold(exact, 0.005, 0.005, 0.02)
    hold(averaged, 0.03, 0.03)


def test_mnist_with_dead_pixels(real_data: Path) -> None:
    x, y = mnist(real_data)
    trial = Trial(SoftmaxRegression, split(x, y), batch_size=5000, iterations=120, l2=0.01)
    assert trial.accuracy > 0.84
    exact = trial.distances("exact")
    report("MNIST, all pixels, exact", trial, exact)
    hold(exact, 0.005, 0.01, 0.05)


def test_kernel_run_times(real_data: Path) -> None:
    """SGEMM, least squares on the logarithm of the mean run time: the update is exact."""
    with ZipFile(real_data / "sgemm_product_dataset.zip") as archive:
        text = archive.read("sgemm_product_dataset/sgemm_product.csv").decode()
    table = np.loadtxt(StringIO(text), delimiter=",", skiprows=1)
    x, y = table[:, :14].astype(np.float32), np.log(table[:, 14:].mean(axis=1))
    rows = split(x, y)
    settings: dict[str, Any] = {"batch_size": 2000, "iterations": 400, "random_state": 3}
    models = [LinearRegression(**settings).fit(rows.x, rows.y) for _ in range(3)]
    assert models[0].score(rows.validation_x, rows.validation_y) > 0.55
    gone = np.random.default_rng(7).permutation(len(rows.x))[: len(rows.x) // 5]
    for part in np.array_split(gone, 4):
        models[0].delete(part)
    models[1].delete(gone, "priu")
    models[2].delete(gone, "basel")
    for model in models[:2]:
        np.testing.assert_allclose(model.coef_, models[2].coef_, rtol=1e-8)
        assert model.intercept_ == pytest.approx(models[2].intercept_, rel=1e-8)
