"""Matchers that algebra's rules share: sole users, constants, factors and terms of values.

Owns no rule.
"""

from __future__ import annotations

import math

import numpy as np

from aot.base.records import dataclass
from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType
from aot.ops import OpRecord, elementwise, movement
from aot.passes.simplify.rewriting import constant_of, definer

MAX_FACTORS = 6
MOST_LOST = 4  # bits of a weight that is scaled below the normal numbers, as those of dead filters
MAX_LEFT = 8  # uses of a value among which those that count are looked for
MAX_STEPS = 8  # how far rules look back, in models that may be chains of a million ops


def sole(value: Value | None, record: OpRecord) -> Op | None:
    """The op of `record` that defines `value`, if it has a single live user; else None. Dead ops
    left by other rules don't count."""
    op = definer(value, record)
    if op is None or value is None or len(value.uses) > MAX_LEFT:
        return None
    alive = [u for u, _ in value.uses if not u.results or any(r.uses for r in u.results)]
    return op if len(alive) == 1 else None


def is_along(value: Value | None, rank: int, axis: int) -> bool:
    """Whether `value` is a float constant that varies only along dim `axis` of a tensor of that
    rank."""
    if value is None or not will_fold(value) or value.type.rank > rank:
        return False
    first = rank - value.type.rank
    return all(extent == 1 or first + d == axis for d, extent in enumerate(value.type.dims))


def will_fold(value: Value | None, depth: int = MAX_STEPS) -> bool:
    """Whether `value` is a float constant, or computed from constants by ops that will fold."""
    if value is None or not value.type.dtype.is_float:
        return False
    if constant_of(value) is not None:
        return True
    op = value.op
    if op is None or depth == 0 or not op.operands or op.blocks:
        return False
    return all(will_fold(operand, depth - 1) for operand in op.operands)


def emit(
    op: Op, rewriter: Rewriter, record: OpRecord, *operands: Value | None, **attrs: object
) -> Value:
    return rewriter.create(record, operands, attrs, op.origin).result  # type: ignore[arg-type]


def reshaped(op: Op, rewriter: Rewriter, value: Value, shape: tuple[Dim, ...]) -> Value:
    """`value` reshaped to `shape`."""
    inner = definer(value, movement.RESHAPE)
    if inner is not None and inner.operands[0] is not None:
        value = inner.operands[0]
    if value.type.dims == shape:
        return value
    return emit(op, rewriter, movement.RESHAPE, value, shape=shape)


def shaped(op: Op, rewriter: Rewriter, value: Value, shape: tuple[Dim, ...]) -> Value:
    """`value` as `shape`: reshaped, or its single element broadcast."""
    if value.type.element_count == 1 and any(d != 1 for d in shape):
        one = emit(op, rewriter, movement.RESHAPE, value, shape=(1,) * len(shape))
        return emit(op, rewriter, movement.BROADCAST_TO, one, shape=shape)
    return emit(op, rewriter, movement.RESHAPE, value, shape=shape)


def number_of(value: Value | None, depth: int = MAX_STEPS) -> float | None:
    """The number that all elements of a float tensor equal, if it is a constant or an elementwise
    combination of constants; else None.
    """
    if value is None or depth == 0 or not value.type.dtype.is_float:
        return None
    data = constant_of(value)
    if data is not None:
        flat = data.array.reshape(-1)
        return float(flat[0]) if flat.size and (flat == flat[0]).all() else None
    op = value.op
    if op is None or op.blocks or not op.operands:
        return None
    if op.record in (movement.RESHAPE, movement.BROADCAST_TO):
        return number_of(op.operands[0], depth - 1)
    if op.record.kind is not Kind.ELEMENTWISE or op.record.reference is None:
        return None
    numbers: list[np.ndarray] = []
    for operand in op.operands:
        number = number_of(operand, depth - 1)
        if operand is None or number is None:
            return None
        numbers.append(np.asarray(number, operand.type.dtype.numpy))
    (result,) = op.record.reference(call_of(op, is_exact=True), numbers)
    return float(result)


def number_factor(op: Op) -> tuple[Value, float] | None:
    """(x, number), where `op` multiplies or divides x by a number; None otherwise."""
    a, b = op.operands
    if op.record is elementwise.DIV:
        divisor = number_of(b)
        return (a, 1 / divisor) if a is not None and divisor else None
    for inner, other in ((a, b), (b, a)):
        number = number_of(other)
        if inner is not None and number is not None:
            return inner, number
    return None


