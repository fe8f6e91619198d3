"""Dot product tiles with too few columns for a vector: several lanes share a column.

Each lane of a column sums every so manyth word of its rows, and their sums are added at the end.
Results of several rows are finished as one vector. Owns such tiles; which rows and columns they
have is contraction.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from aot.ir import expr
from aot.ir.expr import Dot, Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Nest, Values
from aot.kernels.rules.products.dot_tiles import DotTile
from aot.kernels.rules.products.dots import WORDS, DotAxes, WordRows
from aot.kernels.rules.products.dots_in_place import RowsInPlace
from aot.kernels.rules.products.product import Place, Tile, divided, where_whole

# rows whose sums are in registers at once, and results that are finished together
ROWS, TOGETHER = 16, 64
VECTOR_BYTES = 64
# steps of a sum that are written out, so that registers hold their weights for all tiles
HELD = 8
# bytes of a row below which half as many rows are summed at once
SHORT = 64


def parts_of(
    nest: Nest, roles: ContractionAxes, axes: DotAxes, width: int, *, is_in_place: bool
) -> int:
    """The number of lanes per column in a tile of `width` columns; 1 if lanes do not share
    columns."""
    target = nest.target
    has_words = target.arch == "x86_64" and target.vector_bytes == VECTOR_BYTES
    is_whole = axes.staged is DType.U8 and target.sums_bytes(DType.U8, DType.I8)
    has_all = roles.is_packed or roles.columns.extent == width
    if not has_words or not is_whole or not has_all or axes.is_split:
        return 1
    if is_in_place and RowsInPlace(nest, roles, axes, 1).outer:
        return 1
    parts = max(1, nest.lanes // width)
    while axes.size // axes.terms % parts:
        parts //= 2
    return parts


def rows_in_parts(roles: ContractionAxes, axes: DotAxes, rows: int) -> int:
    """The number of rows of a tile whose lanes share columns; other tiles have `rows`."""
    extent = roles.row_count
    if not isinstance(extent, int):
        return rows
    # the shorter the sums are, the more a core has to do of other tiles while one is finished
    return min(ROWS if axes.size > SHORT else ROWS // 2, extent)


class DotTileInParts(DotTile):
    """A placed dot product tile whose sums have `parts` lanes per column."""

    def __init__(
        self, tile: Tile, staged: WordRows, row: Expr, place: Place, held: Scratch | None = None
    ) -> None:
        """Makes a tile whose weights are in the register scratch `held`; None reads them from
        memory."""
        super().__init__(tile, staged, row, place)
        self.held = held
        self.lanes = self.acc.shape[-1]
        self.parts = self.lanes // self.shape.width
        self.sums: Scratch = self.scratch.get(
            "sums", self.acc.dtype, (self.shape.rows * self.lanes,)
        )

    def _each_place(self, body: Callable[[Expr, Expr], Stmt]) -> list[Stmt]:
        """`body(row, lane)` for all sums in registers."""
        nest = self.nest
        return nest.unrolled(
            self.shape.rows,
            lambda r: [nest.spread(self.lanes, lambda lane: [body(r, lane)])],
            "r",
        )

    def _zeros(self) -> list[Stmt]:
        zero, none = expr.const(0, self.acc.dtype), expr.index(0)
        return self._each_place(lambda r, lane: Store(self.acc, (r, none, lane), zero))

    @property
    def steps(self) -> int:
        """The number of words that each lane adds to its sum."""
        axes = self.staged.axes
        return axes.size // axes.terms // self.parts

    def hold_words(self) -> list[Stmt]:
        """Statements that load the weights into registers, once for all rows."""
        dtype, steps = WORDS[self.roles.weight.dtype], self.steps
        words = self.nest.builder.scratch("words", dtype, (steps, self.lanes))
        self.held = words

        def one(g: Expr, lane: Expr) -> list[Stmt]:
            return [Store(words, (g, lane), self._word_of_lane(g, lane))]

        return self.nest.unrolled(
            steps, lambda g: [self.nest.spread(self.lanes, lambda lane: one(g, lane))], "g"
        )

    def _word_of_lane(self, g: Expr, lane: Expr) -> Expr:
        """The word of weights that a lane multiplies in step `g`."""
        column, _ = divided(lane, self.parts)
        return self._word(self._number(g, lane), expr.index(0), column)

    def _number(self, g: Expr, lane: Expr) -> Expr:
        """The index in a row of the word that a lane multiplies in step `g`."""
        return expr.linear((g, self.parts), divided(lane, self.parts)[1])

    def _sum(self) -> list[Stmt]:
        acc, none, words = self.acc, expr.index(0), self.held

        def step(g: Expr) -> list[Stmt]:
            def product(r: Expr, lane: Expr) -> Stmt:
                weight = self._word_of_lane(g, lane)
                if words is not None:
                    weight = Load(words, (g, lane), words.dtype)
                old = Load(acc, (r, none, lane), acc.dtype)
                made = Dot(self._left(r, self._number(g, lane), 0), weight, old)
                return Store(acc, (r, none, lane), made)

            return self._each_place(product)

        if words is not None:
            return self.nest.unrolled(self.steps, step, "g")
        return self.nest.serial(self.steps, step, "g")

    def _finish(self) -> list[Stmt]:
        nest, shape, sums, none = self.nest, self.shape, self.sums, expr.index(0)
        acc, lanes = self.acc, self.lanes
        stmts = self._named() + self._each_place(
            lambda r, lane: Store(
                sums, (expr.linear((r, lanes), lane),), Load(acc, (r, none, lane), acc.dtype)
            )
        )
        by_row = nest.serial(shape.rows, lambda r: self._finish_row(r, sums, nest.unrolled), "r")
        several = TOGETHER // shape.width
        rows = self.roles.rows
        if self.roles.columns.extent != shape.width or shape.rows % several or rows is None:
            return stmts + by_row
        blocks = nest.serial(shape.rows // several, lambda n: self._block(n, several), "b")
        if shape.has_all_rows:
            return stmts + blocks
        end = expr.add(self.first, expr.index(shape.rows))
        return stmts + where_whole(end, rows.extent, blocks, by_row)

    def _block(self, n: Expr, several: int) -> list[Stmt]:
        """Statements that sum up and store `several` rows, all of which exist."""
        first = expr.linear((n, several))

        def result(lane: Expr) -> list[Stmt]:
            row, column = divided(lane, self.shape.width)
            here = self._at(expr.add(first, row), is_clamped=False)
            done = self._done(self._total(expr.linear((first, self.lanes)), lane))
            place = {**here, self.roles.columns.var: column}
            return self.output.stores(self.nest, place, done.get)

        return [self.nest.spread(TOGETHER, result)]

    def _total(self, begin: Expr, column: Expr) -> Expr:
        """The total of a column: the sum of its parts' lanes, which begin at `begin` for the first
        column.
        """
        at = expr.add(begin, expr.linear((column, self.parts)))
        places = (expr.add(at, expr.index(n)) for n in range(self.parts))
        parts: list[Expr] = [Load(self.sums, (place,), self.sums.dtype) for place in places]
        return reduce(expr.add, parts)

    def _stores(self, here: Values, source: Scratch, r: Expr, u: Expr, lane: Expr) -> list[Stmt]:
        place = {**here, self.roles.columns.var: self._column(u, lane)}
        done = self._done(self._total(expr.mul(r, expr.index(self.lanes)), lane))
        return self.output.stores(self.nest, place, done.get)
