"""write-values: turns memory written in place into SSA values, one per write.

    y = neg(x); assign(y, z); w = relu(y)   ->   y = neg(x); w = relu(z)

A reader gets what the memory holds where it reads. A branch that writes memory from outside of it
yields what that holds then, and a loop carries it. What a state variable holds in the end is
assigned once, by the last ops of the function; what an input does is one more result, which
`Function.updates` ties to the input. A write to a part is `put_slice`, whose result takes the
memory of what it is put into where nothing else reads that.

Requires: nothing pending.
Ensures: memory of the function itself and of its inputs is not written, and that of fixed state
    variables at most once and not read behind that, if it is known in every run which memory each
    write is to; views of it are reshapes.
Never: touches memory that tuples hold or that a run chooses, or a function with calls of unknown
    effect.
"""

from __future__ import annotations

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import ancestor_in
from aot.errors import InternalError
from aot.ir.graph import Attr, Block, Function, Module, Op, Value, walk
from aot.ir.record import OpRecord
from aot.ir.rewriter import Rewriter
from aot.ops.control import ASSIGN, STATE, WRITE_SLICE
from aot.ops.movement import COPY, RESHAPE
from aot.ops.put import PUT_SLICE
from aot.passes.base import Pass, PassContext
from aot.passes.memory.inline import copy_rows
from aot.passes.memory.memories import Memories, Memory

NEXT = ".next"  # behind the name of an input: the result that is what its memory holds afterwards


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        if AliasDb.where_written(function) is not None:
            context.count("write-values", "writes", write_values(function))


def write_values(function: Function) -> int:
    """Turns a function's writes into values; returns how many."""
    if any(op.record.has_unknown_effects for op in function.walk()):
        return 0
    memories = Memories(function)
    rows = memories.unwritten_rows()
    written = sum(_Values(function, memories, memory).run() for memory in memories.separate())
    for op in rows:
        copy_rows(function, op)
    return written


def add_update(function: Function, name: str, value: Value) -> None:
    """Adds a result to the function: the new content of input `name` after a run."""
    result = f"{name}{NEXT}"
    while result in function.result_names:
        result += NEXT
    end = function.block.terminator
    rewriter = Rewriter(function).at(end)
    rewriter.create(end.record, [*end.operands, value], end.attrs, end.origin)
    rewriter.erase(end)
    function.result_names.append(result)
    function.updates[result] = name


