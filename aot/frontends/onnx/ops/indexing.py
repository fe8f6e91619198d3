"""ONNX's ops on positions: gathers and scatters, scans, positions of extrema, sorting,
triangles."""

from __future__ import annotations

import numpy as np

from aot.frontends.lib.distinct import distinct, distinct_slices
from aot.frontends.lib.extents import coordinates, first, is_nonzero, true_positions
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Value
from aot.ir.types import Array, DType

I64 = DType.I64


def _last_extent(node: Node, index: int) -> int:
    """The last extent of an operand of positions: how many dims each row of it indexes."""
    shape = node.input(index).type.dims
    if not shape:
        raise node.error(f"operand {index} has rank 0, expected at least 1")
    if isinstance(shape[-1], DimExpr):
        raise UnsupportedNodeError(f"the last dim of operand {index} depends on the input's shape")
    return shape[-1]


@onnx_op("GatherElements", since=11)
def gather_elements(node: Node) -> Value:
    data = node.input(0)
    return node.emit("gather_elements", data, node.input(1), axis=node.axis_attr(data.type.rank, 0))


@onnx_op("GatherND", since=11)
def gather_nd(node: Node) -> Value:
    return node.emit(
        "gather_nd",
        node.input(0),
        node.input(1),
        depth=_last_extent(node, 1),
        batch_dims=node.int_attr("batch_dims", 0),
    )


@onnx_op("ScatterElements", since=11)
@onnx_op("Scatter", since=9)
def scatter_elements(node: Node) -> Value:
    data = node.input(0)
    return node.emit(
        "scatter_elements",
        data,
        node.input(1),
        node.input(2),
        axis=node.axis_attr(data.type.rank, 0),
        reduction=node.str_attr("reduction", "none"),
    )


@onnx_op("ScatterND", since=11)
def scatter_nd(node: Node) -> Value:
    return node.emit(
        "scatter_nd",
        node.input(0),
        node.input(1),
        node.input(2),
        depth=_last_extent(node, 1),
        reduction=node.str_attr("reduction", "none"),
    )


def _scan(node: Node, combine: str) -> Value:
    x = node.input(0)
    axis = node.axis(int(node.number(1, "axis")), x.type.rank)
    return node.emit(
        "scan",
        x,
        axis=axis,
        combine=combine,
        exclusive=bool(node.int_attr("exclusive", 0)),
        reverse=bool(node.int_attr("reverse", 0)),
    )


@onnx_op("CumSum", since=11)
def cumulative_sum(node: Node) -> Value:
    return _scan(node, "sum")


@onnx_op("CumProd", since=26)
def cumulative_product(node: Node) -> Value:
    return _scan(node, "prod")


def _extremum(node: Node, op: str) -> Value:
    x = node.input(0)
    return node.emit(
        op,
        x,
        axis=node.axis_attr(x.type.rank, 0),
        keepdims=bool(node.int_attr("keepdims", 1)),
        select_last=bool(node.int_attr("select_last_index", 0)),
    )


@onnx_op("ArgMax")
def arg_max(node: Node) -> Value:
    return _extremum(node, "arg_max")


@onnx_op("ArgMin")
def arg_min(node: Node) -> Value:
    return _extremum(node, "arg_min")


def _top_k(node: Node, k: Dim) -> list[Value]:
    x = node.input(0)
    node.ignore("sorted")  # sorted is one of the orders that unsorted may have
    return node.emit_all(
        "top_k",
        x,
        axis=node.axis_attr(x.type.rank, -1),
        k=k,
        largest=bool(node.int_attr("largest", 1)),
    )


@onnx_op("TopK")
def top_k_by_attribute(node: Node) -> list[Value]:
    return _top_k(node, node.int_attr("k"))


@onnx_op("TopK", since=10)
def top_k(node: Node) -> list[Value]:
    x = node.input(0)
    most = x.type.dims[node.axis_attr(x.type.rank, -1)]
    return _top_k(node, node.extent(1, "k", most))


def _counter(node: Node, extent: Dim, rank: int, axis: int) -> Value:
    """0, 1, ... along one dim of `rank`."""
    count = node.emit("range", size=extent)
    return node.reshape(count, [extent if d == axis else 1 for d in range(rank)])


def _is_chosen(node: Node, x: Value, axis: int) -> Value:
    """1 at the first of the largest elements along axis, else 0."""
    place = node.emit("arg_max", x, axis=axis)
    counter = _counter(node, x.type.dims[axis], x.type.rank, axis)
    return node.cast(node.emit("equal", place, counter), x.type.dtype)


