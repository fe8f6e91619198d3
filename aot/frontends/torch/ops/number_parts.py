"""PyTorch's ops on signs, exponents and bits of floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.frontends.torch.control import repeated
from aot.frontends.torch.table import Node, Operand, UnsupportedNodeError, torch_op
from aot.ir.graph import Value
from aot.ir.types import DType

F32, F64, I32, I64 = DType.F32, DType.F64, DType.I32, DType.I64
# bits of an exponent and of a fraction
_PARTS = {F32: (8, 23), F64: (11, 52)}


def has_sign(n: Node, x: Value) -> Value:
    """Whether each element's sign bit is set, including for zeros and NaN."""
    if x.type.dtype is DType.BOOL:
        return n("less", n.cast(x, I32), 0)
    if not x.type.dtype.is_float:
        return n("less", x, 0)
    wide = x if x.type.dtype in _PARTS else n.cast(x, F32)
    return n("less", n.emit("bitcast", wide, to=_bits_of(wide)), 0)


def _bits_of(x: Value) -> DType:
    """The integer dtype with as many bits as a float.

    Raises:
        UnsupportedNodeError: the floats are none of 32 or 64 bits.
    """
    if x.type.dtype not in _PARTS:
        raise UnsupportedNodeError(f"{x.type.dtype} is not supported here")
    return I32 if x.type.dtype is F32 else I64


@torch_op("aten.signbit.default")
def sign_bit(n: Node, x: Value) -> Value:
    return has_sign(n, x)


@torch_op("aten.copysign.Tensor", "aten.copysign.Scalar")
def copy_sign(n: Node, a: Value, b: Operand) -> Value:
    size = n("abs", n.cast(a, n.dtype))
    if isinstance(b, (int, float)):
        return n("neg", size) if math.copysign(1, b) < 0 else size
    sign = has_sign(n, n.value(b))
    return n.emit("where", sign, n("neg", size), size)


@torch_op("aten.ldexp.Tensor")
def times_power_of_two(n: Node, x: Value, exponent: Value) -> Value:
    power = n.emit("pow", n.scalar(2.0, n.dtype), n.cast(exponent, n.dtype))
    return n.emit("mul", n.cast(x, n.dtype), power)


@torch_op("aten.frexp.Tensor")
def fraction_and_exponent(n: Node, x: Value) -> list[Value]:
    """frexp: (fraction in [0.5, 1), exponent of 2) of each element."""
    dtype, kind = x.type.dtype, _bits_of(x)
    exponents, digits = _PARTS[dtype]
    whole = (1 << exponents) - 1
    half = (1 << (exponents - 1)) - 2  # the exponent's bits of 0.5
    tiny = float(np.finfo(dtype.numpy).tiny)
    is_small = n("less", n("abs", x), tiny)  # whose fraction has no first bit
    wide = n.emit("where", is_small, n("mul", x, 2.0 ** (digits + 1)), x)
    bits = n.emit("bitcast", wide, to=kind)
    shifted = n("bit_and", n("shift_right", bits, digits), whole)
    fraction = n("bit_or", n("bit_and", bits, ~(whole << digits)), half << digits)
    exponent = n("sub", shifted, half)
    exponent = n.emit("where", is_small, n("sub", exponent, digits + 1), exponent)
    is_kept = n.emit("or", n("equal", x, 0.0), n("equal", shifted, whole))
    made = n.emit("where", is_kept, x, n.emit("bitcast", fraction, to=dtype))
    return [made, n.cast(n("where", is_kept, 0, exponent), I32)]


@torch_op("aten.nextafter.default")
def next_after(n: Node, x: Value, y: Value) -> Value:
    """nextafter: the neighbour of x in the direction of y, by counting its bits up or down."""
    dtype, kind = x.type.dtype, _bits_of(x)
    bits = n.emit("bitcast", x, to=kind)
    is_away = n.emit("equal", n.emit("less", x, y), n("less", 0.0, x))
    moved = n("where", is_away, n("add", bits, 1), n("sub", bits, 1))
    made = n.emit("bitcast", moved, to=dtype)
    least = float(np.finfo(dtype.numpy).smallest_subnormal)
    from_zero = n("where", n("less", 0.0, y), least, n.scalar(-least, dtype))
    made = n.emit("where", n("equal", x, 0.0), from_zero, made)
    made = n.emit("where", n.emit("equal", x, y), y, made)
    is_nan = n.emit("or", n.emit("is_nan", x), n.emit("is_nan", y))
    return n("where", is_nan, n.scalar(math.nan, dtype), made)


def _common_divisor(n: Node, a: Value, b: Value) -> Value:
    """gcd: Euclid's algorithm on all elements, until every one is finished."""
    size, zero = n.dims, n.scalar(0, n.dtype)
    x, y = (n.broadcast(n("abs", n.cast(v, n.dtype)), size) for v in (a, b))

    def goes_on(place: Node, v: Value) -> Value:
        is_left = place.cast(place.emit("not", place.emit("equal", v, zero)), I32)
        axes = tuple(range(v.type.rank))
        some = place.emit("reduce_max", is_left, axes=axes, keepdims=False) if axes else is_left
        return place("less", 0, some)

    def step(inside: Node, number: Value, carried: Sequence[Value]) -> list[Value]:
        x, y = carried
        is_done = inside.emit("equal", y, zero)
        divisor = inside("where", is_done, 1, y)
        quotient = inside.emit("div", x, divisor)
        rest = inside.emit("sub", x, inside.emit("mul", quotient, divisor))
        after = inside.emit("where", is_done, x, y), inside("where", is_done, 0, rest)
        return [goes_on(inside, after[1]), *after]

    return repeated(n, (x, y), step, first=goes_on(n, y))[0]


@torch_op("aten.gcd.default")
def greatest_common_divisor(n: Node, a: Value, b: Value) -> Value:
    return _common_divisor(n, a, b)


@torch_op("aten.lcm.default")
def least_common_multiple(n: Node, a: Value, b: Value) -> Value:
    divisor = _common_divisor(n, a, b)
    share = n.emit("div", n.cast(a, n.dtype), n("maximum", divisor, 1))
    return n("abs", n.emit("mul", share, n.cast(b, n.dtype)))


@torch_op("aten.angle.default")
def angle(n: Node, x: Value) -> Value:
    """The angle of real numbers: 0, or pi for negative ones; NaN stays."""
    numbers = n.cast(x, n.dtype)
    made = n("where", n("less", numbers, 0.0), n.scalar(math.pi, n.dtype), 0.0)
    return n.emit("where", n.emit("is_nan", numbers), numbers, made)
