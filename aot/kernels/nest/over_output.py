"""Loops over all elements of a result, with lanes along its last axis.

Owns how a grid is cut for that, on CPUs and GPUs. What an element is made of is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.assumed_extents import GRAIN_WORK
from aot.ir.dims import Dim
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import For, If, LoopKind, Stmt
from aot.kernels.nest.nest import GRAIN, Axis, Nest, Values
from aot.kernels.nest.rows import row_of_vectors

ElementBody = Callable[[Values, int, Expr | None], Sequence[Stmt]]
"""Statements of one element: index values, lanes of the loop it stands in, the lane's variable."""


def lanes_over_output(
    nest: Nest,
    axes: Sequence[Axis],
    body: ElementBody,
    work: Dim = 1,
    vectors: int = 1,
    *,
    may_mask: bool = False,
) -> tuple[Stmt, ...]:
    """Loops over all `axes` of an output, with lanes along the last.

    `body(values, width, lane_var)` gives the statements of one element; with a width above 1 on a
    CPU they stand inside a VECTOR loop. On a GPU one invocation does one element.

    Args:
        work: what an element is as work: the terms of its reductions.
        vectors: how many of them a CPU does side by side: neighbours of a term lie in one line of a
            cache, and sums of their own hide an addition's latency.
        may_mask: whether lanes of a CPU's vector may be off for what is left of a row.
    """
    if nest.is_gpu:
        return _one_invocation_each(nest, axes, body)
    if not axes:
        return tuple(body({}, 1, None))
    inner, outer = axes[-1], axes[:-1]
    width = nest.lanes * vectors
    grain = GRAIN if work == 1 else _pieces_of(work, width)
    if isinstance(inner.extent, int):
        while width > 1 and width > inner.extent:
            width //= 2
    if width == 1:
        return nest.grid(axes, lambda values: body(values, 1, None), work)

    def row(values: Values, start: Expr, count: Dim) -> list[Stmt]:
        return row_of_vectors(
            *(nest, start, count, width),
            lambda at, *lane: body({**values, inner.var: at}, *lane),
            may_mask=may_mask,
            is_long=work != 1,
        )

    if _is_one_piece(inner.extent, outer, grain):
        whole = dims.multiply(inner.extent, work)
        return nest.grid(outer, lambda values: row(values, expr.index(0), inner.extent), whole)
    piece = nest.builder.var("piece")
    start = expr.mul(piece, expr.index(grain))
    end = expr.index(inner.extent)
    is_full = expr.binary("le", expr.add(start, expr.index(grain)), end)

    def rows(values: Values) -> list[Stmt]:
        whole = row(values, start, grain)
        rest = dims.modulo(inner.extent, grain)
        if rest == 0:
            return whole
        return [If(is_full, tuple(whole), tuple(row(values, start, rest)))]

    inside = nest.grid(outer, rows, dims.multiply(grain, work), first=1)
    pieces = dims.ceil_divide(inner.extent, grain)
    return (For(piece, pieces, LoopKind.WORKGROUP, inside, axis=0),)


def _pieces_of(work: Dim, width: int) -> int:
    """The number of elements per workgroup, in whole vectors of `width`, at `work` operations an
    element."""
    each = dims.estimate(work, GRAIN_WORK)
    return width * max(1, GRAIN // (width * max(each or 1, 1)))


def _is_one_piece(extent: Dim, outer: Sequence[Axis], grain: int) -> bool:
    """Whether a workgroup takes the innermost dim as a whole: it is short, or other dims give
    enough workgroups."""
    return extent <= 2 * grain if isinstance(extent, int) else bool(outer)


def _one_invocation_each(nest: Nest, axes: Sequence[Axis], body: ElementBody) -> tuple[Stmt, ...]:
    total = dims.product([a.extent for a in axes])
    group = nest.builder.var("g")
    size = expr.index(nest.lanes)

    def one(lane: Expr) -> list[Stmt]:
        inside: list[Stmt] = []
        whole = nest.let(expr.add(expr.mul(group, size), lane), inside, "n")
        values: Values = {}
        if axes:
            nest.decode(whole, axes, values, inside)
        inside += body(values, 1, lane)
        if dims.modulo(total, nest.lanes) == 0:
            return inside
        first = inside[0]
        return [first, If(expr.binary("lt", whole, expr.index(total)), tuple(inside[1:]))]

    return (
        For(
            group,
            dims.ceil_divide(total, nest.lanes),
            LoopKind.WORKGROUP,
            (nest.spread(nest.lanes, one),),
            axis=0,
        ),
    )