@onnx_op("Hardmax")
def flattened_hardmax(node: Node) -> Value:
    x = node.input(0)
    axis = node.axis_attr(x.type.rank, 1)
    matrix = (dims.product(x.type.dims[:axis]), dims.product(x.type.dims[axis:]))
    return node.reshape(_is_chosen(node, node.reshape(x, matrix), 1), x.type.dims)


@onnx_op("Hardmax", since=13)
def hardmax(node: Node) -> Value:
    x = node.input(0)
    return _is_chosen(node, x, node.axis_attr(x.type.rank, -1))


# elements of a one-hot line from which on it is worth clamping the one that is hot
_FEW = 32


@onnx_op("OneHot", since=9)
def one_hot(node: Node) -> Value:
    wanted, values = node.cast(node.input(0), I64), node.input(2)
    is_float = node.input(1).type.dtype.is_float
    depth: Dim = node.whole(1, "depth") if is_float else node.extent(1, "depth", None)
    rank = wanted.type.rank + 1
    axis = node.axis(node.int_attr("axis", -1), rank)
    extent = node.reshape(node.emit("dim_values", dims=(depth,)), ())
    is_negative = node.emit("less", wanted, node.scalar(0, I64))
    wanted = node.emit("where", is_negative, node.emit("add", wanted, extent), wanted)
    counter = _counter(node, depth, rank, axis)
    if isinstance(depth, int) and _FEW <= depth < 1 << 31:
        # numbers as wide as the values, if that is enough, are compared in as many lanes
        fitting = (t for t in (DType.I8, DType.I16) if depth < 1 << (t.bits - 1))
        dtype = next((t for t in fitting if t.bits >= values.type.dtype.bits), DType.I32)
        wanted = node.emit("minimum", node.emit("maximum", wanted, node.scalar(-1, I64)), extent)
        wanted, counter = node.cast(wanted, dtype), node.cast(counter, dtype)
    spread = node.reshape(wanted, [*wanted.type.dims[:axis], 1, *wanted.type.dims[axis:]])
    is_hot = node.emit("equal", spread, counter)
    off, on = (
        node.reshape(node.emit("slice", values, starts=(i,), stops=(i + 1,), steps=(1,)), ())
        for i in range(2)
    )
    return node.emit("where", is_hot, on, off)


@onnx_op("EyeLike", since=9)
def eye_like(node: Node) -> Value:
    x = node.input(0)
    if x.type.rank != 2:
        raise node.error(f"x has rank {x.type.rank}, expected 2")
    try:
        dtype = dtype_of(node.int_attr("dtype")) if node.has("dtype") else x.type.dtype
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None
    rows, columns = (_counter(node, x.type.dims[d], 2, d) for d in range(2))
    diagonal = node.emit("add", rows, node.scalar(node.int_attr("k", 0), I64))
    return node.cast(node.emit("equal", diagonal, columns), dtype)


@onnx_op("Trilu", since=14)
def trilu(node: Node) -> Value:
    x = node.input(0)
    if x.type.rank < 2:
        raise node.error(f"x has rank {x.type.rank}, expected at least 2")
    is_upper = bool(node.int_attr("upper", 1))
    diagonal = node.optional(1)
    known = None if diagonal is None else node.values.known(diagonal)
    if diagonal is None or (known is not None and known.dtype != object):
        k = 0 if known is None else int(known.reshape(()))
        return node.emit("trilu", x, upper=is_upper, k=k)
    rows, columns = (_counter(node, x.type.dims[d - 2], 2, d) for d in range(2))
    border = node.emit("add", rows, node.reshape(diagonal, ()))
    is_kept = (
        node.emit("less_equal", border, columns)
        if is_upper
        else node.emit("less_equal", columns, border)
    )
    return node.emit("where", is_kept, x, node.scalar(0, x.type.dtype))


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(node: Node) -> Value:
    x, lengths = node.input(0), node.input(1)
    time = node.axis_attr(x.type.rank, 0, "time_axis")
    batch = node.axis_attr(x.type.rank, 1, "batch_axis")
    if time == batch:
        raise node.error(f"time_axis and batch_axis are both {time}")
    rest = [d for d in range(x.type.rank) if d not in (time, batch)]
    perm = (batch, time, *rest)
    counter = _counter(node, x.type.dims[time], 2, 1)
    length = node.reshape(lengths, (x.type.dims[batch], 1))
    mirrored = node.emit("sub", node.emit("sub", length, counter), node.scalar(1, I64))
    at = node.emit("where", node.emit("less", counter, length), mirrored, counter)
    moved = node.emit(
        "gather_nd",
        node.emit("transpose", x, perm=perm),
        node.reshape(at, (*at.type.dims, 1)),
        depth=1,
        batch_dims=1,
    )
    back = tuple(int(d) for d in np.argsort(perm))
    return node.emit("transpose", moved, perm=back)


