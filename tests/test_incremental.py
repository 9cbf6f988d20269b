"""Deletion by incremental replay: adversaries, interruptions, copies, and what it looks at."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from replay_checks import (
    check_steps,
    compare,
    held_margins,
    listed,
    overlapping,
    steps_of,
    true_margins,
)
from support import same

from expunge import KMeans, QKMeans
from expunge.pipeline import clusterers
from expunge.pipeline.fixedpoint import ROW_GRID
from expunge.pipeline.incremental import Steps
from expunge.pipeline.lloyd import relative_error

PIPELINE = Path(clusterers.__file__).parent


# ----------------------------------------------------------------------- adversarial orders


def nearest_a_boundary(model: KMeans, _: int) -> int:
    m = steps_of(model)
    t = int(m.state[1]) - 1
    return int(model._rows.units[np.argmin(held_margins(m, t))])


def a_seed(model: KMeans, number: int) -> int:
    drawn = model.record_.steps[0].centroids.drawn[:, 0]
    return int(drawn[number % len(drawn)])


def one_cluster_in_turn(model: KMeans, number: int) -> int:
    live = np.flatnonzero(model._rows.units >= 0)
    labels = model.predict(model._rows.x[live])
    return int(model._rows.units[live[np.argmin(labels)]])


def an_extreme(model: KMeans, number: int) -> int:
    live = np.flatnonzero(model._rows.units >= 0)
    feature = number % model._rows.x.shape[1]
    return int(model._rows.units[live[np.argmax(model._rows.x[live, feature])]])


ORDERS: list[Callable[[KMeans, int], int]] = [
    nearest_a_boundary,
    a_seed,
    one_cluster_in_turn,
    an_extreme,
]
MODELS: dict[str, Callable[[], KMeans]] = {
    "kmeans": lambda: KMeans(6, random_state=1),
    "in bounds": lambda: KMeans(6, random_state=1, bounds=(0.0, 3.0)),
    "fine": lambda: QKMeans(6, 1e-4, 0.0, random_state=1, bounds=(-1.0, 4.0)),
    "small clusters": lambda: QKMeans(6, 1e-3, 1.0, random_state=1),
    "one step": lambda: KMeans(6, 1, 1),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("order", ORDERS)
def test_adversarial_orders(kind: str, order: Callable[[KMeans, int], int]) -> None:
    model = MODELS[kind]().fit(overlapping(2000, 3, 4))
    for number in range(60):
        model.delete(order(model, number))
        if number % 6 == 0:
            compare(model)
            check_steps(model)
    compare(model)


@pytest.mark.parametrize(
    ("rows", "clusters", "gamma"), [(40, 6, 0.0), (40, 6, 1.0), (700, 300, 0.5)]
)
def test_down_to_one_row(rows: int, clusters: int, gamma: float) -> None:
    """Clusters run empty, thresholds move with every row, labels have two bytes, rows are equal."""
    rng = np.random.default_rng(rows)
    x = rng.integers(0, 30, (rows, 2)).astype(np.float32) / 30
    model = QKMeans(clusters, 1e-3, gamma, random_state=2, bounds=(0.0, 1.0)).fit(x)
    order = rng.permutation(rows)
    for part in np.array_split(order[:-1], 39 if rows == 40 else 8):
        model.delete(part)
        compare(model)
        if model._history:
            check_steps(model)
    assert model.n_rows_ == 1
    assert model.delete(int(order[-1])).rows == 1 and model.empty_


# ----------------------------------------------------------------------- near-ties of long rows


def mirrored() -> np.ndarray:
    """Two groups of 300 x 784 that mirror each other, and 60 rows within 6 grid steps of the middle.

    The middle rows' two distances are equal to 2e-6 of themselves: float32 can't tell.
    """
    rng = np.random.default_rng(7)
    half = ROW_GRID // 4 + rng.integers(0, 16, (300, 784))
    away = np.repeat(2 + np.arange(30) % 5, 2)[:, np.newaxis] * np.tile([[1], [-1]], (30, 784))
    rows = np.concatenate([half, ROW_GRID - half, ROW_GRID // 2 + away])
    return (rows / ROW_GRID).astype(np.float32)


def test_near_ties_of_long_rows() -> None:
    """Rows that float32 can't place change cluster by moves of a few grid steps, and are seen."""
    model = KMeans(2, random_state=0, bounds=(0.0, 1.0)).fit(mirrored())
    tied, last = slice(600, 660), int(steps_of(model).state[1]) - 1
    margins = true_margins(model, last)[1]
    distance = 0.25 * 28 * ROW_GRID
    assert margins[tied].max() < 0.02 * relative_error(784) * distance
    flips = []
    order = np.random.default_rng(1).permutation(600)[:30].tolist() + [600, 611, 5, 622]
    for unit in order:
        before = steps_of(model).labels[: last + 1, tied].copy()
        model.delete(unit)
        flips.append(int((steps_of(model).labels[: last + 1, tied] != before).sum()))
        check_steps(model)
        compare(model)
    assert sum(flips) > 300, flips


