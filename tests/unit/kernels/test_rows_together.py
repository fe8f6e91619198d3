"""Products by lanes of neighbouring rows: their scalars are loaded a vector at a time."""

from __future__ import annotations

import re

import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.kernels.lower.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import LAST, PLANES, Conv
from tests.support.lowering_checks import on_interpreter

TARGET = "aarch64-generic"


# rows of a line that tiles divide, and that leave some; few rows; channels in pairs, and one more
@pytest.mark.parametrize("size", [(6, 17, 1, 26), (3, 8, 2, 13), (4, 9, 2, 7), (2, 33, 1, 16)])
@pytest.mark.parametrize("pad", [0, 1])
def test_planes_into_channels(size: tuple[int, int, int, int], pad: int) -> None:
    Conv(size, 3, 1, pad, left=PLANES, result=LAST).check(TARGET, on_interpreter)


@pytest.mark.parametrize("opened", ["W", "HW", "C"])
def test_open_extents(opened: str) -> None:
    Conv((6, 17, 2, 26), 3, 1, 1, left=PLANES, result=LAST, opened=opened).check(
        TARGET, on_interpreter
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_a_load_serves_four_rows(stride: int) -> None:
    """Where rows are neighbours; those of a strided window are not."""
    target = targets.load(TARGET)
    conv = Conv((64, 64, 8, 96), 3, stride, 0, left=PLANES, result=LAST)
    code = emit_assembly(lower(conv.function(), target), target)
    lanes = set(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[(\d)\]", code))
    assert lanes == ({"0", "1", "2", "3"} if stride == 1 else {"0"})
