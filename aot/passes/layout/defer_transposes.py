"""defer-transposes: makes transposes pending changes where some of them then cancel out.

A trial sweep carries every transpose forward. Those that meet in an op or follow one another form
a web; a web that ends with fewer of them, and no more to move, is made pending, for resolve-shapes
to carry on. The others stay where they are.

Requires: constants are folded.
Ensures: of each web that is pending fewer transposes will be left than there were.
Never: adds to the bytes that are moved, or touches a transpose that gains nothing. What becomes of
    constants is left to constant folding.
"""

from __future__ import annotations

from aot.analysis.memory.views import map_of
from aot.base.records import dataclass
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.index_map import IndexMap
from aot.ir.mapped_operand import IDENTITY, MappedOperand
from aot.ir.record import call_of
from aot.ir.rewriter import Rewriter
from aot.ops.layout_rules import cost, moves
from aot.passes.base import Pass, PassContext
from aot.passes.layout.shape_sweep import Sweep

NAME = "defer-transposes"


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count(NAME, "deferred", defer(function))


def defer(function: Function) -> int:
    """Makes the transposes of a function pending where that pays; returns how many."""
    transposes = {op: None for op in function.walk() if _is_transpose(op)}
    if not transposes:
        return 0
    sweep = Sweep(function, transposes, asks_rules=False).run()
    chosen = _Webs(sweep).chosen()
    for op in chosen:
        rewriter, source = Rewriter(function), op.operands[0]
        map = map_of(op)
        assert source is not None and map is not None
        rewriter.replace_lazily(op.result, source, map)
        rewriter.erase(op)
    return len(chosen)


def _is_transpose(op: Op) -> bool:
    """Whether the op permutes dims and its result has no layout yet."""
    if op.record.index_map is None or op.result.type.layout is not None:
        return False
    map = map_of(op)
    return map is not None and map.perm is not None


@dataclass
class _Bill:
    """The cost of data movement: how many ops write memory, and about how many bytes."""

    count: int = 0
    bytes: int = 0

    def add(self, seen: MappedOperand, map: IndexMap) -> None:
        self.count += moves(seen, map)
        self.bytes += cost(seen, map)


class _Webs:
    """Connected groups of transposes, with the ops that carry and absorb them, in a trial sweep.

    Attributes:
        before, after: by web: its transposes as they are, and what will be left of them.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._above: dict[Op, Op] = {}
        self.before: dict[Op, _Bill] = {}
        self.after: dict[Op, _Bill] = {}
        for op in sweep.decisions:
            for value in op.operands:
                if value is not None and value.op is not None and self._is_taken(op, value):
                    self._join(op, value.op)
        for op in sweep.decisions:
            self._count(op)

    def chosen(self) -> list[Op]:
        """The transposes to make pending, in program order."""
        found = [op for op in self.sweep.decisions if op in self.sweep.deferred]
        return [op for op in found if self._gains(self._web(op)) and not self._stays(op)]

    def _gains(self, web: Op) -> bool:
        before, after = self.before[web], self.after[web]
        return after.count < before.count and after.bytes <= before.bytes

    def _stays(self, op: Op) -> bool:
        """Whether a pending transpose would be materialised again for all its users."""
        (source,) = op.operands
        return source not in self.sweep.changed and all(
            self.sweep.is_materialised(user, op.result) for user in op.result.users
        )

    def _is_taken(self, op: Op, value: Value) -> bool:
        """Whether `op` absorbs the pending change of an operand instead of having it
        materialised."""
        return value in self.sweep.changed and not self.sweep.is_materialised(op, value)

    def _count(self, op: Op) -> None:
        web, sweep = self._web(op), self.sweep
        before = self.before.setdefault(web, _Bill())
        after = self.after.setdefault(web, _Bill())
        if op in sweep.deferred:
            (source,) = op.operands
            assert source is not None and op.record.index_map is not None
            is_constant = source.op is not None and source.op.record is CONSTANT
            seen = MappedOperand(source.type, IDENTITY, is_constant)
            before.add(seen, op.record.index_map(call_of(op)))
        propagated = sweep.decisions[op].propagated
        if propagated is not None:
            for operand, map in zip(sweep.operands(op), propagated.operands, strict=True):
                if operand is not None:
                    after.add(operand, map)
        for value in op.results:
            if any(sweep.is_materialised(user, value) for user in value.users):
                left = sweep.changed.get(value)
                if left is not None:
                    after.add(left, left.map)

    def _web(self, op: Op) -> Op:
        while (above := self._above.get(op, op)) is not op:
            self._above[op] = op = self._above.get(above, above)
        return op

    def _join(self, a: Op, b: Op) -> None:
        a, b = self._web(a), self._web(b)
        if a is not b:
            self._above[b] = a


DEFER_TRANSPOSES = Pass(NAME, run, __doc__)
