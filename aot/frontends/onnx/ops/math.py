"""ONNX's hyperbolic, inverse and bitwise functions, in terms of the few that kernels have."""

from __future__ import annotations

import math
from collections.abc import Callable

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir.graph import Value
from aot.ir.types import DType

_BITWISE = {"BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor"}


def _bitwise(op: str) -> Callable[[Node], Value]:
    return lambda node: node.emit(op, node.input(0), node.input(1))


for _name, _op in _BITWISE.items():
    onnx_op(_name, since=18)(_bitwise(_op))


@onnx_op("BitwiseNot", since=18)
def bitwise_not(node: Node) -> Value:
    return node.emit("bit_not", node.input(0))


@onnx_op("BitShift", since=11)
def bit_shift(node: Node) -> Value:
    direction = node.str_attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise node.error(f"attribute 'direction' is {direction!r}, expected LEFT or RIGHT")
    return node.emit(
        "shift_left" if direction == "LEFT" else "shift_right", node.input(0), node.input(1)
    )


@onnx_op("BitCast", since=26)
def bit_cast(node: Node) -> Value:
    x = node.input(0)
    try:
        to = dtype_of(node.int_attr("to"))
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None
    if DType.BOOL in (x.type.dtype, to):  # a byte that is 0 or 1
        return node.cast(x, to)
    if to.is_integer and x.type.dtype.is_integer and to.bits == x.type.dtype.bits:
        return node.cast(x, to)
    return x if x.type.dtype is to else node.emit("bitcast", x, to=to)


class _Terms:
    """Arithmetic on x in f32 at least, with numbers as scalars."""

    def __init__(self, node: Node) -> None:
        self.node = node
        given = node.input(0)
        if given.type.dtype is DType.F64:
            raise UnsupportedNodeError("f64 is not supported here")
        self.given = given.type.dtype
        self.x = node.cast(given, DType.F32)

    def __call__(self, op: str, *operands: Value | float) -> Value:
        return self.node.emit(
            op, *(o if isinstance(o, Value) else self.node.scalar(o, DType.F32) for o in operands)
        )

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
        return self.node.cast(value, self.given)


@onnx_op("Sinh", since=9)
def sinh(node: Node) -> Value:
    t = _Terms(node)
    # halves first: exp(x) / 2 overflows later than exp(x)
    half = t("mul", t("exp", t("mul", t.x, 0.5)), math.sqrt(0.5))
    other = t("mul", t("exp", t("mul", t.x, -0.5)), math.sqrt(0.5))
    far = t("sub", t("mul", half, half), t("mul", other, other))
    return t.done(t.near_zero(0.5, t.odd(1 / 6, 1 / 120, 1 / 5040), far))


@onnx_op("Cosh", since=9)
def cosh(node: Node) -> Value:
    t = _Terms(node)
    half = t("mul", t("exp", t("mul", t.x, 0.5)), math.sqrt(0.5))
    other = t("mul", t("exp", t("mul", t.x, -0.5)), math.sqrt(0.5))
    return t.done(t("add", t("mul", half, half), t("mul", other, other)))


@onnx_op("Atan", since=7)
def atan(node: Node) -> Value:
    t = _Terms(node)
    return t.done(t("atan", t.x))


@onnx_op("Asin", since=7)
def asin(node: Node) -> Value:
    """2 atan(x / (1 + sqrt((1 - x)(1 + x))))"""
    t = _Terms(node)
    root = t("sqrt", t("mul", t("sub", 1.0, t.x), t("add", t.x, 1.0)))
    return t.done(t("mul", t("atan", t("div", t.x, t("add", root, 1.0))), 2.0))


@onnx_op("Acos", since=7)
def acos(node: Node) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x))); at -1 the quotient is infinite and the result pi."""
    t = _Terms(node)
    quotient = t("div", t("sub", 1.0, t.x), t("add", t.x, 1.0))
    return t.done(t("mul", t("atan", t("sqrt", quotient)), 2.0))


@onnx_op("Asinh", since=9)
def asinh(node: Node) -> Value:
    """sign(x) log(|x| + sqrt(x^2 + 1))"""
    t = _Terms(node)
    size = t("abs", t.x)
    far = t("log", t("add", size, t("sqrt", t("add", t("mul", size, size), 1.0))))
    # the square of a large x overflows, and its 1 is lost long before
    far = t("where", t("less", 1e9, size), t("add", t("log", size), math.log(2)), far)
    signed = t("where", t("less", t.x, 0.0), t("neg", far), far)
    series = t.odd(-1 / 6, 3 / 40, -15 / 336, 105 / 3456, -945 / 42240)
    return t.done(t.near_zero(0.25, series, signed))


@onnx_op("Acosh", since=9)
def acosh(node: Node) -> Value:
    """log(x + sqrt((x - 1)(x + 1)))"""
    t = _Terms(node)
    root = t("sqrt", t("mul", t("sub", t.x, 1.0), t("add", t.x, 1.0)))
    near = t("log", t("add", t.x, root))
    far = t("add", t("log", t.x), math.log(2))
    return t.done(t("where", t("less", 1e9, t.x), far, near))


@onnx_op("Atanh", since=9)
def atanh(node: Node) -> Value:
    """log((1 + x) / (1 - x)) / 2"""
    t = _Terms(node)
    quotient = t("div", t("add", t.x, 1.0), t("sub", 1.0, t.x))
    far = t("mul", t("log", quotient), 0.5)
    return t.done(t.near_zero(0.25, t.odd(1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11), far))
