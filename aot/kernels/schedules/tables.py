"""Reductions of few terms that tables name, as resizing along a line does: what the tables say of a
vector of results is found once for many rows.

Lanes gather terms along the result's innermost axis, and where they are does not depend on the row.
Owns these loops, for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Const, Expr, Reduce, Var
from aot.kernels.ir.nodes import Buffer, If, Let, Stmt
from aot.kernels.lower.nest import Axis, Nest, Output, collapse
from aot.kernels.lower.rows import row_of_vectors
from aot.kernels.schedules.windows import combined

# rows of a workgroup, and terms that are written out
MOST_ROWS, MOST_TERMS = 64, 8


def schedule_tables(
    nest: Nest, output: Output, reduces: Sequence[Reduce]
) -> tuple[Stmt, ...] | None:
    """The loops of such a reduction; None where `output` is none."""
    if nest.is_gpu or nest.lanes == 1 or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    terms = [n for _, n in reduce.axes]
    if not all(isinstance(n, int) for n in terms) or not 1 <= dims.product(terms) <= MOST_TERMS:
        return None
    axes, gone = collapse(output.axes, output.address, output.values)
    if len(axes) < 2 or not _is_gathered(reduce, axes[-1]):
        return None
    return _Tables(nest, output, reduce, axes, gone).build()


def _is_gathered(reduce: Reduce, inner: Axis) -> bool:
    """Whether neighbours along `inner` read what another operand says."""
    return any(
        isinstance(load.source, Buffer)
        and load.guard is None
        and expr.coefficient(load.indices[0], inner.var) is None
        and any(expr.loads(index) for index in load.indices)
        for load in expr.loads(reduce.body)
    )


class _Tables:
    def __init__(
        self,
        nest: Nest,
        output: Output,
        reduce: Reduce,
        axes: Sequence[Axis],
        gone: dict[Var, Expr],
    ) -> None:
        self.nest, self.output, self.reduce, self.gone = nest, output, reduce, gone
        *outer, self.rows, self.inner = axes
        self.outer: Sequence[Axis] = outer

    def build(self) -> tuple[Stmt, ...]:
        nest, extent = self.nest, self.rows.extent
        size = MOST_ROWS
        if isinstance(extent, int):
            size = max(1, -(-extent // max(1, -(-extent // MOST_ROWS))))
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(extent, size))
        rest = dims.modulo(extent, size)

        def block(values: dict[Var, Expr]) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(size))
            whole = self._columns(values, start, size)
            if rest == 0:
                return whole
            end = expr.add(start, expr.index(size))
            is_whole = expr.binary("le", end, expr.index(extent))
            return [If(is_whole, tuple(whole), tuple(self._columns(values, start, rest)))]

        work = dims.multiply(self.inner.extent, 2 * size)
        return nest.grid([*self.outer, blocks], block, work)

    def _columns(self, values: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt]:
        """The elements of `count` rows from `start` on."""
        nest, rows, inner = self.nest, self.rows, self.inner

        def vector(at: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            stmts: list[Stmt] = []
            place = {**self.gone, **values, inner.var: at}
            terms = self._terms(place, stmts)

            def row(n: Expr) -> list[Stmt]:
                number = {rows.var: expr.add(start, n)}
                total: Expr | None = None
                for term in terms:
                    here = expr.substitute(term, number)
                    total = here if total is None else combined(self.reduce.op, total, here)
                inside: list[Stmt] = []
                assert total is not None
                made = nest.let(total, inside, "sum")
                stores = self.output.stores(
                    nest, {**place, **number}, lambda e: made if e is self.reduce else None
                )
                return [*inside, *stores]

            return stmts + nest.serial(count, row, "r")

        return row_of_vectors(nest, expr.index(0), inner.extent, nest.lanes, vector)

    def _terms(self, place: dict[Var, Expr], into: list[Stmt]) -> list[Expr]:
        """The terms of an element; what is the same in all rows has names."""
        variables = [v for v, _ in self.reduce.axes]
        extents = [range(n) for _, n in self.reduce.axes if isinstance(n, int)]
        named: dict[Expr, Expr] = {}

        def name(e: Expr) -> Expr | None:
            if isinstance(e, (Var, Const)) or self.rows.var in expr.free_vars(e):
                return None
            if not expr.loads(e):
                return None
            if e not in named:
                var = self.nest.builder.var("t", e.dtype)
                into.append(Let(var, e))
                named[e] = var
            return named[e]

        terms = []
        for tap in product(*extents):
            at = {**place, **{v: expr.index(k) for v, k in zip(variables, tap, strict=True)}}
            terms.append(expr.transform(expr.substitute(self.reduce.body, at), name))
        return terms
