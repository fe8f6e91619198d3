"""dce: removes ops whose results are unused.

Requires: nothing.
Ensures: every op has a side effect, ends its block, writes an operand, or has a used result; of the
    symbols that values give, some op names each, or it is checked.
Never: removes an input or a result of a function, or an op of unknown effect.
"""

from __future__ import annotations

from aot.ir.builtin import EXTENT
from aot.ir.compare import map_dims
from aot.ir.data_dims import extents_of
from aot.ir.dims import Dim, DimExpr, symbols
from aot.ir.graph import Assumption, Block, Function, Module, Op
from aot.ir.rewriter import Rewriter
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count("dce", "removed", remove_dead(function))


def remove_dead(function: Function) -> int:
    """Removes the dead ops of a function; returns how many."""
    sweep = _Sweep(function)
    removed = sweep.block(function.block)
    sweep.forget()
    return removed


def is_removable(op: Op) -> bool:
    """Whether `op` may be erased once its results are unused, as it has no other effects."""
    record = op.record
    return not (record.is_terminator or record.has_side_effects or record.writes) and all(
        is_removable(inner) or inner.record.is_terminator for block in op.blocks for inner in block
    )


class _Sweep:
    """A backward walk that erases unused ops.

    Attributes:
        given: symbols that values give.
        named: those of them that ops which stay have in their attributes and types.
    """

    def __init__(self, function: Function) -> None:
        self.rewriter = Rewriter(function)
        self.given = set(extents_of(function))
        self.named: set[str] = set()

    def block(self, block: Block) -> int:
        """Removes dead ops of `block` and of nested blocks.

        Users come after what they use, so that one walk backwards sees every user first.
        """
        removed = 0
        for op in reversed(block):
            if self.is_dead(op):
                self.rewriter.erase(op)
                removed += 1
                continue
            if self.given:
                self.note(op)
            for inner in op.blocks:
                removed += self.block(inner)
        return removed

    def is_dead(self, op: Op) -> bool:
        if op.record is EXTENT and isinstance(op.attrs["dim"], DimExpr):
            return not op.attrs["checked"] and str(op.attrs["dim"]) not in self.named
        return is_removable(op) and not any(v.uses for v in op.results)

    def note(self, op: Op) -> None:
        def noted(dim: Dim) -> Dim:
            self.named |= symbols(dim) & self.given
            return dim

        map_dims(op.attrs, noted)
        for value in (*op.results, *(a for block in op.blocks for a in block.args)):
            for dim in value.type.dims:
                noted(dim)

    def forget(self) -> None:
        """Drops assumptions about symbols that nothing defines any more."""
        function = self.rewriter.function
        gone = self.given - set(extents_of(function))
        if gone:
            kept = (a for a in function.assumptions if gone.isdisjoint(_named(a)))
            function.assumptions = dict.fromkeys(kept)


def _named(assumption: Assumption) -> set[str]:
    return symbols(assumption.left) | symbols(assumption.right)


DCE = Pass("dce", run, __doc__)
