"""Kernels of scatters: each lane copies its line of data, then applies the updates to it in order.

A line is what an update can reach: along the axis for scatter_elements, all places that rows of
positions name for scatter_nd. No two lanes write one element, so the order of updates is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr
from aot.ir.types import DType
from aot.kernels.ir.nodes import Stmt
from aot.kernels.schedules.lines import Lines, let, when
from aot.ops.contraction import inside

_COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}


def schedule_scatter(lines: Lines) -> tuple[Stmt, ...]:
    """Operands data, positions, updates."""
    if "axis" in lines.op.attrs:
        return _along_axis(lines)
    return _by_rows(lines)


def _position(lines: Lines, at: Sequence[Expr], extent: Dim, into: list[Stmt]) -> Expr:
    """A position, counted from the front; one outside names no element."""
    found = let(lines, expr.cast(lines.load(1, at), DType.INDEX), into, "p")
    wrapped = expr.add(found, expr.index(extent))
    return let(
        lines, expr.select(expr.binary("lt", found, expr.index(0)), wrapped, found), into, "p"
    )


def _update(lines: Lines, where: Sequence[Expr], update: Expr) -> Stmt:
    reduction = str(lines.op.attrs["reduction"])
    if reduction != "none":
        update = expr.binary(_COMBINE[reduction], lines.read_back(0, where), update)
    return lines.store(0, where, update)


def _along_axis(lines: Lines) -> tuple[Stmt, ...]:
    axis = lines.op.attrs["axis"]
    assert isinstance(axis, int)
    data, chosen = lines.operand(0).type, lines.operand(1).type
    others = [d for d in range(data.rank) if d != axis]

    def line(at: Sequence[Expr], width: int, lane: Expr | None) -> list[Stmt]:
        def place(i: Expr) -> list[Expr]:
            return [*at[:axis], i, *at[axis:]]

        def apply(k: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            position = _position(lines, place(k), data.dims[axis], stmts)
            return stmts + when(
                inside(position, data.dims[axis]),
                [_update(lines, place(position), lines.load(2, place(k)))],
            )

        # lines beyond the positions' dims are copied only
        reached = [
            expr.binary("lt", i, expr.index(chosen.dims[d]))
            for i, d in zip(at, others, strict=True)
            if chosen.dims[d] != data.dims[d]
        ]
        copy = lines.nest.serial(
            data.dims[axis], lambda i: [lines.store(0, place(i), lines.load(0, place(i)))], "i"
        )
        return copy + when(reached, lines.nest.serial(chosen.dims[axis], apply, "k"))

    return lines.each([data.dims[d] for d in others], line)


def _by_rows(lines: Lines) -> tuple[Stmt, ...]:
    data, chosen = lines.operand(0).type, lines.operand(1).type
    depth = lines.op.attrs["depth"]
    assert isinstance(depth, int)

    def line(at: Sequence[Expr], width: int, lane: Expr | None) -> list[Stmt]:
        def apply(k: list[Expr]) -> list[Stmt]:
            stmts: list[Stmt] = []
            conditions: list[Expr] = []
            where: list[Expr] = []
            for number, extent in enumerate(data.dims[:depth]):
                where.append(_position(lines, [*k, expr.index(number)], extent, stmts))
                conditions += inside(where[-1], extent)
            return stmts + when(
                conditions, [_update(lines, [*where, *at], lines.load(2, [*k, *at]))]
            )

        copy = lines.serial(
            data.dims[:depth], lambda i: [lines.store(0, [*i, *at], lines.load(0, [*i, *at]))], "i"
        )
        return copy + lines.serial(chosen.dims[:-1], apply)

    return lines.each(data.dims[depth:], line)
