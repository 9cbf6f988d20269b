"""The update with exact curvature: exact for linear models, second order otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression_problems import Problem, order, problem, relative

from expunge.pipeline.losses import Loss
from expunge.pipeline.provenance import Real, block_product, packed_times, unpack
from expunge.pipeline.regression_arrays import ExactBlocks, Trained
from expunge.pipeline.update import Updated, update, update_priu

CLASSIFIERS = [(Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]


class Runs:
    """The curvature of an ExactBlocks, given in runs of up to some blocks."""

    def __init__(self, kept: ExactBlocks, longest_run: int, products: bool) -> None:
        self.blocks = kept.blocks
        self.longest_run = longest_run
        self._kept = kept
        self._products = products
        self.asked: list[tuple[int, int]] = []

    def packed(self, first: int, last: int) -> np.ndarray:
        self.asked.append((first, last))
        return np.concatenate(self._kept.parts[first:last])

    def product(self, block: int) -> np.ndarray[tuple[int, ...], np.dtype[Real]] | None:
        return self._kept.products[block] if self._products else None


def with_products(here: Problem, trained: Trained) -> ExactBlocks:
    """The curvature and every block's product, whether or not they are worth it."""
    kept, live = trained.kept, trained.trace.live
    assert isinstance(kept, ExactBlocks)
    descent = here.settings.descent
    spans = [kept.blocks.span(block) for block in range(kept.blocks.count)]
    products = tuple(
        block_product(part, live[a:b], descent.learning_rate, descent.decay)
        for part, (a, b) in zip(kept.parts, spans, strict=True)
    )
    return replace(kept, products=products)


def updates(here: Problem, trained: Trained, gone: np.ndarray) -> dict[str, Updated]:
    """The same deletion with single blocks, runs of them, and products."""
    kept = with_products(here, trained)
    visits = here.visits(trained, gone)
    kinds = {
        "blocks": Runs(kept, 1, False),
        "runs": Runs(kept, 3, False),
        "one run": Runs(kept, 10**9, False),
        "products": Runs(kept, 1, True),
        "products and runs": Runs(kept, 10**9, True),
    }
    descent = here.settings.descent
    return {name: update(descent, trained.trace, e, visits) for name, e in kinds.items()}


linear_problems = st.builds(
    problem,
    st.just(Loss.LINEAR),
    st.integers(1, 60),
    st.integers(1, 4),
    batch=st.integers(1, 70),
    iterations=st.integers(1, 40),
    rate=st.sampled_from([0.01, 0.05]),
    l2=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1000),
    block=st.integers(1, 9),
)


