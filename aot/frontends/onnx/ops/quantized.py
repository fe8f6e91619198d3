"""ONNX's quantised ops, in integers where they are in integers, and in small ops throughout.

A quantised number q stands for (q - zero_point) * scale. Products are summed in i32 after the zero
points are taken off, so that results are exact; going back to 8 or 16 bits rounds halves to even
and saturates, as a cast of ours does.
"""

from __future__ import annotations

from aot.frontends.onnx.ops.nn import convolution, matrix_product
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

F32, I32 = DType.F32, DType.I32


def _is_scalar(value: Value) -> bool:
    return value.type.rank == 0 or value.type.dims == (1,)


def _along(node: Node, value: Value, rank: int, axis: int) -> Value:
    """A scalar, or a vector along `axis`, in the shape that broadcasts to `rank` dims."""
    if _is_scalar(value):
        return node.reshape(value, ())
    if value.type.rank != 1:
        raise node.error(f"a scale or zero point has rank {value.type.rank}, expected 0 or 1")
    return node.reshape(value, (*value.type.dims, *[1] * (rank - 1 - axis)))


def _blocks(node: Node, value: Value, x: Value, axis: int, size: int) -> Value:
    """One element a block of `size` along `axis`, repeated for each element of x."""
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


def _parameter(node: Node, number: int, x: Value) -> Value | None:
    """Scale or zero point (operand `number`) of QuantizeLinear and its inverse, for all of x."""
    value = node.optional(number)
    axis, size = node.int_attr("axis", 1), node.int_attr("block_size", 0)
    if value is None:
        return None
    if _is_scalar(value):
        return node.reshape(value, ())
    axis = node.axis(axis, x.type.rank)
    if size == 0:
        return _along(node, value, x.type.rank, axis)
    if size < 0 or value.type.rank != x.type.rank:
        raise node.error(
            f"attribute 'block_size' is {size}, and operand {number} has rank "
            f"{value.type.rank}; expected the rank of x, {x.type.rank}"
        )
    return _blocks(node, value, x, axis, size)


def _dtype_attr(node: Node, name: str) -> DType | None:
    """An element type that an attribute gives; None where it leaves it open."""
    number = node.int_attr(name, 0)
    try:
        return dtype_of(number) if number else None
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None


def _saturated(node: Node, x: Value, zero_point: Value | None, dtype: DType) -> Value:
    """Float x, already divided by its scale, as integers."""
    rounded = node.cast(node.emit("round", x), F32)  # f16 can't count to every zero point
    if zero_point is not None:
        rounded = node.emit("add", rounded, node.cast(zero_point, F32))
    return node.cast(rounded, dtype)


@onnx_op("QuantizeLinear", since=10)
def quantize_linear(node: Node) -> Value:
    node.ignore("saturate")  # it is about 8-bit floats
    x = node.input(0)
    scale, zero_point = _parameter(node, 1, x), _parameter(node, 2, x)
    assert scale is not None
    dtype = zero_point.type.dtype if zero_point is not None else DType.U8
    dtype = _dtype_attr(node, "output_dtype") or dtype
    computed_in = _dtype_attr(node, "precision") or scale.type.dtype
    quotient = node.emit("div", node.cast(x, computed_in), node.cast(scale, computed_in))
    return _saturated(node, quotient, zero_point, dtype)


@onnx_op("DequantizeLinear", since=10)
def dequantize_linear(node: Node) -> Value:
    x = node.input(0)
    scale, zero_point = _parameter(node, 1, x), _parameter(node, 2, x)
    assert scale is not None
    dtype = _dtype_attr(node, "output_dtype") or scale.type.dtype
    centred = _centred(node, x, zero_point)
    product = node.emit("mul", node.cast(centred, scale.type.dtype), scale)
    return node.cast(product, dtype)


def _centred(node: Node, x: Value, zero_point: Value | None) -> Value:
    """x - zero_point in i32."""
    wide = node.cast(x, I32)
    if zero_point is None:
        return wide
    return node.emit("sub", wide, node.cast(zero_point, I32))


def _left(node: Node, value: Value | None, a: Value) -> Value | None:
    """A parameter of a matrix: one number, one a row, or in the shape that broadcasts."""
    if value is None or value.type.rank > 1:
        return value
    return _along(node, value, max(a.type.rank, 2), max(a.type.rank, 2) - 2)


def _right(node: Node, value: Value | None) -> Value | None:
    """As `_left`, one a column."""
    return node.reshape(value, ()) if value is not None and _is_scalar(value) else value


@onnx_op("MatMulInteger", since=10)
def matmul_integer(node: Node) -> Value:
    a, b = node.input(0), node.input(1)
    return matrix_product(
        node,
        _centred(node, a, _left(node, node.optional(2), a)),
        _centred(node, b, _right(node, node.optional(3))),
    )


@onnx_op("ConvInteger", since=10)
def conv_integer(node: Node) -> Value:
    x, w = node.input(0), node.input(1)
    zero_of_w = node.optional(3)
    if zero_of_w is not None:
        zero_of_w = _along(node, zero_of_w, w.type.rank, 0)
    zero_of_x = node.optional(2)
    if zero_of_x is not None:
        zero_of_x = node.reshape(zero_of_x, ())
    return convolution(node, _centred(node, x, zero_of_x), _centred(node, w, zero_of_w), None)


def _requantized(
    node: Node, total: Value, scales: tuple[Value, Value, Value], zero_point: Value
) -> Value:
    """i32 sums of products as integers of another scale: sum * (a * b / y), rounded in f32."""
    a, b, y = (node.cast(scale, F32) for scale in scales)
    factor = node.emit("div", node.emit("mul", a, b), y)
    scaled = node.emit("mul", node.cast(total, F32), factor)
    return _saturated(node, scaled, zero_point, zero_point.type.dtype)


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    if not (_is_scalar(y_scale) and _is_scalar(y_zero)):
        raise UnsupportedNodeError(
            "a result with a scale or zero point for each row is not supported"
        )
    total = matrix_product(
        node, _centred(node, a, _left(node, a_zero, a)), _centred(node, b, _right(node, b_zero))
    )
    left, right = _left(node, a_scale, a), _right(node, b_scale)
    assert left is not None and right is not None
    return _requantized(
        node, total, (left, right, node.reshape(y_scale, ())), node.reshape(y_zero, ())
    )


@onnx_op("QLinearConv", since=10)
def qlinear_conv(node: Node) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    rank = w.type.rank
    total = convolution(
        node,
        _centred(node, x, node.reshape(x_zero, ())),
        _centred(node, w, _along(node, w_zero, rank, 0)),
        node.optional(8),
    )
    # filters are the dim after the batch
    scales = (node.reshape(x_scale, ()), _along(node, w_scale, rank, 1), node.reshape(y_scale, ()))
    return _requantized(node, total, scales, node.reshape(y_zero, ()))
