"""ONNX's normalisations over channels, groups and spatial dims.

LayerNormalization is in ops_reduction.py; the others that ONNX defines by smaller ops come by
their definition.
"""

from __future__ import annotations

from aot.frontends.lib import normalization
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.graph import Value


@onnx_op("BatchNormalization", since=7)
def batch_normalization(node: Node) -> Value | list[Value]:
    if node.int_attr("spatial", 1) != 1:
        raise UnsupportedNodeError("spatial=0 is not supported")
    if node.int_attr("training_mode", 0):
        return _by_own_statistics(node)
    node.ignore("momentum")
    for number, what in enumerate(("mean", "variance", "saved mean", "saved variance"), 1):
        node.refuse_output(number, what)
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    return normalization.batch_normalization(node, x, scale, bias, mean, variance, _epsilon(node))


def _by_own_statistics(node: Node) -> list[Value]:
    """BatchNormalization in training mode: x normalised by its own mean and variance, and the
    running statistics."""
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    momentum = node.float_attr("momentum", 0.9)
    dtype = mean.type.dtype
    axes = tuple(d for d in range(x.type.rank) if d != 1)
    wide = node.cast(x, dtype) if dtype.bits > x.type.dtype.bits else x
    own = node.emit("reduce_mean", wide, axes=axes, keepdims=False)
    centred = node.emit("sub", wide, normalization.channelwise(node, wide, own))
    squares = node.emit("mul", centred, centred)
    spread = node.emit("reduce_mean", squares, axes=axes, keepdims=False)
    own, spread = node.cast(own, dtype), node.cast(spread, dtype)
    y = normalization.batch_normalization(node, x, scale, bias, own, spread, _epsilon(node))

    def moved(old: Value, fresh: Value) -> Value:
        kept = node.emit("mul", old, node.scalar(momentum, dtype))
        return node.emit("add", kept, node.emit("mul", fresh, node.scalar(1 - momentum, dtype)))

    return [y, moved(mean, own), moved(variance, spread)]


def _epsilon(node: Node) -> float:
    return node.float_attr("epsilon", 1e-5)


@onnx_op("InstanceNormalization", since=6)
def instance_normalization(node: Node) -> Value:
    x = node.input(0)
    normal = normalization.standardised(node, x, range(2, x.type.rank), _epsilon(node))
    return normalization.scaled(node, normal, node.input(1), node.input(2))


def _by_group(node: Node) -> Value:
    """The first operand [N, C, spatial...], normalised by group, as [N, groups, the rest]."""
    x, count = node.input(0), node.int_attr("num_groups")
    if x.type.rank < 2:
        raise node.error(f"x has rank {x.type.rank}, expected 2 or more")
    channels = x.type.dims[1]
    if count < 1 or (isinstance(channels, int) and channels % count):
        raise node.error(
            f"attribute 'num_groups' is {count}, which does not divide {channels} channels"
        )
    grouped = normalization.grouped(node, x, count)
    return normalization.standardised(node, grouped, (2,), _epsilon(node))


@onnx_op("GroupNormalization", since=18)
def group_normalization_by_group(node: Node) -> Value:
    """GroupNormalization before opset 21, whose scale and bias are per group."""
    made = normalization.scaled(node, _by_group(node), node.input(1), node.input(2))
    return node.reshape(made, node.input(0).type.dims)


@onnx_op("GroupNormalization", since=21)
def group_normalization(node: Node) -> Value:
    node.ignore("stash_type")  # statistics are in f32 at least
    normal = node.reshape(_by_group(node), node.input(0).type.dims)
    return normalization.scaled(node, normal, node.input(1), node.input(2))
