"""Sums whose weights the second level of cache doesn't hold: piece by piece, for many rows each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.cpu_running import native_targets
from tests.support.executables import LAST, PLANES, Conv
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()


def with_cache(name: str, l2_bytes: int) -> Target:
    return replace(targets.load(name), l2_bytes=l2_bytes)


def waiting(kernel: Kernel) -> list[int]:
    """How many tiles have their sums in scratch meanwhile."""
    return [s.shape[0] for s in kernel.scratch if s.name == "sums"]


# channels that pieces divide, and that they don't; rows and columns that tiles leave some of
@pytest.mark.parametrize(
    "size", [(128, 40, 5, 7), (130, 17, 3, 6), (127, 33, 4, 9), (256, 16, 2, 2)]
)
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1)])
def test_convolutions(size: tuple[int, int, int, int], kernel: int, stride: int, pad: int) -> None:
    for name in NATIVE:
        target = with_cache(name, 65536)
        for end in ("", "residual"):
            conv = Conv(size, kernel, stride, pad, left=LAST, result=LAST, end=end)
            assert kernel == 1 or waiting(lower(conv.function(), target))
            conv.check(target, on_cpu(name))


@pytest.mark.parametrize("name", ["x86-64-v3", "aarch64-generic"])
def test_interpreted(name: str) -> None:
    conv = Conv((66, 20, 3, 4), 3, 1, 1, left=LAST, result=LAST)
    target = with_cache(name, 16384)
    assert waiting(lower(conv.function(), target))
    conv.check(target, on_interpreter)


def test_of_planes() -> None:
    for name in NATIVE:
        conv = Conv((128, 32, 5, 9), 3, 1, 1, left=PLANES, result=LAST)
        conv.check(with_cache(name, 16384), on_cpu(name))


def test_the_same_bits_as_of_whole_sums() -> None:
    rng = np.random.default_rng(5)
    name = NATIVE[0]
    conv = Conv((192, 24, 5, 6), 3, 2, 1, left=LAST, result=LAST, end="sigmoid")
    function = conv.function()
    types = [value.type for value in function.inputs]
    arrays = [rng.standard_normal([int(str(d)) for d in t.dims], np.float32) for t in types]
    found = []
    for l2_bytes in (16384, 1 << 24):
        target = with_cache(name, l2_bytes)
        assert bool(waiting(lower(function, target))) == (l2_bytes == 16384)
        memory = [to_memory(a, t, {}) for a, t in zip(arrays, types, strict=True)]
        found += run_executable(function, target, memory, [], on_cpu(name))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("size", "kernel", "tiles"),
    [
        ((512, 512, 7, 7), 3, [14]),  # 4.6 KB a column
        ((512, 2048, 7, 7), 1, []),  # a tile's weights stay in the cache
        ((4096, 64, 7, 7), 1, [20]),
        ((4096, 64, 1, 1), 1, [2]),  # one row of each image
    ],
)
def test_where_sums_have_pieces(
    size: tuple[int, int, int, int], kernel: int, tiles: list[int]
) -> None:
    conv = Conv(size, kernel, 1, kernel // 2, left=LAST, result=LAST)
    assert waiting(lower(conv.function(), targets.load("x86-64-v4"))) == tiles


def test_open_extents_have_none() -> None:
    conv = Conv((512, 64, 7, 7), 3, 2, 1, left=LAST, result=LAST, opened="C")
    assert waiting(lower(conv.function(), targets.load("x86-64-v4"))) == []
