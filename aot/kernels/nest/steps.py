"""Counts the loop iterations that one lane of a kernel runs, one after another.

Counts; what is too long is its caller's to say.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr
from aot.kernels.ir.nodes import For, If, Kernel, LoopKind, Stmt

# What lanes, or instructions without a loop, do.
_SPREAD = (LoopKind.WORKGROUP, LoopKind.LANE)


def lane_iterations(kernel: Kernel, unrolled: Container[For] = ()) -> Dim:
    """The largest number of iterations that any lane runs, as a dim over the kernel's parameters.

    A loop counts one more than its extent, for the time that its condition ends it. Both sides of
    a condition count: lanes that a driver runs together go through both where they differ. Of a
    choice by extents (`is_first`) one side does.

    Args:
        unrolled: loops that are written out, and no loops in the shader.
    """
    return body_iterations(kernel.body, unrolled)


def is_first(choice: Dim) -> Expr:
    """The condition of an If between two versions: true where the dim `choice`, 0 or 1, is 0."""
    return expr.binary("eq", expr.index(choice), expr.index(0))


def chosen(choice: Dim, first: Dim, second: Dim) -> Dim:
    """A dim that equals `first` where `choice` is 0 and `second` where it is 1."""
    return dims.add(first, dims.multiply(choice, dims.add(second, dims.multiply(first, -1))))


def _choice(condition: Expr) -> Dim | None:
    """The `choice` of a condition that `is_first` made; None for other conditions."""
    if not isinstance(condition, Binary) or condition.op != "eq":
        return None
    choice = expr.dim_of(condition.a)
    is_one = choice is not None and dims.bounds(choice, {}) == (0, 1)
    return choice if is_one and expr.dim_of(condition.b) == 0 else None


def body_iterations(body: Sequence[Stmt], unrolled: Container[For] = ()) -> Dim:
    """The number of loop iterations that one lane runs in these statements."""
    total: Dim = 0
    for stmt in body:
        if isinstance(stmt, If):
            both = [body_iterations(b, unrolled) for b in (stmt.then, stmt.otherwise)]
            choice = _choice(stmt.condition)
            made = dims.add(*both) if choice is None else chosen(choice, *both)
            total = dims.add(total, made)
        elif isinstance(stmt, For):
            inner = body_iterations(stmt.body, unrolled)
            if stmt.kind not in _SPREAD:
                inner = _repeated(stmt, inner, is_loop=stmt not in unrolled)
            total = dims.add(total, inner)
    return total


def _repeated(loop: For, inner: Dim, *, is_loop: bool) -> Dim:
    low, _ = dims.bounds(loop.extent, {})
    extent = loop.extent if low is not None and low >= 0 else dims.maximum(0, loop.extent)
    if not is_loop:
        return dims.multiply(extent, inner)
    return dims.add(dims.multiply(extent, dims.add(inner, 1)), 1)
