"""Normalisations over channels, groups and spatial dims, and norms, by smaller ops."""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib.builder import GraphBuilder
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType


def channelwise(b: GraphBuilder, x: Value, vector: Value) -> Value:
    """A per-channel vector, reshaped to broadcast to x [N, C, spatial...]."""
    return b.reshape(vector, (*vector.type.dims, *[1] * (x.type.rank - 2)))


def scaled(b: GraphBuilder, normal: Value, scale: Value, bias: Value) -> Value:
    """A normalised value [N, C, spatial...] times a scale plus a bias, both per channel [C]."""
    product = b.emit("mul", normal, channelwise(b, normal, scale))
    return b.emit("add", product, channelwise(b, normal, bias))


def batch_normalization(
    b: GraphBuilder,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    epsilon: float,
) -> Value:
    """Batch normalisation of x [N, C, spatial...] by given statistics [C]: one factor and one
    addend per channel, computed in the statistics' dtype."""
    dtype = variance.type.dtype
    spread = b.emit("sqrt", b.emit("add", variance, epsilon))
    factor = b.emit("div", b.cast(scale, dtype), spread)
    shift = b.emit("sub", b.cast(bias, dtype), b.emit("mul", mean, factor))
    factor = channelwise(b, x, b.cast(factor, x.type.dtype))
    shift = channelwise(b, x, b.cast(shift, x.type.dtype))
    return b.emit("add", b.emit("mul", x, factor), shift)


def standardised(b: GraphBuilder, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over `axes`; f16 is computed in f32, as squares need
    its range."""
    dtype = x.type.dtype
    wide = b.cast(x, DType.F32) if dtype is DType.F16 else x
    mean = b.emit("reduce_mean", wide, axes=tuple(axes), keepdims=True)
    centred = b.emit("sub", wide, mean)
    variance = b.emit(
        "reduce_mean", b.emit("mul", centred, centred), axes=tuple(axes), keepdims=True
    )
    spread = b.emit("sqrt", b.emit("add", variance, epsilon))
    return b.cast(b.emit("div", centred, spread), dtype)


def rms_norm(b: GraphBuilder, x: Value, scale: Value | None, axis: int, epsilon: float) -> Value:
    """x / sqrt(mean(x^2) + epsilon) * scale, with the mean over the dims from `axis` on, which are
    the dims of `scale`; computed in f32 at least.
    """
    dtype = x.type.dtype
    wide = b.cast(x, DType.F32) if dtype.bits < 32 else x
    axes = tuple(range(axis, x.type.rank))
    mean = b.emit("reduce_mean", b.emit("mul", wide, wide), axes=axes, keepdims=True)
    spread = b.emit("sqrt", b.emit("add", mean, epsilon))
    normal = b.emit("div", wide, spread)
    if scale is not None:
        normal = b.emit("mul", normal, b.cast(scale, wide.type.dtype))
    return b.cast(normal, dtype)


def grouped(b: GraphBuilder, x: Value, count: int) -> Value:
    """Reshapes x [N, C, spatial...] to [N, count, the rest]; `count` must divide C."""
    batch, channels, *spatial = x.type.dims
    in_a_group = dims.floor_divide(channels, count)
    return b.reshape(x, (batch, count, dims.product([in_a_group, *spatial])))


def powers(b: GraphBuilder, x: Value, p: float) -> Value:
    """|x|^p for p > 0."""
    if p == 2:
        return b.emit("mul", x, x)
    size = b.emit("abs", x)
    return size if p == 1 else b.emit("pow", size, p)


def root(b: GraphBuilder, x: Value, p: float) -> Value:
    """The p-th root of non-negative x."""
    if p == 2:
        return b.emit("sqrt", x)
    return x if p == 1 else b.emit("pow", x, 1 / p)


def norm(b: GraphBuilder, x: Value, axes: Sequence[int], p: float) -> Value:
    """The p-norm of x over `axes`, which are kept with extent 1."""
    total = b.emit("reduce_sum", powers(b, x, p), axes=tuple(axes), keepdims=True)
    return root(b, total, p)


def local_response_normalization(
    b: GraphBuilder, x: Value, size: int, alpha: float, beta: float, bias: float
) -> Value:
    """x [N, C, spatial...] / (bias + alpha * mean of the squares of `size` channels around each,
    zeros outside included) ** beta."""
    n, channels, *rest = x.type.dims
    squares = b.reshape(b.emit("mul", x, x), (n, 1, channels, dims.product(rest)))
    before = (size - 1) // 2
    mean = b.emit(
        "average_pool",
        squares,
        kernel=(size, 1),
        strides=(1, 1),
        dilations=(1, 1),
        pads=(before, 0, size - 1 - before, 0),
        count_include_pad=True,
    )
    scaled = b.emit("mul", b.reshape(mean, x.type.dims), alpha)
    base = b.emit("add", scaled, bias)
    return b.emit("div", x, b.emit("pow", base, beta))
