"""Contractions whose rows are copied first, scalars of neighbouring rows side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.ir.text.parser import parse_module
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.kernels.rules.products.packed_rows import LEAST_COLUMNS, MOST_BYTES, ROWS
from aot.target import selection as targets
from tests.support.executables import LAST, Conv
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import on_interpreter

TARGET = "aarch64-generic"
COPY = "scratch rows: f32["


def is_packed(conv: Conv, target: str = TARGET) -> bool:
    known = targets.load(target)
    return COPY in to_text(lower(conv.function(), known))


# sizes: terms by fours and eights, columns that tiles divide and that leave some; rows are 2 h w
@pytest.mark.parametrize("size", [(8, 192, 4, 4), (12, 203, 4, 9), (4, 200, 3, 13)])
@pytest.mark.parametrize("end", ["residual", "sigmoid"])
def test_points(size: tuple[int, int, int, int], end: str) -> None:
    conv = Conv(size, left=LAST, result=LAST, end=end)
    assert is_packed(conv)
    conv.check(TARGET, on_interpreter)


# rows of two images, in tiles of their own; windows whose terms lie in several runs
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(4, 192, 1, 16), (8, 196, 1, 8)])
def test_windows_without_borders(size: tuple[int, int, int, int], stride: int) -> None:
    conv = Conv(size, 3, stride, left=LAST, result=LAST)
    assert is_packed(conv)
    conv.check(TARGET, on_interpreter)


def test_what_is_not_packed() -> None:
    """Few columns, rows that tiles have too many of, borders, open extents, terms that scratch
    doesn't hold, and other targets."""
    conv = Conv((8, LEAST_COLUMNS, 4, 4), left=LAST, result=LAST)
    assert is_packed(conv)
    assert not is_packed(replace(conv, sizes=(8, LEAST_COLUMNS - 1, 4, 4)))
    assert not is_packed(replace(conv, sizes=(8, LEAST_COLUMNS, 3, 3)))
    assert not is_packed(replace(conv, kernel=3, pad=1))
    assert not is_packed(replace(conv, opened="HW"))
    assert not is_packed(replace(conv, opened="O"))
    most = MOST_BYTES // 4 // ROWS
    assert is_packed(replace(conv, sizes=(most, LEAST_COLUMNS, 4, 4)))
    assert not is_packed(replace(conv, sizes=(most + 4, LEAST_COLUMNS, 4, 4)))
    for target in ("x86-64-v3", "armv7-neon", "riscv64-v", "wasm32-relaxed"):
        assert not is_packed(conv, target)


@pytest.mark.parametrize("size", [(8, 192, 4, 4), (12, 203, 4, 9)])
def test_packing_changes_no_bit(size: tuple[int, int, int, int]) -> None:
    """Of what kernels for several extents compute, which don't pack."""
    target = targets.load(TARGET)
    conv = Conv(size, left=LAST, result=LAST)
    arrays = conv.arrays(np.random.default_rng(5).standard_normal)
    own = conv.computed(target, on_interpreter, arrays)
    shared = replace(conv, opened="HW").computed(target, on_interpreter, arrays)
    np.testing.assert_array_equal(shared, own)


@pytest.mark.parametrize("terms", [1, 3])
def test_open_terms(terms: int) -> None:
    """A kernel that asks at each run whether scratch holds them."""
    (function,) = parse_module("""
    executable @e0[d0](%x: f32[1, 32, 8*d0], %w: f32[8*d0, 200]{splits=1/16 order=1:0:2})
      -> ("r0") bindings [2, 0, 3] {
      %1 = matmul(%x, %w) : f32[1, 32, 200]
      return(%1)
    }
    """).executables
    target = targets.load(TARGET)
    assert COPY in to_text(lower(function, target))
    rng = np.random.default_rng(3)
    arrays = [
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in ((1, 32, 8 * terms), (8 * terms, 200))
    ]
    memory = [
        to_memory(a, v.type, {"d0": terms}) for a, v in zip(arrays, function.inputs, strict=True)
    ]
    (got,) = run_executable(function, target, memory, [terms], on_interpreter)
    np.testing.assert_array_equal(got, arrays[0] @ arrays[1])
