"""Functions that kernels lack, in terms of the few that they have.

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
        """x where it is not negative, else `otherwise`."""
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
        """x * (1 + c0 x^2 + c1 x^4 + ...): what cancels near 0 is a series there."""
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


def sinh(b: GraphBuilder, x: Value) -> Value:
    t = _Terms(b, x)
    # halves first: exp(x) / 2 overflows later than exp(x)
    half = t("mul", t("exp", t("mul", t.x, 0.5)), math.sqrt(0.5))
    other = t("mul", t("exp", t("mul", t.x, -0.5)), math.sqrt(0.5))
    far = t("sub", t("mul", half, half), t("mul", other, other))
    return t.done(t.near_zero(0.5, t.odd(1 / 6, 1 / 120, 1 / 5040), far))


def cosh(b: GraphBuilder, x: Value) -> Value:
    t = _Terms(b, x)
    half = t("mul", t("exp", t("mul", t.x, 0.5)), math.sqrt(0.5))
    other = t("mul", t("exp", t("mul", t.x, -0.5)), math.sqrt(0.5))
    return t.done(t("add", t("mul", half, half), t("mul", other, other)))


def atan(b: GraphBuilder, x: Value) -> Value:
    t = _Terms(b, x)
    return t.done(t("atan", t.x))


def asin(b: GraphBuilder, x: Value) -> Value:
    """2 atan(x / (1 + sqrt((1 - x)(1 + x))))"""
    t = _Terms(b, x)
    root = t("sqrt", t("mul", t("sub", 1.0, t.x), t("add", t.x, 1.0)))
    return t.done(t("mul", t("atan", t("div", t.x, t("add", root, 1.0))), 2.0))


def acos(b: GraphBuilder, x: Value) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x))); at -1 the quotient is infinite and the result pi."""
    t = _Terms(b, x)
    quotient = t("div", t("sub", 1.0, t.x), t("add", t.x, 1.0))
    return t.done(t("mul", t("atan", t("sqrt", quotient)), 2.0))


def asinh(b: GraphBuilder, x: Value) -> Value:
    """sign(x) log(|x| + sqrt(x^2 + 1))"""
    t = _Terms(b, x)
    size = t("abs", t.x)
    far = t("log", t("add", size, t("sqrt", t("add", t("mul", size, size), 1.0))))
    # the square of a large x overflows, and its 1 is lost long before
    far = t("where", t("less", 1e9, size), t("add", t("log", size), math.log(2)), far)
    signed = t("where", t("less", t.x, 0.0), t("neg", far), far)
    series = t.odd(-1 / 6, 3 / 40, -15 / 336, 105 / 3456, -945 / 42240)
    return t.done(t.near_zero(0.25, series, signed))


def acosh(b: GraphBuilder, x: Value) -> Value:
    """log(x + sqrt((x - 1)(x + 1)))"""
    t = _Terms(b, x)
    root = t("sqrt", t("mul", t("sub", t.x, 1.0), t("add", t.x, 1.0)))
    near = t("log", t("add", t.x, root))
    far = t("add", t("log", t.x), math.log(2))
    return t.done(t("where", t("less", 1e9, t.x), far, near))


def atanh(b: GraphBuilder, x: Value) -> Value:
    """log((1 + x) / (1 - x)) / 2"""
    t = _Terms(b, x)
    quotient = t("div", t("add", t.x, 1.0), t("sub", 1.0, t.x))
    far = t("mul", t("log", quotient), 0.5)
    return t.done(t.near_zero(0.25, t.odd(1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11), far))


def log1p(b: GraphBuilder, x: Value) -> Value:
    """log(1 + x), which near 0 is a series: the sum would lose what x adds."""
    t = _Terms(b, x)
    far = t("log", t("add", t.x, 1.0))
    y = t("div", t.x, t("add", t.x, 2.0))
    square = t("mul", y, y)
    total = t("add", t("mul", square, 2 / 7), 2 / 5)
    total = t("add", t("mul", square, total), 2 / 3)
    total = t("add", t("mul", square, total), 2.0)
    return t.done(t.near_zero(0.25, t("mul", y, total), far))


def expm1(b: GraphBuilder, x: Value) -> Value:
    """exp(x) - 1, which near 0 is 2 s / (1 - s) of s = tanh(x / 2): the difference would cancel."""
    t = _Terms(b, x)
    far = t("sub", t("exp", t.x), 1.0)
    s = _near_tanh(t, t("mul", t.x, 0.5))
    near = t("div", t("mul", s, 2.0), t("sub", 1.0, s))
    return t.done(t.near_zero(0.5, near, far))


def _near_tanh(t: Arithmetic, x: Value) -> Value:
    """tanh below 1/4, as a continued fraction: x (105 + 10 x^2) / (105 + 45 x^2 + x^4)."""
    square = t("mul", x, x)
    above = t("mul", x, t("add", t("mul", square, 10.0), 105.0))
    return t("div", above, t("add", t("mul", t("add", square, 45.0), square), 105.0))


def atan2(b: GraphBuilder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi; 0 at the origin."""
    t = _Terms(b, y)
    x = b.cast(x, DType.F32)
    rise, run = t("abs", t.x), t("abs", x)
    low, high = t("minimum", rise, run), t("maximum", rise, run)
    at_origin = t("equal", high, 0.0)
    angle = t("atan", t("div", low, t("where", at_origin, 1.0, high)))
    is_steep = t("less", run, rise)
    angle = t("where", is_steep, t("sub", math.pi / 2, angle), angle)
    angle = t("where", t("less", x, 0.0), t("sub", math.pi, angle), angle)
    return t.done(t("where", t("less", t.x, 0.0), t("neg", angle), angle))
