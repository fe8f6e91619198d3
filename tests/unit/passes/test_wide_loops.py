"""Random loops and branches on 64-bit integers give the same where a target lacks these: what the
analysis of ranges makes narrow fits, and what it doesn't stays wide."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from aot.frontends.text import import_text
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.quantise.legalise_dtypes import LEGALISE_DTYPES
from aot.switches import Switches
from aot.target import selection

VECTOR = "i64[3]"
NUMBERS = (0, 1, 2, 3, -1, -5, 7, 100, 46341, 65536, 2**30, 2**31 - 1, -(2**31))
BINARY = ("add", "sub", "mul", "div", "minimum", "maximum", "bit_and", "bit_xor")


class Writer:
    """Writes a function whose every value is an i64[3], i64[1, 3] aside."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def line(self, text: str, depth: int) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append("  " * depth + f"{name} = {text}")
        return name

    def constant(self, depth: int) -> str:
        values = ", ".join(str(self.random.choice(NUMBERS)) for _ in range(3))
        return self.line(f"constant {{value = {VECTOR} <{values}>}} : {VECTOR}", depth)

    def step(self, known: list[str], depth: int, nesting: int) -> str:
        kind = self.random.randrange(10 if nesting < 2 else 8)
        a, b = (self.random.choice(known) for _ in range(2))
        if kind < 4:
            return self.line(f"{self.random.choice(BINARY)}({a}, {b}) : {VECTOR}", depth)
        if kind == 4:
            return self.constant(depth)
        if kind == 5:
            is_less = self.line(f"less({a}, {b}) : bool[3]", depth)
            return self.line(f"where({is_less}, {a}, {b}) : {VECTOR}", depth)
        if kind == 6:
            narrow = self.line(f"cast({a}) {{to = i32}} : i32[3]", depth)
            return self.line(f"cast({narrow}) {{to = i64}} : {VECTOR}", depth)
        if kind == 7:
            total = self.line(f"reduce_sum({a}) {{axes = [0]}} : i64[1]", depth)
            return self.line(f"add({total}, {b}) : {VECTOR}", depth)
        return self.loop(known, depth, nesting) if kind == 8 else self.choice(known, depth, nesting)

    def steps(self, known: list[str], depth: int, nesting: int) -> list[str]:
        known = list(known)
        for _ in range(self.random.randrange(2, 6)):
            known.append(self.step(known, depth, nesting))
        return known

    def loop(self, known: list[str], depth: int, nesting: int) -> str:
        self.count += 1
        name, runs = self.count, self.random.choice((0, 1, 3, 5))
        first, second = (self.random.choice(known) for _ in range(2))
        self.lines.append(
            "  " * depth + f"%a{name}, %b{name} = loop(_, _, {first}, {second}) {{trips = {runs}}} "
            f": {VECTOR}, {VECTOR} ^(%i{name}: i64[], %p{name}: {VECTOR}, %q{name}: {VECTOR}) {{"
        )
        inner = [*known, f"%p{name}", f"%q{name}"]
        inside = self.steps(inner, depth + 1, nesting + 1)
        step = self.line(f"add(%p{name}, {self.constant(depth + 1)}) : {VECTOR}", depth + 1)
        with_run = self.line(f"add({inside[-1]}, %i{name}) : {VECTOR}", depth + 1)
        more = self.line("constant {value = bool[] <true>} : bool[]", depth + 1)
        chosen = self.random.choice((step, with_run, inside[-1]))
        self.lines.append("  " * (depth + 1) + f"yield({more}, {chosen}, {inside[-2]})")
        self.lines.append("  " * depth + "}")
        return self.random.choice((f"%a{name}", f"%b{name}"))

    def choice(self, known: list[str], depth: int, nesting: int) -> str:
        a, b = (self.random.choice(known) for _ in range(2))
        is_less = self.line(f"less({a}, {b}) : bool[3]", depth)
        first = self.line(
            f"slice({is_less}) {{starts = [0], stops = [1], steps = [1]}} : bool[1]", depth
        )
        condition = self.line(f"reshape({first}) {{shape = []}} : bool[]", depth)
        self.count += 1
        name = f"%c{self.count}"
        self.lines.append("  " * depth + f"{name} = if({condition}) : {VECTOR} ^() {{")
        self.lines.append("  " * (depth + 1) + f"yield({self.steps(known, depth + 1, 2)[-1]})")
        self.lines.append("  " * depth + "} ^() {")
        self.lines.append("  " * (depth + 1) + f"yield({self.steps(known, depth + 1, 2)[-1]})")
        self.lines.append("  " * depth + "}")
        return name

    def text(self) -> str:
        known = ["%x", *(self.constant(1) for _ in range(3))]
        loops = [self.loop(known, 1, 0) for _ in range(2)]
        results = [*loops, *self.steps(known + loops, 1, 0)[-2:]]
        names = ", ".join(f'"r{n}"' for n in range(len(results)))
        body = "\n".join(self.lines)
        return (
            f"func @main(%x: {VECTOR}) -> ({names}) {{\n{body}\n  return({', '.join(results)})\n}}"
        )


def context() -> PassContext:
    base = selection.load("x86-64-v2")
    dtypes = tuple(d for d in base.dtypes if d not in (DType.I64, DType.U64))
    device = dataclasses.replace(base, name="test", dtypes=dtypes)
    return PassContext(CompileOptions(), device, Switches(is_verifying_each=True))


@pytest.mark.parametrize("seed", range(60))
def test_random_loops(seed: int) -> None:
    text = Writer(seed).text()
    before, after = import_text(text), import_text(text)
    run_passes(after, [LEGALISE_DTYPES], context())
    for x in ([0, 1, -1], [2**31, -(2**31) - 1, 5], [2**62, -(2**63), 3 * 10**9]):
        given = [np.array(x, np.int64)]
        with np.errstate(over="ignore"):
            wanted, found = run(before.main, given), run(after.main, given)
        for name, a, b in zip(before.main.result_names, wanted, found, strict=True):
            np.testing.assert_array_equal(b, a, f"{name} of {x}")
