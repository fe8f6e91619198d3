"""Short rows that are reduced several at a time: their values, and what is done once a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.expr import Binary, nodes
from aot.ir.graph import Function, Value
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel, Let, Stmt, Store
from aot.kernels.rules.reductions.rows import ELEMENT_BYTES, FEWEST, GROUPS, LONGEST, SHARE
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu, on_qemu, once
from tests.support.kernel_steps import steps
from tests.support.lowering_checks import check, on_interpreter

# vectors of 16, 8 and 4
CPUS = ("x86-64-v4", "x86-64-v3", "aarch64-generic")


def rows(op: str, shape: tuple[int | str, ...], *, across: bool = False) -> Function:
    """An op along what the last axis of the input is; `across` makes its results lie the other
    way."""
    b = Builder()
    x = b.input("x", f"f32[{', '.join(map(str, shape))}]")
    axis = len(shape) - 1
    if across:
        x = b.op("transpose", x, perm=(*range(axis - 1), axis, axis - 1))
        axis -= 1
    b.output("y", along(b, op, x, axis, keepdims=True))
    return b.module().main


def along(b: Builder, op: str, x: Value, axis: int, *, keepdims: bool = False) -> Value:
    """An op along an axis; `keepdims` is of reductions."""
    if op == "layer_norm":
        scale = b.constant(np.linspace(0.5, 2, int(str(x.type.dims[axis])), dtype=np.float32))
        return b.op(op, x, scale, scale, axis=axis, epsilon=1e-5)
    if op in ("softmax", "arg_max"):
        return b.op(op, x, axis=axis)
    return b.op(op, x, axes=(axis,), keepdims=keepdims)


def data(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).uniform(-2, 2, shape).astype(np.float32)


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("op", ["layer_norm", "softmax", "arg_max", "reduce_sum", "reduce_max"])
@pytest.mark.parametrize("extents", [(21, 4), (3, 20), (4, 33), (2, 37, 18), (1, 16, 64)], ids=str)
def test_values(op: str, extents: tuple[int, ...], across: bool, target: str) -> None:
    if op == "layer_norm" and across:
        return  # that would be all of the axes behind it
    check(rows(op, extents, across=across), [data(*extents)], target, 1)


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("count", [1, 3, 4, 22])
def test_values_of_as_many_rows_as_a_run_has(count: int, target: str) -> None:
    check(rows("layer_norm", ("A", 20)), [data(count, 20)], target, 1)
    check(rows("softmax", (2, "A", 9), across=True), [data(2, count, 9)], target, 1)
    check(rows("softmax", (count, "B")), [data(count, 21)], target, 1)
    check(rows("reduce_max", ("A", "B"), across=True), [data(count, 33)], target, 1)


@pytest.mark.parametrize("target", CPUS)
def test_masks_of_rows(target: str) -> None:
    b = Builder()
    x, mask = b.input("x", "f32[2, 3, 18, 21]"), b.input("mask", "f32[2, 1, 18, 21]")
    b.output("y", b.op("softmax", b.op("add", x, mask), axis=3))
    masks = np.where(data(2, 1, 18, 21) > 0, np.float32(0), np.float32(-np.inf))
    masks[..., 0] = 0
    check(b.module().main, [data(2, 3, 18, 21), masks], target, 1)


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("count", [1, 5, 64, 70, 129])
def test_values_of_as_many_rows_as_blocks_have(count: int, target: str) -> None:
    """Blocks have some groups of rows, the last group of the last block fewer rows than others."""
    for inner in (5, 12):
        check(rows("layer_norm", (count, inner)), [data(count, inner)], target, 1)
        check(rows("reduce_max", ("A", inner)), [data(count, inner)], target, 1)
        check(rows("softmax", (2, count, inner), across=True), [data(2, count, inner)], target, 1)


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("op", ["layer_norm", "softmax", "reduce_sum", "reduce_max", "reduce_min"])
def test_values_of_machine_code(op: str, target: str) -> None:
    engine = on_cpu(target)
    for inner in (*range(4, 20), 31, 33, 50, 63, 67, 130):
        for count in (3, 37):
            x = data(count, inner)
            check(rows(op, (count, inner)), [x], target, 1, engine=engine)


@pytest.mark.parametrize("target", ["aarch64-generic", *native_targets()])
def test_columns_whose_count_only_the_device_knows(target: str) -> None:
    """What is left of them takes vectors of four, and then single ones."""
    engine = on_cpu(target) if target in native_targets() else on_interpreter
    for op in ("softmax", "arg_max", "reduce_sum"):
        for count in (1, 3, 4, 7, 8, 13, 30):
            b = Builder()
            x = b.input("x", "f32[2, 9, A]")
            b.output("y", b.op(op, x, **({"axes": (1,)} if op == "reduce_sum" else {"axis": 1})))
            check(b.module().main, [data(2, 9, count)], target, 1, engine=engine)


@pytest.mark.parametrize("target", ["aarch64-generic", *native_targets()])
@pytest.mark.parametrize("op", ["layer_norm", "softmax", "arg_max", "reduce_sum", "reduce_max"])
def test_few_rows_in_each_of_many(op: str, target: str) -> None:
    """Of which blocks have several: heads that lie elsewhere than positions do."""
    engine = on_cpu(target) if target in native_targets() else on_interpreter
    for few, many, inner in ((2, 70, 9), (3, 37, 20), (5, 4, 12), (12, 11, 16), (2, 2, 33)):
        for length in (many, "A"):
            b = Builder()
            x = b.input("x", f"f32[{few}, {length}, {inner}]")
            x = b.op("transpose", x, perm=(1, 0, 2))
            b.output("y", along(b, op, x, 2))
            check(b.module().main, [data(few, many, inner)], target, 1, engine=engine)


VECTOR_CPUS = [
    target.name
    for target in map(targets.load, targets.names())
    if target.is_cpu and target.lanes(DType.F32) >= FEWEST
]


def edges(target: Target) -> list[tuple[int, int]]:
    """(rows at an index, elements of a row), on both sides of each figure of a target that decides
    how many rows a block has: its lanes, first cache and what rows may be blocks at all. A row is
    computed of two operands."""
    lanes = target.lanes(DType.F32)
    cached = target.l1_bytes // (SHARE * lanes * 2 * ELEMENT_BYTES)  # where a group is just in it
    around = {64, min(cached, LONGEST), min(cached + 1, LONGEST)}
    rows = (lanes - 1, lanes, lanes + 1, 2 * lanes + 1, GROUPS * lanes - 1, GROUPS * lanes)
    found = {(few, inner) for inner in around for few in rows}
    found |= {(lanes + 1, inner) for inner in (FEWEST - 1, FEWEST, LONGEST, LONGEST + 1)}
    return sorted(found)


def biased(op: str, shape: tuple[int | str, ...]) -> Function:
    """An op along the last axis of `x + p`. The broadcast of `p` keeps the two axes of rows apart:
    no loop can walk both as one."""
    b = Builder()
    x = b.input("x", f"f32[{', '.join(map(str, shape))}]")
    x = b.op("add", x, b.input("p", f"f32[{shape[1]}, {shape[2]}]"))
    b.output("y", along(b, op, x, 2))
    return b.module().main


interpreted = once(on_interpreter)


@pytest.mark.parametrize("target", VECTOR_CPUS)
def test_no_block_outgrows_its_scratch(target: str) -> None:
    """A block has all rows of an index, or some rows of one."""
    for few in (3, 15, 63):
        arrays = [data(2, few, 200), data(few, 200)]
        check(biased("layer_norm", (2, few, 200)), arrays, target, 1, engine=interpreted)


@pytest.mark.parametrize("target", VECTOR_CPUS)
def test_blocks_at_the_edges_of_a_target(target: str) -> None:
    for few, inner in edges(targets.load(target)):
        arrays = [data(2, few, inner), data(few, inner)]
        check(biased("reduce_max", (2, few, inner)), arrays, target, 1, engine=interpreted)


@pytest.mark.parametrize("op", ["layer_norm", "softmax", "arg_max", "reduce_sum", "reduce_max"])
@pytest.mark.parametrize("target", native_targets())
def test_blocks_at_the_edges_in_machine_code(target: str, op: str) -> None:
    engine = on_cpu(target)
    for few, inner in edges(targets.load(target)):
        for many in (3, "A"):
            arrays = [data(3, few, inner), data(few, inner)]
            check(biased(op, (many, few, inner)), arrays, target, 1, engine=engine)


@pytest.mark.qemu
@pytest.mark.parametrize("target", ["aarch64-generic", "armv7-neon", "riscv64-v"])
def test_blocks_at_the_edges_elsewhere(target: str) -> None:
    machine = targets.load(target)
    engine = on_qemu(machine)
    for few, inner in edges(machine):
        arrays = [data(2, few, inner), data(few, inner)]
        check(biased("layer_norm", (2, few, inner)), arrays, target, 1, engine=engine)


@pytest.mark.parametrize("target", ["aarch64-generic", *native_targets()])
def test_results_that_lie_across_in_few_sets_of_a_cache(target: str) -> None:
    inner = on_cpu(target) if target in native_targets() else on_interpreter
    kernels: list[Kernel] = []

    def engine(kernel: Kernel, buffers: Any, params: Any) -> None:
        kernels.append(kernel)
        inner(kernel, buffers, params)

    shapes = ((256, 9), (2, 256, 20), (512, 35))
    for shape in shapes if target in native_targets() else shapes[:1]:
        check(rows("softmax", shape, across=True), [data(*shape)], target, 1, engine=engine)
    assert all("run" in {s.name for s in kernel.scratch} for kernel in kernels)


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("op", ["reduce_max", "reduce_min"])
def test_numbers_and_others_of_machine_code(op: str, target: str) -> None:
    """NaN wins wherever it is; the last elements of a row may be compared twice."""
    for inner in (5, 6, 11, 15, 21, 50):
        x = data(70, inner)
        for at in range(inner):
            x[at + 2, at] = np.nan
        x[0, :] = np.inf if op == "reduce_min" else -np.inf
        x[0, -1] = 1
        b = Builder()
        given = b.input("x", f"f32[70, {inner}]")
        y = b.op(op, given, axes=(1,), keepdims=True)
        b.output("y", b.op("where", b.op("is_nan", y), b.constant(np.float32(-9)), y))
        check(b.module().main, [x], target, 1, engine=on_cpu(target))


@pytest.mark.parametrize(("count", "most"), [(16, 16), (64, 64), (20, 32)])
def test_a_norm_divides_and_takes_roots_once_a_block(count: int, most: int) -> None:
    """As vectors, so that a lane of a block is counted for each row."""
    kernels: list[Kernel] = []

    def engine(kernel: Kernel, buffers: Any, params: Any) -> None:
        kernels.append(kernel)
        on_interpreter(kernel, buffers, params)

    check(rows("layer_norm", (count, 32)), [data(count, 32)], "x86-64-v4", 1, engine=engine)

    def divisions(stmt: Stmt) -> int:
        found = nodes(stmt.value) if isinstance(stmt, (Store, Let)) else ()
        return sum(isinstance(e, Binary) and e.op == "div" for e in found)

    # by the root; means divide by the number of elements, a constant
    assert count <= steps(kernels[0].body, divisions) <= 3 * most
