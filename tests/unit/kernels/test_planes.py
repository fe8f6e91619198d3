"""Contractions that read or write planes: lanes along the rows, or results that are transposed in
registers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from aot.analysis.stages import schedule_of
from aot.backends.cpu.compile import emit_assembly
from aot.ir.schedule import Schedule
from aot.kernels.ir.nodes import For, LoopKind, Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import LAST, PLANES, Conv
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter

NATIVE = native_targets()
TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64-generic")
# channels, outputs, height, width
SIZES = [
    (1, 8, 9, 11),
    (4, 3, 5, 7),
    (3, 1, 16, 16),
    (20, 150, 4, 8),
    (64, 13, 8, 8),
    (130, 5, 3, 21),
    (7, 40, 1, 19),
]
SCALAR_STORES = r"(?:vmovss|vextractps)\s.*%xmm\d+,.*\("
ENDS = ("", "residual", "sigmoid")


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_one_tap(size: tuple[int, int, int, int], left: str) -> None:
    for target in NATIVE:
        for end in ENDS:
            Conv(size, left=left, end=end).check(target, on_cpu(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
def test_one_tap_interpreted(left: str, target: str) -> None:
    for size in ((3, 9, 3, 7), (2, 1, 4, 4)):
        Conv(size, left=left, end="residual").check(target, on_interpreter)


@pytest.mark.parametrize("opened", ["H", "HW", "OHW", "COHW", "C"])
@pytest.mark.parametrize("size", [(20, 150, 4, 8), (4, 3, 5, 7)], ids=str)
def test_dynamic_extents(size: tuple[int, int, int, int], opened: str) -> None:
    for left in (PLANES, LAST):
        Conv(size, left=left, opened=opened).check(NATIVE[0], on_cpu(NATIVE[0]))


@pytest.mark.parametrize("result", [PLANES, LAST], ids=["planes", "last"])
def test_few_outputs(result: str) -> None:
    for outputs in (1, 2, 3, 4, 5):
        Conv((6, outputs, 5, 9), result=result).check(NATIVE[0], on_cpu(NATIVE[0]))


@pytest.mark.parametrize("end", ENDS)
def test_columns_that_fill_no_vector(end: str) -> None:
    """Rows of planes, few columns of each side by side: these are stored interleaved; the last tile
    has fewer rows."""
    for outputs in range(1, 18):
        for channels, height in ((3, 7), (4, 5), (9, 12)):
            conv = Conv((channels, outputs, height, 11), result=LAST, end=end)
            for target in NATIVE:
                conv.check(target, on_cpu(target))


@pytest.mark.parametrize("target", (*TARGETS, "wasm32", "armv7-neon", "riscv64-v"))
def test_columns_that_fill_no_vector_interpreted(target: str) -> None:
    for outputs in (2, 3, 6, 7, 13):
        Conv((9, outputs, 5, 13), result=LAST, end="residual").check(target, on_interpreter)


@pytest.mark.parametrize("opened", ["H", "HW", "COHW", "C"])
def test_open_rows_of_few_columns(opened: str) -> None:
    for outputs in (3, 6, 12):
        for target in NATIVE:
            conv = Conv((9, outputs, 6, 11), result=LAST, opened=opened)
            conv.check(target, on_cpu(target))


def test_windows_and_strides() -> None:
    """Taps are no neighbours of planes, and strides skip some: lanes stay along the outputs."""
    for conv in (
        Conv((5, 20, 6, 7), kernel=3, pad=1),
        Conv((5, 20, 6, 7), kernel=3),
        Conv((5, 20, 6, 7), stride=2),
    ):
        for left in (PLANES, LAST):
            replace(conv, left=left).check(NATIVE[0], on_cpu(NATIVE[0]))


def test_planes_a_page_apart() -> None:
    """One line of each of many planes has one place in a cache: taps go along a plane first."""
    target = targets.load("x86-64-v3")
    for size, is_apart in (((12, 20, 32, 32), True), ((12, 20, 32, 30), False)):
        conv = Conv(size, kernel=3, pad=1)
        for name in NATIVE:
            conv.check(name, on_cpu(name))
        loops = [s for s in walk(lower(conv.function(), target).body) if isinstance(s, For)]
        channels = [s for s in loops if s.kind is LoopKind.SERIAL and s.extent == 12]
        inside = [s for loop in channels for s in walk(loop.body) if isinstance(s, For)]
        assert channels and any(s.extent == 3 for s in inside) == is_apart


def test_planes_beyond_the_caches_are_asked_for() -> None:
    """Of each term what the tile after the next loads; not where a near cache holds all planes."""

    def asks(conv: Conv, target: str) -> bool:
        body = lower(conv.function(), targets.load(target)).body
        return any(isinstance(stmt, Prefetch) for stmt in walk(body))

    for result in (PLANES, LAST):
        far, near = (Conv((24, 3, n, n + 1), result=result) for n in (150, 20))
        for name in NATIVE:
            assert asks(far, name) and not asks(near, name)
            far.check(name, on_cpu(name))
        assert not asks(far, "thumbv7em")


def test_which_lanes() -> None:
    """Lanes go along rows where both sides have them side by side, or a vector has no use for the
    few columns; on GPUs never."""

    def schedule(conv: Conv, target: str = "x86-64-v3") -> Schedule:
        return schedule_of(conv.function(), targets.load(target))[0].schedule

    size = (64, 32, 8, 8)
    assert schedule(Conv(size)) is Schedule.PLANES
    assert schedule(Conv((64, 3, 8, 8), result=LAST)) is Schedule.PLANES
    for outputs, channels, expected in (
        (12, 16, Schedule.PLANES),
        (12, 4, Schedule.CONTRACTION),
        (15, 16, Schedule.CONTRACTION),
    ):
        conv = Conv((channels, outputs, 8, 8), result=LAST)
        assert schedule(conv, "x86-64-v4") is expected
    for other in (
        Conv(size, result=LAST),
        Conv(size, left=LAST),
        Conv(size, kernel=3),
        Conv(size, stride=2),
        Conv((64, 32, 1, 5)),
    ):
        assert schedule(other) is Schedule.CONTRACTION
    assert schedule(Conv(size), "vulkan-1.1") is Schedule.CONTRACTION


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
def test_no_scalar_is_stored(left: str) -> None:
    """Elements of planes were once stored one by one, from vectors of outputs."""
    target = targets.load("x86-64-v3")
    function = Conv((16, 8, 8, 12), left=left).function()
    text = emit_assembly(lower(function, target), target)
    assert not re.findall(SCALAR_STORES, text)


@pytest.mark.parametrize("outputs", [2, 3, 5, 6, 9, 12])
def test_few_columns_are_stored_in_vectors(outputs: int) -> None:
    for name in ("x86-64-v3", "x86-64-v4"):
        target = targets.load(name)
        for left in (PLANES, LAST):
            function = Conv((16, outputs, 8, 12), left=left, result=LAST).function()
            text = emit_assembly(lower(function, target), target)
            # of nine columns the last one is alone where vectors have no masks
            most = 12 if outputs % 4 == 1 and name == "x86-64-v3" else 0
            assert len(re.findall(SCALAR_STORES, text)) <= most


def test_interleaving_takes_an_instruction_a_stage_and_vector() -> None:
    """LLVM once merged the shuffles of the stages, to twice as many."""
    target = targets.load("x86-64-v4")
    text = emit_assembly(lower(Conv((4, 8, 8, 12), result=LAST).function(), target), target)
    # 96 rows as tiles of 48, three vectors of each of eight columns
    assert len(re.findall(r"vpermt2|vpermi2|vperm\w+|vunpck|vshuf", text)) <= 3 * 24
