"""Terms that tables name, gathered along a line: what tables say is found once for many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir import expr
from aot.ir.builder import Builder
from aot.ir.graph import Function
from aot.ir.types import DType, TensorType
from aot.kernels.ir.nodes import For, If, Let, LoopKind, Store, walk
from aot.kernels.lowering import lower
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.join_regions import join_regions
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import outlined
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import Engine, check, on_interpreter

NATIVE = native_targets()
SHAPES = ((2, 3, 5, 7), (1, 2, 1, 33), (3, 1, 67, 16), (1, 1, 130, 4), (70, 9), (1, 17))


def tables(extent: int, count: int, taps: int) -> tuple[Any, Any]:
    """Positions in no order, some of them outside, and weights, [taps, count]."""
    random = np.random.default_rng(extent * 100 + count)
    positions = random.integers(-1, extent + 1, (taps, count))
    return positions, random.integers(-3, 4, (taps, count)).astype(np.float32)


def function_of(shape: tuple[int, ...], *along: tuple[int, int, int]) -> Function:
    """A value of `shape` resampled along each (axis, count, taps), and changed at the end."""
    b = Builder()
    x: Any = b.input("x", TensorType(DType.F32, shape))
    for axis, count, taps in along:
        made = map(b.constant, tables(x.type.dims[axis], count, taps))
        x = b.op("resample", x, *made, axis=axis)
    b.output("y", b.op("relu", x))
    return b.function()


def numbers(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)


def way_of(target: str, interpreted: str = "x86-64-v4") -> tuple[str, Engine]:
    """A target, and who runs its kernels."""
    is_here = target != "interpreted"
    return (target, on_cpu(target)) if is_here else (interpreted, on_interpreter)


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("taps", [1, 2, 9])
def test_along_the_innermost_axis(taps: int, target: str) -> None:
    name, engine = way_of(target)
    for shape in SHAPES:
        for count in (5, 61) if taps == 2 else (33,):
            function = function_of(shape, (len(shape) - 1, count, taps))
            check(function, [numbers(shape)], name, 1, engine=engine)


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_along_two_axes(order: tuple[int, int], target: str) -> None:
    for shape, size in (((2, 3, 7, 9), (19, 21)), ((1, 5, 12, 33), (5, 17))):
        sizes = dict(zip((2, 3), size, strict=True))
        function = function_of(shape, *((axis, sizes[axis], 2) for axis in order))

        def join(made: Function) -> None:
            assert join_regions(made, targets.load(target)) == 1

        check(function, [numbers(shape)], target, 1, engine=on_cpu(target), after_fuse=join)


def test_tables_are_read_once_for_many_rows() -> None:
    function = function_of((8, 40, 32), (2, 64, 2))
    kernel = lower(outlined(function), targets.load("x86-64-v3"))
    vectors = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    assert vectors
    for loop in vectors:
        rows = [s for s in walk(loop.body) if isinstance(s, For)]
        assert [row.extent for row in rows] == [64]


def resized(shape: tuple[int, ...], count: int, taps: int, *, is_back: bool = False) -> Function:
    """The last axis resampled at places that go on as a resize's do, or back."""
    b = Builder()
    x: Any = b.input("x", TensorType(DType.F32, shape))
    first = np.floor((np.arange(count) + 0.5) * shape[-1] / count - 0.5).astype(np.int64)
    positions = first + np.arange(taps)[:, None] - (taps - 1) // 2
    weights = np.random.default_rng(1).integers(-3, 4, (taps, count)).astype(np.float32)
    positions = np.clip(positions, 0, shape[-1] - 1)[:, :: -1 if is_back else 1].copy()
    made = map(b.constant, (positions, weights))
    b.output("y", b.op("resample", x, *made, axis=len(shape) - 1))
    return b.function()


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("taps", [1, 2, 4])
def test_terms_that_lie_near_each_other(taps: int, target: str) -> None:
    """Where 16 results read out of 32 neighbours, and where they read further or backwards; of the
    last rows the neighbours would be behind the end."""
    name, engine = way_of(target)
    for shape in ((3, 40), (2, 2, 70, 7), (1, 300)):
        for count in (16, 33, 90):
            for is_back in (False, True):
                function = resized(shape, count, taps, is_back=is_back)
                check(function, [numbers(shape)], name, 1, engine=engine)


