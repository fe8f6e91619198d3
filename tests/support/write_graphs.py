"""Random functions whose memory changes, for passes that lay out and fuse; how storage runs them.

Values of a few types that slices, concats, transposes and reshapes lead between, states, writes in
place, branches and loops. Choices come from a function, so that hypothesis can shrink them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.analysis.memory.views import is_view
from aot.builder import Builder
from aot.ir.body import Body
from aot.ir.graph import Block, Function, Module, Op, Value
from aot.ir.interpreter.interpreter import _MemoryFrame, _updated, bind_symbols, run
from aot.ir.interpreter.memory import Place, States
from aot.ir.types import Array

Choose = Callable[[int], int]  # a number below the one given

WHOLE, ROWS, COLUMNS, FLAT = "f32[4, 4]", "f32[2, 4]", "f32[4, 2]", "f32[8]"
TYPES = (WHOLE, ROWS, COLUMNS, FLAT)
SHAPES = {WHOLE: (4, 4), ROWS: (2, 4), COLUMNS: (4, 2), FLAT: (8,)}
WEIGHT = np.arange(16, dtype=np.float32).reshape(4, 4) / 16 - 0.4


class WriteGraph:
    """One function, as it is made.

    Attributes:
        scopes: values that can be used, by block.
    """

    def __init__(
        self,
        choose: Choose,
        size: int,
        *,
        writes_slices: bool = False,
        writes_inputs: bool = False,
    ) -> None:
        self.choose = choose
        self.left = size
        self.writes_slices = writes_slices
        self.writes_inputs = writes_inputs
        self.b = Builder()
        self.condition = self.b.input("t", "bool[]")
        self.number = self.b.input("n", "i64[]")
        self.given = [self.b.input("x", WHOLE), self.b.input("y", ROWS)]
        self.scopes: list[list[Value]] = [list(self.given)]
        self.weight = self.b.constant(WEIGHT)
        while self.left > 0:
            self.add()
        for number in range(2 + choose(4)):
            self.b.output(f"out{number}", self.any())
        self.module: Module = self.b.module()

    # values

    def pick(self, type: str) -> Value:
        found = [v for scope in self.scopes for v in scope if str(v.type) == type]
        if not found:
            return self.made(self.b.op("fill", shape=SHAPES[type], value=np.float32(1.5)))
        # mostly what was made last, so that reads and writes of one memory stand close together
        near = min(len(found), 3) if self.choose(3) else len(found)
        return found[-1 - self.choose(near)]

    def made(self, value: Value) -> Value:
        self.scopes[-1].append(value)
        return value

    def any(self) -> Value:
        return self.pick(self.type())

    def type(self) -> str:
        return (WHOLE, WHOLE, ROWS, COLUMNS, FLAT)[self.choose(5)]

    def own(self, type: str) -> Value:
        """A value that may be written: no constant; an input only if those are."""
        value = self.pick(type)
        is_kept = value in self.given and not self.writes_inputs
        return self.b.op("neg", value) if is_kept else value

    # ops

    def add(self) -> None:
        self.left -= 1
        makers: Sequence[Callable[[], None]] = [
            self._pure,
            self._pure,
            self._around,
            self._around,
            self._move,
            self._move,
            self._state,
            self._assign,
            self._assign,
            self._write_slice if self.writes_slices else self._assign,
            self._if if self.left > 3 else self._pure,
            self._loop if self.left > 3 else self._move,
        ]
        makers[self.choose(len(makers))]()

    def _pure(self) -> None:
        b, kind, type = self.b, self.choose(7), self.type()
        if kind == 0:
            found = b.op("matmul", self.pick(WHOLE), self.weight)
        elif kind == 1:
            found = b.op("matmul", self.pick(ROWS), self.weight)
        elif kind == 2:
            found = b.op("softmax", self.pick(WHOLE), axis=1)
        elif kind == 3:
            found = b.op("tanh", self.pick(type))
        elif kind == 4:
            found = b.op("relu", self.pick(type))
        else:
            found = b.op("add", self.pick(type), self.pick(type))
        self.made(found)

    def _move(self) -> None:
        b, kind = self.b, self.choose(9)
        if kind == 0:
            row = self.choose(3)
            attrs = {"starts": (row, 0), "stops": (row + 2, 4), "steps": (1, 1)}
            found = b.op("slice", self.pick(WHOLE), **attrs)
        elif kind == 1:
            column = self.choose(3)
            attrs = {"starts": (0, column), "stops": (4, column + 2), "steps": (1, 1)}
            found = b.op("slice", self.pick(WHOLE), **attrs)
        elif kind == 2:
            found = b.op("concat", self.pick(ROWS), self.pick(ROWS), axis=0)
        elif kind == 3:
            found = b.op("concat", self.pick(COLUMNS), self.pick(COLUMNS), axis=1)
        elif kind < 7:
            found = b.op("transpose", self.pick((WHOLE, ROWS, COLUMNS)[kind - 4]), perm=(1, 0))
        elif kind == 7:
            found = b.op("reshape", self.pick((ROWS, COLUMNS)[self.choose(2)]), shape=(8,))
        else:
            shape = ((2, 4), (4, 2))[self.choose(2)]
            found = b.op("reshape", self.pick(FLAT), shape=shape)
        self.made(found)

    def _state(self) -> None:
        type = (WHOLE, ROWS)[self.choose(2)]
        variable = f"state{SHAPES[type][0]}{'ab'[self.choose(2)]}"
        self.made(self.b.op("state", variable=variable, dtype="f32", shape=SHAPES[type]))

    def _assign(self) -> None:
        type = self.type()
        self.made(self.b.op("assign", self.own(type), self.pick(type)))

    def _around(self) -> None:
        """What reads before a write, and is used behind it."""
        b, value = self.b, self.own(WHOLE)
        kind, first = self.choose(4), self.choose(3)
        attrs = {"starts": (first, 0), "stops": (first + 2, 4), "steps": (1, 1)}
        if kind == 0:
            before = b.op("slice", value, **attrs)
        elif kind == 1:
            before = b.op("neg", value)
        elif kind == 2:
            before = b.op("reduce_sum", value, axes=(1,))
        else:
            top = b.op("tanh", self.pick(ROWS))
            before = b.op("concat", top, b.op("neg", self.pick(ROWS)), axis=0)
            self.made(b.op("assign", top, self.pick(ROWS)))
        self.made(b.op("assign", value, self.pick(WHOLE)))
        if kind == 0:
            found = b.op("neg", before)
        elif kind == 2:
            found = b.op("mul", b.op("reduce_sum", value, axes=(1,)), before)
            found = b.op("mul", found, value)
        else:
            found = b.op("relu", before)
        self.made(found)

    def _write_slice(self) -> None:
        starts = self.b.constant([self.choose(3), 0], "i64")
        self.made(self.b.op("write_slice", self.own(WHOLE), self.pick(ROWS), starts))

    def _block(self, types: Sequence[str], ends: Callable[[], list[Value]]) -> Block:
        def body(*args: Value) -> list[Value]:
            self.scopes.append([v for v in args if str(v.type) in TYPES])
            for _ in range(self.choose(4)):
                self.add()
            return ends()

        found = self.b.block(types, body)
        self.scopes.pop()
        return found

    def _keep(self, made: Any) -> None:
        for value in [made] if isinstance(made, Value) else made:
            self.made(value)

    def _if(self) -> None:
        types = [TYPES[self.choose(2)] for _ in range(1 + self.choose(2))]
        blocks = [self._block([], lambda: [self.pick(t) for t in types]) for _ in "ab"]
        self._keep(self.b.op("if", self.condition, blocks=blocks))

    def _loop(self) -> None:
        types = [TYPES[self.choose(2)] for _ in range(1 + self.choose(2))]
        carried = [self.pick(t) for t in types]

        def ends() -> list[Value]:
            return [self.b.constant(True), *(self.pick(t) for t in types)]

        block = self._block(["i64[]", *types], ends)
        self._keep(self.b.op("loop", self.number, None, *carried, blocks=[block]))

    def inputs(self, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        x, y = (rng.standard_normal(SHAPES[t]).astype(np.float32) for t in (WHOLE, ROWS))
        return [np.array(seed % 2 == 0), np.array(seed % 3, np.int64), x, y]


RUNS = 2  # so that states show


def outcome(module: Module, inputs: Sequence[Array]) -> list[Array]:
    """Results of some runs in a row, and what the inputs hold after each, by what ops mean; and
    what states hold in the end."""
    states: States = {}
    results: list[Array] = []
    for _ in range(RUNS):
        arrays = [a.copy() for a in inputs]
        found = run(module.main, arrays, module=module, states=states)
        results += [*_returned(module.main, found), *arrays]
    return [*results, *_held(states)]


def _returned(function: Function, results: Sequence[Array]) -> Sequence[Array]:
    """What the model gives: results without those that are inputs' memory."""
    return results[: len(results) - len(function.updates)]


