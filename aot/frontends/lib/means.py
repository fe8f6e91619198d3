"""Means of integers, as sums and a quotient."""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib.builder import GraphBuilder
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType


def integer_mean(b: GraphBuilder, x: Value, axes: Sequence[int], *, keepdims: bool) -> Value:
    """The mean of integers over `axes`, summed in 64 bits and truncated towards zero; 0 for no
    elements."""
    dtype = x.type.dtype
    wide = dtype if dtype.bits == 64 else DType.I64
    total = b.emit("reduce_sum", b.cast(x, wide), axes=tuple(axes), keepdims=keepdims)
    count = b.emit("dim_values", dims=(dims.product([x.type.dims[a] for a in axes]),))
    return b.cast(b.emit("div", total, b.cast(b.reshape(count, ()), wide)), dtype)
