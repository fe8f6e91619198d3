"""TFLite's operators that move and repeat elements, or return shapes as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from aot.frontends.lib.single import single
from aot.frontends.lib.slices import position
from aot.frontends.tflite.table import Node, UnsupportedNodeError, tflite_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

I64 = DType.I64


def sliced(
    n: Node,
    x: Value,
    starts: Sequence[Dim],
    stops: Sequence[Dim],
    steps: Sequence[int] | None = None,
) -> Value:
    """A slice of x; x itself if the slice is all of it."""
    steps = steps or (1,) * x.type.rank
    is_whole = set(steps) <= {1} and not any(starts) and tuple(stops) == x.type.dims
    if is_whole:
        return x
    return n.emit("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def part(n: Node, x: Value, axis: int, start: Dim, stop: Dim) -> Value:
    """A slice of x along one dim."""
    starts = [start if d == axis else 0 for d in range(x.type.rank)]
    stops = [stop if d == axis else e for d, e in enumerate(x.type.dims)]
    return sliced(n, x, starts, stops)


def without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    """`shape` without the dim of `axis`."""
    return (*shape[:axis], *shape[axis + 1 :])


@tflite_op("RESHAPE")
def reshape(n: Node) -> Value:
    x = n.stored_like_output(0)
    if n.has(1):
        shape = n.dims_of(1)
    else:
        given = n.option("new_shape")
        shape = list(n.output().dims) if given is None else [int(e) for e in given]
    if shape == [0] and x.type.element_count == 1:
        shape = []  # how scalars were once written
    if shape.count(-1) > 1:
        raise n.error(f"its shape {shape} leaves several extents open")
    if -1 in shape:
        count = x.type.element_count
        rest = dims.product([e for e in shape if e != -1])
        if rest == 0:
            raise n.error(f"its shape {shape} leaves open how many nothings there are")
        shape[shape.index(-1)] = dims.floor_divide(count, rest)
    return n.reshape(x, shape)


@tflite_op("SQUEEZE")
def squeeze(n: Node) -> Value:
    x = n.stored_like_output(0)
    given = n.option("squeeze_dims")
    rank = x.type.rank
    if given is None or not len(given):
        axes = single(n, x.type.dims, len(n.output().dims))
    else:
        axes = [n.axis(int(a), rank) for a in given]
    return n.reshape(x, [e for d, e in enumerate(x.type.dims) if d not in axes])


@tflite_op("EXPAND_DIMS")
def expand_dims(n: Node) -> Value:
    x = n.stored_like_output(0)
    (axis,) = n.ints(1)
    rank = x.type.rank + 1
    axis = n.axis(axis, rank)
    return n.reshape(x, (*x.type.dims[:axis], 1, *x.type.dims[axis:]))


@tflite_op("TRANSPOSE")
def transpose(n: Node) -> Value:
    x = n.stored_like_output(0)
    perm = [n.axis(a, x.type.rank) for a in n.ints(1)]
    if sorted(perm) != list(range(x.type.rank)):
        raise n.error(f"its order {perm} is none of {x.type.rank} dims")
    return n.transposed(x, perm)


@tflite_op("CONCATENATION")
def concatenation(n: Node) -> Value:
    parts = [n.stored_like_output(i) for i in range(n.count)]
    if n.is_quantised and any(p.type.dtype.is_float for p in parts):
        parts = [n.stored(p) if p.type.dtype.is_float else p for p in parts]
    axis = n.axis(int(n.option("axis", 0)), parts[0].type.rank)
    joined = parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=axis)
    if n.option("fused_activation_function", 0) == 0:
        return joined
    if n.is_quantised:
        quantization = n.output().quantization
        assert quantization is not None
        joined = n.dequantized(joined, quantization)
    return n.activated(joined)


@tflite_op("PACK")
def pack(n: Node) -> Value:
    parts = [n.stored_like_output(i) for i in range(n.count)]
    axis = n.axis(int(n.option("axis", 0)), parts[0].type.rank + 1)
    rows = [n.reshape(p, (*p.type.dims[:axis], 1, *p.type.dims[axis:])) for p in parts]
    return rows[0] if len(rows) == 1 else n.emit("concat", *rows, axis=axis)


@tflite_op("UNPACK")
def unpack(n: Node) -> list[Value]:
    x = n.stored_like_output(0)
    axis = n.axis(int(n.option("axis", 0)), x.type.rank)
    shape = without(x.type.dims, axis)
    count = len(n.operator.outputs)
    return [n.reshape(part(n, x, axis, i, i + 1), shape) for i in range(count)]


@tflite_op("SPLIT")
def split(n: Node) -> list[Value]:
    x = n.stored_like_output(1)
    (axis,) = n.ints(0)
    axis, count = n.axis(axis, x.type.rank), len(n.operator.outputs)
    size = dims.floor_divide(x.type.dims[axis], count)
    places = [dims.multiply(size, i) for i in range(count + 1)]
    return [part(n, x, axis, a, b) for a, b in pairwise(places)]


@tflite_op("SPLIT_V")
def split_v(n: Node) -> list[Value]:
    x = n.stored_like_output(0)
    (axis,) = n.ints(2)
    axis = n.axis(axis, x.type.rank)
    sizes = n.dims_of(1)
    if -1 in sizes:
        others = dims.add(0, 0)
        for size in sizes:
            others = dims.add(others, 0 if size == -1 else size)
        sizes[sizes.index(-1)] = dims.add(x.type.dims[axis], dims.multiply(others, -1))
    parts, start = [], dims.add(0, 0)
    for size in sizes:
        stop = dims.add(start, size)
        parts.append(part(n, x, axis, start, stop))
        start = stop
    return parts


@tflite_op("SLICE")
def slice_(n: Node) -> Value:
    x = n.stored_like_output(0)
    starts, sizes = n.dims_of(1), n.dims_of(2)
    if not len(starts) == len(sizes) == x.type.rank:
        raise n.error(f"x has rank {x.type.rank}, but begins has {len(starts)} elements")
    stops = [
        extent if size == -1 else dims.add(start, size)
        for start, size, extent in zip(starts, sizes, x.type.dims, strict=True)
    ]
    return sliced(n, x, starts, stops)


@tflite_op("STRIDED_SLICE")
def strided_slice(n: Node) -> Value:
    """STRIDED_SLICE: numpy's basic indexing, with bit masks that give the kind of each item."""
    x = n.stored_like_output(0)
    begins, ends, steps = n.dims_of(1), n.dims_of(2), n.ints(3)
    masks = {
        name: int(n.option(f"{name}_mask", 0))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def is_set(name: str, item: int) -> bool:
        return bool(masks[name] >> item & 1)

    rank, count = x.type.rank, len(begins)
    new = sum(is_set("new_axis", i) and not is_set("ellipsis", i) for i in range(count))
    is_offset = bool(n.option("offset", False))  # ends are counted from begins
    starts: list[Dim] = []
    stops: list[Dim] = []
    strides: list[int] = []
    shape: list[Dim | None] = []  # None: the extent of the next dim that is sliced
    for item in range(count):
        axis = len(starts)
        if is_set("ellipsis", item):
            left = rank - axis - sum(not is_set("new_axis", i) for i in range(item + 1, count))
            for d in range(axis, axis + max(left, 0)):
                starts, stops, strides = [*starts, 0], [*stops, x.type.dims[d]], [*strides, 1]
                shape.append(None)
            continue
        if is_set("new_axis", item):
            shape.append(1)
            continue
        if axis >= rank:
            raise n.error(f"it has {count - new} items for {rank} dims")
        extent, begin, end, step = x.type.dims[axis], begins[item], ends[item], steps[item]
        if step == 0:
            raise n.error("a step is 0")
        if is_offset:
            end = dims.add(begin, end)
        if is_set("shrink_axis", item):
            first = position(n, begin, extent, 0, dims.add(extent, -1))
            starts, stops = [*starts, first], [*stops, dims.add(first, 1)]
            strides.append(1)
            shape.append(0)
            continue
        first, last = (0, extent) if step > 0 else (dims.add(extent, -1), -1)
        low, high = (0, extent) if step > 0 else (-1, dims.add(extent, -1))
        starts.append(first if is_set("begin", item) else position(n, begin, extent, low, high))
        stops.append(last if is_set("end", item) else position(n, end, extent, low, high))
        strides.append(step)
        shape.append(None)
    for d in range(len(starts), rank):
        starts, stops, strides = [*starts, 0], [*stops, x.type.dims[d]], [*strides, 1]
        shape.append(None)
    y = sliced(n, x, starts, stops, strides)
    extents = iter(y.type.dims)
    result: list[Dim] = []
    for kind in shape:
        if kind == 1:
            result.append(1)
        elif kind == 0:
            next(extents)
        else:
            result.append(next(extents))
    return n.reshape(y, result)


@tflite_op("REVERSE_V2")
def reverse(n: Node) -> Value:
    x = n.stored_like_output(0)
    axes = {n.axis(a, x.type.rank) for a in n.ints(1)}
    extents = x.type.dims
    return sliced(
        n,
        x,
        [dims.add(e, -1) if d in axes else 0 for d, e in enumerate(extents)],
        [-1 if d in axes else e for d, e in enumerate(extents)],
        [-1 if d in axes else 1 for d in range(x.type.rank)],
    )


# padding


def _pads(n: Node, x: Value) -> tuple[Dim, ...]:
    """The padding before each dim, then after each dim, from the pairs in operand 1."""
    pairs = n.dims_of(1)
    if len(pairs) != 2 * x.type.rank:
        raise n.error(f"x has rank {x.type.rank}, but there are {len(pairs)} paddings")
    return (*pairs[::2], *pairs[1::2])


@tflite_op("PAD")
def pad(n: Node) -> Value:
    """PAD: zeros around x; for quantised tensors, the zero point."""
    x = n.stored_like_output(0)
    quantization = n.output().quantization
    value = 0.0
    if not x.type.dtype.is_float and quantization is not None:
        value = float(quantization.zero[0])
    return n.emit("pad", x, pads=_pads(n, x), mode="constant", value=value)


@tflite_op("PADV2")
def pad_with(n: Node) -> Value:
    x, value = n.stored_like_output(0), n.known(2)
    if value is None or value.size != 1:
        raise UnsupportedNodeError("a padding value that is computed is not supported")
    number = float(value.reshape(()))
    if x.type.dtype.is_float and n.tensor(2).quantization is not None:
        x = n.stored(x)
    return n.emit("pad", x, pads=_pads(n, x), mode="constant", value=number)


@tflite_op("MIRROR_PAD")
def mirror_pad(n: Node) -> Value:
    """MIRROR_PAD: mirrors x at its borders, repeating the border elements (SYMMETRIC) or not."""
    x = n.stored_like_output(0)
    pads = _pads(n, x)
    if n.enum("MirrorPadMode", "mode") == "REFLECT":
        return n.emit("pad", x, pads=pads, mode="reflect", value=0.0)
    rank = x.type.rank
    for axis in range(rank):
        begin, end, extent = pads[axis], pads[rank + axis], x.type.dims[axis]
        if not (isinstance(begin, int) and isinstance(end, int) and isinstance(extent, int)):
            raise UnsupportedNodeError("paddings that depend on the input's shape")
        if begin == end == 0:
            continue
        places = np.arange(-begin, extent + end)
        places = np.where(places < 0, -1 - places, places)
        places = np.where(places >= extent, 2 * extent - 1 - places, places)
        if (places < 0).any() or (places >= extent).any():
            raise n.error(f"dim {axis} of {extent} is padded by {begin} and {end}")
        x = n.emit("gather", x, n.constant(places), axis=axis)
    return x


# blocks


@tflite_op("DEPTH_TO_SPACE")
def depth_to_space(n: Node) -> Value:
    x, size = n.stored_like_output(0), int(n.option("block_size", 0))
    if x.type.rank != 4 or size < 1:
        raise n.error(f"x is {x.type} and its block {size}")
    batch, rows, columns, channels = x.type.dims
    inner = dims.floor_divide(channels, size * size)
    split = n.reshape(x, (batch, rows, columns, size, size, inner))
    moved = n.emit("transpose", split, perm=(0, 1, 3, 2, 4, 5))
    return n.reshape(moved, (batch, dims.multiply(rows, size), dims.multiply(columns, size), inner))


@tflite_op("SPACE_TO_DEPTH")
def space_to_depth(n: Node) -> Value:
    x, size = n.stored_like_output(0), int(n.option("block_size", 0))
    if x.type.rank != 4 or size < 1:
        raise n.error(f"x is {x.type} and its block {size}")
    batch, height, width, channels = x.type.dims
    rows, columns = dims.floor_divide(height, size), dims.floor_divide(width, size)
    split = n.reshape(x, (batch, rows, size, columns, size, channels))
    moved = n.emit("transpose", split, perm=(0, 1, 3, 2, 4, 5))
    return n.reshape(moved, (batch, rows, columns, dims.multiply(channels, size * size)))


@tflite_op("SPACE_TO_BATCH_ND")
def space_to_batch(n: Node) -> Value:
    """SPACE_TO_BATCH_ND: pads x, then moves each position within a block to a batch of its own."""
    x, blocks, pairs = n.stored_like_output(0), n.ints(1), n.dims_of(2)
    count = len(blocks)
    if len(pairs) != 2 * count or x.type.rank < count + 1:
        raise n.error(f"x is {x.type}, its blocks {blocks} and its paddings {pairs}")
    if any(pair != 0 for pair in pairs):
        rest = [0] * (x.type.rank - count - 1)
        quantization = n.output().quantization
        value = 0.0
        if not x.type.dtype.is_float and quantization is not None:
            value = float(quantization.zero[0])
        pads = (0, *pairs[::2], *rest, 0, *pairs[1::2], *rest)
        x = n.emit("pad", x, pads=pads, mode="constant", value=value)
    batch, extents, others = x.type.dims[0], x.type.dims[1 : count + 1], x.type.dims[count + 1 :]
    inner = [dims.floor_divide(e, b) for e, b in zip(extents, blocks, strict=True)]
    pairs_of = [e for pair in zip(inner, blocks, strict=True) for e in pair]
    split = n.reshape(x, (batch, *pairs_of, *others))
    rank = split.type.rank
    in_blocks, around = range(2, 2 * count + 1, 2), range(1, 2 * count, 2)
    perm = (*in_blocks, 0, *around, *range(2 * count + 1, rank))
    moved = n.emit("transpose", split, perm=perm)
    return n.reshape(moved, (dims.multiply(batch, prod(blocks)), *inner, *others))


@tflite_op("BATCH_TO_SPACE_ND")
def batch_to_space(n: Node) -> Value:
    x, blocks, pairs = n.stored_like_output(0), n.ints(1), n.dims_of(2)
    count = len(blocks)
    if len(pairs) != 2 * count or x.type.rank < count + 1:
        raise n.error(f"x is {x.type}, its blocks {blocks} and its crops {pairs}")
    batch = dims.floor_divide(x.type.dims[0], prod(blocks))
    inner, others = x.type.dims[1 : count + 1], x.type.dims[count + 1 :]
    split = n.reshape(x, (*blocks, batch, *inner, *others))
    rank = split.type.rank
    pairs_of = [d for i in range(count) for d in (count + 1 + i, i)]
    perm = (count, *pairs_of, *range(2 * count + 1, rank))
    moved = n.emit("transpose", split, perm=perm)
    whole = [dims.multiply(e, b) for e, b in zip(inner, blocks, strict=True)]
    y = n.reshape(moved, (batch, *whole, *others))
    starts = (0, *pairs[::2], *[0] * len(others))
    ends = [dims.add(e, dims.multiply(c, -1)) for e, c in zip(whole, pairs[1::2], strict=True)]
    return sliced(n, y, starts, (batch, *ends, *others))


# repetition


@tflite_op("TILE")
def tile(n: Node) -> Value:
    x, counts = n.stored_like_output(0), n.dims_of(1)
    if len(counts) != x.type.rank:
        raise n.error(f"x is {x.type}, but there are {len(counts)} multiples")
    split = [e for extent in x.type.dims for e in (1, extent)]
    spread = [e for pair in zip(counts, x.type.dims, strict=True) for e in pair]
    whole = [dims.multiply(c, e) for c, e in zip(counts, x.type.dims, strict=True)]
    if tuple(whole) == x.type.dims:
        return x
    return n.reshape(n.emit("broadcast_to", n.reshape(x, split), shape=tuple(spread)), whole)


def broadcast(n: Node, x: Value, shape: Sequence[Dim]) -> Value:
    """x broadcast to a shape."""
    return x if x.type.dims == tuple(shape) else n.emit("broadcast_to", x, shape=tuple(shape))


@tflite_op("BROADCAST_TO")
def broadcast_to(n: Node) -> Value:
    return broadcast(n, n.stored_like_output(0), n.dims_of(1))


@tflite_op("FILL")
def fill(n: Node) -> Value:
    return broadcast(n, n.input(1), n.dims_of(0))


# shapes


@tflite_op("SHAPE")
def shape(n: Node) -> Value:
    return n.cast(n.emit("shape_of", n.input(0)), n.output().dtype)


@tflite_op("RANK")
def rank(n: Node) -> Value:
    return n.scalar(n.input(0).type.rank, n.output().dtype)


@tflite_op("BROADCAST_ARGS")
def broadcast_args(n: Node) -> Value:
    """BROADCAST_ARGS: the shape to which two shapes broadcast."""
    shapes: list[list[Dim]] = [n.dims_of(0), n.dims_of(1)]
    length = max(map(len, shapes))
    whole: list[list[Dim]] = [[*[1] * (length - len(s)), *s] for s in shapes]
    result: list[Dim] = []
    for a, b in zip(*whole, strict=True):
        if a != b and a != 1 and b != 1:
            raise n.error(f"shapes {shapes[0]} and {shapes[1]} do not broadcast")
        result.append(b if a == 1 else a)
    found = n.emit("dim_values", dims=tuple(result))
    return n.cast(found, n.output().dtype)


@tflite_op("RANGE")
def range_(n: Node) -> Value:
    known = [n.known(i) for i in range(3)]
    if all(k is not None and k.size == 1 for k in known):
        start, limit, step = (k.reshape(()).item() for k in known if k is not None)
        if step == 0:
            raise n.error("its step is 0")
        return n.constant(np.arange(start, limit, step, dtype=n.output().dtype.numpy))
    (start_dim,), (limit_dim,), (step_dim,) = (n.dims_of(i) for i in range(3))
    if start_dim != 0 or step_dim != 1:
        raise UnsupportedNodeError("a range that depends on shapes starts at 0 and counts by 1")
    return n.cast(n.emit("range", size=limit_dim), n.output().dtype)
