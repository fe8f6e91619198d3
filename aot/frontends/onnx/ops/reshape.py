"""ONNX's Reshape, Squeeze and Unsqueeze. The shape of a Reshape may be constant or computed; its 0
keeps a dim, its -1 is inferred from the other extents."""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib.extents import (
    MOST_EXTENTS,
    bound,
    check_equal,
    dim_value,
    element,
    extent_of,
    is_given,
    known_elements,
)
from aot.frontends.lib.single import single
from aot.frontends.onnx.table import Node, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Value
from aot.ir.types import DType


@onnx_op("Reshape", since=5)
def reshape(node: Node) -> Value:
    x = node.input(0)
    is_kept = not node.int_attr("allowzero", 0)
    elements = _elements(node)
    if elements is not None and None in elements:
        shape = _computed(node, x, elements, is_kept)
    else:
        shape = list(node.extents(1, "shape"))
        for extent in shape:
            bound(node, extent, x.type.element_count, "operand 1 (shape)")
    if is_kept:
        if len(shape) > x.type.rank and 0 in shape[x.type.rank :]:
            raise node.error(
                f"shape {text_of(shape)} keeps a dim that x, of rank {x.type.rank}, does not have"
            )
        shape = [x.type.dims[d] if extent == 0 else extent for d, extent in enumerate(shape)]
    unknown = [d for d, extent in enumerate(shape) if extent == -1]
    if len(unknown) > 1:
        raise node.error(f"shape {text_of(shape)} has more than one -1")
    if any(isinstance(extent, int) and extent < -1 for extent in shape):
        raise node.error(f"shape {text_of(shape)} has a negative dim")
    if unknown:
        shape[unknown[0]] = _missing_extent(node, x, shape)
    return node.reshape(x, shape)


def _elements(node: Node) -> list[Dim | None] | None:
    """The elements of Reshape's shape operand as dims, None for elements that the model computes;
    None if it is not a short vector.
    """
    shape = node.input(1)
    count = shape.type.dims[0] if shape.type.rank == 1 else None
    is_small = isinstance(count, int) and count <= MOST_EXTENTS
    return known_elements(node, shape) if is_small else None


def _computed(node: Node, x: Value, elements: Sequence[Dim | None], is_kept: bool) -> list[Dim]:
    """The dims of a Reshape some of whose extents are computed at run time, with 0 (copy the
    input's dim) and -1 (infer) resolved there.
    """
    zero = node.scalar(0, DType.I64)
    values = []
    for d, known in enumerate(elements):
        if known == 0 and is_kept and d < x.type.rank:
            known = x.type.dims[d]
        value = element(node, node.input(1), d, known)
        if known is None and is_kept and d < x.type.rank:
            keeps = node.emit("equal", value, zero)
            value = node.emit("where", keeps, dim_value(node, x.type.dims[d]), value)
        values.append(value)
    if -1 not in elements:
        values = _completed(node, x, values)
    most = dims.product([dims.maximum(extent, 1) for extent in x.type.dims])
    return [
        extent_of(node, value, most, "operand 1 (shape)") if known is None else known
        for value, known in zip(values, elements, strict=True)
    ]


def _completed(node: Node, x: Value, values: Sequence[Value]) -> list[Value]:
    """The extents as i64 scalars, with a single -1 replaced by the number of elements divided by
    the other extents. Two or more stay -1, and are rejected later.
    """
    zero, one, minus = (node.scalar(v, DType.I64) for v in (0, 1, -1))
    missing = [node.emit("equal", value, minus) for value in values]
    count, beside = zero, one
    for value, is_missing in zip(values, missing, strict=True):
        count = node.emit("add", count, node.cast(is_missing, DType.I64))
        beside = node.emit("mul", beside, node.emit("where", is_missing, one, value))
    total = dim_value(node, x.type.element_count)
    left = node.emit("div", total, node.emit("maximum", beside, one))
    left = node.emit("where", node.emit("equal", count, one), left, minus)
    return [
        node.emit("where", is_missing, left, value)
        for value, is_missing in zip(values, missing, strict=True)
    ]


def _missing_extent(node: Node, x: Value, shape: Sequence[Dim]) -> Dim:
    """The extent for -1: the number of elements divided by the product of the other extents, after
    cancelling common dims.
    """
    old = list(x.type.dims)
    rest: list[Dim] = []
    for extent in shape:
        if isinstance(extent, DimExpr) and extent in old:
            old.remove(extent)
        elif extent != -1:
            rest.append(extent)
    divisor = dims.product(rest)
    total = dims.product(old)
    if is_given(node, divisor):
        check_equal(node, dims.maximum(divisor, 1), divisor, "the dims beside -1 are not 0")
    if divisor == 0 or (isinstance(divisor, int) and isinstance(total, int) and total % divisor):
        raise node.error(
            f"x of dims ({', '.join(map(str, x.type.dims))}) does not fit shape {text_of(shape)}"
        )
    return dims.floor_divide(total, divisor)


def text_of(shape: Sequence[Dim]) -> str:
    """Dims as messages show them."""
    return f"[{', '.join(map(str, shape))}]"


def _squeezed(node: Node, axes: Sequence[int] | None) -> Value:
    x = node.input(0)
    if axes is None:
        axes = single(node, x.type.dims, node.ranks.get(node.outputs[0]))
    gone = node.axes(axes, x.type.rank)
    for d in gone:
        extent = x.type.dims[d]
        if isinstance(extent, int) and extent != 1:
            raise node.error(f"axis {d} has extent {extent}, expected 1")
    return node.reshape(x, [e for d, e in enumerate(x.type.dims) if d not in gone])


@onnx_op("Squeeze")
def squeeze_by_attribute(node: Node) -> Value:
    return _squeezed(node, node.ints_attr("axes") if node.has("axes") else None)


@onnx_op("Squeeze", since=13)
def squeeze(node: Node) -> Value:
    return _squeezed(node, None if node.optional(1) is None else node.ints(1, "axes"))


def _unsqueezed(node: Node, axes: Sequence[int]) -> Value:
    x = node.input(0)
    fresh = node.axes(axes, x.type.rank + len(axes))
    old = iter(x.type.dims)
    return node.reshape(
        x, [1 if d in fresh else next(old) for d in range(x.type.rank + len(fresh))]
    )


@onnx_op("Unsqueeze")
def unsqueeze_by_attribute(node: Node) -> Value:
    return _unsqueezed(node, node.ints_attr("axes"))


@onnx_op("Unsqueeze", since=13)
def unsqueeze(node: Node) -> Value:
    return _unsqueezed(node, node.ints(1, "axes"))
