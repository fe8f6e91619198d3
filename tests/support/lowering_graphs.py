"""Small graphs for tests of lowering: each makes a function and says its number of dispatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot.ir.builder import Builder
from tests.support import attention_graphs


def _hard_swish(b: Builder, x: Any) -> Any:
    three, six, zero = (b.constant(np.float32(v)) for v in (3, 6, 0))
    inner = b.op("minimum", b.op("maximum", b.op("add", x, three), zero), six)
    return b.op("div", b.op("mul", x, inner), six)


def conv_hard_swish(b: Builder, n: Any = 2, w: Any = 9) -> int:
    x = b.input("x", f"f32[{n}, 5, 7, {w}]")
    weights = b.constant(np.random.RandomState(0).randn(20, 5, 3, 3).astype(np.float32))
    bias = b.constant(np.random.RandomState(1).randn(20).astype(np.float32))
    y = b.op("conv", x, weights, bias, strides=(2, 1), dilations=(1, 1), pads=(1, 1, 1, 1), group=1)
    b.output("y", _hard_swish(b, y))
    return 1


def depthwise(b: Builder) -> int:
    x = b.input("x", "f32[1, 6, 11, 13]")
    weights = b.constant(np.random.RandomState(0).randn(6, 1, 3, 3).astype(np.float32))
    y = b.op("conv", x, weights, strides=(1, 2), dilations=(1, 1), pads=(1, 1, 1, 1), group=6)
    b.output("y", b.op("relu", y))
    return 1


def softmax_of_scaled_sum(b: Builder) -> int:
    x, mask = b.input("x", "f32[N, 4, S, S]"), b.input("mask", "f32[N, 1, 1, S]")
    scaled = b.op("div", x, b.constant(np.float32(5.5)))
    b.output("y", b.op("softmax", b.op("add", scaled, mask), axis=3))
    return 1


def attention_scores(b: Builder) -> int:
    q, k = b.input("q", "f32[2, 5, 3, 8]"), b.input("k", "f32[2, 6, 3, 8]")
    left = b.op("transpose", q, perm=(0, 2, 1, 3))
    right = b.op("transpose", k, perm=(0, 2, 3, 1))
    b.output("y", b.op("matmul", left, right))
    return 2  # the right side would be gathered in lanes: it is transposed once instead


def residual_in_place(b: Builder) -> int:
    x = b.input("x", "f32[1, 8, 5, 7]")
    first = b.op("exp", x)
    weights = b.constant(np.random.RandomState(0).randn(8, 8, 1, 1).astype(np.float32))
    y = b.op("conv", x, weights, strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0), group=1)
    b.output("y", b.op("relu", b.op("add", y, first)))
    return 2


def squeeze_and_excite(b: Builder) -> int:
    x = b.input("x", "f32[N, 6, H, W]")
    y = b.op("relu", x)
    mean = b.op("reduce_mean", y, axes=(2, 3), keepdims=True)
    b.output("y", b.op("mul", y, b.op("sigmoid", mean)))
    return 3


def reshape_between(b: Builder) -> int:
    x = b.input("x", "f32[N, 12]")
    y = b.op("reshape", b.op("relu", x), shape=("N", 3, 4))
    b.output("y", b.op("transpose", y, perm=(0, 2, 1)))
    return 2


GRAPHS: dict[str, tuple[Callable[[Builder], int], list[tuple[int, ...]]]] = {
    "conv_hard_swish": (conv_hard_swish, [(2, 5, 7, 9)]),
    "conv_symbolic": (lambda b: conv_hard_swish(b, "N", "W"), [(3, 5, 7, 14)]),
    "depthwise": (depthwise, [(1, 6, 11, 13)]),
    "softmax": (softmax_of_scaled_sum, [(2, 4, 19, 19), (2, 1, 1, 19)]),
    "attention_scores": (attention_scores, [(2, 5, 3, 8), (2, 6, 3, 8)]),
    "residual_in_place": (residual_in_place, [(1, 8, 5, 7)]),
    "squeeze_and_excite": (squeeze_and_excite, [(2, 6, 5, 9)]),
    "reshape_between": (reshape_between, [(5, 12)]),
    **attention_graphs.GRAPHS,
}
