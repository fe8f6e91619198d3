"""PyTorch's ops that move elements: views, slices, concatenations, repetitions, pads; and writes of
slices.

Shapes of results are those that torch has found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.slices import position, settled
from aot.frontends.torch.table import Node, Number, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType


@torch_op(
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.reshape.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unflatten.int",
    "aten.unsqueeze.default",
    "aten.view.default",
    "aten.view_copy.default",
)
def reshape(n: Node, x: Value, *shape: object) -> Value:
    return n.reshape(x, n.dims)


@torch_op("aten.resize.default")
def resize(n: Node, x: Value, shape: Sequence[Dim], memory_format: object = None) -> Value:
    """resize: the first elements of x with other dims. Growing is not supported."""
    count, wanted = x.type.element_count, dims.product(n.dims)
    if not isinstance(count, int) or not isinstance(wanted, int) or wanted > count:
        raise UnsupportedNodeError(f"{count} elements resized to {wanted} are not supported")
    return n.reshape(sliced(n, n.reshape(x, (count,)), 0, 0, wanted), n.dims)


@torch_op("aten.view.dtype")
def view_as_type(n: Node, x: Value, dtype: DType) -> Value:
    if dtype.bits != x.type.dtype.bits or DType.BOOL in (dtype, x.type.dtype):
        raise UnsupportedNodeError(f"{x.type.dtype} seen as {dtype} is not supported")
    return x if dtype is x.type.dtype else n.emit("bitcast", x, to=dtype)


@torch_op("aten.permute.default", "aten.permute_copy.default")
def permute(n: Node, x: Value, order: Sequence[int]) -> Value:
    perm = tuple(n.axis(d, x.type.rank) for d in order)
    return x if perm == tuple(range(x.type.rank)) else n.emit("transpose", x, perm=perm)


@torch_op("aten.transpose.int")
def transpose(n: Node, x: Value, a: int, b: int) -> Value:
    if x.type.rank == 0:
        return x
    perm = list(range(x.type.rank))
    a, b = n.axis(a, x.type.rank), n.axis(b, x.type.rank)
    perm[a], perm[b] = perm[b], perm[a]
    return permute(n, x, perm)


@torch_op("aten.t.default")
def matrix_transpose(n: Node, x: Value) -> Value:
    return x if x.type.rank < 2 else permute(n, x, (1, 0))


@torch_op("aten.expand.default", "aten.expand_copy.default")
def expand(n: Node, x: Value, shape: Sequence[Dim], implicit: bool = False) -> Value:
    return n.broadcast(x, n.dims)


@torch_op("aten.repeat.default")
def repeat(n: Node, x: Value, repeats: Sequence[Dim]) -> Value:
    own = (*[1] * (len(repeats) - x.type.rank), *x.type.dims)
    ones = [d for extent in own for d in (1, extent)]
    spread = [d for pair in zip(repeats, own, strict=True) for d in pair]
    return n.reshape(n.broadcast(n.reshape(x, ones), spread), n.dims)


# slices


def sliced(n: Node, x: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
    """The elements from start to stop along one dim."""
    rank = x.type.rank
    starts: list[Dim] = [0] * rank
    stops, steps = list(x.type.dims), [1] * rank
    starts[axis], stops[axis], steps[axis] = start, stop, step
    if (start, stop, step) == (0, x.type.dims[axis], 1):
        return x
    return n.emit("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def _span(n: Node, x: Value, axis: int, start: Dim | None, end: Dim | None) -> tuple[Dim, Dim]:
    extent = x.type.dims[axis]
    first = 0 if start is None else position(n, settled(n, start), extent, 0, extent)
    last = extent if end is None else position(n, settled(n, end), extent, 0, extent)
    if isinstance(first, int) and isinstance(last, int) and last < first:
        last = first
    return first, last


@torch_op("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(n: Node, x: Value, dim: int, start: Dim | None, end: Dim | None, step: int) -> Value:
    axis = n.axis(dim, x.type.rank)
    first, last = _span(n, x, axis, start, end)
    return sliced(n, x, axis, first, last, step)


def _place(n: Node, x: Value, axis: int, index: Dim) -> Dim:
    """A position along a dim, which may count from the end."""
    extent = x.type.dims[axis]
    if isinstance(index, int):
        return dims.add(extent, index) if index < 0 else index
    return position(n, index, extent, 0, dims.add(extent, -1))


@torch_op("aten.select.int", "aten.select_copy.int")
def select(n: Node, x: Value, dim: int, index: Dim) -> Value:
    axis = n.axis(dim, x.type.rank)
    first = _place(n, x, axis, index)
    return n.reshape(sliced(n, x, axis, first, dims.add(first, 1)), n.dims)


@torch_op("aten.narrow_copy.default")
def narrow(n: Node, x: Value, dim: int, start: Dim, length: Dim) -> Value:
    axis = n.axis(dim, x.type.rank)
    first = position(n, settled(n, start), x.type.dims[axis], 0, x.type.dims[axis])
    return sliced(n, x, axis, first, dims.add(first, length))


@torch_op("aten.unbind.int", "aten.unbind_copy.int")
def unbind(n: Node, x: Value, dim: int) -> list[Value]:
    axis = n.axis(dim, x.type.rank)
    rest = (*x.type.dims[:axis], *x.type.dims[axis + 1 :])
    return [n.reshape(sliced(n, x, axis, i, i + 1), rest) for i in range(len(n.types))]


@torch_op(
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_copy.Tensor",
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.chunk.default",
)
def split(n: Node, x: Value, sizes: object, dim: int) -> list[Value]:
    axis = n.axis(dim, x.type.rank)
    found: list[Value] = []
    start: Dim = 0
    for type in n.types:
        if type is None:
            raise UnsupportedNodeError("the type of its result is not supported")
        stop = dims.add(start, type.dims[axis])
        found.append(sliced(n, x, axis, start, stop))
        start = stop
    return found


@torch_op("aten.flip.default")
def flip(n: Node, x: Value, axes: Sequence[int]) -> Value:
    chosen = n.axes(axes, x.type.rank)
    starts: list[Dim] = [0] * x.type.rank
    stops, steps = list(x.type.dims), [1] * x.type.rank
    for axis in chosen:
        starts[axis], stops[axis], steps[axis] = dims.add(stops[axis], -1), -1, -1
    if 0 in x.type.dims:
        return x
    return n.emit("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


@torch_op("aten.roll.default")
def roll(n: Node, x: Value, shifts: Sequence[Dim], axes: Sequence[int]) -> Value:
    if not axes:
        flat = n.reshape(x, (x.type.element_count,))
        return n.reshape(_rolled(n, flat, 0, shifts[0]), x.type.dims)
    for axis, shift in zip(axes, shifts, strict=True):
        x = _rolled(n, x, n.axis(axis, x.type.rank), shift)
    return x


def _rolled(n: Node, x: Value, axis: int, shift: Dim) -> Value:
    extent = x.type.dims[axis]
    if extent == 0:
        return x
    if isinstance(extent, int) and isinstance(shift, int):
        border: Dim = -shift % extent
    else:  # as torch, which has found that it is within
        border = dims.modulo(dims.multiply(shift, -1), extent)
    if border == 0:
        return x
    return n.emit(
        "concat", sliced(n, x, axis, border, extent), sliced(n, x, axis, 0, border), axis=axis
    )


@torch_op("aten.unfold.default")
def unfold(n: Node, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size` elements along a dim, with the elements along a new last dim."""
    if x.type.rank == 0:
        return sliced(n, n.reshape(x, (1,)), 0, 0, size)
    axis = n.axis(dim, x.type.rank)
    count = n.dims[axis]
    starts = n.reshape(n.emit("range", size=count, step=step), (count, 1))
    places = n.emit("add", starts, n.emit("range", size=size))
    windows = n.emit("gather", x, places, axis=axis)
    rank = windows.type.rank
    order = [d for d in range(rank) if d != axis + 1]
    return permute(n, windows, [*order, axis + 1])


