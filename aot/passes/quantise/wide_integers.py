"""Expands ops on 64-bit integers for targets with 32-bit kernels.

Sums along a dim on GPUs become sums of bytes, and numbers that extents decide become arithmetic on
the extents. Parts of `legalise-dtypes`, which says where they apply.
"""

from __future__ import annotations

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.integer_ranges import WideOps
from aot.ir.builtin import CONSTANT
from aot.ir.dims import DimExpr
from aot.ir.graph import ConstantData, Function, Op, Value
from aot.ir.record import REGISTRY
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType
from aot.ops.elementwise import CAST
from aot.ops.shape import DIM_VALUES

_PIECE_BITS = 8  # the sum of 2^24 numbers of 8 bits fits 32


def split_sums(function: Function, wide: WideOps) -> bool:
    """Replaces wide sums along a dim by eight sums of 32 bits each.

    GPUs add 64-bit elements in pairs of words, but have no 64-bit reductions.

    Sum k is that of byte k of every element, zero-extended; the result is that of sum k shifted
    left by 8 k bits, added up in 64 bits. It wraps as the original does.

    Returns:
        Whether there was a sum to replace.
    """
    sums = [
        op
        for op in control_ops(function)
        if op in wide.ops
        and (op.name == "reduce_sum" or (op.name == "scan" and op.attrs["combine"] == "sum"))
    ]
    for op in sums:
        _split_sum(op, Rewriter(function).at(op))
    return bool(sums)


def _split_sum(op: Op, rewriter: Rewriter) -> None:
    """Replaces one `reduce_sum`, or `scan` that sums, as `split_sums` says."""
    given = op.operands[0]
    assert given is not None

    def number(value: int) -> Value:
        data = ConstantData(np.array(value, np.uint64), TensorType(DType.U64, ()))
        return rewriter.create(CONSTANT, [], {"value": data}, op.origin).result

    def make(name: str, a: Value, b: Value) -> Value:
        return rewriter.create(REGISTRY[name], [a, b], {}, op.origin).result

    x = as_dtype(rewriter, given, DType.U64, op.origin)
    total: Value | None = None
    for first in range(0, 64, _PIECE_BITS):
        piece = make(
            "bit_and", make("shift_right", x, number(first)), number((1 << _PIECE_BITS) - 1)
        )
        piece = cast_to(rewriter, piece, DType.U32, op.origin)
        part = rewriter.create(op.record, [piece], op.attrs, op.origin).result
        part = make("shift_left", cast_to(rewriter, part, DType.U64, op.origin), number(first))
        total = part if total is None else make("add", total, part)
    assert total is not None
    rewriter.replace_op(op, [as_dtype(rewriter, total, given.type.dtype, op.origin)])


def split_dims(function: Function, wide: WideOps) -> bool:
    """Replaces each `dim_values` that 32 bits may not hold by arithmetic in 64 bits on the extents
    in it: a kernel is given extents of 32 bits.

    Returns:
        Whether there was one to replace.
    """
    listed = [op for op in control_ops(function) if op in wide.ops and op.record is DIM_VALUES]
    for op in listed:
        rewriter, dims = Rewriter(function).at(op), op.attrs["dims"]
        assert isinstance(dims, tuple)
        parts = [_element(rewriter, dim, op.origin) for dim in dims]
        if len(parts) == 1:
            rewriter.replace_op(op, parts)
        else:
            made = rewriter.create(REGISTRY["concat"], parts, {"axis": 0}, op.origin)
            rewriter.replace_op(op, [made.result])
    return bool(listed)


def _element(rewriter: Rewriter, dim: object, origin: str) -> Value:
    """The value of a dim, i64[1], computed from its expression as a sum of products."""

    def number(value: int) -> Value:
        data = ConstantData(np.array([value], np.int64), TensorType(DType.I64, (1,)))
        return rewriter.create(CONSTANT, [], {"value": data}, origin).result

    def of(name: str, a: Value, b: Value) -> Value:
        return rewriter.create(REGISTRY[name], [a, b], {}, origin).result

    if not isinstance(dim, DimExpr):
        assert isinstance(dim, int)
        return number(dim)
    total = number(dim.constant)
    for atoms, factor in dim.terms:
        term = number(factor)
        for atom in atoms:
            extent = DimExpr((((atom,), 1),), 0)
            listed = rewriter.create(DIM_VALUES, [], {"dims": (extent,)}, origin).result
            term = of("mul", term, listed)
        total = of("add", total, term)
    return total


def cast_to(rewriter: Rewriter, value: Value, to: DType, origin: str) -> Value:
    return rewriter.create(CAST, [value], {"to": to}, origin).result


def as_dtype(rewriter: Rewriter, value: Value, dtype: DType, origin: str) -> Value:
    return value if value.type.dtype is dtype else cast_to(rewriter, value, dtype, origin)
