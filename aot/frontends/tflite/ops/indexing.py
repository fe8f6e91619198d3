"""TFLite's gathers and scatters, and other selections by index."""

from __future__ import annotations

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.extents import coordinates, is_nonzero, true_positions
from aot.frontends.tflite.ops.movement import broadcast
from aot.frontends.tflite.table import Node, UnsupportedNodeError, tflite_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType


@tflite_op("GATHER")
def gather(n: Node) -> Value:
    """GATHER: slices of x by index; the first `batch_dims` dims are common to both operands."""
    x, indices = n.stored_like_output(0), n.input(1)
    axis = n.axis(int(n.option("axis", 0)), x.type.rank)
    count = n.axis(int(n.option("batch_dims", 0)), indices.type.rank + 1)
    if count == 0:
        return n.emit("gather", x, indices, axis=axis)
    if count > axis:
        raise n.error(f"axis {axis} is one of {count} batch dims")
    # one batch dim, whose number is a part of the number of a slice
    batch, extent = dims.product(x.type.dims[:count]), x.type.dims[axis]
    others = dims.product(x.type.dims[count:axis])
    outer = n.reshape(x, (batch, others, extent, *x.type.dims[axis + 1 :]))
    moved = n.emit("transpose", outer, perm=(0, 2, 1, *range(3, outer.type.rank)))
    flat = n.reshape(moved, (dims.multiply(batch, extent), others, *x.type.dims[axis + 1 :]))
    rows = n.reshape(n.cast(indices, DType.I64), (batch, dims.product(indices.type.dims[count:])))
    first = n.emit("mul", n.emit("range", size=batch), n.value_of([extent], DType.I64))
    at = n.emit("add", rows, n.reshape(first, (batch, 1)))
    taken = n.emit("gather", flat, at, axis=0)  # batch, taken, others, rest
    back = n.emit("transpose", taken, perm=(0, 2, 1, *range(3, taken.type.rank)))
    return n.reshape(
        back,
        (
            *x.type.dims[:axis],
            *indices.type.dims[count:],
            *x.type.dims[axis + 1 :],
        ),
    )


@tflite_op("GATHER_ND")
def gather_nd(n: Node) -> Value:
    x, at = n.stored_like_output(0), n.input(1)
    return n.emit("gather_nd", x, at, depth=_depth(n, at))


def _depth(n: Node, indices: Value) -> int:
    """The number of dims that a row of indices addresses."""
    if indices.type.rank == 0:
        raise n.error("its indices have no dims")
    (depth,) = static_extents(indices.type.dims[-1:], "the length of a row of indices")
    return depth


@tflite_op("EMBEDDING_LOOKUP")
def embedding_lookup(n: Node) -> Value:
    """EMBEDDING_LOOKUP: rows of a table, which may be quantised although the result is not."""
    table = n.real(1) if not n.is_quantised else n.input(1)
    return n.emit("gather", table, n.input(0), axis=0)


@tflite_op("SCATTER_ND")
def scatter_nd(n: Node) -> Value:
    """SCATTER_ND: zeros with slices added at indices."""
    indices, updates, shape = n.input(0), n.real(1), n.dims_of(2)
    zeros = n.emit("broadcast_to", n.scalar(0, updates.type.dtype), shape=tuple(shape))
    return n.emit("scatter_nd", zeros, indices, updates, depth=_depth(n, indices), reduction="add")


