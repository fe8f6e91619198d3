"""A reduction that several elements of a result need is computed once for all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.kernels.ir.nodes import Kernel
from aot.target import selection as targets
from tests.support.kernel_steps import steps
from tests.support.lowering_checks import TARGETS, check, on_interpreter

SHAPES = ((5, 9), (3, 5, 9), (2, 3, 5, 9), (1, 3, 16, 16), (2, 3, 2, 3, 7), (2, 1, 17, 1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        pytest.param(shape, first, id=f"{'x'.join(map(str, shape))}-{first}")
        for shape in SHAPES
        for first in range(1, len(shape))
    ],
)
def test_a_reduction_over_the_last_axes_is_done_once_a_line(
    shape: tuple[int, ...], axis: int, target: str
) -> None:
    b = Builder()
    x = b.input("x", f"f32[{', '.join(map(str, shape))}]")
    scale = np.ones(shape[axis:], np.float32)
    normal = b.op("layer_norm", x, scale, axis=axis)
    by_line = (*shape[:axis], *[1] * (len(shape) - axis))
    b.output("y", b.op("mul", normal, np.full(by_line, 1.5, np.float32)))
    kernels: list[Kernel] = []

    def engine(kernel: Any, buffers: Any, params: Any) -> None:
        kernels.append(kernel)
        on_interpreter(kernel, buffers, params)

    data = np.random.default_rng(3).uniform(-2, 2, shape).astype(np.float32)
    check(b.function(), [data], target, 1, engine=engine)
    if targets.load(target).device == "cpu":
        elements, lines = math.prod(shape), math.prod(shape) // math.prod(shape[axis:])
        # what lanes have of a line is stored, and added up for several lines at once: a step a lane
        # in each of both passes, and some for what is the same along a line
        assert steps(kernels[0].body) <= 4 * elements + 140 * lines
