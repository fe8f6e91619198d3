"""Reductions along columns: adds whole contiguous rows, one after another, to a row of sums.

A vector of results that went through its terms alone would touch another page for each of them;
rows are read as they lie in memory. Owns these loops, for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import Buffer, If, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.lane_reductions import collapsed_axes
from aot.kernels.nest.nest import Axis, Nest, Output, collapse, combined, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors

# sums of a workgroup, which stay in the nearest cache beside the rows that are added to them
MOST_COLUMNS = 512
# rows that are added at a time, so that sums are loaded and stored less often
ROWS = 4


def schedule_columns(work: Work) -> Build | None:
    """The loops of a column reduction; None for other reductions."""
    nest, found = work.nest, work.reduced
    if found.free or not _are_columns(nest, found.output, found.reduces):
        return None
    return _Columns(nest, found.output, found.reduces[0]).build


def _are_columns(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> bool:
    """Whether `output` is a single reduction along strided columns that reads each element once,
    with enough contiguous results to fill several vectors."""
    if nest.is_gpu or nest.lanes == 1 or len(reduces) != 1 or not output.axes:
        return False
    (reduce,) = reduces
    axes, _ = collapse(output.axes, output.address, output.values)
    inner = axes[-1]
    if isinstance(inner.extent, int) and inner.extent <= SUMS * nest.lanes:
        return False
    terms = dims.product([n for _, n in reduce.axes])
    if isinstance(terms, int) and terms < 2 * ROWS:
        return False
    loads = list(expr.loads(reduce.body))
    if len(loads) != 1 or loads[0].guard is not None or not isinstance(loads[0].source, Buffer):
        return False
    (load,) = loads
    read = dims.product([terms, *(axis.extent for axis in output.axes)])
    is_once = dims.product(load.source.shape) == read
    return is_once and expr.coefficient(load.indices[0], inner.var) == 1


class _Columns:
    def __init__(self, nest: Nest, output: Output, reduce: Reduce) -> None:
        self.nest, self.output, self.reduce = nest, output, reduce
        self.axes, self.gone = collapse(output.axes, output.address, output.values)
        self.terms, gone = collapsed_axes([Axis(v, n) for v, n in reduce.axes], reduce.body)
        self.gone |= gone
        self.sums: Scratch = nest.builder.scratch(
            "sums", reduce.dtype, (MOST_COLUMNS,), Space.WORKGROUP
        )

    def build(self) -> tuple[Stmt, ...]:
        nest, inner = self.nest, self.axes[-1]
        size = _piece(inner.extent, nest.lanes)
        pieces = Axis(nest.builder.var("piece"), dims.ceil_divide(inner.extent, size))
        rest = dims.modulo(inner.extent, size)

        def piece(values: dict[Var, Expr]) -> list[Stmt]:
            start = expr.mul(values[pieces.var], expr.index(size))
            if rest == 0:
                return self._columns(values, start, size)
            if pieces.extent == 1:
                return self._columns(values, expr.index(0), inner.extent)
            end = expr.add(start, expr.index(size))
            is_whole = expr.binary("le", end, expr.index(inner.extent))
            whole = self._columns(values, start, size)
            return [If(is_whole, tuple(whole), tuple(self._columns(values, start, rest)))]

        work = dims.product([size, *(axis.extent for axis in self.terms)])
        return nest.grid([*self.axes[:-1], pieces], piece, work)

    def _columns(self, values: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt]:
        """Statements that compute `count` results from `start`."""
        nest, sums, reduce, last = self.nest, self.sums, self.reduce, self.terms[-1]
        inner = self.axes[-1].var

        def each(value: Expr | None, rows: Sequence[dict[Var, Expr]] = ()) -> list[Stmt]:
            """Statements that update a row of sums: sets them to `value` or keeps them, then adds
            the terms of `rows`."""

            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                total = Load(sums, (x,), sums.dtype) if value is None else value
                for row in rows:
                    place = {**self.gone, **values, **row, inner: expr.add(start, x)}
                    total = combined(reduce.op, total, expr.substitute(reduce.body, place))
                return [Store(sums, (x,), total)]

            return row_of_vectors(nest, expr.index(0), count, nest.lanes, element)

        def lines(outer: dict[Var, Expr]) -> list[Stmt]:
            full = dims.floor_divide(last.extent, ROWS)
            done = expr.index(dims.multiply(full, ROWS))

            def several(o: Expr) -> list[Stmt]:
                first = expr.mul(o, expr.index(ROWS))
                return each(
                    None,
                    [{**outer, last.var: expr.add(first, expr.index(r))} for r in range(ROWS)],
                )

            left = dims.modulo(last.extent, ROWS)
            return nest.serial(full, several, "o") + nest.serial(
                left, lambda t: each(None, [{**outer, last.var: expr.add(done, t)}]), "t"
            )

        def finish(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            place = {**self.gone, **values, inner: expr.add(start, x)}
            total = Load(sums, (x,), sums.dtype)
            return self.output.stores(nest, place, lambda e: total if e is reduce else None)

        return (
            each(identity(reduce.op, reduce.dtype))
            + nest.inside(self.terms[:-1], {}, lines)
            + row_of_vectors(nest, expr.index(0), count, nest.lanes, finish)
        )


def _piece(extent: Dim, lanes: int) -> int:
    """Columns per workgroup: whole vectors, balanced over workgroups."""
    if not isinstance(extent, int):
        return MOST_COLUMNS
    even = -(-extent // -(-extent // MOST_COLUMNS))
    return min(-(-even // lanes) * lanes, MOST_COLUMNS)
