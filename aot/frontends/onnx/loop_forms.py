"""A loop of ONNX in the form that both ways of importing share: as an op with a block, or unrolled.

Owns how sequences that a loop carries become tensors, and how these become sequences again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import onnx

from aot.base.records import dataclass
from aot.frontends.lib.extents import capacity, extent_of
from aot.frontends.onnx.blocks import GraphImporter, discard, try_block
from aot.frontends.onnx.scopes import Held, Scope
from aot.frontends.onnx.stacks import StackType, joined, stack_of, stacked, tensors_of, type_of
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir.dims import Dim
from aot.ir.graph import Block, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType
from aot.ops.control import INDEX_TYPE

HOW_TO_KEEP_SIZE = (
    "carry a buffer of a fixed capacity and write into it (ScatterND, ScatterElements, Where), or "
    "keep it between calls (--state)"
)
Arguments = Callable[[Rewriter, Value], Mapping[str, Held]]
"""What names of the body are in a run, made at a rewriter, by the run's number i64[]."""


@dataclass
class LoopForm:
    """A loop, as both ways of importing it see it.

    Attributes:
        body: its outputs are the condition, if `has_condition`, then what is carried, then rows.
        initial: what is carried into the first run: tensors and sequences, or in a form whose
            sequences are stacks, their tensors.
        carried_names: the body's inputs for them; "" for what belongs to the one before.
        arguments: the other inputs.
        trips: how often it runs, as far as shapes say it; None where they do not.
        trip_count: the same as a value, where only data say it.
        condition: what must be true before the first run; None if it is.
        wanted: numbers of outputs that are read.
        may_open: whether the user may have to say how often it runs at most.
        is_open: whether the user does.
        keeps_rows: whether rows of several shapes stay so, as a sequence.
        stacks: the types of sequences that are carried as stacks, by their numbers in the body.
        wider: types that these must have, which a body has shown.
    """

    importer: GraphImporter
    node: Node
    outer: Scope
    body: onnx.GraphProto
    initial: list[Held]
    carried_names: Sequence[str]
    arguments: Arguments
    trips: Dim | None
    trip_count: Value | None = None
    condition: Value | None = None
    has_condition: bool = True
    wanted: set[int] = field(default_factory=set)
    may_open: bool = False
    is_open: bool = False
    keeps_rows: bool = False
    stacks: Mapping[int, StackType] = field(default_factory=dict)
    wider: dict[int, StackType] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """The number of the body's carried values."""
        return len(self.initial) - sum(bool(t.ragged) for t in self.stacks.values())

    @property
    def row_count(self) -> int:
        return len(self.body.output) - self.has_condition - self.kept

    def stack_types(self) -> dict[int, StackType]:
        """The stack types of carried sequences: those of their tensors, or of the tensors they get
        in a run."""
        lists = {n: v for n, v in enumerate(self.initial) if not isinstance(v, Value)}
        types = {n: joined(self.node, found) for n, v in lists.items() if (found := type_of(v))}
        if len(types) == len(lists):
            return types
        function = self.node.rewriter.function
        before = dict(function.assumptions)
        block = Block(
            [INDEX_TYPE, *(v.type for v in self.tensors)], ["", *[""] * len(self.tensors)]
        )
        index, *arguments = block.args
        values = iter(arguments)
        given = [next(values) if isinstance(v, Value) else v for v in self.initial]
        names = {**self.arguments(Rewriter(function, block), index), **self.named(given)}
        tried = try_block(self.importer, self.node, self.body, self.outer, block, names)
        first = next(name for name in self.node.outputs if name)
        for number in lists.keys() - types.keys():
            place = self.has_condition + number
            after = tried.values[place] if place < len(tried.values) else None
            held = [] if after is None or isinstance(after, Value) else type_of(after)
            if held:
                types[number] = joined(self.node, held, [block])
        discard(self.importer, self.node, tried)
        function.assumptions = before
        if tried.error is not None:
            raise tried.error
        if tried.lacks:
            self.outer.unsupported.extend((first, why) for why in tried.lacks)
            raise UnsupportedNodeError("")
        if len(types) < len(lists):
            raise UnsupportedNodeError("it carries a sequence that gets no tensor in its first run")
        return types

    def with_stacks(self, types: Mapping[int, StackType]) -> LoopForm:
        """The same loop with the sequences in `types` carried as stacks."""
        initial: list[Held] = []
        names: list[str] = []
        for number, (value, name) in enumerate(zip(self.initial, self.carried_names, strict=True)):
            if number in types:
                assert not isinstance(value, Value)
                parts = tensors_of(stacked(self.node, value, types[number]))
                initial += parts
                names += [name, *[""] * (len(parts) - 1)]
            else:
                initial.append(value)
                names.append(name)
        more = len(initial) - len(self.initial)
        wanted = {n + more if n >= len(self.initial) else n for n in self.wanted}
        return replace(
            self,
            initial=initial,
            carried_names=names,
            wanted=wanted,
            may_open=True,
            stacks=dict(types),
            wider={},
        )

    def packed(self, flat: Sequence[Held]) -> list[Held]:
        """The values with each stack's tensors joined into one."""
        values = iter(flat)
        found: list[Held] = []
        for number in range(self.kept):
            type = self.stacks.get(number)
            if type is None:
                found.append(next(values))
            else:
                parts = [next(values) for _ in range(1 + bool(type.ragged))]
                found.append(stack_of([v for v in parts if isinstance(v, Value)], type))
        return [*found, *values]

    def flattened(
        self, values: Sequence[Held | None], inside: Node, block: Block
    ) -> Sequence[Held | None]:
        """The values that a body yields, with sequences as their stacks' tensors; stacks that are
        too small are recorded in `wider`.
        """
        found: list[Held | None] = []
        for number, value in enumerate(values):
            type = self.stacks.get(number - self.has_condition)
            if type is None or value is None:
                if not (value is None or isinstance(value, Value)):
                    raise inside.error(
                        f"its body gives a sequence as {self.body.output[number].name!r}, expected "
                        "a tensor"
                    )
                found.append(value)
                continue
            if isinstance(value, Value):
                raise inside.error(f"its body gives a tensor, expected a sequence of {type}")
            both = joined(inside, [type, *type_of(value)], [block])
            if both != type:
                self.wider[number - self.has_condition] = both
                return [None for _ in values]
            found += tensors_of(stacked(inside, value, type))
        return found

    @property
    def tensors(self) -> list[Value]:
        """The initial values of carried tensors; a form without sequences."""
        return [v for v in self.initial if isinstance(v, Value)]

    def bounded_trips(self) -> Dim | None:
        """An upper bound of the iterations as a dim, which data or the user may define; None if
        there is none."""
        if self.trips is None and self.trip_count is None and self.may_open:
            self.trips, self.is_open = capacity(self.node, self.node.label), True
        if self.trips is None and self.trip_count is not None:
            node, wide = self.node, self.node.cast(self.trip_count, DType.I64)
            runs = node.emit("maximum", wide, node.scalar(0, DType.I64))
            self.trips, self.trip_count = extent_of(node, runs, None, "its runs"), None
        return self.trips

    def named(self, carried: Sequence[Held]) -> dict[str, Held]:
        names = [name for name in self.carried_names if name]
        return dict(zip(names, self.packed(carried), strict=True))


def truth(importer: GraphImporter, value: Value) -> bool | None:
    """A bool value known at compile time; else None."""
    found = importer.values.known(value)
    if found is None or found.size != 1 or found.dtype == object:
        return None
    return bool(found.reshape(()).item())
