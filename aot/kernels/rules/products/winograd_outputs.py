"""Winograd's output transform on a CPU: turns sums into a tile's outputs, runs the epilogue and
stores them.

Owns that alone; winograd.py has the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.analysis.cost.winograd import INPUTS, OUTPUTS
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.nest.tiles import is_long
from aot.kernels.rules.products.winograd_blocks import Blocks, OutputTile
from aot.kernels.rules.products.winograd_lines import line_stmts, output_line, transformed
from aot.kernels.stage.tails import where, within

Total = Callable[[Expr, Expr], Expr]
"""A sum of products, by point and lane."""


class TileOutputs:
    """Computes tiles' outputs from their sums, for one vector of filters at a time.

    Attributes:
        half: scratch [INPUTS, INPUTS, lanes] of one tile.
        is_long: whether a copy of what is done to each output would be most of the code.
    """

    def __init__(self, blocks: Blocks, half: Scratch) -> None:
        self.nest, self.output, self.roles = blocks.nest, blocks.output, blocks.roles
        self.blocks, self.half = blocks, half
        self.is_long = is_long(self.output.values, self.roles.reduce)

    def finished(self, tile: OutputTile, begin: Expr, total: Total) -> list[Stmt]:
        """Statements that transform, finish and store a vector of a tile's outputs, from filter
        `begin`."""
        # registers hold what is transformed of a tile of outputs where they are many
        has_registers = self.nest.target.multiplies_by_lane
        finish = self._finish_in_registers if has_registers else self._finish_by_lines
        return finish(tile, begin, total)

    def _vector(self, body: Callable[[Expr], Sequence[Stmt]]) -> Stmt:
        return self.nest.spread(self.blocks.vector, body)

    def _finish_by_lines(self, tile: OutputTile, begin: Expr, total: Total) -> list[Stmt]:
        """Statements that compute a vector of a tile's outputs line by line, and store them."""
        nest = self.nest

        def below(b: Expr) -> list[Stmt]:
            def one(lane: Expr) -> list[Stmt]:
                return line_stmts(
                    *(nest, output_line, "m", INPUTS),
                    lambda a: total(expr.add(expr.index(INPUTS * a), b), lane),
                    lambda y, value: Store(self.half, (expr.index(y), b, lane), value),
                )

            return [self._vector(one)]

        def across(y: Expr) -> list[Stmt]:
            def one(lane: Expr) -> list[Stmt]:
                return line_stmts(
                    *(nest, output_line, "m", INPUTS),
                    lambda b: Load(self.half, (y, expr.index(b), lane), self.half.dtype),
                    lambda x, value: Store(self.half, (y, expr.index(x), lane), value),
                )

            stored = self._store_line(tile, y, begin, self.half)
            row = [self._vector(one), *stored]
            return where(within(expr.add(tile.y, y), self.blocks.rows_axis.extent, OUTPUTS), row)

        return nest.serial(INPUTS, below, "b") + nest.serial(OUTPUTS, across, "y")

    def _finish_in_registers(self, tile: OutputTile, begin: Expr, total: Total) -> list[Stmt]:
        """Statements that compute all outputs of a tile in registers, and store them."""
        nest = self.nest
        made = self.half
        if not self.is_long:
            made = nest.builder.scratch(
                "made", self.half.dtype, (OUTPUTS, OUTPUTS, self.blocks.vector)
            )

        def one(lane: Expr) -> list[Stmt]:
            body: list[Stmt] = []

            def name(e: Expr) -> Expr:
                return nest.let(e, body, "h")

            def element(a: int, b: int) -> Expr:
                return nest.let(total(expr.index(INPUTS * a + b), lane), body, "m")

            for y, line in enumerate(transformed(output_line, name, INPUTS, element)):
                body += [
                    Store(made, (expr.index(y), expr.index(x), lane), value)
                    for x, value in enumerate(line)
                ]
            return body

        def row(y: Expr, is_whole: bool) -> list[Stmt]:
            stored = self._store_line(tile, y, begin, made, is_whole)
            if is_whole:
                return stored
            return where(within(expr.add(tile.y, y), self.blocks.rows_axis.extent, OUTPUTS), stored)

        each = nest.serial if self.is_long else nest.unrolled
        rows = each(OUTPUTS, lambda y: row(y, False), "y")
        whole = self.is_whole(tile)
        if whole is not None:
            fast = each(OUTPUTS, lambda y: row(y, True), "y")
            rows = [If(whole, tuple(fast)), If(expr.unary("not", whole), tuple(rows))]
        return [self._vector(one), *rows]

    def _store_line(
        self, tile: OutputTile, y: Expr, begin: Expr, sums: Scratch, is_whole: bool = False
    ) -> list[Stmt]:
        roles = self.roles

        def stored(x: Expr) -> list[Stmt]:
            at_x = expr.add(tile.x, x)

            def one(lane: Expr) -> list[Stmt]:
                at = expr.add(begin, lane)
                place = {
                    **tile.values,
                    self.blocks.rows_axis.var: expr.add(tile.y, y),
                    self.blocks.columns_axis.var: at_x,
                    roles.columns.var: at,
                }
                total = Load(sums, (y, x, lane), self.half.dtype)
                done: dict[Expr, Expr] = {roles.reduce: total}
                stores = self.output.stores(self.nest, place, done.get)
                return where(within(at, roles.columns.extent, self.blocks.columns), stores)

            vector = [self._vector(one)]
            if is_whole:
                return vector
            return where(within(at_x, self.blocks.columns_axis.extent, OUTPUTS), vector)

        each = self.nest.serial if self.is_long else self.nest.unrolled
        return each(OUTPUTS, stored, "x")

    def is_whole(self, tile: OutputTile) -> Expr | None:
        """The condition that a tile's outputs are all in bounds, on targets that check once per
        tile; else None.
        """
        if not self.nest.target.multiplies_by_lane:
            return None
        return expr.all_of(
            expr.binary("le", expr.add(at, expr.index(OUTPUTS)), expr.index(axis.extent))
            for axis, at in ((self.blocks.rows_axis, tile.y), (self.blocks.columns_axis, tile.x))
            if dims.modulo(axis.extent, OUTPUTS) != 0
        )
