"""Channels by themselves: several filters each, and planes that are stored channels last."""

from __future__ import annotations

import pytest

from aot.kernels.ir.nodes import For, LoopKind, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.conv_executables import LAST, PLANES, Conv
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()


def of(members: int, size: tuple[int, int, int], kernel: int, stride: int, **fields: str) -> Conv:
    """Channels, height and width are the size."""
    channels, height, width = size
    weights = f"{{splits=0/{members} order=2:3:1:4:0}}" if members > 1 else "{order=2:3:1:0}"
    known = {"left": LAST, "result": LAST, "weights": weights, **fields}
    sizes = (channels, members * channels, height, width)
    return Conv(sizes, kernel, stride, kernel // 2, members=members, **known)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("members", "kernel"), [(2, 3), (2, 7), (3, 5), (5, 3)])
def test_several_filters_of_a_channel(members: int, kernel: int, stride: int) -> None:
    for target in NATIVE:
        for size in ((48, 9, 11), (17, 4, 7), (3, 5, 5), (1, 6, 8)):
            of(members, size, kernel, stride).check(target, on_cpu(target))


@pytest.mark.parametrize("opened", ["C", "HW", "CHW"])
def test_open_extents(opened: str) -> None:
    for end in ("", "residual"):
        case = of(2, (20, 5, 9), 3, 1, opened=opened, end=end)
        case.check(NATIVE[0], on_cpu(NATIVE[0]))


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64-generic"])
def test_interpreted(target: str) -> None:
    of(2, (10, 3, 6), 3, 2, end="residual").check(target, on_interpreter)


@pytest.mark.parametrize("opened", ["", "C"])
def test_lanes_go_along_channels(opened: str) -> None:
    """Elements one by one would gather the channels."""
    target = targets.load("x86-64-v4")
    kernel = lower(of(2, (64, 8, 8), 7, 2, opened=opened).function(), target)
    assert kernel.rules == ("windows/members",)
    loops = [x for x in walk(kernel.body) if isinstance(x, For) and x.kind is LoopKind.VECTOR]
    assert {loop.extent for loop in loops} >= {16}


@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_planes_that_are_stored_channels_last(kernel: int) -> None:
    """A line of a plane fills vectors, or does not."""
    for target in NATIVE:
        for size in ((5, 7, 33), (19, 6, 16), (4, 9, 28), (8, 5, 5)):
            for stride in (1, 2):
                of(1, size, kernel, stride, left=PLANES, end="residual").check(
                    target, on_cpu(target)
                )


@pytest.mark.parametrize(
    ("size", "is_by_planes"),
    [
        ((64, 56, 56), True),
        ((128, 28, 28), True),
        ((256, 16, 16), False),  # neighbours along a line lie in few sets of a cache
        ((64, 112, 112), False),  # the second cache does not hold the lines that planes share
    ],
)
def test_where_stores_run_by_planes(size: tuple[int, int, int], is_by_planes: bool) -> None:
    kernel = lower(of(1, size, 3, 1, left=PLANES).function(), targets.load("x86-64-v4"))
    assert (kernel.rules == ("windows/by_planes",)) == is_by_planes