def _deciding(node: Node, index: int) -> Array | None:
    """An operand whose elements determine the result's shape, if known; else None."""
    known = node.values.known(node.input(index))
    return None if known is None or known.dtype == object else known


@onnx_op("NonZero", since=9)
def non_zero(node: Node) -> Value:
    x, known = node.input(0), _deciding(node, 0)
    if known is not None:
        return node.constant(np.array(np.nonzero(np.atleast_1d(known)), np.int64))
    flat = node.reshape(x, (x.type.element_count,))
    return coordinates(node, true_positions(node, is_nonzero(node, flat)), x.type.dims or (1,))


@onnx_op("Compress", since=9)
def compress(node: Node) -> Value:
    x, known = node.input(0), _deciding(node, 1)
    axis = 0
    if node.has("axis"):
        axis = node.axis_attr(x.type.rank)
    else:
        x = node.reshape(x, (x.type.element_count,))
    if known is None:
        return node.emit("gather", x, _chosen(node, x.type.dims[axis]), axis=axis)
    chosen = np.flatnonzero(known)
    extent = x.type.dims[axis]
    if isinstance(extent, int) and chosen.size and chosen[-1] >= extent:
        raise node.error(f"condition chooses element {chosen[-1]} of {extent}")
    if not isinstance(extent, int) and chosen.size:
        x = first(node, x, int(chosen[-1]) + 1, axis)  # which a run refuses of a shorter extent
    return node.emit("gather", x, node.constant(chosen.astype(np.int64)), axis=axis)


def _chosen(node: Node, extent: Dim) -> Value:
    """Indices of the true elements of Compress's condition, cut to the extent of x's axis."""
    condition = node.input(1)
    (count,) = condition.type.dims
    return true_positions(node, first(node, condition, dims.minimum(count, extent)))


@onnx_op("Unique", since=11)
def unique(node: Node) -> list[Value | None]:
    x = node.input(0)
    is_sorted = bool(node.int_attr("sorted", 1))
    axis = node.axis_attr(x.type.rank) if node.has("axis") else 0
    if node.has("axis") and x.type.rank != 1:
        return list(distinct_slices(node, x, axis, is_sorted=is_sorted))
    flat = node.reshape(x, (x.type.element_count,))
    return list(distinct(node, flat, is_sorted=is_sorted))


@onnx_op("TensorScatter", since=24)
def tensor_scatter(node: Node) -> Value:
    """TensorScatter: replaces rows of a cache along axis, from write_indices; the first dim is the
    batch."""
    cache, update, starts = node.input(0), node.input(1), node.optional(2)
    rank = cache.type.rank
    axis = node.axis_attr(rank, -2)
    if axis == 0 or update.type.rank != rank:
        raise node.error(f"axis is {axis} and operands have rank {rank} and {update.type.rank}")
    counter = _counter(node, update.type.dims[axis], axis + 1, axis)
    if starts is not None:
        batch = node.reshape(starts, (cache.type.dims[0], *[1] * axis))
        counter = node.emit("add", batch, counter)
    mode = node.str_attr("mode", "linear")
    if mode == "circular":
        extent = node.reshape(node.emit("dim_values", dims=(cache.type.dims[axis],)), ())
        turns = node.emit("mul", node.emit("div", counter, extent), extent)
        counter = node.emit("sub", counter, turns)
    elif mode != "linear":
        raise node.error(f"attribute 'mode' is {mode!r}, expected linear or circular")
    lead = update.type.dims[: axis + 1]
    parts = [*(_counter(node, lead[d], axis + 1, d) for d in range(axis)), counter]
    rows = [
        node.reshape(
            part if part.type.dims == lead else node.emit("broadcast_to", part, shape=lead),
            (*lead, 1),
        )
        for part in parts
    ]
    return node.emit(
        "scatter_nd", cache, node.emit("concat", *rows, axis=axis + 1), update, depth=axis + 1
    )
