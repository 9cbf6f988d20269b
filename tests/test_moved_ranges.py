"""Deletions that move a feature's range: only that feature is put on the grid again, and every bit is a fit's."""

from __future__ import annotations

import numpy as np
import pytest
from replay_checks import check_steps, compare

from expunge.pipeline import history
from expunge.pipeline.clusterers import KMeans, QKMeans


def rows(kind: str) -> np.ndarray:
    """Rows (120, 4); the last feature is constant, and -0.0."""
    x = np.random.default_rng(7).normal(size=(120, 4))
    x = x.round(1) if kind == "ties" else x
    x[:, 3] = -0.0
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", ["plain", "ties"])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    "model",
    [
        KMeans(4, max_iter=40, random_state=1),
        QKMeans(5, 0.01, 0.0, max_iter=3, random_state=2),
        QKMeans(3, 0.05, 1.0, max_iter=0, random_state=3),
    ],
)
def test_one_extreme_row_after_the_other_leaves(
    monkeypatch: pytest.MonkeyPatch, model: KMeans, few: bool, kind: str
) -> None:
    if not few:
        monkeypatch.setattr(history, "THREAD_VALUES", 0)
    model.fit(rows(kind))
    compare(model)
    actions = []
    for turn in range(24):
        live = np.flatnonzero(model._rows.units >= 0)
        column, grid = model._rows.x[live, turn % 3], model._rows._fixed
        extreme = live[column.argmin() if turn % 2 else column.argmax()]
        done = model.delete([int(extreme), int(live[turn])] if turn % 5 == 4 else int(extreme))
        actions.append(done.action)
        assert model._rows._fixed is grid
        assert not grid[extreme].any()
        compare(model)
        if model._history:
            check_steps(model)
    assert actions.count("retrained") >= (15 if kind == "plain" else 2), actions


def test_a_range_that_shrinks_to_a_point() -> None:
    x = rows("plain")
    x[1:, 0] = 0.25
    model = KMeans(4, random_state=1).fit(x)
    assert model.delete(0).action == "retrained"
    assert not model._rows._fixed[:, 0].any()
    compare(model)


def test_a_seed_that_is_at_an_end_of_a_range() -> None:
    x = rows("plain")
    for stage in (0, 1):
        model = KMeans(4, random_state=1).fit(x)
        seed = int(model.record_.steps[0].centroids.drawn[stage, 0])
        far = x.copy()
        far[seed, 1] = 9.0
        model.fit(far)
        drawn = model.record_.steps[0].centroids.drawn[:, 0].tolist()
        assert (seed in drawn) or stage > 0
        assert model.delete(seed).action == "retrained"
        compare(model)
