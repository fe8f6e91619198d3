"""ONNX Runtime's own quantised ops, which its quantiser and optimiser emit in addition to ONNX's.

Those that compute in floats are a dequantise, the float op and a quantise, as they are in
ONNX's format of such models; products are sums in i32 as in `quantized.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.ops.quantized import (
    F32,
    check_scale,
    check_scales,
    dynamically_quantized,
    integer_product,
    requantized,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError, find_entry, onnx_op
from aot.ir.graph import Value


def _one(node: Node, number: int, what: str) -> Value:
    """A scale or zero point as a scalar; an error if it has several elements."""
    value = node.input(number)
    if value.type.element_count != 1:
        raise node.error(f"{what} has {value.type.element_count} elements, expected 1")
    return node.reshape(value, ())


def _zero(node: Node, number: int, what: str) -> Value | None:
    return None if node.optional(number) is None else _one(node, number, what)


def _float(node: Node, x: Value, number: int, name: str) -> Value:
    """The dequantised x, with the scale in operand `number` and the zero point in the next one."""
    scale = _one(node, number, f"the scale of {name}")
    check_scale(node, scale, f"the scale of {name}")
    return node.emit("dequantize", x, scale, _zero(node, number + 1, f"the zero point of {name}"))


def _quantized(node: Node, y: Value, number: int, like: Value) -> Value:
    """The quantised y, with the scale in operand `number` and the zero point in the next one;
    without one the dtype is that of `like`."""
    scale = _one(node, number, "the scale of y")
    check_scale(node, scale, "the scale of y")
    zero = _zero(node, number + 1, "the zero point of y")
    return node.emit("quantize", y, scale, zero, to=(zero or like).type.dtype)


def _pairwise(op: str) -> Callable[[Node], Value]:
    def build(node: Node) -> Value:
        a, b = node.input(0), node.input(3)
        result = node.emit(op, _float(node, a, 1, "a"), _float(node, b, 4, "b"))
        return _quantized(node, result, 6, a)

    return build


def _unary(build: Callable[[Node, Value], Value]) -> Callable[[Node], Value]:
    """An entry for a unary op on a quantised tensor: operands are x, its scale and zero point, y's
    scale and zero point."""

    def whole(node: Node) -> Value:
        x = node.input(0)
        return _quantized(node, build(node, _float(node, x, 1, "x")), 3, x)

    return whole


def _channels_first(name: str) -> Callable[[Node, Value], Value]:
    """ONNX's op `name` applied to x, whose channels may be last."""

    def whole(node: Node, x: Value) -> Value:
        rank = x.type.rank
        if not node.int_attr("channels_last", 0) or rank < 3:
            return _standard(name, node, x)
        first = node.emit("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))
        return node.emit("transpose", _standard(name, node, first), perm=(0, *range(2, rank), 1))

    return whole


def _standard(name: str, node: Node, x: Value, opset: int = 22) -> Value:
    """ONNX's op `name` with the node's attributes, applied to x."""
    entry = find_entry("", name, opset)
    assert entry is not None
    result = entry.build(replace(node, inputs=[x], opset=opset))
    assert isinstance(result, Value)
    return result


def _softmax(node: Node, x: Value) -> Value:
    opset = node.int_attr("opset")
    # the last dim alone by default, whichever opset the definition is of
    return _standard("Softmax", node, x, opset if node.has("axis") else 13)


for _name, _build in (
    ("QLinearAdd", _pairwise("add")),
    ("QLinearMul", _pairwise("mul")),
    ("QLinearSigmoid", _unary(lambda node, x: _standard("Sigmoid", node, x))),
    ("QLinearLeakyRelu", _unary(lambda node, x: _standard("LeakyRelu", node, x))),
    ("QLinearAveragePool", _unary(_channels_first("AveragePool"))),
    ("QLinearGlobalAveragePool", _unary(_channels_first("GlobalAveragePool"))),
    ("QLinearSoftmax", _unary(_softmax)),
):
    onnx_op(_name, domain=MICROSOFT)(_build)


@onnx_op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: Node) -> Value:
    count = len(node.inputs) - 2
    if count < 3 or count % 3:
        raise node.error(
            f"has {count} operands after the scale and the zero point, expected "
            "a tensor, its scale and its zero point for each part"
        )
    parts = [
        _float(node, node.input(first), first + 1, f"part {number}")
        for number, first in enumerate(range(2, len(node.inputs), 3))
    ]
    axis = node.axis_attr(parts[0].type.rank)
    return _quantized(node, node.emit("concat", *parts, axis=axis), 0, node.input(2))


@onnx_op("QGemm", domain=MICROSOFT)
def qgemm(node: Node) -> Value:
    a, b, c = node.input(0), node.input(3), node.optional(6)
    check_scales(node, a=1, b=4, y=7)
    if a.type.rank != 2 or b.type.rank != 2:
        raise node.error(f"operands have rank {a.type.rank} and {b.type.rank}, expected 2")
    if node.int_attr("transA", 0):
        a = node.emit("transpose", a, perm=(1, 0))
    if node.int_attr("transB", 0):
        b = node.emit("transpose", b, perm=(1, 0))
    a_scale = node.emit(
        "mul", _one(node, 1, "the scale of a"), node.scalar(node.float_attr("alpha", 1.0), F32)
    )
    a_zero = _one(node, 2, "the zero point of a")
    total = integer_product(node, a, b, (a_zero, node.input(5)))
    if c is not None:
        total = node.emit("add", total, c)
    b_scale = node.input(4)
    b_scale = node.reshape(b_scale, ()) if b_scale.type.element_count == 1 else b_scale
    if node.optional(7) is None:
        return node.emit("mul", node.cast(total, F32), node.emit("mul", a_scale, b_scale))
    y_zero = _zero(node, 8, "the zero point of y")
    if y_zero is None or y_zero.type.dtype is F32:
        raise UnsupportedNodeError("a scale of y without a zero point of 8 bits is not supported")
    return requantized(node, total, (a_scale, b_scale, _one(node, 7, "the scale of y")), y_zero)


def _with_bias(node: Node, product: Value, number: int) -> Value:
    bias = node.optional(number)
    return product if bias is None else node.emit("add", product, bias)


@onnx_op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: Node) -> Value:
    check_scales(node, a=2, b=3)
    a_scale, b_scale = node.input(2), node.input(3)
    a_scale = node.reshape(a_scale, ()) if a_scale.type.element_count == 1 else a_scale
    b_scale = node.reshape(b_scale, ()) if b_scale.type.element_count == 1 else b_scale
    zeros = node.optional(4), node.optional(5)
    total = integer_product(node, node.input(0), node.input(1), zeros)
    factor = node.emit("mul", a_scale, b_scale)
    product = node.emit("mul", node.cast(node.cast(total, F32), factor.type.dtype), factor)
    return _with_bias(node, product, 6)


@onnx_op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: Node) -> Value:
    check_scales(node, b=2)
    quantized, scale, zero = dynamically_quantized(node, node.input(0))
    b_scale = node.input(2)
    b_scale = node.reshape(b_scale, ()) if b_scale.type.element_count == 1 else b_scale
    total = integer_product(node, quantized, node.input(1), (zero, node.optional(3)))
    product = node.emit("mul", node.cast(total, F32), node.emit("mul", scale, b_scale))
    return _with_bias(node, product, 4)
