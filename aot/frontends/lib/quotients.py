"""Remainders, and quotients that round down, as all model formats need them.

One definition of both: the remainder of a division that truncates, as C's `%` and `fmod` are, and a
correction where its sign is not the divisor's, as Python's are.
"""

from __future__ import annotations

import numpy as np

from aot.frontends.lib.builder import GraphBuilder
from aot.ir.dims import DimExpr
from aot.ir.graph import Value
from aot.ir.types import DType

# extents are below 2^31: their products with divisors up to this are integers of 64 bits
_LARGEST_DIVISOR = 2**31


def remainder(b: GraphBuilder, x: Value, y: Value, *, is_truncated: bool) -> Value:
    """x modulo y. For truncated quotients the remainder has the sign of x, as C's fmod; else that
    of y, as in Python. For floats it is exact, except for the rounding of one addition of y."""
    dtype = x.type.dtype
    if not dtype.is_float and not is_truncated and _is_negated_extent(b, x, y):
        return _rest_of_negated(b, x, y)
    rest = b.emit("fmod", x, y) if dtype.is_float else _integer_rest(b, x, y)
    if is_truncated or not (dtype.is_float or dtype.is_signed):
        return rest
    # division truncates: a rest of the other sign than y is one y short
    return b.emit("where", _signs_differ(b, rest, y), b.emit("add", rest, y), rest)


def floor_quotient(b: GraphBuilder, x: Value, y: Value) -> Value:
    """x / y rounded down; for floats by Python's rule, from the remainder instead of a rounded
    quotient. A float y may have the wider dtype in which x is summed."""
    if x.type.dtype.is_float:
        return _float_quotient(b, x, y)
    quotient = b.emit("div", x, y)
    if not x.type.dtype.is_signed:
        return quotient
    # division truncates: a quotient below 0 that has a rest is one too many
    rest = b.emit("sub", x, b.emit("mul", quotient, y))
    less = b.emit("sub", quotient, 1)
    return b.emit("where", _signs_differ(b, rest, y), less, quotient)


def _integer_rest(b: GraphBuilder, x: Value, y: Value) -> Value:
    return b.emit("sub", x, b.emit("mul", b.emit("div", x, y), y))


def _signs_differ(b: GraphBuilder, rest: Value, y: Value) -> Value:
    """Whether one of two numbers is negative and the other positive, without a product that could
    overflow."""
    zero = b.scalar(0, rest.type.dtype)
    is_negative = b.emit("less", rest, zero)
    if _is_positive(b, y):
        return is_negative
    is_low = b.emit("and", is_negative, b.emit("less", zero, y))
    is_high = b.emit("and", b.emit("less", zero, rest), b.emit("less", y, zero))
    return b.emit("or", is_low, is_high)


def _is_positive(b: GraphBuilder, y: Value) -> bool:
    """Whether y is known to be positive."""
    divisors = b.values.of(y)
    if divisors is None:
        return False
    return all(isinstance(v, int | float | np.number) and v > 0 for v in divisors.flat)


def _is_negated_extent(b: GraphBuilder, x: Value, y: Value) -> bool:
    """Whether x depends on extents and is never positive, and y is positive: `-extent % y` is the
    amount missing to a multiple of y."""
    known, divisors = b.values.of(x), b.values.of(y)
    if known is None or divisors is None or not any(isinstance(v, DimExpr) for v in known.flat):
        return False
    if not _is_positive(b, y) or any(v > _LARGEST_DIVISOR for v in divisors.flat):
        return False
    signs = b.values.of(b.emit("less_equal", x, 0))
    return signs is not None and bool(signs.all())


def _rest_of_negated(b: GraphBuilder, x: Value, y: Value) -> Value:
    """The remainder of x <= 0, computed as that of `x * (1 - y)`, which is >= 0."""
    dtype = x.type.dtype
    x, y = b.cast(x, DType.I64), b.cast(y, DType.I64)
    x = b.emit("mul", x, b.emit("sub", b.scalar(1, DType.I64), y))
    return b.cast(_integer_rest(b, x, y), dtype)


def _float_quotient(b: GraphBuilder, x: Value, y: Value) -> Value:
    """Python's `float.__floordiv__`, but x / 0 where y is 0."""
    dtype = x.type.dtype
    wide = dtype.accumulator
    x, y = b.cast(x, wide), b.cast(y, wide)
    zero, one = b.scalar(0, wide), b.scalar(1, wide)
    rest = b.emit("fmod", x, y)
    # an integer, but for the rounding of the difference and of the division
    quotient = b.emit("div", b.emit("sub", x, rest), y)
    less = b.emit("sub", quotient, one)
    quotient = b.emit("where", _signs_differ(b, rest, y), less, quotient)
    down = b.emit("floor", quotient)
    is_short = b.emit("less", b.scalar(0.5, wide), b.emit("sub", quotient, down))
    nearest = b.emit("where", is_short, b.emit("add", down, one), down)
    # a quotient of 0 is not below 0, unless x is -0
    result = b.emit("where", b.emit("equal", quotient, zero), zero, nearest)
    is_plain = b.emit("or", b.emit("equal", x, zero), b.emit("equal", y, zero))
    return b.cast(b.emit("where", is_plain, b.emit("div", x, y), result), dtype)
