"""TFLite's matrix products: FULLY_CONNECTED and BATCH_MATMUL."""

from __future__ import annotations

from aot.frontends.lib.matrix import matrix_product
from aot.frontends.tflite.table import Node, UnsupportedNodeError, tflite_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value


def _last_two_swapped(n: Node, x: Value) -> Value:
    rank = x.type.rank
    return n.transposed(x, (*range(rank - 2), rank - 1, rank - 2))


@tflite_op("FULLY_CONNECTED")
def fully_connected(n: Node) -> Value:
    """FULLY_CONNECTED: x, flattened to rows of K elements, times the transpose of w [N, K]."""
    if n.option("weights_format", 0) != 0:
        raise UnsupportedNodeError("shuffled weights are not supported")
    x, w = n.real(0), n.real(1)
    if w.type.rank != 2 or x.type.rank == 0:
        raise n.error(f"its operands are {x.type} and {w.type}")
    width = w.type.dims[1]
    shape: tuple[Dim, ...] = x.type.dims
    if n.option("keep_num_dims", False):
        rows = x
    else:
        count = dims.floor_divide(dims.product(shape), width)
        rows, shape = n.reshape(x, (count, width)), (count, width)
    if shape[-1] != width:
        raise n.error(f"x is {x.type}, but its weights have {width} columns")
    y = (
        n.emit("matmul", rows, _last_two_swapped(n, w))
        if len(shape) > 1
        else matrix_product(n, rows, _last_two_swapped(n, w))
    )
    if n.has(2):
        bias = n.real(2)
        y = n.emit("add", y, n.reshape(bias, (bias.type.element_count,)))
    return n.activated(y)


@tflite_op("BATCH_MATMUL")
def batch_matmul(n: Node) -> Value:
    a, b = n.real(0), n.real(1)
    if min(a.type.rank, b.type.rank) < 2:
        raise n.error(f"its operands are {a.type} and {b.type}, expected matrices")
    if n.option("adj_x", False):
        a = _last_two_swapped(n, a)
    if n.option("adj_y", False):
        b = _last_two_swapped(n, b)
    return matrix_product(n, a, b)
