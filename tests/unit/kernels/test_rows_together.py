"""Products by lanes of neighbouring rows: their scalars are loaded a vector at a time."""

from __future__ import annotations

import re

import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.target import selection as targets
from benchmarks.llvm_mca import inner_loop
from tests.support.executables import LAST, PLANES, Conv
from tests.support.lowering_checks import on_interpreter

TARGET = "aarch64-generic"
PRODUCT = re.compile(r"\s+fmla\s")


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


# windows that overlap, touch, or leave a gap; lines that tiles divide, and that leave some rows
@pytest.mark.parametrize("size", [(3, 17, 2, 41), (6, 40, 3, 16), (1, 8, 2, 7), (4, 24, 1, 23)])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(3, 2, 1), (3, 2, 0), (2, 2, 0), (5, 3, 2), (2, 3, 0), (7, 4, 3)]
)
def test_windows_that_slide_over_planes(
    size: tuple[int, int, int, int], kernel: int, stride: int, pad: int
) -> None:
    Conv(size, kernel, stride, pad, left=PLANES, result=LAST).check(TARGET, on_interpreter)


@pytest.mark.parametrize("opened", ["W", "HW", "C"])
def test_windows_that_slide_over_open_extents(opened: str) -> None:
    conv = Conv((3, 17, 5, 26), 3, 2, 1, left=PLANES, result=LAST, opened=opened)
    conv.check(TARGET, on_interpreter)


# a window that steps over more than it has is no piece of a line
@pytest.mark.parametrize(("stride", "is_together"), [(1, True), (2, True), (4, True), (5, False)])
def test_a_load_serves_four_rows(stride: int, is_together: bool) -> None:
    """Where rows are neighbours, or windows lie in one piece of a line."""
    target = targets.load(TARGET)
    conv = Conv((64, 64, 8, 96), 3, stride, 0, left=PLANES, result=LAST)
    code = emit_assembly(lower(conv.function(), target), target)
    lanes = set(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[(\d)\]", code))
    assert (lanes > {"0"}) if is_together else (lanes == {"0"})


@pytest.mark.parametrize("opened", ["C", "CO", "CHW"])
def test_no_address_of_a_row_is_computed_from_that_of_another(opened: str) -> None:
    """Beside products and loads a turn has steps for rows and weights, a count and a branch, where
    how far rows are apart is open."""
    target = targets.load(TARGET)
    conv = Conv((64, 64, 8, 96), left=LAST, result=LAST, opened=opened)
    loop = inner_loop(emit_assembly(lower(conv.function(), target), target), PRODUCT)
    left = [line for line in loop if not re.match(r"\s+(fmla|ldr|ldp)\s", line)]
    assert len(left) <= 5, left


@pytest.mark.parametrize("end", ["residual", "sigmoid"])
@pytest.mark.parametrize("width", [7, 8, 23, 41])
def test_ends_of_lines(end: str, width: int) -> None:
    Conv((3, 16, 2, width), 3, 2, 1, left=PLANES, result=LAST, end=end).check(
        TARGET, on_interpreter
    )


@pytest.mark.parametrize(("end", "is_repeated"), [("", True), ("residual", False)])
def test_rows_are_stored_twice_unless_results_may_replace_what_is_read(
    end: str, is_repeated: bool
) -> None:
    """The last tile of a line begins where it has all its rows; a sum in place would have what is
    added twice."""
    target = targets.load(TARGET)
    conv = Conv((3, 16, 2, 41), 3, 2, 0, left=PLANES, result=LAST, end=end)
    kernel = to_text(lower(conv.function(), target))
    first = re.search(r"min\(\w+ \* (\d+), (\d+)\)", kernel)
    assert (first is not None) == is_repeated
    if first is not None:
        assert int(first[1]) + int(first[2]) == 41
