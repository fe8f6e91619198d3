"""Determines which memory each value of a function aliases, through views, branches and loops, and
which memory can be replaced by values.

Two inputs count as two memories: the runtime refuses a written input that overlaps another one.
Knows nothing of storage, and changes nothing.
"""

from __future__ import annotations

from dataclasses import field

from aot.analysis.control import ancestor_in, block_of
from aot.analysis.memory.views import map_of
from aot.base.records import dataclass
from aot.ir.graph import Block, Function, Op, Value, walk
from aot.ir.index_map import Reshape
from aot.ir.types import TensorType
from aot.ops.control import ASSIGN, STATE, WRITE_SLICE

Root = Value | str  # the value that brings memory into being, or the name of a state variable
Places = dict[Op, int]
UNKNOWN: Root = ""  # memory that is not followed: a growing state variable's


@dataclass
class Memory:
    """Memory that is written, with the values that alias it and nothing else.

    Attributes:
        home: the block in which it is made, or known from the start; it is written and shown
            there and in blocks inside.
        type: of all of it.
        shows: values that show it, in order.
        writes: ops that write it, in order.
    """

    root: Root
    home: Block
    type: TensorType
    shows: dict[Value, None] = field(default_factory=dict)
    writes: dict[Op, None] = field(default_factory=dict)


