"""PyTorch's scatters and index writes, which return the whole tensor, with optional reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.torch.ops.elementwise import truth
from aot.frontends.torch.ops.indexing import into_rows, of_truths, one_after_another, scattered
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ir.types import Array, DType

I64 = DType.I64
_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}
# source of the whole's shape or of the indices', how those that meet are reduced
_Write = Callable[[Value, Value, str], Value]


def _nothing(reduce: str, dtype: DType) -> Any:
    """The neutral element of a reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_float:
        return -math.inf if reduce == "amax" else math.inf
    ends = np.iinfo(dtype.numpy)
    return ends.min if reduce == "amax" else ends.max


def _reduced(
    n: Node, x: Value, source: Value, reduce: str, includes_self: bool, write: _Write
) -> Value:
    """`x` with the elements of `source` reduced at their positions, x's own elements included or
    not; a mean of integers is rounded down."""
    if reduce not in _REDUCTIONS:
        raise UnsupportedNodeError(f"reduction {reduce!r} is not supported")
    dtype, source = x.type.dtype, n.cast(source, x.type.dtype)
    if dtype is DType.BOOL:
        kind = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
        return of_truths(n, x, source, lambda a, b: _reduced(n, a, b, kind, includes_self, write))
    if includes_self and reduce != "mean":
        return write(x, source, _REDUCTIONS[reduce])
    zeros = n.emit("fill", shape=x.type.dims, value=ConstantData(np.zeros((), np.int64)))
    ones = n.emit("fill", shape=source.type.dims, value=ConstantData(np.ones((), np.int64)))
    count = write(zeros, ones, "add")
    is_met = n("less", 0, count)
    base = x
    if not includes_self:
        base = n("where", is_met, n.value(_nothing(reduce, dtype), dtype), x)
    made = write(base, source, _REDUCTIONS[reduce])
    if reduce != "mean":
        return made
    whole = n("add", count, 1) if includes_self else n("maximum", count, 1)
    divisor = n.cast(whole, dtype)
    quotient = n.emit("div", made, divisor)
    if not dtype.is_float:
        rest = n.emit("sub", made, n.emit("mul", quotient, divisor))
        quotient = n("where", n("less", rest, 0), n("sub", quotient, 1), quotient)
    return n.emit("where", is_met, quotient, x)


@torch_op("aten.scatter_reduce.two")
def scatter_reduce(
    n: Node, x: Value, dim: int, indices: Value, source: Value, reduce: str, includes_self: bool
) -> Value:
    def write(base: Value, updates: Value, reduction: str) -> Value:
        return scattered(n, base, dim, indices, updates, reduction)

    return _reduced(n, x, source, reduce, includes_self, write)


@torch_op("aten.index_reduce.default")
def index_reduce(
    n: Node, x: Value, dim: int, indices: Value, source: Value, reduce: str, includes_self: bool
) -> Value:
    def write(base: Value, updates: Value, reduction: str) -> Value:
        return into_rows(n, base, dim, indices, updates, reduction)

    return _reduced(n, x, source, reduce, includes_self, write)


@torch_op("aten.masked_scatter.default")
def masked_scatter(n: Node, x: Value, mask: Value, source: Value) -> Value:
    """masked_scatter: consecutive source elements, where the mask holds."""
    dims = n.dims
    holds = n.broadcast(truth(n, mask), dims)
    flat = n.reshape(n.cast(source, x.type.dtype), (source.type.element_count,))
    values = n.reshape(one_after_another(n, holds, flat), dims)
    return n.emit("where", holds, values, n.broadcast(x, dims))


@torch_op("aten.put.default")
def put(n: Node, x: Value, indices: Value, source: Value, accumulate: bool) -> Value:
    """aten.put: writes at flat indices; negative ones count from the end."""
    count = x.type.element_count
    flat = n.reshape(x, (count,))
    places = n.cast(n.reshape(indices, (indices.type.element_count,)), I64)
    updates = n.reshape(n.cast(source, x.type.dtype), places.type.dims)
    made = scattered(n, flat, 0, places, updates, "add" if accumulate else "none")
    return n.reshape(made, x.type.dims)


def _in_places(n: Node, x: Value, places: Array, source: Value) -> Value:
    """`x` with source elements at known flat positions."""
    n.check_computed(places.size, "its table of places")
    count = x.type.element_count
    flat = n.reshape(x, (count,))
    updates = n.reshape(n.cast(source, x.type.dtype), (places.size,))
    at = n.constant(places.reshape(-1).astype(np.int64))
    made = n.emit("scatter_elements", flat, at, updates, axis=0, reduction="none")
    return n.reshape(made, x.type.dims)


@torch_op("aten.diagonal_scatter.default")
def diagonal_scatter(
    n: Node, x: Value, source: Value, offset: int = 0, a: int = 0, b: int = 1
) -> Value:
    shape = static_extents(x.type.dims, "an extent")
    numbers = np.arange(math.prod(shape)).reshape(shape)
    places = numbers.diagonal(offset, n.axis(a, len(shape)), n.axis(b, len(shape)))
    return _in_places(n, x, places, source)


@torch_op("aten.as_strided_scatter.default")
def as_strided_scatter(
    n: Node,
    x: Value,
    source: Value,
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    offset: Dim | None = None,
) -> Value:
    """as_strided_scatter: x with `source` written by strides; the last write to a position
    counts."""
    start, *known = static_extents([offset or 0, *shape, *strides], "a stride")
    places = np.full((), start, np.int64)
    for extent, stride in zip(known[: len(shape)], known[len(shape) :], strict=True):
        places = places[..., None] + np.arange(extent) * stride
    return _in_places(n, x, places, source)
