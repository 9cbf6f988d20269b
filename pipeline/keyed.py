"""Row-keyed randomness: each draw is a function of what it is for, never of where a row stands.

A draw is ``Philox4x32-10`` (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) of the
counter (unit, ordinal, stage) under a key made from (random_state, purpose, path). Deleting a row
therefore changes no other row's draws: the ground on which exact deletion stands.

Only IEEE additions, multiplications and divisions are used, so the bits are the same everywhere:
no libm, no vendor logarithm, no fast-math.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numba import njit

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LN2 = 0.6931471805599453
_SQRT2 = 1.4142135623730951


def derive_key(random_state: int, purpose: str, *path: int) -> int:
    """Return the 64-bit key of one purpose, e.g. ``("seed",)`` or ``("reseed", step)``.

    Different (random_state, purpose, path) give independent keys (BLAKE2b of their text form).
    """
    text = repr((int(random_state), purpose, tuple(int(p) for p in path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@njit(cache=True, inline="always")
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Return Philox4x32-10 of four counter words under two key words (uint64 holding 32 bits each)."""
    for _ in range(10):
        p0 = _M0 * c0
        p1 = _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ k0,
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@njit(cache=True, inline="always")
def keyed_bits(key, unit, ordinal, stage):  # type: ignore[no-untyped-def]
    """Return 64 random bits (uint64) for one row (unit, ordinal) at one stage."""
    u = np.uint64(unit)
    k = np.uint64(key)
    r0, r1, _, _ = philox(
        u & _LOW,
        u >> _HALF,
        np.uint64(ordinal) & _LOW,
        np.uint64(stage) & _LOW,
        k & _LOW,
        k >> _HALF,
    )
    return r0 | (r1 << _HALF)


@njit(cache=True)
def negative_log(u):  # type: ignore[no-untyped-def]
    """Return -ln(u) for u in (0, 1], to about 1e-15 relative, by a fixed odd polynomial.

    With u = m 2^e and m in [1/sqrt 2, sqrt 2), ln m = 2 artanh(s), s = (m - 1) / (m + 1).
    """
    exponent = 0
    m = u
    while m < 0.5:
        m *= 2.0
        exponent -= 1
    if m * _SQRT2 < 1.0:
        m *= 2.0
        exponent -= 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 23.0
    for odd in range(21, 0, -2):
        p = p * z + 1.0 / odd
    return -(exponent * _LN2 + 2.0 * (s * p))


@njit(cache=True, inline="always")
def least_of_bits(bits):  # type: ignore[no-untyped-def]
    """Return 1 - u, exactly, for the u in (0, 1) that ``exponential`` makes of a row's bits.

    -ln u is not below it, and near it where it is small: most draws need no logarithm to be too large.
    """
    return (4503599627370495.5 - np.float64(bits >> np.uint64(12))) * 2.0**-52


@njit(cache=True)
def exponential(key, unit, ordinal, stage):  # type: ignore[no-untyped-def]
    """Return the row's own standard exponential draw for a stage (float64, > 0)."""
    bits = keyed_bits(key, unit, ordinal, stage)
    return negative_log((np.float64(bits >> np.uint64(12)) + 0.5) * 2.0**-52)


@njit(cache=True)
def _fill_bits(key, stage, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = keyed_bits(key, i, 0, stage)


def lattice_phase(key: int, step: int, spacing: int, size: int) -> np.ndarray:
    """Return the phase of one step: (size,) int64, uniform on the integers of [-spacing/2, spacing/2).

    This is epsilon theta of "Making AI Forget You", app. B.1.2, in units of the centroid grid.
    """
    bits = np.empty(size, np.uint64)
    _fill_bits(np.uint64(key), step, bits)
    return np.array([(int(b) * spacing >> 64) - spacing // 2 for b in bits], np.int64)
