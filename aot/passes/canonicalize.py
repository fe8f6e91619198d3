"""canonicalize: one spelling for what can be written in several ways; nothing that does nothing.

Requires: nothing.
Ensures: no rule of `RULES` applies anywhere.
Never: changes a result by a bit (a NaN may change which NaN it is), or makes a program longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aot.errors import InternalError
from aot.ir.core import Attr, ConstantData, Function, Module, Op, Rewriter, Value
from aot.ir.types import DType
from aot.ops import OpRecord, elementwise, movement, selection
from aot.ops.structure import CONSTANT
from aot.passes.base import Pass, PassContext

MAX_STEPS = 64  # for one op; a chain of rules is short, so that more means that two undo each other


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count("canonicalize", "rewritten", canonicalize(function))


def canonicalize(function: Function) -> int:
    """Applies the rules to one function; gives how often one did.

    A rule looks at an op and at what defines its operands. Those come before it and are done, and
    what a rule makes is looked at next, so that one walk suffices.
    """
    rewritten = 0
    for op in function.walk():
        current: Op | None = op
        for _ in range(MAX_STEPS):
            fresh = _apply(current, function) if current is not None else None
            if fresh is None:
                break
            rewritten += 1
            current = fresh.op
        else:
            raise InternalError(f"rules of canonicalize go in circles at {op}")
    return rewritten


def _apply(op: Op, function: Function) -> Value | None:
    """The value that replaced the result of `op`, if a rule did."""
    for rule in _BY_NAME.get(op.name, ()):
        fresh = rule.rewrite(op, Rewriter(function).at(op))
        if fresh is not None:
            Rewriter(function).replace_op(op, [fresh])
            return fresh
    return None


Rewrite = Callable[[Op, Rewriter], Value | None]


@dataclass(frozen=True)
class Rule:
    """`rewrite` gives what replaces the op's only result, of the same type, or None."""

    record: OpRecord
    equation: str
    rewrite: Rewrite


def _like(op: Op, value: Value | None) -> Value | None:
    """`value` where it can stand for the result of `op`."""
    return value if value is not None and value.type == op.result.type else None


def _definer(op: Op, record: OpRecord, operand: int = 0) -> Op | None:
    """The op that defines an operand, if it is one of `record`."""
    value = op.operands[operand]
    found = None if value is None else value.op
    return found if found is not None and found.record is record else None


def _constant(value: Value | None) -> ConstantData | None:
    if value is None or value.op is None or value.op.record is not CONSTANT:
        return None
    data = value.op.attrs["value"]
    return data if isinstance(data, ConstantData) else None


def _is_all(value: Value | None, number: float) -> bool:
    """Whether `value` is a constant all of whose elements are `number`, the sign of 0 included."""
    data = _constant(value)
    if data is None or data.array.size == 0:
        return False
    wanted = np.array(number).astype(data.array.dtype)
    flat = data.array.reshape(-1)
    return bool(flat[0] == wanted and (flat == wanted).all()
                and (number != 0 or wanted.dtype.kind != "f"
                     or (np.signbit(flat) == np.signbit(wanted)).all()))


def _make(op: Op, rewriter: Rewriter, record: OpRecord, *operands: Value | None,
          **attrs: Attr) -> Value | None:
    """A fresh op in place of `op`; None if its result would not have the same type."""
    call = record.call([None if v is None else v.type for v in operands], attrs, op.origin)
    if call.result_types != (op.result.type,):
        return None
    rewriter.function.assumptions.update(dict.fromkeys(call.assumptions))
    return rewriter.insert(Op(record, operands, call.attrs, call.result_types, (),
                              op.origin)).result


# what does nothing


def _identity(op: Op, _: Rewriter) -> Value | None:
    return _like(op, op.operands[0])


def _same_type_slice(op: Op, _: Rewriter) -> Value | None:
    steps = op.attrs["steps"]
    is_forward = isinstance(steps, tuple) and all(step == 1 for step in steps)
    return _like(op, op.operands[0]) if is_forward else None


