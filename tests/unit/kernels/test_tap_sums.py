"""Windows of few columns: the sums of each tap for all places of a line, then those of a window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.analysis.cost.few_columns import lines_of_band
from aot.analysis.stages import schedule_of
from aot.ir.schedule import Schedule
from aot.kernels.ir.nodes import Buffer, Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import LAST, PACKED, PLANES, Conv
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()
# channels, outputs, height and width: lines of whole tiles, of one that moves back, of a vector
# beside tiles, and bands of unequal heights
SIZES = [
    (12, 1, 9, 16),
    (16, 1, 70, 33),
    (13, 2, 7, 21),
    (32, 3, 33, 17),
    (20, 1, 5, 70),
    (24, 1, 1, 64),
    (130, 1, 3, 48),
]


def windows(size: tuple[int, int, int, int], **fields: object) -> Conv:
    made = Conv(size, kernel=3, pad=1, weights=LAST)
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolutions(size: tuple[int, int, int, int], left: str) -> None:
    for target in NATIVE:
        for result in (PLANES, LAST):
            windows(size, left=left, result=result).check(target, on_cpu(target))
        for end in ("residual", "sigmoid"):
            windows(size, left=left, end=end).check(target, on_cpu(target))


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
@pytest.mark.parametrize(("kernel", "pad"), [(5, 2), (5, 1), (3, 2), (2, 1)])
def test_other_windows(kernel: int, pad: int, left: str) -> None:
    """More taps, and padding that is more or less than a window's half."""
    for target in NATIVE:
        for size in ((16, 1, 9, 20), (16, 1, 40, 40)):
            made = windows(size, kernel=kernel, pad=pad, left=left)
            made.check(target, on_cpu(target))


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
def test_interpreted(left: str) -> None:
    windows((12, 2, 3, 17), left=left, end="residual").check("x86-64-v3", on_interpreter)
    windows((12, 1, 34, 8), left=left).check("x86-64-v3", on_interpreter)


@pytest.mark.parametrize("opened", ["W", "HW", "C", "OCHW"])
def test_dynamic_extents(opened: str) -> None:
    """These have other kernels, and compute the same."""
    for left in (PLANES, LAST):
        windows((16, 1, 9, 20), left=left, opened=opened).check("x86-64-v3", on_cpu("x86-64-v3"))


def test_which_windows() -> None:
    """Those that slide by 1 along padded lines that fill a vector, with channels enough; taps of
    all columns fit in registers, and a band's lines in scratch. Never where lanes multiply."""

    def schedule(conv: Conv, target: str = "x86-64-v4") -> Schedule:
        return schedule_of(conv.function(), targets.load(target))[0].schedule

    size = (32, 1, 16, 16)
    for left in (PLANES, LAST):
        assert schedule(windows(size, left=left)) is Schedule.PLANES
        for other in (
            windows(size, left=left, stride=2, kernel=4),
            windows((8, 1, 16, 16), left=left),
            windows((32, 4, 16, 16), left=left),
            windows((32, 1, 16, 15), left=left),
            windows((32, 1, 16, 2000), left=left),
            windows(size, left=left, pad=0),
        ):
            assert schedule(other) is not Schedule.PLANES
        for target in ("aarch64-generic", "vulkan-1.1", "x86-64-v2"):
            assert schedule(windows(size, left=left), target) is not Schedule.PLANES
    assert schedule(windows((32, 2, 16, 16)), "x86-64-v3") is not Schedule.PLANES


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
def test_next_places_are_asked_for(left: str) -> None:
    """Of the image: the lines of a cache that later tiles read."""
    conv = windows((32, 1, 16, 64), left=left)
    kernel = lower(conv.function(), targets.load("x86-64-v4"))
    asked = {s.source for s in walk(kernel.body) if isinstance(s, Prefetch)}
    assert [b.name for b in asked if isinstance(b, Buffer)] == ["in"]


def test_bands() -> None:
    """As many lines in each as scratch holds, at most 32; none where it holds few."""
    assert lines_of_band(9 * 4 * 34, 4 * 32, 32, 65536) == 32
    assert lines_of_band(9 * 4 * 34, 4 * 32, 33, 65536) == 17
    assert lines_of_band(9 * 4 * 514, 4 * 512, 512, 65536) == 17
    assert lines_of_band(9 * 4 * 1602, 4 * 1600, 512, 65536) == 0
    assert lines_of_band(9 * 4 * 1302, 4 * 1300, 1, 65536) == 1
    assert lines_of_band(70000, 64, 4, 65536) == 0


def test_packed_weights() -> None:
    """Whatever layout weights have."""
    for weights in (PLANES, PACKED):
        windows((16, 2, 9, 20), weights=weights).check(NATIVE[0], on_cpu(NATIVE[0]))
