"""ONNX's elementwise ops: arithmetic, activations, comparisons, casts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir.graph import Value
from aot.ir.types import DType

# Since opset 7 operands broadcast as in numpy; before, along attributes that nothing writes now.
_NUMPY_BROADCAST = 7

_UNARY = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Cos": "cos",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "is_nan",
    "Log": "log",
    "Neg": "neg",
    "Not": "not",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "and",
    "Div": "div",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "mul",
    "Or": "or",
    "Sub": "sub",
    "Xor": "xor",
}
_SWAPPED = {"Greater": "less", "GreaterOrEqual": "less_equal"}
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(op: str) -> Callable[[Node], Value]:
    def build(node: Node) -> Value:
        node.ignore("consumed_inputs")
        return node.emit(op, node.input(0))

    return build


def _binary(op: str, is_swapped: bool) -> Callable[[Node], Value]:
    def build(node: Node) -> Value:
        a, b = node.input(0), node.input(1)
        return node.emit(op, b, a) if is_swapped else node.emit(op, a, b)

    return build


def _fold(node: Node, op: str) -> Value:
    node.ignore("consumed_inputs")
    result = node.input(0)
    for number in range(1, len(node.inputs)):
        result = node.emit(op, result, node.input(number))
    return result


def _variadic(op: str) -> Callable[[Node], Value]:
    return lambda node: _fold(node, op)


for _name, _op in _UNARY.items():
    onnx_op(_name)(_unary(_op))
for _name, _op in _BINARY.items():
    onnx_op(_name, since=_NUMPY_BROADCAST)(_binary(_op, is_swapped=False))
for _name, _op in _SWAPPED.items():
    onnx_op(_name, since=_NUMPY_BROADCAST)(_binary(_op, is_swapped=True))
for _name, _op in _VARIADIC.items():
    onnx_op(_name)(_variadic(_op))


@onnx_op("Mean")
def mean(node: Node) -> Value:
    total = _fold(node, "add")
    return node.emit("div", total, node.scalar(len(node.inputs), total.type.dtype))


@onnx_op("Pow", since=_NUMPY_BROADCAST)
def power(node: Node) -> Value:
    base, exponent = node.input(0), node.input(1)
    dtype = base.type.dtype
    if dtype.is_float:
        return node.emit("pow", base, node.cast(exponent, dtype))
    if not exponent.type.dtype.is_float:
        return _integer_power(node, base, exponent)
    # a whole exponent gives a whole power, which a rounded one may be just below
    whole = node.emit("floor", exponent)
    exact = _integer_power(node, base, node.cast(whole, DType.I32))
    wide = exponent.type.dtype
    other = node.cast(node.emit("pow", node.cast(base, wide), exponent), dtype)
    zero = node.scalar(0, wide)
    is_whole = node.emit(
        "and", node.emit("equal", whole, exponent), node.emit("less_equal", zero, exponent)
    )
    return node.emit("where", is_whole, exact, other)


def _integer_power(node: Node, base: Value, exponent: Value) -> Value:
    """By squaring: every power that does not overflow has an exponent below 64, or base -1 to 1,
    of which the exponent's last bit tells enough. A negative exponent is taken for a positive one
    of 1 and -1, and gives 0 of others."""
    dtype = base.type.dtype
    one, zero = node.scalar(1, dtype), node.scalar(0, dtype)
    counter = node.cast(exponent, DType.I32)
    none = node.scalar(0, DType.I32)
    size = node.emit("maximum", counter, node.emit("neg", counter))
    result = one
    factor = base
    for bit in range(6):
        mask = node.scalar(1 << bit, DType.I32)
        is_set = node.emit("equal", node.emit("bit_and", size, mask), mask)
        result = node.emit("mul", result, node.emit("where", is_set, factor, one))
        factor = node.emit("mul", factor, factor)
    if not dtype.is_signed:
        return result
    is_unit = node.emit("less_equal", node.emit("mul", base, base), one)
    vanishes = node.emit("and", node.emit("less", counter, none), node.emit("not", is_unit))
    return node.emit("where", vanishes, zero, result)


def _float_modulo(node: Node, a: Value, b: Value) -> Value:
    """C's fmod, or the rest of the divisor's sign; of an infinite divisor a is the rest."""
    zero = node.scalar(0, a.type.dtype)
    whole = node.emit("trunc", node.emit("div", a, b))
    # 0 times infinity would be NaN
    back = node.emit("where", node.emit("equal", whole, zero), zero, node.emit("mul", whole, b))
    rest = node.emit("sub", a, back)
    if node.int_attr("fmod", 0):
        return rest
    differs = node.emit("xor", node.emit("less", rest, zero), node.emit("less", b, zero))
    is_zero = node.emit("equal", rest, zero)
    keeps = node.emit("or", is_zero, node.emit("not", differs))
    return node.emit("where", keeps, rest, node.emit("add", rest, b))


@onnx_op("Mod")
def modulo(node: Node) -> Value:
    a, b = node.input(0), node.input(1)
    if a.type.dtype.is_float:
        return _float_modulo(node, a, b)
    rest = node.emit("sub", a, node.emit("mul", node.emit("div", a, b), b))
    if node.int_attr("fmod", 0) or not a.type.dtype.is_signed:
        return rest
    # division truncates: a rest of the other sign than b is one b short
    zero = node.scalar(0, a.type.dtype)
    differs = node.emit("less", node.emit("mul", rest, b), zero)
    return node.emit("where", differs, node.emit("add", rest, b), rest)


@onnx_op("Where", since=9)
def where(node: Node) -> Value:
    return node.emit("where", node.input(0), node.input(1), node.input(2))


@onnx_op("Cast", since=6)
def cast(node: Node) -> Value:
    node.ignore("saturate", "round_mode")  # they matter for 8-bit floats only
    try:
        return node.cast(node.input(0), dtype_of(node.int_attr("to")))
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None


@onnx_op("CastLike")
def cast_like(node: Node) -> Value:
    node.ignore("saturate", "round_mode")
    return node.cast(node.input(0), node.input(1).type.dtype)


@onnx_op("Clip")
def clip_by_attributes(node: Node) -> Value:
    node.ignore("consumed_inputs")
    x = node.input(0)
    low = node.float_attr("min", -math.inf)
    high = node.float_attr("max", math.inf)
    if low > np.finfo(np.float32).min:
        x = node.emit("maximum", x, node.scalar(low, x.type.dtype))
    if high < np.finfo(np.float32).max:
        x = node.emit("minimum", x, node.scalar(high, x.type.dtype))
    return x


@onnx_op("Clip", since=11)
def clip(node: Node) -> Value:
    x, low, high = node.input(0), node.optional(1), node.optional(2)
    if low is not None:
        x = node.emit("maximum", x, low)
    if high is not None:
        x = node.emit("minimum", x, high)
    return x


@onnx_op("IsInf")
def is_infinite(node: Node) -> Value:
    x = node.input(0)
    infinity = node.scalar(math.inf, x.type.dtype)
    positive = node.int_attr("detect_positive", 1)
    negative = node.int_attr("detect_negative", 1)
    if positive and negative:
        return node.emit("equal", node.emit("abs", x), infinity)
    wanted = infinity if positive else node.emit("neg", infinity)
    found = node.emit("equal", x, wanted)
    if positive or negative:
        return found
    return node.emit("and", found, node.emit("not", found))


# activations; `one`, `half` and the like are scalars of x's dtype


class _Math:
    """Arithmetic on values of one dtype, with numbers as scalars."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.x = node.input(0)
        self.dtype = self.x.type.dtype

    def __call__(self, op: str, *operands: Value | float) -> Value:
        return self.node.emit(
            op, *(o if isinstance(o, Value) else self.node.scalar(o, self.dtype) for o in operands)
        )

    def softplus(self, x: Value) -> Value:
        """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)), which can't overflow."""
        tail = self("log", self("add", self("exp", self("neg", self("abs", x))), 1.0))
        return self("add", self("relu", x), tail)

    def unless_negative(self, otherwise: Value) -> Value:
        """x where it is not negative, else `otherwise`."""
        return self("where", self("less", self.x, 0.0), otherwise, self.x)


