"""PyTorch's ops that create tensors: constants, ranges, triangles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.frontends.torch.table import Node, Operand, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType


def filled(n: Node, shape: Sequence[Dim], value: Operand, dtype: DType) -> Value:
    """A tensor filled with one number."""
    if isinstance(value, (Value, DimExpr)):
        return n.broadcast(n.value(value, dtype), shape)
    return n.emit(
        "fill", shape=tuple(shape), value=ConstantData(np.array(value).astype(dtype.numpy))
    )


@torch_op("aten.full.default", "aten.new_full.default")
def full(n: Node, *arguments: Any) -> Value:
    value = next(
        a for a in arguments[1:] if not isinstance(a, (list, tuple, DType)) and a is not None
    )
    return filled(n, n.dims, value, n.dtype)


@torch_op("aten.full_like.default")
def full_like(n: Node, x: Value, value: Operand, dtype: Any = None) -> Value:
    return filled(n, n.dims, value, n.dtype)


@torch_op("aten.fill.Scalar", "aten.fill.Tensor")
def fill(n: Node, x: Value, value: Operand) -> Value:
    return filled(n, n.dims, value, n.dtype)


@torch_op("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
def zeros(n: Node, *arguments: Any) -> Value:
    return filled(n, n.dims, 0, n.dtype)


# what is not written is not defined; zeros are as good as any
@torch_op(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
)
def empty(n: Node, *arguments: Any) -> Value:
    return filled(n, n.dims, 0, n.dtype)


@torch_op("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(n: Node, *arguments: Any) -> Value:
    return filled(n, n.dims, 1, n.dtype)


@torch_op("aten.scalar_tensor.default")
def scalar_tensor(n: Node, value: Operand, dtype: Any = None) -> Value:
    return n.value(value, n.dtype)


@torch_op("aten.arange.start_step")
def arange(n: Node, start: Operand, end: Operand, step: Operand, dtype: Any = None) -> Value:
    (count,) = n.dims
    if n.dtype.is_integer:  # torch counts in the result's type, from what it makes of the bounds
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if isinstance(start, (int, DimExpr)) and isinstance(step, (int, DimExpr)):
        wide = n.dtype if n.dtype in (DType.I32, DType.I64) else DType.I64
        made = n.emit("range", size=count, start=start, step=step, dtype=wide)
        return n.cast(made, n.dtype)
    if isinstance(start, (Value, DimExpr)) or isinstance(step, (Value, DimExpr)):
        raise UnsupportedNodeError("a range whose bounds are tensors is not supported")
    return _line(n, count, float(start), float(step))


@torch_op("aten.arange.default")
def arange_from_zero(n: Node, end: Operand, dtype: Any = None) -> Value:
    return arange(n, 0, end, 1)


@torch_op("aten.arange.start")
def arange_from(n: Node, start: Operand, end: Operand, dtype: Any = None) -> Value:
    return arange(n, start, end, 1)


def _line(n: Node, count: Dim, start: float, step: float) -> Value:
    """start, start + step, ... in the result's dtype, computed in f64 where possible."""
    if isinstance(count, int):
        return n.constant((start + np.arange(count) * step).astype(n.dtype.numpy))
    counter = n.cast(n.emit("range", size=count), DType.F32)
    return n.cast(n("add", n("mul", counter, step), start), n.dtype)


@torch_op("aten.linspace.default")
def linspace(n: Node, start: Operand, end: Operand, steps: Dim, dtype: Any = None) -> Value:
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        raise UnsupportedNodeError("a line whose ends are tensors is not supported")
    if isinstance(steps, int):
        return n.constant(np.linspace(start, end, steps).astype(n.dtype.numpy))
    counter = n.cast(n.emit("range", size=steps), DType.F32)
    last = n("maximum", n.value(dims.add(steps, -1), DType.F32), 1.0)
    return n.cast(n("add", n("mul", n("div", counter, last), float(end - start)), start), n.dtype)


@torch_op("aten.eye.default", "aten.eye.m")
def eye(n: Node, *arguments: Any) -> Value:
    rows, columns = n.dims
    down = n.reshape(n.emit("range", size=rows), (rows, 1))
    return n.cast(n.emit("equal", down, n.emit("range", size=columns)), n.dtype)


@torch_op("aten.tril.default")
def lower_triangle(n: Node, x: Value, diagonal: int) -> Value:
    return n.emit("trilu", x, upper=False, k=diagonal)


@torch_op("aten.triu.default")
def upper_triangle(n: Node, x: Value, diagonal: int) -> Value:
    return n.emit("trilu", x, upper=True, k=diagonal)


@torch_op("aten.tril_indices.default")
def lower_places(n: Node, rows: int, columns: int, offset: int, dtype: Any = None) -> Value:
    return n.constant(np.array(np.tril_indices(rows, offset, columns)).astype(n.dtype.numpy))


@torch_op("aten.triu_indices.default")
def upper_places(n: Node, rows: int, columns: int, offset: int, dtype: Any = None) -> Value:
    return n.constant(np.array(np.triu_indices(rows, offset, columns)).astype(n.dtype.numpy))


@torch_op("aten.hann_window.default", "aten.hann_window.periodic")
def hann_window(n: Node, length: int, periodic: Any = True, dtype: Any = None) -> Value:
    is_periodic = periodic if isinstance(periodic, bool) else True
    angles = np.arange(length) * (2 * math.pi / max(length - (not is_periodic), 1))
    return n.constant((0.5 - 0.5 * np.cos(angles)).astype(n.dtype.numpy))
