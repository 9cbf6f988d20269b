"""What an update of a sparse model says of its own error, against the error that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from sparse_problems import Trainable
from support import INLINE, Cli
from test_sparse_numerics import problem
from test_sparse_storage import start

from expunge.jobs.sparse_deletion import HOLDS
from expunge.pipeline import sparse_update
from expunge.pipeline.sparse_descent import SlotRows, SparseStep, SparseWindow
from expunge.pipeline.sparse_linear import LinearisedUpdate
from expunge.pipeline.sparse_survey import largest_curvature, sum_size
from expunge.pipeline.sparse_update import SparseUpdated, update_sparse
from expunge.storage.rcv1_like import FEATURES, Rcv1Like

HONEST = 3.0
"""The true error may be so many times the estimate, or the estimate so many times it."""


@dataclass(frozen=True)
class Training(Trainable):
    """A training whose deletions are compared with BaseL."""

    slot_rows: SlotRows
    features: int
    live: np.ndarray
    orders: tuple[np.ndarray, ...]
    batch: int
    step: SparseStep

    def pieces(self) -> Iterator[tuple[int, SlotRows]]:
        yield 0, self.slot_rows

    def updated(self, stays: np.ndarray, c: list[np.ndarray]) -> SparseUpdated:
        """The update in difference form, from the recorded coefficients."""
        kept: dict[int, np.ndarray] = {}
        given = self.step, self, stays, self.features, c.__getitem__, kept.__setitem__
        return update_sparse(*given)

    def linearised(self, stays: np.ndarray, c: list[np.ndarray]) -> SparseUpdated:
        """The paper's."""
        linear = LinearisedUpdate(self.step, self.features, len(self.live))
        for number, before in enumerate(c):
            window = SparseWindow(self.slot_rows, *self.epoch(number), True)
            linear.take(window, stays, before, np.zeros_like(before))
        return SparseUpdated(linear.change, sum_size(self, linear.left), self.epochs)

    def errors(self, counts: tuple[int, ...]) -> np.ndarray:
        """The estimate, the true error and the change's norm of deletions of so many rows each."""
        w, c = self.descend()
        found = []
        for seed, count in enumerate(counts):
            gone = np.random.default_rng(seed).choice(len(self.live), count, replace=False)
            stays = self.live.copy()
            stays[gone] = False
            basel, _ = replace(self, live=stays).descend()
            updated = self.updated(stays, c)
            error = float(np.linalg.norm(w + updated.change - basel))
            found.append((updated.estimate, error, float(np.linalg.norm(basel - w))))
        return np.array(found).T


def training(
    rows: SlotRows, features: int, seed: int, epochs: int, batch: int, l2: float
) -> Training:
    """At the default learning rate."""
    n = len(rows.labels)
    rng = np.random.default_rng(seed)
    orders = tuple(rng.permutation(n) for _ in range(epochs))
    found = Training(rows, features, np.ones(n, np.bool_), orders, batch, SparseStep(1.0, l2))
    curvature = largest_curvature(found, found.live, features) / 4.0 + l2
    return replace(found, step=SparseStep(0.5 / curvature, l2))


def like_rcv1(
    seed: int, n: int = 2000, epochs: int = 20, batch: int = 60, l2: float = 1e-3
) -> Training:
    (block,) = Rcv1Like(n, seed).blocks()
    labels = np.where(block.y > 0, 1.0, -1.0)
    rows = SlotRows(block.x.values, block.x.columns, block.x.pointers, labels)
    return training(rows, FEATURES, seed, epochs, batch, l2)


