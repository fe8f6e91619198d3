"""Convolutions in groups that fill no vector: columns of several groups side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.graph import Function
from aot.ir.text.parser import parse_module
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import LAST
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import Engine, on_interpreter, on_whole_numbers

NATIVE = native_targets()
# groups, channels and columns of each
GROUPS = [(8, 8, 8), (4, 24, 24), (19, 8, 8), (3, 8, 8), (6, 5, 4), (4, 3, 12), (2, 40, 40)]
# extents of the image, taps, strides, dilations, pads
WINDOWS: list[tuple[Any, ...]] = [
    ((7, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((9, 20), (3, 5), (1, 1), (1, 1), (1, 2, 1, 2)),
    ((11, 13), (3, 3), (2, 1), (1, 2), (0, 2, 1, 3)),
    ((10, 12), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((6, 33), (2, 4), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((5, 6), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
]


# lines that scratch does not hold
LONG: list[tuple[Any, ...]] = [
    ((5, 171), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((7, 243), (3, 4), (1, 1), (1, 3), (1, 4, 1, 5)),
    ((6, 600), (3, 3), (2, 1), (1, 1), (0, 0, 1, 0)),
]


def conv(groups: tuple[int, int, int], window: tuple[Any, ...]) -> Function:
    count, inner, columns = groups
    extents, kernel, strides, dilations, pads = window
    height, width = (
        (n + pads[k] + pads[k + 2] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1
        for k, n in enumerate(extents)
    )
    result = f"f32[2, {count * columns}, {height}, {width}]{LAST}"
    text = f"""
    executable @e0(
      %x: f32[2, {count * inner}, {extents[0]}, {extents[1]}]{LAST},
      %w: f32[{count * columns}, {inner}, {kernel[0]}, {kernel[1]}]{{order=2:3:1:0}},
      %b: f32[{count * columns}]
    ) -> ("r0") bindings [2, 0, 0, 3] {{
      %1 = conv(%x, %w, %b) {{
        strides = {list(strides)}, dilations = {list(dilations)}, pads = {list(pads)},
        group = {count}
      }} : {result}
      %2 = relu(%1) : {result}
      return(%2)
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(function: Function, target: str, engine: Engine) -> None:
    got, wanted = on_whole_numbers(function, target, engine)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_natively(groups: tuple[int, int, int]) -> None:
    for target in NATIVE:
        for window in WINDOWS:
            check(conv(groups, window), target, on_cpu(target))


@pytest.mark.parametrize("window", LONG, ids=str)
@pytest.mark.parametrize("groups", [(4, 24, 24), (8, 8, 8), (6, 5, 4), (3, 40, 40)], ids=str)
def test_long_lines_natively(groups: tuple[int, int, int], window: tuple[Any, ...]) -> None:
    for target in NATIVE:
        check(conv(groups, window), target, on_cpu(target))


def test_long_lines_are_in_scratch_in_parts() -> None:
    """The lines that some lines of the result read, with what they share of their neighbours."""
    target = targets.load("x86-64-v4")
    for groups, width in (((4, 24, 24), 128), ((4, 24, 24), 320), ((8, 8, 8), 1024)):
        window = (12, width), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)
        kernel = lower(conv(groups, window), target)
        (held,) = (s for s in kernel.scratch if s.name == "held")
        assert held.shape[0] > 3
        assert held.shape[1] < width


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_interpreted(target: str) -> None:
    for groups in ((4, 8, 8), (6, 3, 4)):
        check(conv(groups, WINDOWS[0]), target, on_interpreter)


def test_which_are_taken() -> None:
    """Groups that fill vectors, or whose rows share no scalars, are products of their own."""

    def is_taken(groups: tuple[int, int, int], window: tuple[Any, ...], target: str) -> bool:
        kernel = lower(conv(groups, window), targets.load(target))
        return kernel.rules == ("windows/grouped",)

    assert is_taken((8, 8, 8), WINDOWS[0], "x86-64-v4")
    assert is_taken((4, 24, 24), WINDOWS[0], "x86-64-v4")
    assert not is_taken((8, 8, 8), WINDOWS[0], "x86-64-v3")
    assert is_taken((8, 4, 4), WINDOWS[0], "x86-64-v3")
    assert not is_taken((4, 16, 16), WINDOWS[0], "x86-64-v4")
    assert not is_taken((8, 8, 8), WINDOWS[3], "x86-64-v4")
    assert not is_taken((8, 8, 8), WINDOWS[0], "vulkan-1.1")
