"""Products by a transposed matrix: columns are strided, and each one's terms are contiguous.

A workgroup turns the columns of a tile in registers, into scratch, and then has all rows. CPU only.
"""

from __future__ import annotations

from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.expr import Binary, Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Values
from aot.kernels.rules.products.contraction import ContractionTiles
from aot.kernels.rules.products.product import Place, Product, where_whole

# rows below which turning the columns takes as long as the products
LEAST_ROWS = 8
# terms of the smallest square
LEAST_TERMS = 4


def schedule_turned(work: Work) -> Build | None:
    """The loops of a product by a transposed matrix; None for any other."""
    nest, plan, panel = work.nest, work.plan, work.panel
    if nest.is_gpu or nest.lanes < 4 or work.blocks is not None or work.product is None:
        return None
    _, roles = work.product
    axes = roles.summed
    weight, columns = roles.weight, roles.columns
    if len(axes) != 1 or roles.rows is None or roles.right is not weight:
        return None
    (terms,) = axes
    extents = [terms.extent, roles.rows.extent, columns.extent]
    if weight.dtype is not DType.F32 or not all(isinstance(n, int) for n in extents):
        return None
    apart = expr.coefficient(weight.indices[0], columns.var)
    along = expr.coefficient(weight.indices[0], terms.var)
    if along != 1 or not isinstance(apart, int) or apart <= 1 or terms.count < LEAST_TERMS:
        return None
    if columns.count < nest.lanes or not isinstance(roles.rows.extent, int):
        return None
    if plan.columns % nest.lanes:  # as a person may have written it: they are turned in vectors
        return None
    if roles.rows.extent < LEAST_ROWS:
        return None
    held = nest.target.scratch_bytes // (terms.count * weight.dtype.bytes)
    if held < panel:
        return None
    if plan.columns > held:
        plan = replace(plan, columns=held // panel * panel)
    return TurnedTiles(Product.of(nest, work.product, panel), plan, terms).build


class TurnedTiles(ContractionTiles):
    """Tiles of products with transposed columns in scratch, in the layout [term][column]."""

    def __init__(self, product: Product, plan: StageSchedule, terms: Axis) -> None:
        super().__init__(product, plan, 128)
        roles = self.given = self.roles
        self.terms = terms
        self.begin = Var("begin")
        self.turned = self.nest.builder.scratch(
            "turned", roles.weight.dtype, (terms.count, self.columns), Space.WORKGROUP
        )
        place = terms.var, expr.sub(roles.columns.var, self.begin)
        weight = Load(self.turned, place, roles.weight.dtype)
        body = roles.reduce.body
        assert isinstance(body, Binary)
        reduce = replace(roles.reduce, body=replace(body, b=weight))
        known: dict[Expr, Expr] = {roles.reduce: reduce}
        self.roles = replace(roles, reduce=reduce, right=weight, weight=weight)
        output = product.output.rewritten(lambda e: expr.transform(e, known.get))
        self.product = product._replace(output=output, roles=self.roles)

    def build(self) -> tuple[Stmt, ...]:
        nest, given = self.nest, self.given
        assert given.rows is not None
        in_weight = expr.free_vars(given.weight)
        outside = [a for a in given.outer if a.var in in_weight]
        inside = [a for a in given.outer if a.var not in in_weight]
        tiles = Axis(nest.builder.var("nt"), dims.ceil_divide(given.columns.count, self.columns))
        rows = Axis(nest.builder.var("mt"), dims.ceil_divide(given.rows.extent, self.rows))

        def body(values: Values) -> list[Stmt]:
            number = values[tiles.var]
            stmts: list[Stmt] = []
            begin = expr.linear((number, self.columns))
            if given.columns.count >= self.columns:  # where the last tile moves back to
                last = dims.add(given.columns.count, -self.columns)
                begin = expr.binary("min", begin, expr.index(last))
            begin = nest.let(begin, stmts, "begin")
            here = {**values, self.begin: begin}

            def tile(at: Values) -> list[Stmt]:
                return self._columns(
                    Place({**here, **at}, expr.linear((at[rows.var], self.rows)), number)
                )

            return stmts + self._turn(here, begin) + nest.inside([*inside, rows], {}, tile)

        return nest.grid([*outside, tiles], body, 1 << 30)

    def _turn(self, values: Values, begin: Expr) -> list[Stmt]:
        """Statements that stage a tile's columns in scratch: as transposed squares where all
        columns exist, else one by one, with the last column repeated past the end.
        """
        nest, lanes, terms = self.nest, self.nest.lanes, self.terms
        weight, extent = self.given.weight, self.given.columns.count
        side = next(n for n in (16, 8, LEAST_TERMS) if n <= min(lanes, terms.count))
        ones = self.given.origins

        def store(k: Expr, within: Expr, column: Expr) -> Stmt:
            place = {**values, **ones, terms.var: k, self.given.columns.var: column}
            return Store(self.turned, (k, within), expr.substitute(weight, place))

        def vector(u: Expr) -> list[Stmt]:
            first = expr.linear((u, lanes))

            def term(k: Expr) -> list[Stmt]:
                def one(lane: Expr) -> list[Stmt]:
                    within = expr.add(first, lane)
                    return [store(k, within, expr.add(begin, within))]

                return [nest.spread(lanes, one)]

            def square(c: Expr) -> list[Stmt]:
                return nest.unrolled(side, lambda d: term(expr.linear((c, side), d)), "d")

            def alone(lane: Expr) -> list[Stmt]:
                within = expr.add(first, lane)
                column = expr.binary("min", expr.add(begin, within), expr.index(extent - 1))
                return nest.serial(terms.count, lambda k: [store(k, within, column)], "k")

            rest = dims.modulo(terms.count, side)
            done = expr.index(dims.add(terms.count, dims.multiply(rest, -1)))
            whole = nest.serial(dims.floor_divide(terms.count, side), square, "c")
            whole += nest.serial(rest, lambda n: term(expr.add(n, done)), "k")
            if extent >= self.columns:
                return whole
            end = expr.add(begin, expr.add(first, expr.index(lanes)))
            return where_whole(end, extent, whole, nest.serial(lanes, alone, "l"))

        return nest.serial(self.columns // lanes, vector, "u")