@torch_op("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(n: Node, x: Value, offset: int, a: int, b: int) -> Value:
    rank = x.type.rank
    first, second = n.axis(a, rank), n.axis(b, rank)
    rest = [d for d in range(rank) if d not in (first, second)]
    moved = permute(n, x, [*rest, first, second])
    *outer, rows, columns = moved.type.dims
    count = n.dims[-1]
    flat = n.reshape(moved, (*outer, dims.multiply(rows, columns)))
    start = columns if offset < 0 else 1
    begin = dims.multiply(start, abs(offset))
    step = dims.add(columns, 1)
    if isinstance(step, int) and isinstance(count, int):
        if count == 0:
            return sliced(n, flat, len(rest), 0, 0)
        stop = dims.add(begin, (count - 1) * step + 1)
        return sliced(n, flat, len(rest), begin, stop, step)
    steps = n("mul", n.emit("range", size=count), n.value(step))
    return n.emit("gather", flat, n("add", steps, n.value(begin)), axis=len(rest))


@torch_op("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    n: Node, x: Value, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None
) -> Value:
    """as_strided: gathers elements by position, which torch counts in a dense tensor."""
    flat = n.reshape(x, (x.type.element_count,))
    start, *known = static_extents([offset or 0, *shape, *strides], "a stride")
    places = np.full((), start, np.int64)
    for extent, stride in zip(known[: len(shape)], known[len(shape) :], strict=True):
        places = places[..., None] + np.arange(extent) * stride
    n.check_computed(places.size, "its table of places")
    return n.emit("gather", flat, n.constant(places), axis=0)


# joins and pads


@torch_op("aten.cat.default", "aten.concat.default")
def concat(n: Node, parts: Sequence[Value], dim: int) -> Value:
    # an empty vector may stand beside tensors of any rank
    rank = len(n.dims)
    fitting = [p for p in parts if p.type.rank == rank]
    axis = n.axis(dim, rank)
    operands = [n.cast(p, n.dtype) for p in fitting]
    return operands[0] if len(operands) == 1 else n.emit("concat", *operands, axis=axis)


@torch_op("aten.stack.default")
def stack(n: Node, parts: Sequence[Value], dim: int) -> Value:
    rank = len(n.dims)
    axis = n.axis(dim, rank)
    spread = [
        n.reshape(n.cast(p, n.dtype), (*p.type.dims[:axis], 1, *p.type.dims[axis:])) for p in parts
    ]
    return spread[0] if len(spread) == 1 else n.emit("concat", *spread, axis=axis)


def _padded(n: Node, x: Value, pads: Sequence[Dim], mode: str, value: Number = 0) -> Value:
    """x with torch's pads, two per dim from the last dim on; negative ones crop."""
    rank = x.type.rank
    begins: list[Dim] = [0] * rank
    ends: list[Dim] = [0] * rank
    for number in range(len(pads) // 2):
        axis = rank - 1 - number
        begins[axis], ends[axis] = pads[2 * number], pads[2 * number + 1]
    for axis in range(rank):
        cut = [-p if isinstance(p, int) and p < 0 else 0 for p in (begins[axis], ends[axis])]
        if any(cut):
            x = sliced(n, x, axis, cut[0], dims.add(x.type.dims[axis], -cut[1]))
            begins[axis], ends[axis] = (
                p if c == 0 else 0 for p, c in zip((begins[axis], ends[axis]), cut, strict=True)
            )
    if all(p == 0 for p in (*begins, *ends)):
        return x
    return n.emit("pad", x, pads=(*begins, *ends), mode=mode, value=float(value))


@torch_op("aten.constant_pad_nd.default")
def constant_pad(n: Node, x: Value, pads: Sequence[Dim], value: Number) -> Value:
    return _padded(n, x, pads, "constant", value)


def _pad(mode: str) -> Callable[[Node, Value, Sequence[Dim]], Value]:
    return lambda n, x, pads: _padded(n, x, pads, mode)


for _rank in (1, 2, 3):
    torch_op(f"aten.reflection_pad{_rank}d.default")(_pad("reflect"))
    torch_op(f"aten.replication_pad{_rank}d.default")(_pad("edge"))


@torch_op("aten.pad.default")
def pad(n: Node, x: Value, pads: Sequence[Dim], mode: str, value: Number | None) -> Value:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _padded(n, x, pads, names[mode], value or 0)


@torch_op("aten.pixel_shuffle.default")
def pixel_shuffle(n: Node, x: Value, factor: int) -> Value:
    *outer, channels, rows, columns = x.type.dims
    inner = dims.floor_divide(channels, factor * factor)
    rank = len(outer)
    split_ = n.reshape(x, (*outer, inner, factor, factor, rows, columns))
    order = (*range(rank), *(rank + d for d in (0, 3, 1, 4, 2)))
    return n.reshape(permute(n, split_, order), n.dims)


@torch_op("aten.pixel_unshuffle.default")
def pixel_unshuffle(n: Node, x: Value, factor: int) -> Value:
    *outer, channels, rows, columns = x.type.dims
    down, across = dims.floor_divide(rows, factor), dims.floor_divide(columns, factor)
    rank = len(outer)
    split_ = n.reshape(x, (*outer, channels, down, factor, across, factor))
    order = (*range(rank), *(rank + d for d in (0, 2, 4, 1, 3)))
    return n.reshape(permute(n, split_, order), n.dims)


# writes into a part, which give the whole


def _put(n: Node, x: Value, part: Value, axis: int, start: Dim) -> Value:
    """x with a slice along `axis`, starting at `start`, replaced by `part`."""
    places = [start if d == axis else 0 for d in range(x.type.rank)]
    starts = n.emit("dim_values", dims=tuple(places))
    return n.emit("put_slice", x, n.cast(part, x.type.dtype), starts)


@torch_op("aten.slice_scatter.default")
def slice_scatter(
    n: Node, x: Value, part: Value, dim: int, start: Dim | None, end: Dim | None, step: int
) -> Value:
    axis = n.axis(dim, x.type.rank)
    first, last = _span(n, x, axis, start, end)
    extent = dims.add(last, dims.multiply(first, -1))
    count = extent if step == 1 else dims.floor_divide(dims.add(extent, step - 1), step)
    part = n.cast(part, x.type.dtype)
    part = n.broadcast(part, [count if d == axis else m for d, m in enumerate(x.type.dims)])
    if count == 0:
        return x
    if step == 1:
        return part if count == x.type.dims[axis] else _put(n, x, part, axis, first)
    # every step-th: each row's number in the part, and whether it is one
    counter = n("sub", n.emit("range", size=x.type.dims[axis]), n.value(first, DType.I64))
    whole = n("div", counter, step)
    is_on = n("equal", n("mul", whole, step), counter)
    is_in = n("and", n("less_equal", 0, counter), n("less", counter, n.value(last - first)))
    column = [x.type.dims[axis] if d == axis else 1 for d in range(x.type.rank)]
    chosen = n.emit("gather", part, n("maximum", whole, 0), axis=axis)
    return n.emit("where", n.reshape(n.emit("and", is_on, is_in), column), chosen, x)


@torch_op("aten.select_scatter.default")
def select_scatter(n: Node, x: Value, part: Value, dim: int, index: Dim) -> Value:
    axis = n.axis(dim, x.type.rank)
    row = [1 if d == axis else m for d, m in enumerate(x.type.dims)]
    fitted = n.reshape(n.broadcast(part, [m for d, m in enumerate(row) if d != axis]), row)
    return _put(n, x, fitted, axis, _place(n, x, axis, index))
