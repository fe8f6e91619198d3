"""Convolutions in groups over planes: vectors of places that go over the ends of lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.graph import Function
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import Engine, on_interpreter, on_whole_numbers

NATIVE = native_targets()
# groups, channels and columns of each
GROUPS = [
    *((8, 8, 8), (4, 24, 24), (5, 2, 2), (3, 3, 3), (6, 5, 4), (4, 3, 12), (2, 40, 40)),
    *((3, 16, 16), (2, 7, 13), (3, 2, 5), (4, 1, 2), (2, 1, 3)),
]
# extents of the image, taps, strides, dilations, pads
WINDOWS: list[tuple[Any, ...]] = [
    ((7, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((9, 20), (3, 5), (1, 1), (1, 1), (1, 2, 1, 2)),
    ((11, 13), (3, 3), (2, 1), (1, 2), (0, 2, 1, 3)),
    ((10, 33), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((6, 33), (2, 4), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((13, 22), (5, 2), (3, 2), (2, 3), (4, 1, 3, 2)),
    ((33, 97), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((5, 300), (3, 3), (1, 1), (2, 2), (2, 2, 2, 2)),
    ((9, 261), (3, 3), (2, 2), (1, 1), (0, 20, 1, 30)),
]


def conv(
    groups: tuple[int, int, int], window: tuple[Any, ...], end: str = "relu", images: str = "2"
) -> Function:
    count, inner, columns = groups
    extents, kernel, strides, dilations, pads = window
    height, width = (
        (n + pads[k] + pads[k + 2] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1
        for k, n in enumerate(extents)
    )
    result = f"f32[{images}, {count * columns}, {height}, {width}]"
    layout = "{splits=0/16 order=0:2:3:1:4}" if columns % 16 == 0 else "{order=2:3:1:0}"
    text = f"""
    executable @e0(
      %x: f32[{images}, {count * inner}, {extents[0]}, {extents[1]}],
      %w: f32[{count * columns}, {inner}, {kernel[0]}, {kernel[1]}]{layout},
      %b: f32[{count * columns}]
    ) -> ("r0") bindings [2, 0, 0, 3] {{
      %1 = conv(%x, %w, %b) {{
        strides = {list(strides)}, dilations = {list(dilations)}, pads = {list(pads)},
        group = {count}
      }} : {result}
      %2 = {end}(%1) : {result}
      return(%2)
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(function: Function, target: str, engine: Engine) -> None:
    got, wanted = on_whole_numbers(function, target, engine)
    np.testing.assert_array_equal(got, wanted)


def is_taken(groups: tuple[int, int, int], window: tuple[Any, ...], target: str) -> bool:
    kernel = lower(conv(groups, window), targets.load(target))
    return kernel.rules == ("windows/grouped_planes",)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_natively(groups: tuple[int, int, int]) -> None:
    for number, window in enumerate(WINDOWS, GROUPS.index(groups)):
        target = NATIVE[number % len(NATIVE)]
        check(conv(groups, window), target, on_cpu(target))


@pytest.mark.parametrize("columns", [3, 16, 48])
def test_strided_points(columns: int) -> None:
    """Products at every so manyth place of planes, all channels one group."""
    none = (1, 1), (0, 0, 0, 0)
    for number, (extents, strides, inner) in enumerate(
        (((33, 35), (2, 2), 24), ((40, 31), (1, 3), 7), ((13, 97), (3, 2), 64), ((9, 9), (2, 2), 5))
    ):
        target = NATIVE[-1 - number % 2]
        check(conv((1, inner, columns), (extents, (1, 1), strides, *none)), target, on_cpu(target))
    wide = (64, 64), (1, 1), (2, 2), *none
    few = (14, 14), (1, 1), (2, 2), *none
    assert columns < 40 or is_taken((1, 64, columns), wide, "x86-64-v4")
    assert not is_taken((1, 1024, columns), few, "x86-64-v4")
    assert not is_taken((1, 64, columns), wide, "x86-64-v3")


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v2", "aarch64-generic", "riscv64-v"])
def test_interpreted(target: str) -> None:
    """No place is read that was not brought, but for what is between lines."""
    for groups in ((2, 3, 5), (2, 2, 2)):
        for window in (WINDOWS[0], WINDOWS[3], ((4, 90), *WINDOWS[0][1:])):
            check(conv(groups, window), target, on_interpreter)


def test_which_are_taken() -> None:
    for target in ("x86-64-v3", "x86-64-v4"):
        assert is_taken((8, 8, 8), WINDOWS[0], target)
        assert is_taken((4, 24, 24), WINDOWS[6], target)
        assert is_taken((2, 40, 40), WINDOWS[7], target)
        assert is_taken((3, 16, 16), WINDOWS[3], target)
    assert is_taken((8, 8, 8), WINDOWS[0], "aarch64-generic")
    assert not is_taken((3, 16, 16), WINDOWS[0], "aarch64-generic")
    assert is_taken((8, 3, 3), WINDOWS[0], "armv7-neon")
    assert not is_taken((8, 8, 8), WINDOWS[0], "armv7-neon")
    assert not is_taken((8, 8, 8), WINDOWS[0], "vulkan-1.1")
    points = ((5, 6), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    assert not is_taken((8, 8, 8), points, "x86-64-v4")


def test_large_planes_are_asked_for() -> None:
    """Beside strips, and below bands, which are all of a line."""
    target = "x86-64-v2"
    for groups, extents in (((2, 24, 6), (70, 140)), ((2, 2, 2), (500, 40))):
        window = extents, *WINDOWS[0][1:]
        kernel = lower(conv(groups, window), targets.load(target))
        assert any(isinstance(s, Prefetch) for s in walk(kernel.body))
        check(conv(groups, window), target, on_cpu(target))


def test_an_open_count_of_images() -> None:
    """An image is asked for as one of several is."""
    for extents, is_large in (((9, 20), False), ((500, 40), True)):
        window = extents, *WINDOWS[0][1:]
        kernel = lower(conv((2, 2, 2), window, images="N"), targets.load("x86-64-v2"))
        assert kernel.rules == ("windows/grouped_planes",)
        assert any(isinstance(s, Prefetch) for s in walk(kernel.body)) is is_large
