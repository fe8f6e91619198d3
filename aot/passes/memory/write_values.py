"""write-values: memory that is written in place becomes values, one for each write.

    y = neg(x); assign(y, z); w = relu(y)   ->   y = neg(x); w = relu(z)

A reader gets what the memory holds where it reads. What a state variable holds in the end is
assigned once, by the last ops of the function. A write to a part is `put_slice`, whose result takes
the memory of what it is put into where nothing else reads that.

Requires: nothing pending.
Ensures: memory of the function itself, and that of fixed state variables, is written at most once
    and not read behind that, if it is written in the block that it is made in and nobody else holds
    it; views of it are reshapes.
Never: touches memory that callers, tuples, calls or other blocks hold as well, or a function with
    calls of unknown effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import ancestor_in, control_blocks, nested_operands
from aot.analysis.memory.views import map_of
from aot.ir.graph import Attr, Block, Function, Module, Op, Value, walk
from aot.ir.index_map import Reshape
from aot.ir.record import OpRecord
from aot.ir.rewriter import Rewriter
from aot.ops.control import ASSIGN, STATE, WRITE_SLICE
from aot.ops.movement import COPY, RESHAPE
from aot.ops.put import PUT_SLICE
from aot.passes.base import Pass, PassContext

Root = Value | str  # the value that brings memory into being, or the name of a state variable
Places = dict[Op, int]


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        db = AliasDb.where_written(function)
        if db is not None:
            context.count("write-values", "writes", write_values(function, db))


def write_values(function: Function, db: AliasDb) -> int:
    """Turns writes into values; gives how many."""
    if any(op.record.has_unknown_effects for op in function.walk()):
        return 0
    places: Places = {}
    written = 0
    memories = _memories(function, places)
    for memory in memories:
        if memory.may_change(db):
            written += _Values(function, db, memory, places).run()
    return written


@dataclass
class _Memory:
    """Memory of its own that is written, and all that shows it by its meaning.

    Attributes:
        block: where it is made and may be written.
        shows: values that show it, in order.
        writes: ops that write it, in order.
    """

    root: Root
    block: Block
    shows: dict[Value, None] = field(default_factory=dict)
    writes: dict[Op, None] = field(default_factory=dict)

    @property
    def first(self) -> Value:
        """What shows all of it as it is made."""
        return next(iter(self.shows))

    def may_change(self, db: AliasDb) -> bool:
        """Whether nobody else holds the memory, its writes stand in its block, and there is
        something to do."""
        if any(op.parent is not self.block for op in self.writes):
            return False
        if any(value.type.layout is not None for value in self.shows):
            return False
        if any(self._hands_on(user, value) for value in self.shows for user in value.users):
            return False
        return all(op in self.writes for op in db.writers(self.first)) and not self._is_settled()

    def _hands_on(self, user: Op, value: Value) -> bool:
        """Whether an op hands a value's memory on to where it is not followed."""
        record = user.record
        if record.is_terminator:
            # values that the block made end with it, except for those that it yields
            is_end = user.parent is self.block and not isinstance(self.root, str)
            return not is_end and isinstance(user.parent and user.parent.owner, Op)
        numbers = [n for n, v in enumerate(user.operands) if v is value]
        if record.body is not None:
            return record.is_isolated or any(n >= record.body.first for n in numbers)
        if record.container or record.results_from != "rule":
            return True
        return record.view_of in numbers and not _is_followed(user)

    def _is_settled(self) -> bool:
        """Whether it is a state variable that is assigned once, and not read behind that."""
        (write, *others) = self.writes
        shown = write.operands[0]
        if others or write.record is not ASSIGN or not isinstance(self.root, str):
            return False
        if shown is None or shown.op is None or shown.op.record is not STATE:
            return False
        at = write.next
        while at is not None and not any(v in self.shows for v in nested_operands(at)):
            at = at.next
        return at is None


def _is_followed(op: Op) -> bool:
    """Whether an op's result is its operand's memory in a way that can be gone back."""
    if op.record in (ASSIGN, WRITE_SLICE):
        return True
    map = map_of(op)
    return map is not None and all(isinstance(step, Reshape) for step in map.steps)


