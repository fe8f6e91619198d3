"""ONNX's quantised ops: integer products where ONNX defines them in integers, otherwise small ops.

A quantised number q stands for (q - zero_point) * scale. Products are summed in i32 after the zero
points are taken off, so that results are exact; what `quantise-contractions` makes of that keeps
them so.
"""

from __future__ import annotations

import numpy as np

from aot.frontends.lib.matrix import matrix_product
from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.ops.nn import convolution
from aot.frontends.onnx.stored import NARROW, decoded, encoded, saturated
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of, type_name
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

F32, I32 = DType.F32, DType.I32


def _is_scalar(value: Value) -> bool:
    return value.type.rank == 0 or value.type.dims == (1,)


def check_scale(node: Node, scale: Value, what: str) -> None:
    """Checks that a known scale is valid: finite, with a finite inverse.

    Raises:
        CompileError: an element is zero, negative, infinite or NaN.
    """
    found = node.values.known(scale)
    if found is None or found.dtype.kind != "f":
        return
    wrong = found[~((found > 0) & np.isfinite(found))]
    if wrong.size:
        raise node.error(f"{what} is {wrong.reshape(-1)[0]}, expected a positive finite number")


def _shape_text(value: Value) -> str:
    return f"({', '.join(map(str, value.type.dims))})"


def _along(node: Node, value: Value, x: Value, axis: int, what: str) -> Value:
    """A scalar, or a vector along `axis` of x, in the shape that broadcasts to x.

    Raises:
        CompileError: it has another rank, or not one element for each of x along `axis`.
    """
    if _is_scalar(value):
        return node.reshape(value, ())
    if value.type.rank != 1:
        raise node.error(f"{what} has rank {value.type.rank}, expected 0 or 1")
    count, extent = value.type.dims[0], x.type.dims[axis]
    if isinstance(count, int) and isinstance(extent, int) and count != extent:
        raise node.error(
            f"{what} has {count} elements, but axis {axis} of the tensor has extent {extent}"
        )
    return node.reshape(value, (*value.type.dims, *[1] * (x.type.rank - 1 - axis)))


