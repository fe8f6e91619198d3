"""cse: merges ops that compute the same from the same operands.

Requires: nothing.
Ensures: no two ops without side effects have equal records, operands (in any order where the op is
    commutative), attributes and result types, if one stands where the other's results are seen.
    Constants count as equal by their contents and types.
Never: moves an op, carries a value into a block that may not see it, or merges ops that hold
    blocks, write operands or have side effects, or that read or make what is written in place.
    Of two origins the first stays.
"""

from __future__ import annotations

from collections.abc import Hashable

from aot.analysis.alias.database import AliasDb
from aot.ir.compare import attrs_key
from aot.ir.graph import Block, Module, Op, Value
from aot.ir.rewriter import Rewriter
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        merger = _Merger(Rewriter(function), AliasDb.where_written(function))
        context.count("cse", "merged", merger.block(function.block, []))


class _Merger:
    def __init__(self, rewriter: Rewriter, db: AliasDb | None) -> None:
        self.rewriter = rewriter
        self.db = db
        self.numbers: dict[Value, int] = {}

    def block(self, block: Block, outer: list[dict[Hashable, Op]]) -> int:
        """Merges ops within `block`, and with those of `outer` scopes, which are visible in it."""
        merged = 0
        mine: dict[Hashable, Op] = {}
        scopes = [mine, *outer]
        for op in block:
            for inner in op.blocks:
                merged += self.block(inner, [] if op.record.is_isolated else scopes)
            if not is_mergeable(op) or (self.db is not None and not self.db.is_repeatable(op)):
                continue
            key = self.key(op)
            known = next((scope[key] for scope in scopes if key in scope), None)
            if known is None:
                mine[key] = op
                continue
            self.rewriter.replace_op(op, known.results)
            merged += 1
        return merged

    def key(self, op: Op) -> Hashable:
        operands = [-1 if v is None else self.number(v) for v in op.operands]
        if op.record.is_commutative:
            operands.sort()
        return (op.name, tuple(operands), attrs_key(op), tuple(v.type for v in op.results))

    def number(self, value: Value) -> int:
        """A value's number in order of first use, which makes the operands' order the same in every
        run."""
        return self.numbers.setdefault(value, len(self.numbers))


def is_mergeable(op: Op) -> bool:
    """Whether `op` is a pure function of its operands and attributes."""
    record = op.record
    return not (record.is_terminator or record.has_side_effects or record.writes or op.blocks)


CSE = Pass("cse", run, __doc__)
