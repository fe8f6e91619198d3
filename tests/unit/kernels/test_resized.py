"""Resampling along both axes of planes as one kernel, whatever tables say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.analysis.resized import columns_together, ring_of
from aot.ir.builder import Builder
from aot.ir.graph import Function, Module
from aot.ir.types import DType, TensorType
from aot.kernels.ir.nodes import For, LoopKind, Space, walk
from aot.kernels.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.fuse import fuse
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import outlined
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import Engine, check, on_interpreter

PICKING = [name for name in native_targets() if targets.load(name).picks_lanes(4)]
NATIVE = PICKING or ["x86-64-v4"]  # on the interpreter, where this machine picks no lanes
ROWS, COLUMNS = 0, 1


def engine_of(target: str) -> Engine:
    """This machine for a target that it has, else the interpreter."""
    return on_cpu(target) if target in PICKING else on_interpreter


@pytest.fixture(autouse=True)
def planes_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small planes are as good for these tests, where one pass would bring nothing."""
    monkeypatch.setattr("aot.analysis.resized.LEAST_CACHES", 0)


def tables(extent: int, count: int, taps: int, kind: str) -> tuple[Any, Any]:
    """Positions as a resize has them, such that go back, or in no order, some of them outside."""
    random = np.random.default_rng(extent * 100 + count)
    first = np.floor((np.arange(count) + 0.5) * extent / count - 0.5).astype(np.int64)
    positions = first + np.arange(taps)[:, None] - (taps - 1) // 2
    positions = np.clip(positions, 0, extent - 1)
    if kind == "back":
        positions = positions[:, ::-1].copy()
    if kind == "random":
        positions = random.integers(-1, extent + 1, (taps, count))
    return positions, random.integers(-3, 4, (taps, count)).astype(np.float32)


def resized(
    shape: tuple[int, ...],
    size: tuple[int, int],
    taps: tuple[int, int],
    order: tuple[int, int],
    kind: str = "resize",
    after: str = "",
) -> tuple[Function, list[Any]]:
    """Planes resampled along both axes; then the op `after`."""
    b = Builder()
    x: Any = b.input("x", TensorType(DType.F32, shape))
    inputs = [numbers(shape)]
    for axis in order:
        place = len(shape) - 2 + axis
        made = tables(x.type.dims[place], size[axis], taps[axis], kind)
        x = b.op("resample", x, *map(b.constant, made), axis=place)
    if after == "add":
        x = b.op("add", x, b.input("other", x.type))
        inputs.append(numbers(x.type.dims))
    elif after:
        x = b.op(after, x)
    b.output("y", x)
    return b.function(), inputs


def numbers(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)


CASES = [
    ((2, 3, 7, 9), (19, 21), (2, 2), (COLUMNS, ROWS)),
    ((1, 5, 12, 33), (25, 99), (4, 4), (COLUMNS, ROWS)),
    ((3, 40, 64), (70, 109), (4, 2), (COLUMNS, ROWS)),
    ((20, 3, 5, 16), (9, 33), (1, 4), (COLUMNS, ROWS)),
    ((1, 1, 130, 40), (251, 40), (3, 8), (COLUMNS, ROWS)),
    ((70, 130), (70, 144), (2, 4), (COLUMNS, ROWS)),
    ((2, 3, 7, 9), (5, 6), (2, 2), (ROWS, COLUMNS)),
    ((1, 5, 33, 33), (24, 24), (4, 4), (ROWS, COLUMNS)),
    ((3, 100, 70), (75, 52), (4, 2), (ROWS, COLUMNS)),
    ((1, 1, 170, 120), (130, 101), (8, 3), (ROWS, COLUMNS)),
    ((4, 3, 40), (11, 70), (2, 4), (ROWS, COLUMNS)),
]


def fused(function: Function, target: str) -> None:
    fuse(function, target=targets.load(target))
    assert sum(op.name == "region" for op in function.block) == 1


@pytest.mark.parametrize("after", ["", "relu", "add"])
@pytest.mark.parametrize("kind", ["resize", "back", "random"])
@pytest.mark.parametrize("target", NATIVE)
def test_both_axes_in_one_kernel(target: str, kind: str, after: str) -> None:
    for shape, size, taps, order in CASES:
        function, inputs = resized(shape, size, taps, order, kind, after)
        fused(function, target)
        check(function, inputs, target, 1, engine=engine_of(target))


