"""dce: removes ops whose results nobody needs.

Requires: nothing.
Ensures: every op has a side effect, ends its block, writes an operand, or has a used result.
Never: removes an input or a result of a function, or an op of unknown effect.
"""

from __future__ import annotations

from aot.ir.graph import Block, Function, Module, Op
from aot.ir.rewriter import Rewriter
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count("dce", "removed", remove_dead(function))


def remove_dead(function: Function) -> int:
    """Removes the dead ops of a function; gives how many went."""
    return _sweep(function.block, Rewriter(function))


def is_removable(op: Op) -> bool:
    """Whether only the results of `op` matter, so that it may go when they are unused."""
    record = op.record
    return not (record.is_terminator or record.has_side_effects or record.writes) and all(
        is_removable(inner) or inner.record.is_terminator for block in op.blocks for inner in block
    )


def _sweep(block: Block, rewriter: Rewriter) -> int:
    """Removes dead ops of `block` and of blocks in it.

    Users come after what they use, so that one walk backwards sees every user first.
    """
    removed = 0
    for op in reversed(block):
        if is_removable(op) and not any(v.uses for v in op.results):
            rewriter.erase(op)
            removed += 1
            continue
        for inner in op.blocks:
            removed += _sweep(inner, rewriter)
    return removed


DCE = Pass("dce", run, __doc__)
