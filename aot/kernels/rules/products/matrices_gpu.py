"""Contractions on a GPU by matrix instructions of subgroups.

A workgroup has a tile of rows, all axes of them as one, and of columns. Block by block of the sum
its lanes bring the elements of both sides into shared memory, whatever these are computed from, and
its subgroups multiply them; meanwhile the next block's elements are on their way to registers. The
sums go through shared memory to the lanes, which have the epilogue. Owns a tile's statements;
which of the operands' elements they are is matrix_sides.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from aot.analysis.cost.gpu_matrices import MatrixExtents, MatrixTile, matrix_tile
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.schedule import QUAD
from aot.kernels.ir.nodes import (
    Barrier,
    For,
    LoopKind,
    Matrix,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Space,
    Stmt,
)
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import is_long
from aot.kernels.rules.products.matrix_sides import (
    Lanes,
    MatrixOperands,
    Side,
    left_side,
    right_side,
)
from aot.kernels.rules.products.product import divided
from aot.kernels.stage.tails import where, within

# matrices of terms of a block, most first, and quads of elements that a lane brings for it at most:
# it has them in registers meanwhile
STEPS, MOST_QUADS = (4, 2, 1), 16


def schedule_matrices(work: Work) -> Build | None:
    """The kernel of a contraction by a GPU's matrix instructions; None where the target has none
    that fit. A number of rows that is only known at run time may be 1, except for windows.
    """
    nest, gpu = work.nest, work.nest.target.gpu
    if work.is_long or work.blocks is not None or not work.is_alone or work.product is None:
        return None
    output, roles = work.product
    product = MatrixOperands.of(nest, output, roles, work.panel)
    if product is None or gpu is None:
        return None
    if not work.has_windows and not isinstance(product.row_count, int):
        return None
    channels = product.inner.extent
    sizes = product.row_count, roles.columns.extent, product.others, channels
    # where lanes would share sums there are few, whatever kernels of others are merged
    extents = MatrixExtents(*sizes, are_few=work.plan.shares > 1)
    tile = matrix_tile(product.shape, gpu, nest.lanes, extents)
    return None if tile is None else _Tiles(nest, output, product, tile).build


class _Tiles:
    """The loops and tiles of a product by a GPU's matrix instructions."""

    def __init__(
        self, nest: Nest, output: Output, product: MatrixOperands, tile: MatrixTile
    ) -> None:
        self.nest, self.output, self.product, self.tile = nest, output, product, tile
        self.roles = product.roles
        shape, builder = product.shape, nest.builder
        self.lanes = Lanes(nest, tile.subgroups)
        each = tile.shares * shape.terms  # of a step
        quads = (tile.rows + tile.columns) * each // (QUAD * nest.lanes)
        self.steps = next(
            n
            for n in STEPS
            if n == 1
            or (dims.modulo(product.inner.extent, n * each) == 0 and n * quads <= MOST_QUADS)
        )
        self.terms = self.steps * each
        size = tile.matrices_down, tile.matrices_across, shape.rows, shape.columns
        self.sums = builder.scratch("sums", shape.sums, size, Space.MATRIX)
        self.left: Side = left_side(self.lanes, product, tile.rows, self.terms)
        self.right: Side = right_side(self.lanes, product, self.terms, tile.columns)
        # one row of each subgroup's matrices at a time
        self.down = tile.along * shape.rows
        stored = tile.shares, self.down, tile.columns + QUAD  # rows begin at different banks
        self.stored = builder.scratch("stored", shape.sums, stored, Space.WORKGROUP)

    def build(self) -> tuple[Stmt, ...]:
        nest, product, tile = self.nest, self.product, self.tile
        row_tile = Axis(nest.builder.var("mt"), dims.ceil_divide(product.row_count, tile.rows))
        along = nest.builder.var("nt")
        columns = expr.mul(along, expr.index(tile.columns))

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[row_tile.var], expr.index(tile.rows))
            return self._tile(values, first, columns)

        stmts = nest.grid((*product.outer, row_tile), body, tile.rows * tile.columns)
        count = dims.ceil_divide(self.roles.columns.extent, tile.columns)
        return (For(along, count, LoopKind.WORKGROUP, stmts, axis=1),)

    def _tile(self, values: Values, first: Expr, columns: Expr) -> list[Stmt]:
        zero = self.lanes.groups(
            lambda _: self._each_matrix(lambda i, j: [MatrixZero(self.sums, (i, j))])
        )
        return [
            zero,
            *self._sum(values, first, columns),
            *self._finish(values, first, columns),
        ]

    def _each_matrix(self, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """`body` for each matrix of a subgroup's tile, unrolled."""
        nest, tile = self.nest, self.tile
        return nest.unrolled(
            tile.matrices_down,
            lambda i: nest.unrolled(tile.matrices_across, lambda j: body(i, j), "j"),
            "i",
        )

    def _place(self, group: Expr, stmts: list[Stmt]) -> tuple[Expr, Expr, Expr]:
        """(share, place down, place across) of a subgroup."""
        tile, let = self.tile, self.nest.let
        share, place = expr.index(0), group
        if tile.shares > 1:
            share, place = divided(group, tile.along * tile.across)
            share, place = let(share, stmts, "share"), let(place, stmts, "place")
        down, across = divided(place, tile.across)
        return share, let(down, stmts, "down"), let(across, stmts, "across")

    # The sum

    def _sum(self, values: Values, first: Expr, columns: Expr) -> list[Stmt]:
        """Statements that sum over all blocks of terms; a block's terms lie side by side in one
        tap.
        """
        nest, product = self.nest, self.product
        blocks = Axis(nest.builder.var("kb"), dims.floor_divide(product.inner.extent, self.terms))
        axes = tuple(a for a in (*product.taps, blocks) if a.extent != 1)
        count = dims.product([a.extent for a in axes])

        def at(number: Expr, stmts: list[Stmt]) -> Values:
            """Axis values at the first term of block `number`."""
            found: Values = {a.var: expr.index(0) for a in (*product.points, blocks)}
            if axes:
                nest.decode(number, axes, found, stmts)
            start = expr.mul(found.pop(blocks.var), expr.index(self.terms))
            return {**values, **found, product.inner.var: start}

        def take(number: Expr) -> Stmt:
            def own(lane: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                here = at(number, stmts)
                stmts += self.left.take(here, first, lane)
                return stmts + self.right.take(here, columns, lane)

            return self.lanes.each(own)

        def block(number: Expr) -> list[Stmt]:
            put = self.lanes.each(lambda lane: [*self.left.put(lane), *self.right.put(lane)])
            following: list[Stmt] = []
            if count != 1:
                last = expr.index(dims.add(count, -1))
                after = expr.add(number, expr.index(1))
                following = [take(expr.binary("min", after, last))]
            # others may still multiply by what was brought before
            return [Barrier(), put, Barrier(), *following, self.lanes.groups(self._multiply)]

        return [take(expr.index(0)), *nest.serial(count, block, "k")]

    def _multiply(self, group: Expr) -> list[Stmt]:
        """Statements that multiply the terms staged in shared memory, for one subgroup."""
        nest, shape, tile = self.nest, self.product.shape, self.tile
        stmts: list[Stmt] = []
        share, down, across = self._place(group, stmts)
        begins = {
            "row": (down, tile.matrices_down * shape.rows),
            "column": (across, tile.matrices_across * shape.columns),
            "term": (share, self.steps * shape.terms),
        }
        row, column, begin = (
            nest.let(expr.linear(begin), stmts, name) for name, begin in begins.items()
        )

        def step(s: Expr) -> list[Stmt]:
            term = expr.linear(begin, (s, shape.terms))

            def product(i: Expr, j: Expr) -> list[Stmt]:
                left = self.left.matrix(expr.linear(row, (i, shape.rows)), term)
                right = self.right.matrix(term, expr.linear(column, (j, shape.columns)))
                return [MatrixProduct(self.sums, (i, j), shape.terms, left, right)]

            return self._each_matrix(product)

        return stmts + nest.unrolled(self.steps, step, "s")

    # What becomes of the sums

    def _finish(self, values: Values, first: Expr, columns: Expr) -> list[Stmt]:
        """Statements that run the epilogue and store, one row of each subgroup's matrices at a
        time."""

        def part(i: Expr) -> list[Stmt]:
            return [
                Barrier(),  # others may still read what was there before
                self.lanes.groups(lambda group: self._keep(i, group)),
                Barrier(),
                self.lanes.each(lambda lane: self._epilogue(values, first, columns, i, lane)),
            ]

        return self.nest.unrolled(self.tile.matrices_down, part, "i")

    def _keep(self, i: Expr, group: Expr) -> list[Stmt]:
        """Stores row `i` of a subgroup's matrices."""
        nest, shape, tile = self.nest, self.product.shape, self.tile
        stmts: list[Stmt] = []
        share, down, across = self._place(group, stmts)
        row = expr.linear((down, shape.rows))
        column = expr.linear((across, tile.matrices_across * shape.columns))

        def one(j: Expr) -> list[Stmt]:
            at = share, row, expr.linear(column, (j, shape.columns))
            return [MatrixStore(self.sums, (i, j), Matrix(self.stored, at, self.stored.shape[-1]))]

        return stmts + nest.unrolled(tile.matrices_across, one, "j")

    def _epilogue(
        self, values: Values, first: Expr, columns: Expr, i: Expr, lane: Expr
    ) -> list[Stmt]:
        """Statements that finish and store a lane's share of the results: neighbours along a row
        where these are neighbours in memory, else along a column.
        """
        nest, roles, tile = self.nest, self.roles, self.tile
        extent, height = roles.columns.extent, self.product.shape.rows
        has_lines = expr.coefficient(self.output.address, roles.columns.var) == 1
        together = QUAD if has_lines and dims.modulo(extent, QUAD) == 0 else 1
        across = tile.columns // together
        size = across if has_lines else self.down

        def some(number: Expr) -> list[Stmt]:
            outer, inner = divided(number, size)
            at, part = (outer, inner) if has_lines else (inner, outer)
            stmts: list[Stmt] = []
            at = nest.let(at, stmts, "at")
            part = nest.let(expr.linear((part, together)), stmts, "part")
            column = nest.let(expr.add(columns, part), stmts, "column")
            # rows of matrices of one subgroup lie below each other
            down, place = divided(at, height)
            row = expr.linear((expr.linear((down, tile.matrices_down), i), height), place)
            row = nest.let(row, stmts, "row")
            inside: list[Stmt] = []
            here = {**values, **self.product.row_at(nest, expr.add(first, row), inside)}

            def one(u: Expr) -> list[Stmt]:
                total = self._total(at, expr.add(part, u))
                done: dict[Expr, Expr] = {roles.reduce: total}
                place = {**here, roles.columns.var: expr.add(column, u)}
                return self.output.stores(nest, place, done.get)

            # a copy of a long epilogue for each would be most of the shader
            is_long_one = is_long(self.output.values, roles.reduce)
            inside += (nest.serial if is_long_one else nest.unrolled)(together, one)
            return stmts + where(expr.all_of(self._conditions(first, row, column)), inside)

        return self.lanes.shared(self.down * across, lane, some, nest.serial)

    def _total(self, row: Expr, column: Expr) -> Expr:
        """An element's total: the sum of its shares in shared memory."""
        stored = self.stored
        places = [(expr.index(n), row, column) for n in range(stored.shape[0])]
        shares: list[Expr] = [Load(stored, place, stored.dtype) for place in places]
        return reduce(expr.add, shares)

    def _conditions(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr | None, Expr | None]:
        """(row condition, column condition) that a place of the tile exists; None where it
        certainly does."""
        return (
            within(expr.add(first, row), self.product.row_count, self.tile.rows),
            within(column, self.roles.columns.extent, self.tile.columns),
        )