@onnx_op("Reciprocal")
def reciprocal(node: Node) -> Value:
    node.ignore("consumed_inputs")
    m = _Math(node)
    return m("div", 1.0, m.x)


@onnx_op("Tan")
def tangent(node: Node) -> Value:
    m = _Math(node)
    return m("div", m("sin", m.x), m("cos", m.x))


@onnx_op("Sign")
def sign(node: Node) -> Value:
    x = node.input(0)
    zero = node.scalar(0, x.type.dtype)
    positive = node.cast(node.emit("less", zero, x), x.type.dtype)
    if not (x.type.dtype.is_float or x.type.dtype.is_signed):
        return positive
    return node.emit("sub", positive, node.cast(node.emit("less", x, zero), x.type.dtype))


@onnx_op("LeakyRelu")
def leaky_relu(node: Node) -> Value:
    node.ignore("consumed_inputs")
    m = _Math(node)
    return m.unless_negative(m("mul", m.x, node.float_attr("alpha", 0.01)))


@onnx_op("PRelu", since=_NUMPY_BROADCAST)
def prelu(node: Node) -> Value:
    x, slope = node.input(0), node.input(1)
    negative = node.emit("less", x, node.scalar(0, x.type.dtype))
    return node.emit("where", negative, node.emit("mul", x, slope), x)


