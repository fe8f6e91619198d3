"""The rewriting engine: rules, the walk that applies them, and helpers to write them.

Owns no rule. A rule looks at an op and at what defines its operands, and gives what replaces the
op's only result; what it emits on constants is left to constant folding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot.analysis.alias.database import AliasDb
from aot.analysis.discontinuities import Discontinuities
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Attr, ConstantData, Function, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ops import OpRecord
from aot.passes.simplify.bounds import EXACT, Bound, Change

MAX_STEPS = 64  # for one op; a chain of rules is short, so that more means that two undo each other

Rewrite = Callable[[Op, Rewriter], Value | None]


@dataclass(frozen=True)
class Rule:
    """A rewrite rule for calls of one op.

    Attributes:
        rewrite: returns what replaces the op's only result, of the same type, or None.
        bound: how far the rewrite may change the result; checked before the rule is tried.
    """

    record: OpRecord
    equation: str
    rewrite: Rewrite
    bound: Bound = EXACT


class RuleSet:
    """Rewrite rules, indexed by the op they match.

    Args:
        name: the pass they belong to, for messages.
        is_exact: whether all of them must be, as those of passes that can't be disabled.
    """

    def __init__(self, name: str, rules: Sequence[Rule], *, is_exact: bool = False) -> None:
        if is_exact and any(rule.bound.change is not Change.EXACT for rule in rules):
            raise InternalError(f"a rule of {name} may change results")
        self.name = name
        self.rules = tuple(rules)
        self._by_name: dict[str, list[Rule]] = {}
        for rule in rules:
            self._by_name.setdefault(rule.record.name, []).append(rule)

    def apply(self, function: Function) -> int:
        """Applies the rules to a function; returns how many rewrites there were.

        Operands come before an op and are done, and what a rule makes is looked at next, so that
        one walk suffices.
        """
        rewritten = 0
        db = AliasDb.where_written(function)
        found = Discontinuities(function)
        for op in function.walk():
            current: Op | None = op
            for _ in range(MAX_STEPS):
                fresh = None
                if current is not None:
                    fresh = self._apply(current, function, db, found)
                if fresh is None:
                    break
                rewritten += 1
                current = fresh.op
            else:
                raise InternalError(f"rules of {self.name} go in circles at {op}")
        return rewritten

    def _apply(
        self, op: Op, function: Function, db: AliasDb | None, found: Discontinuities
    ) -> Value | None:
        """The replacement of `op`'s result, if a rule matched; else None."""
        for rule in self._by_name.get(op.name, ()):
            if not rule.bound.holds(op.results[0], found):
                continue
            before = op.prev
            fresh = rule.rewrite(op, Rewriter(function).at(op))
            if fresh is not None and db is not None and not _may_stand_for(db, op, fresh, before):
                continue
            if fresh is not None:
                found.inherit(fresh, op.result)
                Rewriter(function).replace_op(op, [fresh])
                return fresh
        return None


def _may_stand_for(db: AliasDb, op: Op, fresh: Value, before: Op | None) -> bool:
    """Whether a rule's equation holds despite writes in place; if not, erases the ops that the rule
    made between `before` and `op`.
    """
    made: list[Op] = []
    while (last := made[-1].prev if made else op.prev) is not None and last is not before:
        made.append(last)
    touched = [op.result, fresh, *op.operands, *(v for m in made for v in m.operands)]
    if not any(db.has_writers(v) for v in touched):
        return True
    for member in made:
        Rewriter(db.function).erase(member)
    return False


def like(op: Op, value: Value | None) -> Value | None:
    """`value` if it has the type of the op's result, else None."""
    return value if value is not None and value.type == op.result.type else None


def definer(value: Value | None, record: OpRecord) -> Op | None:
    """The op that defines `value`, if it is one of `record`."""
    found = None if value is None else value.op
    return found if found is not None and found.record is record else None


def constant_of(value: Value | None) -> ConstantData | None:
    """The contents of `value` if it is a constant."""
    op = definer(value, CONSTANT)
    data = None if op is None else op.attrs["value"]
    return data if isinstance(data, ConstantData) else None


def is_all(value: Value | None, number: float) -> bool:
    """Whether `value` is a constant all of whose elements are `number`, the sign of 0 included."""
    data = constant_of(value)
    if data is None or data.array.size == 0:
        return False
    wanted = np.array(number).astype(data.array.dtype)
    flat = data.array.reshape(-1)
    return bool(
        flat[0] == wanted
        and (flat == wanted).all()
        and (
            number != 0
            or wanted.dtype.kind != "f"
            or (np.signbit(flat) == np.signbit(wanted)).all()
        )
    )


def relaid(op: Op, rewriter: Rewriter, operands: Sequence[Value | None]) -> list[Value]:
    """Recreates `op` on operands that differ only in their layout; returns its results.

    Ops keep their logical meaning whatever the layouts, so that the results keep their types and
    no shape rule is asked.
    """
    for number, (old, fresh) in enumerate(zip(op.operands, operands, strict=True)):
        if old is not fresh and not _are_alike(old, fresh):
            raise InternalError(f"operand {number} of {op} would be {fresh!r} in place of {old!r}")
    types = [v.type for v in op.results]
    return rewriter.insert(Op(op.record, operands, op.attrs, types, (), op.origin)).results


def _are_alike(a: Value | None, b: Value | None) -> bool:
    return (
        a is not None
        and b is not None
        and (a.type.dtype, a.type.dims) == (b.type.dtype, b.type.dims)
    )


def make(
    op: Op, rewriter: Rewriter, record: OpRecord, *operands: Value | None, **attrs: Attr
) -> Value | None:
    """Creates an op in place of `op`; None if its result would have another type."""
    call = record.call([None if v is None else v.type for v in operands], attrs, op.origin)
    if call.result_types != (op.result.type,):
        return None
    rewriter.function.assumptions.update(dict.fromkeys(call.assumptions))
    return rewriter.insert(
        Op(record, operands, call.attrs, call.result_types, (), op.origin)
    ).result
