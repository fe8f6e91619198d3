"""Depthwise convolutions over planes: several lines at a time, on lines in scratch."""

from __future__ import annotations

import re

import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.kernels.ir.nodes import Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import PLANES, Conv
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()
# lines that groups divide and others; one, less and more vectors than one, whole or not
SIZES = [(3, 2), (5, 7), (8, 16), (9, 17), (14, 14), (17, 33), (33, 15), (21, 67), (47, 32)]
# extents from which on lines share what is loaded whatever else there is
LEAST = 5
# kernel, stride, pad, distance of taps
WINDOWS = [
    *((3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 0, 1), (5, 2, 2, 1), (5, 1, 2, 1), (7, 1, 3, 1)),
    *((3, 1, 2, 2), (3, 1, 6, 6), (5, 2, 4, 2), (3, 3, 0, 1), (3, 2, 3, 3), (4, 3, 1, 2)),
    *((2, 1, 1, 1), (9, 1, 4, 1), (13, 1, 6, 1), (7, 4, 3, 1), (11, 2, 5, 1), (2, 5, 0, 3)),
]


def depthwise(
    extents: tuple[int, int], window: tuple[int, int, int, int], end: str = "", channels: int = 3
) -> Conv:
    kernel, stride, pad, apart = window
    return Conv(
        *((channels, channels, *extents), kernel, stride, pad),
        members=1,
        weights=PLANES,
        end=end,
        apart=apart,
    )


def shares_lines(case: Conv, target: str) -> bool:
    kernel = lower(case.function(), targets.load(target))
    return bool({"windows/plane_windows", "windows/by_planes"} & set(kernel.rules))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows(window: tuple[int, int, int, int]) -> None:
    for number, extents in enumerate(SIZES, WINDOWS.index(window)):
        case = depthwise(extents, window, ("", "residual")[number % 2])
        target = NATIVE[number % len(NATIVE)]
        assert min(extents) < LEAST or shares_lines(case, target)
        case.check(target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v2", "armv7-neon", "riscv64-v"])
@pytest.mark.parametrize("window", WINDOWS[::4], ids=str)
def test_interpreted(window: tuple[int, int, int, int], target: str) -> None:
    """No line is read that was not brought, and none is stored twice."""
    for extents in ((9, 19), (13, 6)):
        depthwise(extents, window, channels=2).check(target, on_interpreter)


def test_lines_that_few_of_which_are_near() -> None:
    """A workgroup has a band of a plane; the last has lines that aren't there."""
    for target in NATIVE:
        for extents in ((29, 600), (41, 255), (10, 1030)):
            for window in ((3, 1, 1, 1), (5, 2, 2, 1), (7, 1, 3, 1)):
                depthwise(extents, window, channels=2).check(target, on_cpu(target))


@pytest.mark.parametrize("end", ["", "residual"])
def test_large_planes_are_asked_for(end: str) -> None:
    target = NATIVE[-1]
    case = depthwise((130, 250), (5, 1, 2, 1), end, channels=12)
    kernel = lower(case.function(), targets.load(target))
    assert any(isinstance(s, Prefetch) for s in walk(kernel.body))
    case.check(target, on_cpu(target))


@pytest.mark.parametrize("window", WINDOWS[:4], ids=str)
def test_what_is_done_with_each_line_may_be_long(window: tuple[int, int, int, int]) -> None:
    """A copy a line would be most of the code: there is one for all."""
    for extents in ((14, 33), (16, 16), (11, 7)):
        case = depthwise(extents, window, "sigmoid")
        for target in NATIVE:
            assert shares_lines(case, target)
            case.check(target, on_cpu(target))


def test_lines_share_what_they_load() -> None:
    """Of each place that a vector begins at, a load serves all lines whose windows it is in."""
    target = targets.load("x86-64-v4")
    text = emit_assembly(lower(depthwise((16, 64), (3, 1, 1, 1)).function(), target), target)
    products = re.findall(r"vfmadd\w+\s+(.*zmm.*)", text)
    of_memory = [p for p in products if "(" in p]
    assert len(products) >= 9 * 8 and len(of_memory) < len(products) / 4


@pytest.mark.parametrize("opened", ["H", "W", "C"])
def test_open_extents(opened: str) -> None:
    case = Conv((3, 3, 12, 35), 3, 1, 1, members=1, weights=PLANES, opened=opened)
    case.check(NATIVE[0], on_cpu(NATIVE[0]))
