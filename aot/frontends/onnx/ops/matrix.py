"""Imports ONNX's Det: determinants."""

from __future__ import annotations

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType

MAX_ROWS = 64  # a dozen ops for each; a larger matrix would want a kernel


def _pivoted(node: Node, a: Value, rows: int) -> tuple[Value, Value, Value]:
    """One step of Gaussian elimination with partial pivoting on matrices [B, rows, rows].

    Returns the pivots and whether their row was not the first (both [B, 1, 1]), and the matrices
    that are left, one row and one column smaller.
    """
    batch = a.type.dims[0]

    def part(first_row: int, first_column: int, last_row: int, last_column: int, x: Value) -> Value:
        starts, stops = (0, first_row, first_column), (batch, last_row, last_column)
        return node.emit("slice", x, starts=starts, stops=stops, steps=(1, 1, 1))

    column = part(0, 0, rows, 1, a)
    place = node.emit("arg_max", node.emit("abs", column), axis=1)
    spread = node.emit("broadcast_to", place, shape=(batch, 1, rows))
    row = node.emit("gather_elements", a, spread, axis=1)
    pivot = part(0, 0, 1, 1, row)
    zero, first = node.scalar(0, a.type.dtype), node.scalar(0, DType.I64)
    is_moved = node.emit("less", first, place)
    # the first row goes where the pivot's row was, which is not looked at again
    counter = node.reshape(node.emit("range", size=rows), (1, rows, 1))
    is_place = node.emit("equal", counter, place)
    swapped = node.emit("where", is_place, part(0, 0, 1, rows, a), a)
    below, heads = part(1, 1, rows, rows, swapped), part(1, 0, rows, 1, swapped)
    # of a column of zeros there is nothing to take away
    factor = node.emit("div", heads, pivot)
    factor = node.emit("where", node.emit("equal", pivot, zero), zero, factor)
    left = node.emit("sub", below, node.emit("mul", factor, part(0, 1, 1, rows, row)))
    return pivot, is_moved, left


@onnx_op("Det", since=11)
def determinant(node: Node) -> Value:
    """The determinant: the product of pivots, with the sign of the row permutation; f16 is computed
    in f32."""
    x = node.input(0)
    if x.type.rank < 2:
        raise node.error(f"x has rank {x.type.rank}, expected 2 or more")
    rows, columns = x.type.dims[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedNodeError("a matrix whose extents depend on the input's shape")
    if rows != columns:
        raise node.error(f"the matrices are {rows} x {columns}, expected square ones")
    if rows > MAX_ROWS:
        raise UnsupportedNodeError(f"a matrix of {rows} rows; {MAX_ROWS} are supported at most")
    outer, dtype = x.type.dims[:-2], x.type.dtype
    wide = dtype.accumulator
    batch = dims.product(outer)
    left = node.cast(node.reshape(x, (batch, rows, columns)), wide)
    one = node.scalar(1, wide)
    if rows == 0:
        return node.cast(node.emit("broadcast_to", one, shape=outer), dtype)
    total: Value | None = None
    is_odd: Value | None = None
    for size in range(rows, 1, -1):
        pivot, is_moved, left = _pivoted(node, left, size)
        total = pivot if total is None else node.emit("mul", total, pivot)
        is_odd = is_moved if is_odd is None else node.emit("xor", is_odd, is_moved)
    if total is None or is_odd is None:
        return node.cast(node.reshape(left, outer), dtype)
    total = node.emit("mul", total, left)
    signed = node.emit("where", is_odd, node.emit("neg", total), total)
    return node.cast(node.reshape(signed, outer), dtype)
