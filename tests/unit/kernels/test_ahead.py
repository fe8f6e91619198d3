"""Tiles of floats that ask for the weights that come next while they multiply by others."""

from __future__ import annotations

import pytest

from aot.kernels.ir.nodes import Kernel, Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.asked_lines import asked_lines
from tests.support.cpu_running import native_targets
from tests.support.executables import LAST, Conv
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()


def asks(kernel: Kernel) -> bool:
    return any(isinstance(stmt, Prefetch) for stmt in walk(kernel.body))


def pointwise(channels: int, filters: int, height: int, width: int, **fields: str) -> Conv:
    return Conv((channels, filters, height, width), left=LAST, result=LAST, **fields)


@pytest.mark.parametrize(("channels", "filters"), [(512, 512), (384, 256), (1024, 192)])
def test_all_that_comes_next_is_asked_for(channels: int, filters: int) -> None:
    kernel = lower(pointwise(channels, filters, 7, 7).function(), targets.load("x86-64-v4"))
    lines = sorted(asked_lines(kernel.body, 16))
    # behind the tiles that come first, and hardly any twice
    assert lines[0] * 64 >= 1 << 16
    assert set(range(lines[0], channels * filters // 16)) <= set(lines)
    assert len(lines) < 1.4 * len(set(lines)) + lines[0]


@pytest.mark.parametrize("opened", ["", "O", "HW", "CO", "CHWO"])
@pytest.mark.parametrize("size", [(256, 160, 5, 9), (64, 40, 3, 5), (128, 264, 1, 2)])
def test_sums(size: tuple[int, int, int, int], opened: str) -> None:
    for name in NATIVE:
        pointwise(*size, end="residual", opened=opened).check(name, on_cpu(name))


def test_interpreted() -> None:
    conv = pointwise(128, 160, 5, 6, opened="HW")
    assert asks(lower(conv.function(), targets.load("x86-64-v3")))
    conv.check("x86-64-v3", on_interpreter)


@pytest.mark.parametrize(
    "conv",
    [
        pointwise(512, 512, 1, 2),  # few rows: what they would ask for is all that they multiply by
        pointwise(64, 64, 56, 56),  # no more weights than the nearest caches hold
        pointwise(100, 512, 7, 7),  # terms that pieces do not divide
    ],
)
def test_where_nothing_is_asked_for(conv: Conv) -> None:
    assert not asks(lower(conv.function(), targets.load("x86-64-v4")))