def _blocks(node: Node, value: Value, x: Value, axis: int, size: int) -> Value:
    """A parameter with one element per block of `size` along `axis`, repeated for each element of
    x."""
    before, after = value.type.dims[:axis], value.type.dims[axis + 1 :]
    count, extent = value.type.dims[axis], x.type.dims[axis]
    if isinstance(extent, int) and isinstance(count, int) and -(-extent // size) != count:
        raise node.error(
            f"axis {axis} of x has extent {extent}, which is not {count} blocks of {size}"
        )
    split = node.reshape(value, (*before, count, 1, *after))
    spread = node.emit("broadcast_to", split, shape=(*before, count, size, *after))
    covered = dims.multiply(count, size)
    whole = node.reshape(spread, (*before, covered, *after))
    if covered == extent:
        return whole
    stops: list[Dim] = list(whole.type.dims)
    stops[axis] = extent
    rank = x.type.rank
    return node.emit("slice", whole, starts=(0,) * rank, stops=tuple(stops), steps=(1,) * rank)


def _are_shaped_alike(a: Value, b: Value) -> bool:
    """Whether two parameters may have the same shape."""
    if _is_scalar(a) or _is_scalar(b):
        return _is_scalar(a) and _is_scalar(b)
    return a.type.rank == b.type.rank and all(
        m == n or not (isinstance(m, int) and isinstance(n, int))
        for m, n in zip(a.type.dims, b.type.dims, strict=True)
    )


def _parameters(node: Node, x: Value) -> tuple[Value, Value | None]:
    """(scale, zero point), operands 1 and 2, of QuantizeLinear or DequantizeLinear, broadcast to
    x."""
    scale, zero_point = node.input(1), node.optional(2)
    check_scale(node, scale, "the scale")
    if zero_point is not None and not _are_shaped_alike(scale, zero_point):
        raise node.error(
            f"the zero point has shape {_shape_text(zero_point)}, expected that of the scale, "
            f"{_shape_text(scale)}"
        )
    if zero_point is not None and zero_point.type.dtype is I32:
        found = node.values.known(zero_point)
        if found is not None and found.dtype != object and found.any():
            raise node.error("the zero point of an i32 tensor is not 0")
    return _parameter(node, scale, x, "the scale"), None if zero_point is None else _parameter(
        node, zero_point, x, "the zero point"
    )


def _parameter(node: Node, value: Value, x: Value, what: str) -> Value:
    axis, size = node.int_attr("axis", 1), node.int_attr("block_size", 0)
    if _is_scalar(value) and size == 0:
        return node.reshape(value, ())
    axis = node.axis(axis, x.type.rank)
    if size == 0:
        return _along(node, value, x, axis, what)
    if size < 0 or value.type.rank != x.type.rank:
        raise node.error(
            f"attribute 'block_size' is {size}, and {what} has rank "
            f"{value.type.rank}; expected the rank of x, {x.type.rank}"
        )
    return _blocks(node, value, x, axis, size)


def _dtype_attr(node: Node, name: str) -> DType | None:
    """An element type from an attribute; None if it is not given."""
    number = node.int_attr(name, 0)
    try:
        return dtype_of(number) if number else None
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None


def _dtype_of_result(node: Node, zero_point: Value | None) -> DType:
    """The element type of QuantizeLinear's result, by `output_dtype` or the zero point. They must
    agree; without either it is u8.
    """
    named = _dtype_attr(node, "output_dtype")
    if named is None or zero_point is None or named is zero_point.type.dtype:
        return named or (DType.U8 if zero_point is None else zero_point.type.dtype)
    raise node.error(
        f"attribute 'output_dtype' is {named}, but the zero point is {zero_point.type.dtype}"
    )


def _narrow_result(node: Node) -> int | None:
    """The storage-only element type of QuantizeLinear's result; None for others."""
    named, zero = node.int_attr("output_dtype", 0), node.element_type(2)
    if zero is not None and named not in (0, zero):
        raise node.error(
            f"attribute 'output_dtype' is {type_name(named)}, but the zero point is "
            f"{type_name(zero)}"
        )
    return zero if zero is not None else named if named in NARROW else None


def _quantized_narrowly(node: Node, x: Value, elem_type: int, saturates: bool) -> Value:
    row = NARROW[elem_type]
    x = x if x.type.dtype.is_float else node.cast(x, F32)
    scale, zero_point = _parameters(node, x)
    if row.is_float:  # whose zero point is 0
        wide = node.emit("div", node.cast(x, F32), node.cast(scale, F32))
        made = encoded(node, wide, elem_type, saturates=saturates)
    else:
        wide = node.emit("quantize", x, scale, zero_point, to=row.dtype)
        made = saturated(node, wide, elem_type)
    node.kinds[made] = elem_type
    return made


@onnx_op("QuantizeLinear", since=10)
@onnx_op("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(node: Node) -> Value:
    node.ignore("precision")  # we divide in f32
    saturates = bool(node.int_attr("saturate", 1))
    x = node.input(0)
    narrow = _narrow_result(node)
    if narrow is not None:
        return _quantized_narrowly(node, x, narrow, saturates)
    scale, zero_point = _parameters(node, x)
    dtype = _dtype_of_result(node, zero_point)
    x = x if x.type.dtype.is_float else node.cast(x, F32)
    return node.emit("quantize", x, scale, zero_point, to=dtype)


@onnx_op("DequantizeLinear", since=10)
@onnx_op("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(node: Node) -> Value:
    x, held = node.input(0), node.element_type(0)
    scale, zero_point = _parameters(node, x)
    if held is not None and NARROW[held].is_float:  # whose zero point is 0
        found = node.emit("mul", decoded(node, x, held), node.cast(scale, F32))
    else:
        found = node.emit("dequantize", x, scale, zero_point)
    return node.cast(found, _dtype_attr(node, "output_dtype") or scale.type.dtype)


def dynamically_quantized(node: Node, x: Value) -> tuple[Value, Value, Value]:
    """(x as u8, scale, zero point), the latter two from x's own range. The formula is ONNX's: a
    tensor of zeros has a scale of 0 and stays zeros.
    """
    axes = tuple(range(x.type.rank))
    zero, top = node.scalar(0.0, F32), node.scalar(255.0, F32)
    low = node.emit("minimum", node.emit("reduce_min", x, axes=axes, keepdims=False), zero)
    high = node.emit("maximum", node.emit("reduce_max", x, axes=axes, keepdims=False), zero)
    is_zero = node.emit("equal", high, low)  # all of x, whose scale ONNX Runtime makes 1
    step = node.emit("div", node.emit("sub", high, low), top)
    scale = node.emit("where", is_zero, node.scalar(1.0, F32), step)
    start = node.emit("sub", zero, node.emit("div", low, scale))
    clipped = node.emit("minimum", node.emit("maximum", start, zero), top)
    zero_point = node.cast(node.emit("round", clipped), DType.U8)
    return node.emit("quantize", x, scale, zero_point, to=DType.U8), scale, zero_point


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node) -> tuple[Value, Value, Value]:
    return dynamically_quantized(node, node.input(0))


def _centred(node: Node, x: Value, zero_point: Value | None) -> Value:
    """x - zero_point in i32."""
    wide = node.cast(x, I32)
    if zero_point is None:
        return wide
    return node.emit("sub", wide, node.cast(zero_point, I32))


def _left(node: Node, value: Value | None, a: Value, what: str) -> Value | None:
    """A parameter of the left matrix: a single number, one per row, or in a shape that
    broadcasts."""
    if value is None or value.type.rank > 1:
        return value
    if a.type.rank == 1:
        return _along(node, value, a, 0, what) if _is_scalar(value) else value
    return _along(node, value, a, a.type.rank - 2, what)


def _right(node: Node, value: Value | None, b: Value, what: str) -> Value | None:
    """A parameter of the right side, one per column, broadcast as `_left` does for rows."""
    if value is None or value.type.rank > 1:
        return value
    return _along(node, value, b, b.type.rank - 1, what)


def integer_product(
    node: Node, a: Value, b: Value, zeros: tuple[Value | None, Value | None]
) -> Value:
    """The matrix product of a and b minus their zero points, in i32."""

    def centred(left: Value, right: Value) -> tuple[Value, Value]:
        return (
            _centred(node, left, _left(node, zeros[0], left, "the zero point of a")),
            _centred(node, right, _right(node, zeros[1], right, "the zero point of b")),
        )

    return matrix_product(node, a, b, centred)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(node: Node) -> Value:
    zeros = node.optional(2), node.optional(3)
    return integer_product(node, node.input(0), node.input(1), zeros)


def _integer_convolution(
    node: Node,
    operands: tuple[Value, Value],
    zeros: tuple[Value | None, Value | None],
    bias: Value | None,
) -> Value:
    x, w = operands
    zero_of_x, zero_of_w = zeros
    if zero_of_x is not None and not _is_scalar(zero_of_x):
        raise node.error(
            f"the zero point of x has shape {_shape_text(zero_of_x)}, expected one number"
        )
    if zero_of_w is not None:
        zero_of_w = _along(node, zero_of_w, w, 0, "the zero point of w")
    if zero_of_x is not None:
        zero_of_x = node.reshape(zero_of_x, ())
    return convolution(node, _centred(node, x, zero_of_x), _centred(node, w, zero_of_w), bias)


@onnx_op("ConvInteger", since=10)
def conv_integer(node: Node) -> Value:
    zeros = node.optional(2), node.optional(3)
    return _integer_convolution(node, (node.input(0), node.input(1)), zeros, None)


def requantized(
    node: Node, total: Value, scales: tuple[Value, Value, Value], zero_point: Value
) -> Value:
    """i32 sums of products, requantised: sum * (a * b / y), rounded in f32."""
    a, b, y = (node.cast(scale, F32) for scale in scales)
    factor = node.emit("div", node.emit("mul", a, b), y)
    scaled = node.emit("mul", node.cast(total, F32), factor)
    return node.emit("quantize", scaled, None, zero_point, to=zero_point.type.dtype)


def check_scales(node: Node, **operands: int) -> None:
    """Runs `check_scale` on several operands: each keyword is a tensor's name, its value the
    operand number of the scale.
    """
    for name, number in operands.items():
        scale = node.optional(number)
        if scale is not None:
            check_scale(node, scale, f"the scale of {name}")


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    check_scales(node, a=1, b=4, y=6)
    if not (_is_scalar(y_scale) and _is_scalar(y_zero)):
        raise UnsupportedNodeError(
            "a result with a scale or zero point for each row is not supported"
        )
    total = integer_product(node, a, b, (a_zero, b_zero))
    left, right = (
        _left(node, a_scale, a, "the scale of a"),
        _right(node, b_scale, b, "the scale of b"),
    )
    assert left is not None and right is not None
    return requantized(
        node, total, (left, right, node.reshape(y_scale, ())), node.reshape(y_zero, ())
    )


@onnx_op("QLinearConv", since=10)
def qlinear_conv(node: Node) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    check_scales(node, x=1, w=4, y=6)
    for scale, what in ((x_scale, "the scale of x"), (y_scale, "the scale of y")):
        if not _is_scalar(scale):
            raise node.error(f"{what} has shape {_shape_text(scale)}, expected one number")
    total = _integer_convolution(node, (x, w), (x_zero, w_zero), node.optional(8))
    # filters are the dim after the batch
    of_filters = _along(node, w_scale, w, 0, "the scale of w")
    if not _is_scalar(of_filters):
        of_filters = node.reshape(of_filters, (w.type.dims[0], *[1] * (w.type.rank - 2)))
    scales = (node.reshape(x_scale, ()), of_filters, node.reshape(y_scale, ()))
    return requantized(node, total, scales, node.reshape(y_zero, ()))
