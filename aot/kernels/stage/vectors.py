"""Builds nested loops: serial ones, and unrolled vectors of a register tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Stmt
from aot.kernels.nest.nest import Nest


def unrolled_vectors(
    nest: Nest,
    counts: Sequence[int],
    width: int,
    body: Callable[..., Sequence[Stmt]],
    name: str = "u",
) -> list[Stmt]:
    """`body(*indices, lane)` for each vector of `width` lanes, unrolled. `counts` are the extents
    of the indices, outermost first, and `name` names the outermost loop's variable."""
    if not counts:
        return [nest.spread(width, body)]

    def inside(index: Expr) -> list[Stmt]:
        return unrolled_vectors(nest, counts[1:], width, lambda *rest: body(index, *rest))

    return nest.unrolled(counts[0], inside, name)


def serial_loops(
    nest: Nest, loops: Sequence[tuple[str, int]], body: Callable[..., Sequence[Stmt]]
) -> list[Stmt]:
    """Serial loops with the given names and extents, outermost first, around `body(*indices)`."""
    if not loops:
        return list(body())
    (name, extent), *inner = loops

    def inside(index: Expr) -> list[Stmt]:
        return serial_loops(nest, inner, lambda *rest: body(index, *rest))

    return nest.serial(extent, inside, name)
