"""Reductions whose terms lie a row apart: rows are added to a row of sums, as they lie."""

from __future__ import annotations

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.text.parser import parse_module
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import check, on_interpreter

TARGET = native_targets()[-1]
# extents and reduced axes: one piece of columns, several, a last one that is shorter, few terms
SHAPES = [
    ((9, 40), (0,)),
    ((67, 512), (0,)),
    ((13, 1025), (0,)),
    ((3, 11, 650), (1,)),
    ((2, 5, 7, 70), (1, 2)),
    ((4, 6, 9, 77), (0, 2)),
    ((8, 1, 33), (0,)),
]


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_prod"])
def test_values(op: str) -> None:
    for shape, axes in SHAPES:
        for engine in (on_cpu(TARGET), on_interpreter)[: 2 if np.prod(shape) < 500 else 1]:
            b = Builder()
            x = b.op("abs", b.input("x", f"f32{list(shape)}"))
            b.output("y", b.op("neg", b.op(op, x, axes=axes, keepdims=False)))
            data = np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32)
            check(b.function(), [data], TARGET, 1, engine=engine, tolerance=2e-5)


def kernel_of(type: str, result: str, axes: str, dims: str = "") -> str:
    text = f"""
    executable @e0{dims}(%0: {type}) -> ("r0") bindings [2, 3] {{
      %1 = reduce_sum(%0) {{axes = {axes}, keepdims = false}} : {result}
      return(%1)
    }}
    """
    (function,) = parse_module(text).executables
    return to_text(lower(function, targets.load("x86-64-v3")))


def test_rows_are_read_as_they_lie() -> None:
    """A vector of sums once took its terms alone, each from a page of its own."""
    assert "scratch sums: f32[512]" in kernel_of("f32[512, 1024]", "f32[1024]", "[0]")
    assert "scratch sums: f32[512]" in kernel_of("f32[d0, d1]", "f32[d1]", "[0]", "[d0, d1]")
    assert "scratch sums" not in kernel_of("f32[512, 16]", "f32[16]", "[0]")  # one piece of a row
    assert "scratch sums" not in kernel_of("f32[512, 1024]", "f32[512]", "[1]")


def test_windows_that_share_elements_are_none() -> None:
    b = Builder()
    attrs = {"kernel": [5, 5], "strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4}
    b.output("y", b.op("max_pool", b.input("x", "f32[1, 64, 40, 40]"), **attrs))
    module = Module([b.function()])
    fuse(module.main)
    outline(module)
    (executable,) = module.executables
    assert "scratch sums" not in to_text(lower(executable, targets.load("x86-64-v3")))
