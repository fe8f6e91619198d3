"""PyTorch's ops on positions: gathers, scatters, advanced indexing, searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot.frontends.lib import extents
from aot.frontends.torch.ops.elementwise import truth
from aot.frontends.torch.ops.movement import permute
from aot.frontends.torch.table import Node, Number, Operand, UnsupportedNodeError, torch_op
from aot.ir.dims import Dim, add, product
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType

I64 = DType.I64


@torch_op("aten.embedding.default")
def embedding(n: Node, weight: Value, indices: Value, *options: object) -> Value:
    return n.emit("gather", weight, indices, axis=0)


@torch_op("aten.index_select.default")
def index_select(n: Node, x: Value, dim: int, indices: Value) -> Value:
    if x.type.rank == 0:
        return x
    rows = n.reshape(indices, (indices.type.element_count,))
    return n.emit("gather", x, rows, axis=n.axis(dim, x.type.rank))


@torch_op("aten.gather.default")
def gather(n: Node, x: Value, dim: int, indices: Value, sparse_grad: bool = False) -> Value:
    if x.type.rank == 0:
        return n.broadcast(x, indices.type.dims)
    axis = n.axis(dim, x.type.rank)
    rows = _ranked(n, indices, x.type.rank)
    found = n.emit("gather_elements", _cut(n, x, rows, axis), n.cast(rows, I64), axis=axis)
    return n.reshape(found, n.dims)


@torch_op("aten.take_along_dim.default")
def take_along_dim(n: Node, x: Value, indices: Value, dim: int | None) -> Value:
    if dim is None:
        flat = n.reshape(x, (x.type.element_count,))
        return n.emit("gather", flat, n.reshape(indices, n.dims), axis=0)
    axis = n.axis(dim, x.type.rank)
    shape = [e if d != axis else x.type.dims[d] for d, e in enumerate(n.dims)]
    return n.emit("gather_elements", n.broadcast(x, shape), n.broadcast(indices, n.dims), axis=axis)


def _ranked(n: Node, x: Value, rank: int) -> Value:
    """`x` reshaped to `rank` dims: torch accepts a scalar for a vector with one element, and any
    empty tensor for an empty one.
    """
    if x.type.rank == rank:
        return x
    is_empty = 0 in x.type.dims
    return n.reshape(x, (0,) * rank if is_empty else (1,) * rank)


def _cut(n: Node, x: Value, indices: Value, axis: int) -> Value:
    """x cut to the extents of `indices`, which may be smaller, in every dim but `axis`."""
    stops = tuple(
        e if d == axis else m
        for d, (e, m) in enumerate(zip(x.type.dims, indices.type.dims, strict=True))
    )
    if stops == x.type.dims:
        return x
    rank = x.type.rank
    return n.emit("slice", x, starts=(0,) * rank, stops=stops, steps=(1,) * rank)


# scatters

# of truths as numbers
_OF_TRUTHS = {"add": "max", "mul": "min", "max": "max", "min": "min"}


def of_truths(n: Node, x: Value, source: Operand, write: Callable[..., Value]) -> Value:
    """A reducing write into a bool tensor, computed on 0 and 1."""
    return n("less", 0, write(n.cast(x, DType.I32), n.value(source, DType.I32)))


def scattered(
    n: Node, x: Value, dim: int, indices: Value, source: Operand, reduction: str
) -> Value:
    if x.type.dtype is DType.BOOL and reduction in _OF_TRUTHS:
        how = _OF_TRUTHS[reduction]
        return of_truths(n, x, source, lambda a, b: scattered(n, a, dim, indices, b, how))
    rank = max(x.type.rank, 1)
    axis = n.axis(dim, rank)
    indices = n.cast(_ranked(n, indices, rank), I64)
    shape = indices.type.dims
    if isinstance(source, Value):
        updates = n.cast(source, x.type.dtype)
        if source.type.rank == 0:
            updates = n.broadcast(updates, shape)
        elif source.type.dims != shape:
            cut = {"starts": (0,) * rank, "stops": shape, "steps": (1,) * rank}
            updates = n.emit("slice", _ranked(n, updates, rank), **cut)
    else:
        updates = n.broadcast(n.value(source, x.type.dtype), shape)
    made = n.emit(
        "scatter_elements",
        _ranked(n, x, rank),
        indices,
        updates,
        axis=axis,
        reduction=reduction,
    )
    return n.reshape(made, x.type.dims)


@torch_op("aten.scatter.src", "aten.scatter.value")
def scatter(n: Node, x: Value, dim: int, indices: Value, source: Operand) -> Value:
    return scattered(n, x, dim, indices, source, "none")


@torch_op("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_reduced(
    n: Node, x: Value, dim: int, indices: Value, source: Operand, reduce: str
) -> Value:
    names = {"add": "add", "multiply": "mul"}
    return scattered(n, x, dim, indices, source, names[reduce])


@torch_op("aten.scatter_add.default")
def scatter_add(n: Node, x: Value, dim: int, indices: Value, source: Value) -> Value:
    return scattered(n, x, dim, indices, source, "add")


def _rows(n: Node, indices: Value) -> Value:
    """Positions as a column [count, 1]."""
    flat = n.reshape(indices, (indices.type.element_count,))
    return n.reshape(flat, (*flat.type.dims, 1))


def into_rows(n: Node, x: Value, dim: int, indices: Value, source: Value, reduction: str) -> Value:
    """index_copy and similar ops: writes slices along a dim at positions; a scalar counts as a
    vector with one element."""
    if x.type.dtype is DType.BOOL and reduction in _OF_TRUTHS:
        how = _OF_TRUTHS[reduction]
        return of_truths(n, x, source, lambda a, b: into_rows(n, a, dim, indices, b, how))
    if x.type.rank == 0:
        vector = n.reshape(x, (1,))
        return n.reshape(into_rows(n, vector, dim, indices, source, reduction), ())
    source = _ranked(n, source, x.type.rank)
    axis = n.axis(dim, x.type.rank)
    order = [axis, *(d for d in range(x.type.rank) if d != axis)]
    back = [order.index(d) for d in range(x.type.rank)]
    made = n.emit(
        "scatter_nd",
        permute(n, x, order),
        _rows(n, indices),
        permute(n, n.cast(source, x.type.dtype), order),
        depth=1,
        reduction=reduction,
    )
    return permute(n, made, back)


@torch_op("aten.index_copy.default")
def index_copy(n: Node, x: Value, dim: int, indices: Value, source: Value) -> Value:
    return into_rows(n, x, dim, indices, source, "none")


@torch_op("aten.index_add.default")
def index_add(
    n: Node, x: Value, dim: int, indices: Value, source: Value, alpha: Number = 1
) -> Value:
    if alpha != 1:
        factor = n.value(alpha, source.type.dtype)
        op = "and" if source.type.dtype is DType.BOOL else "mul"
        source = n.emit(op, source, factor)
    return into_rows(n, x, dim, indices, source, "add")


@torch_op("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(n: Node, x: Value, dim: int, indices: Value, value: Operand) -> Value:
    axis = n.axis(dim, max(x.type.rank, 1))
    count = indices.type.element_count
    shape = [count if d == axis else e for d, e in enumerate(x.type.dims or (1,))]
    return into_rows(n, x, dim, indices, n.broadcast(n.value(value, x.type.dtype), shape), "none")


# advanced indexing


def _indexed_dims(indices: Sequence[Value | None]) -> list[int]:
    """The dims that have index tensors."""
    return [d for d, value in enumerate(indices) if value is not None]


def _without_masks(n: Node, indices: Sequence[Value | None]) -> list[Value | None]:
    """The indices with each boolean mask replaced by the positions of its true elements, one vector
    for each dim of the mask.
    """
    found: list[Value | None] = []
    for value in indices:
        if value is None or value.type.dtype is not DType.BOOL:
            found.append(value)
            continue
        places = _true_places(n, value)
        count = places.type.dims[1]
        for number in range(value.type.rank):
            row = n.emit(
                "slice", places, starts=(number, 0), stops=(number + 1, count), steps=(1, 1)
            )
            found.append(n.reshape(row, (count,)))
    return found


def _true_places(n: Node, mask: Value) -> Value:
    """The positions of true elements: i64[rank, count], with a data-dependent count."""
    flat = n.reshape(mask, (mask.type.element_count,))
    return extents.coordinates(n, extents.true_positions(n, flat), mask.type.dims)


@torch_op("aten.nonzero.default")
def non_zero(n: Node, x: Value) -> Value:
    if x.type.rank == 0:  # one row or none, of no numbers
        places = extents.true_positions(n, n.reshape(truth(n, x), (1,)))
        return n.broadcast(n.scalar(0, I64), (*places.type.dims, 0))
    return n.emit("transpose", _true_places(n, truth(n, x)), perm=(1, 0))


@torch_op("aten.nonzero_static.default")
def non_zero_of_known_count(n: Node, x: Value, size: Dim, nowhere: int) -> Value:
    """nonzero_static: the positions of the first non-zero elements, then a fill value."""
    chosen = n.reshape(truth(n, x), (x.type.element_count,))
    before = n.emit("scan", n.cast(chosen, I64), axis=0, exclusive=True)
    at = n("where", chosen, n("minimum", before, n.value(size)), n.value(size))
    zeros = n.emit("fill", shape=(add(size, 1),), value=ConstantData(np.full((), -1, np.int64)))
    counter = n.emit("range", size=x.type.element_count)
    placed = n.emit("scatter_elements", zeros, at, counter, axis=0)
    found = n.emit("slice", placed, starts=(0,), stops=(size,), steps=(1,))
    is_there = n.reshape(n("less_equal", 0, found), (size, 1))
    if x.type.rank == 0:
        return n.broadcast(n.scalar(0, I64), (size, 0))
    places = extents.coordinates(n, n("maximum", found, 0), x.type.dims)
    return n("where", is_there, n.emit("transpose", places, perm=(1, 0)), nowhere)


@torch_op("aten.masked_select.default")
def masked_select(n: Node, x: Value, mask: Value) -> Value:
    dims = _broadcast([x, mask])
    flat = n.reshape(n.broadcast(truth(n, mask), dims), (product(dims),))
    places = extents.true_positions(n, flat)
    return n.emit("gather", n.reshape(n.broadcast(x, dims), (product(dims),)), places, axis=0)


@torch_op("aten._local_scalar_dense.default")
def number_of(n: Node, x: Value) -> Value | Dim:
    """A data-dependent number: a size if it is an integer, else a 0-d tensor."""
    if x.type.dtype is DType.BOOL or x.type.dtype.is_float:
        return n.reshape(x, ())
    found = extents.given_dims(n, n.reshape(x, (1,)))
    if found is None:
        raise UnsupportedNodeError("a number that is taken from a tensor here is not supported")
    dim: Dim = found.reshape(-1)[0]
    return dim


def _positions(n: Node, x: Value, indexed: Sequence[int], indices: Sequence[Value | None]) -> Value:
    """Rows of indices for a gather: one column per dim in `indexed`, with negative indices made
    positive.
    """
    chosen = [v for v in indices if v is not None]
    shape = _broadcast(chosen)
    columns = [n.reshape(n.broadcast(n.cast(v, I64), shape), (*shape, 1)) for v in chosen]
    return columns[0] if len(columns) == 1 else n.emit("concat", *columns, axis=len(shape))


def _broadcast(values: Sequence[Value]) -> tuple[Dim, ...]:
    rank = max(v.type.rank for v in values)
    padded = [(*[1] * (rank - v.type.rank), *v.type.dims) for v in values]
    return tuple(
        next((extent for extent in extents if extent != 1), 1)
        for extents in zip(*padded, strict=True)
    )


@torch_op("aten.index.Tensor")
def index(n: Node, x: Value, indices: Sequence[Value | None]) -> Value:
    """aten.index: gathers along the indexed dims. If these are adjacent, the gathered dims replace
    them, else they come first.
    """
    indices = _without_masks(n, indices)
    indexed = _indexed_dims(indices)
    if len(indexed) == 1:
        (dim,) = indexed
        return n.emit("gather", x, n.cast(indices[dim], I64), axis=dim)  # type: ignore[arg-type]
    rest = [d for d in range(x.type.rank) if d not in indexed]
    rows = _positions(n, x, indexed, indices)
    found = n.emit(
        "gather_nd", permute(n, x, [*indexed, *rest]), rows, depth=len(indexed), batch_dims=0
    )
    return permute(n, found, _order(indexed, rows.type.rank - 1, x.type.rank))


def _order(indexed: Sequence[int], count: int, rank: int) -> list[int]:
    """The permutation that moves the `count` gathered dims from the front to their place in the
    result.
    """
    others = rank - len(indexed)
    is_together = list(indexed) == list(range(indexed[0], indexed[-1] + 1))
    before = indexed[0] if is_together else 0
    rest = range(count, count + others)
    return [*rest[:before], *range(count), *rest[before:]]


@torch_op("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    n: Node, x: Value, indices: Sequence[Value | None], source: Value, accumulate: bool
) -> Value:
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.type.dtype is DType.BOOL:
        return _put_where(n, x, mask, source, accumulate)
    indices = _without_masks(n, indices)
    indexed = _indexed_dims(indices)
    rest = [d for d in range(x.type.rank) if d not in indexed]
    order = [*indexed, *rest]
    rows = _positions(n, x, indexed, indices)
    count = rows.type.rank - 1
    where = _order(indexed, count, x.type.rank)
    front = (*rows.type.dims[:-1], *(x.type.dims[d] for d in rest))
    # the source broadcasts to what indexing would give, whose dims are in another order
    wanted = [front[d] for d in where]
    fitted = n.broadcast(n.cast(source, x.type.dtype), wanted)
    back = [where.index(d) for d in range(len(where))]
    places = _counted_from_front(n, rows, [x.type.dims[d] for d in indexed])

    def write(whole: Value, part: Value, reduction: str) -> Value:
        operands = (whole, places, part)
        return n.emit("scatter_nd", *operands, depth=len(indexed), reduction=reduction)

    moved, part = permute(n, x, order), permute(n, fitted, back)
    if not accumulate:
        made = write(moved, part, "none")
    elif x.type.dtype is DType.BOOL:
        made = of_truths(n, moved, part, lambda a, b: write(a, b, "max"))
    else:
        made = write(moved, part, "add")
    return permute(n, made, [order.index(d) for d in range(x.type.rank)])


def _counted_from_front(n: Node, rows: Value, extents: Sequence[Dim]) -> Value:
    wrap = n.emit("dim_values", dims=tuple(extents))
    return n("where", n("less", rows, 0), n("add", rows, wrap), rows)


def _put_where(n: Node, x: Value, mask: Value, source: Value, accumulate: bool) -> Value:
    """Writes where a mask over the leading dims holds: one value for all elements, or consecutive
    ones."""
    rest = x.type.dims[mask.type.rank :]
    source = n.cast(source, x.type.dtype)
    if source.type.rank > len(rest) and source.type.dims[0] != 1:
        values = one_after_another(n, mask, n.broadcast(source, (source.type.dims[0], *rest)))
        value = n.reshape(values, x.type.dims)
    else:
        own = source.type.dims[1:] if source.type.rank > len(rest) else source.type.dims
        value = n.broadcast(n.reshape(source, own), x.type.dims)
    if accumulate:
        value = n("or" if x.type.dtype is DType.BOOL else "add", x, value)
    holds = n.reshape(mask, (*mask.type.dims, *[1] * len(rest)))
    return n("where", holds, value, x)


def one_after_another(n: Node, mask: Value, rows: Value) -> Value:
    """For each element of a mask, the row whose index is the number of true elements before it; an
    arbitrary row where the mask is false."""
    flat = n.cast(n.reshape(mask, (mask.type.element_count,)), DType.I32)
    number = n("maximum", n("sub", n.emit("scan", flat, axis=0, combine="sum"), 1), 0)
    nothing = [0] * rows.type.rank
    some = n.emit("pad", rows, pads=(*nothing, 1, *nothing[1:]))  # there may be no row
    return n.emit("gather", some, number, axis=0)


@torch_op("aten._unsafe_index.Tensor")
def unsafe_index(n: Node, x: Value, indices: Sequence[Value | None]) -> Value:
    return index(n, x, indices)


# searches


def _search(n: Node, borders: Value, values: Value, is_right: bool, dtype: DType) -> Value:
    """The number of sorted borders [..., K] that are below each of values [..., M] (or not above,
    if `is_right`)."""
    left = n.reshape(borders, (*borders.type.dims[:-1], 1, borders.type.dims[-1]))
    right = n.reshape(values, (*values.type.dims, 1))
    wide = left.type.dtype if left.type.dtype.is_float else right.type.dtype
    pair = n.cast(left, wide), n.cast(right, wide)
    is_before = n.emit("less_equal" if is_right else "less", *pair)
    rank = is_before.type.rank
    counts = n.emit("reduce_sum", n.cast(is_before, DType.I32), axes=(rank - 1,), keepdims=False)
    return n.reshape(n.cast(counts, dtype), values.type.dims)


@torch_op("aten.bucketize.Tensor")
def bucketize(n: Node, x: Value, borders: Value, out_int32: bool, right: bool) -> Value:
    return _search(n, borders, x, right, n.dtype)


@torch_op("aten.searchsorted.Tensor")
def search_sorted(
    n: Node,
    borders: Value,
    x: Value,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
) -> Value:
    if sorter is not None:
        axis = borders.type.rank - 1
        borders = n.emit("gather_elements", borders, n.cast(sorter, I64), axis=axis)
    return _search(n, borders, x, right or side == "right", n.dtype)


@torch_op("aten.one_hot.default")
def one_hot(n: Node, x: Value, classes: Dim) -> Value:
    spread = n.reshape(x, (*x.type.dims, 1))
    extent = n.dims[-1]
    return n.cast(n.emit("equal", spread, n.emit("range", size=extent)), n.dtype)
