"""The alias facts of a function: value numbers, the points-to graph and writes, kept up to date.

`AliasDb` answers from it: numbers of values, the points-to graph, the register of writes. Gives no
answers about aliasing itself, and listens to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aot.analysis.alias.effects import FRESH, dependents_of_operand, origin, written_operands
from aot.analysis.alias.location_sets import EMPTY, Locations, union
from aot.analysis.alias.points_to import PointsTo
from aot.analysis.alias.write_db import WriteDb
from aot.errors import InternalError
from aot.ir.graph import Block, Function, Op, Value
from aot.ir.types import DType


class AliasFacts:
    """The alias facts of one function, updated as rewrites change it.

    Attributes:
        numbers: each value's number; a number is never reused.
        graph: the points-to graph: node `2 * number` is what the value may be, the next node what
            it keeps.
        writes: locations that ops write; right once `settle` is done.
        owners: the value that created each fresh location.
        outside, states: locations of memory that others can see too.
        unknown_ops: ops whose effects are not known.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.numbers: dict[Value, int] = {}
        self.graph = PointsTo()
        self.writes = WriteDb()
        self.owners: dict[int, Value] = {}
        self.outside: dict[DType, int] = {}
        self.states: dict[str, int] = {}
        self.unknown_ops: dict[Op, None] = {}
        self.drafts: dict[Value, None] = {}
        self._values: list[Value | None] = []
        self._fresh_location: dict[int, int] = {}
        self._unknown_results: dict[Value, None] = {}
        self._written_through: dict[int, dict[Op, None]] = {}
        self._stale: dict[Op, None] = {}
        self._loops: dict[Op, None] = {}

    # what the function has

    def solve(self) -> None:
        """Computes the facts of the whole function from scratch."""
        values: list[Value] = []
        writers: list[Op] = []
        self._number_block(self.function.block, values, writers)
        self._connect(values, writers)
        self.graph.solve()
        self.settle()

    def add(self, op: Op) -> None:
        """Adds the facts of an op that was inserted, with all ops nested in it."""
        values: list[Value] = []
        writers: list[Op] = []
        self._number_op(op, values, writers)
        outer = op.parent.owner if op.parent is not None else None
        if op.record.is_terminator and isinstance(outer, Op):
            values += [v for block in outer.blocks for v in block.args]
            values += outer.results
        self._connect(values, writers)

    def widen(self, op: Op) -> None:
        """Updates the facts after an op with blocks carries or yields one more value."""
        values = [*op.results, *(v for block in op.blocks for v in block.args)]
        for value in values:
            self._number(value)
        self._connect(values, ())

    def remove(self, op: Op) -> None:
        """Removes the facts of an op that leaves the function, with all ops nested in it."""
        for block in op.blocks:
            for inner in block:
                self.remove(inner)
            for value in block.args:
                self.forget(value)
        for value in op.results:
            self.forget(value)
        for operand in op.operands:
            if operand is not None and operand in self.numbers:
                self._written_through.get(self.numbers[operand], {}).pop(op, None)
        self.writes.remove(op)
        for register in (self.unknown_ops, self._loops, self._stale):
            register.pop(op, None)

    def forget(self, value: Value) -> None:
        """Removes a value that is no longer used."""
        number = self.numbers.pop(value, None)
        if number is None:
            return
        self._values[number] = None
        self.graph.retire(2 * number)
        self.graph.retire(2 * number + 1)
        location = self._fresh_location.pop(number, None)
        if location is not None:
            del self.owners[location]
        self._written_through.pop(number, None)
        for register in (self._unknown_results, self.drafts):
            register.pop(value, None)

    def rewire(self, op: Op, index: int, old: Value | None) -> None:
        """Updates the facts after operand `index` of `op`, `old` before, has changed."""
        for value in dependents_of_operand(op, index):
            self.constrain(value)
        if op.record.writes or op.record.has_unknown_effects:
            if old is not None and old in self.numbers and old not in written_operands(op):
                self._written_through.get(self.numbers[old], {}).pop(op, None)
            self._add_writer(op)

    def retype(self, value: Value) -> None:
        """Updates the facts after the type of `value`, and possibly what aliases what, has
        changed."""
        affected = [v for op, n in value.uses for v in dependents_of_operand(op, n)]
        for one in [value, *affected]:
            if one in self.numbers:
                self.constrain(one)

    def swap(self, old: Value, fresh: Value) -> None:
        """Exchanges the memory of two values, if each has memory that no other value depends on."""
        if old not in self.numbers or fresh not in self.numbers:
            return
        self.settle()
        paths = [self.graph.private_path(2 * self.numbers[v]) for v in (old, fresh)]
        if not all(p and p[-1] % 2 == 0 and self._is_memory(p[-1] // 2) for p in paths):
            return
        a, b = (p[-1] // 2 for p in paths)
        if a == b:
            return
        self.graph.swap_fixed(*paths)
        locations = self._fresh_location
        locations[a], locations[b] = locations[b], locations[a]
        for number in (a, b):
            owner = self._values[number]
            assert owner is not None
            self.owners[locations[number]] = owner
        for node in (*paths[0], *paths[1]):
            self._stale.update(self._written_through.get(node // 2, {}))

    def _is_memory(self, number: int) -> bool:
        location = self._fresh_location.get(number)
        return location is not None and self.graph.is_only(2 * number, location)

    def draft(self, value: Value, source: Value) -> None:
        """Adds a value outside the function, as an alias of `source`."""
        of = self.number_of(source)
        number = self._number(value)
        self.drafts[value] = None
        for part in (0, 1):
            self.graph.set_constraint(2 * number + part, EMPTY, (2 * of + part,))

    def number_of(self, value: Value) -> int:
        """The number of a value of the function.

        Raises:
            InternalError: the function has no such value (any more).
        """
        found = self.numbers.get(value)
        if found is None:
            name = self.function.name
            raise InternalError(f"{value!r} is no value of function {name!r}, or was deleted")
        return found

    # numbering

    def _number(self, value: Value) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = self.graph.new_value()
            self._values.append(value)
        return found

    def _number_block(self, block: Block, values: list[Value], writers: list[Op]) -> None:
        for value in block.args:
            self._number(value)
            values.append(value)
        for op in block:
            self._number_op(op, values, writers)

    def _number_op(self, op: Op, values: list[Value], writers: list[Op]) -> None:
        record = op.record
        for value in op.results:
            self._number(value)
            values.append(value)
        for block in op.blocks:
            self._number_block(block, values, writers)
        if record.body is not None and record.body.is_loop:
            self._loops[op] = None
        if record.writes or record.has_unknown_effects:
            writers.append(op)

    def _connect(self, values: Sequence[Value], writers: Sequence[Op]) -> None:
        """Adds constraints and writers after numbering, as origins may refer to later values."""
        for value in values:
            self.drafts.pop(value, None)
            self.constrain(value)
        for op in writers:
            self._add_writer(op)

    # where values come from

    def constrain(self, value: Value) -> None:
        """Updates the constraint for the memory of `value` from its current origin."""
        number, found = self.numbers[value], origin(value)
        self._stale.update(self._written_through.get(number, {}))
        if found is FRESH:  # nearly all values
            self.graph.set_location(2 * number, self._fresh(number, value))
            self.graph.set_empty(2 * number + 1)
            return
        sources = [self.number_of(v) for v in found.sources]
        kept = [self.number_of(v) for v in found.kept]
        own, held = [2 * n for n in sources], [2 * n + 1 for n in sources]
        if found.state:
            fixed: Locations = self._state(found.state)
        elif found.is_unknown:
            fixed = self._unknown(value)
        else:
            fixed = EMPTY
        self.graph.set_constraint(
            2 * number, fixed, _distinct(own, held if found.is_opened else ())
        )
        inner = [node for n in kept for node in (2 * n, 2 * n + 1)]
        self.graph.set_constraint(2 * number + 1, EMPTY, _distinct(held, inner))

    def _fresh(self, number: int, value: Value) -> int:
        if number not in self._fresh_location:
            location = self._fresh_location[number] = self.graph.new_location()
            self.owners[location] = value
        return self._fresh_location[number]

    def _outside(self, dtype: DType) -> int:
        if dtype not in self.outside:
            self.outside[dtype] = self.graph.new_location()
        return self.outside[dtype]

    def _state(self, name: str) -> int:
        if name not in self.states:
            self.states[name] = self.graph.new_location()
            for value in list(self._unknown_results):
                self.constrain(value)
        return self.states[name]

    def _unknown(self, value: Value) -> Locations:
        outside = self._outside(value.type.dtype)
        if value.op is None:
            return outside
        self._unknown_results[value] = None
        return union([outside, *self.states.values()])

    def _add_writer(self, op: Op) -> None:
        for value in written_operands(op):
            self._written_through.setdefault(self.numbers[value], {})[op] = None
        if op.record.has_unknown_effects:
            self.unknown_ops[op] = None
        self._stale[op] = None

    # answers

    def settle(self) -> None:
        """Brings alias sets and writers up to date."""
        if not self.graph.is_settled:
            self.graph.settle(self._may_cycle)
            for node in self.graph.changed:
                self._stale.update(self._written_through.get(node // 2, {}))
        if self._stale:
            for op in self._stale:
                self.writes.set(op, self._written(op), is_unknown=op in self.unknown_ops)
            self._stale.clear()

    def _written(self, op: Op) -> Locations:
        answers = self.graph.answers
        numbers = [self.numbers[v] for v in written_operands(op)]
        return union(answers[node] for n in numbers for node in (2 * n, 2 * n + 1))

    def _may_cycle(self, node: int) -> bool:
        """Whether a node's value is inside a loop, since only loops make cycles."""
        if not self._loops:
            return False
        value = self._values[node // 2]
        block = None
        if value is not None:
            block = value.owner if isinstance(value.owner, Block) else value.owner.parent
        while block is not None and isinstance(block.owner, Op):
            if block.owner in self._loops:
                return True
            block = block.owner.parent
        return False

    def outside_locations(self) -> Locations:
        """All memory, states included, that code outside the function can access."""
        return union([*self.outside.values(), *self.states.values()])


def _distinct(*nodes: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(node for some in nodes for node in some))
