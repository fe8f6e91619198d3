"""Regions of several results: one loop nest stores all that has the same elements, in vectors or
lanes, and what only the nest itself reads is in no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir import expr
from aot.ir.clone import clone_module
from aot.ir.graph import Function, Module, Value
from aot.ir.interpreter.interpreter import run
from aot.kernels.ir.nodes import Buffer, For, If, Kernel, LoopKind, Stmt, Store, walk
from aot.kernels.ir.verifier import verify
from aot.kernels.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.join_regions import join_regions
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.lowering_checks import check
from tests.support.random_graphs import difference

TARGETS = ("x86-64-v3", "vulkan-1.1")
SHAPES = ((2048, 512), (3, 7, 1000), (300, 33), (5, 1, 64, 16), (70000,))
MOST_LANES_AN_ELEMENT = 16

Ops = Callable[[Builder, Value], list[Value]]


def two(b: Builder, x: Value) -> list[Value]:
    y = b.op("relu", x)
    return [y, b.op("mul", y, x)]


def siblings(b: Builder, x: Value) -> list[Value]:
    return [b.op("tanh", x), b.op("neg", x), b.op("abs", x)]


def chain(b: Builder, x: Value) -> list[Value]:
    numbers = [b.constant(np.float32(n / 4 - 0.9)) for n in range(8)]
    for n in range(60):
        x = b.op(("add", "mul", "maximum")[n % 3], x, numbers[n % 8])
    return [x]


def rows(b: Builder, x: Value) -> list[Value]:
    y = b.op("softmax", x, axis=len(x.type.dims) - 1)
    return [y, b.op("mul", y, x)]


def statistics(b: Builder, x: Value) -> list[Value]:
    last = (len(x.type.dims) - 1,)
    mean = b.op("reduce_mean", x, axes=last, keepdims=True)
    centred = b.op("sub", x, mean)
    return [b.op("reduce_max", centred, axes=last, keepdims=True), centred, b.op("abs", centred)]


def quantised(b: Builder, x: Value) -> list[Value]:
    """GELU as exporters write it, and its bytes."""
    y = b.op("mul", x, b.constant(np.float32(0.5**0.5)))
    y = b.op("mul", b.op("add", b.op("erf", y), b.constant(np.float32(1))), x)
    q = b.op("round", b.op("div", y, b.constant(np.float32(0.02))))
    q = b.op("maximum", q, b.constant(np.float32(-128)))
    q = b.op("minimum", q, b.constant(np.float32(127)))
    return [y, b.op("cast", q, to="i8")]


CASES = (two, siblings, chain, rows, statistics, quantised)


def graph(ops: Ops, shape: tuple[int, ...]) -> Module:
    b = Builder()
    for number, value in enumerate(ops(b, b.input("x", f"f32[{', '.join(map(str, shape))}]"))):
        b.output(f"y{number}", value)
    return b.module()


def kernels(module: Module, target: str) -> Iterator[tuple[Kernel, int]]:
    """Each kernel, and its number of results."""
    module, chosen = clone_module(module), targets.load(target)
    run_passes(module, MODEL_PASSES, PassContext(CompileOptions()))
    run_passes(module, TARGET_PASSES, PassContext(CompileOptions(), chosen))
    for function in module.executables:
        yield lower(function, chosen), len(function.results)


def loops(body: tuple[Stmt, ...], around: tuple[For, ...] = ()) -> Iterator[tuple[For, ...]]:
    """Each loop, after those that it stands in."""
    for stmt in body:
        if isinstance(stmt, If):
            yield from loops((*stmt.then, *stmt.otherwise), around)
        elif isinstance(stmt, For):
            yield (*around, stmt)
            yield from loops(stmt.body, (*around, stmt))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ops", CASES, ids=lambda ops: ops.__name__)
def test_lanes_are_busy(ops: Ops, shape: tuple[int, ...], target: str) -> None:
    for kernel, results in kernels(graph(ops, shape), target):
        found = list(loops(kernel.body))
        wide = [nest for nest in found if nest[-1].kind in (LoopKind.VECTOR, LoopKind.LANE)]
        assert wide, f"{results} results, a scalar at a time"
        for nest in wide if target.startswith("vulkan") else ():
            extents = [loop.extent for loop in nest if loop.kind is not LoopKind.SERIAL]
            assert prod(extents) <= MOST_LANES_AN_ELEMENT * prod(shape)  # type: ignore[type-var]


@pytest.mark.parametrize("ops", [two, siblings, chain, quantised], ids=lambda ops: ops.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_elementwise_results_are_one_nest(ops: Ops, target: str) -> None:
    """Whatever is stored, each element of the operand is loaded once, and of no result."""
    module = graph(ops, (2048, 512))
    ((kernel, results),) = kernels(module, target)
    assert results == len(module.main.results), "nothing else is stored"
    grids = {nest[0] for nest in loops(kernel.body) if nest[0].kind is LoopKind.WORKGROUP}
    assert len(grids) == 1


@pytest.mark.parametrize("shape", [(70, 33), (3, 7, 40), (9, 1), (2100,)], ids=str)
@pytest.mark.parametrize("ops", CASES, ids=lambda ops: ops.__name__)
def test_regions_compute_what_the_graph_does(ops: Ops, shape: tuple[int, ...]) -> None:
    module = graph(ops, shape)
    x: Any = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = run(module.main, {"x": x})
    with aot.load(aot.compile(module, targets=["host"])) as program:
        found = list(program({"x": x}).values())
    assert not difference(module.main, {"x": x}, expected, found)


def _conv(b: Builder, x: Value) -> Value:
    w = b.constant(np.random.default_rng(1).standard_normal((8, 8, 1, 1)).astype(np.float32))
    return b.op("conv", x, w, strides=(1, 1), dilations=(1, 1), pads=(0,) * 4, group=1)


ROOTS: dict[str, Callable[[Builder, Value], Value]] = {
    "conv": _conv,
    "matmul": lambda b, x: b.op("matmul", x, b.op("transpose", x, perm=(0, 1, 3, 2))),
    "softmax": lambda b, x: b.op("softmax", x, axis=3),
    "tanh": lambda b, x: b.op("tanh", x),
}


@pytest.mark.parametrize("is_head", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("root", ROOTS)
def test_a_result_that_another_reads_in_part(root: str, axis: int, is_head: bool) -> None:
    """What is read under a condition is the element that the nest has computed, not another one."""
    b = Builder()
    made = ROOTS[root](b, b.input("x", "f32[2, 8, 6, 6]"))
    z = b.input("z", "f32[2, 8, 6, 6]")
    half = made.type.shape[axis] // 2

    def part(value: Value, start: int, stop: int) -> Value:
        starts = tuple(start if d == axis else 0 for d in range(4))
        stops = tuple(stop if d == axis else n for d, n in enumerate(value.type.dims))
        return b.op("slice", value, starts=starts, stops=stops, steps=(1,) * 4)

    end = z.type.shape[axis]
    head, tail = (made, z) if is_head else (z, made)
    b.output("y", made)
    b.output("both", b.op("concat", part(head, 0, half), part(tail, half, end), axis=axis))
    module = b.module()
    r = np.random.default_rng(0)
    arrays = {n: r.standard_normal((2, 8, 6, 6)).astype(np.float32) for n in ("x", "z")}
    with aot.load(aot.compile(module, targets=["host"])) as program:
        found = list(program(arrays).values())
    assert not difference(module.main, arrays, run(module.main, arrays), found)
    for target in TARGETS:
        for kernel, _ in kernels(module, target):
            verify(kernel)


def _window(b: Builder, x: Value) -> Value:
    channels = x.type.shape[1]
    shape = (2 * channels, channels, 3, 3)
    w = b.constant(np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32))
    return b.op("conv", x, w, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, group=1)


def _product(b: Builder, x: Value) -> Value:
    shape = (x.type.shape[-1], 40)
    w = b.constant(np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32))
    return b.op("matmul", x, w)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("extent", [5, 40])
@pytest.mark.parametrize("root", [_conv, _window, _product], ids=lambda root: root.__name__)
def test_a_contraction_stores_several_results(
    root: Callable[[Builder, Value], Value], extent: int, is_stored: bool
) -> None:
    """Of what it makes and of what elementwise ops make of that, whatever the extents: its sums
    were once done again for each result, or what it made was loaded again."""
    b = Builder()
    x = b.input("x", f"f32[1, 8, {extent}, {extent}]")
    made = root(b, x)
    results = [b.op("relu", made), b.op("mul", b.op("neg", made), made)]
    for number, value in enumerate([made, *results] if is_stored else results):
        b.output(f"y{number}", value)
    module = b.module()
    for target in TARGETS:
        ((kernel, count),) = kernels(module, target)
        verify(kernel)
        assert count == len(module.main.results)
        loads = {
            load
            for stmt in walk(kernel.body)
            if isinstance(stmt, Store)
            for load in expr.loads(stmt.value)
            if isinstance(load.source, Buffer) and load.source.is_written
        }
        assert not loads
        grids = [nest for nest in loops(kernel.body) if nest[-1].kind is LoopKind.WORKGROUP]
        assert len({nest[0] for nest in grids}) == 1
    data = np.random.default_rng(0).standard_normal(x.type.shape).astype(np.float32)
    expected = run(module.main, {"x": data})
    with aot.load(aot.compile(module, targets=["host"])) as program:
        found = list(program({"x": data}).values())
    assert not difference(module.main, {"x": data}, expected, found)


@pytest.mark.parametrize("root", [_conv, _window, _product], ids=lambda root: root.__name__)
def test_results_of_a_contraction_on_a_gpu(root: Callable[[Builder, Value], Value]) -> None:
    target = targets.load("vulkan-1.1")
    b = Builder()
    made = root(b, b.input("x", "f32[1, 8, 5, 5]"))
    b.output("y", made)
    b.output("z", b.op("relu", made))
    data = np.random.default_rng(0).standard_normal((1, 8, 5, 5)).astype(np.float32)

    def join(function: Function) -> None:
        assert join_regions(function, target) == 1

    check(b.function(), [data], "vulkan-1.1", 1, after_fuse=join)
