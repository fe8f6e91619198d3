"""ONNX's normalisations over channels, groups and spatial dims.

LayerNormalization is in ops_reduction.py; the others that ONNX defines by smaller ops come by
their definition.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType


def _channelwise(node: Node, x: Value, vector: Value) -> Value:
    """A vector over channels in the shape that broadcasts to x [N, C, spatial...]."""
    return node.reshape(vector, (*vector.type.dims, *[1] * (x.type.rank - 2)))


@onnx_op("BatchNormalization", since=7)
def batch_normalization(node: Node) -> Value:
    node.ignore("momentum")
    if node.int_attr("training_mode", 0) or node.int_attr("spatial", 1) != 1:
        raise UnsupportedNodeError("training mode and spatial=0 are not supported")
    for number, what in enumerate(("mean", "variance", "saved mean", "saved variance"), 1):
        node.refuse_output(number, what)
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    dtype = variance.type.dtype
    spread = node.emit(
        "sqrt", node.emit("add", variance, node.scalar(node.float_attr("epsilon", 1e-5), dtype))
    )
    factor = node.emit("div", node.cast(scale, dtype), spread)
    shift = node.emit("sub", node.cast(bias, dtype), node.emit("mul", mean, factor))
    factor = _channelwise(node, x, node.cast(factor, x.type.dtype))
    shift = _channelwise(node, x, node.cast(shift, x.type.dtype))
    return node.emit("add", node.emit("mul", x, factor), shift)


def _standardised(node: Node, x: Value, axes: Sequence[int]) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over `axes`; f16 in f32, which its squares need."""
    dtype = x.type.dtype
    wide = node.cast(x, DType.F32) if dtype is DType.F16 else x
    mean = node.emit("reduce_mean", wide, axes=tuple(axes), keepdims=True)
    centred = node.emit("sub", wide, mean)
    variance = node.emit(
        "reduce_mean", node.emit("mul", centred, centred), axes=tuple(axes), keepdims=True
    )
    epsilon = node.scalar(node.float_attr("epsilon", 1e-5), wide.type.dtype)
    spread = node.emit("sqrt", node.emit("add", variance, epsilon))
    return node.cast(node.emit("div", centred, spread), dtype)


@onnx_op("InstanceNormalization", since=6)
def instance_normalization(node: Node) -> Value:
    x = node.input(0)
    normal = _standardised(node, x, range(2, x.type.rank))
    scaled = node.emit("mul", normal, _channelwise(node, x, node.input(1)))
    return node.emit("add", scaled, _channelwise(node, x, node.input(2)))


def _groups(node: Node, x: Value) -> Value:
    """x [N, C, spatial...] as [N, groups, the rest]."""
    count = node.int_attr("num_groups")
    if x.type.rank < 2:
        raise node.error(f"x has rank {x.type.rank}, expected 2 or more")
    batch, channels, *spatial = x.type.dims
    if count < 1 or (isinstance(channels, int) and channels % count):
        raise node.error(
            f"attribute 'num_groups' is {count}, which does not divide {channels} channels"
        )
    in_a_group = dims.floor_divide(channels, count)
    return node.reshape(x, (batch, count, dims.product([in_a_group, *spatial])))


@onnx_op("GroupNormalization", since=18)
def group_normalization_by_group(node: Node) -> Value:
    """Scale and bias are one number a group."""
    x = node.input(0)
    normal = _standardised(node, _groups(node, x), (2,))
    scaled = node.emit("mul", normal, _channelwise(node, normal, node.input(1)))
    shifted = node.emit("add", scaled, _channelwise(node, normal, node.input(2)))
    return node.reshape(shifted, x.type.dims)


@onnx_op("GroupNormalization", since=21)
def group_normalization(node: Node) -> Value:
    node.ignore("stash_type")  # statistics are in f32 at least
    x = node.input(0)
    normal = node.reshape(_standardised(node, _groups(node, x), (2,)), x.type.dims)
    scaled = node.emit("mul", normal, _channelwise(node, x, node.input(1)))
    return node.emit("add", scaled, _channelwise(node, x, node.input(2)))
