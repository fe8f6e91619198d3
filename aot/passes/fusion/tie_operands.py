"""tie-operands: decides which operand's memory a region's result may overwrite.

Requires: regions are formed.
Ensures: each region has `ties`, one entry a result: an operand number or -1.
Never: ties an operand that an iteration reads elsewhere than where it writes, or of another size.
"""

from __future__ import annotations

from aot.analysis.accesses import accesses_of
from aot.analysis.control import control_ops
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ops.structure import REGION
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        tie_operands(function)


def tie_operands(function: Function) -> None:
    """Sets the `ties` of every region."""
    for op in control_ops(function):
        if op.record is REGION:
            Rewriter(function).set_attr(op, "ties", _ties(op))


def _ties(region: Op) -> tuple[int, ...]:
    (block,) = region.blocks
    ties: list[int] = []
    for value in block.terminator.operands:
        assert value is not None
        free = [n for n, arg in enumerate(block.args) if n not in ties and _may_take(arg, value)]
        ties.append(free[-1] if free and len(region.results) == 1 else -1)
    return tuple(ties)


def _may_take(arg: Value, result: Value) -> bool:
    """Whether every read of `arg` is of the element that is about to be written."""
    if arg.type.bytes != result.type.bytes or arg.type.dtype.bytes != result.type.dtype.bytes:
        return False
    seen = {arg}
    stack = [arg]
    while stack:
        value = stack.pop()
        if value.type.dims != result.type.dims or value.type.layout is not None:
            return False
        for user in value.users:
            if user.record.is_terminator:
                continue
            if user.record.kind is not Kind.ELEMENTWISE and not _reads_in_place(user, value):
                return False
            for made in user.results:
                if made not in seen:
                    seen.add(made)
                    stack.append(made)
    return True


def _reads_in_place(op: Op, value: Value) -> bool:
    """Whether the op reads an operand only at the index of the result's element."""
    if op.record.compute is None or op.record.kind.has_handwritten_kernel:
        return False
    numbers = [n for n, v in enumerate(op.operands) if v is value]
    return all(
        [s.variable for s in read.subscripts] == list(range(accesses.rank))
        for accesses in accesses_of(op)
        for number in numbers
        for read in accesses.of(number)
    )


TIE_OPERANDS = Pass("tie-operands", run, __doc__)
