"""Reductions of few terms over rows that a table selects, as in resizing along rows. The table is
read once per result row, for rows of several planes.

Lanes run along the result's innermost axis, as neighbours there are neighbours of the terms. Owns
these loops, for CPUs; tables.py has those of terms that tables name along the innermost axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from aot.ir import dims, expr
from aot.ir.expr import Const, Expr, Reduce, Var
from aot.kernels.ir.nodes import Buffer, Let, Stmt
from aot.kernels.match.work import Build, Loops, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values, collapse, combined
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.reductions.tables import written_out

# planes that share what tables say
MOST_PLANES = 16


def schedule_named_rows(work: Work) -> Build | None:
    """The loops of a reduction of few terms over rows that a table selects; None for any other
    output.
    """
    nest, output = work.nest, work.reduced.output
    reduce = None if work.reduced.free else written_out(nest, output, work.reduced.reduces, 2)
    if reduce is None:
        return None
    axes, gone = collapse(output.axes, output.address, output.values)
    inner = axes[-1].var
    if len(axes) < 2 or not _are_rows(reduce, inner):
        return None
    return partial(_rows, nest, output, reduce, axes, gone)


def _rows(nest: Nest, output: Output, reduce: Reduce, axes: Sequence[Axis], gone: Values) -> Loops:
    inner = axes[-1].var
    tables = {load for load in expr.loads(reduce.body) if inner not in expr.free_vars(load)}
    named = {var for load in tables for var in expr.free_vars(load)}
    # the innermost of the axes on which no table depends, some of whose indices share them
    planes = next((axis for axis in reversed(axes[:-1]) if axis.var not in named), None)
    several = 1
    if planes is not None and isinstance(planes.extent, int):
        several = max(n for n in range(1, MOST_PLANES + 1) if planes.extent % n == 0)
    blocks = [
        Axis(axis.var, dims.floor_divide(axis.extent, several)) if axis is planes else axis
        for axis in axes[:-1]
    ]

    def rows(values: dict[Var, Expr]) -> list[Stmt]:
        stmts: list[Stmt] = []
        open_vars = {inner} | ({planes.var} if planes is not None else set())
        place = {v: e for v, e in {**gone, **values}.items() if v not in open_vars}
        terms = _terms(nest, reduce, place, open_vars, stmts)

        def row(plane: dict[Var, Expr]) -> list[Stmt]:
            def element(at: Expr, *_: object) -> list[Stmt]:
                here = {**plane, inner: at}
                total: Expr | None = None
                for term in terms:
                    one = expr.substitute(term, here)
                    total = one if total is None else combined(reduce.op, total, one)
                made: list[Stmt] = []
                assert total is not None
                found = nest.let(total, made, "sum")
                return made + output.stores(
                    nest, {**place, **here}, lambda e: found if e is reduce else None
                )

            return row_of_vectors(
                nest, expr.index(0), axes[-1].extent, nest.lanes, element, may_mask=True
            )

        if planes is None:
            return stmts + row({})
        first = expr.mul(values[planes.var], expr.index(several))
        return stmts + nest.serial(
            several, lambda n: row({planes.var: expr.add(first, n)}), planes.var.name
        )

    return nest.grid(blocks, rows, dims.multiply(axes[-1].extent, several))


def _are_rows(reduce: Reduce, inner: Var) -> bool:
    """Whether all loads are contiguous along `inner` or constant along it, and some row is selected
    by a table."""
    has_table = False
    for load in expr.loads(reduce.body):
        if not isinstance(load.source, Buffer) or load.guard is not None:
            return False
        step = expr.coefficient(load.indices[0], inner)
        if step not in (0, 1):
            return False
        has_table = has_table or (step == 1 and any(expr.loads(i) for i in load.indices))
    return has_table


def _terms(
    nest: Nest, reduce: Reduce, place: dict[Var, Expr], open_vars: set[Var], into: list[Stmt]
) -> list[Expr]:
    """The terms of an element; values read from tables are bound to variables."""
    variables = [v for v, _ in reduce.axes]
    extents = [range(n) for _, n in reduce.axes if isinstance(n, int)]
    named: dict[Expr, Var] = {}

    def name(e: Expr) -> Expr | None:
        if isinstance(e, (Var, Const)) or open_vars & expr.free_vars(e) or not expr.loads(e):
            return None
        if e not in named:
            named[e] = nest.builder.var("t", e.dtype)
        return named[e]

    terms = []
    for tap in product(*extents):
        at = {**place, **{v: expr.index(k) for v, k in zip(variables, tap, strict=True)}}
        terms.append(expr.transform(expr.substitute(reduce.body, at), name))
    into += [Let(var, e) for e, var in named.items()]
    return terms
