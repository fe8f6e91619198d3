"""Integer matrix products with a quantised right side computed at run time, as in attention, or
with constant weights on the left.

The right side has no columns that are summed at compile time, so that both zero points are taken
off by sums that the model computes beside: with `w' = w - 128` for a right side of u8, which makes
it i8, `sum((x - z_x) * (w' - z_w)) = sum(x * w') - z_x * sum(w') - z_w * (sum(x) - k * z_x)`. A
term whose zero point is known to be 0 is left out. Owns no product of constant weights from the
right.
"""

from __future__ import annotations

import numpy as np

from aot.ir.graph import Attr, Op, Value
from aot.ir.record import contraction_of
from aot.ir.rewriter import Rewriter
from aot.ir.schedule import DOT_GROUP
from aot.ops.contraction import MATMUL
from aot.ops.elementwise import ADD, CAST, IS_NAN, MUL, SUB, WHERE
from aot.ops.integer_contraction import MATMUL_INTEGER
from aot.ops.movement import RESHAPE
from aot.ops.reduction import REDUCE_SUM, SOFTMAX
from aot.passes.quantise.factors import I8, I32, LIMIT, U8, Stored, cast, constant

# rows from which on a right side that is packed first is worth it
LEAST_ROWS = 24
# what is taken off numbers of u8, so that they are i8
MIDDLE = 128
# ops between a product and the softmax of its attention
_STEPS = 8
_OF_SCORES = (ADD, MUL, WHERE, CAST, RESHAPE, IS_NAN)


def reason_against(op: Op, x: Stored, w: Stored) -> str | None:
    """Why a product of two dequantised operands stays in floats; None if it can become integer."""
    if not fits(op, x, w):
        return "both operands vary"
    contraction = contraction_of(op)
    assert contraction is not None
    if isinstance(contraction.k, int) and contraction.k * x.largest * w.largest >= LIMIT:
        return "sums may exceed 32 bits"
    if _is_of_attention(op):
        return "its attention is computed in floats"
    return None


def fits(op: Op, x: Stored, w: Stored) -> bool:
    """Whether a product has 8-bit operands that dot products of words can sum, and enough rows to
    pay."""
    contraction = contraction_of(op)
    if op.record is not MATMUL or contraction is None or w.numbers is not None:
        return False
    bytes = (U8, I8)
    if w.values.type.dtype not in bytes or x.values.type.dtype not in bytes:
        return False
    k = contraction.k
    if not isinstance(k, int) or k < DOT_GROUP - 1:
        return False
    rows, columns = op.result.type.dims[-2:]
    # a decoder's few rows are multiplied with ever more columns, an encoder's have as many
    return rows >= LEAST_ROWS if isinstance(rows, int) else rows == columns


def _is_of_attention(op: Op) -> bool:
    """Whether a product's softmax feeds another product: attention is a single float kernel that
    stores no scores."""
    value, is_weighed = op.result, False
    for _ in range(_STEPS):
        user = next(iter(value.users), None)
        if user is None or (user.record is not SOFTMAX and user.record not in _OF_SCORES):
            return is_weighed and user is not None and user.record is MATMUL
        is_weighed |= user.record is SOFTMAX
        value = user.result
    return False


def integer_sum(op: Op, rewriter: Rewriter, x: Stored, w: Stored) -> Value:
    """The i32 result of a product for which `fits` holds, zero points subtracted."""
    left, x_zero = x.values, _zero(op, rewriter, x)
    right, w_zero = w.values, _zero(op, rewriter, w)
    if right.type.dtype is U8:
        right = cast(op, rewriter, _less(op, rewriter, cast(op, rewriter, right, I32), MIDDLE), I8)
        w_zero = _number(op, rewriter, 0) if w_zero is None else w_zero
        w_zero = _less(op, rewriter, w_zero, MIDDLE)
        if w.zero == MIDDLE:
            w_zero = None
    total = rewriter.create(MATMUL_INTEGER, [left, right], {}, op.origin).result
    if x_zero is not None:
        sums = summed(op, rewriter, right, right.type.rank - 2)
        term = rewriter.create(MUL, [sums, x_zero], {}, op.origin).result
        total = rewriter.create(SUB, [total, term], {}, op.origin).result
    if w_zero is not None:
        sums = summed(op, rewriter, left, left.type.rank - 1)
        if x_zero is not None:
            k = _number(op, rewriter, _terms(op))
            zeros = rewriter.create(MUL, [x_zero, k], {}, op.origin).result
            sums = rewriter.create(SUB, [sums, zeros], {}, op.origin).result
        term = rewriter.create(MUL, [sums, w_zero], {}, op.origin).result
        total = rewriter.create(SUB, [total, term], {}, op.origin).result
    return total


def _terms(op: Op) -> int:
    contraction = contraction_of(op)
    assert contraction is not None and isinstance(contraction.k, int)
    return contraction.k


def summed(op: Op, rewriter: Rewriter, value: Value, axis: int) -> Value:
    """The i32 sums of 8-bit elements along an axis, which is kept with extent 1."""
    attrs: dict[str, Attr] = {"axes": (axis,), "keepdims": True}
    wide = cast(op, rewriter, value, I32)
    return rewriter.create(REDUCE_SUM, [wide], attrs, op.origin).result


def _zero(op: Op, rewriter: Rewriter, factor: Stored) -> Value | None:
    """A factor's zero point in i32, shaped to broadcast to the product; None where it is 0.

    It is one number, or one for each row of the left side or column of the right one.
    """
    if factor.zero_point is None or factor.zero == 0:
        return None
    if factor.zero is not None:
        return _number(op, rewriter, factor.zero)
    wide = cast(op, rewriter, factor.zero_point, I32)
    if wide.type.element_count != 1:
        return wide
    return rewriter.create(RESHAPE, [wide], {"shape": ()}, op.origin).result


def _number(op: Op, rewriter: Rewriter, number: int) -> Value:
    return constant(op, rewriter, np.asarray(number, np.int32))


def _less(op: Op, rewriter: Rewriter, value: Value, number: int) -> Value:
    away = _number(op, rewriter, number)
    return rewriter.create(SUB, [value, away], {}, op.origin).result
