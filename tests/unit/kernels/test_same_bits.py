"""Kernels for several extents add up as kernels for one do: results have the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.target import selection as targets
from tests.support.executables import LAST, PLANES, Conv
from tests.support.lowering_checks import on_interpreter

# columns that one tile divides and another doesn't; rows of whole tiles, that may leave some
CONVS = {
    "points": Conv((8, 24, 2, 7), left=LAST, result=PLANES),
    "windows": Conv((8, 24, 2, 7), 3, 1, 1, left=LAST, result=LAST),
    "images": Conv((3, 8, 2, 16), 3, 2, left=PLANES, result=LAST),
}


@pytest.mark.parametrize(
    "name", ["aarch64-generic", "armv7-neon", "riscv64-v", "x86-64-v3", "wasm32-relaxed"]
)
@pytest.mark.parametrize("opened", ["O", "HW"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS)
def test_open_extents_change_no_bit(conv: Conv, opened: str, name: str) -> None:
    target = targets.load(name)
    rng = np.random.default_rng(5)
    arrays = conv.arrays(rng.standard_normal)
    own = conv.computed(target, on_interpreter, arrays)
    shared = replace(conv, opened=opened).computed(target, on_interpreter, arrays)
    np.testing.assert_array_equal(shared, own)
