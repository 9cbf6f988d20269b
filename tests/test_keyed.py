"""Row-keyed draws: the generator's known answers, the laws of the draws, and the machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numba import jit

from expunge.pipeline import fixedpoint, keyed, lloyd, seeding
from expunge.pipeline.keyed import derive_key, exponential, lattice_phase, negative_log, philox

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    assert philox(*(np.uint64(w) for w in counter + key)) == answer


def test_keyed_bits_are_two_philox_words_of_unit_ordinal_and_stage() -> None:
    # Known answer 3 as a row: unit = words 0 and 1, ordinal = word 2, stage = word 3.
    unit, key = 0x85A308D3_243F6A88, 0x299F31D0_A4093822
    bits = keyed.keyed_bits(np.uint64(key), np.uint64(unit), 0x13198A2E, 0x03707344)
    assert bits == 0x94FDCCEB_D16CFE09


def test_every_part_of_a_draw_s_name_changes_it() -> None:
    def draw(key: int, unit: int, ordinal: int, stage: int) -> float:
        return float(exponential(np.uint64(key), unit, ordinal, stage))

    names = [(5, 7, 2, 1), (6, 7, 2, 1), (5 + (1 << 32), 7, 2, 1), (5, 8, 2, 1), (5, 7, 3, 1)]
    names += [(5, 7 + (1 << 32), 2, 1), (5, 7 + (1 << 62), 2, 1), (5, 7, 2, 2), (5, 7, 1, 2)]
    assert len({draw(*name) for name in names}) == len(names)


def test_keys_differ_by_state_purpose_and_path() -> None:
    names: list[tuple[Any, ...]] = [
        (state, purpose, *path)
        for state in range(-3, 30)
        for purpose in ("seed", "reseed", "phase")
        for path in ((), (0,), (1,), (11,), (0, 0), (0, 1), (1, 0), (1, 1))
    ]
    names += [(2**64 + 1, "seed"), (1, "seed1"), (1, "seed, 1")]
    keys = [derive_key(*name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(0 <= key < 2**64 for key in keys)


def test_keys_take_numpy_integers_for_what_they_are() -> None:
    state: Any = np.int64(3)
    step: Any = np.int32(4)
    assert derive_key(state, "reseed", step) == derive_key(3, "reseed", 4)


def test_draws_never_change_between_releases() -> None:
    """Stored models are replayed with them: a change here breaks every exact deletion."""
    assert derive_key(0, "seed") == 0xC9BACA57EDF02B4B
    assert derive_key(12, "reseed", 3) == 0x363DF6BD69B5D16D
    key = np.uint64(derive_key(0, "seed"))
    assert exponential(key, 17, 0, 2).hex() == "0x1.7dcce78ce7e39p-1"
    assert lattice_phase(derive_key(0, "phase"), 1, 1001, 4).tolist() == [-129, 84, -395, -39]


def uniforms() -> np.ndarray:
    """Points of (0, 1), dense at both ends and around the fold at 1/sqrt 2."""
    rng = np.random.default_rng(1)
    fold = np.sqrt(0.5) + np.arange(-20, 21) * 2.0**-53
    ends = [2.0**-53, 2.0**-52, 0.25, 0.5, 1 - 2.0**-53]
    small = 2.0 ** -rng.uniform(0, 53, 2000)
    return np.concatenate([rng.random(4000), small, 1 - small[small > 2.0**-53], fold, ends])


def test_negative_log_is_right_to_4e_16() -> None:
    with localcontext() as context:
        context.prec = 40
        for u in uniforms().tolist():
            if u == 1.0:
                continue
            true = -Decimal(u).ln()
            assert abs(Decimal(float(negative_log(u))) - true) <= Decimal("4e-16") * true, u


def test_negative_log_of_one_is_zero_and_it_never_rises() -> None:
    assert negative_log(1.0) == 0.0
    points = np.sort(uniforms())
    values = [negative_log(u) for u in points[::20]]
    assert all(a >= b for a, b in pairwise(values))


def test_exponential_draws_follow_exp_1() -> None:
    n = 20_000
    key = np.uint64(derive_key(3, "seed"))
    for draws in (
        np.sort([exponential(key, unit, 0, 0) for unit in range(n)]),
        np.sort([exponential(key, 5, 0, stage) for stage in range(n)]),
    ):
        assert draws[0] > 0
        assert abs(draws.mean() - 1) < 4 / np.sqrt(n)
        law = 1 - np.exp(-draws)
        distance = max((np.arange(1, n + 1) / n - law).max(), (law - np.arange(n) / n).max())
        assert distance * np.sqrt(n) < 1.95, "Kolmogorov-Smirnov at 0.1%"


def test_exponential_draws_of_neighbours_are_uncorrelated() -> None:
    key = np.uint64(derive_key(4, "seed"))
    n = 10_000
    base = np.array([exponential(key, unit, 0, 0) for unit in range(n + 1)]) - 1
    later = np.array([exponential(key, unit, 0, 1) for unit in range(n)]) - 1
    twin = np.array([exponential(key, unit, 1, 0) for unit in range(n)]) - 1
    for other in (base[1:], later, twin):
        assert abs((base[:n] * other).mean()) < 4 / np.sqrt(n)


@pytest.mark.parametrize(
    ("spacing", "values"),
    [(1, [0]), (2, [-1, 0]), (3, [-1, 0, 1]), (4, [-2, -1, 0, 1]), (5, [-2, -1, 0, 1, 2])],
)
def test_phases_are_uniform_on_half_open_half_spacings(spacing: int, values: list[int]) -> None:
    n = 10_000
    phases = lattice_phase(derive_key(1, "phase"), 2, spacing, n)
    assert phases.dtype == np.int64
    found, counts = np.unique(phases, return_counts=True)
    assert found.tolist() == values
    assert (np.abs(counts - n / spacing) < 4 * np.sqrt(n / spacing)).all()


@pytest.mark.parametrize("spacing", [2**23, 2**23 - 1, 2**18 + 1])
def test_wide_phases_fill_their_range(spacing: int) -> None:
    n = 10_000
    phases = lattice_phase(derive_key(1, "phase"), 2, spacing, n)
    assert -(spacing // 2) <= phases.min() < -0.499 * spacing
    assert 0.499 * spacing < phases.max() <= (spacing - 1) // 2
    assert abs(phases.mean()) < 4 * spacing / np.sqrt(12 * n)
    assert abs(phases.std() / spacing - 12**-0.5) < 0.01


def test_phases_differ_by_step_and_key_but_not_by_how_many_are_asked_for() -> None:
    key = derive_key(1, "phase")
    phases = lattice_phase(key, 1, 10**6, 8)
    np.testing.assert_array_equal(phases[:3], lattice_phase(key, 1, 10**6, 3))
    assert (phases != lattice_phase(key, 2, 10**6, 8)).any()
    assert (phases != lattice_phase(derive_key(2, "phase"), 1, 10**6, 8)).any()


FUSED = re.compile(r"\b(?:v?fn?m(?:add|sub)|fml[as])\w*")
"""Fused multiply-add, x86 and ARM."""
SINGLES = re.compile(r"vfn?m(?:add|sub)\w*ps|fml[as]\s+v\d+\.4s|fml[as]\.4s")
"""The same on vectors of float32."""


def machine_code(function: Any, *arguments: Any, **flags: Any) -> str:
    """Compile a copy of a compiled function for these arguments: its machine code.

    A copy, since Numba does not show the code of functions that it loads from its cache.
    """
    copy = jit(**{**function.targetoptions, **flags})(function.py_func)
    copy(*arguments)
    (code,) = copy.inspect_asm().values()
    return str(code)


def draw_arguments() -> tuple[Any, ...]:
    return np.uint64(1), 2, 3, 4


def pass_arguments(kind: type[np.generic]) -> tuple[Any, ...]:
    """Two rows, two features; float32 rows come with a scaling and int32 rows without."""
    scale = np.ones(2 if kind is np.float32 else 0)
    return np.ones((2, 2), kind), np.arange(2), scale, scale, np.zeros((2, 2), np.int64)


def assign_arguments(kind: type[np.generic]) -> tuple[Any, ...]:
    x, units, lower, factor, centres = pass_arguments(kind)
    sizes, none = np.zeros(2, np.int64), np.empty(0, np.float32)
    labels = np.empty(0, np.int32)
    return x, units, lower, factor, centres, 0.1, labels, none, sizes, centres.copy()


def race_arguments(kind: type[np.generic]) -> tuple[Any, ...]:
    x, units, lower, factor, centres = pass_arguments(kind)
    return x, units, units * 0, lower, factor, centres, 0.1, np.uint64(1), 0


def quantise_arguments() -> tuple[Any, ...]:
    return np.ones((2, 2), np.float32), np.ones(2), np.ones(2), np.empty((2, 2), np.int32)


CASES: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "exponential": (exponential, draw_arguments),
    "negative_log": (negative_log, lambda: (0.3,)),
    "race of float32": (seeding._race_rows, lambda: race_arguments(np.float32)),
    "race of int32": (seeding._race_rows, lambda: race_arguments(np.int32)),
    "quantise": (fixedpoint.quantise, quantise_arguments),
    "assign float32": (lloyd.assign_rows, lambda: assign_arguments(np.float32)),
    "assign int32": (lloyd.assign_rows, lambda: assign_arguments(np.int32)),
}


def test_the_search_finds_fused_multiply_adds_where_they_are_allowed() -> None:
    code = machine_code(negative_log, 0.3, fastmath={"contract"})
    if not FUSED.search(code):
        pytest.skip("this processor has no fused multiply-add, so none could be found")
    assert "mul" in machine_code(negative_log, 0.3)


@pytest.mark.parametrize("name", CASES)
def test_no_fused_multiply_add_in_machine_code(name: str) -> None:
    function, arguments = CASES[name]
    assert not function.targetoptions.get("fastmath")
    code = machine_code(function, *arguments())
    assert "mul" in code, "the code is not shown"
    # The float32 distances of ``lanes`` are a filter and may be fused; nothing in float64 may.
    exact = [line for line in code.splitlines() if not SINGLES.search(line)]
    assert FUSED.findall("\n".join(exact)) == []