@pytest.mark.parametrize("kind", ["resize", "random"])
def test_no_two_workgroups_store_one_element(kind: str) -> None:
    for shape, size, taps, order in (CASES[1], CASES[4], CASES[7], CASES[9]):
        function, inputs = resized(shape, size, taps, order, kind, "add")
        fused(function, "x86-64-v4")
        check(function, inputs, "x86-64-v4", 1, engine=on_interpreter)


@pytest.mark.parametrize("height", [80, 96, 160, 352])
def test_tables_are_asked_about_rows_that_are_there(height: int) -> None:
    """Whole vectors of them, but not of as many as are asked about together."""
    function, inputs = resized((1, 40, 40), (height, 48), (2, 2), (COLUMNS, ROWS))
    fused(function, "x86-64-v4")
    check(function, inputs, "x86-64-v4", 1, engine=on_interpreter)


@pytest.mark.parametrize("width", [2064, 2160])
def test_tables_are_asked_about_columns_that_are_there(width: int) -> None:
    """Whole vectors of them, of which the last part has fewer than others."""
    function, inputs = resized((1, 3, width // 2), (5, width), (2, 2), (COLUMNS, ROWS))
    fused(function, "x86-64-v4")
    check(function, inputs, "x86-64-v4", 1, engine=on_interpreter)


@pytest.mark.parametrize("target", ["x86-64-v2", "aarch64-generic", "vulkan-1.1"])
def test_what_has_no_such_kernel_writes_terms_out(target: str) -> None:
    function, inputs = resized((2, 3, 7, 9), (19, 21), (2, 3), (COLUMNS, ROWS), after="relu")
    fused(function, "x86-64-v4")
    check(function, inputs, target, 1, engine=on_interpreter)


def kernel_of(function: Function) -> Any:
    fused(function, "x86-64-v4")
    return lower(outlined(function), targets.load("x86-64-v4"))


def test_rows_are_kept_in_scratch() -> None:
    """In a ring of lines, of which some are made at once, be the plane as high as it may."""
    for height in (200, 2000):
        kernel = kernel_of(resized((8, height, 100), (600, 300), (4, 4), (COLUMNS, ROWS))[0])
        ring = ring_of(300, 4, 4, targets.load("x86-64-v4"))
        assert ring == (4, 8)
        shapes = [s.shape for s in kernel.scratch if s.name == "ring"]
        assert shapes == [(8, 304)]
        kept = sum(
            np.prod(s.shape) * s.dtype.bytes for s in kernel.scratch if s.space is not Space.PRIVATE
        )
        assert kept <= targets.load("x86-64-v4").scratch_bytes


def test_long_lines_are_made_in_parts() -> None:
    assert columns_together(2048) == 2048
    for width in (2049, 5000, 10000):
        part = columns_together(width)
        assert part % 16 == 0 and part <= 2048
    function, inputs = resized((1, 3, 1500), (5, 2500), (2, 2), (COLUMNS, ROWS))
    fused(function, "x86-64-v4")
    for target in NATIVE[:1]:
        check(function, inputs, target, 1, engine=engine_of(target))


def test_few_planes_are_several_workgroups() -> None:
    (loop,) = [
        s
        for s in walk(kernel_of(resized((1, 1, 300, 300), (600, 600), (2, 2), (1, 0))[0]).body)
        if isinstance(s, For) and s.kind is LoopKind.WORKGROUP
    ]
    assert isinstance(loop.extent, int) and loop.extent >= 8


@pytest.mark.parametrize(
    ("shape", "size", "order"),
    [
        ((1, 3, 40, 400), (40, 40), (ROWS, COLUMNS)),  # of 16 columns terms lie far apart
        ((1, 3, 400, 40), (40, 80), (COLUMNS, ROWS)),  # rows that nothing reads would be made
    ],
)
def test_where_one_pass_would_cost_more_there_are_two(
    shape: tuple[int, ...], size: tuple[int, int], order: tuple[int, int]
) -> None:
    function, _ = resized(shape, size, (4, 4), order)
    fuse(function, target=targets.load("x86-64-v4"))
    assert sum(op.name == "region" for op in function.block) == 2


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic", "vulkan-1.1"])
def test_targets_that_pick_no_lanes_have_two(target: str) -> None:
    function, _ = resized((1, 3, 40, 40), (80, 80), (4, 4), (COLUMNS, ROWS))
    fuse(function, target=targets.load(target))
    assert sum(op.name == "region" for op in function.block) == 2


def test_planes_that_a_cache_holds_have_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.analysis.resized.LEAST_CACHES", 1)
    for extent, count in ((33, 2), (97, 1)):
        size = (2 * extent, 2 * extent)
        function, _ = resized((1, 8, extent, extent), size, (2, 2), (COLUMNS, ROWS))
        fuse(function, target=targets.load("x86-64-v4"))
        assert sum(op.name == "region" for op in function.block) == count


def test_planes_of_other_extents_have_kernels_of_their_own() -> None:
    b = Builder()
    for n in (200, 250):
        x: Any = b.input(f"x{n}", TensorType(DType.F32, (1, 8, n, n)))
        for axis in (3, 2):
            x = b.op("resample", x, *map(b.constant, tables(n, 2 * n, 2, "resize")), axis=axis)
        b.output(f"y{n}", x)
    module = Module([b.function()])
    options = CompileOptions(targets=("x86-64-v4",), optimize="size")
    run_passes(module, MODEL_PASSES, PassContext(options))
    run_passes(module, TARGET_PASSES, PassContext(options, targets.load("x86-64-v4")))
    assert len(module.executables) == 2
    assert not any(name.startswith("d") for f in module.executables for name in f.dim_names)


@pytest.mark.parametrize("kind", ["resize", "random"])
@pytest.mark.parametrize("target", NATIVE)
def test_rows_that_go_past_the_caches(
    target: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin anywhere in a line of a cache."""
    monkeypatch.setattr("aot.kernels.lowering.STREAMED_BYTES", 0)
    cases = [*CASES, ((2, 9, 40), (20, 51), (2, 2), (COLUMNS, ROWS))]
    for shape, size, taps, order in cases:
        for after in ("", "add"):
            function, inputs = resized(shape, size, taps, order, kind, after)
            fused(function, target)
            check(function, inputs, target, 1, engine=engine_of(target))


def test_rows_past_the_caches_are_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.kernels.lowering.STREAMED_BYTES", 0)
    for shape, size, taps, order in (CASES[1], CASES[2], ((5, 40), (9, 51), (2, 2), (1, 0))):
        function, inputs = resized(shape, size, taps, order, "resize", "add")
        fused(function, "x86-64-v4")
        check(function, inputs, "x86-64-v4", 1, engine=on_interpreter)


def picked(shape: tuple[int, ...], size: tuple[int, int], kind: str, after: str) -> Any:
    """Planes of which rows and columns are picked, as by the nearest in a resize or in no order."""
    b = Builder()
    x: Any = b.input("x", TensorType(DType.F32, shape))
    inputs = [numbers(shape)]
    for axis in (COLUMNS, ROWS):
        place = len(shape) - 2 + axis
        extent = shape[place]
        places = np.arange(size[axis]) * extent // size[axis]
        if kind == "random":
            places = np.random.default_rng(size[axis]).integers(-extent, extent, size[axis])
        x = b.op(
            "gather", x, b.constant(places[::-1].copy() if kind == "back" else places), axis=place
        )
    if after == "add":
        x = b.op("add", x, b.input("other", x.type))
        inputs.append(numbers(x.type.dims))
    b.output("y", x)
    return b.function(), inputs


PICKED = [
    ((2, 3, 12, 33), (25, 56)),
    ((3, 40, 64), (70, 109)),
    ((2, 5, 17, 16), (16, 16)),
    ((1, 1, 130, 40), (251, 45)),
    ((3, 40, 80), (30, 60)),
    ((1, 4, 100, 97), (75, 72)),
    ((2, 60, 65), (33, 63)),
    ((1, 1, 34, 70), (17, 52)),
    ((5, 20, 40), (16, 9)),
]


@pytest.mark.parametrize("after", ["", "add"])
@pytest.mark.parametrize("kind", ["resize", "back", "random"])
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("target", NATIVE)
def test_rows_and_columns_are_picked(
    target: str, is_large: bool, kind: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr("aot.kernels.lowering.STREAMED_BYTES", 0)
    for shape, size in PICKED:
        function, inputs = picked(shape, size, kind, after)
        fused(function, target)
        check(function, inputs, target, 1, engine=engine_of(target))


@pytest.mark.parametrize("kind", ["resize", "random"])
def test_picked_rows_are_in_bounds(kind: str) -> None:
    for shape, size in (PICKED[0], PICKED[5], PICKED[7]):
        function, inputs = picked(shape, size, kind, "add")
        fused(function, "x86-64-v4")
        check(function, inputs, "x86-64-v4", 1, engine=on_interpreter)
