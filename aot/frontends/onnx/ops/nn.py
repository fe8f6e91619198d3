"""ONNX's convolutions, matrix products and poolings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.frontends.lib.extents import check_equal
from aot.frontends.lib.matrix import matrix_product
from aot.frontends.lib.pixels import depth_to_space, space_to_depth
from aot.frontends.lib.windows import Windows, same_pads
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value


def per_spatial_dim(node: Node, name: str, spatial: int) -> tuple[int, ...]:
    found = node.ints_attr(name, (1,) * spatial) or (1,) * spatial
    if len(found) != spatial:
        raise node.error(
            f"attribute {name!r} is {list(found)}, expected one number for each of "
            f"{spatial} spatial dims"
        )
    if min(found, default=1) < 1:
        raise node.error(f"attribute {name!r} is {list(found)}, expected numbers of at least 1")
    return found


def window_pads(
    node: Node,
    extents: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Dim, ...]:
    """The padding of a window, begins then ends; SAME padding is computed from the extents."""
    mode = node.str_attr("auto_pad", "NOTSET") or "NOTSET"
    given = node.ints_attr("pads", (0,) * (2 * len(extents))) or (0,) * (2 * len(extents))
    if mode == "NOTSET":
        if len(given) != 2 * len(extents):
            raise node.error(
                f"attribute 'pads' is {list(given)}, expected two numbers for each of "
                f"{len(extents)} spatial dims"
            )
        return given
    if mode == "VALID":
        return (0,) * (2 * len(extents))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.error(
            f"attribute 'auto_pad' is {mode!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
        )
    return same_pads(extents, kernel, strides, dilations, is_upper=mode == "SAME_UPPER")


@onnx_op("Conv")
def conv(node: Node) -> Value:
    return convolution(node, node.input(0), node.input(1), node.optional(2))


def convolution(node: Node, x: Value, w: Value, bias: Value | None) -> Value:
    """The convolution of x with w, according to the node's attributes."""
    spatial = x.type.rank - 2
    if spatial not in (1, 2, 3):
        raise UnsupportedNodeError(f"a convolution of rank {x.type.rank} is not supported")
    kernel = w.type.dims[2:]
    named = node.ints_attr("kernel_shape", ())
    if named and all(isinstance(k, int) for k in kernel) and named != kernel:
        raise node.error(
            f"attribute 'kernel_shape' is {list(named)}, but the weight has dims "
            f"({', '.join(map(str, w.type.dims))})"
        )
    strides = per_spatial_dim(node, "strides", spatial)
    dilations = per_spatial_dim(node, "dilations", spatial)
    pads = window_pads(node, x.type.dims[2:], kernel, strides, dilations)
    return node.emit(
        "conv",
        x,
        w,
        bias,
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=node.int_attr("group", 1),
    )


@onnx_op("MatMul")
def matmul(node: Node) -> Value:
    return matrix_product(node, node.input(0), node.input(1))


@onnx_op("Gemm", since=7)
def gemm(node: Node) -> Value:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.type.rank != 2 or b.type.rank != 2:
        raise node.error(f"operands have rank {a.type.rank} and {b.type.rank}, expected 2")
    if node.int_attr("transA", 0):
        a = node.emit("transpose", a, perm=(1, 0))
    if node.int_attr("transB", 0):
        b = node.emit("transpose", b, perm=(1, 0))
    alpha, beta = node.float_attr("alpha", 1.0), node.float_attr("beta", 1.0)
    result = node.emit("matmul", a, b)
    dtype = result.type.dtype
    if alpha != 1:
        result = node.emit("mul", result, node.scalar(alpha, dtype))
    if c is None or beta == 0:
        return result
    if beta != 1:
        c = node.emit("mul", c, node.scalar(beta, dtype))
    return node.emit("add", result, c)


def pool_windows(node: Node) -> Windows:
    """The windows of a pooling, from its attributes and x's dims."""
    x = node.input(0)
    spatial = x.type.rank - 2
    kernel = node.ints_attr("kernel_shape")
    if spatial not in (1, 2, 3) or len(kernel) != spatial:
        raise node.error(
            f"attribute 'kernel_shape' is {list(kernel)}, but x has rank {x.type.rank}"
        )
    strides = per_spatial_dim(node, "strides", spatial)
    dilations = per_spatial_dim(node, "dilations", spatial)
    pads = window_pads(node, x.type.dims[2:], kernel, strides, dilations)
    return Windows(kernel, strides, dilations, pads)


def _pool(node: Node, op: str, **more: bool) -> Value:
    windows = pool_windows(node)
    return node.emit(
        op,
        node.input(0),
        kernel=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=windows.pads,
        ceil_mode=bool(node.int_attr("ceil_mode", 0)),
        **more,
    )


@onnx_op("MaxPool")
def max_pool(node: Node) -> Sequence[Value]:
    is_column_major = bool(node.int_attr("storage_order", 0))
    y = _pool(node, "max_pool")
    if not node.wants(1):
        return [y]
    return [y, _pool(node, "max_pool_indices", column_major=is_column_major)]


@onnx_op("AveragePool")
def average_pool(node: Node) -> Value:
    return _pool(
        node, "average_pool", count_include_pad=bool(node.int_attr("count_include_pad", 0))
    )


def _global_pool(node: Node, op: str) -> Value:
    x = node.input(0)
    return node.emit(op, x, axes=tuple(range(2, x.type.rank)), keepdims=True)


@onnx_op("GlobalAveragePool")
def global_average_pool(node: Node) -> Value:
    return _global_pool(node, "reduce_mean")


@onnx_op("GlobalMaxPool")
def global_max_pool(node: Node) -> Value:
    return _global_pool(node, "reduce_max")


@onnx_op("Dropout")
def dropout(node: Node) -> Sequence[Value]:
    node.ignore("ratio", "seed", "consumed_inputs")
    if node.has("is_test") and not node.int_attr("is_test"):
        raise UnsupportedNodeError("training mode is not supported")
    if node.optional(2) is not None and node.number(2, "training_mode"):
        ratio = 0.5 if node.optional(1) is None else node.number(1, "ratio")
        if ratio:
            raise UnsupportedNodeError("training mode is not supported")
    x = node.input(0)
    return [x, node.emit("fill", shape=x.type.dims, value=ConstantData(np.array(True)))]


def _block_attr(node: Node, spatial: Sequence[Dim], multiple: bool) -> int:
    size = node.int_attr("blocksize")
    if size < 1 or (
        multiple and any(dims.modulo(d, size) != 0 for d in spatial if isinstance(d, int))
    ):
        raise node.error(f"attribute 'blocksize' is {size}, which does not divide x")
    return size


@onnx_op("DepthToSpace")
def import_depth_to_space(node: Node) -> Value:
    x = node.input(0)
    if x.type.rank != 4:
        raise node.error(f"x has rank {x.type.rank}, expected 4")
    size = _block_attr(node, (), False)
    channels = x.type.dims[1]
    if not isinstance(channels, int):
        whole = dims.multiply(dims.floor_divide(channels, size * size), size * size)
        check_equal(node, channels, whole, f"channels are a multiple of {size * size}")
    is_block_first = node.str_attr("mode", "DCR") == "DCR"
    return depth_to_space(node, x, size, is_block_first=is_block_first)


@onnx_op("SpaceToDepth")
def import_space_to_depth(node: Node) -> Value:
    x = node.input(0)
    if x.type.rank != 4:
        raise node.error(f"x has rank {x.type.rank}, expected 4")
    return space_to_depth(node, x, _block_attr(node, x.type.dims[2:], True))
