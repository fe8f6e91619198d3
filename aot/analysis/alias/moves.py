"""Moving ops within a block: whether the order of reads and writes permits it, and doing it.

An op may pass others only if it neither needs nor feeds them, and reads and writes of the same
memory, and side effects, keep their order. What stands in the way is taken along, where that helps.
Asking and doing share one plan, so that they can't differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from aot.analysis.alias.database import AliasDb, MemoryEffects
from aot.ir.graph import Block, Op, walk
from aot.ir.rewriter import Rewriter


def could_move_before(db: AliasDb, op: Op, point: Op) -> bool:
    """Whether `op` could stand right before `point`, with the values it needs and its effects in
    order; ops between may have to move too."""
    return _plan(db, op, point, is_before=True) is not None


def could_move_after(db: AliasDb, op: Op, point: Op) -> bool:
    """As `could_move_before`, for right after `point`."""
    return _plan(db, op, point, is_before=False) is not None


def move_before(db: AliasDb, op: Op, point: Op) -> bool:
    """Moves `op` right before `point`, if it could be; says whether it did."""
    return _move(db, op, point, is_before=True)


def move_after(db: AliasDb, op: Op, point: Op) -> bool:
    """Moves `op` right after `point`, if it could be; says whether it did."""
    return _move(db, op, point, is_before=False)


@dataclass(frozen=True)
class _Plan:
    """Ops, in order, that come to stand right before and right after the point."""

    before: tuple[Op, ...] = ()
    after: tuple[Op, ...] = ()


def _move(db: AliasDb, op: Op, point: Op, *, is_before: bool) -> bool:
    plan = _plan(db, op, point, is_before=is_before)
    if plan is None:
        return False
    rewriter = Rewriter(db.function)
    for member in plan.before:
        rewriter.move_before(member, point)
    anchor = point.next
    for member in plan.after:
        if member is anchor:
            anchor = anchor.next
        elif anchor is not None:
            rewriter.move_before(member, anchor)
    return True


def _plan(db: AliasDb, op: Op, point: Op, *, is_before: bool) -> _Plan | None:
    block = op.parent
    if block is None or block is not point.parent:
        return None
    if op is point:
        return _Plan()
    is_forward = _is_before(op, point)
    # whether `op` stands where it should already, but for what is between
    is_on_side = is_forward == is_before
    between = op.next if is_forward else op.prev
    if is_on_side and between is point:
        return _Plan()
    if op.record.is_terminator:
        return None
    taken = _Taken(db, block, is_forward)
    taken.add(op)
    while between is not None and between is not point:
        if taken.is_held_by(between):
            taken.add(between)
        between = between.next if is_forward else between.prev
    if is_on_side:
        # `op` stays on its side of the point, and what holds it goes to the other
        taken.remove(op)
    if taken.ops and taken.is_held_by(point):
        return None
    passing = tuple(taken.ops) if is_forward else tuple(reversed(taken.ops))
    stays = (op,) if is_on_side else ()
    return _Plan(stays, passing) if is_forward else _Plan(passing, stays)


def _is_before(op: Op, other: Op) -> bool:
    """Whether `op` stands before `other` in their block; costs their distance."""
    after: Op | None = op
    before: Op | None = op
    while after is not None or before is not None:
        if after is other:
            return True
        if before is other:
            return False
        after = after.next if after is not None else None
        before = before.prev if before is not None else None
    return False


class _Taken:
    """Ops that move together in one direction."""

    def __init__(self, db: AliasDb, block: Block, is_forward: bool) -> None:
        self.db = db
        self.block = block
        self.is_forward = is_forward
        self.ops: dict[Op, None] = {}
        self._in_the_way: Counter[Op] = Counter()  # by data: users, or producers going backward
        self._effects: dict[Op, MemoryEffects] = {}

    def add(self, op: Op) -> None:
        self.ops[op] = None
        self._in_the_way.update(self._holders(op))
        effects = self.db.effects(op)
        if self.db.has_writes or effects.has_side_effects:
            self._effects[op] = effects

    def remove(self, op: Op) -> None:
        del self.ops[op]
        self._in_the_way.subtract(self._holders(op))
        self._effects.pop(op, None)

    def is_held_by(self, other: Op) -> bool:
        """Whether the ops can't pass `other`."""
        if other.record.is_terminator or self._in_the_way[other] > 0:
            return True
        if not self._effects:
            return False
        effects = self.db.effects(other)
        return any(effects.conflicts(mine) for mine in self._effects.values())

    def _holders(self, op: Op) -> list[Op]:
        return list(self._users(op) if self.is_forward else self._producers(op))

    def _users(self, op: Op) -> Iterator[Op]:
        for value in op.results:
            for user in value.users:
                at: Op | Block | None = user
                while isinstance(at, Op) and at.parent is not self.block:
                    outer = at.parent.owner if at.parent is not None else None
                    at = outer if isinstance(outer, Op) else None
                if isinstance(at, Op):
                    yield at

    def _producers(self, op: Op) -> Iterator[Op]:
        inner = (i for block in op.blocks for i in walk(block))
        for user in (op, *inner):
            for value in user.operands:
                if value is not None and value.op is not None and value.op.parent is self.block:
                    yield value.op
