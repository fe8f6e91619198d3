"""Random loops and branches over registers give what the kernel interpreter gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.ir.dims import Dim, symbol
from aot.ir.expr import Expr, Var, add, binary, cast, const, index, select
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import (
    BufferClass,
    For,
    If,
    Kernel,
    KernelBuilder,
    Let,
    LoopKind,
    Scratch,
    Space,
    Stmt,
    Store,
)
from tests.support import vulkan_device, vulkan_running
from tests.support.vulkan_case import I32, Array, load, spread, tensor

pytestmark = pytest.mark.vulkan

COUNT, LANES, WIDTH = 24, 8, 4


@dataclass
class Writer:
    """Draws statements over a few registers, a vector of them and shared scratch per lane."""

    data: st.DataObject
    b: KernelBuilder
    registers: list[Scratch]
    vector: Scratch
    shared: Scratch
    lane: Var
    atoms: list[Expr]
    has_vector: bool = True

    def number(self) -> int:
        return self.data.draw(st.integers(-9, 9))

    def value(self) -> Expr:
        """A small expression of registers, literals and loop variables."""
        choices = [
            *self.atoms,
            const(self.number(), I32),
            *(load(r) for r in self.registers),
            load(self.shared, self.lane),
            *(load(self.vector, i) for i in range(WIDTH if self.has_vector else 0)),
        ]
        a, c = (self.data.draw(st.sampled_from(choices)) for _ in range(2))
        return binary(self.data.draw(st.sampled_from(("add", "sub", "mul", "min", "xor"))), a, c)

    def condition(self) -> Expr:
        op = self.data.draw(st.sampled_from(("lt", "ge", "eq", "ne")))
        return binary(op, self.value(), const(self.number(), I32))

    def store(self) -> Stmt:
        guard = self.condition() if self.data.draw(st.booleans()) else None
        kind = self.data.draw(st.sampled_from(("register", "vector", "shared")))
        if kind == "register":
            return Store(self.data.draw(st.sampled_from(self.registers)), (), self.value(), guard)
        if kind == "vector":
            at = index(self.data.draw(st.integers(0, WIDTH - 1)))
            return Store(self.vector, (at,), self.value(), guard)
        return Store(self.shared, (self.lane,), self.value(), guard)

    def loop(self, depth: int) -> Stmt:
        choices: tuple[tuple[LoopKind, Dim], ...] = (
            (LoopKind.SERIAL, 3),
            (LoopKind.SERIAL, symbol("n")),
            (LoopKind.SERIAL, 0),
            (LoopKind.UNROLLED, 2),
        )
        kind, extent = self.data.draw(st.sampled_from(choices))
        var = self.b.var("i")
        self.atoms.append(cast(var, I32))
        body = self.body(depth + 1)
        self.atoms.pop()
        return For(var, extent, kind, body)

    def each_element(self) -> Stmt:
        """A VECTOR loop over the vector; written out, its indices are constants."""
        var = self.b.var("v")
        self.has_vector = False  # an iteration sees its own element alone
        mixed = add(load(self.vector, var), self.value())
        picked = select(self.condition(), mixed, cast(var, I32))
        self.has_vector = True
        return For(var, WIDTH, LoopKind.VECTOR, (Store(self.vector, (var,), picked),))

    def statement(self, depth: int) -> list[Stmt]:
        kinds = ("store", "let", "vector", "if", "loop") if depth < 3 else ("store", "vector")
        match self.data.draw(st.sampled_from(kinds)):
            case "let":
                var = self.b.var("t", I32)
                made = Let(var, self.value())
                self.atoms.append(var)
                rest = [made, self.store(), self.store()]
                self.atoms.pop()
                return rest
            case "vector":
                return [self.each_element()]
            case "if":
                otherwise = self.body(depth + 1) if self.data.draw(st.booleans()) else ()
                return [If(self.condition(), self.body(depth + 1), otherwise)]
            case "loop":
                return [self.loop(depth)]
        return [self.store()]

    def body(self, depth: int) -> tuple[Stmt, ...]:
        count = self.data.draw(st.integers(1, 3))
        return tuple(s for _ in range(count) for s in self.statement(depth))


def random_kernel(data: st.DataObject) -> Kernel:
    b = KernelBuilder("random")
    b.dim_param("n")
    x = tensor(b, "x", I32, BufferClass.INPUTS, COUNT)
    y = tensor(b, "y", I32, BufferClass.OUTPUTS, COUNT, 2 + WIDTH + 1)
    registers = [b.scratch("r", I32, ()) for _ in range(2)]
    vector = b.scratch("vector", I32, (WIDTH,))
    shared = b.scratch("shared", I32, (LANES,), Space.WORKGROUP)

    def lane_body(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        lane = b.var("own")
        writer = Writer(data, b, registers, vector, shared, lane, [load(x, i)])
        elements = [
            *((r, ()) for r in registers),
            *((vector, (index(k),)) for k in range(WIDTH)),
            (shared, (lane,)),
        ]
        start = [Store(target, at, const(k, I32)) for k, (target, at) in enumerate(elements)]
        finish = [
            Store(y, (i, index(k)), load(target, *at)) for k, (target, at) in enumerate(elements)
        ]
        return (Let(lane, binary("floormod", i, index(LANES))), *start, *writer.body(0), *finish)

    return b.build(spread(b, COUNT, LANES, lane_body))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_random_control_flow_matches_the_interpreter(data: st.DataObject) -> None:
    kernel = random_kernel(data)
    numbers = np.random.default_rng(1).integers(-9, 9, COUNT).astype(np.int32)
    arrays: dict[str, Array] = {"x": numbers}
    expected = np.zeros((COUNT, 2 + WIDTH + 1), np.int32)
    interpreter.run(kernel, {"x": numbers, "y": expected}, {"n": 2}, check_races=True)
    shader = vulkan_running.build(kernel)
    for driver in vulkan_device.DRIVERS:
        actual = vulkan_running.run_on(driver, kernel, arrays, {"n": 2}, shader=shader)
        np.testing.assert_array_equal(actual["y"], expected, err_msg=driver)