def _identity_transpose(op: Op, _: Rewriter) -> Value | None:
    perm = op.attrs["perm"]
    is_identity = isinstance(perm, tuple) and perm == tuple(range(len(perm)))
    return _like(op, op.operands[0]) if is_identity else None


def _without_padding(op: Op, _: Rewriter) -> Value | None:
    pads = op.attrs["pads"]
    is_none = isinstance(pads, tuple) and all(p == 0 for p in pads)
    return _like(op, op.operands[0]) if is_none else None


def _only_part(op: Op, _: Rewriter) -> Value | None:
    return _like(op, op.operands[0]) if len(op.operands) == 1 else None


def _neutral(number: float, float_number: float) -> Rewrite:
    """x op number -> x, where floats need `float_number`."""

    def rewrite(op: Op, _: Rewriter) -> Value | None:
        wanted = float_number if op.result.type.dtype.is_float else number
        return _like(op, op.operands[0]) if _is_all(op.operands[1], wanted) else None

    return rewrite


def _same_operands(first: int, second: int) -> Rewrite:
    def rewrite(op: Op, _: Rewriter) -> Value | None:
        is_same = op.operands[first] is op.operands[second]
        return _like(op, op.operands[first]) if is_same else None

    return rewrite


# two of a kind


def _involution(op: Op, _: Rewriter) -> Value | None:
    inner = _definer(op, op.record)
    return None if inner is None else _like(op, inner.operands[0])


def _idempotent(op: Op, _: Rewriter) -> Value | None:
    inner = _definer(op, op.record)
    return None if inner is None else _like(op, inner.result)


def _skip_inner(op: Op, rewriter: Rewriter) -> Value | None:
    inner = _definer(op, op.record)
    return None if inner is None else _make(op, rewriter, op.record, inner.operands[0], **op.attrs)


def _skip_neg(op: Op, rewriter: Rewriter) -> Value | None:
    inner = _definer(op, elementwise.NEG)
    return None if inner is None else _make(op, rewriter, op.record, inner.operands[0])


def _join_transposes(op: Op, rewriter: Rewriter) -> Value | None:
    inner = _definer(op, op.record)
    if inner is None:
        return None
    outer_perm, inner_perm = op.attrs["perm"], inner.attrs["perm"]
    assert isinstance(outer_perm, tuple) and isinstance(inner_perm, tuple)
    joined = tuple(inner_perm[d] for d in outer_perm if isinstance(d, int))
    return _make(op, rewriter, op.record, inner.operands[0], perm=joined)


def _skip_exact_cast(op: Op, _: Rewriter) -> Value | None:
    inner = _definer(op, op.record)
    if inner is None:
        return None
    value = inner.operands[0]
    is_kept = value is not None and is_exact_cast(value.type.dtype, inner.result.type.dtype)
    return _like(op, value) if is_kept else None


def is_exact_cast(old: DType, wide: DType) -> bool:
    """Whether every value of `old` is one of `wide`, so that casting there and back is nothing."""
    if old is DType.BOOL or old is wide:
        return True
    return wide is not DType.BOOL and bool(np.can_cast(old.numpy, wide.numpy, "safe"))


# another spelling


def _constant_last(op: Op, rewriter: Rewriter) -> Value | None:
    a, b = op.operands
    if _constant(a) is None or _constant(b) is not None:
        return None
    return _make(op, rewriter, op.record, b, a, **op.attrs)


def _transpose_to_reshape(op: Op, rewriter: Rewriter) -> Value | None:
    perm, value = op.attrs["perm"], op.operands[0]
    assert isinstance(perm, tuple) and value is not None
    moved = [d for d in perm if isinstance(d, int) and value.type.dims[d] != 1]
    if moved != sorted(moved) or value.type.layout is not None:
        return None
    return _make(op, rewriter, movement.RESHAPE, value, shape=op.result.type.dims)