def _exponential(node: Node, alpha: float) -> Value:
    m = _Math(node)
    return m.unless_negative(m("mul", m("sub", m("exp", m.x), 1.0), alpha))


@onnx_op("Elu")
def elu(node: Node) -> Value:
    node.ignore("consumed_inputs")
    return _exponential(node, node.float_attr("alpha", 1.0))


@onnx_op("Selu")
def selu(node: Node) -> Value:
    node.ignore("consumed_inputs")
    alpha = node.float_attr("alpha", 1.6732632)
    gamma = node.float_attr("gamma", 1.0507010)
    inner = _exponential(node, alpha)
    return node.emit("mul", inner, node.scalar(gamma, inner.type.dtype))


@onnx_op("Celu")
def celu(node: Node) -> Value:
    m, alpha = _Math(node), node.float_attr("alpha", 1.0)
    power = m("exp", m("div", m.x, alpha))
    return m.unless_negative(m("mul", m("sub", power, 1.0), alpha))


@onnx_op("ThresholdedRelu")
def thresholded_relu(node: Node) -> Value:
    m = _Math(node)
    is_kept = m("less", node.float_attr("alpha", 1.0), m.x)
    return m("where", is_kept, m.x, 0.0)


def _hard_sigmoid(m: _Math, alpha: float, beta: float) -> Value:
    line = m("add", m("mul", m.x, alpha), beta)
    return m("minimum", m("maximum", line, 0.0), 1.0)


@onnx_op("HardSigmoid")
def hard_sigmoid(node: Node) -> Value:
    node.ignore("consumed_inputs")
    return _hard_sigmoid(_Math(node), node.float_attr("alpha", 0.2), node.float_attr("beta", 0.5))


@onnx_op("HardSwish")
def hard_swish(node: Node) -> Value:
    return node.emit("hard_swish", node.input(0))


@onnx_op("Softplus")
def softplus(node: Node) -> Value:
    m = _Math(node)
    return m.softplus(m.x)


@onnx_op("Softsign")
def softsign(node: Node) -> Value:
    m = _Math(node)
    return m("div", m.x, m("add", m("abs", m.x), 1.0))


@onnx_op("Mish")
def mish(node: Node) -> Value:
    m = _Math(node)
    return m("mul", m.x, m("tanh", m.softplus(m.x)))


@onnx_op("Swish")
def swish(node: Node) -> Value:
    m = _Math(node)
    scaled = m("mul", m.x, node.float_attr("alpha", 1.0))
    return m("mul", m.x, m("sigmoid", scaled))


@onnx_op("Gelu")
def gelu(node: Node) -> Value:
    m = _Math(node)
    kind = node.str_attr("approximate", "none")
    if kind == "none":
        return node.emit("gelu", m.x)
    if kind != "tanh":
        raise node.error(f"attribute 'approximate' is {kind!r}, expected 'none' or 'tanh'")
    # x/2 (1 + tanh(u)) is x sigmoid(2 u)
    root = math.sqrt(8 / math.pi)
    line = m("add", m("mul", m("mul", m.x, m.x), 0.044715 * root), root)
    return m("mul", m.x, m("sigmoid", m("mul", m.x, line)))