COUNTS = (2, 8, 8, 32, 32, 128)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"epochs": 4},
        {"epochs": 80},
        {"batch": 20, "epochs": 5},
        {"batch": 200, "epochs": 10},
        {"batch": 500, "epochs": 40},
        {"l2": 1e-5, "epochs": 40},
        {"l2": 0.02},
        {"n": 500, "batch": 20},
        {"n": 6000, "batch": 100, "epochs": 10},
    ],
    ids=str,
)
def test_the_estimate_is_honest(given: dict[str, float], seed: int) -> None:
    """Of one deletion within a factor of 3, but for chance; of several on average within 2."""
    estimates, errors, changes = like_rcv1(seed, **given).errors(COUNTS)  # type: ignore[arg-type]
    ratios = np.sort(estimates / errors)
    assert (errors < 0.015 * changes).all()
    assert ratios[1] > 1 / HONEST and ratios[-2] < HONEST, ratios
    assert 0.5 < np.exp(np.log(ratios).mean()) < 2.2, ratios


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("n", "features", "epochs", "batch"), [(600, 30, 20, 60), (2000, 40, 40, 1000)]
)
def test_rows_that_share_columns_are_not_thought_better_than_they_are(
    n: int, features: int, epochs: int, batch: int, seed: int
) -> None:
    """Where many rows have the same columns, lines may run away; the estimate says so."""
    dense = problem(seed, n=n, features=features)
    found = training(dense.slot_rows, features, seed, epochs, batch, 1e-3)
    estimates, errors, changes = found.errors((4, 4, 32, 32))
    assert (errors < HONEST * estimates).all(), estimates / errors
    assert (errors < HONEST * HOLDS * changes)[estimates < HOLDS * changes].all()


def test_a_line_that_errs_more_is_estimated_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features that wait long whatever their lines' errors: both error and estimate grow."""
    prompt = like_rcv1(0).errors(COUNTS)
    monkeypatch.setattr(sparse_update, "LEAST_EPOCHS", 8)
    late = like_rcv1(0).errors(COUNTS)
    assert (late[1] > 2.0 * prompt[1]).sum() >= 4
    ratios = np.sort(late[0] / late[1])
    assert ratios[1] > 1 / HONEST and ratios[-2] < HONEST, ratios


def saturated(value: float, batch: int) -> Training:
    """2,000 rows, of which the first two have a column of their own, large, and opposite labels."""
    rng = np.random.default_rng(1)
    n, entries, columns = 2000, 4, 20
    chosen = np.array([np.sort(rng.choice(columns, entries, replace=False)) for _ in range(n - 2)])
    values = rng.normal(size=chosen.shape) / 2.0
    labels = np.where(values.sum(axis=1) + rng.logistic(size=n - 2) * 0.3 > 0, 1.0, -1.0)
    rows = SlotRows(
        np.r_[value, value, values.ravel()].astype(np.float32),
        np.r_[columns, columns, chosen.ravel()].astype(np.int32),
        np.r_[0, 1, 2 + entries * np.arange(n - 1)].astype(np.int64),
        np.r_[1.0, -1.0, labels],
    )
    return training(rows, columns + 1, 0, 3, batch, 1e-3)


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize(("value", "batch"), [(50.0, 20), (50.0, 100), (20.0, 20), (5.0, 20)])
def test_a_row_that_leaves_saturation_is_not_thought_flat(
    value: float, batch: int, gone: int
) -> None:
    """The logistic function is flat where the row was, and steep where the deletion takes it."""
    found = saturated(value, batch)
    w, c = found.descend()
    stays = found.live.copy()
    stays[gone] = False
    basel, _ = replace(found, live=stays).descend()
    change = float(np.linalg.norm(basel - w))
    for updated in (found.updated(stays, c), found.linearised(stays, c)):
        error = float(np.linalg.norm(w + updated.change - basel))
        assert updated.estimate > HOLDS * change or error < HONEST * HOLDS * change


def test_what_is_accepted_is_near_basel(cli: Cli, tmp_path: Path) -> None:
    """Stored rows with few columns: updated or trained anew, the distance is what the rule allows."""
    start(cli, tmp_path, 800)
    given = ("--algorithm", "sparse-logistic", "-p", "iterations=200")
    for batch in (40, 200, 800):
        name = f"m{batch}"
        cli("train", name, "--data", "s", *given, "-p", f"batch_size={batch}", *INLINE)
    cli("forget", "--data", "s", "--unit", "1,5,9,200,333,471")
    actions = set()
    for found in cli("batch", "run", "--yes", *INLINE)["models"]:
        actions.add(found["action"])
        checked = cli("verify", found["model"], *INLINE)
        assert checked["distance"] < HONEST * HOLDS * checked["change"]
        if found["action"] == "updated":
            assert re.fullmatch(r"\d training rows were deleted", found["reason"])
    assert actions == {"retrained", "updated"}
