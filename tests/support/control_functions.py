"""Random functions with branches, loops and states, the same for the same seed, and their check."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import currently_in_test_context, note

from aot.builder import Builder
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from aot.ir.text.printer import print_module
from aot.ir.types import Layout
from aot.ir.verifier import verify
from aot.runtime import loader
from tests.support.control_lowering import assert_equal

F = np.float32

UNARY = ("neg", "abs", "tanh")

BINARY = ("add", "sub", "maximum", "minimum")

STATES = ("p", "q")

MOST_ROWS = 6


class Maker:
    """Makes one function. Every tensor is f32[extent]; `seen` are those that an op can use."""

    joins = "concat_alias"  # or "concat", of which passes make it

    def __init__(self, seed: int, extent: int | str) -> None:
        self.random = random.Random(seed)
        self.extent = extent
        self.type = f"f32[{extent}]"
        self.budget = 14
        self.b = Builder()
        self.counts: list[Value] = [self.b.input("n", "i64[]"), self.b.input("m", "i64[]")]
        self.conditions: list[Value] = [self.b.input("c", "bool[]"), self.b.input("d", "bool[]")]
        self.seen = [self.b.input("x", self.type), self.b.input("y", self.type)]

    def module(self) -> Module:
        b = self.b
        states = {}
        if isinstance(self.extent, int):
            for name in STATES[: self.random.randrange(3)]:
                states[name] = b.op("state", variable=name, dtype="f32", shape=[self.extent])
        self.seen += states.values()
        cache = self.grown() if states and self.random.random() < 0.5 else None
        self.ops(3 + self.random.randrange(3))
        results = self.random.sample(self.seen, min(4, len(self.seen)))
        results += self.seen[-2:]
        assigned = [self.random.choice([*self.seen, self.seen[-1]]) for _ in states]
        if states:
            results = [self.moved(v) for v in results]
            assigned = [self.moved(v) for v in assigned]
        for value, source in zip(states.values(), assigned, strict=True):
            b.op("assign", value, source)
        if cache is not None:
            b.op("assign", *cache)
        for number, value in enumerate(results):
            b.output(f"r{number}", value)
        return b.module()

    def grown(self) -> tuple[Value, Value]:
        """A cache of rows that gets another one, and what it is then."""
        assert isinstance(self.extent, int)
        b, layout = self.b, Layout(strides=(self.extent, 1))
        attrs: dict[str, Any] = {"variable": "cache", "dtype": "f32", "layout": layout, "axis": 0}
        attrs |= {"capacity": MOST_ROWS, "length": "P"}
        past = b.op("state", shape=["P", self.extent], **attrs)
        row = b.op("reshape", self.any(), shape=[1, self.extent])
        present = b.op(self.joins, past, b.op("neg", row), axis=0)
        self.seen.append(b.op("reduce_sum", past, axes=[0], keepdims=False))
        self.seen.append(b.op("reduce_sum", b.op("abs", present), axes=[0], keepdims=False))
        shown = b.op("state", shape=["P + 1", self.extent], **attrs)
        return shown, present

    def moved(self, value: Value) -> Value:
        """What control flow hands on may be a state's memory: its elements as they are now. So may
        the state itself, which passes refuse as a result."""
        op = value.op
        is_shown = op is not None and op.record.is_state and self.joins == "concat"
        is_handed_on = op is not None and bool(op.blocks)
        return self.b.op("neg", value) if is_handed_on or is_shown else value

    def ops(self, count: int) -> None:
        for _ in range(count):
            self.op()

    def op(self) -> None:
        self.budget -= 1
        kinds = ["unary", "binary", "binary", "halves", "join", "condition", "constant"]
        if self.budget > 0:
            kinds += ["if", "if", "loop", "loop", "loop"]
        getattr(self, f"make_{self.random.choice(kinds)}")()

    def any(self) -> Value:
        """Often one of the last."""
        near = self.seen[-3:]
        return self.random.choice(near if self.random.random() < 0.6 else self.seen)

    def make_unary(self) -> None:
        self.seen.append(self.b.op(self.random.choice(UNARY), self.any()))

    def make_binary(self) -> None:
        self.seen.append(self.b.op(self.random.choice(BINARY), self.any(), self.any()))

    def make_constant(self) -> None:
        if isinstance(self.extent, int):
            values = [self.random.randrange(-3, 4) for _ in range(self.extent)]
            self.seen.append(self.b.constant(np.array(values, F)))

    def make_halves(self) -> None:
        """Views of what is joined by a dispatch."""
        whole = self.b.op("concat", self.any(), self.any(), axis=0)
        self.cut(whole)

    def make_join(self) -> None:
        """What is made where it is joined."""
        parts = [self.b.op(self.random.choice(UNARY), self.any()) for _ in range(2)]
        whole = self.b.op(self.joins, *parts, axis=0)
        self.seen.append(parts[0])
        self.cut(whole)

    def cut(self, whole: Value) -> None:
        extent = whole.type.dims[0]
        half = extent // 2
        first, second = ([0], [half]), ([half], [extent])
        for starts, stops in (first, second):
            self.seen.append(self.b.op("slice", whole, starts=starts, stops=stops, steps=[1]))

    def make_condition(self) -> None:
        b = self.b
        total = b.op("reduce_sum", self.any(), axes=[0], keepdims=False)
        self.conditions.append(b.op("less", total, b.constant(self.random.randrange(-2, 3), "f32")))

    def make_if(self) -> None:
        count = 1 + self.random.randrange(3)
        blocks = [self.b.block([], lambda: self.inner(1, count)) for _ in range(2)]
        made = self.b.op("if", self.random.choice(self.conditions), blocks=blocks)
        self.seen += [made] if isinstance(made, Value) else made

    def make_loop(self) -> None:
        b, r = self.b, self.random
        carried = [self.any() for _ in range(r.randrange(4))]
        stacked = r.randrange(3 - (not carried))
        stacked = max(stacked, not carried)
        trips = r.choice([1, 2, 3])
        count = r.choice([None, r.choice(self.counts), b.constant(r.randrange(4), "i64")])
        first = r.choice([None, None, r.choice(self.conditions)])

        def body(index: Value, *arguments: Value) -> Sequence[Value]:
            self.counts.append(index)
            self.seen += arguments
            if r.random() < 0.4:
                scale = b.op("cast", index, to="f32")
                self.seen.append(b.op("add", self.any(), scale))
            results = self.inner(2, len(carried) + stacked)
            if r.random() < 0.5:
                return [b.constant(True), *results]
            return [r.choice(self.conditions), *results]

        visible = len(self.seen), len(self.counts), len(self.conditions)
        block = b.block(["i64[]", *(v.type for v in carried)], body)
        del self.seen[visible[0] :], self.counts[visible[1] :], self.conditions[visible[2] :]
        made = b.op("loop", count, first, *carried, trips=trips, blocks=[block])
        found = [made] if isinstance(made, Value) else list(made)
        for number, value in enumerate(found):
            if number < len(carried):
                self.seen.append(value)
            else:
                self.seen.append(b.op("reduce_sum", value, axes=[0], keepdims=False))

    def inner(self, ops: int, count: int) -> list[Value]:
        """A block's ops and what it yields; nothing of it is seen outside."""
        visible = len(self.seen), len(self.conditions)
        self.ops(ops + self.random.randrange(2))
        made = self.seen[visible[0] :] or self.seen
        results = [
            self.random.choice(made if self.random.random() < 0.7 else self.seen)
            for _ in range(count)
        ]
        del self.seen[visible[0] :], self.conditions[visible[1] :]
        return results


def inputs(seed: int, extent: int) -> list[np.ndarray]:
    r = np.random.default_rng(seed)
    counts = [np.array(r.integers(-1, 5), np.int64) for _ in range(2)]
    conditions = [np.array(bool(r.integers(2))) for _ in range(2)]
    return [*counts, *conditions, *(r.integers(-4, 5, extent).astype(F) for _ in range(2))]


def made(seed: int, extent: int | str, joins: str) -> Module:
    maker = Maker(seed, extent)
    maker.joins = joins
    module = maker.module()
    verify(module)
    if currently_in_test_context():
        note(print_module(module))
    return module


def compare(
    module: Module, seed: int, extent: int | str, programs: Sequence[loader.Program]
) -> None:
    """Several runs, so that states and places have changed."""
    states: States = {}
    for number in range(4):
        if number == 3:
            for one in programs:
                one.reset()
            states = {}
        size = extent if isinstance(extent, int) else (5, 2, 16)[number % 3]
        given = inputs(seed + number, size)
        wanted = run(module.main, given, module=module, states=states)
        for one in programs:
            assert_equal(one.run(given), wanted)
