"""pack: puts constant weights into the layouts that their op's plan asks for.

Requires: dtypes are legal for the target; constants are folded.
Ensures: every constant operand that a plan wants packed comes through a `pack` op, which folds.
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
from aot.ops.elementwise import CAST
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
    rewriter = Rewriter(function).at(op)
    operands = list(op.operands)
    for number, layout in weight_layouts(call, target).items():
        weight = operands[number]
        if weight is None or weight.op is None:
            continue
        cast = weight.op if weight.op.record is CAST else None
        stored = weight if cast is None else cast.operands[0]
        if stored is None or stored.op is None or stored.op.record is not CONSTANT:
            continue
        if stored.type.layout is not None:
            continue
        key = (weight, layout)
        if key not in packed:
            # beside the constant or its cast, so that every user comes after it
            after = weight.op.next
            where = rewriter if after is None else Rewriter(function).at(after)
            made = where.create(pack_op.PACK, [stored], {"layout": layout}, op.origin).result
            packed[key] = made if cast is None else _cast_of(made, cast, where)
        operands[number] = packed[key]
    if operands != op.operands:
        rewriter.replace_op(op, relaid(op, rewriter, operands))


def _cast_of(value: Value, cast: Op, rewriter: Rewriter) -> Value:
    """What `cast` does, of its operand in another layout."""
    type = replace(cast.result.type, layout=value.type.layout)
    return rewriter.insert(Op(CAST, [value], cast.attrs, [type], (), cast.origin)).result


PACK = Pass("pack", run, __doc__)
