"""Channels-last windows: those of many taps read lines in scratch, and channels go in blocks where
the nearest cache doesn't hold all of those that windows share."""

from __future__ import annotations

import numpy as np
import pytest

from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import For, Kernel, Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import LAST, Conv
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import on_interpreter, on_whole_numbers

NATIVE = native_targets()


def depthwise(sizes: tuple[int, int, int], kernel: int, stride: int, pad: int, end: str) -> Conv:
    channels, height, width = sizes
    known = {"left": LAST, "result": LAST, "weights": "{order=2:3:1:0}", "end": end}
    return Conv((channels, channels, height, width), kernel, stride, pad, members=1, **known)


def holds_lines(kernel: Kernel) -> bool:
    return kernel.rules == ("windows/packed",)


@pytest.mark.parametrize("end", ["", "residual"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(9, 1, 4), (9, 2, 4), (11, 1, 5), (8, 1, 0)])
def test_many_taps(kernel: int, stride: int, pad: int, end: str) -> None:
    for target in NATIVE:
        for sizes in ((16, 7, 7), (17, 20, 9), (40, 5, 33), (3, 14, 13), (96, 6, 10)):
            case = depthwise(sizes, kernel, stride, pad, end)
            if stride == 1:  # else a line may be longer than the nearest cache has room for
                assert holds_lines(lower(case.function(), targets.load(target)))
            case.check(target, on_cpu(target))


@pytest.mark.parametrize(("target", "taps"), [("x86-64-v3", 400), ("x86-64-v4", 180)])
def test_scratch_holds_lines_of_all_columns_of_a_tile(target: str, taps: int) -> None:
    """Tiles of two results have two vectors of columns, whose lines are twice as long."""
    text = f"""
    executable @e0(%0: f32[1, 32, 4, {taps + 1}]{LAST}, %1: f32[32, 1, 3, {taps}]{{order=2:3:1:0}})
        -> ("r0") bindings [2, 0, 3] {{
      %2 = conv(%0, %1, _) {{
        strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0], group = 32
      }} : f32[1, 32, 2, 2]{LAST}
      return(%2)
    }}
    """
    (function,) = parse_module(text).executables
    np.testing.assert_array_equal(*on_whole_numbers(function, target, on_interpreter))


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64-generic"])
def test_interpreted(target: str) -> None:
    depthwise((18, 4, 5), 9, 1, 4, "").check(target, on_interpreter)


@pytest.mark.parametrize("opened", ["H", "W", "C"])
def test_open_extents_are_read_in_place(opened: str) -> None:
    known = {"left": LAST, "result": LAST, "weights": "{order=2:3:1:0}", "opened": opened}
    case = Conv((20, 20, 6, 9), 9, 1, 4, members=1, **known)
    case.check(NATIVE[0], on_cpu(NATIVE[0]))


def pool(name: str, extents: tuple[int, int], kernel: int, stride: int, pad: int) -> Function:
    height, width = ((n + 2 * pad - kernel) // stride + 1 for n in extents)
    counted = "count_include_pad = false, " if name == "average_pool" else ""
    text = f"""
    executable @e0(%0: f32[2, 24, {extents[0]}, {extents[1]}]{LAST}) -> ("r0") bindings [2, 3] {{
      %1 = {name}(%0) {{
        {counted}kernel = [{kernel}, {kernel}], strides = [{stride}, {stride}],
        dilations = [1, 1], pads = [{pad}, {pad}, {pad}, {pad}]
      }} : f32[2, 24, {height}, {width}]{LAST}
      return(%1)
    }}
    """
    (function,) = parse_module(text).executables
    return function


@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_of_pools(name: str, stride: int) -> None:
    """What padding is for a maximum is not 0."""
    for target in NATIVE:
        function = pool(name, (13, 19), 9, stride, 4)
        data = np.random.default_rng(2).integers(-9, -1, (2, 24, 13, 19)).astype(np.float32)
        (wanted,) = run(function, [data])
        memory = [to_memory(data, function.inputs[0].type, {})]
        machine = targets.load(target)
        (got,) = run_executable(function, machine, memory, [], on_cpu(target))
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("channels", [160, 168, 512, 72])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 2)])
def test_blocks_of_channels(channels: int, kernel: int, stride: int) -> None:
    """All rows pass some channels before the next ones, of which there may be fewer."""
    for target in NATIVE:
        case = depthwise((channels, 20, 28), kernel, stride, kernel // 2, "")
        case.check(target, on_cpu(target))


def test_what_the_cache_holds_is_not_taken_apart() -> None:
    target = targets.load("x86-64-v4")

    def together(sizes: tuple[int, int, int]) -> set[object]:
        kernel = lower(depthwise(sizes, 3, 1, 1, "").function(), target)
        loops = [s for s in walk(kernel.body) if isinstance(s, For)]
        return {loop.extent for loop in loops if loop.var.name.startswith("nt")}

    assert together((384, 14, 14)) == {2}
    assert together((64, 14, 14)) == {4}


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 2), (4, 2)])
def test_lines_of_large_images_are_asked_for(kernel: int, stride: int) -> None:
    def asks(sizes: tuple[int, int, int], target: str) -> bool:
        case = depthwise(sizes, kernel, stride, kernel // 2, "residual")
        lowered = lower(case.function(), targets.load(target))
        return any(isinstance(s, Prefetch) for s in walk(lowered.body))

    large = 66, 60, 70
    assert asks(large, "x86-64-v4")
    assert not asks((66, 12, 14), "x86-64-v4")
    assert not asks(large, "aarch64-generic")
    if "x86-64-v4" in NATIVE:
        depthwise(large, kernel, stride, kernel // 2, "residual").check(
            "x86-64-v4", on_cpu("x86-64-v4")
        )
