"""Blocks of Winograd convolutions on a CPU: tiles of outputs by filters, with channels in pieces.

Owns how many of each a workgroup has, and the loops over those that are in bounds. What is computed
of them is winograd.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aot.analysis.cost.winograd import (
    INPUTS,
    MOST_CHANNELS,
    OUTPUTS,
    block_of,
    piece_of,
    stored_block_of,
    together,
)
from aot.errors import InternalError
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import Stmt
from aot.kernels.nest.nest import Axis, Values
from aot.kernels.rules.products.product import Product
from aot.kernels.stage.tails import where, within


class OutputTile(NamedTuple):
    """The position (y, x) of a tile's first output, with the values of the other axes."""

    y: Expr
    x: Expr
    values: Values


def _unscaled(left: Expr) -> Expr:
    """The input's factor in the left side of a product with transformed filters."""
    if not isinstance(left, Binary) or left.op != "mul":
        raise InternalError("inputs of transformed filters are no products with their points'")
    return left.b


class Blocks:
    """A Winograd convolution, divided into blocks of tiles by filters.

    Attributes:
        rows, columns: tiles and filters that are multiplied in registers; columns are `chunks`
            vectors of `width`.
        tiles, wide: tiles, and times `columns` filters, of a workgroup.
        piece: channels that are multiplied at a time.
        most: what a piece has at most.
        padded: of a piece in whole vectors of `across_channels`.
        count: tiles of all images.
        vector: what is transformed at a time, so that registers hold it.
        is_stored: whether filters are stored transformed.
    """

    def __init__(self, product: Product, plan: StageSchedule) -> None:
        nest, output, roles, panel, _ = product
        self.nest, self.output, self.roles, self.panel = nest, output, roles, panel
        self.dtype = roles.reduce.dtype
        self.rows, self.columns = plan.rows, plan.columns
        self.width = min(plan.columns, panel)
        self.chunks = plan.columns // self.width
        self.vector = min(nest.lanes, self.width)
        (self.channel, self.channels), *self.taps = roles.reduce.axes
        self.is_stored = self.taps[0][1] == INPUTS
        self.left = _unscaled(roles.left) if self.is_stored else roles.left
        spatial = {a.var.name: a for a in output.axes}
        self.rows_axis, self.columns_axis = spatial["i2"], spatial["i3"]
        self.outer = [
            a for a in roles.outer if a is not self.rows_axis and a is not self.columns_axis
        ]
        self.across = dims.ceil_divide(self.columns_axis.extent, OUTPUTS)
        self.down = dims.ceil_divide(self.rows_axis.extent, OUTPUTS)
        self.count = dims.product([*(a.extent for a in self.outer), self.down, self.across])
        self.tiles, self.wide, self.piece = self._block()
        self.most = self.piece if isinstance(self.piece, int) else MOST_CHANNELS
        self.across_channels = min(nest.lanes, self.most)
        self.padded = dims.multiply(
            dims.ceil_divide(self.piece, self.across_channels), self.across_channels
        )
        self.blocks = dims.ceil_divide(self.count, self.tiles)
        if self.is_whole:
            self.wide = together(self.wide, self.blocks, roles.columns.extent, self.columns)

    def _block(self) -> tuple[int, int, Dim]:
        """(tiles, register tiles of filters, channels) of a workgroup."""
        tile, target = (self.rows, self.columns), self.nest.target
        filters = self.roles.columns.extent
        if self.is_stored:
            return stored_block_of(tile, self.channels, filters, target.l2_bytes)
        return *block_of(tile, filters, target.l2_bytes), piece_of(self.channels, target)

    @property
    def is_whole(self) -> bool:
        """Whether one piece has all channels, so that sums are finished as soon as they are
        stored."""
        return self.channels == self.piece

    @property
    def is_continued(self) -> bool:
        """Whether a piece's accumulators start from the earlier pieces' sums, where the target
        loads two vectors with one instruction."""
        return self.nest.target.multiplies_by_lane and not self.is_whole

    def _each_column_tile(self, column: Expr, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`body(number)` for each column tile that exists in the block that begins at `column`."""
        extent = self.roles.columns.extent

        def one(w: Expr) -> list[Stmt]:
            at = expr.linear(column, (w, self.columns))
            return where(within(at, extent, self.columns * self.wide), body(w))

        return self.nest.serial(self.wide, one, "w")

    def _each_group(self, first: Expr, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`body(first tile)` for each register tile in bounds of the block of tiles that begins at
        `first`.
        """

        def one(g: Expr) -> list[Stmt]:
            begin = expr.mul(g, expr.index(self.rows))
            return where(within(expr.add(first, begin), self.count, self.tiles), body(begin))

        return self.nest.serial(self.tiles // self.rows, one, "g")

    def _each_vector(self, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """`body(chunk, place in the chunk)` for each vector of a column tile."""
        nest, size = self.nest, expr.index(self.vector)
        return nest.serial(
            self.chunks,
            lambda u: nest.serial(
                self.width // self.vector, lambda v: body(u, expr.mul(v, size)), "v"
            ),
            "u",
        )

    def _tile_of(self, r: Expr, first: Expr, into: list[Stmt]) -> OutputTile:
        nest = self.nest
        number = expr.add(first, r)
        if dims.modulo(self.count, self.tiles) != 0:
            number = expr.binary("min", number, expr.index(dims.add(self.count, -1)))
        axes = [*self.outer, Axis(nest.builder.var("th"), self.down)]
        axes.append(Axis(nest.builder.var("tw"), self.across))
        values: dict[Var, Expr] = {}
        nest.decode(nest.let(number, into, "t"), axes, values, into)
        size = expr.index(OUTPUTS)
        y = nest.let(expr.mul(values.pop(axes[-2].var), size), into, "y")
        x = nest.let(expr.mul(values.pop(axes[-1].var), size), into, "x")
        return OutputTile(y, x, values)

    def _column_of(self, column: Expr, w: Expr, u: Expr) -> Expr:
        """The first column of chunk `u` in column tile `w` of the block that begins at `column`."""
        tile = expr.linear(column, (w, self.columns))
        return expr.linear(tile, (u, self.width))
