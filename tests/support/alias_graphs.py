"""Random functions with blocks, loops, views, tuples, states, calls and writes, and random changes.

Nearly all values are f32[2, 2], so that any can stand for any other. Choices come from a function,
so that hypothesis can shrink them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aot.analysis.control import nested_operands
from aot.builder import Builder
from aot.ir.builtin import YIELD
from aot.ir.clone import clone_op
from aot.ir.graph import Block, Function, Module, Op, Value, walk
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout, TensorType
from aot.ops.control import ASSIGN, GET, STATE, TUPLE
from aot.ops.elementwise import ADD, NEG
from aot.ops.movement import RESHAPE, TRANSPOSE
from aot.ops.structure import REGION

Choose = Callable[[int], int]  # a number below the one given

SHAPE = (2, 2)
MATRIX = "f32[2, 2]"
PAIR = "f32[2, 2, 2]"


class Graph:
    """One function, as it is made.

    Attributes:
        scopes: values that can be used, by block; those of an isolated block stand alone.
    """

    def __init__(self, choose: Choose, size: int, *, has_calls: bool = True) -> None:
        self.choose = choose
        self.left = size
        self.has_calls = has_calls
        self.is_isolated = False
        self.module = Module()
        self.b = Builder(into=self.module)
        self.condition = self.b.input("t", "bool[]")
        self.number = self.b.input("n", "i64[]")
        matrices = [self.b.input(f"x{n}", MATRIX) for n in range(1 + choose(3))]
        self.scopes: list[list[Value]] = [matrices]
        while self.left > 0:
            self.add()
        for number in range(1 + choose(3)):
            self.b.output(f"y{number}", self.matrix())
        self.b.function()
        self._add_callee()

    def _add_callee(self) -> None:
        if not any(op.record.has_unknown_effects for op in self.module.main.walk()):
            return
        b = Builder("callee", self.module)
        x, y = b.input("x", MATRIX), b.input("y", MATRIX)
        b.op("assign", x, b.op("add", x, y))
        seen = b.op("state", variable="one", dtype="f32", shape=SHAPE)
        b.op("assign", seen, y)
        b.output("x", x)
        b.function()

    def pick(self, type: str) -> Value | None:
        found = [v for scope in self.scopes for v in scope if str(v.type) == type]
        return found[self.choose(len(found))] if found else None

    def matrix(self) -> Value:
        found = self.pick(MATRIX)
        return found if found is not None else self.b.constant([[1.0, 2.0], [3.0, 4.0]])

    def written(self) -> Value:
        """A matrix that is no constant."""
        found = self.matrix()
        return self.b.op("neg", found) if found.op and found.op.name == "constant" else found

    def add(self) -> None:
        """One more op, or several."""
        self.left -= 1
        makers: Sequence[Callable[[], Any]] = [
            self._pure,
            self._pure,
            lambda: self.b.op("reshape", self.matrix(), shape=SHAPE),
            lambda: self.b.op("assign", self.written(), self.matrix()),
            lambda: self.b.op(
                "state", variable=("one", "two")[self.choose(2)], dtype="f32", shape=SHAPE
            ),
            lambda: self.b.op("tuple", self.written(), self.written()),
            self._get,
            self._region,
            # an isolated block sees neither the condition nor the number of runs
            self._if,
            self._loop,
            self._call if self.has_calls else self._pure,
        ]
        made = makers[self.choose(len(makers) - (3 if self.is_isolated else 0))]()
        self.scopes[-1] += [made] if isinstance(made, Value) else made

    def _pure(self) -> Value:
        kind = self.choose(6)
        if kind == 0:
            found: Value = self.b.op("fill", shape=SHAPE, value=self._ones())
        elif kind == 1:
            found = self.b.op("neg", self.matrix())
        elif kind == 2:  # these two mean copies, and their types may make them views
            found = self.b.op("transpose", self.matrix(), perm=((0, 1), (1, 0))[self.choose(2)])
        elif kind == 3:
            found = self.b.op("slice", self.matrix(), starts=(0, 0), stops=SHAPE, steps=(1, 1))
        elif kind == 4:
            found = self.b.op("concat_alias", self.written(), axis=0)
        else:
            found = self.b.op("add", self.matrix(), self.matrix())
        return found

    @staticmethod
    def _ones() -> Any:
        import numpy as np

        return np.float32(1)

    def _get(self) -> Value:
        pair = self.pick(PAIR)
        if pair is None:
            return self._pure()
        found: Value = self.b.op("get", pair, self.b.constant(self.choose(2), "i64"))
        return found

    def _call(self) -> Value:
        operands = [self.written(), self.matrix()]
        found: Value = self.b.op("call", *operands, function="callee", result_types=[MATRIX])
        return found

    def _block(self, types: Sequence[str], ends: Callable[[], list[Value]]) -> Block:
        def body(*args: Value) -> list[Value]:
            self.scopes.append([v for v in args if str(v.type) == MATRIX])
            for _ in range(self.choose(4)):
                self.add()
            return ends()

        found = self.b.block(types, body)
        self.scopes.pop()
        return found

    def _if(self) -> Any:
        count = 1 + self.choose(2)
        blocks = [self._block([], lambda: [self.matrix() for _ in range(count)]) for _ in "ab"]
        return self.b.op("if", self.condition, blocks=blocks)

    def _loop(self) -> Any:
        carried = [self.matrix() for _ in range(1 + self.choose(2))]
        stacked = self.choose(2)

        def ends() -> list[Value]:
            go_on = self.b.constant(True)
            return [go_on, *(self.matrix() for _ in range(len(carried) + stacked))]

        block = self._block(["i64[]", *(MATRIX for _ in carried)], ends)
        operands = [self.number, None, *carried]
        found = self.b.op("loop", *operands, blocks=[block], trips=2)
        return [found] if isinstance(found, Value) else list(found)

    def _region(self) -> Any:
        inputs = [self.matrix() for _ in range(1 + self.choose(2))]
        outer = self.scopes, self.is_isolated
        self.scopes, self.is_isolated = [], True
        block = self._block([MATRIX for _ in inputs], lambda: [self.matrix()])
        self.scopes, self.is_isolated = outer
        return self.b.op("region", *inputs, blocks=[block])


# changes


def visible(op: Op) -> list[Value]:
    """Values that `op` may use."""
    found: list[Value] = []
    block, at = op.parent, op
    while block is not None:
        before = at.prev
        while before is not None:
            found += before.results
            before = before.prev
        found += block.args
        owner = block.owner
        if not isinstance(owner, Op) or owner.record.is_isolated:
            break
        block, at = owner.parent, owner
    return found


def _is_constant(value: Value) -> bool:
    """Whether `value` shows a constant, which nothing may come to write."""
    while value.op is not None and value.op.record.view_of is not None:
        operand = value.op.operands[value.op.record.view_of]
        assert operand is not None
        value = operand
    return value.op is not None and value.op.name == "constant"


class Changes:
    """Random changes of a function, each of which keeps it valid."""

    def __init__(self, function: Function, choose: Choose) -> None:
        self.function = function
        self.choose = choose

    def make(self) -> str:
        """Makes one change, if it can; says which."""
        kinds = [
            self.rewire,
            self.rewire,
            self.replace,
            self.create,
            self.erase,
            self.clone,
            self.fuse,
            self.move,
            self.drop_input,
            self.rename,
            self.relay,
        ]
        kind = kinds[self.choose(len(kinds))]
        kind()
        return kind.__name__

    def ops(self) -> list[Op]:
        return list(walk(self.function.block))

    def op(self) -> Op:
        found = self.ops()
        return found[self.choose(len(found))]

    def like(self, type: TensorType, op: Op) -> Value | None:
        found = [v for v in visible(op) if v.type == type and not _is_constant(v)]
        return found[self.choose(len(found))] if found else None

    def rewire(self) -> None:
        op = self.op()
        if not op.operands:
            return
        index = self.choose(len(op.operands))
        old = op.operands[index]
        fresh = None if old is None else self.like(old.type, op)
        rewriter = Rewriter(self.function)
        if fresh is None:
            return
        rewriter.set_operand(op, index, fresh)

    def replace(self) -> None:
        op = self.op()
        if not op.results:
            return
        old = op.results[self.choose(len(op.results))]
        fresh = self.like(old.type, op)
        if fresh is not None:
            Rewriter(self.function).replace(old, fresh)

    def create(self) -> Op | None:
        at = self.op()
        rewriter = Rewriter(self.function).at(at)
        matrices = [v for v in visible(at) if str(v.type) == MATRIX and not _is_constant(v)]
        if not matrices:
            return None
        one, other = (matrices[self.choose(len(matrices))] for _ in "ab")
        kind = self.choose(7)
        if kind == 5:
            return rewriter.create(TRANSPOSE, [one], {"perm": ((0, 1), (1, 0))[self.choose(2)]})
        if kind == 0:
            return rewriter.create(RESHAPE, [one], {"shape": SHAPE})
        if kind == 1:
            return rewriter.create(ASSIGN, [one, other])
        if kind == 2:
            return rewriter.create(TUPLE, [one, other])
        if kind == 3:
            name = ("one", "two", "three")[self.choose(3)]
            attrs = {"variable": name, "dtype": one.type.dtype, "shape": SHAPE}
            return rewriter.create(STATE, [], attrs)
        pairs = [v for v in visible(at) if str(v.type) == PAIR]
        numbers = [v for v in visible(at) if str(v.type) == "i64[]"]
        if kind == 4 and pairs and numbers:
            return rewriter.create(GET, [pairs[self.choose(len(pairs))], numbers[0]])
        return rewriter.create(ADD, [one, other])

    def erase(self) -> None:
        found = [
            op
            for op in self.ops()
            if not op.record.is_terminator and not any(v.uses for v in op.results)
        ]
        if found:
            Rewriter(self.function).erase(found[self.choose(len(found))])

    def clone(self) -> None:
        op = self.op()
        if not op.record.is_terminator:
            clone_op(op, {}, Rewriter(self.function).at(op))

    def fuse(self) -> None:
        """As the pass does: a region is made of a copy, and takes the op's place."""
        found = [
            op
            for op in self.ops()
            if op.record.kind is not Kind.STRUCTURE or op.record in (ASSIGN, NEG)
        ]
        if not found:
            return
        op = found[self.choose(len(found))]
        inputs = list(dict.fromkeys(v for v in op.operands if v is not None))
        if not inputs or any(_is_constant(v) for v in inputs):
            return
        block = Block([v.type for v in inputs])
        values = dict(zip(inputs, block.args, strict=True))
        into = Rewriter(self.function, block)
        clone_op(op, values, into)
        into.insert(Op(YIELD, [values[v] for v in op.results], {}, []))
        region = Op(REGION, inputs, {}, [v.type for v in op.results], [block])
        Rewriter(self.function).at(op).insert(region)
        Rewriter(self.function).replace_op(op, region.results)

    def move(self) -> None:
        """An op before the one in front of it, where it does not need that."""
        op = self.op()
        before = op.prev
        if before is None or op.record.is_terminator:
            return
        if not any(v in before.results for v in nested_operands(op)):
            Rewriter(self.function).move_before(op, before)

    def rename(self) -> None:
        """Another state variable, or another permutation."""
        op = self.op()
        if op.record is STATE:
            Rewriter(self.function).set_attr(op, "variable", ("one", "four")[self.choose(2)])
        elif op.record is TRANSPOSE:
            Rewriter(self.function).set_attr(op, "perm", ((0, 1), (1, 0))[self.choose(2)])

    def relay(self) -> None:
        """Another layout, with which a transpose becomes a view or stops being one."""
        found = [
            op.result
            for op in self.ops()
            if op.record in (TRANSPOSE, NEG)
            and all(u.record.kind is not Kind.STRUCTURE for u in op.result.users)
        ]
        if found:
            value = found[self.choose(len(found))]
            layout = None if value.type.layout else Layout(order=(1, 0))
            type = TensorType(value.type.dtype, value.type.dims, layout)
            Rewriter(self.function).set_type(value, type)

    def drop_input(self) -> None:
        unused = [v for v in self.function.inputs if not v.uses]
        if unused:
            Rewriter(self.function).erase_input(unused[0])
