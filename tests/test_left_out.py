"""The estimate of what truncated and frozen curvature leave out, against BaseL."""

from __future__ import annotations

import numpy as np
import pytest
from regression_problems import Problem, problem

from expunge.pipeline.estimate import Estimate, estimate_distance, sample_size, strata, update_work
from expunge.pipeline.forces import Batches
from expunge.pipeline.frozen import FrozenBlocks
from expunge.pipeline.left_out import Course, apart, frozen_error, together, truncation_error
from expunge.pipeline.losses import Loss
from expunge.pipeline.lowrank import LowRankBlocks
from expunge.pipeline.regression_arrays import Trained
from expunge.pipeline.regression_kinds import updated_by_delta
from expunge.pipeline.remainders import Rows as Sample
from expunge.pipeline.update import Updated

LOSSES = [(Loss.LINEAR, 1), (Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]
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


def estimated(here: Problem, trained: Trained, gone: np.ndarray) -> tuple[Updated, Estimate]:
    """An update and its estimate, as deletion jobs put it together."""
    settings, kept = here.settings, trained.kept
    assert isinstance(kept, LowRankBlocks | FrozenBlocks)
    visits, leaving = here.visits(trained, gone), here.leaving(gone)
    updated = updated_by_delta(settings.descent, trained.trace, kept, visits)
    work = update_work(settings.blocks, trained.w.size, visits.iteration, False)
    size, count = sample_size(work, here.design.width, here.q)
    spans = strata(settings.blocks, int(visits.iteration[0]) // settings.block, count, False)
    stay = np.setdiff1d(np.arange(len(here.rows.x)), gone)[:size]
    sample = Sample(here.design.take(here.rows.x, stay), here.rows.labels[stay])
    batch = float(trained.trace.live.mean())
    share = 1.0 - len(gone) / len(here.rows.x)
    batches = Batches(batch, batch * share, here.schedule.per_epoch)
    trajectory = trained.trace.trajectory[spans.middles]
    own = Sample(leaving.rows, leaving.labels)
    found = estimate_distance(
        settings.descent, updated, spans, trajectory, sample, own, batches, 2.0**-53
    )
    course = Course(settings.descent, spans, trajectory, updated, sample)
    if isinstance(kept, FrozenBlocks):
        first = kept.exact.blocks.iterations
        return updated, together(
            found, frozen_error(course, first, trained.trace.trajectory[first], batches)
        )
    factors, rests = [], []
    for t in spans.middles.tolist():
        block, place = divmod(t, settings.block)
        first, last = settings.blocks.span(block)
        factors.append(kept.parts[block].factor(place))
        rests.append(np.mean(kept.parts[block].rests / trained.trace.live[first:last]))
    return updated, together(found, truncation_error(course, factors, np.array(rests)))


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
@pytest.mark.parametrize("count", [5, 200])
def test_the_estimate_holds_within_a_factor_of_ten(
    loss: Loss, q: int, shape: tuple[int, int, int, float], kind: str, count: int
) -> None:
    here = made(loss, q, shape, kind)
    trained, gone = here.trained(), here.some(count)
    updated, found = estimated(here, trained, gone)
    w, wanted = trained.w.ravel(), here.base_l(gone)
    distance = float(np.linalg.norm(w + updated.change - wanted))
    size = float(np.linalg.norm(wanted - w))
    if distance > 1e-9 * size:
        assert distance / 10 <= found.distance <= 10 * distance
    else:
        assert found.distance <= 1e-6 * size


@pytest.mark.parametrize(("loss", "q"), LOSSES)
def test_the_truncation_s_own_part_is_seen(
    loss: Loss, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times as much left out: the truncation is most of the error."""
    monkeypatch.setattr("expunge.pipeline.truncation.LEFT_OUT", 1.0)
    here = made(loss, q, (6, 4000, 200, 0.01), "lowrank")
    trained, gone = here.trained(), here.some(100)
    updated, found = estimated(here, trained, gone)
    wanted = here.base_l(gone) - trained.w.ravel()
    distance = float(np.linalg.norm(updated.change - wanted))
    assert distance > 0.02 * np.linalg.norm(wanted)
    assert distance / 10 <= found.distance <= 10 * distance


def test_another_method_is_as_far_off_as_it_is_apart() -> None:
    updated = Updated(np.array([3.0, 4.0]), np.zeros((2, 2)))
    found = apart(Estimate(1.0, 2.0, 0.5), updated)
    assert found == Estimate(6.0, 2.0, 0.5)