# ----------------------------------------------------------------------- what is looked at


def test_shares_of_what_deletions_come_to() -> None:
    x = overlapping(4000, 4, 5)
    units = np.random.default_rng(0).permutation(4000)[:300].tolist()
    found: dict[str, Counter[str]] = {}
    looked_at = {}
    for name, model in (
        ("kmeans", KMeans(4, random_state=3, bounds=(-2.0, 5.0))),
        ("coarse", QKMeans(4, 0.02, random_state=3, bounds=(-2.0, 5.0))),
        ("own bounds", QKMeans(4, 0.02, random_state=3)),
    ):
        model.fit(x)
        done = [model.delete(unit) for unit in units]
        found[name] = Counter(d.action for d in done)
        looked_at[name] = sum(d.looked_at for d in done)
        compare(model)
    assert found["kmeans"]["replayed"] >= 280, found
    assert found["coarse"]["unchanged"] >= 280, found
    assert not found["kmeans"]["retrained"] and not found["coarse"]["retrained"], found
    assert 0 < found["own bounds"]["retrained"] <= 10, found
    # Of all rows at every step, few are looked at.
    assert looked_at["kmeans"] < 0.02 * 300 * 4000 * 11, looked_at


def test_an_unchanged_deletion_looks_at_no_row_and_makes_no_pass() -> None:
    model = QKMeans(4, 0.05, random_state=3, bounds=(-2.0, 5.0)).fit(overlapping(2000, 4, 6))
    unchanged = 0
    for unit in range(100):
        m = steps_of(model)
        before, passes = copy.deepcopy(m), model._rows.passes
        done = model.delete(unit)
        if done.action != "unchanged":
            continue
        unchanged += 1
        assert done.looked_at == done.passes == 0 and done.first_step is None
        assert model._rows.passes == passes
        others = np.arange(2000) != unit
        assert np.array_equal(before.margins[:, others], m.margins[:, others])
        assert np.array_equal(before.labels[:, others], m.labels[:, others])
        for t in range(int(m.state[1])):
            (places, old), (kept, new) = listed(before, t), listed(m, t)
            old = old[places != unit]
            assert np.array_equal(places[places != unit], kept)
            assert np.array_equal(before.until[t][old], m.until[t][new])
        for name in ("quantized", "credit", "drift", "reach", "listed_at", "state"):
            assert np.array_equal(getattr(before, name), getattr(m, name)), name
    assert unchanged >= 80


def test_the_order_of_deletions_leaves_no_trace_in_the_model() -> None:
    x = overlapping(1500, 3, 8)
    units = np.random.default_rng(3).permutation(1500)[:120]
    records = []
    for order in (units, units[::-1], np.sort(units)):
        model = KMeans(5, random_state=2).fit(x)
        for unit in order.tolist():
            model.delete(unit)
        records.append(model.record_)
    same(records[0], records[1])
    same(records[0], records[2])


# ----------------------------------------------------------------------- tampering is seen

Tamper = Callable[[Steps, Steps], None]


def _inflate_margins(m: Steps, _: Steps) -> None:
    left = m.until - m.drift[:, np.newaxis]
    m.until[:] = m.drift[:, np.newaxis] + np.where(left > 0, 1.5 * left, left)


def _forget_drift(m: Steps, _: Steps) -> None:
    m.drift[:] = 0.0


def _raise_until(m: Steps, _: Steps) -> None:
    m.until[:] = np.inf


def _lose_lists(m: Steps, _: Steps) -> None:
    m.ends[:] = m.starts
    m.reach[:] = np.inf


