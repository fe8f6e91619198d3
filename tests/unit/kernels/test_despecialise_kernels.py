"""Kernels that several layers share compute what kernels of their own would, whatever the extents:
whole tiles, every rest of rows and columns, and borders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.graph import Value
from tests.support.cpu_running import native_targets

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Branch = Callable[[Builder, Value], Value]
"""A layer on an input of [1, C, H, W]."""

RANDOM = np.random.default_rng(3)


def numbers(*shape: int) -> Array:
    """Small whole numbers, which any order of adding gives the same sum of."""
    return RANDOM.integers(-3, 4, shape).astype(np.float32)


def conv(columns: int, kernel: int = 1, **attrs: int) -> Branch:
    group, stride, pad = (attrs.get(k, d) for k, d in (("group", 1), ("stride", 1), ("pad", 0)))

    def make(b: Builder, x: Value) -> Value:
        channels = x.type.shape[1]
        groups = channels if group < 0 else group
        weight = numbers(columns if group > 0 else channels, channels // groups, kernel, kernel)
        given: dict[str, Any] = {
            "strides": (stride,) * 2,
            "dilations": (1, 1),
            "pads": (pad,) * 4,
            "group": groups,
        }
        bias = b.constant(numbers(weight.shape[0]))
        made: Value = b.op("relu", b.op("conv", x, b.constant(weight), bias, **given))
        return made

    return make


def pool(name: str, kernel: int, stride: int, pad: int) -> Branch:
    given: dict[str, Any] = {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "dilations": (1, 1)}
    return lambda b, x: b.op(name, x, **given, pads=(pad,) * 4)


SPATIAL = [(1, 1), (2, 5), (5, 2), (3, 7), (7, 8), (6, 9), (4, 13), (9, 17), (3, 33)]
FAMILIES: Mapping[str, list[tuple[tuple[int, int, int], Branch]]] = {
    "contractions": [((8 * (n % 3 + 1), *SPATIAL[n % 9]), conv(4 + 11 * n)) for n in range(9)],
    "panels": [((16, *SPATIAL[n]), conv(16 * (n + 1))) for n in range(9)],
    "kernels of three": [
        ((4 + n, 3 + n % 2, w), conv(8 * n + 8, 3, pad=1)) for n, (_, w) in enumerate(SPATIAL)
    ],
    "strides of two": [
        ((8 * (n % 2 + 1), 5, w), conv(16 * n + 8, 3, pad=1, stride=2))
        for n, (_, w) in enumerate(SPATIAL[1:])
    ],
    "groups": [((4 * n, 3, 2 * n + 1), conv(12 * n, group=4)) for n in range(2, 9)],
    "depthwise": [
        ((7 * n + 3, 4, w), conv(0, 3, group=-1, pad=1)) for n, (_, w) in enumerate(SPATIAL)
    ],
    "depthwise of five, halves": [
        ((8 * n + 8, 6, w), conv(0, 5, group=-1, pad=2, stride=2))
        for n, (_, w) in enumerate(SPATIAL)
    ],
    "largest": [
        ((5 * n + 4, 5, w + 3), pool("max_pool", 3, 2, 1)) for n, (_, w) in enumerate(SPATIAL)
    ],
    "means": [
        ((9 * n + 2, 5, w + 2), pool("average_pool", 3, 1, 0)) for n, (_, w) in enumerate(SPATIAL)
    ],
    "rows": [((n + 2, 1, 3), lambda b, x: b.op("softmax", x, axis=1)) for n in range(20)],
}


# the narrowest vectors and the widest that run here
TARGETS = sorted({*native_targets()[:1], *native_targets()[-1:]})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_kernels(family: str, target: str) -> None:
    b = Builder()
    feeds: dict[str, Array] = {}
    for number, (shape, make) in enumerate(FAMILIES[family]):
        feeds[f"x{number}"] = numbers(1, *shape)
        x = b.input(f"x{number}", f"f32[1, {', '.join(map(str, shape))}]")
        b.output(f"y{number}", make(b, b.op("relu", x)))
    module = b.module()
    results = []
    kept = []
    for disable in (("fusion", "despecialise"), ("fusion",)):
        made = aot.compile(module, targets=[target], disable=disable, optimize="size")
        kept.append(made.stats["variants"][0]["executables"]["despecialised"]["kept"])
        with aot.load(made, device="cpu") as program:
            results.append(program(feeds))
    assert kept[1] < kept[0]
    for name, wanted in results[0].items():
        least = 1e-6 if family == "rows" else 0.0  # a softmax may add in another order
        np.testing.assert_allclose(results[1][name], wanted, rtol=least, err_msg=name)
