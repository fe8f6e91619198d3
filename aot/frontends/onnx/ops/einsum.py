"""Imports ONNX's Einsum, by the shared decomposition."""

from __future__ import annotations

from aot.frontends.lib.einsum import einsum
from aot.frontends.onnx.table import Node, onnx_op
from aot.ir.graph import Value


@onnx_op("Einsum", since=12)
def import_einsum(node: Node) -> Value:
    operands = [node.input(i) for i in range(len(node.inputs))]
    return einsum(node, node.str_attr("equation"), operands)