@settings(deadline=None, max_examples=150)
@given(linear_problems, st.data())
def test_linear_models_are_updated_exactly(here: Problem, data: st.DataObject) -> None:
    n = len(here.rows.x)
    kind = data.draw(st.sampled_from(["some", "mini-batch", "all"]))
    if kind == "all":
        gone = np.arange(n)
    elif kind == "mini-batch":
        gone = np.sort(here.schedule.window_order(0, 0)[: here.settings.batch_slots])
    else:
        gone = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1)))), np.int64)
    trained = here.trained()
    w = trained.w.ravel()
    wanted = here.base_l(gone)
    scale = max(1.0, float(np.linalg.norm(w)))
    found = updates(here, trained, gone)
    for name, updated in found.items():
        assert np.linalg.norm(w + updated.change - wanted) <= 1e-10 * scale, name
        np.testing.assert_allclose(updated.starts[-1], updated.change, rtol=0, atol=1e-10 * scale)
    visits, start = here.visits(trained, gone), np.zeros(w.size)
    assert isinstance(trained.kept, ExactBlocks)
    by_priu = update_priu(here.settings.descent, trained.trace, trained.kept, visits, start)
    assert np.linalg.norm(by_priu - wanted) <= 1e-10 * scale
    # u at every block's beginning is that of BaseL's own trajectory.
    bare = here.without(gone).trained().trace.trajectory - trained.trace.trajectory
    firsts = [trained.kept.blocks.span(block)[0] for block in range(trained.kept.blocks.count)]
    for updated in found.values():
        np.testing.assert_allclose(updated.starts[:-1], bare[firsts], rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize(("loss", "q"), [(Loss.LINEAR, 1), *CLASSIFIERS])
def test_runs_and_products_change_nothing(loss: Loss, q: int) -> None:
    here = problem(loss, 400, 4, q, batch=20, iterations=100, block=7)
    trained = here.trained()
    one, *others = updates(here, trained, here.some(3)).values()
    for other in others:
        assert relative(other.change, one.change, one.change) < 1e-12
        np.testing.assert_allclose(other.starts, one.starts, rtol=0, atol=1e-12)


def test_runs_are_as_long_as_asked_for() -> None:
    here = problem(Loss.LINEAR, 400, 4, batch=20, iterations=100, block=7)
    trained = here.trained()
    kept = with_products(here, trained)
    runs = Runs(kept, 3, True)
    visits = here.visits(trained, here.some(200))
    update(here.settings.descent, trained.trace, runs, visits)
    assert runs.asked == [(0, 3), (3, 6), (6, 9), (9, 12), (12, 15)]


@pytest.mark.parametrize(("loss", "q"), [(Loss.LINEAR, 1), *CLASSIFIERS])
def test_deleting_nothing_changes_nothing(loss: Loss, q: int) -> None:
    here = problem(loss, 50, 3, q, batch=20, iterations=20)
    trained = here.trained()
    for updated in updates(here, trained, np.empty(0, np.int64)).values():
        assert not updated.change.any() and not updated.starts.any()
    visits = here.visits(trained, np.empty(0, np.int64))
    assert isinstance(trained.kept, ExactBlocks)
    start = np.zeros(trained.w.size)
    again = update_priu(here.settings.descent, trained.trace, trained.kept, visits, start)
    assert relative(again, trained.w.ravel(), trained.w) < 1e-12


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_percent_is_close(loss: Loss, q: int, dtype: str) -> None:
    here = problem(loss, 10_000, 6, q, batch=500, iterations=300, rate=0.3, dtype=dtype)
    trained = here.trained()
    w, gone = trained.w.ravel(), here.some(100)
    wanted = here.base_l(gone)
    updated = updates(here, trained, gone)["blocks"]
    assert relative(w + updated.change, wanted, wanted - w) < 0.01
    assert isinstance(trained.kept, ExactBlocks)
    visits, start = here.visits(trained, gone), np.zeros(w.size)
    by_priu = update_priu(here.settings.descent, trained.trace, trained.kept, visits, start)
    assert relative(by_priu, wanted, wanted - w) < 0.01


@pytest.mark.parametrize(("loss", "q"), CLASSIFIERS)
def test_the_distance_is_of_second_order(loss: Loss, q: int) -> None:
    """Nested deletions that all push the same way (rows of one class), from 0.5% to 8%.

    With rows picked at random the change itself grows like a square root, and so no slope is sharp.
    """
    here = problem(loss, 4000, 4, q, batch=400, iterations=200, rate=0.3)
    trained = here.trained()
    w = trained.w.ravel()
    own = np.flatnonzero(here.rows.labels == here.rows.labels[0])
    rates, distances, changes = [], [], []
    for count in (20, 40, 80, 160, 320):
        gone = own[:count]
        wanted = here.base_l(gone)
        updated = updates(here, trained, gone)["blocks"]
        rates.append(count / 4000)
        distances.append(float(np.linalg.norm(w + updated.change - wanted)))
        changes.append(float(np.linalg.norm(wanted - w)))
    assert order(rates, changes) == pytest.approx(1.0, abs=0.15)
    assert order(rates, distances) == pytest.approx(2.0, abs=0.3)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_packed_products(size: int) -> None:
    rng = np.random.default_rng(size)
    packed, u = rng.normal(size=size * (size + 1) // 2), rng.normal(size=size)
    full, out = np.empty((size, size)), np.empty(size)
    unpack(packed, full)
    packed_times(packed, u, out)
    assert np.array_equal(full, full.T)
    np.testing.assert_allclose(out, full @ u, rtol=1e-12, atol=1e-13)