def _memories(function: Function, places: Places) -> list[_Memory]:
    """Memory that the function makes or keeps and writes; `places` learns where each op stands in
    its block."""
    roots: dict[Value, Root] = {}
    written: dict[Root, _Memory] = {}
    for block in control_blocks(function):
        for place, op in enumerate(block):
            places[op] = place
            root = _root_of_result(op, roots)
            if root is None:
                continue
            roots[op.result] = root
            if op.record.writes and root not in written:
                buffer_slice = function.block if isinstance(root, str) else _home(root)
                written[root] = _Memory(root, buffer_slice)
            if op.record.writes:
                written[root].writes[op] = None
    for value, root in roots.items():
        if root in written:
            written[root].shows[value] = None
    return list(written.values())


def _home(value: Value) -> Block:
    assert value.op is not None and value.op.parent is not None
    return value.op.parent


def _root_of_result(op: Op, roots: dict[Value, Root]) -> Root | None:
    """What brings the memory of the op's result into being, if that is known."""
    record = op.record
    if record.is_state:
        return str(op.attrs["variable"]) if op.attrs["capacity"] == 0 else None
    if record.view_of is not None:
        source = op.operands[record.view_of]
        return roots.get(source) if source is not None and _is_followed(op) else None
    is_fresh = record.results_from == "rule" and len(op.results) == 1 and not record.container
    return op.result if is_fresh else None


class _Values:
    """Turns the writes of one memory into values.

    Attributes:
        now: what it holds, once it was written; None as long as it is what it was.
    """

    def __init__(self, function: Function, db: AliasDb, memory: _Memory, places: Places) -> None:
        self.function = function
        self.db = db
        self.memory = memory
        self.places = places
        self.now: Value | None = None

    def run(self) -> int:
        memory = self.memory
        for op in self.touching():
            if op in memory.writes:
                self.write(op)
            elif not (op.results and op.results[0] in memory.shows):  # those show, and don't read
                self.read(op)
        if isinstance(memory.root, str):
            self.keep()
        for value in reversed(memory.shows):
            maker = value.op
            assert maker is not None
            if not value.uses and maker.record.view_of is not None:
                Rewriter(self.function).erase(maker)
        return len(memory.writes)

    def touching(self) -> list[Op]:
        """Ops of the block that use the memory, or hold such, in order."""
        block = self.memory.block
        users = (ancestor_in(user, block) for value in self.memory.shows for user in value.users)
        found = dict.fromkeys(op for op in users if op is not None)
        return sorted(found, key=self.places.__getitem__)

    def write(self, op: Op) -> None:
        """The value that the memory has after a write."""
        self.read(op, but=0)
        shown, source = op.operands[0], op.operands[1]
        assert shown is not None and source is not None
        if op.record is WRITE_SLICE:
            operands = [self.seen(shown, op), *op.operands[1:]]
            made = self.create(PUT_SLICE, operands, op)
        elif self.db.has_writers(source):  # what it holds now, not later
            made = self.create(COPY, [source], op)
        else:
            made = source
        self.now = self.reshaped(made, self.memory.first, op)

    def read(self, op: Op, but: int = -1) -> None:
        """Gives an op, and ops in it, what the memory holds now."""
        if self.now is None:
            return
        for user in (op, *(inner for block in op.blocks for inner in walk(block))):
            for number, value in enumerate(user.operands):
                if value in self.memory.shows and not (user is op and number == but):
                    assert value is not None
                    seen = self.seen(value, op)
                    Rewriter(self.function).set_operand(user, number, seen)

    def seen(self, value: Value, at: Op) -> Value:
        """What `value`, which shows the memory, shows now."""
        return value if self.now is None else self.reshaped(self.now, value, at)

    def keep(self) -> None:
        """Assigns what a state variable holds in the end."""
        end, state = self.memory.block.terminator, self.memory.first
        assert self.now is not None and state.op is not None
        rewriter = Rewriter(self.function).at(end)
        shown = rewriter.create(STATE, [], state.op.attrs, state.op.origin).result
        rewriter.create(ASSIGN, [shown, self.reshaped(self.now, state, end)])

    def reshaped(self, value: Value, like: Value, at: Op) -> Value:
        if value.type.dims == like.type.dims:
            return value
        return self.create(RESHAPE, [value], at, shape=like.type.dims)

    def create(
        self, record: OpRecord, operands: list[Value | None], at: Op, **attrs: Attr
    ) -> Value:
        """A fresh op before `at`, which counts as standing where that does."""
        made = Rewriter(self.function).at(at).create(record, operands, attrs, at.origin)
        self.places[made] = self.places[at]
        return made.result


WRITE_VALUES = Pass("write-values", run, __doc__)
