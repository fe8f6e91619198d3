"""ONNX's ops on windows and images, other than Conv and poolings: transposed convolutions, norms,
grids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.frontends.lib import normalization
from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.deformable import Deformable, deformable_convolution
from aot.frontends.lib.extents import check_equal, is_given
from aot.frontends.lib.transposed import (
    Transposed,
    transposed_convolution,
    transposed_extents,
)
from aot.frontends.lib.windows import lp_pool, with_room_for_last
from aot.frontends.onnx.ops.nn import per_spatial_dim, pool_windows
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ops.contraction import window_extent


def _image(
    node: Node,
    extents: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[Dim], list[Dim]]:
    """(extents of a transposed convolution's image, elements cropped at the beginning of each
    dim)."""
    spatial = len(extents)
    extra = node.ints_attr("output_padding", (0,) * spatial) or (0,) * spatial
    if len(extra) != spatial:
        raise node.error(f"attribute 'output_padding' is {list(extra)}, expected {spatial} numbers")
    spans = transposed_extents(extents, kernel, strides, dilations, extra)
    mode = node.str_attr("auto_pad", "NOTSET") or "NOTSET"
    wanted: Sequence[Dim] = node.ints_attr("output_shape", ())[-spatial:]
    pads = node.ints_attr("pads", (0,) * 2 * spatial) or (0,) * 2 * spatial
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = [dims.multiply(n, s) for n, s in zip(extents, strides, strict=True)]
    elif mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.error(
            f"attribute 'auto_pad' is {mode!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
        )
    if len(pads) != 2 * spatial or min(pads) < 0 or (wanted and len(wanted) != spatial):
        raise node.error(
            f"attributes 'pads' {list(pads)} and 'output_shape' {list(wanted)} do not "
            f"fit {spatial} spatial dims"
        )
    if wanted:
        totals = [
            dims.maximum(0, dims.add(span, dims.multiply(n, -1)))
            for span, n in zip(spans, wanted, strict=True)
        ]
        halves = [dims.floor_divide(total, 2) for total in totals]
        if mode == "SAME_UPPER":
            return list(wanted), halves
        return list(wanted), [
            dims.add(total, dims.multiply(half, -1))
            for total, half in zip(totals, halves, strict=True)
        ]
    if mode == "VALID":
        pads = (0,) * 2 * spatial
    image = [dims.add(span, -pads[d] - pads[spatial + d]) for d, span in enumerate(spans)]
    if any(isinstance(n, int) and n < 1 for n in image):
        raise node.error(f"pads {list(pads)} leave nothing of the result, which has dims {image}")
    return image, list(pads[:spatial])


@onnx_op("ConvTranspose")
def conv_transpose(node: Node) -> Value:
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    spatial = x.type.rank - 2
    if spatial not in (1, 2, 3) or w.type.rank != x.type.rank:
        raise UnsupportedNodeError(f"a convolution of rank {x.type.rank} is not supported")
    group = node.int_attr("group", 1)
    kernel = static_extents(w.type.dims[2:], "a kernel")
    named = node.ints_attr("kernel_shape", ())
    if named and named != kernel:
        raise node.error(
            f"attribute 'kernel_shape' is {list(named)}, but the weight has dims "
            f"({', '.join(map(str, w.type.dims))})"
        )
    channels, _ = static_extents(w.type.dims[:2], "a weight")
    if group < 1 or channels % group:
        raise node.error(f"attribute 'group' is {group}, which does not divide {channels} channels")
    strides = per_spatial_dim(node, "strides", spatial)
    dilations = per_spatial_dim(node, "dilations", spatial)
    image, begins = _image(node, x.type.dims[2:], kernel, strides, dilations)
    options = Transposed(group, strides, dilations, tuple(image), tuple(begins))
    return transposed_convolution(node, x, w, bias, options)


@onnx_op("Col2Im", since=18)
def col2im(node: Node) -> Value:
    x, image = node.input(0), node.dims(1, "image_shape")
    kernel = node.ints(2, "block_shape")
    spatial = len(kernel)
    if x.type.rank != 3 or len(image) != spatial or spatial not in (1, 2, 3):
        raise node.error(
            f"x has rank {x.type.rank}, image_shape {len(image)} and block_shape "
            f"{spatial} numbers; expected rank 3, and one to three numbers each"
        )
    strides = per_spatial_dim(node, "strides", spatial)
    dilations = per_spatial_dim(node, "dilations", spatial)
    pads = node.ints_attr("pads", (0,) * 2 * spatial)
    if len(pads) != 2 * spatial or min((*kernel, *strides, *dilations), default=1) < 1:
        raise node.error(
            f"pads are {list(pads)}, block_shape {list(kernel)}, strides "
            f"{list(strides)} and dilations {list(dilations)}; expected two pads a "
            "dim, and the others at least 1"
        )
    windows = [
        window_extent(image[d], kernel[d], strides[d], dilations[d], pads[d], pads[spatial + d])
        for d in range(spatial)
    ]
    channels = dims.floor_divide(x.type.dims[1], dims.product(kernel))
    split = node.reshape(x, (x.type.dims[0], channels, *kernel, *windows))
    return node.emit(
        "col2im",
        split,
        image=tuple(image),
        strides=strides,
        dilations=dilations,
        begins=tuple(pads[:spatial]),
    )


@onnx_op("MaxUnpool", since=9)
def max_unpool(node: Node) -> Value:
    x, places = node.input(0), node.input(1)
    kernel = node.ints_attr("kernel_shape")
    spatial = x.type.rank - 2
    if len(kernel) != spatial:
        raise node.error(
            f"attribute 'kernel_shape' is {list(kernel)}, but x has rank {x.type.rank}"
        )
    strides = per_spatial_dim(node, "strides", spatial)
    pads = node.ints_attr("pads", (0,) * 2 * spatial)
    inner = [
        dims.add(
            dims.multiply(dims.add(n, -1), strides[d]), kernel[d] - pads[d] - pads[spatial + d]
        )
        for d, n in enumerate(x.type.dims[2:])
    ]
    planes, size = dims.product(x.type.dims[:2]), dims.product(inner)
    count = dims.product(x.type.dims[2:])
    # places count over the whole tensor; each plane is a line of its own
    flat = node.reshape(places, (planes, count))
    extent = node.reshape(node.emit("dim_values", dims=(size,)), ())
    within = node.emit("sub", flat, node.emit("mul", node.emit("div", flat, extent), extent))
    nothing = node.emit(
        "fill", shape=(planes, size), value=ConstantData(np.zeros((), x.type.dtype.numpy))
    )
    filled = node.emit(
        "scatter_elements", nothing, within, node.reshape(x, (planes, count)), axis=1
    )
    y = node.reshape(filled, (*x.type.dims[:2], *inner))
    if node.optional(2) is None:
        return y
    wanted = node.extents(2, "output_shape")
    if len(wanted) != y.type.rank:
        raise node.error(f"output_shape has {len(wanted)} numbers, expected {y.type.rank}")
    for n, have in zip(wanted, y.type.dims, strict=True):
        if is_given(node, n):
            least = dims.maximum(n, have)
            check_equal(node, least, n, "output_shape is no smaller than what it holds")
    ends = [
        dims.add(n, dims.multiply(have, -1)) for n, have in zip(wanted, y.type.dims, strict=True)
    ]
    if any(isinstance(n, int) and n < 0 for n in ends):
        raise node.error(f"output_shape {list(wanted)} is smaller than {list(y.type.dims)}")
    return node.emit("pad", y, pads=(*[0] * x.type.rank, *ends), mode="constant", value=0.0)


@onnx_op("LRN")
def local_response_normalization(node: Node) -> Value:
    x, size = node.input(0), node.int_attr("size")
    if x.type.rank < 2 or size < 1:
        raise node.error(f"x has rank {x.type.rank} and size is {size}, expected at least 2 and 1")
    return normalization.local_response_normalization(
        node,
        x,
        size,
        node.float_attr("alpha", 1e-4),
        node.float_attr("beta", 0.75),
        node.float_attr("bias", 1.0),
    )


def _power(node: Node) -> int:
    p = node.int_attr("p", 2)
    if p <= 0:
        raise node.error(f"attribute 'p' is {p}, expected more than 0")
    return p


@onnx_op("LpNormalization")
def lp_normalization(node: Node) -> Value:
    x = node.input(0)
    axis = node.axis_attr(x.type.rank, -1)
    norm = normalization.norm(node, x, (axis,), _power(node))
    is_zero = node.emit("equal", norm, node.scalar(0, x.type.dtype))
    return node.emit("div", x, node.emit("where", is_zero, node.scalar(1, x.type.dtype), norm))


@onnx_op("GlobalLpPool", since=2)
def global_lp_pool(node: Node) -> Value:
    x = node.input(0)
    return normalization.norm(node, x, range(2, x.type.rank), _power(node))


@onnx_op("LpPool", since=2)
def import_lp_pool(node: Node) -> Value:
    x, windows = node.input(0), pool_windows(node)
    if node.int_attr("ceil_mode", 0):
        windows = with_room_for_last(windows, x.type.dims[2:])
    return lp_pool(node, x, windows, _power(node))


_GRID_MODES = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "linear": "linear",
    "cubic": "cubic",
    "nearest": "nearest",
}


@onnx_op("GridSample", since=16)
def grid_sample(node: Node) -> Value:
    mode = node.str_attr("mode", "linear")
    if mode not in _GRID_MODES:
        raise node.error(f"attribute 'mode' is {mode!r}, expected nearest, linear or cubic")
    return node.emit(
        "grid_sample",
        node.input(0),
        node.input(1),
        mode=_GRID_MODES[mode],
        padding=node.str_attr("padding_mode", "zeros"),
        align_corners=bool(node.int_attr("align_corners", 0)),
    )


@onnx_op("DeformConv", since=19)
def import_deformable_convolution(node: Node) -> Value:
    x, w, offset = (node.input(i) for i in range(3))
    if x.type.rank != 4:
        raise UnsupportedNodeError(
            f"a deformable convolution of rank {x.type.rank} is not supported"
        )
    taps = math.prod(static_extents(w.type.dims[2:], "a weight"))
    groups = node.int_attr("offset_group", 1)
    node.ignore("kernel_shape")  # it is the weight's
    channels = static_extents(x.type.dims[1:2], "a channel count")[0]
    if groups < 1 or channels % groups or offset.type.dims[1] != groups * taps * 2:
        raise node.error(
            f"offset has dims ({', '.join(map(str, offset.type.dims))}), which do not "
            f"fit {channels} channels, {taps} taps and offset_group {groups}"
        )
    if offset.type.rank != 4:
        raise node.error(f"x has rank {x.type.rank} and offset {offset.type.rank}, expected 4")
    options = Deformable(
        node.int_attr("group", 1),
        groups,
        per_spatial_dim(node, "strides", 2),
        per_spatial_dim(node, "dilations", 2),
        node.ints_attr("pads", (0,) * 4)[:2],
    )
    return deformable_convolution(node, x, w, offset, node.optional(3), node.optional(4), options)
