"""Float convolutions with quantised filters, which stay in 8 bits: finds and rewrites them.

A filter's scale is a factor of all that it gives, so that it stands behind the convolution, and
what is left of the filters are small numbers, which kernels widen where they load them.
"""

from __future__ import annotations

import numpy as np

from aot.ir.graph import Op, Value
from aot.ir.record import OpRecord
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType
from aot.ops.contraction import CONV
from aot.ops.elementwise import ADD, MUL
from aot.ops.movement import RESHAPE
from aot.passes.quantise.block_weights import dequantized
from aot.passes.quantise.factors import F32, cast, constant, known


def as_bytes(op: Op, rewriter: Rewriter) -> Value | None:
    """Rewrites a float `conv` with dequantised filters, one scale each, to use the stored numbers:
    (x conv numbers) * scales + bias."""
    x, w, bias = [*op.operands, None][:3]
    if x is None or w is None or x.type.dtype is not F32 or known(x) is not None:
        return None
    found = dequantized(w)
    codes = None if found is None else _per_filter(*found)
    if codes is None:
        return None
    numbers, scales = codes
    one = (1,) * (w.type.rank - 2)

    def make(record: OpRecord, *operands: Value) -> Value:
        return rewriter.create(record, operands, {}, op.origin).result

    right = cast(op, rewriter, constant(op, rewriter, numbers), F32)
    y = rewriter.create(CONV, [x, right], op.attrs, op.origin).result
    y = make(MUL, y, constant(op, rewriter, scales.reshape(-1, *one)))
    if bias is None:
        return y
    along = (*bias.type.dims, *one)
    return make(ADD, y, rewriter.create(RESHAPE, [bias], {"shape": along}, op.origin).result)


def _per_filter(x: Array, scales: Array, zeros: Array | None) -> tuple[Array, Array] | None:
    """(8-bit filters [O, ...], scales [O]); None if a filter has several scales, or its numbers
    need more bits."""
    first = scales.reshape(len(scales), -1)[:, :1]
    if not bool((scales.reshape(len(scales), -1) == first).all()):
        return None
    kept = in_bytes(x, scales, zeros)
    return None if kept is None else (kept, first[:, 0])


def in_bytes(x: Array, scales: Array, zeros: Array | None) -> Array | None:
    """Stored numbers minus zero points, as i8; None where they do not fit."""
    numbers = x.astype(np.int16) - (0 if zeros is None else zeros)
    kept = numbers.astype(DType.I8.numpy)
    return kept if np.array_equal(kept, numbers) else None
