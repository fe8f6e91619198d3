"""Depthwise windows over planes: some rows of the result at a time, on rows in scratch."""

from __future__ import annotations

import re

import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.kernels.lower.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import PLANES, Conv
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()


def windows(height: int, width: int, kernel: int, pad: int, end: str = "") -> Conv:
    sizes = (3, 3, height, width)
    return Conv(sizes, kernel=kernel, pad=pad, weights=PLANES, end=end, members=1)


@pytest.mark.parametrize("end", ["", "residual", "sigmoid"])
@pytest.mark.parametrize(("kernel", "pad"), [(3, 1), (5, 2), (7, 3), (3, 2), (5, 1), (2, 1)])
def test_heights(kernel: int, pad: int, end: str) -> None:
    """Whole groups of rows, what is left of them, and bands that end within one."""
    for height, width in ((8, 33), (13, 20), (29, 7), (3, 70), (4, 16), (50, 5)):
        for target in NATIVE:
            windows(height, width, kernel, pad, end).check(target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-generic"])
def test_interpreted(target: str) -> None:
    windows(7, 18, 3, 1, "residual").check(target, on_interpreter)


def test_rows_share_what_they_load() -> None:
    """Of each place that a vector begins at, a load serves all rows whose windows it is in."""
    target = targets.load("x86-64-v4")
    text = emit_assembly(lower(windows(16, 64, 3, 1).function(), target), target)
    products = re.findall(r"vfmadd\w+\s+(.*zmm.*)", text)
    of_memory = [p for p in products if "(" in p and "1to16" not in p]
    assert len(products) >= 9 * 4 * 4 and len(of_memory) < len(products) / 4
