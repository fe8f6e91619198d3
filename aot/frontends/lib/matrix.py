"""Matrix products with batch dims, and products with vectors."""

from __future__ import annotations

from collections.abc import Callable

from aot.frontends.lib.builder import GraphBuilder
from aot.ir.graph import Value


def matrix_product(
    b: GraphBuilder,
    left: Value,
    right: Value,
    prepared: Callable[[Value, Value], tuple[Value, Value]] = lambda left, right: (left, right),
) -> Value:
    """numpy's matmul, where 1-D operands are a row on the left and a column on the right.
    `prepared` converts the two operands once they have at least two dims."""
    ranks = left.type.rank, right.type.rank
    if 0 in ranks:
        raise b.error("operands have at least one dim")
    row = b.reshape(left, (1, *left.type.dims)) if ranks[0] == 1 else left
    column = b.reshape(right, (*right.type.dims, 1)) if ranks[1] == 1 else right
    result = b.emit("matmul", *prepared(row, column))
    shape = list(result.type.dims)
    if ranks[1] == 1:
        shape.pop()
    if ranks[0] == 1:
        shape.pop(-1 if ranks[1] == 1 else -2)
    return b.reshape(result, shape)
