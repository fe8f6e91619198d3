"""Reductions over any axis of any rank: each is done once for all elements that it serves, whatever
lies innermost, and computes what the graph does."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Unary
from aot.ir.graph import Function
from aot.ir.text.parser import parse_module
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import For, If, Kernel, Let, Stmt, Store
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.executables import outlined
from tests.support.kernel_steps import steps
from tests.support.lowering_checks import check

TARGETS = ("x86-64-v3", "vulkan-1.1")
SMALL = ((7,), (5, 9), (3, 33, 2), (2, 3, 4, 5), (1, 40, 3, 17))
WIDE = ((600, 500), (8, 3000, 8), (2, 70, 40, 50))
# statements that run for an element in all passes over a row; a GPU's lanes add up what they have,
# and find their places by division
MOST_AN_ELEMENT = {"x86-64-v3": 24, "vulkan-1.1": 96}
GUESS = 4096  # of an open extent, which a CPU's workgroups have so many indices of


def axes_of(shapes: tuple[tuple[int, ...], ...]) -> list[tuple[tuple[int, ...], int]]:
    return [(shape, axis) for shape in shapes for axis in range(len(shape))]


def graph(op: str, shape: tuple[int | str, ...], axis: int, *, moved: bool = False) -> Function:
    """One normalisation along an axis; `moved` makes it end in another order of dims."""
    b = Builder()
    x = b.input("x", f"f32[{', '.join(map(str, shape))}]")
    if moved:
        x = b.op("transpose", x, perm=tuple(reversed(range(len(shape)))))
    if op == "softmax":
        y = b.op("softmax", x, axis=axis)
    else:
        rest = tuple(x.type.dims[axis:])
        ones = [b.constant(np.ones([d for d in rest if isinstance(d, int)], np.float32))] * 2
        y = b.op("layer_norm", x, *ones, axis=axis, epsilon=1e-5)
    b.output("y", y)
    return b.module().main


def statements(body: tuple[Stmt, ...], times: Dim = 1) -> Dim:
    """How many statements run, all lanes and workgroups together."""
    total: Dim = 0
    for stmt in body:
        if isinstance(stmt, For):
            total = dims.add(total, statements(stmt.body, dims.multiply(times, stmt.extent)))
        elif isinstance(stmt, If):
            total = dims.add(total, statements((*stmt.then, *stmt.otherwise), times))
        else:
            total = dims.add(total, times)
    return total


def times_run(body: tuple[Stmt, ...], op: str) -> int:
    """How often an operation is done, of extents that are known."""

    def of(stmt: Stmt) -> int:
        if not isinstance(stmt, (Store, Let)):
            return 0
        found = [e for e in expr.nodes(stmt.value) if isinstance(e, (Unary, Binary))]
        return sum(e.op == op for e in found)

    return steps(body, of)


def softmax_of_chain(scratch_bytes: int, shape: str, axis: int, ops: int = 9) -> Kernel:
    """The kernel of a softmax of what takes some arithmetic, where so much may be kept."""
    b = Builder()
    x = b.input("x", f"f32[{shape}]")
    for n in range(ops):
        x = b.op("minimum", b.op("neg", x), b.constant(np.float32(n)))
    b.output("y", b.op("softmax", x, axis=axis))
    target = replace(targets.load("x86-64-v3"), scratch_bytes=scratch_bytes)
    return lower(outlined(b.function()), target)


@pytest.mark.parametrize(("shape", "axis"), [("64, 48", 1), ("64, 48", 0), ("3, 4, 32", 2)])
def test_a_row_is_computed_once(shape: str, axis: int) -> None:
    """Three passes load what the first has computed, as long as a row of it may be kept."""
    elements = np.prod([int(n) for n in shape.split(",")])
    kept = softmax_of_chain(1 << 16, shape, axis)
    assert times_run(kept.body, "exp_nonpositive") == elements
    assert times_run(kept.body, "neg") == 9 * elements
    redone = softmax_of_chain(64, shape, axis)
    assert times_run(redone.body, "exp_nonpositive") == 2 * elements
    assert times_run(redone.body, "neg") == 3 * 9 * elements


def test_scratch_is_bounded() -> None:
    """No kernel keeps more than its target lets it, whatever the row's length."""
    for columns in (100, 1000, 10_000, 100_000):
        kernel = softmax_of_chain(4096, f"3, {columns}", 1)
        rows = [s for s in kernel.scratch if s.name.startswith("row")]
        assert sum(4 * prod(s.shape) for s in rows) <= 4096
        assert bool(rows) == (columns <= 1000)


def run_statements(function: Function, target: str) -> int:
    total = statements(lower(outlined(function), targets.load(target)).body)
    found = dims.estimate(total, GUESS)
    assert found is not None
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
@pytest.mark.parametrize(("shape", "axis"), axes_of(WIDE), ids=str)
def test_work_is_linear(op: str, shape: tuple[int, ...], axis: int, target: str) -> None:
    for moved in (False, True):
        own = len(shape) - 1 - axis if moved else axis
        found = run_statements(graph(op, shape, own, moved=moved), target)
        assert found <= MOST_AN_ELEMENT[target] * np.prod(shape)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", range(3))
def test_work_is_linear_where_extents_are_open(axis: int, target: str) -> None:
    found = run_statements(graph("softmax", ("A", "B", "C"), axis), target)
    assert found <= MOST_AN_ELEMENT[target] * GUESS**3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
@pytest.mark.parametrize(("shape", "axis"), axes_of(SMALL), ids=str)
def test_values(op: str, shape: tuple[int, ...], axis: int, target: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check(graph(op, shape, axis), [x], target, 1)
    check(graph(op, shape, axis, moved=True), [x], target, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", range(3))
def test_values_where_extents_are_open(axis: int, target: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 18, 35)).astype(np.float32)
    check(graph("softmax", ("A", "B", "C"), axis), [x], target, 1)


@pytest.mark.parametrize("op", ["reduce_min", "reduce_max", "reduce_sum"])
@pytest.mark.parametrize("dims", [(1, 24, 9, 7), (2, 5, 30), (3, 16, 4, 5, 2)])
def test_all_of_a_tensor_is_reduced_in_the_order_of_its_memory(
    op: str, dims: tuple[int, ...]
) -> None:
    """Channels last, it is one row, as a vector of as many elements is."""

    def kernel(dims: tuple[int, ...], order: str) -> str:
        axes = [*range(len(dims))]
        text = (
            f'executable @e0(%0: f32{list(dims)}{order}) -> ("y") bindings [2, 3] '
            f"{{ %r = {op}(%0) {{ axes = {axes}, keepdims = false }} : f32[]\nreturn(%r) }}"
        )
        (function,) = parse_module(text).executables
        return fingerprint(lower(function, targets.load("x86-64-v3")))

    order = ":".join(map(str, (0, *range(2, len(dims)), 1)))
    assert kernel(dims, f"{{order={order}}}") == kernel((prod(dims),), "")
