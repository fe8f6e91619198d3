"""ONNX's random tensors, determined by the compile's seed (`aot.frontends.lib.random`).

A node's own seed, or else its name, makes its numbers differ from those of other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib import random
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

F32 = DType.F32


def _drawn(node: Node, shape: Sequence[Dim], dtype: DType) -> Value:
    own = repr(node.float_attr("seed")) if node.has("seed") else f"node {node.label}"
    seed = f"{node.seed} {own}"
    if node.op_type.startswith("RandomNormal"):
        numbers = random.normal(node, shape, seed)
        factor, start = node.float_attr("scale", 1.0), node.float_attr("mean", 0.0)
    else:
        numbers = random.uniform(node, shape, seed)
        start = node.float_attr("low", 0.0)
        factor = node.float_attr("high", 1.0) - start
    scaled = node.emit("mul", numbers, node.scalar(factor, F32))
    return node.cast(node.emit("add", scaled, node.scalar(start, F32)), dtype)


def _dtype(node: Node, usual: DType) -> DType:
    try:
        return dtype_of(node.int_attr("dtype")) if node.has("dtype") else usual
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None


@onnx_op("RandomNormal", "RandomUniform")
def random_tensor(node: Node) -> Value:
    return _drawn(node, node.ints_attr("shape"), _dtype(node, DType.F32))


@onnx_op("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node) -> Value:
    x = node.input(0)
    return _drawn(node, x.type.dims, _dtype(node, x.type.dtype))