class Memories:
    """The memory of each value of a function.

    Attributes:
        places: where each op stands in its block.
        shown: each value's memory: of more than one, it is decided in a run which.
        rows: tuples, and what takes rows of them.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.places: Places = {}
        self.shown: dict[Value, frozenset[Root]] = {}
        self.writes: dict[Root, dict[Op, None]] = {}
        self.rows: list[Op] = []
        self._types: dict[str, TensorType] = {}
        self._lost: set[Root] = {UNKNOWN}
        for value in function.inputs:
            self.shown[value] = frozenset([value])
        self._block(function.block)
        self._unseen = frozenset(self._lost)  # others may write it
        self._find_writes()

    def separate(self) -> list[Memory]:
        """Written memory whose writers and readers are all known, in the order of the writes."""
        for value, roots in self.shown.items():
            if self._is_changed(value):
                self._lost |= roots
        found: dict[Root, Memory] = {}
        for root, writes in self.writes.items():
            if root not in self._lost:
                found[root] = Memory(root, self.home(root), self._type(root), {}, writes)
        for value, roots in self.shown.items():
            (root, *others) = roots
            if not others and root in found:
                found[root].shows[value] = None
        return [
            memory
            for memory in found.values()
            if memory.type.layout is None
            and all(value.type.layout is None for value in memory.shows)
            and not _is_settled(memory)
        ]

    def unwritten_rows(self) -> list[Op]:
        """Tuples, and rows taken from them, whose memory nobody writes while they are used."""
        return [op for op in dict.fromkeys(self.rows) if not self._is_changed(op.result)]

    def _is_changed(self, value: Value) -> bool:
        roots = self.shown[value]
        if len(roots) < 2 or roots.isdisjoint(self._lost | self.writes.keys()):
            return False
        return self._changes(value, roots)

    def may_be_written(self, value: Value) -> bool:
        """Whether the memory that a value aliases is written anywhere."""
        roots = self.shown.get(value)
        return roots is None or not (roots.isdisjoint(self._lost) and roots.isdisjoint(self.writes))

    def home(self, root: Root) -> Block:
        """The block in which a piece of memory is created."""
        block = self.function.block if isinstance(root, str) else block_of(root)
        assert block is not None
        return block

    def _type(self, root: Root) -> TensorType:
        return self._types[root] if isinstance(root, str) else root.type

    # what values show

    def _block(self, block: Block) -> None:
        for place, op in enumerate(block):
            self.places[op] = place
            self._op(op)

    def _op(self, op: Op) -> None:
        record = op.record
        if record.body is not None and not record.body.is_isolated:
            self._blocks(op)
        elif record.is_state:
            self._state(op)
        elif record.view_of is not None and is_followed(op):
            self.shown[op.result] = self._of(op.operands[record.view_of])
        elif record.container in ("holds", "opens"):
            self.rows.append(op)
            own = frozenset([op.result])  # one more, so that which it is counts as chosen
            self.shown[op.result] = own.union(*map(self._of, op.operands))
        elif record.view_of is not None or record.container or record.results_from != "rule":
            for value in op.operands:
                self._lost |= self._of(value)
            inside = (inner for block in op.blocks for inner in walk(block))
            self._lost |= {str(o.attrs["variable"]) for o in inside if o.record.is_state}
            for value in op.results:
                self.shown[value] = frozenset([UNKNOWN])
        else:
            for value in op.results:
                self.shown[value] = frozenset([value])

    def _of(self, value: Value | None) -> frozenset[Root]:
        return self.shown.get(value, frozenset()) if value is not None else frozenset()

    def _state(self, op: Op) -> None:
        name = str(op.attrs["variable"])
        root: Root = name if op.attrs["capacity"] == 0 else UNKNOWN
        self._types.setdefault(name, op.result.type)
        self.shown[op.result] = frozenset([root])

    def _blocks(self, op: Op) -> None:
        """Propagates aliases into an op's blocks; for a loop, until a fixed point."""
        body = op.record.body
        assert body is not None
        is_new = True
        while is_new:
            is_new = False
            for block in op.blocks:
                for value in block.args:
                    entering = body.entering(op, value.index)
                    is_new |= self._show(value, entering, is_loop=body.is_loop)
                self._block(block)
        for value in op.results:
            self._show(value, body.leaving(op, value.index), is_loop=False)

    def _show(self, value: Value, sources: list[Value] | None, *, is_loop: bool) -> bool:
        """Sets what a value aliases; returns whether a loop learned more. A value without sources
        is memory of its own."""
        own: frozenset[Root] = frozenset([value])
        roots = own.union(*map(self._of, sources)) - own if sources else own
        is_new = is_loop and self.shown.get(value) != roots
        self.shown[value] = roots
        return is_new

    # what is written

    def _find_writes(self) -> None:
        for op in self.places:
            for number in op.record.writes:
                roots = self._of(op.operands[number])
                for root in roots:
                    self.writes.setdefault(root, {})[op] = None
                if len(roots) != 1:
                    self._lost |= roots

    def _changes(self, value: Value, roots: frozenset[Root]) -> bool:
        """Whether memory that a value may alias may be written before the value's last use."""
        block = block_of(value)
        assert block is not None
        first = -1 if value.op is None else self.places[value.op]
        users = [u for user in value.users if (u := ancestor_in(user, block)) is not None]
        last = max((self.places[u] for u in users), default=first)
        if not roots.isdisjoint(self._unseen):
            return first < last
        for root in roots:
            if value.op is None and self._is_inside(self.home(root), block):
                continue  # it shows what an earlier run made; writes are to what this one makes
            for op in self.writes.get(root, ()):
                at = ancestor_in(op, block)
                if at is None or not first < self.places[at] <= last:
                    continue
                if at is not op or self.places[at] < last:
                    return True
        return False

    @staticmethod
    def _is_inside(block: Block, outer: Block) -> bool:
        while block is not outer:
            owner = block.owner
            if not isinstance(owner, Op) or owner.parent is None:
                return False
            block = owner.parent
        return True


def is_followed(op: Op) -> bool:
    """Whether an op's result aliases its operand's memory in an invertible way."""
    if op.record in (ASSIGN, WRITE_SLICE):
        return True
    map = map_of(op)
    return map is not None and all(isinstance(step, Reshape) for step in map.steps)


def _is_settled(memory: Memory) -> bool:
    """Whether the memory is a state variable that is assigned once and not read afterwards."""
    (write, *others) = memory.writes
    shown = write.operands[0]
    if others or write.record is not ASSIGN or not isinstance(memory.root, str):
        return False
    if shown is None or shown.op is None or shown.op.record is not STATE:
        return False
    if write.parent is not memory.home:
        return False
    at = write.next
    while at is not None:
        if any(_is_user(at, value) for value in memory.shows):
            return False
        at = at.next
    return True


def _is_user(op: Op, value: Value) -> bool:
    """Whether an op, or an op nested in it, uses a value."""
    assert op.parent is not None
    return any(ancestor_in(user, op.parent) is op for user in value.users)