def _keep_loss(m: Steps, before: Steps) -> None:
    m.loss[:] = before.loss


def _keep_sums(m: Steps, before: Steps) -> None:
    m.sums[1:] = before.sums[1:]


@pytest.mark.parametrize(
    "tamper",
    [
        None,
        _inflate_margins,
        _forget_drift,
        _raise_until,
        _lose_lists,
        _keep_loss,
        _keep_sums,
    ],
)
def test_tampering_with_what_is_kept_shows(tamper: Tamper | None) -> None:
    model = KMeans(5, random_state=0, bounds=(0.0, 1.0))
    model.fit(np.random.default_rng(0).random((3000, 2)))
    for unit in np.random.default_rng(1).permutation(3000)[:40].tolist():
        before = copy.deepcopy(steps_of(model))
        model.delete(unit)
        if tamper:
            tamper(steps_of(model), before)
    model._history._record = None  # type: ignore[union-attr]
    if tamper is None:
        compare(model)
        return
    with pytest.raises(AssertionError):
        compare(model)


# ----------------------------------------------------------------------- copies and long chains


def _joblib(model: KMeans) -> KMeans:
    joblib = pytest.importorskip("joblib")
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _joblib]
)
def test_a_copy_goes_on_by_itself(through: Callable[[KMeans], KMeans]) -> None:
    model = QKMeans(3, 1e-3, random_state=0).fit(overlapping(400, 3, 9))
    model.delete([1, 2])
    other = through(model)
    for unit in (0, 50, int(other.record_.steps[0].centroids.drawn[0, 0]), 49, 51):
        assert other.delete(unit).rows == 1
        assert other.delete(unit).ignored == 1
        place = unit
        assert not other._rows.x[place].any() and not other._rows._fixed[place].any()
        compare(other)
        check_steps(other)
    assert model.n_rows_ == 398
    compare(model)


def test_room_is_made_for_the_steps_there_are() -> None:
    rng = np.random.default_rng(0)
    model = KMeans(20, max_iter=10**7, random_state=0).fit(rng.random((3000, 2)))
    assert 16 < int(steps_of(model).state[1]) <= len(steps_of(model).drift) < 1000
    for unit in rng.permutation(3000)[:20].tolist():
        model.delete(unit)
    compare(model)
    check_steps(model)


# ----------------------------------------------------------------------- interruptions


class _Interrupt:
    """Raises KeyboardInterrupt at one line, by its number, of what a deletion runs through."""

    names = "history.py", "quantized.py", "replay.py", "arrays.py"
    files = tuple(str(PIPELINE / name) for name in names)

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def interrupted(model: KMeans, unit: int, at: int) -> bool:
    """Delete a unit, interrupted at a line; False where the deletion has no so many lines."""
    trace = sys.gettrace()
    try:
        sys.settrace(_Interrupt(at))
        model.delete(unit)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(trace)
    return False


@pytest.mark.parametrize("which", ["plain", "seed", "bound", "lone"])
@pytest.mark.parametrize("then", ["look", "delete", "empty"])
def test_interrupted_anywhere_and_completed_by_what_comes_next(which: str, then: str) -> None:
    x = np.random.default_rng(0).random((60, 2)).astype(np.float32).round(1)
    if which == "lone":
        x = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [0.5]], np.float32)
    fitted = QKMeans(3, 0.01, random_state=0, bounds=None if which == "bound" else (0.0, 1.0)).fit(
        x
    )
    drawn = fitted.record_.steps[0].centroids.drawn[:, 0].tolist()
    plain = next(u for u in range(1, len(x)) if u not in drawn)
    unit = {"plain": plain, "seed": drawn[1], "bound": int(np.argmax(x[:, 0])), "lone": 5}[which]
    at = 0
    while True:
        model = copy.deepcopy(fitted)
        if not interrupted(model, unit, at):
            break
        at += 5 if at < 60 else 23
        if then == "delete":
            model.delete(2)
        if then == "empty":
            assert model.delete(range(len(x))).rows >= len(x) - 1
            assert model.empty_
            continue
        compare(model)
        model.delete(unit)
        assert model.delete(unit).ignored == 1
        compare(model)
        model.delete(0)
        compare(model)
    assert at > 10
