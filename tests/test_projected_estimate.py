"""The estimate of what curvature in the principal components leaves out, against BaseL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from projected_rows import LOSSES, spectral
from regression_problems import Problem

from expunge.pipeline.estimate import (
    MOST_ROWS,
    Estimate,
    estimate_distance,
    sample_size,
    strata,
    update_work,
)
from expunge.pipeline.forces import Batches
from expunge.pipeline.left_out import Course, together
from expunge.pipeline.losses import Loss
from expunge.pipeline.projected import ProjectedBlocks
from expunge.pipeline.projection_error import projection_error
from expunge.pipeline.regression_arrays import Trained
from expunge.pipeline.regression_kinds import updated_by_delta
from expunge.pipeline.remainders import Rows as Sample
from expunge.pipeline.update import Updated


def estimated(
    here: Problem, trained: Trained, gone: np.ndarray
) -> tuple[Updated, Estimate, Estimate]:
    """An update, its estimate as deletion jobs put it together, and the projection's own part."""
    settings, kept = here.settings, trained.kept
    assert isinstance(kept, ProjectedBlocks)
    visits, leaving = here.visits(trained, gone), here.leaving(gone)
    updated = updated_by_delta(settings.descent, trained.trace, kept, visits)
    work = update_work(settings.blocks, here.q * settings.rank, visits.iteration, True)
    _, count = sample_size(work, here.design.width, here.q)
    spans = strata(settings.blocks, int(visits.iteration[0]) // settings.block, count, True)
    stay = np.setdiff1d(np.arange(len(here.rows.x)), gone)[:MOST_ROWS]
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
    left_out = projection_error(course, kept.basis, len(here.rows.x) - len(gone))
    return updated, together(found, left_out), left_out


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("falling", [0.3, 0.05, 0.01])
@pytest.mark.parametrize("count", [5, 200])
def test_the_estimate_holds_within_a_factor_of_five(
    loss: Loss, q: int, falling: float, count: int
) -> None:
    here = spectral(loss, q, falling=falling)
    trained, gone = here.trained(), here.some(count)
    updated, found, _ = estimated(here, trained, gone)
    w, wanted = trained.w.ravel(), here.base_l(gone)
    distance = float(np.linalg.norm(w + updated.change - wanted))
    assert distance / 5 <= found.distance <= 5 * distance


@pytest.mark.parametrize(("loss", "q"), LOSSES[1:])
def test_the_projection_s_own_part_is_seen(loss: Loss, q: int) -> None:
    """One component besides the bias, of many alike: what is left out is most of the error."""
    here = spectral(loss, q, falling=0.9, rank=2)
    trained, gone = here.trained(), here.some(100)
    updated, found, left_out = estimated(here, trained, gone)
    wanted = here.base_l(gone) - trained.w.ravel()
    distance = float(np.linalg.norm(updated.change - wanted))
    assert distance > 0.02 * np.linalg.norm(wanted)
    assert distance / 5 <= found.distance <= 5 * distance
    assert left_out.distance > 0.3 * distance


def test_with_all_components_nothing_is_left_out() -> None:
    here = spectral(Loss.SOFTMAX, 3)
    here = replace(here, settings=replace(here.settings, rank=here.design.width))
    updated, _, left_out = estimated(here, here.trained(), here.some(40))
    assert left_out.distance < 1e-9 * np.linalg.norm(updated.change)
