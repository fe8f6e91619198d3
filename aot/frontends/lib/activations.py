"""Activations and arithmetic that several formats share, in terms of supported ops.

Each takes a builder and values, and gives a value of the same element type.
"""

from __future__ import annotations

import math

from aot.frontends.lib.builder import GraphBuilder
from aot.frontends.lib.functions import Arithmetic
from aot.ir.graph import Value
from aot.ir.types import DType


def _on(b: GraphBuilder, x: Value) -> Arithmetic:
    return Arithmetic(b, x.type.dtype)


def sign(b: GraphBuilder, x: Value, *, keeps_nan: bool = True) -> Value:
    """The sign of x: -1, 0 or 1; for NaN, NaN or 0."""
    zero = b.scalar(0, x.type.dtype)
    positive = b.cast(b.emit("less", zero, x), x.type.dtype)
    if not (x.type.dtype.is_float or x.type.dtype.is_signed):
        return positive
    found = b.emit("sub", positive, b.cast(b.emit("less", x, zero), x.type.dtype))
    if not (x.type.dtype.is_float and keeps_nan):
        return found
    return b.emit("where", b.emit("is_nan", x), x, found)


def leaky_relu(b: GraphBuilder, x: Value, alpha: float) -> Value:
    m = _on(b, x)
    return m.unless_negative(x, m("mul", x, alpha))


def prelu(b: GraphBuilder, x: Value, slope: Value) -> Value:
    """PReLU: x, multiplied where negative by a slope that broadcasts to x."""
    negative = b.emit("less", x, 0)
    return b.emit("where", negative, b.emit("mul", x, slope), x)


def elu(b: GraphBuilder, x: Value, alpha: float, steepness: float = 1.0) -> Value:
    """ELU: x, or alpha * (exp(steepness * x) - 1) where x is negative."""
    m = _on(b, x)
    power = m("expm1", x if steepness == 1 else m("mul", x, steepness))
    return m.unless_negative(x, m("mul", power, alpha))


def celu(b: GraphBuilder, x: Value, alpha: float) -> Value:
    m = _on(b, x)
    return m.unless_negative(x, m("mul", m("expm1", m("div", x, alpha)), alpha))


def hard_sigmoid(b: GraphBuilder, x: Value, alpha: float, beta: float) -> Value:
    """Hard sigmoid: alpha * x + beta, clamped to [0, 1]."""
    m = _on(b, x)
    line = m("add", m("mul", x, alpha), beta)
    return m("minimum", m("maximum", line, 0.0), 1.0)


def sixths(b: GraphBuilder, x: Value) -> Value:
    """(x + 3) / 6, clamped to [0, 1]; the sum is exact near -3, where a product with 1/6 would
    cancel."""
    m = _on(b, x)
    return m("mul", m("minimum", m("maximum", m("add", x, 3.0), 0.0), 6.0), 1 / 6)


def thresholded_relu(b: GraphBuilder, x: Value, alpha: float) -> Value:
    """x where it is greater than alpha, else 0."""
    is_kept = b.emit("less", alpha, x)
    return b.emit("where", is_kept, x, 0)


def softsign(b: GraphBuilder, x: Value) -> Value:
    """x / (1 + |x|)"""
    m = _on(b, x)
    return m("div", x, m("add", m("abs", x), 1.0))


def softplus(b: GraphBuilder, x: Value) -> Value:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)), which can't overflow."""
    m = _on(b, x)
    return m("add", m("relu", x), m("log1p", m("exp", m("neg", m("abs", x)))))


def log_sigmoid(b: GraphBuilder, x: Value) -> Value:
    """-log(1 + exp(-x))"""
    m = _on(b, x)
    return m("neg", softplus(b, m("neg", x)))


def swish(b: GraphBuilder, x: Value, alpha: float = 1.0) -> Value:
    """x sigmoid(alpha x)"""
    if alpha == 1:
        return b.emit("silu", x)
    return b.emit("mul", x, b.emit("sigmoid", _on(b, x)("mul", x, alpha)))


def tanh_gelu(b: GraphBuilder, x: Value) -> Value:
    """The GELU approximation x/2 (1 + tanh(u)); in f64, which the op lacks, as x sigmoid(2 u)."""
    if x.type.dtype is not DType.F64:
        return b.emit("gelu_tanh", x)
    m = _on(b, x)
    root = math.sqrt(8 / math.pi)
    line = m("add", m("mul", m("mul", x, x), 0.044715 * root), root)
    return m("mul", x, m("sigmoid", m("mul", x, line)))


def integer_power(b: GraphBuilder, base: Value, exponent: Value) -> Value:
    """base^exponent by repeated squaring. Every power that does not overflow has an exponent below
    64, or base -1 to 1, for which the last bit of the exponent suffices. With a negative exponent,
    bases 1 and -1 are treated as with a positive one, and others give 0."""
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
