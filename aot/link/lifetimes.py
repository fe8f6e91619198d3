"""The lifetime in the arena of each value of a program.

Positions follow the program's order: dispatches, and the borders of control flow, where conditions
are read and values copied. What a loop's block uses from outside lives until the loop ends; what
one of its runs carries to the next has two buffers for as long as the loop takes. Places nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot.analysis.control import block_of, control_ops
from aot.analysis.dispatches import is_dispatch
from aot.analysis.memory.storage import (
    ARENA,
    BufferAssignment,
    Carried,
    carried_count,
    carried_values,
    is_choice,
    is_loop,
    root_of,
    yielded,
)
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir.builtin import EXTENT
from aot.ir.data_dims import Largest
from aot.ir.dims import Dim
from aot.ir.graph import Block, ConstantData, Function, Op, Value


@dataclass(eq=False)
class Buffer:
    """A buffer of the arena: the memory of one root value, or of several that reuse it in turn.

    Attributes:
        is_nested: what makes it may not run, and its size is checked only where it does.
    """

    size: Dim
    first: int
    last: int
    is_nested: bool = False


@dataclass(frozen=True)
class CarriedBuffers:
    """The buffers of a loop-carried value.

    Attributes:
        current: of the first run.
        following: where the first run makes the next one's; None if it does so in place.
        is_taken: the operand is in `current` already.
    """

    current: Buffer
    following: Buffer | None
    is_taken: bool


class Lifetimes:
    """The buffers of a function and their lifetimes.

    Args:
        elsewhere: roots whose memory is not of the arena's buffers.
        copied: what is read when the function's own ops have run, in order.
        largest: how large dims are that only a run knows.

    Attributes:
        last: the last position at which a root's memory is read, loops around it included.
        buffers: by root value, in the order in which they are made.
        carried: by the argument of a loop's block, of those that change.
        end: the position where the function's own ops have run.
    """

    def __init__(
        self,
        function: Function,
        assignment: BufferAssignment,
        elsewhere: set[Value],
        copied: Sequence[Value],
        largest: Largest,
    ) -> None:
        self.function = function
        self.assignment = assignment
        self._largest = largest
        self.elsewhere = elsewhere
        self.last: dict[Value, int] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.carried: dict[Value, CarriedBuffers] = {}
        self._at: dict[Op, int] = {}
        self._end: dict[Block, int] = {}
        self._widened: dict[Value, Block] = {}
        self._makers = {argument: root for root, argument in assignment.nexts.items()}
        self._positions = 0
        self._number(function.block)
        self.end = self._positions
        self._widen()
        self._read_block(function.block)
        for value in copied:
            self._read(value, self._next(), function.block)
        self._make_block(function.block)

    def all_buffers(self) -> list[Buffer]:
        """All buffers without repetition, in the order of creation."""
        found: dict[Buffer, None] = {}
        for root, buffer in self.buffers.items():
            found[buffer] = None
            pair = self.carried.get(root)
            if pair is not None and pair.following is not None:
                found[pair.following] = None
        return list(found)

    def position(self, op: Op) -> int:
        """The position of a dispatch in the program, or the one at which an op with blocks
        begins."""
        return self._at[op]

    def end_of(self, block: Block) -> int:
        """The position at which a block of control flow ends."""
        return self._end[block]

    def dispatches(self) -> Iterator[tuple[Op, int]]:
        """(dispatch, position) of all dispatches of the function."""
        return ((op, at) for op, at in self._at.items() if is_dispatch(op))

    def _next(self) -> int:
        self._positions += 1
        return self._positions - 1

    def _number(self, block: Block) -> None:
        for op in block:
            if is_dispatch(op) or op.record is EXTENT:
                self._at[op] = self._next()
            elif is_choice(op) or is_loop(op):
                self._at[op] = self._next()
                for inner in op.blocks:
                    self._number(inner)
                    self._end[inner] = self._next()

    def _widen(self) -> None:
        """Widens the scope of each control op's result to the outermost block that writes a part of
        it.
        """
        for op in control_ops(self.function):
            for result in op.results:
                root = self.assignment.of(result).root
                if root is not result and op.parent is not None:
                    scope = self._scope(root)
                    if _is_inside(scope, op.parent):
                        self._widened[root] = op.parent

    def _scope(self, root: Value) -> Block | None:
        return self._widened.get(root) or block_of(root)

    def _span(self, root: Value, at: int, block: Block | None) -> tuple[int, int]:
        """(first, last) position at which a root must be live for an access at position `at` in a
        block: all of the outermost loop around the access that is inside the root's scope."""
        scope, first, last = self._scope(root), at, at
        while block is not None and block is not scope:
            owner = block.owner
            if not isinstance(owner, Op):
                return at, at
            if is_loop(owner):
                first, last = self._at[owner], self._end[block]
            block = owner.parent
        return first, last

    # What is read, and when.

    def _read(self, value: Value | None, at: int, block: Block | None) -> None:
        if value is not None:
            root = self.assignment.of(value).root
            self.last[root] = max(self.last.get(root, -1), self._span(root, at, block)[1])

    def _read_scalar(self, value: Value | None, at: int, block: Block) -> None:
        """Records the read of a scalar that controls an `if` or a `loop`, unless it is a constant
        or a loop's counter."""
        if value is not None and known_scalar(value) is None and not is_counter(value):
            self._read(value, at, block)

    def _read_block(self, block: Block) -> None:
        for op in block:
            at = self._at.get(op, 0)
            if is_dispatch(op):
                for value in op.operands:
                    self._read(value, at, block)
            elif op.record is EXTENT:
                self._read_scalar(op.operands[0], at, block)
            elif is_choice(op):
                self._read_scalar(op.operands[0], at, block)
                for inner in op.blocks:
                    self._read_block(inner)
                    for result, value in zip(op.results, yielded(op, inner), strict=True):
                        if result.uses and self.assignment.of(result) != self.assignment.of(value):
                            self._read(value, self._end[inner], inner)
            elif is_loop(op):
                self._read_loop(op, at, block)

    def _read_loop(self, op: Op, at: int, block: Block) -> None:
        (inner,) = op.blocks
        end, assignment = self._end[inner], self.assignment
        for scalar in op.operands[:2]:
            self._read_scalar(scalar, at, block)
        self._read_block(inner)
        self._read_scalar(inner.terminator.operands[0], end, inner)
        for carried in carried_values(op):
            if not assignment.is_invariant(carried.argument):
                self._read(carried.operand, at, block)
                if not is_made(assignment, carried):
                    self._read(carried.following, end, inner)
        count = carried_count(op)
        rows = zip(op.results[count:], yielded(op, inner)[count:], strict=True)
        for result, value in rows:
            if result.uses and assignment.rows.get(assignment.of(value).root) is not result:
                self._read(value, end, inner)

    # What is made, and where.

    def _make_block(self, block: Block) -> None:
        for op in block:
            if is_dispatch(op):
                self._make_results(op)
            elif is_choice(op):
                for inner in op.blocks:
                    self._make_block(inner)
                    for result in op.results:
                        if result.uses:
                            self._make(result, self._end[inner], block)
            elif is_loop(op):
                self._make_loop(op)

    def _make_results(self, op: Op) -> None:
        """Gives an op's results memory: that of the operand a result is tied to, if the operand
        dies here.
        """
        at = self._at[op]
        ties = op.attrs.get("ties") or (-1,) * len(op.results)
        assert isinstance(ties, tuple)
        for result, tie in zip(op.results, ties, strict=True):
            buffer_slice, taken = self.assignment.of(result), self._tied(op, tie, at)
            is_free = (
                buffer_slice.binding == ARENA
                and buffer_slice.root is result
                and self._is_here(result)
            )
            if taken is not None and is_free and taken.size == self._bytes(result):
                taken.last = self.last.get(result, at)
                self.buffers[result] = taken
            else:
                self._make(result, at, op.parent)

    def _make(self, value: Value, at: int, block: Block | None) -> None:
        """Records that a root is live from position `at` on, where an op writes a value or a part
        of it.
        """
        buffer_slice = self.assignment.of(value)
        root = buffer_slice.root
        if buffer_slice.binding != ARENA or not self._is_here(root):
            return
        first, last = self._span(root, at, block)
        known = self.buffers.get(root)
        if known is None:
            last = max(last, self.last.get(root, at))
            is_nested = block is not self.function.block
            self.buffers[root] = Buffer(self._bytes(root), first, last, is_nested)
        else:
            known.last = max(known.last, last)

    def _bytes(self, value: Value) -> Dim:
        """The size of a value in bytes, or an upper bound if its dims are data-dependent.

        Raises:
            CompileError: nothing says how many they are at most.
        """
        found = self._largest.largest(value.type.bytes)
        if found is None:
            where = f" (node {value.op.origin!r})" if value.op and value.op.origin else ""
            raise CompileError(
                f"a value of type {value.type}{where}: nothing says how large it can be"
            )
        return found

    def _is_here(self, root: Value) -> bool:
        """Whether a root in the arena has a buffer of its own."""
        assignment = self.assignment
        is_elsewhere = root in self.elsewhere or root in assignment.rows or root in assignment.nexts
        return not is_elsewhere and root.op is not None

    def _tied(self, op: Op, tie: object, at: int) -> Buffer | None:
        """The buffer that a result may reuse: its tied operand's, if that dies at the op."""
        root = self._dying(op, tie, at)
        found = None if root is None else self.buffers.get(root)
        return found if found is not None and found.last == at else None

    def _dying(self, op: Op, tie: object, at: int) -> Value | None:
        """The root of a tied operand if the op is the last to read its memory; else None."""
        if not isinstance(tie, int) or tie < 0:
            return None
        operand = op.operands[tie]
        if operand is None:
            return None
        buffer_slice = self.assignment.of(operand)
        if (
            buffer_slice.binding != ARENA
            or self.last[buffer_slice.root] != at
            or buffer_slice.offset_bytes != 0
        ):
            return None
        others = [v for n, v in enumerate(op.operands) if n != tie and v is not None]
        return (
            None
            if any(self.assignment.of(v).root is buffer_slice.root for v in others)
            else buffer_slice.root
        )

    def _make_loop(self, op: Op) -> None:
        (block,) = op.blocks
        at, end = self._at[op], self._end[block]
        for carried in carried_values(op):
            if not self.assignment.is_invariant(carried.argument):
                self._make_carried(op, carried)
        index = block.args[0]
        if index in self.last:
            nested = op.parent is not self.function.block
            self.buffers[index] = Buffer(self._bytes(index), at, self.last[index], nested)
        for result in op.results[carried_count(op) :]:
            if result.uses:
                self._make(result, at, op.parent)
                self._make(result, end, op.parent)
        self._make_block(block)

    def _make_carried(self, op: Op, carried: Carried) -> None:
        at, (block,) = self._at[op], op.blocks
        last = max(self._end[block], self.last.get(carried.result, 0))
        size, is_nested = self._bytes(carried.argument), op.parent is not self.function.block
        taken = self._taken(carried.operand, size, at)
        current = taken or Buffer(size, at, last, is_nested)
        current.last = last
        following = None
        if not self._is_in_place(carried, size):
            following = Buffer(size, at, last, is_nested)
        self.carried[carried.argument] = CarriedBuffers(current, following, taken is not None)
        self.buffers[carried.argument] = current

    def _taken(self, operand: Value, size: Dim, at: int) -> Buffer | None:
        """The buffer of a loop's operand if the loop can reuse it: no other value uses it, and it
        dies there."""
        buffer_slice = self.assignment.of(operand)
        found = self.buffers.get(buffer_slice.root)
        is_whole = buffer_slice.binding == ARENA and buffer_slice.offset_bytes == 0
        if found is None or isinstance(buffer_slice.root.owner, Block) or not is_whole:
            return None
        is_dying = self.last[buffer_slice.root] == at == found.last
        return found if is_dying and found.size == size else None

    def _is_in_place(self, carried: Carried, size: Dim) -> bool:
        """Whether an iteration computes the next value of a carried one in the memory of the
        current value."""
        made = self._makers.get(carried.argument)
        if made is None or made.op is None or not is_dispatch(made.op):
            return False
        ties = made.op.attrs.get("ties") or ()
        assert isinstance(ties, tuple)
        tie = ties[made.index] if ties else -1
        dying = self._dying(made.op, tie, self._at[made.op])
        return dying is carried.argument and self._bytes(made) == size


def known_scalar(value: Value) -> int | None:
    """The number that a scalar of control flow is, if it is a constant; else None."""
    root, offset = root_of(value)
    data = None if root.op is None else root.op.attrs.get("value")
    if not isinstance(data, ConstantData) or not isinstance(offset, int):
        return None
    return int(data.array.reshape(-1)[offset // data.type.dtype.bytes])


def is_counter(value: Value) -> bool:
    """Whether a value is the counter of a loop."""
    root, _ = root_of(value)
    owner = root.owner.owner if isinstance(root.owner, Block) else None
    return isinstance(owner, Op) and is_loop(owner) and root.index == 0


def is_made(assignment: BufferAssignment, carried: Carried) -> bool:
    """Whether an iteration computes the next value of a carried one directly in the memory that the
    next iteration reads."""
    return assignment.nexts.get(root_of(carried.following)[0]) is carried.argument


def _is_inside(block: Block | None, outer: Block) -> bool:
    """Whether a block is nested in `outer`, and is not `outer` itself."""
    at = block
    while at is not None and at is not outer:
        owner = at.owner
        at = owner.parent if isinstance(owner, Op) else None
    return at is outer and block is not outer
