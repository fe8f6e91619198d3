"""Executables of one convolution each, with operands in given layouts, checked against the graph
interpreter: numbers are small integers, so that sums are exact whatever their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.ir.dims import evaluate
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import Engine

PLANES, LAST = "", "{order=0:2:3:1}"
PACKED = "{splits=0/16 order=0:2:3:1:4}"


@dataclass(frozen=True)
class Conv:
    """Attributes:
    sizes: channels, outputs, height and width of the result.
    kernel: taps of a window, along both axes.
    left, result: layouts.
    end: what is done with the result: "", "residual" or "sigmoid".
    opened: which of the sizes are parameters, by letter: C, O, H, W.
    members: filters of each channel, which is by itself, instead of all outputs.
    apart: places from one tap to the next.
    """

    sizes: tuple[int, int, int, int]
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    left: str = PLANES
    result: str = PLANES
    weights: str = PACKED
    end: str = ""
    opened: str = ""
    members: int = 0
    apart: int = 1

    def function(self) -> Function:
        known = dict(zip("COHW", self.sizes, strict=True))
        c, o, h, w = (n if n in self.opened else known[n] for n in "COHW")
        ends = self.apart * (self.kernel - 1) + 1 - 2 * self.pad - self.stride
        height, width = (
            f"{self.stride} * {n} + {ends}" if isinstance(n, str) else self.stride * n + ends
            for n in (h, w)
        )
        inner, groups = (1, c) if self.members else (c, 1)
        if self.members:
            o = f"{self.members} * {c}" if isinstance(c, str) else self.members * c
        result = f"f32[2, {o}, {h}, {w}]{self.result}"
        steps = {
            "": "return(%1)",
            "residual": f"%2 = add(%1, %r) : {result}\n return(%2)",
            "sigmoid": f"%2 = sigmoid(%1) : {result}\n return(%2)",
        }
        inputs = [
            f"%x: f32[2, {c}, {height}, {width}]{self.left}",
            f"%w: f32[{o}, {inner}, {self.kernel}, {self.kernel}]{self.weights}",
            f"%b: f32[{o}]",
            *([f"%r: {result}"] if self.end == "residual" else []),
        ]
        bindings = [2, 0, 0, *([2] if self.end == "residual" else []), 3]
        parameters = f"[{', '.join(self.opened)}]" if self.opened else ""
        s, p, d = self.stride, self.pad, self.apart
        text = f"""
        executable @e0{parameters}({", ".join(inputs)}) -> ("r0") bindings {bindings} {{
          %1 = conv(%x, %w, %b) {{
            strides = [{s}, {s}], dilations = [{d}, {d}], pads = [{p}, {p}, {p}, {p}],
            group = {groups}
          }} : {result}
          {steps[self.end]}
        }}
        """
        (function,) = parse_module(text).executables
        return function

    def arrays(self, made: Callable[[list[int]], Any]) -> list[Any]:
        """Operands, whose numbers `made` gives for a shape."""
        values = dict(zip("COHW", self.sizes, strict=True))
        types = [value.type for value in self.function().inputs]
        return [made([evaluate(d, values) for d in t.dims]).astype(np.float32) for t in types]

    def computed(self, target: Target, engine: Engine, arrays: list[Any]) -> Any:
        """The result of the executable for a target."""
        function, values = self.function(), dict(zip("COHW", self.sizes, strict=True))
        env = {n: values[n] for n in self.opened}
        memory = [to_memory(a, v.type, env) for a, v in zip(arrays, function.inputs, strict=True)]
        (got,) = run_executable(function, target, memory, list(env.values()), engine)
        return got

    def check(self, target: str | Target, engine: Engine) -> None:
        """Runs the executable for a target."""
        if isinstance(target, str):
            target = targets.load(target)
        rng = np.random.default_rng(3)
        arrays = self.arrays(lambda shape: rng.integers(-3, 4, shape))
        (wanted,) = run(self.function(), arrays)
        got = self.computed(target, engine, arrays)
        if self.end == "sigmoid":
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
        else:
            np.testing.assert_array_equal(got, wanted)