def _square(op: Op, rewriter: Rewriter) -> Value | None:
    if not _is_all(op.operands[1], 2):
        return None
    return _make(op, rewriter, elementwise.MUL, op.operands[0], op.operands[0])


def _swap_where(op: Op, rewriter: Rewriter) -> Value | None:
    inner = _definer(op, elementwise.NOT)
    return None if inner is None else _make(op, rewriter, op.record, inner.operands[0],
                                            op.operands[2], op.operands[1])


RULES: tuple[Rule, ...] = (
    Rule(movement.RESHAPE, "reshape(x) of x's dims -> x", _identity),
    Rule(movement.RESHAPE, "reshape(reshape(x)) -> reshape(x)", _skip_inner),
    Rule(movement.TRANSPOSE, "transpose(x) in x's order -> x", _identity_transpose),
    Rule(movement.TRANSPOSE, "transpose(transpose(x, p), q) -> transpose(x, p[q])",
         _join_transposes),
    Rule(movement.TRANSPOSE, "transpose(x) that moves extents of 1 only -> reshape(x)",
         _transpose_to_reshape),
    Rule(movement.BROADCAST_TO, "broadcast_to(x) of x's dims -> x", _identity),
    Rule(movement.BROADCAST_TO, "broadcast_to(broadcast_to(x)) -> broadcast_to(x)", _skip_inner),
    Rule(movement.SLICE, "x[0:n:1] -> x", _same_type_slice),
    Rule(movement.PAD, "pad(x) by nothing -> x", _without_padding),
    Rule(selection.CONCAT, "concat(x) -> x", _only_part),
    Rule(elementwise.CAST, "cast(x) to x's dtype -> x", _identity),
    Rule(elementwise.CAST, "cast(cast(x, wide), narrow) -> x, where x is narrow and wide holds it",
         _skip_exact_cast),
    *(Rule(record, f"{record.name}(c, x) -> {record.name}(x, c)", _constant_last)
      for record in (elementwise.ADD, elementwise.MUL, elementwise.MINIMUM, elementwise.MAXIMUM,
                     elementwise.EQUAL, elementwise.AND, elementwise.OR, elementwise.XOR)),
    # -0 + 0 is 0, but x + -0 is x and x - 0 is x for every x
    Rule(elementwise.ADD, "x + 0 -> x; of floats x + -0 -> x", _neutral(0, -0.0)),
    Rule(elementwise.SUB, "x - 0 -> x", _neutral(0, 0.0)),
    Rule(elementwise.MUL, "x * 1 -> x", _neutral(1, 1.0)),
    Rule(elementwise.DIV, "x / 1 -> x", _neutral(1, 1.0)),
    Rule(elementwise.POW, "pow(x, 1) -> x", _neutral(1, 1.0)),
    # a float's square is exact in twice its bits, so that both round it once
    Rule(elementwise.POW, "pow(x, 2) -> x * x", _square),
    Rule(elementwise.NEG, "-(-x) -> x", _involution),
    Rule(elementwise.NOT, "not not x -> x", _involution),
    *(Rule(record, f"{record.name}({record.name}(x)) -> {record.name}(x)", _idempotent)
      for record in (elementwise.RELU, elementwise.ABS, elementwise.FLOOR, elementwise.CEIL,
                     elementwise.ROUND)),
    Rule(elementwise.ABS, "|-x| -> |x|", _skip_neg),
    *(Rule(record, f"{record.name}(x, x) -> x", _same_operands(0, 1))
      for record in (elementwise.MINIMUM, elementwise.MAXIMUM, elementwise.AND, elementwise.OR)),
    Rule(elementwise.WHERE, "where(c, x, x) -> x", _same_operands(1, 2)),
    Rule(elementwise.WHERE, "where(not c, a, b) -> where(c, b, a)", _swap_where),
)

_BY_NAME: dict[str, list[Rule]] = {}
for _rule in RULES:
    _BY_NAME.setdefault(_rule.record.name, []).append(_rule)

CANONICALIZE = Pass("canonicalize", run, __doc__)
