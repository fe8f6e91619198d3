"""The storage of a program's values: buffer class, the value whose memory each one uses, and its
offset there.

A view is stored in its operand; a part of an assembled value in that value; what a branch yields in
the result of its op; what a loop's iteration stacks in its row. Changes no op and assigns no
addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.analysis.control import control_ops
from aot.analysis.memory.views import is_view, map_of, view_offset
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim, add, multiply
from aot.ir.graph import Block, Function, Op, Value
from aot.ops.control import ASSIGN, IF, LOOP, STATE
from aot.ops.selection import CONCAT_ALIAS

CONSTANTS, ARENA, INPUTS, OUTPUTS = range(4)  # BufferClass of module.fbs


@dataclass(frozen=True)
class BufferSlice:
    """The part of a buffer in which a value is stored.

    Attributes:
        root: the value whose memory this is: a constant, an input, a dispatch's result, the value
            that such results are assembled to, a result of control flow, an argument of a loop's
            block, or the first `state` op of a variable.
        binding: the buffer class.
        output: which output of the function the memory is, for OUTPUTS.
        offset_bytes: where in the root's memory the value begins.
    """

    root: Value
    binding: int
    output: int = -1
    offset_bytes: Dim = 0


class BufferAssignment:
    """The storage of the values in a function's control blocks, computed on demand.

    Attributes:
        rows: what a run of a loop makes in its row of what is stacked, and that result of the loop.
        nexts: what a run makes as a carried value of the next one, and that argument.
        states: the root of each state variable's memory.
        assigned: the `assign` op of each state variable that has one.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.rows: dict[Value, Value] = {}
        self.nexts: dict[Value, Value] = {}
        self.states: dict[str, Value] = {}
        self.assigned: dict[str, Op] = {}
        self._places: dict[Value, tuple[Value, Dim]] = {}
        self._claimed: dict[Value, int] = {}
        self._roots: dict[Value, tuple[Value, Dim]] = {}
        self._place_states()
        wholes = [op for op in control_ops(function) if op.record is CONCAT_ALIAS]
        for op in reversed(wholes):  # the whole before a part that is assembled itself
            self._place_parts(op)
        for op in control_ops(function):
            if op.record is IF:
                self._place_choice(op)
            elif op.record is LOOP:
                self._place_loop(op)
        for number, value in enumerate(function.results):
            root, offset = self._find(value)
            if self.is_made(root) and offset == 0 and root.type.bytes == value.type.bytes:
                self._claimed.setdefault(root, number)

    # Each root has one place: parts of what is assembled first, which have no other choice.

    def _place_states(self) -> None:
        for op in control_ops(self.function):
            if op.record is STATE:
                root = self.states.setdefault(str(op.attrs["variable"]), op.result)
                if root is not op.result:
                    self._places[op.result] = root, 0
        for op in control_ops(self.function):
            if op.record is ASSIGN:
                self._place_assigned(op)

    def _place_assigned(self, op: Op) -> None:
        written, source = op.operands
        assert written is not None and source is not None
        state = root_of(written)[0].op
        if state is None or state.record is not STATE:
            raise InternalError(f"{op} writes what is no state variable")
        name = str(state.attrs["variable"])
        if op.parent is not self.function.block or name in self.assigned:
            raise InternalError(f"{op} assigns state {name!r} in a block of its own, or again")
        self.assigned[name] = op
        root, offset = root_of(source)
        if offset == 0 and self._holds(root, name):  # what was there and more
            self._places[root] = self.states[name], 0

    def _holds(self, whole: Value, variable: str) -> bool:
        """Whether a value is a concatenation in memory that has a state variable as a part."""
        if whole.op is None or whole.op.record is not CONCAT_ALIAS:
            return False
        parts = [root_of(v)[0] for v in whole.op.operands if v is not None]
        return any(
            part.op is not None
            and (
                part.op.attrs["variable"] == variable
                if part.op.record is STATE
                else self._holds(part, variable)
            )
            for part in parts
        )

    def _place_parts(self, op: Op) -> None:
        for value, offset in zip(op.operands, part_offsets(op), strict=True):
            assert value is not None
            root, inner = root_of(value)
            distance = multiply(offset, value.type.dtype.bytes)
            if root.op is not None and root.op.record is STATE:
                # in place already, if the whole is in the state's memory
                at, start = self._find(op.result)
                is_there = at is self.states[str(root.op.attrs["variable"])]
                if is_there and inner == 0 and add(start, distance) == 0:
                    continue
            if inner != 0 or root in self._places or not self.is_made(root):
                raise InternalError(f"{op}: a part of it has no memory that could be in it")
            self._places[root] = op.result, distance

    def _place_choice(self, op: Op) -> None:
        for block in op.blocks:
            for result, value in zip(op.results, yielded(op, block), strict=True):
                root = self._free_root(value, block)
                if result.uses and root is not None:
                    self._places[root] = result, 0

    def _place_loop(self, op: Op) -> None:
        (block,) = op.blocks
        made = yielded(op, block)
        for carried in carried_values(op):
            if root_of(carried.following) == (carried.argument, 0):
                # it never changes: the argument and the result are the operand
                for value in (carried.argument, carried.result):
                    self._places[value] = root_of(carried.operand)
                continue
            root = self._free_root(carried.following, block)
            if root is not None:
                self.nexts[root] = carried.argument
        count = carried_count(op)
        for result, value in zip(op.results[count:], made[count:], strict=True):
            root = self._free_root(value, block)
            if result.uses and root is not None:
                self.rows[root] = result

    def _free_root(self, value: Value, block: Block) -> Value | None:
        """The root of a value, if all its memory is created in `block` and may be placed anywhere;
        else None."""
        root, offset = root_of(value)
        is_free = root not in self._places and root not in self.nexts and root not in self.rows
        is_here = root.op is not None and root.op.parent is block and self.is_made(root)
        is_whole = offset == 0 and root.type.bytes == value.type.bytes
        return root if is_free and is_here and is_whole else None

    def is_made(self, root: Value) -> bool:
        """Whether ops write the root's memory, so that the linker may place it."""
        op = root.op
        if op is None or op.record in (CONSTANT, STATE):
            return False
        # carried values go to and fro between two places
        return op.record is not LOOP or root.index >= carried_count(op)

    def is_invariant(self, argument: Value) -> bool:
        """Whether a loop-carried argument equals the loop's operand in every iteration."""
        return argument in self._places

    def _find(self, value: Value) -> tuple[Value, Dim]:
        found = self._roots.get(value)
        if found is None:
            found = self._roots[value] = root_of(value)
        root, offset = found
        while root in self._places:
            root, more = self._places[root]
            offset = add(offset, more)
        return root, offset

    def of(self, value: Value) -> BufferSlice:
        """The slice of a buffer that `value` is stored in."""
        root, offset = self._find(value)
        if root in self._claimed:
            return BufferSlice(root, OUTPUTS, self._claimed[root], offset)
        if root in self.rows:
            stack = self.of(self.rows[root])
            return BufferSlice(root, stack.binding, stack.output, offset)
        if isinstance(root.owner, Block):
            is_input = root.owner is self.function.block
            return BufferSlice(root, INPUTS if is_input else ARENA, -1, offset)
        if root.owner.record is CONSTANT:
            return BufferSlice(root, CONSTANTS, -1, offset)
        return BufferSlice(root, ARENA, -1, offset)

    def bindings(self, values: Sequence[Value]) -> tuple[int, ...]:
        """The buffer class of each of `values`."""
        return tuple(self.of(v).binding for v in values)


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries from one iteration to the next.

    Attributes:
        following: what the block yields for the next run.
    """

    operand: Value
    argument: Value
    following: Value
    result: Value


def is_choice(op: Op) -> bool:
    """Whether the op is control flow that runs one of its blocks."""
    return op.record is IF


def is_loop(op: Op) -> bool:
    """Whether the op is control flow that runs its block repeatedly."""
    return op.record is LOOP


def carried_count(loop: Op) -> int:
    """The number of values that a `loop` op carries; they are its first results."""
    body = loop.record.body
    assert body is not None
    return len(loop.operands) - body.first


def carried_values(loop: Op) -> list[Carried]:
    """The carried values of a `loop` op."""
    body = loop.record.body
    assert body is not None
    (block,) = loop.blocks
    operands = [v for v in loop.operands[body.first :] if v is not None]
    rows = zip(operands, block.args[len(body.given) :], strict=True)
    following = yielded(loop, block)
    return [Carried(v, a, following[n], loop.results[n]) for n, (v, a) in enumerate(rows)]


def yielded(op: Op, block: Block) -> list[Value]:
    """The values that a block of `op` yields as results."""
    body = op.record.body
    assert body is not None
    return [v for v in block.terminator.operands[len(body.steering) :] if v is not None]


def part_offsets(op: Op) -> list[Dim]:
    """The offset in elements of each part within a concatenation's memory."""
    axis, type = op.int("axis"), op.result.type
    step = type.strides[axis]
    found: list[Dim] = []
    total: Dim = 0
    for value in op.operands:
        assert value is not None
        found.append(multiply(total, step))
        total = add(total, value.type.dims[axis])
    return found


def root_of(value: Value) -> tuple[Value, Dim]:
    """(value whose bytes `value` shares, byte offset within it), following all views."""
    offset: Dim = 0
    while value.op is not None and is_view(value.op):
        map, source = map_of(value.op), value.op.operands[value.op.record.view_of or 0]
        if source is None:
            raise InternalError(f"{value.op} is a view of an absent operand")
        if map is not None:
            begin = view_offset(map, source.type)
            offset = add(offset, multiply(begin, source.type.dtype.bytes))
        value = source
    return value, offset
