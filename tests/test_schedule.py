"""Mini-batches: every slot once an epoch, found again without a stored permutation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.pipeline.schedule import Schedule, permute, unpermute

schedules = st.builds(
    Schedule,
    random_state=st.integers(0, 2**31),
    cells=st.integers(1, 9),
    capacity=st.integers(1, 12),
    window=st.integers(1, 4),
    batch_slots=st.integers(1, 40),
    iterations=st.integers(1, 25),
)


def epoch_slots(schedule: Schedule, epoch: int) -> np.ndarray:
    """(slots, 2): the cell and the slot at each position of an epoch, window by window."""
    found = []
    for window in range(schedule.windows):
        cells = schedule.window_cells(epoch, window)
        place, slot = np.divmod(schedule.window_order(epoch, window), schedule.capacity)
        found.append(np.column_stack([cells[place], slot]))
    return np.concatenate(found)


@settings(deadline=None, max_examples=100)
@given(schedules)
def test_every_slot_comes_once_an_epoch(schedule: Schedule) -> None:
    wanted = [(c, s) for c in range(schedule.cells) for s in range(schedule.capacity)]
    for epoch in (0, 1, 7):
        assert sorted(map(tuple, epoch_slots(schedule, epoch).tolist())) == wanted


@settings(deadline=None, max_examples=100)
@given(schedules)
def test_mini_batches_cut_every_epoch_without_a_gap(schedule: Schedule) -> None:
    end = 0
    for iteration in range(schedule.iterations):
        epoch, first, last = schedule.span(iteration)
        assert epoch == iteration // schedule.per_epoch
        assert first == (0 if iteration % schedule.per_epoch == 0 else end)
        assert 0 < last - first <= schedule.batch_slots
        if (iteration + 1) % schedule.per_epoch == 0:
            assert last == schedule.slots
        else:
            assert last - first == schedule.batch_slots
        end = last


@settings(deadline=None, max_examples=100)
@given(schedules, st.data())
def test_visits_are_those_of_a_search(schedule: Schedule, data: st.DataObject) -> None:
    """Few rows and many take different ways through the cells."""
    slots = [(c, s) for c in range(schedule.cells) for s in range(schedule.capacity)]
    chosen = data.draw(st.lists(st.sampled_from(slots), unique=True, max_size=30))
    wanted = []
    for iteration in range(schedule.iterations):
        epoch, first, last = schedule.span(iteration)
        here = set(map(tuple, epoch_slots(schedule, epoch)[first:last].tolist()))
        wanted += [(iteration, row) for row, slot in enumerate(chosen) if slot in here]
    cells, places = (np.array([pair[i] for pair in chosen], np.int64) for i in (0, 1))
    when, which = schedule.visits(cells, places)
    assert list(zip(when.tolist(), which.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100, 1023, 1025])
def test_a_permutation_and_its_inverse(size: int) -> None:
    for key in (0, 1, 2**63, 2**64 - 1):
        image = [permute(np.uint64(key), size, i) for i in range(size)]
        assert sorted(image) == list(range(size))
        assert [unpermute(np.uint64(key), size, j) for j in image] == list(range(size))


def test_far_indices_permute_and_come_back() -> None:
    size = 2**40 + 3
    for index in (0, 1, size // 2, size - 1):
        image = permute(np.uint64(9), size, index)
        assert 0 <= image < size and unpermute(np.uint64(9), size, image) == index


def test_the_last_window_is_short() -> None:
    schedule = Schedule(3, cells=7, capacity=5, window=3, batch_slots=4, iterations=9)
    assert schedule.windows == 3 and schedule.per_epoch == 9
    assert [len(schedule.window_cells(0, w)) for w in range(3)] == [3, 3, 1]
    assert [len(schedule.window_order(0, w)) for w in range(3)] == [15, 15, 5]
    assert schedule.span(8) == (0, 32, 35)


def test_a_mini_batch_larger_than_the_data_is_all_of_it() -> None:
    schedule = Schedule(3, cells=2, capacity=3, window=2, batch_slots=100, iterations=4)
    assert schedule.per_epoch == 1
    assert [schedule.span(t) for t in range(4)] == [(t, 0, 6) for t in range(4)]
    when, which = schedule.visits(np.array([1]), np.array([2]))
    assert when.tolist() == [0, 1, 2, 3] and which.tolist() == [0, 0, 0, 0]


def test_only_the_random_state_decides() -> None:
    def orders(state: int) -> list[list[list[int]]]:
        return [epoch_slots(Schedule(state, 4, 50, 2, 10, 30), e).tolist() for e in range(3)]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    first, second, third = orders(1)
    assert first != second and second != third


def test_neighbours_are_torn_apart() -> None:
    """Over many epochs a slot's position is uniform: chi squared of 20 bins within 5 deviations."""
    schedule = Schedule(0, 1, 1000, 1, 50, 20 * 400)
    for slot in (0, 1, 999):
        when, _ = schedule.visits(np.array([0]), np.array([slot]))
        counts = np.bincount(when % 20, minlength=20)
        chi = float(((counts - 20.0) ** 2 / 20.0).sum())
        assert abs(chi - 19.0) < 5 * (2 * 19.0) ** 0.5


def test_rows_of_a_mini_batch_part_in_the_next_epoch() -> None:
    schedule = Schedule(0, 1, 1000, 1, 50, 40)
    one, other = (set(schedule.window_order(epoch, 0)[:50].tolist()) for epoch in (0, 1))
    assert len(one & other) < 12