@tflite_op("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(n: Node) -> Value:
    x, update = n.stored_like_output(0), n.stored_like_output(1)
    starts = n.cast(n.input(2), DType.I64)
    return n.emit("put_slice", x, update, starts)


@tflite_op("ONE_HOT")
def one_hot(n: Node) -> Value:
    indices, (depth,) = n.input(0), n.dims_of(1)
    on, off = n.input(2), n.input(3)
    given, rank = int(n.option("axis", -1)), indices.type.rank + 1
    axis = n.axis(given, rank)
    numbers = n.reshape(
        n.cast(indices, DType.I64), (*indices.type.dims[:axis], 1, *indices.type.dims[axis:])
    )
    counter = n.reshape(n.emit("range", size=depth), (depth, *[1] * (rank - 1 - axis)))
    return n.emit("where", n.emit("equal", numbers, counter), on, off)


@tflite_op("BUCKETIZE")
def bucketize(n: Node) -> Value:
    """BUCKETIZE: for each element, the number of sorted boundaries that are not above it."""
    x, boundaries = n.real(0), n.option("boundaries")
    limits = np.zeros(0, np.float32) if boundaries is None else np.array(boundaries)
    spread = n.reshape(n.cast(x, DType.F32), (*x.type.dims, 1))
    is_below = n.emit("less_equal", n.constant(limits), spread)
    count = n.cast(is_below, DType.I32)
    return n.emit("reduce_sum", count, axes=(x.type.rank,), keepdims=False)


@tflite_op("WHERE")
def where(n: Node) -> Value:
    """WHERE: the coordinates [n, rank] of non-zero elements, with a data-dependent n."""
    x = n.input(0)
    flat = n.reshape(is_nonzero(n, x), (x.type.element_count,))
    found = coordinates(n, true_positions(n, flat), x.type.dims)
    return n.emit("transpose", found, perm=(1, 0))


@tflite_op("MATRIX_DIAG")
def matrix_diag(n: Node) -> Value:
    x = n.stored_like_output(0)
    return _with_diagonal(
        n,
        n.emit("broadcast_to", n.scalar(0, x.type.dtype), shape=(*x.type.dims, x.type.dims[-1])),
        x,
    )


@tflite_op("MATRIX_SET_DIAG")
def matrix_set_diag(n: Node) -> Value:
    return _with_diagonal(n, n.stored_like_output(0), n.stored_like_output(1))


def _with_diagonal(n: Node, x: Value, diagonal: Value) -> Value:
    """Matrices with their diagonals replaced."""
    rows, columns = x.type.dims[-2:]
    row = n.reshape(n.emit("range", size=rows), (rows, 1))
    is_on = n.emit("equal", row, n.emit("range", size=columns))
    count = diagonal.type.dims[-1]
    if count != rows:  # more rows than columns: those below have no diagonal
        shape = (*diagonal.type.dims[:-1], dims.add(rows, dims.multiply(count, -1)))
        zeros = broadcast(n, n.scalar(0, diagonal.type.dtype), shape)
        diagonal = n.emit("concat", diagonal, zeros, axis=diagonal.type.rank - 1)
    spread = n.reshape(diagonal, (*diagonal.type.dims, 1))
    return n.emit("where", is_on, spread, x)


@tflite_op("SPARSE_TO_DENSE")
def sparse_to_dense(n: Node) -> Value:
    indices, shape, values, default = n.input(0), n.dims_of(1), n.input(2), n.input(3)
    if indices.type.rank == 0:
        indices = n.reshape(indices, (1, 1))
    elif indices.type.rank == 1:
        indices = n.reshape(indices, (*indices.type.dims, 1))
    count = indices.type.dims[0]
    base, depth = broadcast(n, default, shape), _depth(n, indices)
    return n.emit("scatter_nd", base, indices, broadcast(n, values, (count,)), depth=depth)


@tflite_op("SEGMENT_SUM")
def segment_sum(n: Node) -> Value:
    x, segments = n.real(0), n.known(1)
    if segments is None:
        raise UnsupportedNodeError("segments that are computed are not supported")
    count = int(segments.max(initial=-1)) + 1
    return _segments(n, x, n.input(1), count, "add", 0)


def _segments(n: Node, x: Value, ids: Value, count: object, reduction: str, first: float) -> Value:
    """Slices of x reduced by segment; empty segments get `first`."""
    if not isinstance(count, int):
        raise UnsupportedNodeError("a number of segments that is computed is not supported")
    flat = n.reshape(n.cast(ids, DType.I64), (ids.type.element_count, 1))
    rows = n.reshape(x, (ids.type.element_count, *x.type.dims[ids.type.rank :]))
    base = broadcast(n, n.scalar(first, x.type.dtype), (count, *rows.type.dims[1:]))
    return n.emit("scatter_nd", base, flat, rows, depth=1, reduction=reduction)


def _unsorted(reduction: str, of_floats: float, of_integers: str) -> None:
    name = {"add": "SUM", "mul": "PROD", "max": "MAX", "min": "MIN"}[reduction]

    def build(n: Node) -> Value:
        x, (count,) = n.real(0), n.dims_of(2)
        first = of_floats
        if of_integers and not x.type.dtype.is_float:
            first = getattr(np.iinfo(x.type.dtype.numpy), of_integers)
        elif of_integers:
            first = float(getattr(np.finfo(np.float32), of_integers))
        return _segments(n, x, n.input(1), count, reduction, first)

    tflite_op(f"UNSORTED_SEGMENT_{name}")(build)


_unsorted("add", 0, "")
_unsorted("mul", 1, "")
_unsorted("max", 0, "min")
_unsorted("min", 0, "max")


@tflite_op("REVERSE_SEQUENCE")
def reverse_sequence(n: Node) -> Value:
    """REVERSE_SEQUENCE: reverses the leading elements along a dim, as many per batch entry as its
    length says."""
    x, lengths = n.stored_like_output(0), n.cast(n.input(1), DType.I64)
    rank = x.type.rank
    along = n.axis(int(n.option("seq_dim", 0)), rank)
    batch = n.axis(int(n.option("batch_dim", 0)), rank)
    if along == batch:
        raise n.error("sequences and batches are one dim")

    def placed(v: Value, axis: int) -> Value:
        return n.reshape(v, [e if d == axis else 1 for d, e in enumerate(x.type.dims)])

    counter = placed(n.emit("range", size=x.type.dims[along]), along)
    length = placed(lengths, batch)
    back = n.emit("sub", n("sub", length, 1), counter)
    at = n.emit("where", n.emit("less", counter, length), back, counter)
    return n.emit("gather_elements", x, broadcast(n, at, x.type.dims), axis=along)
