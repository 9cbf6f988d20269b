"""The estimate of what curvature in the principal components leaves out, against BaseL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from projected_rows import spectral
from regression_problems import LOSSES, estimated

from expunge.pipeline.losses import Loss


@pytest.mark.parametrize(("loss", "q"), LOSSES)
@pytest.mark.parametrize("falling", [0.3, 0.05, 0.01])
@pytest.mark.parametrize("count", [5, 200])
def test_the_estimate_holds_within_a_factor_of_five(
    loss: Loss, q: int, falling: float, count: int
) -> None:
    here = spectral(loss, q, falling=falling)
    trained, gone = here.trained(), here.some(count)
    found, wanted = estimated(here, trained, gone), here.base_l(gone)
    distance = found.distance(trained, wanted)
    assert distance / 5 <= found.whole.distance <= 5 * distance


@pytest.mark.parametrize(("loss", "q"), LOSSES[1:])
def test_the_projection_s_own_part_is_seen(loss: Loss, q: int) -> None:
    """One component besides the bias, of many alike: what is left out is most of the error."""
    here = spectral(loss, q, falling=0.9, rank=2)
    trained, gone = here.trained(), here.some(100)
    found, wanted = estimated(here, trained, gone), here.base_l(gone)
    distance = found.distance(trained, wanted)
    assert distance > 0.02 * np.linalg.norm(wanted - trained.w.ravel())
    assert distance / 5 <= found.whole.distance <= 5 * distance
    assert found.own.distance > 0.3 * distance


def test_with_all_components_nothing_is_left_out() -> None:
    here = spectral(Loss.SOFTMAX, 3)
    here = replace(here, settings=replace(here.settings, rank=here.design.width))
    found = estimated(here, here.trained(), here.some(40))
    assert found.own.distance < 1e-9 * np.linalg.norm(found.updated.change)
