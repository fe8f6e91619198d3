"""What neighbouring lanes share: which loops, how much less is loaded for it, and that results on a
driver with such subgroups are the same, and on one without.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.peers import peers_of
from aot.backends.vulkan.placement import place
from aot.backends.vulkan.shader import Shader
from aot.backends.vulkan.spirv import Op
from aot.ir.builder import Builder
from aot.ir.clone import clone_function
from aot.ir.expr import add, binary, index, mul
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.kernels.ir.nodes import BufferClass, For, If, Kernel, KernelBuilder, Let, LoopKind, Store
from aot.target.selection import load as load_target
from tests.support.spirv_reader import opcodes
from tests.support.vulkan_case import F32, load
from tests.support.vulkan_running import validate
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

LANES = 32


def rows_of_a_tile(rows: int, across: int, *, end: int = LANES, by_lane: bool = False) -> Kernel:
    """y[lane][r] = x[rows * (lane // across) + r] for lanes before `end`; of each lane's own part
    of x with `by_lane`."""
    b = KernelBuilder("rows")
    x = b.buffer("x", F32, BufferClass.CONSTANTS, (LANES * rows,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (LANES, rows), (rows, 1), is_written=True)
    own = b.scratch("own", F32, (rows, LANES))
    lane, r, s, a = b.var("lane"), b.var("r"), b.var("s"), b.var("a", F32)
    row = lane if by_lane else binary("floordiv", lane, index(across))
    first = add(mul(row, index(rows)), r)
    body: tuple[For | If, ...] = (
        For(r, rows, LoopKind.UNROLLED, (Let(a, load(x, first)), Store(own, (r, lane), a))),
        For(s, rows, LoopKind.UNROLLED, (Store(y, (lane, s), load(own, s, lane)),)),
    )
    if end != LANES:
        body = (If(binary("lt", lane, index(end)), body),)
    return b.build((For(lane, LANES, LoopKind.LANE, body),))


@pytest.mark.parametrize(
    ("rows", "across", "end", "by_lane", "expected"),
    [
        (8, 8, LANES, False, 8),
        (8, 32, LANES, False, 8),
        (8, 4, LANES, False, 4),
        (4, 8, LANES, False, 4),
        (7, 8, LANES, False, 8),  # one of them loads the last row again
        (5, 8, LANES, False, 8),
        (2, 16, LANES, False, 2),
        (8, 12, LANES, False, 4),
        (8, 8, 24, False, 8),
        (8, 8, 20, False, 4),
        (8, 1, LANES, False, None),  # every lane has rows of its own
        (8, 8, LANES, True, None),
        (8, 8, 5, False, None),  # some of those that would load are not there
    ],
)
def test_lanes_share_rows_that_are_equal(
    rows: int, across: int, end: int, by_lane: bool, expected: int | None
) -> None:
    kernel = rows_of_a_tile(rows, across, end=end, by_lane=by_lane)
    machine = load_target("vulkan-1.1")
    assert machine.gpu is not None
    found = peers_of(kernel, place(kernel, machine.gpu).unrolled)
    assert list(found.values()) == ([] if expected is None else [expected])
    if expected is None:
        return
    shader = compile_kernel(kernel, machine)
    assert shader.texel is not None
    validate(shader.texel.words)
    assert _fetches(shader.texel) == -(-rows // expected)
    assert not set(opcodes(shader.words)) & {Op.GROUP_NON_UNIFORM_SHUFFLE}


def _fetches(shader: Shader) -> int:
    return opcodes(shader.words).count(Op.IMAGE_FETCH)


def products(rows: int, depth: int, columns: int, dtype: str) -> Module:
    b, rng = Builder(), np.random.default_rng(rows + depth + columns)
    if dtype == "f32":
        weight = rng.standard_normal((depth, columns)).astype(np.float32)
        b.output("y", b.op("matmul", b.input("x", f"f32[{rows}, {depth}]"), weight))
    else:
        weight = rng.integers(-7, 8, (depth, columns)).astype(np.int8)
        b.output("y", b.op("matmul_integer", b.input("x", f"u8[{rows}, {depth}]"), weight))
    return b.module()


def conv(channels: int, filters: int, size: int, kernel: int) -> Module:
    b, rng = Builder(), np.random.default_rng(channels + filters + size)

    def one(x: Value, filters: int, kernel: int) -> Value:
        weight = rng.standard_normal((filters, x.type.shape[1], kernel, kernel), np.float32)
        pads = (kernel // 2,) * 4
        attrs = {"strides": (1, 1), "pads": pads, "dilations": (1, 1), "group": 1}
        made: Value = b.op("conv", x, weight, **attrs)
        return made

    x = b.input("x", f"f32[1, 3, {size}, {size}]")
    b.output("y", one(one(x, channels, 1), filters, kernel))
    return b.module()


@pytest.mark.parametrize(
    "module",
    [
        *(products(rows, 12, 40, "f32") for rows in (2, 3, 7, 8, 9, 31, 100)),
        *(products(40, depth, 7, "f32") for depth in (3, 8)),
        *(products(rows, 16, 24, "u8") for rows in (5, 33)),
        *(conv(8, filters, 9, 3) for filters in (3, 12, 70)),
        conv(6, 16, 13, 5),
    ],
)
def test_results_are_those_of_the_interpreter(module: Module, tmp_path: Path) -> None:
    (function,) = module.entry_points
    rng = np.random.default_rng(5)
    (value,) = function.inputs
    shape, dtype = value.type.shape, value.type.dtype.numpy
    is_float = dtype.kind == "f"
    x = rng.standard_normal(shape) if is_float else rng.integers(0, 9, shape)
    feeds = {"x": x.astype(dtype)}
    (wanted,) = run(function, list(feeds.values()))
    compiled = aot.compile(Module([clone_function(function)]), targets=["vulkan-1.1"])
    with running_on("lavapipe", tmp_path), aot.load(compiled.to_bytes(), "vulkan") as program:
        (found,) = program(feeds).values()
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_device_without_such_subgroups_reads_storage_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_TEXELS", "on")
    module = products(8, 16, 64, "f32")
    (function,) = module.entry_points
    x = np.random.default_rng(2).standard_normal((8, 16)).astype(np.float32)
    (wanted,) = run(function, [x])
    compiled = aot.compile(Module([clone_function(function)]), targets=["vulkan-1.1"])
    with running_on("swiftshader", tmp_path), aot.load(compiled.to_bytes(), "vulkan") as program:
        (found,) = program({"x": x}).values()
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
