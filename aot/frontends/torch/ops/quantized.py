"""PT2E's quantised ops: tensors are quantised and dequantised around computations, with bounds that
may be narrower than the dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.frontends.torch.table import Node, Operand, UnsupportedNodeError, torch_op
from aot.ir.graph import Value
from aot.ir.types import DType

F32 = DType.F32


def _bounded(n: Node, q: Value, low: Operand, high: Operand) -> Value:
    """q clamped to [low, high], if these are narrower than its dtype's range."""
    info = np.iinfo(q.type.dtype.numpy)
    if not isinstance(low, int) or not isinstance(high, int):
        raise UnsupportedNodeError("bounds that are tensors are not supported")
    if low > info.min:
        q = n("maximum", q, low)
    return n("minimum", q, high) if high < info.max else q


def _parameter(n: Node, given: Operand, dtype: DType) -> Value:
    """A scale or a zero point for a whole tensor."""
    return n.reshape(n.value(given, dtype), ())


def _along(n: Node, given: Value, x: Value, axis: int, dtype: DType) -> Value:
    """A scale or a zero point per index of a dim, shaped to broadcast to x."""
    at = n.axis(axis, x.type.rank)
    return n.reshape(n.cast(given, dtype), (*given.type.dims, *[1] * (x.type.rank - 1 - at)))


def _check(dtype: DType) -> None:
    if dtype.is_float or dtype.bits > 16:
        raise UnsupportedNodeError(f"numbers quantised to {dtype} are not supported")


@torch_op(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize(
    n: Node, x: Value, scale: Operand, zero: Operand, low: Operand, high: Operand, dtype: DType
) -> Value:
    _check(dtype)
    x = n.cast(x, F32)
    zero_point = _parameter(n, zero, dtype)
    return _bounded(
        n, n.emit("quantize", x, _parameter(n, scale, F32), zero_point, to=dtype), low, high
    )


@torch_op("quantized_decomposed.quantize_per_channel.default")
def quantize_channels(
    n: Node, x: Value, scales: Value, zeros: Value, axis: int, low: int, high: int, dtype: DType
) -> Value:
    _check(dtype)
    own = _along(n, scales, x, axis, F32), _along(n, zeros, x, axis, dtype)
    return _bounded(n, n.emit("quantize", n.cast(x, F32), *own, to=dtype), low, high)


@torch_op(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize(n: Node, q: Value, scale: Operand, zero: Operand, *bounds: Any) -> Value:
    dtype = q.type.dtype
    made = n.emit("dequantize", q, _parameter(n, scale, F32), _parameter(n, zero, dtype))
    return n.cast(made, n.dtype)


@torch_op("quantized_decomposed.dequantize_per_channel.default")
def dequantize_channels(
    n: Node, q: Value, scales: Value, zeros: Value | None, axis: int, *bounds: Any
) -> Value:
    zero_points = None if zeros is None else _along(n, zeros, q, axis, q.type.dtype)
    made = n.emit("dequantize", q, _along(n, scales, q, axis, F32), zero_points)
    return n.cast(made, n.dtype)


@torch_op("quantized_decomposed.choose_qparams.tensor")
def choose_parameters(
    n: Node, x: Value, low: int, high: int, epsilon: float, dtype: DType
) -> list[Value]:
    """(scale, zero point) for the range of x, extended to contain 0."""
    axes = tuple(range(x.type.rank))
    x = n.cast(x, F32)
    least = n("minimum", n.emit("reduce_min", x, axes=axes, keepdims=False), 0.0)
    most = n("maximum", n.emit("reduce_max", x, axes=axes, keepdims=False), 0.0)
    scale = n("maximum", n("div", n("sub", most, least), float(high - low)), epsilon)
    zero = n("sub", n.scalar(float(low), F32), n("round", n("div", least, scale)))
    zero = n("minimum", n("maximum", zero, float(low)), float(high))
    types = [t.dtype if t is not None else F32 for t in n.types]
    one = [1] if n.types[0] is not None and n.types[0].rank else []
    return [n.cast(n.reshape(v, one), t) for v, t in zip((scale, zero), types, strict=True)]
