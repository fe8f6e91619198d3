"""The rules about scatters by constant positions change no bit, whatever the order of updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.builder import Builder
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.passes.base import PassContext, run_passes
from aot.passes.simplify.canonicalize import CANONICALIZE
from aot.passes.simplify.dce import DCE

Array = np.ndarray[Any, Any]
REDUCTIONS = ("none", "add", "mul", "max", "min")


def scatter(name: str, data: Array, positions: Array, updates: Array, **attrs: Any) -> Module:
    b = Builder()
    x = b.input("x", f"f32{list(data.shape)}")
    u = b.input("u", f"f32{list(updates.shape)}")
    b.output("y", b.op(name, x, b.constant(positions), u, **attrs))
    return Module([b.function()])


def ops_of(function: Function) -> set[str]:
    return {op.name for op in function.block}


def check(module: Module, inputs: list[Array]) -> set[str]:
    """That the passes change no bit; gives the ops that are left."""
    (wanted,) = run(module.main, inputs)
    run_passes(module, [CANONICALIZE, DCE], PassContext())
    (found,) = run(module.main, inputs)
    np.testing.assert_array_equal(found, wanted)
    return ops_of(module.main)


def drawn(r: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Few numbers, so that updates are equal, and a NaN."""
    made = r.integers(-3, 4, shape).astype(np.float32)
    made.reshape(-1)[:1] = np.nan
    return made


def is_repeated(rows: Array, extents: tuple[int, ...]) -> bool:
    """Whether two rows that name an element name the same one."""
    wrapped = np.where(rows < 0, rows + extents, rows)
    there = wrapped[((wrapped >= 0) & (wrapped < extents)).all(1)]
    return len(np.unique(there, axis=0)) < len(there)


@pytest.mark.parametrize("seed", range(60))
def test_scatter_nd(seed: int) -> None:
    r = np.random.default_rng(seed)
    shape = tuple(int(n) for n in r.integers(1, 6, r.integers(1, 4)))
    depth = int(r.integers(1, len(shape) + 1))
    count = tuple(int(n) for n in r.integers(0, 4, r.integers(1, 3)))
    positions = r.integers(-7, 7, (*count, depth))
    updates = drawn(r, (*count, *shape[depth:]))
    reduction = REDUCTIONS[seed % 5]
    data = drawn(r, shape)
    module = scatter("scatter_nd", data, positions, updates, depth=depth, reduction=reduction)
    left = check(module, [data, updates])
    stays = reduction != "none" and is_repeated(positions.reshape(-1, depth), shape[:depth])
    assert ("scatter_nd" in left) == stays


@pytest.mark.parametrize("seed", range(60))
def test_scatter_elements(seed: int) -> None:
    r = np.random.default_rng(seed)
    shape = tuple(int(n) for n in r.integers(1, 6, r.integers(1, 4)))
    axis = int(r.integers(len(shape)))
    chosen = tuple(
        int(r.integers(0, 6)) if d == axis else int(r.integers(0, n + 1))
        for d, n in enumerate(shape)
    )
    positions = r.integers(-7, 7, chosen)
    reduction = REDUCTIONS[seed % 5]
    data, updates = drawn(r, shape), drawn(r, chosen)
    module = scatter("scatter_elements", data, positions, updates, axis=axis, reduction=reduction)
    left = check(module, [data, updates])
    assert reduction != "none" or "scatter_elements" not in left


def scatter_by_columns(
    data: Array, columns: list[Array], sizes: tuple[int, ...], updates: Array, reduction: str
) -> Module:
    """A scatter whose rows are joined of columns that are repeated, as exporters write a slice."""
    b = Builder()
    x, u = b.input("x", f"f32{list(data.shape)}"), b.input("u", f"f32{list(updates.shape)}")
    parts = []
    for number, column in enumerate(columns):
        if number % 2:  # either order of the two
            part = b.op("broadcast_to", b.constant(column[..., None]), shape=(*sizes, 1))
        else:
            part = b.op("broadcast_to", b.constant(column), shape=sizes)
            part = b.op("reshape", part, shape=(*sizes, 1))
        parts.append(part)
    rows = b.op("concat", *parts, axis=len(sizes))
    attrs = {"depth": len(sizes), "reduction": reduction}
    b.output("y", b.op("scatter_nd", x, rows, u, **attrs))
    return Module([b.function()])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
@pytest.mark.parametrize("begin", [(0, 1, 2, 0), (-4, 1, -3, -2)])
def test_a_box_of_repeated_columns(
    begin: tuple[int, ...], wrong: int | None, reduction: str
) -> None:
    """Which would be too large as a constant; what is no box stays a scatter."""
    r = np.random.default_rng(3)
    sizes = (4, 3, 2, 1)
    columns = [
        np.arange(b, b + n).reshape([-1 if d == number else 1 for d in range(4)])
        for number, (b, n) in enumerate(zip(begin, sizes, strict=True))
    ]
    if wrong is not None:
        columns[wrong].flat[-1] -= 1
    data, updates = drawn(r, (4, 5, 5, 2)), drawn(r, sizes)
    module = scatter_by_columns(data, columns, sizes, updates, reduction)
    left = check(module, [data, updates])
    assert ("scatter_nd" in left) == (wrong is not None)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_box_needs_no_positions(rank: int, reduction: str) -> None:
    """Rows that go through a box in its order, such as a slice's that a model updates."""
    r = np.random.default_rng(rank)
    shape = (4, 5, 3, 6)[:rank]
    for depth in range(1, rank + 1):
        begin = r.integers(0, 2, depth)
        ranges = [np.arange(b, n - 1) for b, n in zip(begin, shape[:depth], strict=True)]
        rows = np.stack(np.meshgrid(*ranges, indexing="ij"), -1)
        data, updates = drawn(r, shape), drawn(r, (*rows.shape[:-1], *shape[depth:]))
        attrs = {"depth": depth, "reduction": reduction}
        left = check(scatter("scatter_nd", data, rows, updates, **attrs), [data, updates])
        assert "put_slice" in left
        assert not left & {"scatter_nd", "gather", "where"}
        whole = np.stack(np.meshgrid(*map(np.arange, shape[:depth]), indexing="ij"), -1)
        left = check(scatter("scatter_nd", data, whole, data[::-1], **attrs), [data, data[::-1]])
        assert not left & {"scatter_nd", "gather", "where", "put_slice"}


def test_few_updates_of_many_elements_stay_a_scatter() -> None:
    """A number for each element would be more bytes than it saves work."""
    r = np.random.default_rng(0)
    data, updates = drawn(r, (40_000,)), drawn(r, (5,))
    positions = r.permutation(40_000)[:5, None]
    left = check(scatter("scatter_nd", data, positions, updates, depth=1), [data, updates])
    assert "scatter_nd" in left
    left = check(
        scatter("scatter_nd", data[:9000], positions % 9000, updates, depth=1),
        [
            data[:9000],
            updates,
        ],
    )
    assert "scatter_nd" not in left


def test_many_short_lines_stay_a_scatter() -> None:
    """Its kernel has a lane for each line."""
    r = np.random.default_rng(0)
    for lines, stays in ((300, True), (200, False)):
        data, updates = drawn(r, (lines, 50)), drawn(r, (lines, 20))
        positions = np.argsort(r.random((lines, 50)), 1)[:, :20]
        module = scatter("scatter_elements", data, positions, updates, axis=1)
        assert ("scatter_elements" in check(module, [data, updates])) == stays
