"""Register tiles of a GPU: which loops a convolution's sums stand in, and what they add up to."""

from __future__ import annotations

import numpy as np
import pytest

from aot.ir.expr import Fma
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import For, Kernel, LoopKind, Stmt, Store
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.kernel_backends import INTERPRETED
from tests.support.lowering import run_executable

CONV = """
executable @e0(%0: f32[1, {channels}, {sizes}]{layout}, %1: f32[32, {channels}, {taps}]{filters})
    -> ("r0") bindings [1, 0, 1] {{
  %2 = conv(%0, %1) {{strides = {ones}, dilations = {ones}, pads = {pads}, group = 1}}
      : f32[1, 32, {sizes}]{layout}
  return(%2)
}}
"""
SIZE = 6


def conv(channels: int, taps: tuple[int, ...]) -> str:
    rank, ones = len(taps), [1] * len(taps)
    order = ":".join(map(str, (0, *range(2, 2 + rank), 1)))
    return CONV.format(
        channels=channels,
        sizes=", ".join([str(SIZE)] * rank),
        layout=f"{{order={order}}}",
        filters=f"{{order={':'.join(map(str, (*range(2, 2 + rank), 1, 0)))}}}",
        taps=", ".join(map(str, taps)),
        ones=ones,
        pads=[t // 2 for t in taps] * 2,
    )


def loops_of_sums(kernel: Kernel) -> list[list[tuple[LoopKind, object]]]:
    """The loops that the sums of products stand in, lanes and workgroups aside."""
    found: list[list[tuple[LoopKind, object]]] = []

    def walk(body: tuple[Stmt, ...], around: list[tuple[LoopKind, object]]) -> None:
        for stmt in body:
            if isinstance(stmt, For):
                inside = stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLLED)
                walk(stmt.body, [*around, (stmt.kind, stmt.extent)] if inside else around)
            elif isinstance(stmt, Store) and isinstance(stmt.value, Fma):
                found.append(around)
            else:
                for part in ("then", "otherwise"):
                    walk(getattr(stmt, part, ()), around)

    walk(kernel.body, [])
    return found


@pytest.mark.parametrize(
    ("channels", "taps", "expected"),
    [
        (8, (3, 3), [9, 2]),  # one loop for the taps, four channels a step
        (12, (1, 5), [5, 3]),
        (3, (5, 3), [15]),  # all channels in a step
        (6, (3, 3), [9, 2]),  # three at a time
        (5, (3, 3), [9, 5]),
        (8, (3, 3, 3), [9, 3, 2]),
    ],
)
def test_sums_stand_in_few_loops(channels: int, taps: tuple[int, ...], expected: list[int]) -> None:
    (function,) = parse_module(conv(channels, taps)).executables
    kernel = lower(function, targets.load("vulkan-1.1"), [16, 16, 16])
    for loops in loops_of_sums(kernel):
        assert [extent for kind, extent in loops if kind is LoopKind.SERIAL] == expected
    shapes = (1, channels, *(SIZE,) * len(taps)), (32, channels, *taps)
    rng = np.random.default_rng(channels)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (wanted,) = run(function, arrays)
    spatial = range(2, 2 + len(taps))
    laid = arrays[0].transpose(0, *spatial, 1), arrays[1].transpose(*spatial, 1, 0)
    backend = INTERPRETED["vulkan-1.1"]
    (found,) = run_executable(
        function, targets.load("vulkan-1.1"), laid, [], backend.engine, [16, 16, 16]
    )
    np.testing.assert_allclose(found, wanted, atol=1e-4)
