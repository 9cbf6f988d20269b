"""SIMD lanes for the fused pass, as LLVM vectors: what LLVM's own vectorizer does not find.

``turn_rows`` turns rows feature-major, 8 by 8 in registers; ``nearest_lanes`` keeps the squared
distances of 16 rows to 4 centres in registers; ``prefetch`` asks the memory for what comes next.
Both are plain IEEE float32 in a fixed order, without contraction or any other fast-math flag, and
LLVM maps the vectors to whatever the processor has. They take addresses (``array.ctypes.data``):
the callers in ``lloyd`` and ``seeding`` own the arrays and their shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64
"""Rows of a block."""
TILE = 8
"""Rows and features that are turned at a time."""
VECTOR = 16
"""Rows whose distances are held in one vector."""
CENTRES = 4
"""Centres that share a load of a row's feature."""

_I32 = ir.IntType(32)
_F32 = ir.FloatType()
_BYTE_POINTER = ir.PointerType(ir.IntType(8))
Builder = Any
Value = Any


def _vector(kind: ir.Type, length: int) -> ir.Type:
    return ir.VectorType(kind, length)


def _mask(places: list[int]) -> ir.Constant:
    return ir.Constant(_vector(_I32, len(places)), places)


def _index(like: Value, number: int) -> ir.Constant:
    return ir.Constant(like.type, number)


def _at(builder: Builder, base: Value, row: Value, width: Value) -> Value:
    """The address of 4-byte values: base + 4 row width."""
    return builder.add(base, builder.mul(builder.mul(row, width), _index(base, 4)))


def _load(builder: Builder, address: Value, kind: ir.Type) -> Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _store(builder: Builder, value: Value, address: Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def _splat(builder: Builder, value: Value, length: int) -> Value:
    """A vector that holds one value everywhere."""
    kind = _vector(value.type, length)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(single, single, _mask([0] * length))


def _prefetch(builder: Builder, address: Value) -> None:
    """Ask for the memory at an address soon; harmless where there is none."""
    kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE_POINTER], kind)
    flags = [ir.Constant(_I32, flag) for flag in (0, 3, 1)]
    builder.call(function, [builder.inttoptr(address, _BYTE_POINTER), *flags])


def _transpose(builder: Builder, rows: list[Value]) -> list[Value]:
    """Transpose TILE vectors of TILE values by three rounds of exchanges."""
    for width in (1, 2, 4):
        turned = list(rows)
        for i in (i for i in range(TILE) if not i & width):
            low = [TILE + (e ^ width) if e & width else e for e in range(TILE)]
            high = [TILE + e if e & width else e | width for e in range(TILE)]
            turned[i] = builder.shuffle_vector(rows[i], rows[i | width], _mask(low))
            turned[i | width] = builder.shuffle_vector(rows[i], rows[i | width], _mask(high))
        rows = turned
    return rows


def _turn_rows(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
    rows, d, turned = arguments
    one, tile, lanes = _index(d, 1), _index(d, TILE), _index(d, LANES)
    starts = [_at(builder, rows, _index(d, r), d) for r in range(TILE)]
    tiles = builder.udiv(builder.add(d, _index(d, TILE - 1)), tile)
    last = builder.sub(d, tile)
    with cgutils.for_range(builder, tiles, intp=d.type) as loop:
        # The last tile overlaps the one before where TILE does not divide d.
        f = builder.mul(loop.index, tile)
        f = builder.select(builder.icmp_signed("<", f, last), f, last)
        loaded = [_load(builder, _at(builder, s, f, one), _vector(_I32, TILE)) for s in starts]
        floats = [builder.sitofp(v, _vector(_F32, TILE)) for v in loaded]
        for e, column in enumerate(_transpose(builder, floats)):
            row = builder.add(f, _index(d, e))
            _store(builder, column, _at(builder, turned, row, lanes))
    return context.get_dummy_value()


def _nearest_lanes(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
    turned, d, centres, k, best_at, second_at, label_at = arguments
    floats, ints = _vector(_F32, VECTOR), _vector(_I32, VECTOR)
    infinite = ir.Constant(floats, [ir.Constant(_F32, float("inf"))] * VECTOR)
    best = cgutils.alloca_once_value(builder, infinite)
    second = cgutils.alloca_once_value(builder, infinite)
    label = cgutils.alloca_once_value(builder, ir.Constant(ints, [0] * VECTOR))
    sums = [cgutils.alloca_once(builder, floats) for _ in range(CENTRES)]
    one = _index(d, 1)
    groups = cgutils.for_range_slice(builder, _index(k, 0), k, _index(k, CENTRES), k.type)
    with groups as (j, _count):
        for total in sums:
            builder.store(ir.Constant(floats, [0.0] * VECTOR), total)
        rows = [_at(builder, centres, builder.add(j, _index(j, g)), d) for g in range(CENTRES)]
        with cgutils.for_range(builder, d, intp=d.type) as loop:
            x = _load(builder, _at(builder, turned, loop.index, _index(d, LANES)), floats)
            for row, total in zip(rows, sums, strict=True):
                c = _load(builder, _at(builder, row, loop.index, one), _F32)
                t = builder.fsub(x, _splat(builder, c, VECTOR))
                builder.store(builder.fadd(builder.load(total), builder.fmul(t, t)), total)
        for g, total in enumerate(sums):
            distance, nearest, runner = (builder.load(p) for p in (total, best, second))
            number = _splat(builder, builder.trunc(builder.add(j, _index(j, g)), _I32), VECTOR)
            nearer = builder.fcmp_ordered("<", distance, nearest)
            closer = builder.fcmp_ordered("<", distance, runner)
            beaten = builder.select(closer, distance, runner)
            builder.store(builder.select(nearer, nearest, beaten), second)
            builder.store(builder.select(nearer, number, builder.load(label)), label)
            builder.store(builder.select(nearer, distance, nearest), best)
    for held, address in ((best, best_at), (second, second_at), (label, label_at)):
        _store(builder, builder.load(held), address)
    return context.get_dummy_value()


def _takes_addresses(
    generate: Callable[..., Value], count: int
) -> tuple[Any, Callable[..., Value]]:
    return types.void(*[types.intp] * count), generate


@intrinsic
def turn_rows(typingctx, rows, d, turned):  # type: ignore[no-untyped-def]
    """Write TILE rows (TILE, d) int32 to as many columns of turned (d, LANES) float32; d >= TILE."""
    return _takes_addresses(_turn_rows, 3)


@intrinsic
def nearest_lanes(typingctx, turned, d, centres, k, best, second, label):  # type: ignore[no-untyped-def]
    """Find the two least squared distances of VECTOR lanes of turned (d, LANES) to the centres.

    centres (k, d) float32, k a multiple of CENTRES (pad with infinity); best and second (VECTOR,)
    float32, label (VECTOR,) int32: the nearest centre, the lowest of equals.
    """
    return _takes_addresses(_nearest_lanes, 7)


@intrinsic
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the memory at an address soon."""

    def generate(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
        _prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return _takes_addresses(generate, 1)
