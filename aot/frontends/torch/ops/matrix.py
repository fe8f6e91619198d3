"""PyTorch's matrix products, norms of rows, and distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.einsum import einsum as lib_einsum
from aot.frontends.lib.matrix import matrix_product
from aot.frontends.torch.ops.reduction import vector_norm
from aot.frontends.torch.table import Node, Number, UnsupportedNodeError, torch_op
from aot.ir.graph import Value
from aot.ir.types import DType


@torch_op("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default")
def matmul(n: Node, a: Value, b: Value) -> Value:
    return matrix_product(n, a, b)


@torch_op("aten.dot.default", "aten.vdot.default")
def dot(n: Node, a: Value, b: Value) -> Value:
    return n.emit("reduce_sum", n("mul", a, b), axes=(0,), keepdims=False)


@torch_op("aten.linear.default")
def linear(n: Node, x: Value, weight: Value, bias: Value | None) -> Value:
    if weight.type.rank == 2:
        weight = n.emit("transpose", weight, perm=(1, 0))
    made = matrix_product(n, x, weight)
    return made if bias is None else n.emit("add", made, bias)


def _scaled(n: Node, x: Value, factor: Number) -> Value:
    return x if factor == 1 else n("mul", x, factor)


@torch_op("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default")
def add_product(n: Node, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    made = _scaled(n, matrix_product(n, a, b), alpha)
    return made if beta == 0 else n.emit("add", made, _scaled(n, x, beta))


@torch_op("aten.addbmm.default")
def add_products(n: Node, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    total = n.emit("reduce_sum", matrix_product(n, a, b), axes=(0,), keepdims=False)
    made = _scaled(n, total, alpha)
    return made if beta == 0 else n.emit("add", made, _scaled(n, x, beta))


@torch_op("aten._trilinear.default")
def trilinear(
    n: Node,
    a: Value,
    b: Value,
    c: Value,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    summed: Sequence[int],
    unrolled: int,
) -> Value:
    """The sum over dims of the product of three tensors, each expanded with dims of extent 1."""
    spread = []
    for x, expanded in ((a, expand_a), (b, expand_b), (c, expand_c)):
        dims = list(x.type.dims)
        for d in sorted(expanded):
            dims.insert(d, 1)
        spread.append(n.reshape(x, dims))
    product = n("mul", n("mul", spread[0], spread[2]), spread[1])
    axes = n.axes(summed, product.type.rank)
    return n.emit("reduce_sum", product, axes=axes, keepdims=False) if axes else product


@torch_op("aten._pdist_forward.default")
def distances_of_pairs(n: Node, x: Value, p: Number) -> Value:
    """pdist: the p-norm of the difference of each pair of rows."""
    (count,) = static_extents(x.type.dims[:1], "a number of rows")
    n.check_computed(count * count, "its table of pairs")
    first, second = (n.constant(part.astype(np.int64)) for part in np.triu_indices(count, 1))
    apart = n("sub", n.emit("gather", x, first, axis=0), n.emit("gather", x, second, axis=0))
    return vector_norm(n, apart, p, [-1], False, None)


@torch_op("aten.outer.default")
def outer(n: Node, a: Value, b: Value) -> Value:
    column = n.reshape(n.cast(a, n.dtype), (*a.type.dims, 1))
    return n("and" if n.dtype is DType.BOOL else "mul", column, n.cast(b, n.dtype))


@torch_op("aten._cdist_forward.default")
def distances(n: Node, a: Value, b: Value, p: Number, mode: Any) -> Value:
    """cdist: distances [..., rows of a, rows of b], the p-norm of each pair of rows' difference."""
    left = n.reshape(a, (*a.type.dims[:-1], 1, a.type.dims[-1]))
    right = n.reshape(b, (*b.type.dims[:-2], 1, *b.type.dims[-2:]))
    return vector_norm(n, n("sub", left, right), p, [-1], False, None)


@torch_op("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_product(
    n: Node, x: Value, weights: Value, ends: Value | None, bias: Value | None = None, *rest: Any
) -> Value:
    """Grouped products: rows [S, K] in consecutive groups, each times its group's matrix of [E, K,
    N]. The rows of group e end before ends[e]; rows after the last group give zeros."""
    if ends is None or x.type.rank != 2 or weights.type.rank != 3 or bias is not None:
        raise UnsupportedNodeError("only groups of rows with a matrix each, and no bias")
    (rows, width), (groups, _, columns) = x.type.dims, weights.type.dims
    row = n.cast(n.emit("range", size=rows), ends.type.dtype)
    is_behind = n.emit("less_equal", ends, n.reshape(row, (rows, 1)))
    group = n.emit("reduce_sum", n.cast(is_behind, DType.I32), axes=(1,), keepdims=False)
    if not isinstance(groups, int):
        raise UnsupportedNodeError("as many groups as a dim that is open")
    last = n.scalar(groups - 1, DType.I32)
    chosen = n.emit("gather", weights, n.emit("minimum", group, last), axis=0)
    made = matrix_product(n, n.reshape(x, (rows, 1, width)), chosen)
    is_grouped = n.reshape(n.emit("less_equal", group, last), (rows, 1))
    return n("where", is_grouped, n.reshape(made, (rows, columns)), 0.0)


@torch_op("aten.einsum.default")
def einsum(n: Node, equation: str, operands: Sequence[Value], path: Any) -> Value:
    return lib_einsum(n, equation, operands)