def test_tables_of_near_terms_are_read_once_for_many_rows() -> None:
    """Positions are, before it is known whether terms are near; weights stay in a cache."""
    function = resized((8, 40, 32), 64, 2)
    kernel = lower(outlined(function), targets.load("x86-64-v4"))
    rows = [s for s in walk(kernel.body) if isinstance(s, For) and s.extent == 64]
    picked = [row for row in rows if any(isinstance(s, If) for s in walk(row.body))]
    (near,) = picked
    for stmt in walk(near.body):
        value = stmt.value if isinstance(stmt, (Store, Let)) else None
        assert value is None or not any(e.dtype is DType.I64 for e in expr.loads(value))


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("is_near", [True, False])
def test_elements_that_a_table_names_along_the_innermost_axis(is_near: bool, target: str) -> None:
    name, engine = way_of(target)
    for shape, count in (((5, 40), 70), ((2, 3, 300), 37), ((70, 18), 16), ((3, 9), 5)):
        random = np.random.default_rng(count)
        places = np.arange(count) * shape[-1] // count
        if not is_near:
            places = random.integers(-shape[-1], shape[-1], count)
        b = Builder()
        x = b.input("x", TensorType(DType.F32, shape))
        scale = b.input("scale", TensorType(DType.F32, (*shape[:-1], count)))
        chosen = b.op("gather", x, b.constant(places), axis=len(shape) - 1)
        b.output("y", b.op("relu", b.op("mul", chosen, scale)))
        scales = numbers((*shape[:-1], count))
        check(b.function(), [numbers(shape), scales], name, 1, engine=engine)


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("dtype", [DType.U8, DType.BOOL, DType.F16, DType.I32, DType.I64])
def test_elements_of_any_size_that_a_table_names(dtype: DType, target: str) -> None:
    """Lines that a pair of vectors holds, that several hold, and longer ones; fewer results than
    lanes, and more; places that rise, that fall, and any."""
    name, engine = way_of(target, "x86-64-v4-bf16")
    random = np.random.default_rng(5)
    for shape, count in (((2, 9, 20), 33), ((11, 200), 70), ((3, 600), 300), ((2, 3, 8, 70), 5)):
        line = shape[-1]
        rising = np.arange(count) * line // count
        for places in (rising, rising[::-1].copy(), random.integers(-line, line, count)):
            b = Builder()
            x = b.input("x", TensorType(dtype, shape))
            b.output("y", b.op("gather", x, b.constant(places), axis=len(shape) - 1))
            data = random.integers(0, 2 if dtype is DType.BOOL else 100, shape)
            check(b.function(), [data.astype(dtype.numpy)], name, 1, engine=engine)


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("axes", [(2, 3), (3, 2), (1, 3), (3, 3)])
def test_elements_that_two_tables_name_are_moved_once(axes: tuple[int, int], target: str) -> None:
    for shape, size in (((2, 3, 7, 9), (19, 21)), ((1, 5, 12, 33), (5, 17))):
        b = Builder()
        x: Any = b.input("x", TensorType(DType.F32, shape))
        for axis, count in zip(axes, size, strict=True):
            places = np.random.default_rng(count).integers(-2, x.type.dims[axis], count)
            x = b.op("gather", x, b.constant(places), axis=axis)
        b.output("y", x)
        check(b.function(), [numbers(shape)], target, 1, engine=on_cpu(target))


@pytest.mark.parametrize(("target", "regions"), [("x86-64-v4", 1), ("x86-64-v3", 2)])
def test_gathers_of_gathers_are_one_region_where_lanes_pick(target: str, regions: int) -> None:
    b = Builder()
    x = b.input("x", TensorType(DType.F32, (2, 9, 7)))
    rows = b.op("gather", x, b.constant(np.arange(5)), axis=1)
    b.output("y", b.op("gather", rows, b.constant(np.arange(19) * 7 // 19), axis=2))
    function = b.function()
    fuse(function, target=targets.load(target))
    assert sum(op.name == "region" for op in function.block) == regions


def test_targets_that_pick_lanes() -> None:
    names = {
        "x86-64-v3": (),
        "x86-64-v4": (2, 4),
        "x86-64-v4-bf16": (1, 2, 4),
        "aarch64-generic": (),
    }
    for name, wanted in names.items():
        target = targets.load(name)
        assert tuple(size for size in (1, 2, 4, 8) if target.picks_lanes(size)) == wanted
