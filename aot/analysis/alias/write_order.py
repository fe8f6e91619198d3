"""Positions of a block's ops and of its writes: whether memory changes between two positions.

For passes that plan a whole block before they change it: right as long as the block's ops keep
their order, and what takes the place of some stands in one of theirs. Changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.location_sets import EMPTY, Locations, members
from aot.analysis.control import ancestor_in
from aot.analysis.memory.views import is_view
from aot.ir.graph import Block, Op, Value

NEVER = 1 << 60  # the place of what does not happen


class WriteOrder:
    """The order of a block's ops and writes.

    Args:
        db: None where nothing is written in the whole function.

    Attributes:
        position: position of each op of the block.
    """

    def __init__(self, db: AliasDb | None, block: Block) -> None:
        self.db = db
        self.block = block
        self.position = {op: n for n, op in enumerate(block)}
        self._writers: dict[int, list[int]] | None = None

    def sinks_until(self, op: Op) -> int:
        """The first position after `op` at which its operands' memory may be written: `op` may be
        moved to before that. For an op that writes itself, the next position.
        """
        if self.db is None:
            return NEVER
        here = self.position[op]
        effects = self.db.effects(op)
        if effects.writes != EMPTY or effects.has_side_effects:
            return here + 1
        return self._first_write(effects.reads, here)

    def may_rise(self, op: Op, to: Op) -> bool:
        """Whether `op` may be moved up to the place of `to`, an earlier op: nothing between the two
        writes what `op` reads, and `op` itself writes nothing.
        """
        if self.db is None:
            return True
        effects = self.db.effects(op)
        if effects.writes != EMPTY or effects.has_side_effects:
            return False
        return self._first_write(effects.reads, self.position[to] - 1) > self.position[op]

    def keeps(self, value: Value, *, is_apart: bool = False) -> bool:
        """Whether nothing may write the memory of a value from its definition to its last use, uses
        through views included.

        Args:
            is_apart: the value will have memory of its own: who reads it may write the other one.
        """
        if self.db is None or not self.db.has_writers(value):
            return True
        start = -1 if value.op is None else self.position[value.op]
        first = self._first_write(self.db.reached(value), start)
        if first == NEVER:
            return True
        for user, number in uses_through_views(value):
            at = ancestor_in(user, self.block)
            # what holds a user in a block of its own may write before it
            is_whole = at is not user or (
                number in user.record.writes if is_apart else self.db.written(user) != EMPTY
            )
            if at is None or self.position[at] + is_whole > first:
                return False
        return True

    def _first_write(self, locations: Locations, after: int) -> int:
        """The first position after `after` at which any of the locations may be written."""
        writers, first = self._index(), NEVER
        for location in members(locations):
            places = writers.get(location, ())
            at = bisect_right(places, after)
            if at < len(places):
                first = min(first, places[at])
        return first

    def _index(self) -> dict[int, list[int]]:
        """The positions at which each location is written, in order."""
        if self._writers is None:
            assert self.db is not None
            self._writers = {}
            for op, place in self.position.items():
                for location in members(self.db.written(op)):
                    self._writers.setdefault(location, []).append(place)
        return self._writers


def uses_through_views(value: Value) -> Iterator[tuple[Op, int]]:
    """Uses of a value and of its views, as (op, operand number), including the ops that make the
    views.
    """
    stack, seen = [value], {value}
    while stack:
        for user, number in stack.pop().uses:
            yield user, number
            shown: Iterable[Value] = user.results if _is_alias(user) else ()
            for result in shown:
                if result not in seen:
                    seen.add(result)
                    stack.append(result)


def _is_alias(op: Op) -> bool:
    return op.record.container != "" or is_view(op)
