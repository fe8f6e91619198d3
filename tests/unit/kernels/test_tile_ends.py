"""What becomes of a register tile's sums: written out where they are, or through memory."""

from __future__ import annotations

import pytest

from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import LAST, Conv
from tests.support.kernel_backends import on_cpu

TARGET = native_targets()[-1]


# sums of few terms, of as many as are few, and of more; columns that vectors divide, and others
@pytest.mark.parametrize("end", ["", "residual", "sigmoid"])
@pytest.mark.parametrize("outputs", [1, 7, 16, 26, 33, 48])
@pytest.mark.parametrize(("channels", "kernel"), [(3, 1), (3, 3), (64, 1), (65, 1)])
def test_every_column_and_row(channels: int, kernel: int, outputs: int, end: str) -> None:
    for width in (5, 14):
        conv = Conv((channels, outputs, 2, width), kernel, left=LAST, result=LAST, end=end)
        conv.check(TARGET, on_cpu(TARGET))


@pytest.mark.parametrize("opened", ["W", "O", "HW"])
def test_open_extents(opened: str) -> None:
    conv = Conv((12, 26, 3, 17), left=LAST, result=LAST, end="residual", opened=opened)
    conv.check(TARGET, on_cpu(TARGET))


@pytest.mark.parametrize(("target", "most"), [("x86-64-v4", 64), ("aarch64-generic", 10_000)])
def test_few_terms_have_ends_in_registers(target: str, most: int) -> None:
    """Where all rows and columns are there; arms have them for sums of any length."""
    for channels in (16, 64, 65, 256):
        function = Conv((channels, 32, 4, 12), left=LAST, result=LAST).function()
        kernel = to_text(lower(function, targets.load(target)))
        assert ("scratch tile" in kernel) is (channels > most)
