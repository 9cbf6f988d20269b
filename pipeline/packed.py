"""A history's arrays as compiled code is handed them for each deletion: one array of their addresses.

Numba takes a third of a microsecond for each array that it is handed: for all of them about as long as
a deletion that changes nothing takes by itself. So addresses are looked up once, and again when an
array is another. Between compiled functions the steps go by reference, not as two hundred numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.experimental import structref
from numba.extending import intrinsic
from numpy.typing import NDArray

from .arrays import READ_ONLY
from .incremental import Steps
from .nearby import delete_places


class Packed:
    """Where the arrays of a history lie, for as long as they are the same.

    Copies, pickled ones too, know nothing: their arrays lie elsewhere.
    """

    __slots__ = ("_arrays", "table")

    def __init__(self) -> None:
        self._arrays: tuple[Any, ...] = (None, None, None, None)
        self.table = np.empty(0, np.int64)

    def __reduce__(self) -> tuple[type[Packed], tuple[()]]:
        return Packed, ()

    def of(
        self,
        steps: Steps,
        x: NDArray[np.float32],
        fixed: NDArray[np.int32],
        units: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return addresses and shapes of these arrays, as ``delete_packed`` takes them.

        ValueError for one that can't be written to, or is not in one piece.
        """
        known = self._arrays
        if not (known[0] is steps and known[1] is x and known[2] is fixed and known[3] is units):
            arrays = (*steps, x, fixed, units)
            for array in arrays:
                if not array.flags.carray:
                    raise ValueError(READ_ONLY)
            t, k, d = steps.quantized.shape
            shapes = t, k, d, len(units), steps.near.shape[1], steps.starts.shape[1]
            self.table = np.array([*(array.ctypes.data for array in arrays), *shapes], np.int64)
            self._arrays = steps, x, fixed, units
        return self.table


@intrinsic
def _pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """Return an address (int64) as a pointer."""

    def generate(context: Any, builder: Any, _: Any, arguments: list[Any]) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@structref.register
class _HeldType(types.StructRef):
    """``Steps`` by reference, in compiled code."""


class _Held(structref.StructRefProxy):
    """What makes one there."""


structref.define_constructor(_Held, _HeldType, list(Steps._fields))


@njit(cache=True, nogil=True)
def delete_packed(table, labels, removed, spacing, before, threshold, max_iter):  # type: ignore[no-untyped-def]
    """``nearby.delete_places`` of the arrays that ``Packed.of`` tells; labels (t, n): the steps' own.

    table: addresses in the order of ``Steps``, then x, fixed, units, then their shapes. It keeps nothing
    alive: the caller does.
    """
    t, k, d, n, near, spans = table[-6:]
    m = _Held(
        carray(_pointer(table[0]), (t, k, d), np.int64),
        carray(_pointer(table[1]), (t, k, d), np.float64),
        carray(_pointer(table[2]), (t, d), np.int64),
        carray(_pointer(table[3]), (t, k), np.int64),
        carray(_pointer(table[4]), (t, k, d), np.int64),
        carray(_pointer(table[5]), (t, 2), np.int64),
        carray(_pointer(table[6]), (t,), np.bool_),
        carray(_pointer(table[7]), (t, n), labels.dtype),
        carray(_pointer(table[8]), (t, n), np.float32),
        carray(_pointer(table[9]), (t, k), np.float64),
        carray(_pointer(table[10]), (t, near), np.uint16),
        carray(_pointer(table[11]), (t, near), np.float32),
        carray(_pointer(table[12]), (t, near), labels.dtype),
        carray(_pointer(table[13]), (t, spans), np.int64),
        carray(_pointer(table[14]), (t, spans), np.int64),
        carray(_pointer(table[15]), (t,), np.float64),
        carray(_pointer(table[16]), (t, k, d), np.int64),
        carray(_pointer(table[17]), (t,), np.float64),
        carray(_pointer(table[18]), (k,), np.int64),
        carray(_pointer(table[19]), (d,), np.float32),
        carray(_pointer(table[20]), (d,), np.float32),
        carray(_pointer(table[21]), (d,), np.int64),
        carray(_pointer(table[22]), (d,), np.int64),
        carray(_pointer(table[23]), (2,), np.int64),
        carray(_pointer(table[24]), (2,), np.int64),
    )
    x = carray(_pointer(table[25]), (n, d), np.float32)
    fixed = carray(_pointer(table[26]), (n, d), np.int32)
    units = carray(_pointer(table[27]), (n,), np.int64)
    return delete_places(m, x, fixed, units, removed, spacing, before, threshold, max_iter)
