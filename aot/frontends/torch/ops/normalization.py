"""PyTorch's normalisations: batch, layer, group and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.frontends.lib import normalization as lib
from aot.frontends.torch.table import Node, Number, UnsupportedNodeError, torch_op
from aot.ir.dims import Dim
from aot.ir.graph import Value

_TRAINING = "training mode is not supported: call eval() on the module, and do not set training"


def _vector(n: Node, x: Value, given: Value | None, default: float) -> Value:
    """The given vector with one value per channel, or a constant vector of `default`."""
    if given is not None:
        return given
    channels = x.type.dims[1]
    if not isinstance(channels, int):
        raise UnsupportedNodeError("channels that depend on the input's shape are not supported")
    return n.constant(np.full(channels, default, x.type.dtype.numpy))


def _by_statistics(
    n: Node,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    epsilon: float,
) -> Value:
    own = _vector(n, x, scale, 1.0), _vector(n, x, bias, 0.0)
    return lib.batch_normalization(n, x, *own, mean, variance, epsilon)


@torch_op("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    n: Node,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: Number,
    epsilon: float,
) -> list[Value]:
    y = _by_statistics(n, x, scale, bias, mean, variance, epsilon)
    return [y, y, y]


@torch_op("aten.batch_norm.default")
def batch_norm(
    n: Node,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    is_training: bool,
    momentum: Number,
    epsilon: float,
    *cudnn: Any,
) -> Value:
    if is_training or mean is None or variance is None:
        return _by_batch(n, x, scale, bias, epsilon)
    return _by_statistics(n, x, scale, bias, mean, variance, epsilon)


@torch_op("aten._native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    n: Node,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    is_training: bool,
    momentum: Number,
    epsilon: float,
) -> list[Value]:
    if n.wants(1) or n.wants(2):
        raise UnsupportedNodeError(_TRAINING)
    y = _by_batch(n, x, scale, bias, epsilon)
    return [y, y, y]


def _by_batch(n: Node, x: Value, scale: Value | None, bias: Value | None, epsilon: float) -> Value:
    """Batch normalisation by the statistics of x itself, where none are given."""
    axes = [d for d in range(x.type.rank) if d != 1]
    return _affine(n, lib.standardised(n, x, axes, epsilon), scale, bias)


@torch_op(
    "aten._native_batch_norm_legit.default", "aten._native_batch_norm_legit_functional.default"
)
def batch_norm_training(n: Node, *arguments: Any) -> Value:
    raise UnsupportedNodeError(_TRAINING)


def _affine(n: Node, normal: Value, scale: Value | None, bias: Value | None) -> Value:
    """normal * scale + bias, with one of each per channel; absent ones are skipped."""
    if scale is not None:
        normal = n("mul", normal, lib.channelwise(n, normal, scale))
    if bias is not None:
        normal = n("add", normal, lib.channelwise(n, normal, bias))
    return normal


@torch_op("aten.instance_norm.default")
def instance_norm(
    n: Node,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    uses_input: bool,
    momentum: Number,
    epsilon: float,
    *cudnn: Any,
) -> Value:
    if not uses_input and mean is not None and variance is not None:
        return _by_statistics(n, x, scale, bias, mean, variance, epsilon)
    normal = lib.standardised(n, x, range(2, x.type.rank), epsilon)
    return _affine(n, normal, scale, bias)


@torch_op("aten.group_norm.default")
def group_norm(
    n: Node,
    x: Value,
    count: int,
    scale: Value | None,
    bias: Value | None,
    epsilon: float,
    *cudnn: Any,
) -> Value:
    normal = lib.standardised(n, lib.grouped(n, x, count), (2,), epsilon)
    return _affine(n, n.reshape(normal, x.type.dims), scale, bias)


def _with_statistics(
    n: Node, y: Value, x: Value, axes: Sequence[int], epsilon: float
) -> list[Value]:
    """[y, means, 1 / sqrt(variance + epsilon)] over dims of x, for ops that return these
    statistics."""
    if not (n.wants(1) or n.wants(2)):
        return [y, y, y]
    wide = n.cast(x, x.type.dtype.accumulator)
    mean = n.emit("reduce_mean", wide, axes=tuple(axes), keepdims=True)
    centred = n("sub", wide, mean)
    variance = n.emit("reduce_mean", n("mul", centred, centred), axes=tuple(axes), keepdims=True)
    spread = n("sqrt", n("add", variance, epsilon))
    found = [y]
    for number, value in ((1, mean), (2, n("div", n.scalar(1, spread.type.dtype), spread))):
        type = n.types[number]
        if type is None:
            raise UnsupportedNodeError("the type of a statistic is not supported")
        found.append(n.reshape(n.cast(value, type.dtype), type.dims))
    return found


@torch_op("aten.native_group_norm.default")
def native_group_norm(
    n: Node,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    batch: Dim,
    channels: Dim,
    pixels: Dim,
    count: int,
    epsilon: float,
) -> list[Value]:
    y = group_norm(n, x, count, scale, bias, epsilon)
    return _with_statistics(n, y, lib.grouped(n, x, count), (2,), epsilon)


@torch_op("aten.layer_norm.default")
def layer_norm(
    n: Node,
    x: Value,
    shape: Sequence[Dim],
    scale: Value | None,
    bias: Value | None,
    epsilon: float,
    *cudnn: Any,
) -> Value:
    axis = x.type.rank - len(shape)
    tail = x.type.dims[axis:]
    if scale is None:
        if any(not isinstance(d, int) for d in tail):
            normal = lib.standardised(n, x, range(axis, x.type.rank), epsilon)
            return normal if bias is None else n("add", normal, bias)
        scale = n.constant(np.ones(tail, x.type.dtype.numpy))
    return n.emit("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)


@torch_op("aten.native_layer_norm.default")
def native_layer_norm(
    n: Node,
    x: Value,
    shape: Sequence[Dim],
    scale: Value | None,
    bias: Value | None,
    epsilon: float,
) -> list[Value]:
    y = layer_norm(n, x, shape, scale, bias, epsilon)
    return _with_statistics(n, y, x, range(x.type.rank - len(shape), x.type.rank), epsilon)


@torch_op("aten.rms_norm.default")
def rms_norm(
    n: Node, x: Value, shape: Sequence[Dim], scale: Value | None, epsilon: float | None
) -> Value:
    """x / sqrt(mean of squares + epsilon); f16 is computed in f32."""
    wide = n.cast(x, x.type.dtype.accumulator)
    axes = tuple(range(x.type.rank - len(shape), x.type.rank))
    mean = n.emit("reduce_mean", n("mul", wide, wide), axes=axes, keepdims=True)
    least = float(np.spacing(np.ones((), x.type.dtype.numpy))) if epsilon is None else epsilon
    spread = n("sqrt", n("add", mean, least))
    normal = n("div", wide, spread)
    if scale is not None:
        normal = n("mul", normal, n.cast(scale, normal.type.dtype))
    return n.cast(normal, x.type.dtype)


@torch_op("aten._fused_rms_norm.default")
def fused_rms_norm(
    n: Node, x: Value, shape: Sequence[Dim], scale: Value | None, epsilon: float | None
) -> list[Value]:
    y = rms_norm(n, x, shape, scale, epsilon)
    return [y, y]