@dataclass(frozen=True)
class Sizes:
    """Bounds of the magnitudes of a constant's elements that are neither zero nor subnormal.

    Attributes:
        least: 0 where nothing is known, infinite where there is none of these.
        has_zero: whether an element may be zero.
        has_subnormal: whether one may be subnormal.
    """

    least: float
    largest: float
    has_zero: bool = False
    has_subnormal: bool = False

    def times(self, other: Sizes) -> Sizes:
        zero = self.has_zero or other.has_zero
        subnormal = self.has_subnormal or other.has_subnormal
        if 0 in (self.largest, other.largest):
            return Sizes(math.inf, 0.0, zero, subnormal)
        return Sizes(self.least * other.least, self.largest * other.largest, zero, subnormal)

    def over(self, other: Sizes) -> Sizes | None:
        """Bounds of the quotients; None where the divisor may be zero or subnormal."""
        if other.has_zero or other.has_subnormal or other.least == 0:
            return None
        least, largest = self.least / other.largest, self.largest / other.least
        return Sizes(least, largest, self.has_zero, self.has_subnormal)

    def keeps_bits_in(self, dtype: DType) -> bool:
        """Whether the elements remain normal numbers in `dtype`, or lose at most MOST_LOST bits."""
        info = np.finfo(dtype.numpy)
        is_large = self.least >= float(info.tiny) * 2.0**-MOST_LOST
        return is_large and self.largest <= float(info.max) / 2


def sizes_of(value: Value | None, depth: int = MAX_STEPS) -> Sizes | None:
    """Bounds of a float constant, or of one that rules are making; None where it is not finite or
    not known."""
    if value is None or depth == 0 or not value.type.dtype.is_float:
        return None
    data = constant_of(value)
    if data is not None:
        return _sizes_of(data.array)
    op = value.op
    if op is None or not op.operands:
        return None
    if op.record.kind in (Kind.VIEW, Kind.MOVEMENT) and len(op.operands) == 1:
        return sizes_of(op.operands[0], depth - 1)
    if op.record not in (elementwise.MUL, elementwise.DIV, elementwise.ADD):
        return None
    a, b = (sizes_of(v, depth - 1) for v in op.operands)
    if a is None or b is None:
        return None
    if op.record is elementwise.ADD:
        return Sizes(0.0, a.largest + b.largest, has_zero=True, has_subnormal=True)
    return a.times(b) if op.record is elementwise.MUL else a.over(b)


def _sizes_of(array: Array) -> Sizes | None:
    if array.size == 0:
        return Sizes(math.inf, 0.0)
    # bfloat16 has the exponents of float32
    wide = array.astype(np.float32) if array.dtype.kind != "f" else array
    size, tiny = np.abs(wide), np.finfo(wide.dtype).tiny
    least, largest = float(size.min()), float(size.max())
    if not math.isfinite(largest):
        return None
    if least >= float(tiny):
        return Sizes(least, largest)
    is_normal = size >= tiny
    normal = float(np.where(is_normal, size, np.inf).min())
    is_subnormal = bool(((size > 0) & ~is_normal).any())
    return Sizes(normal, largest, bool((size == 0).any()), is_subnormal)


def may_round(sizes: Sizes, dtype: DType) -> bool:
    """Whether an addend may be so large that it serves to round to a multiple: adding it drops half
    the bits of smaller numbers.
    """
    return sizes.largest >= 2.0 ** ((np.finfo(dtype.numpy).nmant + 1) // 2)


def is_number(found: float, wanted: float, dtype: DType) -> bool:
    """Whether a model's number equals `wanted`, up to a few roundings to `dtype`."""
    return abs(found - wanted) <= 2 * float(np.finfo(dtype.numpy).eps) * abs(wanted)


def scalar(op: Op, rewriter: Rewriter, number: float, dtype: DType) -> Value:
    """Inserts a constant of rank 0."""
    return emit(op, rewriter, CONSTANT, value=ConstantData(np.asarray(number, dtype.numpy)))


@dataclass(frozen=True)
class Line:
    """A linear function of a value: `slope * value + start`."""

    value: Value
    slope: float
    start: float


def line_of(value: Value | None, depth: int = MAX_STEPS) -> Line | None:
    """`value` as a linear function of a value that is itself neither scaled nor shifted;
    intermediate values have no other use."""
    if value is None:
        return None
    plain = Line(value, 1.0, 0.0)
    if depth == 0:
        return plain
    for record in (elementwise.ADD, elementwise.MUL, elementwise.DIV):
        op = sole(value, record)
        if op is None:
            continue
        if record is elementwise.ADD:
            inner, number = op.operands[0], number_of(op.operands[1])
            if number is None:
                inner, number = op.operands[1], number_of(op.operands[0])
            found = None if inner is None or number is None else (inner, number)
        else:
            found = number_factor(op)
        line = None if found is None else line_of(found[0], depth - 1)
        if found is None or line is None or line.value.type.dims != value.type.dims:
            continue
        if record is elementwise.ADD:
            return Line(line.value, line.slope, line.start + found[1])
        return Line(line.value, line.slope * found[1], line.start * found[1])
    return plain


@dataclass(frozen=True)
class Product:
    """A product of values and a number: `number * prod(factors)`."""

    number: float
    factors: tuple[Value, ...]


def product_of(op: Op) -> Product:
    """A `mul` as a product, with nested products of single use flattened."""
    number = 1.0
    factors: list[Value] = []
    stack = list(op.operands)
    while stack:
        value = stack.pop()
        assert value is not None
        constant = number_of(value)
        inner = sole(value, elementwise.MUL)
        if constant is not None:
            number *= constant
        elif inner is not None and len(stack) + len(factors) < MAX_FACTORS:
            stack += inner.operands
        else:
            factors.append(value)
    return Product(number, tuple(factors))