class _Values:
    """Turns the writes of one memory into values.

    What it holds is handed from op to op as `now`; None as long as it is what it was at first.
    """

    def __init__(self, function: Function, memories: Memories, memory: Memory) -> None:
        self.function = function
        self.memories = memories
        self.memory = memory
        self.touching = self.find_touching()

    def find_touching(self) -> dict[Block, list[Op]]:
        """The ops of each block that use the memory or contain such ops, in order."""
        found: dict[Block, dict[Op, None]] = {}
        for value in self.memory.shows:
            for user in value.users:
                at: Op | None = user
                while at is not None and at.parent is not None:
                    found.setdefault(at.parent, {})[at] = None
                    outer = at.parent.owner
                    is_home = at.parent is self.memory.home
                    at = outer if isinstance(outer, Op) and not is_home else None
        places = self.memories.places
        return {block: sorted(ops, key=places.__getitem__) for block, ops in found.items()}

    def run(self) -> int:
        memory = self.memory
        now = self.convert(memory.home, None)
        if now is None:
            raise InternalError("memory that is written has no writes")
        if isinstance(memory.root, str):
            self.keep(memory.root, now)
        elif memory.root.op is None and memory.home is self.function.block:
            end = self.function.block.terminator
            place = self.memories.places.pop(end)
            add_update(self.function, memory.root.name, self.reshaped(now, memory.root, end))
            self.memories.places[self.function.block.terminator] = place
        for value in reversed(memory.shows):
            maker = value.op
            if maker is not None and not value.uses and maker.record.view_of is not None:
                Rewriter(self.function).erase(maker)
        return len(memory.writes)

    def convert(self, block: Block, now: Value | None) -> Value | None:
        """The memory's content at the end of a block, as a value; `now` is its content at the
        start, None if unchanged."""
        for op in self.touching.get(block, ()):
            if op in self.memory.writes:
                now = self.write(op, now)
            elif op.blocks and any(self.writes_in(op)):
                now = self.go_through(op, now)
            elif op.record.view_of is None or op.results[0] not in self.memory.shows:
                self.read(op, now)  # the others show it, and don't read
        return now

    def writes_in(self, op: Op) -> list[Op]:
        assert op.parent is not None
        return [w for w in self.memory.writes if ancestor_in(w, op.parent) is op]

    def write(self, op: Op, now: Value | None) -> Value:
        """The memory's content after a write, as a value."""
        shown, source = op.operands[0], op.operands[1]
        assert shown is not None and source is not None
        copies = op.record is not WRITE_SLICE and self.memories.may_be_written(source)
        self.read(op, now, but=0)
        source = op.operands[1]
        assert source is not None
        if op.record is WRITE_SLICE:
            made = self.create(PUT_SLICE, [self.seen(shown, now, op), *op.operands[1:]], op)
        elif copies:  # what it holds now, not later
            made = self.create(COPY, [source], op)
        else:
            made = source
        return self.reshaped(made, self.first(op), op)

    def go_through(self, op: Op, now: Value | None) -> Value:
        """The memory's content after an op with blocks that write it, as a value."""
        for number, value in enumerate(op.operands):
            if value is not None and value in self.memory.shows and now is not None:
                Rewriter(self.function).set_operand(op, number, self.seen(value, now, op))
        body, before = op.record.body, self.initial(op) if now is None else now
        assert body is not None
        if body.is_loop:
            return self.go_around(op, before)
        ends = [self.convert(block, before) for block in op.blocks]
        if body.kind != "choice" or None in ends:
            raise InternalError(f"{op} writes memory in a block that is no branch")
        return Rewriter(self.function).add_choice(op, [v for v in ends if v is not None])

    def go_around(self, loop: Op, before: Value) -> Value:
        """The memory's content after a loop that writes it. A loop-carried value that already is
        the memory is reused.
        """
        body, (block,) = loop.record.body, loop.blocks
        assert body is not None
        rewriter = Rewriter(self.function)
        for argument in block.args[len(body.given) :]:
            number = argument.index - len(body.given)
            result = loop.results[number]
            if argument in self.memory.shows and argument.type == before.type:
                rewriter.set_operand(loop, body.first + number, before)
                break
        else:
            argument, result = rewriter.carry(loop, before)
        end = self.convert(block, argument)
        assert end is not None
        number = len(body.steering) + argument.index - len(body.given)
        rewriter.set_operand(block.terminator, number, end)
        return result

    def initial(self, at: Op) -> Value:
        """The memory's initial content, as a value."""
        root = self.memory.root
        if isinstance(root, Value):
            return root
        state = next(v.op for v in self.memory.shows if v.op is not None and v.op.record.is_state)
        return self.create(STATE, [], at, **state.attrs)

    def first(self, at: Op) -> Value:
        """A value of the memory's type."""
        root = self.memory.root
        return root if isinstance(root, Value) else next(iter(self.memory.shows))

    def read(self, op: Op, now: Value | None, but: int = -1) -> None:
        """Makes an op, and ops nested in it, read the memory's current content."""
        if now is None:
            return
        for user in (op, *(inner for block in op.blocks for inner in walk(block))):
            for number, value in enumerate(user.operands):
                if value in self.memory.shows and not (user is op and number == but):
                    assert value is not None
                    seen = self.seen(value, now, op)
                    Rewriter(self.function).set_operand(user, number, seen)

    def seen(self, value: Value, now: Value | None, at: Op) -> Value:
        """The current content of `value`, an alias of the memory."""
        return value if now is None else self.reshaped(now, value, at)

    def keep(self, variable: str, now: Value) -> None:
        """Assigns the final content to a state variable."""
        end = self.memory.home.terminator
        shown = self.initial(end)
        Rewriter(self.function).at(end).create(ASSIGN, [shown, self.reshaped(now, shown, end)])

    def reshaped(self, value: Value, like: Value, at: Op) -> Value:
        if value.type.dims == like.type.dims:
            return value
        return self.create(RESHAPE, [value], at, shape=like.type.dims)

    def create(
        self, record: OpRecord, operands: list[Value | None], at: Op, **attrs: Attr
    ) -> Value:
        """Creates an op before `at`, and gives it the same position."""
        made = Rewriter(self.function).at(at).create(record, operands, attrs, at.origin)
        self.memories.places[made] = self.memories.places[at]
        return made.result


WRITE_VALUES = Pass("write-values", run, __doc__)
