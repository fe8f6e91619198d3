"""What rules of algebra are written with: who uses a value, what folds, which number it is.

Owns no rule.
"""

from __future__ import annotations

import numpy as np

from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType
from aot.ops import OpRecord, elementwise, movement
from aot.passes.simplify.rewriting import constant_of, definer
from aot.records import dataclass

MAX_FACTORS = 6
MAX_LEFT = 8  # uses of a value among which those that count are looked for
MAX_STEPS = 8  # how far rules look back, in models that may be chains of a million ops


def sole(value: Value | None, record: OpRecord) -> Op | None:
    """The op of `record` that defines `value` for one user alone; what another rule left behind,
    which nothing uses, is no user."""
    op = definer(value, record)
    if op is None or value is None or len(value.uses) > MAX_LEFT:
        return None
    alive = [u for u, _ in value.uses if not u.results or any(r.uses for r in u.results)]
    return op if len(alive) == 1 else None


def is_along(value: Value | None, rank: int, axis: int) -> bool:
    """Whether `value` is a float constant that varies along dim `axis` of a tensor at most."""
    if value is None or not will_fold(value) or value.type.rank > rank:
        return False
    first = rank - value.type.rank
    return all(extent == 1 or first + d == axis for d, extent in enumerate(value.type.dims))


def will_fold(value: Value | None, depth: int = MAX_STEPS) -> bool:
    """Whether `value` is a float constant, or one that rules are making out of constants."""
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
    """`value` in another shape of as many elements."""
    inner = definer(value, movement.RESHAPE)
    if inner is not None and inner.operands[0] is not None:
        value = inner.operands[0]
    if value.type.dims == shape:
        return value
    return emit(op, rewriter, movement.RESHAPE, value, shape=shape)


def shaped(op: Op, rewriter: Rewriter, value: Value, shape: tuple[Dim, ...]) -> Value:
    """`value` as `shape`, where it has as many elements, or one element that is repeated."""
    if value.type.element_count == 1 and any(d != 1 for d in shape):
        one = emit(op, rewriter, movement.RESHAPE, value, shape=(1,) * len(shape))
        return emit(op, rewriter, movement.BROADCAST_TO, one, shape=shape)
    return emit(op, rewriter, movement.RESHAPE, value, shape=shape)


def number_of(value: Value | None, depth: int = MAX_STEPS) -> float | None:
    """The number that every element of a float constant is, or of one that rules make."""
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


def is_number(found: float, wanted: float, dtype: DType) -> bool:
    """Whether a model's number, rounded to `dtype` a few times, is `wanted`."""
    return abs(found - wanted) <= 2 * float(np.finfo(dtype.numpy).eps) * abs(wanted)


def scalar(op: Op, rewriter: Rewriter, number: float, dtype: DType) -> Value:
    """A constant of rank 0."""
    return emit(op, rewriter, CONSTANT, value=ConstantData(np.asarray(number, dtype.numpy)))


@dataclass(frozen=True)
class Line:
    """`slope * value + start`."""

    value: Value
    slope: float
    start: float


def line_of(value: Value | None, depth: int = MAX_STEPS) -> Line | None:
    """`value` as a line of what is neither scaled nor shifted by numbers, for this use alone."""
    if value is None:
        return None
    for record in (elementwise.ADD, elementwise.MUL):
        op = sole(value, record)
        if op is None:
            continue
        for inner, other in (op.operands, op.operands[::-1]):
            number = number_of(other)
            line = line_of(inner, depth - 1) if number is not None and depth else None
            if line is None or line.value.type.dims != value.type.dims or number is None:
                continue
            if record is elementwise.ADD:
                return Line(line.value, line.slope, line.start + number)
            return Line(line.value, line.slope * number, line.start * number)
    return Line(value, 1.0, 0.0)


@dataclass(frozen=True)
class Product:
    """`number` times all `factors`."""

    number: float
    factors: tuple[Value, ...]


def product_of(op: Op) -> Product:
    """A `mul` as what it multiplies in the end, through those that only it uses."""
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
