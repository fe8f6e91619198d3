"""ONNX's elementwise ops: arithmetic, activations, comparisons, casts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aot.frontends.lib import activations, quotients
from aot.frontends.onnx.stored import NARROW, decoded, encoded
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
        return activations.integer_power(node, base, exponent)
    # a whole exponent gives a whole power, which a rounded one may be just below
    whole = node.emit("floor", exponent)
    exact = activations.integer_power(node, base, node.cast(whole, DType.I32))
    wide = exponent.type.dtype
    other = node.cast(node.emit("pow", node.cast(base, wide), exponent), dtype)
    zero = node.scalar(0, wide)
    is_whole = node.emit(
        "and", node.emit("equal", whole, exponent), node.emit("less_equal", zero, exponent)
    )
    return node.emit("where", is_whole, exact, other)


@onnx_op("Mod")
def modulo(node: Node) -> Value:
    is_truncated = bool(node.int_attr("fmod", 0))
    return quotients.remainder(node, node.input(0), node.input(1), is_truncated=is_truncated)


@onnx_op("Where", since=9)
def where(node: Node) -> Value:
    return node.emit("where", node.input(0), node.input(1), node.input(2))


def _numbers(node: Node) -> Value:
    """The first operand, in a dtype that is computed with."""
    x, held = node.input(0), node.element_type(0)
    return x if held is None else decoded(node, x, held)


def _converted(node: Node, to: int) -> Value:
    """The first operand cast to an ONNX element type."""
    saturates = bool(node.int_attr("saturate", 1))
    rounding = node.str_attr("round_mode", "up")
    if to in NARROW:
        made = encoded(node, _numbers(node), to, saturates=saturates, rounding=rounding)
        node.kinds[made] = to
        return made
    try:
        return node.cast(_numbers(node), dtype_of(to))
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None


@onnx_op("Cast", since=6)
def cast(node: Node) -> Value:
    return _converted(node, node.int_attr("to"))


@onnx_op("CastLike")
def cast_like(node: Node) -> Value:
    wanted = node.element_type(1)
    if wanted is not None:
        return _converted(node, wanted)
    node.ignore("saturate", "round_mode")
    return node.cast(_numbers(node), node.input(1).type.dtype)


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


# activations


@onnx_op("Reciprocal")
def reciprocal(node: Node) -> Value:
    node.ignore("consumed_inputs")
    x = node.input(0)
    return node.emit("div", node.scalar(1, x.type.dtype), x)


@onnx_op("Tan")
def tangent(node: Node) -> Value:
    return node.emit("div", node.emit("sin", node.input(0)), node.emit("cos", node.input(0)))


@onnx_op("Sign")
def sign(node: Node) -> Value:
    return activations.sign(node, node.input(0))


@onnx_op("LeakyRelu")
def leaky_relu(node: Node) -> Value:
    node.ignore("consumed_inputs")
    return activations.leaky_relu(node, node.input(0), node.float_attr("alpha", 0.01))


@onnx_op("PRelu", since=_NUMPY_BROADCAST)
def prelu(node: Node) -> Value:
    return activations.prelu(node, node.input(0), node.input(1))


@onnx_op("Elu")
def elu(node: Node) -> Value:
    node.ignore("consumed_inputs")
    return activations.elu(node, node.input(0), node.float_attr("alpha", 1.0))


@onnx_op("Selu")
def selu(node: Node) -> Value:
    node.ignore("consumed_inputs")
    inner = activations.elu(node, node.input(0), node.float_attr("alpha", 1.6732632))
    return node.emit(
        "mul", inner, node.scalar(node.float_attr("gamma", 1.0507010), inner.type.dtype)
    )


@onnx_op("Celu")
def celu(node: Node) -> Value:
    return activations.celu(node, node.input(0), node.float_attr("alpha", 1.0))


@onnx_op("ThresholdedRelu")
def thresholded_relu(node: Node) -> Value:
    return activations.thresholded_relu(node, node.input(0), node.float_attr("alpha", 1.0))


@onnx_op("HardSigmoid")
def hard_sigmoid(node: Node) -> Value:
    node.ignore("consumed_inputs")
    return activations.hard_sigmoid(
        node, node.input(0), node.float_attr("alpha", 0.2), node.float_attr("beta", 0.5)
    )


@onnx_op("HardSwish")
def hard_swish(node: Node) -> Value:
    return node.emit("hard_swish", node.input(0))


@onnx_op("Softplus")
def softplus(node: Node) -> Value:
    return activations.softplus(node, node.input(0))


@onnx_op("Softsign")
def softsign(node: Node) -> Value:
    return activations.softsign(node, node.input(0))


@onnx_op("Mish")
def mish(node: Node) -> Value:
    return node.emit("mish", node.input(0))


@onnx_op("Swish")
def swish(node: Node) -> Value:
    return activations.swish(node, node.input(0), node.float_attr("alpha", 1.0))


@onnx_op("Gelu")
def gelu(node: Node) -> Value:
    kind = node.str_attr("approximate", "none")
    if kind == "none":
        return node.emit("gelu", node.input(0))
    if kind != "tanh":
        raise node.error(f"attribute 'approximate' is {kind!r}, expected 'none' or 'tanh'")
    return activations.tanh_gelu(node, node.input(0))
