"""Contractions with too few columns to fill a vector: lanes run along the sum.

A tile has some rows and all columns, and a vector of partial sums for each of their products; these
are added up at the end. CPU only. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.expr import Expr, Fma, Load, Var
from aot.kernels.ir.nodes import Scratch, Stmt, Store
from aot.kernels.match.products import ContractionAxes, loaded, sum_of_products
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.borders import masked
from aot.kernels.nest.nest import Axis, Output, Values, collapse
from aot.kernels.nest.rows import masked_lanes, row_of_vectors
from aot.kernels.nest.tiles import Shape, over_rows
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    where_whole,
)
from aot.kernels.rules.products.products import SummedTile, Terms
from aot.kernels.rules.products.sum_order import by_weight_step
from aot.kernels.stage.tails import where, within

_Body = Callable[[Expr], Sequence[Stmt]]


def schedule_inner(work: Work) -> Build | None:
    """Tiles of `plan.rows` rows by all columns; None where the sum's axis is not contiguous in both
    factors."""
    found = work.product or _one_column(work.output)
    if found is None:
        return None
    nest, plan = work.nest, work.plan
    output, roles = found
    columns = roles.columns.extent
    if roles.rows is None:  # there is one
        roles = replace(roles, rows=Axis(Var("row"), 1))
    if not isinstance(columns, int) or columns > plan.columns:
        return None
    axes = by_weight_step(roles.right, roles.summed)
    if not axes or not _is_contiguous(roles, axes[-1]):
        return None
    rows = roles.rows
    assert rows is not None
    count = min(plan.rows, rows.extent) if isinstance(rows.extent, int) else plan.rows
    shape = Shape(count, columns, nest.lanes, True, True)
    product = Product.of(nest, (output, roles), nest.lanes)
    tiles = Axis(nest.builder.var("mt"), dims.ceil_divide(rows.extent, count))

    def body(values: Values) -> list[Stmt]:
        def build(shape: Shape, first: Expr) -> list[Stmt]:
            return _Placed(
                Tile(product, shape, in_parts=True), Place(values, first, expr.index(0))
            ).build()

        return over_rows(
            nest, rows.extent, expr.linear((values[tiles.var], count)), shape, 0, build
        )

    cost = dims.multiply(roles.terms, -(-count * columns // nest.lanes) * 4)
    return lambda: nest.grid([*roles.outer, tiles], body, cost)


def _one_column(output: Output) -> tuple[Output, ContractionAxes] | None:
    """(output with merged axes, contraction axes) of a product with a single column that has no
    axis; None for other outputs."""
    axes, gone = collapse(output.axes, output.address, output.values)
    output = output.rewritten(lambda e: expr.substitute(e, gone), axes)
    found = sum_of_products(output)
    if found is None:
        return None
    reduce, left, right = found
    weight = loaded(right)
    own = [axis for axis in axes if axis.var in expr.free_vars(left)]
    if weight is None or not own or any(a.var in expr.free_vars(right) for a in axes):
        return None
    outer = tuple(axis for axis in axes if axis is not own[-1])
    column = Axis(Var("column"), 1)
    return output, ContractionAxes(reduce, left, right, weight, own[-1], column, outer)


def _is_contiguous(roles: ContractionAxes, inner: Axis) -> bool:
    """Whether both factors are contiguous along an axis, with at most one common guard."""
    sides = expr.loads(roles.left), expr.loads(roles.right)
    for loads in sides:
        steps = [expr.coefficient(load.indices[0], inner.var) for load in loads]
        if 1 not in steps or any(step not in (0, 1) for step in steps):
            return False
    guards = [load.guard for loads in sides for load in loads if load.guard is not None]
    return not any(inner.var in expr.free_vars(guard) for guard in guards)


def _only(e: Expr, there: Expr | None) -> Expr:
    """`e` where the condition `there` holds, else 0; nothing is loaded elsewhere."""
    if there is None:
        return e
    found = masked(e, there)
    return found if isinstance(e, Load) else expr.select(there, found, expr.const(0, e.dtype))


class _Placed(SummedTile):
    """A placed tile with lanes along the sum; each of its chunks is a column."""

    def _steps(self, terms: Terms) -> list[Stmt]:
        inner, indices, left, start = terms
        assert inner is not None
        nest, lanes = self.nest, self.nest.lanes
        whole = dims.floor_divide(inner.extent, lanes)

        def product(r: Expr, k: Expr, lane: Expr, there: Expr | None = None) -> list[Stmt]:
            """Statements that multiply a row by all columns, for the terms whose condition `there`
            holds."""
            here: Values = {**indices, inner.var: expr.add(start, k)}
            stmts: list[Stmt] = []
            row = expr.substitute(left, {**here, **self._at(r)})
            a = nest.let(_only(row, there), stmts, "a")
            for number in range(self.shape.chunks):
                u = expr.index(number)
                column = {**here, **self.values, self.roles.columns.var: u}
                b = _only(expr.substitute(self.roles.right, column), there)
                total = Load(self.acc, (r, u, lane), self.acc.dtype)
                stmts.append(Store(self.acc, (r, u, lane), Fma(a, b, total, total.dtype)))
            return stmts

        def vectors(n: Expr) -> list[Stmt]:
            begin = expr.mul(n, expr.index(lanes))
            return nest.unrolled(
                self.shape.rows,
                lambda r: [
                    nest.spread(lanes, lambda lane: product(r, expr.add(begin, lane), lane))
                ],
                "r",
            )

        done = expr.index(dims.multiply(whole, lanes))

        left_over = dims.modulo(inner.extent, lanes)

        def some(r: Expr) -> list[Stmt]:
            """Statements for tail terms that fill no vector, added in the first lanes of the
            sums."""
            if masked_lanes(nest, left_over):

                def lanes_on(t: Expr) -> list[Stmt]:
                    there = expr.binary("lt", t, expr.index(left_over))
                    return product(r, expr.add(done, t), t, there)

                return [nest.spread(lanes, lanes_on)]
            return row_of_vectors(
                *(nest, expr.index(0), left_over, lanes),
                lambda t, width, lane: product(r, expr.add(done, t), lane or expr.index(0)),
            )

        rest = nest.unrolled(self.shape.rows, some, "r")
        return nest.serial(whole, vectors, "k") + rest

    def _finish(self) -> list[Stmt]:
        """Statements that add up the lanes of each sum, for all rows of a column together."""
        nest, acc, shape = self.nest, self.acc, self.shape
        partial = self.scratch.get("partial", acc.dtype, acc.shape)
        stmts = self.copied(partial, acc)
        wide = acc.dtype.accumulator
        zero = expr.const(0, wide)
        for number in range(shape.chunks):
            u = expr.index(number)
            total = nest.builder.scratch("total", wide, (shape.rows,))
            stmts.append(self._rows(lambda r, total=total: [Store(total, (r,), zero)]))  # type: ignore[misc]

            def add(lane: Expr, u: Expr = u, total: Scratch = total) -> list[Stmt]:
                def one(r: Expr) -> list[Stmt]:
                    now = Load(total, (r,), total.dtype)
                    more = expr.cast(Load(partial, (r, u, lane), partial.dtype), wide)
                    return [Store(total, (r,), expr.add(now, more))]

                return [self._rows(one)]

            stmts += nest.unrolled(nest.lanes, add, "l")
            stmts += self._stored(u, total)
        return stmts

    def _rows(self, body: _Body) -> Stmt:
        return self.nest.spread(self.shape.rows, body)

    def _stored(self, u: Expr, total: Scratch) -> list[Stmt]:
        """Statements that finish and store the results of column `u`, for the rows that exist."""
        rows, shape = self.roles.rows, self.shape
        assert rows is not None

        def store(r: Expr) -> list[Stmt]:
            place = {**self._at(r, is_clamped=False), self.roles.columns.var: u}
            reduce = self.roles.reduce
            sums = expr.cast(Load(total, (r,), total.dtype), reduce.dtype)
            done: dict[Expr, Expr] = {reduce: sums}
            return self.output.stores(self.nest, place, done.get)

        whole = [self._rows(store)]
        if shape.has_all_rows:
            return whole
        some: list[Stmt] = []
        for number in range(shape.rows - 1):
            r = expr.index(number)
            some += where(within(expr.add(self.first, r), rows.extent, 0), store(r))
        return where_whole(expr.add(self.first, expr.index(shape.rows)), rows.extent, whole, some)
