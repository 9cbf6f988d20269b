"""The estimate of what truncated and frozen curvature leave out, against BaseL."""

from __future__ import annotations

import numpy as np
import pytest
from regression_problems import LOSSES, Problem, estimated, problem

from expunge.pipeline.estimate import Estimate
from expunge.pipeline.left_out import apart
from expunge.pipeline.losses import Loss
from expunge.pipeline.update import Updated

SHAPES = [(6, 4000, 200, 1.0), (30, 4000, 20, 0.1), (90, 2000, 12, 1.0)]
"""Features, rows, rows a mini-batch, and the last feature's spread over the first's."""


def made(
    loss: Loss, q: int, shape: tuple[int, int, int, float], kind: str, l2: float = 0.01
) -> Problem:
    features, rows, batch, falling = shape
    rate = (0.05 if loss == Loss.LINEAR else 0.3) * min(1.0, 6 / features)
    here = problem(
        loss,
        rows,
        features,
        q,
        batch=batch,
        iterations=300,
        rate=rate,
        l2=l2,
        provenance=kind,
        block=17,
    )
    here.rows.x[:] *= np.geomspace(1.0, falling, features)
    return here


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
@pytest.mark.parametrize("count", [5, 200])
def test_the_estimate_holds_within_a_factor_of_ten(
    loss: Loss, q: int, shape: tuple[int, int, int, float], kind: str, count: int
) -> None:
    here = made(loss, q, shape, kind)
    trained, gone = here.trained(), here.some(count)
    found, wanted = estimated(here, trained, gone), here.base_l(gone)
    distance = found.distance(trained, wanted)
    size = float(np.linalg.norm(wanted - trained.w.ravel()))
    if distance > 1e-9 * size:
        assert distance / 10 <= found.whole.distance <= 10 * distance
    else:
        assert found.whole.distance <= 1e-6 * size


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_the_truncation_s_own_part_is_seen(
    loss: Loss, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times as much left out: the truncation is most of the error."""
    monkeypatch.setattr("expunge.pipeline.truncation.LEFT_OUT", 1.0)
    here = made(loss, q, (6, 4000, 200, 0.01), "lowrank")
    trained, gone = here.trained(), here.some(100)
    found, wanted = estimated(here, trained, gone), here.base_l(gone)
    distance = found.distance(trained, wanted)
    assert distance > 0.02 * np.linalg.norm(wanted - trained.w.ravel())
    assert distance / 10 <= found.whole.distance <= 10 * distance


def test_another_method_is_as_far_off_as_it_is_apart() -> None:
    updated = Updated(np.array([3.0, 4.0]), np.zeros((2, 2)))
    found = apart(Estimate(1.0, 2.0, 0.5), updated)
    assert found == Estimate(6.0, 2.0, 0.5)
