"""The kernel of top_k: each lane keeps the best k so far, sorted, in its line of the result.

An element that is not better than the last of them costs one comparison, which is what most do.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import dims, expr
from aot.ir.dims import DimExpr
from aot.ir.expr import Expr
from aot.ir.types import DType
from aot.kernels.ir import If, Stmt
from aot.kernels.lines import Lines, let

VALUES, POSITIONS = 0, 1


def schedule_sort(lines: Lines) -> tuple[Stmt, ...]:
    """Results values and positions, each where something reads it."""
    return _TopK(lines).build()


class _TopK:
    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.x = lines.operand(0).type
        axis, count = lines.op.attrs["axis"], lines.op.attrs["k"]
        assert isinstance(axis, int) and isinstance(count, (int, DimExpr))
        self.axis, self.count = axis, count
        self.compare = "gt" if lines.op.attrs["largest"] else "lt"

    def build(self) -> tuple[Stmt, ...]:
        return self.lines.each([n for d, n in enumerate(self.x.dims) if d != self.axis],
                               lambda at, width, lane: self.line(at))

    def place(self, at: Sequence[Expr], i: Expr) -> list[Expr]:
        return [*at[: self.axis], i, *at[self.axis :]]

    def is_better(self, a: Expr, b: Expr) -> Expr:
        return expr.binary(self.compare, a, b)

    def kept(self, at: Sequence[Expr], p: Expr, guard: Expr, other: Expr) -> Expr:
        """The value in place p of the best so far; `other` where there is none."""
        lines, where = self.lines, self.place(at, p)
        if lines.results[VALUES] is not None:
            return lines.read_back(VALUES, where, guard, other)
        dtype = lines.op.results[POSITIONS].type.dtype
        position = lines.read_back(POSITIONS, where, guard, expr.const(0, dtype))
        found = lines.load(0, self.place(at, expr.cast(position, DType.INDEX)))
        return expr.select(guard, found, other)

    def line(self, at: Sequence[Expr]) -> list[Stmt]:
        last = expr.index(dims.add(self.count, -1))
        zero = expr.index(0)

        def one(i: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            value = let(self.lines, self.lines.load(0, self.place(at, i)), stmts, "v")
            is_full = expr.binary("gt", i, last)
            worst = self.kept(at, last, is_full, value)
            is_wanted = expr.binary("or", expr.binary("le", i, last), self.is_better(value, worst))
            steps = self.lines.nest.serial(self.count, lambda j: self.step(
                at, i, expr.sub(last, j), value), "j")
            return [*stmts, If(is_wanted, tuple(steps))]

        if dims.bounds(self.count, {})[1] == 0:
            return []
        some = expr.binary("ge", last, zero)
        body = self.lines.nest.serial(self.x.dims[self.axis], one, "i")
        return body if isinstance(self.count, int) else [If(some, tuple(body))]

    def step(self, at: Sequence[Expr], i: Expr, p: Expr, value: Expr) -> list[Stmt]:
        """Place p, from the last one down: takes what is before it, the new element, or neither."""
        zero = expr.index(0)
        before = expr.sub(p, expr.index(1))
        stmts: list[Stmt] = []
        is_behind = let(self.lines, self.is_better(value, self.kept(
            at, before, expr.binary("gt", p, zero), value)), stmts, "behind")
        # a place that is not taken yet, or whose value the new one beats
        is_free = expr.binary("eq", p, i)
        beats = self.is_better(value, self.kept(at, p, expr.binary("lt", p, i), value))
        takes = expr.binary("or", is_free, beats)
        stmts.append(If(is_behind, tuple(self.move(at, p, before)), (
            If(takes, tuple(self.put(at, p, i, value))),)))
        return [If(expr.binary("le", p, i), tuple(stmts))]

    def move(self, at: Sequence[Expr], p: Expr, before: Expr) -> list[Stmt]:
        return [self.lines.store(number, self.place(at, p),
                                 self.lines.read_back(number, self.place(at, before)))
                for number in (VALUES, POSITIONS) if self.lines.results[number] is not None]

    def put(self, at: Sequence[Expr], p: Expr, i: Expr, value: Expr) -> list[Stmt]:
        dtype = self.lines.op.results[POSITIONS].type.dtype
        stored = {VALUES: value, POSITIONS: expr.cast(i, dtype)}
        return [self.lines.store(number, self.place(at, p), stored[number])
                for number in (VALUES, POSITIONS) if self.lines.results[number] is not None]
