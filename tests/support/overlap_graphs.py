"""Graphs whose dispatches may run beside each other."""

from __future__ import annotations

import numpy as np

from aot.builder import Builder
from aot.ir.graph import Module, Value


def convolved(b: Builder, x: Value, w: Value) -> Value:
    pads = (int(w.type.dims[2]) // 2,) * 4
    made = b.op("conv", x, w, strides=(1, 1), pads=pads, group=1, dilations=(1, 1))
    return b.op("relu", made)


def fire(batch: str | int = 1) -> Module:
    """A 1x1 convolution, and of what it makes one by 1x1 and one by 3x3, side by side; twice."""
    b = Builder()
    value = b.input("x", f"f32[{batch}, 16, 56, 56]")
    weights = np.random.default_rng(0)
    for _ in range(2):
        shapes = ((16, int(value.type.dims[1]), 1, 1), (32, 16, 1, 1), (32, 16, 3, 3))
        squeeze, narrow, wide = (
            b.constant(weights.standard_normal(s).astype(np.float32)) for s in shapes
        )
        less = convolved(b, value, squeeze)
        left, right = convolved(b, less, narrow), convolved(b, less, wide)
        value = b.op("concat", left, right, axis=1)
    b.output("y", value)
    return b.module()
