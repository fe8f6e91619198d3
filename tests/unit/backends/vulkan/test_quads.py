"""Four words loaded at once: where operands are known to begin, which loads become vectors, and
that both drivers then compute the same as ever.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.analysis.memory.alignment import buffer_alignments
from aot.backends.vulkan.spirv import Op
from aot.ir.builder import Builder
from aot.ir.clone import clone_function
from aot.ir.dims import Dim, symbol
from aot.ir.expr import add, binary, const, index, mul
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import BufferClass, For, Kernel, KernelBuilder, LoopKind, Store
from aot.kernels.lowering import lower
from aot.target.selection import load as load_target
from tests.support import vulkan_device, vulkan_running
from tests.support.spirv_reader import opcodes
from tests.support.vulkan_case import F32, load
from tests.support.vulkan_runtime import running_on

MODULE = """
func @main(%x: f32[1, 8, 6]) -> ("y", "z") {{
  %0 = dispatch(%x) {{executable = @e0, ties = [-1]}} : f32[1, 8, 6]
  %1 = slice(%0) {{{slice}}} : f32[1, 2, 6]
  %2 = dispatch(%1) {{executable = @e1, ties = [{tie}]}} : f32[1, 2, 6]
  %3 = slice(%0) {{starts = [0, 4, 0], stops = [1, 6, 6], steps = [1, 1, 1]}} : f32[1, 2, 6]
  %4 = dispatch(%3) {{executable = @e1, ties = [{tie}]}} : f32[1, 2, 6]
  return(%2, %4)
}}

executable @e0(%0: f32[1, 8, 6]) -> ("r0") bindings [2, 1] {{
  %1 = relu(%0) : f32[1, 8, 6]
  return(%1)
}}

executable @e1(%0: f32[1, 2, 6]) -> ("r0") bindings [1, 3] {{
  %1 = relu(%0) : f32[1, 2, 6]
  return(%1)
}}
"""


@pytest.mark.parametrize(
    ("start", "tie", "expected"),
    [
        (2, -1, 16),  # 2 * 24 bytes, and 96
        (1, -1, 8),  # 24 bytes
        (2, 0, 1),  # its memory is written
    ],
)
def test_an_operand_begins_where_the_least_aligned_dispatch_has_it(
    start: int, tie: int, expected: int
) -> None:
    piece = f"starts = [0, {start}, 0], stops = [1, {start + 2}, 6], steps = [1, 1, 1]"
    module = parse_module(MODULE.format(slice=piece, tie=tie))
    assert buffer_alignments(module) == {"e0": (16, 16), "e1": (expected, 16)}


def sums(count: Dim, alignment: int, binding: BufferClass = BufferClass.ARENA) -> Kernel:
    """y[i] = the sum of x[4i .. 4i + 3] where i > 0, else 4."""
    b = KernelBuilder("sums")
    if not isinstance(count, int):
        b.dim_param(str(count))
    x = b.buffer("x", F32, binding, (count,), (1,), alignment=alignment)
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (16,), (1,), is_written=True)
    total = b.scratch("total", F32, (16,))
    lane, j = b.var("lane"), b.var("j")
    at = add(mul(lane, index(4)), j)
    inside = binary("gt", lane, index(0))
    one = load(x, at, guard=inside, other=const(1.0, F32))
    body = (
        Store(total, (lane,), const(0.0, F32)),
        For(
            *(j, 4, LoopKind.UNROLLED),
            (Store(total, (lane,), add(load(total, lane), one)),),
        ),
        Store(y, (lane,), load(total, lane)),
    )
    return b.build((For(lane, 16, LoopKind.LANE, body),))


def loads(kernel: Kernel) -> int:
    return opcodes(vulkan_running.build(kernel).words).count(Op.LOAD)


def test_neighbours_are_loaded_together_where_they_begin_aligned() -> None:
    together = loads(sums(64, 16))
    assert loads(sums(64, 8)) == loads(sums(64, 1)) == together + 3


def test_four_words_are_never_read_past_a_buffers_end() -> None:
    assert loads(sums(63, 16)) == loads(sums(64, 1))
    assert loads(sums(symbol("n"), 16)) == loads(sums(symbol("n"), 1))


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
def test_a_guard_keeps_four_words_from_being_read(driver: str) -> None:
    xs = np.arange(64, dtype=np.float32)
    xs[:4] = np.nan
    found = vulkan_running.run_on(driver, sums(64, 16), {"x": xs}, {})
    expected = xs.reshape(16, 4).sum(1)
    expected[0] = 4
    np.testing.assert_array_equal(found["y"], expected)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("channels", [12, 14])
def test_convolutions_of_slices(driver: str, channels: int, tmp_path: Path) -> None:
    """3x3 with borders, and 1x1 whose rows skip lines, over channels that begin at multiples of
    four, and that do not."""
    rng = np.random.default_rng(3)

    def conv(x: Value, filters: int, size: int, stride: int) -> Value:
        weight = rng.standard_normal((filters, x.type.shape[1], size, size), np.float32)
        pads, steps = (size // 2,) * 4, (stride,) * 2
        made: Value = b.op("conv", x, weight, strides=steps, pads=pads, dilations=(1, 1), group=1)
        return made

    b = Builder()
    wide = conv(b.input("x", "f32[1, 8, 9, 9]"), 2 * channels, 1, 1)
    begin, end = (0, channels, 0, 0), (1, 2 * channels, 9, 9)
    half = b.op("slice", wide, starts=begin, stops=end, steps=(1,) * 4)
    b.output("near", conv(half, 20, 3, 1))
    b.output("skip", conv(half, 20, 1, 2))
    function = b.function()
    module = aot.compile(Module([clone_function(function)]), targets=["vulkan-1.1"])
    feeds = {"x": rng.standard_normal((1, 8, 9, 9), np.float32)}
    wanted = dict(zip(function.result_names, run(function, [feeds["x"]]), strict=True))
    with running_on(driver, tmp_path), aot.load(module.to_bytes(), "vulkan") as program:
        found = program(feeds)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-4 * np.abs(array).max())


# A convolution whose weights' neighbours in memory are its terms, not its columns.
TERMS = """
func @main(%x: f32[1, 16, 9, 9]{{order=0:2:3:1}}, %w: {weight}) -> ("y") {{
  %0 = dispatch(%x, %w) {{executable = @e0, ties = [-1]}} : {result}
  return(%0)
}}

executable @e0(%0: f32[1, 16, 9, 9]{{order=0:2:3:1}}, %1: {weight}) -> ("r0") bindings [1, 1, 3] {{
  %2 = conv(%0, %1) {{strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]}} : {result}
  return(%2)
}}
"""


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
def test_sums_whose_columns_lie_apart(driver: str) -> None:
    weight = "f32[64, 16, 3, 3]{order=0:2:3:1}"
    module = parse_module(TERMS.format(weight=weight, result="f32[1, 64, 9, 9]"))
    (function,) = module.executables
    rng = np.random.default_rng(0)
    shapes = ((1, 16, 9, 9), (64, 16, 3, 3))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (wanted,) = run(function, arrays)
    kernel = lower(function, load_target("vulkan-1.1"), [16, 16])
    x, w = kernel.buffers[:2]
    given = {x.name: arrays[0].transpose(0, 2, 3, 1), w.name: arrays[1].transpose(0, 2, 3, 1)}
    (found,) = vulkan_running.run_on(
        driver, kernel, {name: np.ascontiguousarray(a).reshape(-1) for name, a in given.items()}
    ).values()
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, atol=1e-4)
