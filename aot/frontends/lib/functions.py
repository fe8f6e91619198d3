"""Mathematical functions that kernels lack, in terms of those that they have.

Each takes a builder and a value, and gives a value of the same element type; f16 is computed in f32
where squares or differences would lose it.
"""

from __future__ import annotations

import math

from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir.graph import Value
from aot.ir.types import DType


class Arithmetic:
    """Ops on values of one element type, with numbers as scalars of it."""

    def __init__(self, b: GraphBuilder, dtype: DType) -> None:
        self.b = b
        self.dtype = dtype

    def __call__(self, op: str, *operands: Value | float) -> Value:
        return self.b.emit(
            op, *(o if isinstance(o, Value) else self.b.scalar(o, self.dtype) for o in operands)
        )

    def unless_negative(self, x: Value, otherwise: Value) -> Value:
        """x where it is non-negative, else `otherwise`."""
        return self("where", self("less", x, 0.0), otherwise, x)


class _Terms(Arithmetic):
    """Arithmetic on x in f32 at least, with numbers as scalars."""

    def __init__(self, b: GraphBuilder, x: Value) -> None:
        if x.type.dtype is DType.F64:
            raise UnsupportedNodeError("f64 is not supported here")
        super().__init__(b, DType.F32)
        self.given = x.type.dtype
        self.x = b.cast(x, DType.F32)

    def odd(self, *coefficients: float) -> Value:
        """x * (1 + c0 x^2 + c1 x^4 + ...): a series for small x, where the closed form would
        cancel."""
        square = self("mul", self.x, self.x)
        total: Value | float = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = self("add", self("mul", square, total), c)
        return self("mul", self.x, self("add", self("mul", square, total), 1.0))

    def near_zero(self, limit: float, series: Value, otherwise: Value) -> Value:
        is_near = self("less", self("abs", self.x), limit)
        return self("where", is_near, series, otherwise)

    def done(self, value: Value) -> Value:
        return self.b.cast(value, self.given)


# A number of 9 bits a little above ln 2: what it leaves of a number from 0.5 on is exact.
_SHIFT = 355 / 512


def _half_exp(t: _Terms, size: Value) -> Value:
    """exp(size) / 2 without overflow of exp(size)."""
    return t("mul", t("exp", t("sub", size, _SHIFT)), math.exp(_SHIFT) / 2)


def sinh(b: GraphBuilder, x: Value) -> Value:
    """sinh(x): exp(|x|)/2 - exp(-|x|)/2 with the sign of x; a series for |x| up to 1."""
    t = _Terms(b, x)
    half = _half_exp(t, t("abs", t.x))
    far = t("sub", half, t("div", 0.25, half))
    signed = t("where", t("less", t.x, 0.0), t("neg", far), far)
    return t.done(t.near_zero(1.0, t.odd(1 / 6, 1 / 120, 1 / 5040, 1 / 362880), signed))


def cosh(b: GraphBuilder, x: Value) -> Value:
    t = _Terms(b, x)
    half = _half_exp(t, t("abs", t.x))
    return t.done(t("add", half, t("div", 0.25, half)))


def tan(b: GraphBuilder, x: Value) -> Value:
    t = Arithmetic(b, x.type.dtype)
    return t("div", t("sin", x), t("cos", x))


def atan(b: GraphBuilder, x: Value) -> Value:
    t = _Terms(b, x)
    return t.done(t("atan", t.x))


def asin(b: GraphBuilder, x: Value) -> Value:
    """asin(x) = 2 atan(x / (1 + sqrt((1 - x)(1 + x))))"""
    t = _Terms(b, x)
    root = t("sqrt", t("mul", t("sub", 1.0, t.x), t("add", t.x, 1.0)))
    return t.done(t("mul", t("atan", t("div", t.x, t("add", root, 1.0))), 2.0))


def acos(b: GraphBuilder, x: Value) -> Value:
    """acos(x) = 2 atan(sqrt((1 - x) / (1 + x))); at -1 the quotient is infinite and the result
    pi."""
    t = _Terms(b, x)
    quotient = t("div", t("sub", 1.0, t.x), t("add", t.x, 1.0))
    return t.done(t("mul", t("atan", t("sqrt", quotient)), 2.0))


