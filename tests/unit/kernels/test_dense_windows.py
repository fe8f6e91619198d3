"""Windows over planes whose innermost dim lies contiguous: lanes go along the result, guards are
asked where a vector reaches over a border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir import expr
from aot.ir.graph import Module
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Buffer, For, If, Kernel, LoopKind, Stmt, Store, walk
from aot.kernels.lowering import lower
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import check

POOLS = ("max_pool", "average_pool")
# width, kernel, stride, dilation, pads before and after
WINDOWS = [
    (8, 2, 2, 1, (0, 0)),
    (9, 2, 2, 1, (0, 0)),
    (17, 3, 1, 1, (1, 1)),
    (33, 3, 2, 1, (1, 0)),
    (40, 5, 1, 1, (2, 2)),
    (35, 3, 1, 2, (2, 1)),
    (64, 3, 3, 1, (0, 1)),
    (7, 7, 1, 1, (3, 3)),
    (21, 9, 2, 1, (4, 4)),
    (70, 2, 2, 1, (0, 0)),
]


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_pools_of_planes(name: str, window: tuple[Any, ...], target: str) -> None:
    width, kernel, stride, dilation, pads = window
    b = Builder()
    x = b.input("x", f"f32[1, 1, {kernel + 1}, {width}]")
    more = {"count_include_pad": False} if name == "average_pool" else {}
    made = b.op(
        name,
        x,
        kernel=[kernel, kernel],
        strides=[1, stride],
        dilations=[1, dilation],
        pads=[pads[0], pads[0], pads[1], pads[1]],
        **more,
    )
    b.output("y", made)
    data = np.random.default_rng(3).uniform(-2, -1, (1, 1, kernel + 1, width)).astype(np.float32)
    check(b.function(), [data], target, 1)


@pytest.mark.parametrize("window", WINDOWS[2:7], ids=str)
def test_depthwise_convolutions_of_planes(window: tuple[Any, ...]) -> None:
    width, kernel, stride, dilation, pads = window
    rng = np.random.default_rng(3)
    b = Builder()
    x = b.input("x", f"f32[1, 3, {kernel + 2}, {width}]")
    made = b.op(
        "conv",
        x,
        rng.uniform(-1, 1, (3, 1, kernel, kernel)).astype(np.float32),
        None,
        group=3,
        strides=[1, stride],
        dilations=[1, dilation],
        pads=[pads[0], pads[0], pads[1], pads[1]],
    )
    b.output("y", made)
    data = rng.uniform(-2, 2, (1, 3, kernel + 2, width)).astype(np.float32)
    check(b.function(), [data], "x86-64-v3", 1)


@pytest.mark.parametrize("name", [*POOLS, "conv"])
def test_padded_planes_natively(name: str) -> None:
    """Pads on any side, steps and distances along both axes, lines, and rows of many blocks."""
    rng = np.random.default_rng(3)
    for extents, kernel, strides, dilations, pads in (
        ((40, 37), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
        ((19, 70), (5, 3), (2, 3), (1, 2), (2, 0, 1, 3)),
        ((9, 33), (3, 7), (1, 4), (2, 1), (0, 3, 0, 3)),
        ((8, 21), (2, 4), (3, 2), (1, 3), (1, 0, 0, 5)),
        ((6, 200), (1, 3), (1, 1), (1, 1), (0, 1, 0, 1)),
        ((75,), (9,), (2,), (1,), (4, 4)),
        ((30, 3), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
        ((31, 27), (9, 7), (1, 1), (1, 2), (4, 6, 3, 5)),
        ((40, 45), (7, 8), (2, 3), (2, 1), (6, 4, 5, 7)),
        ((11, 1030), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
        ((7, 9, 19), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1, 1, 1, 1)),
        ((5, 8, 11), (2, 5, 5), (1, 1, 1), (3, 1, 1), (2, 2, 2, 1, 2, 2)),
    ):
        attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
        attrs = {key: list(value) for key, value in attrs.items()}
        for target in native_targets():
            b = Builder()
            x = b.input("x", f"f32{[2, 3, *extents]}")
            if name == "conv":
                weight = rng.uniform(-1, 1, (3, 1, *kernel)).astype(np.float32)
                made = b.op("conv", x, weight, None, group=3, **attrs)
            else:
                more = {"count_include_pad": False} if name == "average_pool" else {}
                made = b.op(name, x, kernel=list(kernel), **attrs, **more)
            b.output("y", b.op("relu", made))
            data = rng.uniform(-2, 2, (2, 3, *extents)).astype(np.float32)
            check(b.function(), [data], target, 1, engine=on_cpu(target))


@pytest.mark.parametrize(("width", "taps"), [(33, 3), (511, 5), (1024, 5)])
def test_taps_of_padded_planes_are_not_asked(width: int, taps: int) -> None:
    """Vectors at borders once asked of each tap in each lane whether it was padding; later, those
    of lines of which the nearest cache does not hold as many as a window has."""
    text = f"""
    executable @e0(%0: f32[1, 2, 33, {width}]) -> ("r0") bindings [2, 3] {{
      %1 = average_pool(%0) {{
        kernel = [{taps}, {taps}], strides = [1, 1], dilations = [1, 1],
        pads = [{taps // 2}, {taps // 2}, {taps // 2}, {taps // 2}], count_include_pad = false
      }} : f32[1, 2, 33, {width}]
      return(%1)
    }}
    """
    (function,) = parse_module(text).executables
    kernel: Kernel = lower(function, targets.load("x86-64-v3"))
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    assert not any(load.guard is not None for s in stores for load in expr.loads(s.value))


@pytest.mark.parametrize("name", POOLS)
def test_wide_windows_combine_rows_first(name: str) -> None:
    """A window of 13 by 13 taps once loaded all of them for each element."""
    b = Builder()
    x = b.input("x", "f32[1, 1, 64, 64]")
    b.output("y", b.op(name, x, kernel=[13] * 2, strides=[1] * 2, dilations=[1] * 2, pads=[6] * 4))
    module = Module([b.function()])
    fuse(module.main)
    outline(module)
    (executable,) = module.executables
    kernel = lower(executable, targets.load("x86-64-v3"))
    assert loads_run(kernel.body) <= 80 * 64 * 64


def test_padding_before_and_after_planes_is_left_out() -> None:
    """Planes of windows in three dims that are padding are asked for once, not in each lane."""
    b = Builder()
    x = b.input("x", "f32[1, 4, 16, 28, 28]")
    b.output(
        "y", b.op("max_pool", x, kernel=[3] * 3, strides=[2] * 3, dilations=[1] * 3, pads=[1] * 6)
    )
    module = Module([b.function()])
    fuse(module.main)
    outline(module)
    (executable,) = module.executables
    kernel = lower(executable, targets.load("x86-64-v3"))
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    assert not any(load.guard is not None for s in stores for load in expr.loads(s.value))


def loads_run(body: tuple[Stmt, ...], times: int = 1) -> int:
    """How many elements are loaded where every condition holds."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            assert isinstance(stmt.extent, int)
            total += loads_run(stmt.body, times * stmt.extent)
        elif isinstance(stmt, If):
            total += loads_run(stmt.then, times)
        elif isinstance(stmt, Store):
            total += times * len(list(expr.loads(stmt.value)))
    return total


def test_no_vector_is_as_narrow_as_a_window() -> None:
    """A window of two taps once had vectors of two, each of which was added up by itself."""
    text = """
    executable @e0(%0: f32[1, 2, 64, 64]) -> ("r0") bindings [2, 3] {
      %1 = max_pool(%0) {
        kernel = [2, 2], strides = [2, 2], dilations = [1, 1], pads = [0, 0, 0, 0]
      } : f32[1, 2, 32, 32]
      return(%1)
    }
    """
    (function,) = parse_module(text).executables
    kernel: Kernel = lower(function, targets.load("x86-64-v3"))
    widths = {
        s.extent
        for s in walk(kernel.body)
        if isinstance(s, For)
        and s.kind is LoopKind.VECTOR
        and any(isinstance(x, Store) and isinstance(x.target, Buffer) for x in s.body)
    }
    assert widths == {8, 32}  # the narrow ones where an element is NaN
