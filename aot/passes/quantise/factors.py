"""Shared definitions of the quantisation rules: quantised factors and their parameters.

Owns no rule. A factor is an operand of a contraction that stands for integers of 8 or 16 bits: the
result of `dequantize`, or integers less their zero point in i32.
"""

from __future__ import annotations

import numpy as np

from aot.base.records import dataclass
from aot.ir.graph import ConstantData, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType
from aot.ops.elementwise import ADD, CAST, SUB
from aot.ops.quantization import DEQUANTIZE
from aot.passes.simplify.rewriting import constant_of, definer

F32, I8, I16, I32, U8 = DType.F32, DType.I8, DType.I16, DType.I32, DType.U8
LIMIT = 1 << 31  # of sums in i32
MAX_STEPS = 8  # how far a value is looked into
_FOLDED_KINDS = (Kind.MOVEMENT, Kind.VIEW, Kind.ELEMENTWISE)


def known(value: Value | None, depth: int = MAX_STEPS) -> Array | None:
    """The elements of a constant, or of ops that fold to one; None if unknown."""
    data = constant_of(value)
    if data is not None:
        return data.logical
    op = None if value is None else value.op
    if op is None or depth == 0 or not op.operands or op.record.kind not in _FOLDED_KINDS:
        return None
    if op.record.reference is None or not op.result.type.is_static:
        return None
    inputs: list[Array | None] = []
    for operand in op.operands:
        found = None if operand is None else known(operand, depth - 1)
        if operand is not None and found is None:
            return None
        inputs.append(found)
    (result,) = op.record.reference(call_of(op, is_exact=True), inputs)
    return np.asarray(result)


def known_number(value: Value | None) -> float | None:
    """The number that all elements of a known value equal; None if there is none."""
    found = known(value)
    if found is None or found.size == 0:
        return None
    first = found.reshape(-1)[0]
    return float(first) if bool((found == first).all()) else None


def is_one_number(value: Value | None) -> bool:
    """Whether a parameter is absent, or a single number for the whole tensor."""
    return value is None or value.type.element_count == 1


def same(a: Value | None, b: Value | None) -> bool:
    """Whether two parameters are known to be equal, where an absent zero point is 0."""
    if a is b:
        return True
    first, second = (np.zeros((), np.int32) if v is None else known(v) for v in (a, b))
    if first is None or second is None:
        return False
    if first.size == second.size == 1:
        return bool(first.reshape(()) == second.reshape(()))
    return first.shape == second.shape and bool((first == second).all())


def constant(op: Op, rewriter: Rewriter, array: Array) -> Value:
    """Inserts a constant before `op`."""
    return insert_constant(rewriter, ConstantData(np.asarray(array, order="C")), op.origin)


def cast(op: Op, rewriter: Rewriter, value: Value, to: DType) -> Value:
    if value.type.dtype is to:
        return value
    return rewriter.create(CAST, [value], {"to": to}, op.origin).result


def add_number(op: Op, rewriter: Rewriter, total: Value | None, addend: Array) -> Value:
    """`total` (0 if absent) plus a constant, in i32, folded into `total` where that is or ends with
    a constant."""
    data = constant_of(total)
    if total is None or data is not None:
        known_part = 0 if data is None else data.logical.astype(np.int64)
        return constant(op, rewriter, (addend.astype(np.int64) + known_part).astype(np.int32))
    inner = definer(total, ADD)
    before = None if inner is None else known(inner.operands[1])
    if inner is not None and before is not None and inner.operands[0] is not None:
        total, addend = inner.operands[0], addend + before.astype(np.int64)
    wrapped = constant(op, rewriter, addend.astype(np.int64).astype(np.int32))
    return rewriter.create(ADD, [total, wrapped], {}, op.origin).result


@dataclass(frozen=True)
class Stored:
    """A quantised tensor: its numbers are `(values - zero_point) * scale`.

    Attributes:
        values: of 8 or 16 bits; where they are known also of 32 bits, which 8 hold if their zero
            point is not known.
        zero_point: in any integer dtype; None is 0.
        scale: None where they stand for whole numbers.
        numbers: the values less their zero point, where both are known.
    """

    values: Value
    zero_point: Value | None
    scale: Value | None
    numbers: Array | None

    @property
    def zero(self) -> int | None:
        """The zero point as a known single number; None otherwise."""
        if self.zero_point is None:
            return 0
        found = known_number(self.zero_point)
        return None if found is None else int(found)

    @property
    def largest(self) -> int:
        """An upper bound on the magnitude of values minus zero point."""
        if self.numbers is not None:
            return int(np.abs(self.numbers).max(initial=0))
        info = np.iinfo(self.values.type.dtype.numpy)
        zero = self.zero
        if zero is None:
            return int(info.max) - int(info.min)
        return max(int(info.max) - zero, zero - int(info.min))


def stored_of(value: Value | None) -> Stored | None:
    """The quantised tensor that `value` is dequantised from, or centred from in i32; None for
    others.
    """
    if value is None:
        return None
    op = definer(value, DEQUANTIZE)
    if op is not None:
        x, scale, zero = [*op.operands, None][:3]
        return None if x is None else _stored(x, zero, scale)
    if value.type.dtype is not I32:
        return None
    found = known(value)
    if found is not None:
        return Stored(value, None, None, found.astype(np.int64))
    minus = definer(value, SUB)
    if minus is not None:
        x, zero = (_before_cast(v) for v in minus.operands)
        return None if x is None else _stored(x, zero, None)
    narrow = _before_cast(value)
    return None if narrow is None or narrow is value else _stored(narrow, None, None)


def _before_cast(value: Value | None) -> Value | None:
    """The narrow integers (16 bits at most) that an i32 value was widened from, else the value
    itself."""
    op = definer(value, CAST)
    inner = None if op is None else op.operands[0]
    if inner is not None and inner.type.dtype.is_integer and inner.type.dtype.bits <= 16:
        return inner
    return value


def _stored(values: Value, zero: Value | None, scale: Value | None) -> Stored | None:
    numbers, start = known(values), known(zero)
    if numbers is not None and (zero is None or start is not None):
        numbers = numbers.astype(np.int64) - (0 if start is None else start.astype(np.int64))
    elif values.type.dtype.bits > 16 and not _are_bytes(numbers):
        return None
    else:
        numbers = None
    return Stored(values, zero, scale, numbers)


def _are_bytes(array: Array | None) -> bool:
    """Whether a known array fits 8 bits, signed or unsigned."""
    if array is None:
        return False
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    return (low >= 0 and high <= 255) or (low >= -128 and high <= 127)
