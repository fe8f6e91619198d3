"""Activations and arithmetic that formats share, in terms of the ops that kernels have.

Each takes a builder and values, and gives a value of the same element type.
"""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.lib.builder import GraphBuilder
from aot.frontends.lib.functions import Arithmetic
from aot.ir.dims import DimExpr
from aot.ir.graph import Value
from aot.ir.types import DType


def _on(b: GraphBuilder, x: Value) -> Arithmetic:
    return Arithmetic(b, x.type.dtype)


def sign(b: GraphBuilder, x: Value) -> Value:
    """-1, 0 or 1."""
    zero = b.scalar(0, x.type.dtype)
    positive = b.cast(b.emit("less", zero, x), x.type.dtype)
    if not (x.type.dtype.is_float or x.type.dtype.is_signed):
        return positive
    return b.emit("sub", positive, b.cast(b.emit("less", x, zero), x.type.dtype))


def leaky_relu(b: GraphBuilder, x: Value, alpha: float) -> Value:
    m = _on(b, x)
    return m.unless_negative(x, m("mul", x, alpha))


def prelu(b: GraphBuilder, x: Value, slope: Value) -> Value:
    """A slope for each element, or broadcasting to x."""
    negative = b.emit("less", x, b.scalar(0, x.type.dtype))
    return b.emit("where", negative, b.emit("mul", x, slope), x)


def elu(b: GraphBuilder, x: Value, alpha: float, steepness: float = 1.0) -> Value:
    """x, or alpha * (exp(steepness * x) - 1) where it is negative."""
    m = _on(b, x)
    power = m("exp", x if steepness == 1 else m("mul", x, steepness))
    return m.unless_negative(x, m("mul", m("sub", power, 1.0), alpha))


def celu(b: GraphBuilder, x: Value, alpha: float) -> Value:
    m = _on(b, x)
    power = m("exp", m("div", x, alpha))
    return m.unless_negative(x, m("mul", m("sub", power, 1.0), alpha))


def hard_sigmoid(b: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    """alpha * x + beta, from 0 to 1."""
    m = _on(b, x)
    line = m("add", m("mul", x, alpha), beta)
    return m("minimum", m("maximum", line, 0.0), 1.0)


def thresholded_relu(b: GraphBuilder, x: Value, alpha: float) -> Value:
    """x where it is more than alpha, else 0."""
    is_kept = b.emit("less", b.scalar(alpha, x.type.dtype), x)
    return b.emit("where", is_kept, x, b.scalar(0, x.type.dtype))


def softsign(b: GraphBuilder, x: Value) -> Value:
    """x / (1 + |x|)"""
    m = _on(b, x)
    return m("div", x, m("add", m("abs", x), 1.0))


def softplus(b: GraphBuilder, x: Value) -> Value:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)), which can't overflow."""
    m = _on(b, x)
    tail = m("log", m("add", m("exp", m("neg", m("abs", x))), 1.0))
    return m("add", m("relu", x), tail)


def mish(b: GraphBuilder, x: Value) -> Value:
    return b.emit("mul", x, b.emit("tanh", softplus(b, x)))


def swish(b: GraphBuilder, x: Value, alpha: float = 1.0) -> Value:
    scaled = x if alpha == 1 else _on(b, x)("mul", x, alpha)
    return b.emit("mul", x, b.emit("sigmoid", scaled))


def tanh_gelu(b: GraphBuilder, x: Value) -> Value:
    """x/2 (1 + tanh(u)), which is x sigmoid(2 u)."""
    m = _on(b, x)
    root = math.sqrt(8 / math.pi)
    line = m("add", m("mul", m("mul", x, x), 0.044715 * root), root)
    return m("mul", x, m("sigmoid", m("mul", x, line)))


def integer_power(b: GraphBuilder, base: Value, exponent: Value) -> Value:
    """By squaring: every power that does not overflow has an exponent below 64, or base -1 to 1,
    for which the exponent's last bit is enough. A negative exponent is taken for a positive one
    of 1 and -1, and gives 0 of others."""
    dtype = base.type.dtype
    one, zero = b.scalar(1, dtype), b.scalar(0, dtype)
    counter = b.cast(exponent, DType.I32)
    none = b.scalar(0, DType.I32)
    size = b.emit("maximum", counter, b.emit("neg", counter))
    result = one
    factor = base
    for bit in range(6):
        mask = b.scalar(1 << bit, DType.I32)
        is_set = b.emit("equal", b.emit("bit_and", size, mask), mask)
        result = b.emit("mul", result, b.emit("where", is_set, factor, one))
        factor = b.emit("mul", factor, factor)
    if not dtype.is_signed:
        return result
    is_unit = b.emit("less_equal", b.emit("mul", base, base), one)
    vanishes = b.emit("and", b.emit("less", counter, none), b.emit("not", is_unit))
    return b.emit("where", vanishes, zero, result)


def remainder(b: GraphBuilder, x: Value, y: Value, *, is_truncated: bool) -> Value:
    """x modulo y: what is left has the sign of x where quotients are truncated, as C's fmod, else
    that of y. Of an infinite divisor x is the rest."""
    if x.type.dtype.is_float:
        return _float_remainder(b, x, y, is_truncated)
    is_negated = not is_truncated and _is_negated_extent(b, x, y)
    if is_negated:  # the same rest of y, and what is divided is not negative
        x = b.emit("mul", x, b.emit("sub", b.scalar(1, x.type.dtype), y))
    rest = b.emit("sub", x, b.emit("mul", b.emit("div", x, y), y))
    if is_truncated or is_negated or not x.type.dtype.is_signed:
        return rest
    # division truncates: a rest of the other sign than y is one y short
    zero = b.scalar(0, x.type.dtype)
    differs = b.emit("less", b.emit("mul", rest, y), zero)
    return b.emit("where", differs, b.emit("add", rest, y), rest)


def _is_negated_extent(b: GraphBuilder, x: Value, y: Value) -> bool:
    """Whether x depends on extents and is nowhere above 0, and y is positive: what is missing to a
    multiple of y is `-extent % y`."""
    known, divisors = b.values.of(x), b.values.of(y)
    if known is None or divisors is None or not any(isinstance(v, DimExpr) for v in known.flat):
        return False
    if not all(isinstance(v, int | np.integer) and v > 0 for v in divisors.flat):
        return False
    signs = b.values.of(b.emit("less_equal", x, b.scalar(0, x.type.dtype)))
    return signs is not None and bool(signs.all())


def _float_remainder(b: GraphBuilder, x: Value, y: Value, is_truncated: bool) -> Value:
    zero = b.scalar(0, x.type.dtype)
    whole = b.emit("trunc", b.emit("div", x, y))
    # 0 times infinity would be NaN
    back = b.emit("where", b.emit("equal", whole, zero), zero, b.emit("mul", whole, y))
    rest = b.emit("sub", x, back)
    if is_truncated:
        return rest
    differs = b.emit("xor", b.emit("less", rest, zero), b.emit("less", y, zero))
    is_zero = b.emit("equal", rest, zero)
    keeps = b.emit("or", is_zero, b.emit("not", differs))
    return b.emit("where", keeps, rest, b.emit("add", rest, y))
