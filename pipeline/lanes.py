"""SIMD lanes for the fused pass, as LLVM vectors: what LLVM's own vectorizer does not find.

``turn_rows`` turns rows feature-major, 8 by 8 in registers; ``nearest_lanes`` keeps the squared
distances of 16 rows to 4 centres in registers; ``prefetch`` asks the memory for what comes next.
LLVM maps the vectors to whatever the processor has. Distances may be fused multiply-adds, so their
last bits depend on the processor: they are a filter, and no result depends on them. They take
addresses (``array.ctypes.data``): the callers in ``lloyd`` and ``seeding`` own the arrays and their
shapes.
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
    """Ask for the memory at an address, into the second cache; harmless where there is none."""
    kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE_POINTER], kind)
    flags = [ir.Constant(_I32, flag) for flag in (0, 2, 1)]
    builder.call(function, [builder.inttoptr(address, _BYTE_POINTER), *flags])


def _multiply_add(builder: Builder, one: Value, other: Value, total: Value) -> Value:
    """one * other + total, fused where the processor can: the sum is a filter, integers decide."""
    kind = ir.FunctionType(total.type, [total.type] * 3)
    name = f"llvm.fmuladd.v{VECTOR}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [one, other, total])


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


class _Nearest:
    """The code that keeps the two least distances of VECTOR lanes and the nearest centre."""

    def __init__(self, builder: Builder, turned: Value, d: Value, centres: Value) -> None:
        self.builder, self.turned, self.d, self.centres = builder, turned, d, centres
        self.floats, self.ints = _vector(_F32, VECTOR), _vector(_I32, VECTOR)
        infinite = ir.Constant(self.floats, [ir.Constant(_F32, float("inf"))] * VECTOR)
        self.best = cgutils.alloca_once_value(builder, infinite)
        self.second = cgutils.alloca_once_value(builder, infinite)
        self.label = cgutils.alloca_once_value(builder, ir.Constant(self.ints, [0] * VECTOR))
        self.sums = [cgutils.alloca_once(builder, self.floats) for _ in range(CENTRES)]

    def weigh(self, first: Value, count: int) -> None:
        """Compare with ``count`` centres from ``first`` on, which share the loads of the rows."""
        builder, d, one = self.builder, self.d, _index(self.d, 1)
        sums = self.sums[:count]
        for total in sums:
            builder.store(ir.Constant(self.floats, [0.0] * VECTOR), total)
        numbers = [builder.add(first, _index(first, g)) for g in range(count)]
        rows = [_at(builder, self.centres, number, d) for number in numbers]
        with cgutils.for_range(builder, d, intp=d.type) as loop:
            x = _load(builder, _at(builder, self.turned, loop.index, _index(d, LANES)), self.floats)
            for row, total in zip(rows, sums, strict=True):
                c = _load(builder, _at(builder, row, loop.index, one), _F32)
                t = builder.fsub(x, _splat(builder, c, VECTOR))
                builder.store(_multiply_add(builder, t, t, builder.load(total)), total)
        for number, total in zip(numbers, sums, strict=True):
            self._keep(_splat(builder, builder.trunc(number, _I32), VECTOR), builder.load(total))

    def _keep(self, number: Value, distance: Value) -> None:
        builder = self.builder
        nearest, runner = builder.load(self.best), builder.load(self.second)
        nearer = builder.fcmp_ordered("<", distance, nearest)
        closer = builder.fcmp_ordered("<", distance, runner)
        beaten = builder.select(closer, distance, runner)
        builder.store(builder.select(nearer, nearest, beaten), self.second)
        builder.store(builder.select(nearer, number, builder.load(self.label)), self.label)
        builder.store(builder.select(nearer, distance, nearest), self.best)


def _nearest_lanes(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
    turned, d, centres, k, best_at, second_at, label_at = arguments
    code = _Nearest(builder, turned, d, centres)
    left = builder.urem(k, _index(k, CENTRES))
    whole = builder.sub(k, left)
    step = _index(k, CENTRES)
    with cgutils.for_range_slice(builder, _index(k, 0), whole, step, k.type) as (j, _count):
        code.weigh(j, CENTRES)
    for count in range(1, CENTRES):
        with builder.if_then(builder.icmp_signed("==", left, _index(k, count))):
            code.weigh(whole, count)
    for held, address in (
        (code.best, best_at),
        (code.second, second_at),
        (code.label, label_at),
    ):
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

    centres (k, d) float32; best and second (VECTOR,) float32, label (VECTOR,) int32: the nearest
    centre, the lowest of equals.
    """
    return _takes_addresses(_nearest_lanes, 7)


@intrinsic
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the memory at an address soon."""

    def generate(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
        _prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return _takes_addresses(generate, 1)


@intrinsic
def at_most(typingctx, values, limit):  # type: ignore[no-untyped-def]
    """Return which of LANES float32 at an address are at most a limit (float32), as bits of an int64."""

    def generate(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
        held = _load(builder, arguments[0], _vector(_F32, LANES))
        bits = builder.fcmp_ordered("<=", held, _splat(builder, arguments[1], LANES))
        return builder.bitcast(bits, ir.IntType(LANES))

    return types.int64(types.intp, types.float32), generate


@intrinsic
def lowest_bit(typingctx, bits):  # type: ignore[no-untyped-def]
    """Return the place of the lowest bit that is set in an int64; some is."""

    def generate(context: Any, builder: Builder, _: Any, arguments: list[Value]) -> Value:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate
