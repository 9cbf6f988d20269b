"""Mini-batch descent: one step by hand, and that windows, loops and empty mini-batches don't matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.pipeline.descent import Descender, Descent, DivergedError, Trace, Window, descend
from expunge.pipeline.losses import Loss

TWO = np.array([[1.0, 2.0], [3.0, -1.0]])


def window(
    rows: np.ndarray, labels: np.ndarray, edges: list[int], first: int = 0, closed: bool = True
) -> Window:
    return Window(rows, labels, np.array(edges, np.int64), first, closed)


def test_a_linear_step_by_hand() -> None:
    """w = (1, 1), scores 3 and 2, residuals 1 and -3: G = 2 (1, 2) - 6 (3, -1) = (-16, 10)."""
    found = descend(
        Descent(Loss.LINEAR, 0.1, 0.5),
        np.ones((1, 2)),
        [window(TWO, np.array([4.0, -1.0]), [0, 2])],
    )
    np.testing.assert_allclose(found, [[0.95 - 0.8, 0.95 + 0.5]], rtol=1e-15)


def test_a_logistic_step_by_hand() -> None:
    """At w = 0 f is 1/2: G = ((1, 2) - (3, -1)) / 2 = (-1, 1.5)."""
    found = descend(
        Descent(Loss.LOGISTIC, 0.2, 0.5),
        np.zeros((1, 2)),
        [window(TWO, np.array([1.0, -1.0]), [0, 2])],
    )
    np.testing.assert_allclose(found, [[-0.1, 0.15]], rtol=1e-15)


def test_a_softmax_step_by_hand() -> None:
    """At w = 0 every p is 1/3: class 0 gets 2/3 of row 0 and -1/3 of row 1, and so on."""
    found = descend(
        Descent(Loss.SOFTMAX, 0.6, 0.5),
        np.zeros((3, 2)),
        [window(TWO, np.array([0.0, 2.0]), [0, 2])],
    )
    gradient = np.array([[2 - 3, 4 + 1], [-1 - 3, -2 + 1], [-1 + 6, -2 - 2]]) / 3
    np.testing.assert_allclose(found, 0.3 * gradient, rtol=1e-14)


def random_rows(loss: Loss, q: int, n: int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = {
        Loss.LINEAR: rng.normal(size=n),
        Loss.LOGISTIC: rng.choice([-1.0, 1.0], n),
        Loss.SOFTMAX: rng.integers(0, q, n).astype(np.float64),
    }
    return rng.normal(size=(n, m)), labels[loss]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_cuts_into_windows_do_not_matter(data: st.DataObject) -> None:
    loss, q = data.draw(st.sampled_from([(Loss.LINEAR, 1), (Loss.LOGISTIC, 1), (Loss.SOFTMAX, 3)]))
    sizes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=8))
    edges = np.r_[0, np.cumsum(sizes)]
    n = int(edges[-1])
    rows, labels = random_rows(loss, q, n, 5, 1)
    descent, start = Descent(loss, 0.05, 0.1), np.full((q, 5), 0.1)
    traces = [Trace.empty(len(sizes), 5 * q) for _ in range(2)]
    wanted = descend(descent, start, [window(rows, labels, edges.tolist())], traces[0])
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    pieces: list[Window] = []
    first = 0
    for a, b in zip([0, *cuts], [*cuts, n], strict=True):
        if a == n and pieces:
            continue
        # Where rows are left, the iteration of the next one stays open.
        last = len(sizes) if b == n else int(np.searchsorted(edges[1:], b, "right")) + 1
        inner = np.clip(edges[first : last + 1], a, b) - a
        pieces.append(window(rows[a:b], labels[a:b], inner.tolist(), first, b == n))
        first = last - 1
    found = descend(descent, start, pieces, traces[1])
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(traces[1].gradients, traces[0].gradients, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(traces[1].trajectory, traces[0].trajectory, rtol=1e-12, atol=1e-14)
    assert traces[1].live.tolist() == sizes == traces[0].live.tolist()


@pytest.mark.parametrize("loss", [Loss.LINEAR, Loss.LOGISTIC])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 403])
def test_the_fused_loop_is_the_matrix_product(loss: Loss, n: int) -> None:
    rows, labels = random_rows(loss, 1, n, 29, 0)
    cut = window(rows, labels, [0, n // 3, n // 2, n])
    start = np.full((1, 29), 0.1)
    one, other = (
        descend(Descent(loss, 0.01, 0.1), start, [cut], fused=fused) for fused in (True, False)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_an_empty_mini_batch_decays_only() -> None:
    descent = Descent(Loss.LINEAR, 0.1, 0.5)
    rows, labels = np.empty((0, 2)), np.empty(0)
    trace = Trace.empty(2, 2)
    found = descend(descent, np.ones((1, 2)), [window(rows, labels, [0, 0, 0])], trace)
    np.testing.assert_allclose(found, 0.95**2, rtol=1e-15)
    assert trace.live.tolist() == [0, 0] and not trace.gradients.any()
    np.testing.assert_allclose(trace.trajectory, [[1.0, 1.0], [0.95, 0.95]], rtol=1e-15)


def test_divergence_names_its_iteration() -> None:
    """With x = 1, y = 0 a step multiplies w by 1 - 2 eta = -9: 10^10 is passed in the eleventh."""
    rows, labels = np.ones((20, 1)), np.zeros(20)
    cut = window(rows, labels, list(range(21)))
    with pytest.raises(DivergedError, match="iteration 10: choose a smaller") as caught:
        descend(Descent(Loss.LINEAR, 5.0, 0.0), np.ones((1, 1)), [cut])
    assert caught.value.iteration == 10
    with pytest.raises(DivergedError) as caught:
        descend(Descent(Loss.LINEAR, 5.0, 0.0), np.array([[np.nan]]), [cut])
    assert caught.value.iteration == 0


def test_the_trace_is_every_step() -> None:
    rows, labels = random_rows(Loss.LOGISTIC, 1, 30, 4, 0)
    descent, trace = Descent(Loss.LOGISTIC, 0.3, 0.01), Trace.empty(3, 4)
    end = descend(descent, np.zeros((1, 4)), [window(rows, labels, [0, 10, 25, 30])], trace)
    assert trace.live.tolist() == [10, 15, 5]
    step = descent.learning_rate / trace.live[:, np.newaxis] * trace.gradients
    after = np.vstack([trace.trajectory[1:], end])
    np.testing.assert_allclose(after, descent.decay * trace.trajectory + step, rtol=1e-13)
    for t, (a, b) in enumerate([(0, 10), (10, 25), (25, 30)]):
        z = labels[a:b] * (rows[a:b] @ trace.trajectory[t])
        wanted = (labels[a:b] / (1 + np.exp(z))) @ rows[a:b]
        np.testing.assert_allclose(trace.gradients[t], wanted, rtol=1e-12, atol=1e-13)


def test_the_start_is_not_touched() -> None:
    start = np.zeros((1, 2))
    cut = window(TWO, np.array([1.0, -1.0]), [0, 2])
    descend(Descent(Loss.LOGISTIC, 0.2, 0.5), start, [cut])
    assert not start.any()
    descender = Descender(Descent(Loss.LOGISTIC, 0.2, 0.5), start)
    descender.take(cut)
    assert start.any()
