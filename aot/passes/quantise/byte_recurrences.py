"""Recurrent layers with quantised weights, which stay in 8 bits: finds and rewrites them.

The scale of r, one number, is an attribute of the layer, and what is left of r are small numbers,
which kernels widen where they load them. The product with w is a `matmul` of its own, of all steps
at once, whose weights stay in their bits like those of any other.
"""

from __future__ import annotations

from aot.ir.graph import Attr, Op, Value
from aot.ir.record import OpRecord
from aot.ir.rewriter import Rewriter
from aot.ops.contraction import MATMUL
from aot.ops.movement import RESHAPE, TRANSPOSE
from aot.ops.recurrent import R, W, X
from aot.passes.quantise.block_weights import dequantized
from aot.passes.quantise.byte_filters import in_bytes
from aot.passes.quantise.factors import F32, cast, constant


def as_bytes(op: Op, rewriter: Rewriter) -> Op | None:
    """Rewrites an f32 layer whose recurrent weights are a dequantised constant with one scale, to
    use the stored numbers; None for others."""
    x, w, r = op.operands[X], op.operands[W], op.operands[R]
    if x is None or r is None or x.type.dtype is not F32:
        return None
    found = dequantized(r)
    if found is None:
        return None
    numbers, scales = in_bytes(*found), found[1]
    if numbers is None or scales.size == 0 or not bool((scales == scales.flat[0]).all()):
        return None
    operands = list(op.operands)
    operands[R] = cast(op, rewriter, constant(op, rewriter, numbers), F32)
    if w is not None and dequantized(w) is not None:
        operands[X], operands[W] = _product(op, rewriter, x, w), None
    attrs = {**op.attrs, "r_scale": float(scales.flat[0])}
    return rewriter.insert(
        Op(op.record, operands, attrs, [v.type for v in op.results], (), op.origin)
    )


def _product(op: Op, rewriter: Rewriter, x: Value, w: Value) -> Value:
    """The gates' sums over the input of all steps."""

    def make(record: OpRecord, *operands: Value, **attrs: Attr) -> Value:
        return rewriter.create(record, operands, attrs, op.origin).result

    directions, gates, features = w.type.shape
    columns = make(RESHAPE, w, shape=(directions * gates, features))
    return make(MATMUL, x, make(TRANSPOSE, columns, perm=(1, 0)))
