"""split-recurrences: computes a recurrent layer's products with its input as one matrix product.

Requires: constants folded.
Ensures: a layer of several steps, or of a number that is open, with constant weights reads the
    gates' sums over its input, which a `matmul` makes of all steps at once: its weights are read
    once for many rows, not once a step. What it emits on constants wants folding after it.
Never: touches a layer of one step, or weights that a run computes.
"""

from __future__ import annotations

from aot.ir.builtin import CONSTANT
from aot.ir.graph import Attr, Function, Module, Op, Value
from aot.ir.record import Kind, OpRecord
from aot.ir.rewriter import Rewriter
from aot.ops.contraction import MATMUL
from aot.ops.elementwise import CAST
from aot.ops.movement import RESHAPE, TRANSPOSE
from aot.ops.recurrent import W, X
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count("split-recurrences", "layers", split(function))


def split(function: Function) -> int:
    """Moves the input products out of a function's recurrent layers; returns of how many."""
    layers = [op for op in function.walk() if op.record.kind is Kind.RECURRENCE]
    return sum(_split(function, op) for op in layers)


def _split(function: Function, op: Op) -> bool:
    x, w = op.operands[X], op.operands[W]
    if x is None or w is None or x.type.dims[0] == 1:
        return False
    cast = w.op if w.op is not None and w.op.record is CAST else None
    stored = w if cast is None else cast.operands[0]
    if stored is None or stored.op is None or stored.op.record is not CONSTANT:
        return False
    directions, gates, features = stored.type.shape
    rewriter = Rewriter(function).at(op)

    def make(record: OpRecord, operand: Value, **attrs: Attr) -> Value:
        return rewriter.create(record, [operand], attrs, op.origin).result

    columns = make(RESHAPE, stored, shape=(directions * gates, features))
    columns = make(TRANSPOSE, columns, perm=(1, 0))
    if cast is not None:
        columns = make(CAST, columns, **cast.attrs)
    operands = list(op.operands)
    operands[X] = rewriter.create(MATMUL, [x, columns], {}, op.origin).result
    operands[W] = None
    types = [v.type for v in op.results]
    made = rewriter.insert(Op(op.record, operands, op.attrs, types, (), op.origin))
    rewriter.replace_op(op, made.results)
    return True


SPLIT_RECURRENCES = Pass("split-recurrences", run, __doc__)