def stored_outcome(module: Module, inputs: Sequence[Array]) -> list[Array]:
    """As `outcome`, by where storage has values once views are settled."""
    states: States = {}
    results: list[Array] = []
    function = module.main
    for _ in range(RUNS):
        arrays = [a.copy() for a in inputs]
        symbols = bind_symbols(function, [a.shape for a in arrays])
        frame = _StorageFrame(function, symbols, False, module)
        frame.states = states
        with np.errstate(all="ignore"):
            places = frame.run(function.block, [Place.of(a) for a in arrays])
        found = _updated(function, arrays, [p.read() for p in places])
        results += [*_returned(function, found), *arrays]
    return [*results, *_held(states)]


def _held(states: States) -> list[Array]:
    """A state that is zero need not be there."""
    return [states[name].array.copy() for name in sorted(states) if states[name].array.any()]


class _StorageFrame(_MemoryFrame):
    """What types make a view is one, and what goes into or out of blocks, regions and dispatches is
    memory of its own."""

    is_inside = False  # of a region or an executable, where nothing has memory

    def refer(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        record, refer = op.record, _MemoryFrame.__mro__[1].refer
        if self.is_inside or record.index_map is None or record.writes:
            return super().refer(op, operands)
        if not is_view(op):
            return [self.store(refer(self, op, [self.read(p) for p in operands])[0])]
        return [operands[0].view(lambda index: refer(self, op, [index])[0])]

    def call(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        return [self.fresh(p) for p in super().call(op, operands)]

    def run_blocks(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        was_inside = self.is_inside
        self.is_inside = was_inside or op.record.is_isolated
        found = super().run_blocks(op, operands)
        self.is_inside = was_inside
        return [self.fresh(p) for p in found]

    def run_loop(
        self, op: Op, body: Body, operands: Sequence[Any], carried: Sequence[Any]
    ) -> list[Any]:
        return super().run_loop(op, body, operands, [self.fresh(p) for p in carried])

    def run(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        found = super().run(block, arguments)
        is_whole = block is self.function.block
        return found if is_whole else [self.fresh(p) for p in found]

    def fresh(self, place: Place) -> Place:
        return self.store(place.read())
