"""TFLite's poolings, and MediaPipe's poolings with positions."""

from __future__ import annotations

import struct
from typing import Any

from aot.frontends.lib.builder import static_extents
from aot.frontends.tflite.ops.convolution import (
    channels_last,
    channels_second,
    check_rank,
    numbers_of,
    pads_of,
)
from aot.frontends.tflite.table import Node, custom_op, tflite_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType


def _windows(n: Node, x: Value) -> dict[str, Any]:
    """The attributes of a pooling of x [N, H, W, C]."""
    kernel = (int(n.option("filter_height", 1)), int(n.option("filter_width", 1)))
    if min(kernel) < 1:
        raise n.error(f"its windows are {list(kernel)}, expected positive extents")
    strides = numbers_of(n, "stride")
    padding = n.enum("Padding", "padding")
    pads = pads_of(n, padding, x.type.dims[1:3], kernel, strides, (1, 1))
    return {"kernel": kernel, "strides": strides, "dilations": (1, 1), "pads": pads}


@tflite_op("AVERAGE_POOL_2D")
def average_pool(n: Node) -> Value:
    check_rank(n, 4, 0)
    x = n.real(0)
    y = n.emit("average_pool", channels_second(n, x), count_include_pad=False, **_windows(n, x))
    return n.activated(channels_last(n, y))


@tflite_op("MAX_POOL_2D")
def max_pool(n: Node) -> Value:
    check_rank(n, 4, 0)
    has_activation = n.option("fused_activation_function", 0) != 0
    x = n.real(0) if has_activation else n.stored_like_output(0)
    y = channels_last(n, n.emit("max_pool", channels_second(n, x), **_windows(n, x)))
    return n.activated(y) if has_activation else y


@tflite_op("L2_POOL_2D")
def l2_pool(n: Node) -> Value:
    """L2_POOL_2D: the root of the mean of squares in each window."""
    check_rank(n, 4, 0)
    x = channels_second(n, n.real(0))
    attrs = _windows(n, n.input(0))
    square = n("mul", x, x)
    mean = n.emit("average_pool", square, count_include_pad=False, **attrs)
    return n.activated(channels_last(n, n("sqrt", mean)))


# MediaPipe's: the options of both are the struct of TFLite's poolings


def _custom_windows(n: Node) -> tuple[dict[str, Any], str]:
    if len(n.operator.custom_options) < 20:
        raise n.error("its options are missing")
    found = struct.unpack_from("<5i", n.operator.custom_options)
    padding, columns, rows, width, height = found
    if padding not in (1, 2) or min(columns, rows, width, height) < 1:
        raise n.error(f"its options are {list(found)}")
    attrs = {"kernel": (height, width), "strides": (rows, columns), "dilations": (1, 1)}
    return attrs, "SAME" if padding == 1 else "VALID"


@custom_op("MaxPoolingWithArgmax2D")
def max_pooling_with_argmax(n: Node) -> list[Value]:
    """MediaPipe's MaxPoolingWithArgmax2D: each window's maximum, and its row-major position in the
    window as a float."""
    check_rank(n, 4, 0)
    x = n.real(0)
    attrs, padding = _custom_windows(n)
    kernel, strides = attrs["kernel"], attrs["strides"]
    pads = pads_of(n, padding, x.type.dims[1:3], kernel, strides, (1, 1))
    first = channels_second(n, x)
    y = n.emit("max_pool", first, pads=pads, **attrs)
    at = n.emit("max_pool_indices", first, pads=pads, **attrs)
    height, width = static_extents(x.type.dims[1:3], "an image")
    place = n.emit("sub", at, _floor_multiple(n, at, height * width))
    row = n.emit("div", place, n.scalar(width, at.type.dtype))
    column = n.emit("sub", place, n.emit("mul", row, n.scalar(width, at.type.dtype)))
    before = static_extents(pads[:2], "a padding")
    tops, lefts = (_begins(n, y, axis, strides[axis - 2], before[axis - 2]) for axis in (2, 3))
    tap = n.emit(
        "add",
        n.emit("mul", n.emit("sub", row, tops), n.scalar(kernel[1], at.type.dtype)),
        n.emit("sub", column, lefts),
    )
    return [channels_last(n, y), channels_last(n, n.cast(tap, DType.F32))]


def _floor_multiple(n: Node, x: Value, size: int) -> Value:
    step = n.scalar(size, x.type.dtype)
    return n.emit("mul", n.emit("div", x, step), step)


def _begins(n: Node, y: Value, axis: int, stride: int, pad: int) -> Value:
    """The first index of each window along an axis of y, shaped to broadcast with y."""
    counter = n.emit("range", size=y.type.dims[axis])
    begins = n("sub", n("mul", counter, stride), pad)
    return n.reshape(begins, (y.type.dims[axis], *[1] * (3 - axis)))


@custom_op("MaxUnpooling2D")
def max_unpooling(n: Node) -> Value:
    """MediaPipe's MaxUnpooling2D: each element at the position of its window's maximum, zeros
    elsewhere."""
    check_rank(n, 4, 0, 1)
    x, taps = n.real(0), n.cast(n.real(1), DType.I64)
    attrs, padding = _custom_windows(n)
    (height, width), strides = attrs["kernel"], attrs["strides"]
    rows, columns = static_extents(x.type.dims[1:3], "an image")
    batch, channels = static_extents((x.type.dims[0], x.type.dims[3]), "an image")
    shape = (batch, rows * strides[0], columns * strides[1], channels)
    pads = pads_of(n, padding, shape[1:3], (height, width), strides, (1, 1))
    begins = static_extents(pads[:2], "padding")
    along = [
        n.reshape(
            n("sub", n("mul", n.emit("range", size=count), stride), begin), (count, *[1] * (2 - d))
        )
        for d, (count, stride, begin) in enumerate(
            zip((rows, columns), strides, begins, strict=True)
        )
    ]
    wide = n.scalar(width, DType.I64)
    row = n.emit("div", taps, wide)
    column = n.emit("add", n.emit("sub", taps, n.emit("mul", row, wide)), along[1])
    row = n.emit("add", row, along[0])
    pixel = n.emit("add", n.emit("mul", row, n.value_of([shape[2]], DType.I64)), column)
    channel = n.emit("range", size=channels)
    image = n.reshape(n("mul", n.emit("range", size=batch), shape[1] * shape[2]), (batch, 1, 1, 1))
    at = n.emit("add", n("mul", n.emit("add", pixel, image), channels), channel)
    count = dims.product(x.type.dims)
    zeros = n.emit("broadcast_to", n.scalar(0.0, DType.F32), shape=(dims.product(shape),))
    placed = n.emit(
        "scatter_elements", zeros, n.reshape(at, (count,)), n.reshape(x, (count,)), axis=0
    )
    return n.reshape(placed, shape)