def _signed(t: _Terms, size: Value) -> Value:
    """An odd function of x, given its value `size` at |x|; near 0, where the function is x, x
    itself."""
    signed = t("where", t("less", t.x, 0.0), t("neg", size), size)
    return t.near_zero(2.0**-13, t.x, signed)


def asinh(b: GraphBuilder, x: Value) -> Value:
    """asinh(x) = sign(x) log1p(|x| + x^2 / (1 + sqrt(x^2 + 1)))"""
    t = _Terms(b, x)
    size = t("abs", t.x)
    square = t("mul", size, size)
    root = t("sqrt", t("add", square, 1.0))
    near = t("log1p", t("add", size, t("div", square, t("add", root, 1.0))))
    # the square of a large x overflows, and its 1 is lost long before
    far = t("add", t("log", size), math.log(2))
    return t.done(_signed(t, t("where", t("less", 1e9, size), far, near)))


def acosh(b: GraphBuilder, x: Value) -> Value:
    """acosh(x) = log1p(x - 1 + sqrt(x - 1) sqrt(x + 1))"""
    t = _Terms(b, x)
    above = t("sub", t.x, 1.0)
    root = t("mul", t("sqrt", above), t("sqrt", t("add", t.x, 1.0)))
    near = t("log1p", t("add", above, root))
    far = t("add", t("log", t.x), math.log(2))
    return t.done(t("where", t("less", 1e9, t.x), far, near))


def atanh(b: GraphBuilder, x: Value) -> Value:
    """atanh(x) = sign(x) log1p(2 |x| / (1 - |x|)) / 2"""
    t = _Terms(b, x)
    size = t("abs", t.x)
    quotient = t("div", t("add", size, size), t("sub", 1.0, size))
    return t.done(_signed(t, t("mul", t("log1p", quotient), 0.5)))


def exp2(b: GraphBuilder, x: Value) -> Value:
    """2^x by pow: a rounded product with ln 2 would be 50 ulp off. f64 has no pow and uses that
    product."""
    t = Arithmetic(b, x.type.dtype)
    if x.type.dtype is DType.F64:
        return t("exp", t("mul", x, math.log(2)))
    return t("pow", 2.0, x)


def atan2(b: GraphBuilder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi, with C's rules for zeros and infinities of
    both signs."""
    t = _Terms(b, y)
    x = b.cast(x, DType.F32)
    rise, run = t("abs", t.x), t("abs", x)
    low, high = t("minimum", rise, run), t("maximum", rise, run)
    # of 0 by 0 the quotient is 0, of infinity by infinity 1
    of_equals = b.cast(t("less", 0.0, high), DType.F32)
    quotient = t("where", t("equal", low, high), of_equals, t("div", low, high))
    angle = t("atan", quotient)
    is_steep = t("less", run, rise)
    angle = t("where", is_steep, t("sub", math.pi / 2, angle), angle)
    angle = t("where", _has_sign(t, x), t("sub", math.pi, angle), angle)
    return t.done(t("where", _has_sign(t, t.x), t("neg", angle), angle))


def _has_sign(t: _Terms, x: Value) -> Value:
    """Whether x is below 0, or -0."""
    return t.b.emit("less", t.b.emit("bitcast", x, to=DType.I32), t.b.scalar(0, DType.I32))


def hypot(b: GraphBuilder, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2), which overflows where the result does."""
    t = _Terms(b, x)
    y = t("abs", b.cast(y, DType.F32))
    size = t("abs", t.x)
    low, high = t("minimum", size, y), t("maximum", size, y)
    quotient = t("div", low, high)
    found = t("mul", high, t("sqrt", t("add", t("mul", quotient, quotient), 1.0)))
    found = t("where", t("equal", high, 0.0), high, found)
    # infinite beside NaN, too
    is_infinite = t("or", t("equal", size, math.inf), t("equal", y, math.inf))
    return t.done(t("where", is_infinite, math.inf, found))
