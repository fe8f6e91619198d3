"""Neighbours that a lane loads and stores at once: where four are stored at a time, and that
programs of such kernels compute what the interpreter does, whatever begins or ends within four.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.backends.vulkan.spirv import Op
from aot.ir.builder import Builder
from aot.ir.clone import clone_function
from aot.ir.expr import add, index, mul
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.kernels.ir.nodes import BufferClass, For, Kernel, KernelBuilder, LoopKind, Store
from aot.kernels.rules.elementwise import neighbours_gpu
from tests.support import vulkan_running
from tests.support.spirv_reader import opcodes
from tests.support.vulkan_case import F32, load
from tests.support.vulkan_device import WAYS
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

LANES = 16


def copies(alignment: int, first: int = 0, step: int = 1) -> Kernel:
    """y[4 * lane + first + step * u] = x[the same] + 1 for u below 4."""
    b = KernelBuilder("copies")
    extent = 4 * LANES * step + first
    x = b.buffer("x", F32, BufferClass.INPUTS, (extent,), (1,))
    y = b.buffer(
        *("y", F32, BufferClass.OUTPUTS, (extent,), (1,)), is_written=True, alignment=alignment
    )
    lane, u = b.var("lane"), b.var("u")
    at = add(add(mul(lane, index(4 * step)), index(first)), mul(u, index(step)))
    store = Store(y, (at,), add(load(x, at), load(x, at)))
    body = For(u, 4, LoopKind.UNROLLED, (store,))
    return b.build((For(lane, LANES, LoopKind.LANE, (body,)),))


@pytest.mark.parametrize(
    ("alignment", "first", "step", "stores"),
    [(16, 0, 1, 1), (16, 4, 1, 1), (16, 2, 1, 4), (8, 0, 1, 4), (16, 0, 2, 4)],
)
@pytest.mark.parametrize("driver", ["lavapipe", "swiftshader"])
def test_four_are_stored_at_once_where_they_begin_aligned(
    driver: str, alignment: int, first: int, step: int, stores: int
) -> None:
    kernel = copies(alignment, first, step)
    words = vulkan_running.build(kernel).words
    vulkan_running.validate(words)
    assert opcodes(words).count(Op.STORE) == stores
    x = np.arange(4 * LANES * step + first, dtype=np.float32)
    found = vulkan_running.run_on(driver, kernel, {"x": x}, {})["y"]
    taken = np.arange(first, first + 4 * LANES * step, step)
    np.testing.assert_array_equal(found[taken], 2 * x[taken])


def conv(b: Builder, x: Value, filters: int, size: int, stride: int = 1, group: int = 1) -> Value:
    rng = np.random.default_rng(filters + size)
    weight = rng.standard_normal((filters, x.type.shape[1] // group, size, size)).astype(np.float32)
    bias = rng.standard_normal(filters).astype(np.float32)
    attrs = {"strides": (stride,) * 2, "pads": (size // 2,) * 4, "dilations": (1, 1)}
    made: Value = b.op("conv", x, weight, bias, group=group, **attrs)
    return made


def depthwise(channels: int, size: int, stride: int) -> Module:
    b = Builder()
    wide = conv(b, b.input("x", "f32[1, 5, 33, 31]"), channels, 1)
    deep = conv(b, wide, channels, size, stride, channels)
    b.output("y", conv(b, b.op("relu", deep), 12, 1))
    return b.module()


def pooled(channels: int, name: str) -> Module:
    b = Builder()
    wide = conv(b, b.input("x", "f32[1, 5, 33, 31]"), channels, 1)
    attrs = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    b.output("y", conv(b, b.op(name, wide, **attrs), 12, 1))
    return b.module()


def elementwise(columns: int) -> Module:
    b = Builder()
    x, y = b.input("x", f"f32[100, {columns}]"), b.input("z", f"f32[{columns}]")
    b.output("y", b.op("mul", b.op("sigmoid", b.op("add", x, y)), x))
    b.output("largest", b.op("reduce_max", x, axes=[0], keepdims=False))
    return b.module()


def parts(first: int) -> Module:
    """Results that begin anywhere in one memory."""
    b = Builder()
    x = b.input("x", "f32[1, 8, 31, 31]")
    halves = [conv(b, x, filters, size) for filters, size in ((first, 1), (24, 3), (16, 1))]
    both = b.op("concat", *halves, axis=1)
    b.output("y", conv(b, b.op("relu", both), 12, 1))
    return b.module()


CASES: dict[str, Callable[[], Module]] = {
    "depthwise": lambda: depthwise(16, 3, 1),
    "depthwise of channels that are no groups of four": lambda: depthwise(18, 3, 1),
    "depthwise with a stride": lambda: depthwise(40, 5, 2),
    "largest": lambda: pooled(12, "max_pool"),
    "mean": lambda: pooled(12, "average_pool"),
    "elementwise": lambda: elementwise(96),
    "elementwise of odd lines": lambda: elementwise(95),
    "parts": lambda: parts(8),
    "parts that begin within four": lambda: parts(6),
}


@pytest.mark.parametrize(("driver", "texels"), WAYS)
@pytest.mark.parametrize("case", CASES)
def test_programs_compute_what_the_interpreter_does(
    case: str, driver: str, texels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_TEXELS", texels)
    monkeypatch.setattr(neighbours_gpu, "LEAST_ELEMENTS", 1 << 10)
    made: list[Any] = []
    of = neighbours_gpu.Neighbours.of

    def noted(*arguments: Any) -> Any:
        made.append(of(*arguments))
        return made[-1]

    monkeypatch.setattr(neighbours_gpu.Neighbours, "of", noted)
    (function,) = CASES[case]().entry_points
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(v.type.shape).astype(np.float32) for v in function.inputs]
    names = [v.name for v in function.inputs]
    wanted = dict(zip(function.result_names, run(function, inputs), strict=True))
    compiled = aot.compile(Module([clone_function(function)]), targets=["vulkan-1.1"])
    if "no groups" not in case and "odd" not in case and "parts" not in case:
        assert any(made)
    with running_on(driver, tmp_path), aot.load(compiled.to_bytes(), "vulkan") as program:
        found = program(dict(zip(names, inputs, strict=True)))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5 * np.abs(array).max())
