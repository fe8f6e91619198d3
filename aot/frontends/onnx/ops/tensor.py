"""ONNX's ops on shapes and positions: reshapes, slices, concatenations, constants, shapes as
tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.frontends.lib.broadcasts import spread_to
from aot.frontends.lib.extents import (
    bound,
    check_equal,
    check_is,
    check_not_negative,
    dim_value,
    element,
    extent_of,
    is_given,
    known_elements,
)
from aot.frontends.lib.slices import position
from aot.frontends.onnx.ops.reshape import text_of
from aot.frontends.onnx.stored import NARROW
from aot.frontends.onnx.strings import STRING
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType


@onnx_op("Identity")
def identity(node: Node) -> Value:
    return node.input(0)


@onnx_op("OptionalHasElement")
def optional_has_element(node: Node) -> Value:
    """OptionalHasElement, as a constant: true for a given tensor, false for an absent operand;
    there are no other optionals.
    """
    return node.constant(np.array(node.optional(0) is not None))


@onnx_op("OptionalGetElement")
def optional_get_element(node: Node) -> Value:
    return node.input(0)


def _of_type(node: Node, made: Value) -> Value:
    """`made`, whose elements come from the attribute `value`; records its ONNX element type if it
    is a string or narrower than a byte.
    """
    elem_type = node.attribute("value").t.data_type if node.has("value") else 0
    if elem_type in NARROW or elem_type == STRING:
        node.kinds[made] = elem_type
    return made


@onnx_op("Constant")
def constant(node: Node) -> Value:
    if node.has("value"):
        return _of_type(node, node.constant(node.tensor_attr("value")))
    if node.has("value_int"):
        return node.constant(np.array(node.int_attr("value_int"), np.int64))
    if node.has("value_float"):
        return node.constant(np.array(node.float_attr("value_float"), np.float32))
    if node.has("value_ints"):
        return node.constant(np.array(node.ints_attr("value_ints"), np.int64))
    if node.has("value_floats"):
        return node.constant(np.array(list(node.attribute("value_floats").floats), np.float32))
    if node.has("value_string"):
        return node.string(node.constant(np.array(node.string_attr("value_string"), np.int64)))
    if node.has("value_strings"):
        return node.string(node.constant(node.strings.numbers(node.strs_attr("value_strings"))))
    if node.has("sparse_value"):
        raise UnsupportedNodeError("attribute 'sparse_value' is not supported")
    raise node.error("has no value")


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(node: Node) -> Value:
    value = node.tensor_attr("value") if node.has("value") else np.zeros(1, np.float32)
    if value.size != 1:
        raise node.error(f"attribute 'value' has {value.size} elements, expected 1")
    found = node.extents(0, "shape")
    return _of_type(node, node.emit("fill", shape=found, value=ConstantData(value.reshape(()))))


@onnx_op("Shape")
def shape(node: Node) -> Value:
    x = node.input(0)
    rank = x.type.rank
    start, end = node.int_attr("start", 0), node.int_attr("end", rank)
    start, end = (min(max(v + rank if v < 0 else v, 0), rank) for v in (start, end))
    result = node.emit("shape_of", x)
    if (start, end) == (0, rank):
        return result
    return node.emit("slice", result, starts=(start,), stops=(max(start, end),), steps=(1,))


@onnx_op("Size")
def size(node: Node) -> Value:
    count = node.emit("dim_values", dims=(node.input(0).type.element_count,))
    return node.reshape(count, ())


@onnx_op("Range")
def range_(node: Node) -> Value:
    dtype = node.input(0).type.dtype
    is_known = all(node.values.known(node.input(i)) is not None for i in range(3))
    if dtype.is_float:
        whole = [_whole_number(node, i) for i in range(3)]
        if None in whole:
            return _float_range(node) if is_known else _computed_range(node)
        first, last, by = (d for d in whole if d is not None)
    elif not is_known:
        return _computed_range(node)
    else:
        first, last, by = node.dim(0, "start"), node.dim(1, "limit"), node.dim(2, "delta")
    if isinstance(by, DimExpr):
        raise UnsupportedNodeError("operand 2 (delta) depends on the input's shape")
    if by == 0:
        raise node.error("delta is 0")
    span = dims.add(last, dims.multiply(first, -1))
    if by < 0:
        span = dims.multiply(span, -1)
    rounded = dims.floor_divide(dims.add(dims.maximum(0, span), abs(by) - 1), abs(by))
    wide = dtype if dtype in (DType.I32, DType.I64) else DType.I64
    return node.cast(node.emit("range", size=rounded, start=first, step=by, dtype=wide), dtype)


def _whole_number(node: Node, index: int) -> Dim | None:
    """A float operand as a dim, if it is an integer or cast from one; else None. Extents up to 24
    bits are exact as floats.
    """
    value = node.input(index)
    known = node.values.known(value)
    if known is not None and known.dtype != object and known.size == 1:
        number = float(known.reshape(()).item())
        return int(number) if number.is_integer() else None
    op = value.op
    source = op.operands[0] if op is not None and op.name == "cast" else None
    if source is None:
        return None
    elements = node.values.of(source)
    if elements is None or elements.size != 1 or source.type.dtype is DType.BOOL:
        return None
    found: Dim = elements.reshape(()).item()
    return found


def _computed_range(node: Node) -> Value:
    """A range whose length is computed at run time; -1, which is rejected, for a delta of 0."""
    dtype = node.input(0).type.dtype
    start, limit, delta = (node.reshape(node.input(i), ()) for i in range(3))
    zero = node.scalar(0, dtype)
    is_still = node.emit("equal", delta, zero)
    by = node.emit("where", is_still, node.scalar(1, dtype), delta)
    span = node.emit("sub", limit, start)
    count = node.emit("div", span, by)
    if dtype.is_float:
        count = node.cast(node.emit("ceil", count), DType.I64)
    else:
        is_rest = node.emit(
            "less", node.emit("abs", node.emit("mul", count, by)), node.emit("abs", span)
        )
        is_on = node.emit("equal", node.emit("less", zero, span), node.emit("less", zero, by))
        more = node.cast(node.emit("and", is_rest, is_on), DType.I64)
        count = node.emit("add", node.cast(count, DType.I64), more)
    count = node.emit("maximum", count, node.scalar(0, DType.I64))
    count = node.emit("where", is_still, node.scalar(-1, DType.I64), count)
    n = extent_of(node, count, None, "the range")
    counter = node.cast(node.emit("range", size=n), dtype)
    return node.emit("add", start, node.emit("mul", counter, delta))


def _float_range(node: Node) -> Value:
    dtype = node.input(0).type.dtype
    start, limit, step = (
        float(node.number(i, what)) for i, what in enumerate(("start", "limit", "delta"))
    )
    if step == 0 or not all(map(math.isfinite, (start, limit, step))):
        raise node.error(f"there is no range from {start} to {limit} in steps of {step}")
    count: Dim = max(0, math.ceil((limit - start) / step))
    counter = node.cast(node.emit("range", size=count), dtype)
    scaled = node.emit("mul", counter, node.scalar(step, dtype))
    return node.emit("add", scaled, node.scalar(start, dtype))


# reshapes


@onnx_op("Flatten")
def flatten(node: Node) -> Value:
    x = node.input(0)
    axis = node.axis(node.int_attr("axis", 1), x.type.rank, x.type.rank + 1)
    return node.reshape(x, (dims.product(x.type.dims[:axis]), dims.product(x.type.dims[axis:])))


@onnx_op("Transpose")
def transpose(node: Node) -> Value:
    x = node.input(0)
    perm = node.ints_attr("perm", range(x.type.rank)[::-1])
    return node.emit("transpose", x, perm=perm)


@onnx_op("Expand", since=8)
def expand(node: Node) -> Value:
    x = node.input(0)
    wanted = node.extents(1, "shape")
    rank = max(len(wanted), x.type.rank)
    old = (*(1,) * (rank - x.type.rank), *x.type.dims)
    new = (*(1,) * (rank - len(wanted)), *wanted)
    for a, b in zip(old, new, strict=True):
        if isinstance(a, int) and a != 1 and b not in (1, a, -1):
            _check_broadcast(node, a, b)
    # both sides broadcast; dims that may differ are spread, or taken for equal and checked
    result = tuple(
        a if b == 1 else b if a == 1 or not isinstance(a, int) else a
        for a, b in zip(old, new, strict=True)
    )
    spread = spread_to(node.rewriter, x, result[rank - x.type.rank :], node.label)
    tail = [
        other if dim == made else made
        for dim, made, other in zip(
            x.type.dims, spread.type.dims, result[rank - x.type.rank :], strict=True
        )
    ]
    result = (*result[: rank - x.type.rank], *tail)
    return spread if result == spread.type.dims else node.emit("broadcast_to", spread, shape=result)


def _check_broadcast(node: Node, extent: int, wanted: Dim) -> None:
    """Rejects broadcasting an extent other than 1 to another one; data-dependent extents are
    checked at run time."""
    if isinstance(wanted, int):
        raise node.error(f"operand 1 (shape): {wanted} for a dim of {extent}")
    if is_given(node, wanted):
        value = dim_value(node, wanted)
        is_one = node.emit("equal", value, node.scalar(1, DType.I64))
        check_is(node, node.emit("where", is_one, dim_value(node, extent), value), extent)


@onnx_op("Tile", since=6)
def tile(node: Node) -> Value:
    x = node.input(0)
    repeats = node.extents(1, "repeats")
    if len(repeats) != x.type.rank:
        raise node.error(f"repeats has {len(repeats)} numbers, but x has rank {x.type.rank}")
    ones = tuple(d for extent in x.type.dims for d in (1, extent))
    spread = tuple(d for pair in zip(repeats, x.type.dims, strict=True) for d in pair)
    wide = node.emit("broadcast_to", node.reshape(x, ones), shape=spread)
    return node.reshape(
        wide, [dims.multiply(a, b) for a, b in zip(repeats, x.type.dims, strict=True)]
    )


# slices


def _sliced(
    node: Node,
    starts: Sequence[Dim],
    ends: Sequence[Dim],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Value:
    x = node.input(0)
    rank = x.type.rank
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error("starts, ends, axes and steps differ in length")
    node.axes(axes, rank)
    begin: list[Dim] = [0] * rank
    stop: list[Dim] = list(x.type.dims)
    by = [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = node.axis(axis, rank)
        extent = x.type.dims[d]
        if step == 0:
            raise node.error("a step is 0")
        by[d] = step
        if step > 0:
            begin[d] = position(node, start, extent, 0, extent)
            stop[d] = position(node, end, extent, 0, extent)
        else:
            last = dims.add(extent, -1)
            begin[d] = position(node, start, extent, -1, last)
            stop[d] = position(node, end, extent, -1, last)
    for d, step in enumerate(by):
        # an empty slice has one spelling, so that positions stay in range
        first, last = begin[d], stop[d]
        if isinstance(first, int) and isinstance(last, int) and (last - first) * step <= 0:
            begin[d], stop[d], by[d] = 0, 0, 1
    return node.emit("slice", x, starts=tuple(begin), stops=tuple(stop), steps=tuple(by))


@onnx_op("Slice")
def slice_by_attributes(node: Node) -> Value:
    axes = node.ints_attr("axes") if node.has("axes") else None
    return _sliced(node, node.ints_attr("starts"), node.ints_attr("ends"), axes, None)


@onnx_op("Slice", since=10)
def slice_(node: Node) -> Value:
    axes = None if node.optional(3) is None else node.ints(3, "axes")
    steps = None if node.optional(4) is None else node.ints(4, "steps")
    starts, ends = (known_elements(node, node.input(i)) for i in (1, 2))
    if None in starts or None in ends:
        return _computed_slice(node, starts, ends, axes, steps)
    return _sliced(node, node.dims(1, "starts"), node.dims(2, "ends"), axes, steps)


def _computed_slice(
    node: Node,
    starts: Sequence[Dim | None],
    ends: Sequence[Dim | None],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Value:
    """A slice with bounds that are computed at run time: None among the bounds."""
    x = node.input(0)
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error("starts, ends, axes and steps differ in length")
    begin: list[Dim] = [0] * x.type.rank
    stop: list[Dim] = list(x.type.dims)
    by = [1] * x.type.rank
    node.axes(axes, x.type.rank)
    backwards: dict[int, Value] = {}  # by axis: the positions that a step below 0 goes to
    for number, axis in enumerate(node.axis(a, x.type.rank) for a in axes):
        if steps[number] == 0:
            raise node.error(f"the step of axis {axis} is 0")
        extent, lowest = x.type.dims[axis], -1 if steps[number] < 0 else 0
        first, last = (
            _place(node, element(node, node.input(i), number, found[number]), extent, lowest)
            for i, found in ((1, starts), (2, ends))
        )
        rest = node.emit("sub", last, first)
        if steps[number] < 0:
            rest = node.emit("neg", rest)
        if abs(steps[number]) > 1:
            step = node.scalar(abs(steps[number]), DType.I64)
            more = node.scalar(abs(steps[number]) - 1, DType.I64)
            rest = node.emit("div", node.emit("add", rest, more), step)
        count = node.emit("maximum", rest, node.scalar(0, DType.I64))
        if steps[number] < 0:
            runs = node.emit("range", size=extent_of(node, count, extent, "the slice"))
            step = node.scalar(steps[number], DType.I64)
            backwards[axis] = node.emit("add", first, node.emit("mul", runs, step))
            continue
        begin[axis] = extent_of(node, first, extent, "where the slice begins")
        length = extent_of(node, count, extent, "the slice")
        by[axis] = steps[number]
        stop[axis] = dims.add(begin[axis], dims.multiply(length, steps[number]))
    found = x
    if len(backwards) < len(axes):
        found = node.emit("slice", x, starts=tuple(begin), stops=tuple(stop), steps=tuple(by))
    for axis, positions in backwards.items():
        found = node.emit("gather", found, positions, axis=axis)
    return found


def _place(node: Node, position: Value, extent: Dim, lowest: int) -> Value:
    """A bound of a slice, which may count from the end, clamped to [0, extent], or to [-1, extent -
    1]."""
    zero, end = node.scalar(0, DType.I64), dim_value(node, extent)
    is_negative = node.emit("less", position, zero)
    position = node.emit("where", is_negative, node.emit("add", position, end), position)
    if lowest:
        end = dim_value(node, dims.add(extent, lowest))
    least = node.scalar(lowest, DType.I64)
    return node.emit("minimum", node.emit("maximum", position, least), end)


def _split(node: Node, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    if len(sizes) != len(node.outputs):
        raise node.error(f"has {len(node.outputs)} outputs, but {len(sizes)} sizes")
    return parts_along(node, axis, sizes)


def parts_along(node: Node, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    """The first operand split into parts of `sizes` along an axis, which must add up to its
    extent."""
    x = node.input(0)
    total: Dim = 0
    results = []
    for extent in sizes:
        start, total = total, dims.add(total, extent)
        starts: list[Dim] = [0] * x.type.rank
        stops = list(x.type.dims)
        starts[axis], stops[axis] = start, total
        results.append(
            node.emit(
                "slice", x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.type.rank
            )
        )
    difference = dims.add(x.type.dims[axis], dims.multiply(total, -1))
    if isinstance(difference, int) and difference != 0:
        raise node.error(f"sizes {text_of(sizes)} do not add up to {x.type.dims[axis]}")
    return results


def _equal_parts(node: Node, axis: int, count: int) -> list[Dim]:
    """The sizes of `count` parts: all equal except the last, which may be smaller."""
    extent = node.input(0).type.dims[axis]
    part = (
        dims.floor_divide(dims.add(extent, count - 1), count)
        if isinstance(extent, int)
        else dims.floor_divide(extent, count)
    )
    last = dims.add(extent, dims.multiply(part, -(count - 1)))
    if isinstance(last, int) and last < 0:
        raise node.error(f"axis {axis} of extent {extent} can't be split into {count} parts")
    return [*[part] * (count - 1), last]


@onnx_op("Split")
def split_by_attribute(node: Node) -> list[Value]:
    axis = node.axis_attr(node.input(0).type.rank, 0)
    if node.has("split"):
        return _split(node, axis, node.ints_attr("split"))
    return _split(node, axis, _equal_parts(node, axis, len(node.outputs)))


@onnx_op("Split", since=13)
def split(node: Node) -> list[Value]:
    axis = node.axis_attr(node.input(0).type.rank, 0)
    if node.optional(1) is not None:
        sizes = node.extents(1, "split")
        extent = node.input(0).type.dims[axis]
        for size in sizes:
            bound(node, size, extent, "operand 1 (split)")
        if any(is_given(node, size) for size in sizes):
            total: Dim = 0
            for size in sizes:
                total = dims.add(total, size)
            check_equal(node, total, extent, "the sizes of parts add up to the whole")
        return _split(node, axis, sizes)
    count = node.int_attr("num_outputs", len(node.outputs))
    if count != len(node.outputs):
        raise node.error(f"has {len(node.outputs)} outputs, but attribute 'num_outputs' is {count}")
    return _split(node, axis, _equal_parts(node, axis, count))


# joins, pads, choices


@onnx_op("Concat")
def concat(node: Node) -> Value:
    parts = [node.input(i) for i in range(len(node.inputs))]
    axis = node.axis_attr(parts[0].type.rank, 1 if node.opset < 4 else None)
    # exporters join an empty cache, or nothing, with what is known of the past
    rank = parts[0].type.rank
    full = [x for x in parts if x.type.rank != rank or x.type.dims[axis] != 0] or parts[:1]
    return full[0] if len(full) == 1 else node.emit("concat", *full, axis=axis)


def _padded(node: Node, grown: Sequence[Dim], cut: Sequence[Dim], mode: str, value: float) -> Value:
    """x without `cut` elements at each dim's begin and end, then padded by `grown` elements
    there."""
    x = node.input(0)
    rank = x.type.rank
    if len(grown) != 2 * rank:
        raise node.error(f"pads has {len(grown)} numbers, expected two for each of {rank} dims")
    if any(n != 0 for n in cut):
        stops = []
        for d, (start, end) in enumerate(zip(cut[:rank], cut[rank:], strict=True)):
            stop = dims.add(x.type.dims[d], dims.multiply(end, -1))
            left = dims.add(stop, dims.multiply(start, -1))
            if isinstance(left, int) and left < 0:
                raise node.error(f"pads take more from dim {d} than it has: {x.type.dims[d]}")
            if is_given(node, left):
                check_not_negative(node, left, f"pads take no more from dim {d} than it has")
            stops.append(stop)
        x = node.emit("slice", x, starts=tuple(cut[:rank]), stops=tuple(stops), steps=(1,) * rank)
    if all(n == 0 for n in grown):
        return x
    return node.emit("pad", x, pads=tuple(grown), mode=mode, value=value)


def _signed(pads: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """(elements to add, elements to cut), from pads of either sign."""
    grown = [max(p, 0) if isinstance(p, int) else p for p in pads]
    return grown, [max(-p, 0) if isinstance(p, int) else 0 for p in pads]


def _computed_pads(
    node: Node, elements: Sequence[Dim | None], places: Sequence[int]
) -> tuple[list[Dim], list[Dim]]:
    """(elements to add, elements to cut), for pads that may be computed at run time and have either
    sign.

    Args:
        places: the place of each element in x's pads.
    """
    x = node.input(0)
    grown, cut = _signed([0 if known is None else known for known in elements])
    for number, known in enumerate(elements):
        if known is None:
            zero = node.scalar(0, DType.I64)
            extent = x.type.dims[places[number] % x.type.rank]
            value = element(node, node.input(1), number, None)
            more = node.emit("maximum", value, zero)
            less = node.emit("maximum", node.emit("neg", value), zero)
            grown[number] = extent_of(node, more, None, "operand 1 (pads)")
            cut[number] = extent_of(node, less, extent, "operand 1 (pads)")
    return grown, cut


@onnx_op("Pad", since=2)
def pad_by_attributes(node: Node) -> Value:
    return _padded(
        node,
        *_signed(node.ints_attr("pads")),
        node.str_attr("mode", "constant"),
        node.float_attr("value", 0.0),
    )


@onnx_op("Pad", since=11)
def pad(node: Node) -> Value:
    x = node.input(0)
    rank = x.type.rank
    value = 0.0 if node.optional(2) is None else float(node.number(2, "constant_value"))
    axes = list(range(rank))
    if node.optional(3) is not None:
        axes = [node.axis(a, rank) for a in node.ints(3, "axes")]
    elements = known_elements(node, node.input(1))
    if len(elements) != 2 * len(axes):
        what = f"{len(axes)} axes" if node.optional(3) is not None else f"{rank} dims"
        raise node.error(f"pads has {len(elements)} numbers, expected two for each of {what}")
    places = [*axes, *(rank + axis for axis in axes)]
    full: tuple[list[Dim], list[Dim]] = ([0] * (2 * rank), [0] * (2 * rank))
    for found, given in zip(full, _computed_pads(node, elements, places), strict=True):
        for place, extent in zip(places, given, strict=True):
            found[place] = extent
    return _padded(node, *full, node.str_attr("mode", "constant"), value)


@onnx_op("Gather")
def gather(node: Node) -> Value:
    data, indices = node.input(0), node.input(1)
    axis, count = node.axis_attr(data.type.rank, 0), indices.type.element_count
    if data.type.dims[axis] == 0 and (count == 0 or is_given(node, count)):
        check_equal(node, count, 0, "nothing is taken where there is nothing")
        shape = (*data.type.dims[:axis], *indices.type.dims, *data.type.dims[axis + 1 :])
        zero = ConstantData(np.zeros((), data.type.dtype.numpy))
        return node.emit("fill", shape=shape, value=zero)
    return node.emit("gather", data, indices, axis=axis)
