"""bfloat16 in kernels: its bits, moved and rounded by integers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.ir.builder import Builder
from aot.ir.dims import symbol
from aot.ir.types import Array, DType, TensorType
from tests.support.vulkan_runtime import running_on

BF16, F32 = DType.BF16, DType.F32
EVERY = np.arange(1 << 16, dtype=np.uint16).view(BF16.numpy)


@cache
def casts(target: str) -> aot.CompiledModule:
    """Both conversions, and elements that only move, beside padding."""
    b = Builder()
    n = symbol("N")
    x, y = b.input("x", TensorType(BF16, (n,))), b.input("y", TensorType(F32, (n,)))
    b.output("wide", b.op("cast", x, to=F32))
    b.output("narrow", b.op("cast", y, to=BF16))
    b.output("whole", b.op("cast", x, to=DType.I8))
    b.output("moved", b.op("pad", x, pads=(1, 2), value=-2.5))
    return aot.compile(b.module(), targets=[target], cache=False)


def halfway() -> Array:
    """Each bfloat16 that is a number, what lies halfway to the next, and next to that."""
    bits = EVERY.view(np.uint16).astype(np.uint32) << np.uint32(16)
    near = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return np.asarray((bits[:, None] | near).reshape(-1).view(np.float32))


def check(program: aot.Program) -> None:
    wide = halfway()
    for start in range(0, wide.size, 1 << 16):
        y = wide[start : start + (1 << 16)]
        found = program({"x": EVERY, "y": y})
        with np.errstate(all="ignore"):
            expected = {
                "wide": EVERY.astype(np.float32),
                "narrow": y.astype(BF16.numpy),
                "moved": np.pad(EVERY, (1, 2), constant_values=np.asarray(-2.5, BF16.numpy)),
            }
            numbers = np.nan_to_num(EVERY.astype(np.float64), nan=0.0)
            np.testing.assert_array_equal(found["whole"], np.clip(np.trunc(numbers), -128, 127))
            for name, array in expected.items():
                bits = f"u{array.dtype.itemsize}"
                is_nan = np.isnan(array)
                np.testing.assert_array_equal(np.isnan(found[name]), is_nan, name)
                got, wanted = found[name].view(bits), array.view(bits)
                np.testing.assert_array_equal(got[~is_nan], wanted[~is_nan], name)


def test_every_bfloat16_here() -> None:
    with aot.load(casts("host"), device="cpu") as program:
        check(program)


@pytest.mark.vulkan
def test_every_bfloat16_on_vulkan(tmp_path: Path) -> None:
    with running_on("lavapipe", tmp_path), aot.load(casts("vulkan-1.1"), "vulkan") as program:
        check(program)
