"""Combines two versions of a loop nest into one kernel that chooses by the extents at run time.

A GPU's lane that goes through all of a sum is fast and simple, but drivers limit how long it may be
at it; a workgroup whose lanes share the sum is slower, and reaches further. Where only the device
knows how long sums are, a kernel has both. So it is with tiles of many rows, and with those of one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from aot.ir import dims
from aot.ir.dims import Dim
from aot.kernels.ir.nodes import For, If, KernelBuilder, Let, LoopKind, Stmt
from aot.kernels.nest.steps import body_iterations, chosen, is_first


def two_ways(
    builder: KernelBuilder,
    usual: Sequence[Stmt],
    shared: Sequence[Stmt],
    most: int,
    unrolled: Container[For] = (),
) -> tuple[Stmt, ...] | None:
    """A kernel body that runs the nest `usual` if its lanes run at most `most` iterations, by a
    check at run time, else the nest `shared`.

    None where that does not help, as the lanes of `shared` go through as many.

    Args:
        unrolled: loops of `usual` that are written out, and no loops in the shader.
    """
    if body_iterations(usual) == body_iterations(shared):
        return None
    iterations = body_iterations(usual, unrolled)
    return up_to(builder, iterations, most, usual, shared)


def up_to(
    builder: KernelBuilder, extent: Dim, most: int, first: Sequence[Stmt], second: Sequence[Stmt]
) -> tuple[Stmt, ...]:
    """A kernel body that runs the nest `first` where an extent is at most `most`, else `second`."""
    choice = dims.minimum(1, dims.floor_divide(extent, most + 1))
    (grid, then), (other_grid, otherwise) = _grid(first), _grid(second)
    axes = sorted({*grid, *other_grid})
    groups = {axis: builder.var("g") for axis in axes}
    branches = [
        (*(Let(loop.var, groups[axis]) for axis, loop in loops.items()), *body)
        for loops, body in ((grid, then), (other_grid, otherwise))
    ]
    stmts: tuple[Stmt, ...] = (If(is_first(choice), *branches),)
    for axis in reversed(axes):
        counts = [n[axis].extent if axis in n else 1 for n in (grid, other_grid)]
        extent = chosen(choice, *counts)
        stmts = (For(groups[axis], extent, LoopKind.WORKGROUP, stmts, axis=axis),)
    return stmts


def _grid(body: Sequence[Stmt]) -> tuple[dict[int, For], Sequence[Stmt]]:
    """(workgroup loops by axis, body inside them) of a loop nest."""
    found: dict[int, For] = {}
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.WORKGROUP:
        found[body[0].axis] = body[0]
        body = body[0].body
    return found, body
