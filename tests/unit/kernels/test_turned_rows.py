"""Contractions of few columns whose rows lie apart: rows are turned in registers, lanes go along
them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import schedule_of
from aot.backends.cpu.compile import emit_assembly
from aot.builder import Builder
from aot.ir.schedule import Schedule
from aot.kernels.ir.nodes import Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import LAST, PLANES, Conv
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import check, on_interpreter

NATIVE = native_targets()
# channels, outputs, height and width: whole squares and what is left of them, tiles of one to three
# vectors, tiles that move back, and lines that a tile fills just
SIZES = [
    (4, 2, 4, 4),
    (5, 8, 9, 11),
    (8, 12, 4, 12),
    (13, 3, 5, 7),
    (16, 10, 8, 8),
    (24, 6, 7, 9),
    (31, 9, 6, 8),
    (40, 4, 16, 5),
    (130, 8, 3, 21),
    (260, 5, 4, 9),
    (20, 18, 5, 8),
    (33, 20, 6, 11),
]


def turned(size: tuple[int, int, int, int], **fields: object) -> Conv:
    return replace(Conv(size, left=LAST), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("result", [PLANES, LAST], ids=["planes", "last"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolutions(size: tuple[int, int, int, int], result: str) -> None:
    for target in NATIVE:
        for end in ("", "residual", "sigmoid"):
            turned(size, result=result, end=end).check(target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_interpreted(target: str) -> None:
    for size in ((5, 3, 3, 7), (17, 2, 4, 5)):
        turned(size, end="residual").check(target, on_interpreter)


@pytest.mark.parametrize("result", [PLANES, LAST], ids=["planes", "last"])
def test_strides(result: str) -> None:
    """Rows of a line are further apart than their terms are long."""
    for size in ((24, 8, 3, 21), (6, 3, 2, 16)):
        for target in NATIVE:
            turned(size, stride=2, result=result).check(target, on_cpu(target))


@pytest.mark.parametrize("opened", ["H", "HW", "OHW", "COHW", "C"])
def test_dynamic_extents(opened: str) -> None:
    for size in ((20, 6, 4, 8), (5, 3, 5, 7)):
        for result in (PLANES, LAST):
            turned(size, result=result, opened=opened).check(NATIVE[0], on_cpu(NATIVE[0]))


@pytest.mark.parametrize("columns", [2, 5, 8, 11, 18])
def test_products(columns: int) -> None:
    for rows, terms in ((50, 24), (16, 100), (33, 9), (130, 200)):
        weight = np.random.default_rng(1).integers(-3, 4, (terms, columns)).astype(np.float32)
        data = np.random.default_rng(2).integers(-3, 4, (rows, terms)).astype(np.float32)
        for target in NATIVE:
            b = Builder()
            x = b.input("x", f"f32[{rows}, {terms}]")
            b.output("y", b.op("relu", b.op("matmul", x, weight)))
            check(b.function(), [data], target, 1, 0.0, on_cpu(target))


def test_which_are_turned() -> None:
    """A few columns, or a few more than a vector has, of rows that fill one; long sums of fewer
    still have lanes of their own, and lanes that are multiplied by leave none idle."""

    def schedule(conv: Conv, target: str = "x86-64-v4") -> Schedule:
        return schedule_of(conv.function(), targets.load(target))[0].schedule

    for outputs in (2, 5, 8, 12, 17, 20):
        assert schedule(turned((64, outputs, 8, 8) if outputs > 2 else (24, 2, 8, 8))) is (
            Schedule.PLANES
        )
    for other in (
        turned((64, 16, 8, 8)),
        turned((64, 24, 8, 8)),
        turned((64, 8, 1, 15)),
        turned((3, 8, 8, 8)),
        turned((64, 8, 8, 8), kernel=3),
    ):
        assert schedule(other) is Schedule.CONTRACTION
    assert schedule(turned((512, 4, 8, 8))) is Schedule.INNER
    for target in ("aarch64-generic", "vulkan-1.1", "x86-64-v2"):
        assert schedule(turned((64, 8, 8, 8)), target) is Schedule.CONTRACTION


@pytest.mark.parametrize("result", [PLANES, LAST], ids=["planes", "last"])
def test_rows_are_loaded_in_vectors(result: str) -> None:
    """Elements of rows were broadcast one by one to half of a vector each."""
    target = targets.load("x86-64-v4")
    function = turned((64, 8, 8, 8), result=result).function()
    kernel = lower(function, target)
    text = emit_assembly(kernel, target)
    assert len(re.findall(r"vbroadcastss\s.*%zmm\d+", text)) <= 16  # weights, and the bias
    assert not re.findall(r"(?:vmovss|vextractps)\s.*%xmm\d+,.*\(", text)


def test_next_rows_are_asked_for() -> None:
    """Where they lie behind the tile's, while this one multiplies."""
    target = targets.load("x86-64-v4")

    def asks(conv: Conv) -> bool:
        kernel = lower(conv.function(), target)
        return any(isinstance(s, Prefetch) for s in walk(kernel.body))

    assert asks(turned((64, 8, 8, 8)))
    assert not asks(turned((64, 8, 4, 16), stride=2))
