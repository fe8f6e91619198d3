"""ONNX's hyperbolic, inverse and bitwise functions, in terms of supported ops."""

from __future__ import annotations

from collections.abc import Callable

from aot.frontends.lib import functions
from aot.frontends.lib.builder import GraphBuilder
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


_FUNCTIONS: dict[str, tuple[int, Callable[[GraphBuilder, Value], Value]]] = {
    "Sinh": (9, functions.sinh),
    "Cosh": (9, functions.cosh),
    "Atan": (7, functions.atan),
    "Asin": (7, functions.asin),
    "Acos": (7, functions.acos),
    "Asinh": (9, functions.asinh),
    "Acosh": (9, functions.acosh),
    "Atanh": (9, functions.atanh),
}


def _function(build: Callable[[GraphBuilder, Value], Value]) -> Callable[[Node], Value]:
    return lambda node: build(node, node.input(0))


for _name, (_since, _build) in _FUNCTIONS.items():
    onnx_op(_name, since=_since)(_function(_build))
