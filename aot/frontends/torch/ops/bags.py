"""PyTorch's embedding_bag: sums, means and maxima of embeddings in bags."""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.torch.ops.movement import sliced
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType

I64 = DType.I64
_SUM, _MEAN, _MAX = range(3)


@torch_op("aten._embedding_bag_forward_only.default", "aten._embedding_bag.default")
def embedding_bag(
    n: Node,
    weight: Value,
    indices: Value,
    offsets: Value,
    scales_gradients: bool = False,
    mode: int = _SUM,
    is_sparse: bool = False,
    factors: Value | None = None,
    has_last_offset: bool = False,
    padding: int = -1,
) -> list[Value]:
    """embedding_bag: each bag's rows of a table reduced to one; bag b begins at offsets[b]. Rows
    with index `padding` are ignored, and an empty bag gives zeros.
    """
    if any(n.wants(number) for number in (1, 2, 3)):
        raise UnsupportedNodeError("its results other than the bags are not supported")
    (count,) = indices.type.dims
    bags, width = n.dims
    (held,) = offsets.type.dims  # one more, where the last says where the last bag ends
    bag = _bag_of(n, offsets, count)
    rows = n.emit("gather", weight, n.cast(indices, I64), axis=0)
    if factors is not None:
        rows = n("mul", rows, n.reshape(factors, (count, 1)))
    counted = n.emit("fill", shape=(count,), value=ConstantData(np.ones((), np.int64)))
    nothing = -math.inf if mode == _MAX else 0.0
    if padding >= 0:
        is_padding = n("equal", n.cast(indices, I64), padding)
        counted = n("where", is_padding, 0, counted)
        rows = n("where", n.reshape(is_padding, (count, 1)), nothing, rows)
    dtype = rows.type.dtype
    base = n.broadcast(n.scalar(nothing, dtype), (held, width))
    reduction = "max" if mode == _MAX else "add"
    made = n.emit("scatter_nd", base, bag, rows, depth=1, reduction=reduction)
    made = sliced(n, made, 0, 0, bags)
    if mode == _SUM:
        return [made] * 4
    zeros = n.emit("fill", shape=(held,), value=ConstantData(np.zeros((), np.int64)))
    sizes = n.emit("scatter_nd", zeros, bag, counted, depth=1, reduction="add")
    sizes = n.reshape(sliced(n, sizes, 0, 0, bags), (bags, 1))
    if mode == _MAX:
        return [n("where", n("equal", sizes, 0), 0.0, made)] * 4
    return [n("div", made, n.cast(n("maximum", sizes, 1), dtype))] * 4


def _bag_of(n: Node, offsets: Value, count: Dim) -> Value:
    """The bag that each row belongs to, [count, 1]: the number of bags that start at or before it,
    minus 1.
    """
    row = n.reshape(n.emit("range", size=count), (count, 1))
    is_begun = n.cast(n.emit("less_equal", n.cast(offsets, I64), row), I64)
    number = n.emit("reduce_sum", is_begun, axes=(1,), keepdims=True)
    return n("sub", number, 1)
