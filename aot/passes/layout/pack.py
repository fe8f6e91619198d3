"""pack: puts constant weights into the layouts that their op's plan asks for.

Requires: dtypes are legal for the target; constants are folded.
Ensures: every constant operand that a plan wants packed comes through a `pack` op, which folds; so
does one that is computed from a constant element by element, which stays behind the `pack`.
Never: packs a value that is computed at run time, or packs one twice.
"""

from __future__ import annotations

from dataclasses import replace

from aot.analysis.cost.plan import weight_layouts
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout
from aot.ops import pack as pack_op
from aot.passes.base import Pass, PassContext
from aot.passes.simplify.rewriting import relaid
from aot.target.model import Target

_WANTS_WEIGHTS = (Kind.CONTRACTION, Kind.RECURRENCE)


def run(module: Module, context: PassContext) -> None:
    if context.target is not None:
        for function in module.entry_points:
            pack(function, context.target)


def pack(function: Function, target: Target) -> None:
    """Inserts `pack` ops behind constant weights of `function`."""
    packed: dict[tuple[Value, Layout], Value] = {}
    for op in list(function.walk()):
        if op.record.kind in _WANTS_WEIGHTS:
            _pack_operands(function, op, target, packed)


def _pack_operands(
    function: Function, op: Op, target: Target, packed: dict[tuple[Value, Layout], Value]
) -> None:
    call = call_of(op)
    operands = list(op.operands)
    for number, layout in weight_layouts(call, target).items():
        weight = operands[number]
        if weight is None or not _is_stored(weight):
            continue
        if (weight, layout) not in packed:
            assert weight.op is not None
            # beside what it stands for, so that every user comes after it
            place = weight.op.next or op
            packed[weight, layout] = _packed(Rewriter(function).at(place), weight, layout, op)
        operands[number] = packed[weight, layout]
    if operands != op.operands:
        rewriter = Rewriter(function).at(op)
        rewriter.replace_op(op, relaid(op, rewriter, operands))


def _is_stored(value: Value) -> bool:
    """Whether a value is a constant, or computed from one element by element, as by casts and
    scales."""
    if value.op is None:
        return False
    if value.op.record is CONSTANT:
        return value.type.layout is None
    source = _source(value)
    return source is not None and _is_stored(source)


def _source(value: Value) -> Value | None:
    """The only operand that is no constant of fewer elements, of an elementwise op."""
    op = value.op
    assert op is not None
    if op.record.kind is not Kind.ELEMENTWISE or len(op.results) != 1:
        return None
    alike = [v for v in op.operands if v is not None and v.type.dims == value.type.dims]
    others = [v for v in op.operands if v is not None and v not in alike]
    if len(alike) != 1 or not all(v.op is not None and v.op.record is CONSTANT for v in others):
        return None
    return alike[0]


def _packed(rewriter: Rewriter, value: Value, layout: Layout, user: Op) -> Value:
    """A stored value in the layout that `user` wants: its constant is packed, and what is computed
    from that is so again."""
    op = value.op
    assert op is not None
    if op.record is CONSTANT:
        return rewriter.create(pack_op.PACK, [value], {"layout": layout}, user.origin).result
    source = _source(value)
    assert source is not None
    packed = _packed(rewriter, source, layout, user)
    operands = [packed if v is source else v for v in op.operands]
    type = replace(value.type, layout=layout)
    return rewriter.insert(Op(op.record, operands, op.attrs, [type], (), op.origin)).result


PACK = Pass("pack", run, __doc__)
