"""Building blocks of product tiles: the product, a tile's position, and its sums in registers.

Owns the loops over a tile's rows and columns, and pieces of loops that several tiles have. Chooses
no tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import ReusedScratch, Shape
from aot.kernels.rules.products.sum_order import is_piece, plus_product
from aot.kernels.stage.tails import where, within

Body = Callable[[Expr], list[Stmt]]
Element = Callable[[Expr, Expr, Expr], Stmt]
"""The statement of an element of a tile, by row, chunk and lane."""
Plus = Callable[[Expr, Expr, Expr], Expr]
"""A total with the product of two factors added to it."""


class Product(NamedTuple):
    """A contraction to be built, with the facts that its tiles share.

    Attributes:
        panel: columns of a panel of its weights.
        scratch: what its tiles use in turn.
    """

    nest: Nest
    output: Output
    roles: ContractionAxes
    panel: int
    scratch: ReusedScratch

    @staticmethod
    def of(nest: Nest, found: tuple[Output, ContractionAxes], panel: int) -> Product:
        """A Product of a contraction found in a nest, with its own scratch."""
        return Product(nest, *found, panel, ReusedScratch(nest))


class Place(NamedTuple):
    """The position of a tile.

    Attributes:
        values: of the axes around the tile.
        first: its first row.
        start: its first column, in widths of its vectors.
    """

    values: Values
    first: Expr
    start: Expr


class Tile:
    """A register tile of a product, without a position.

    Attributes:
        acc: its sums in registers: [row, chunk, lane].
        pieces: those of all pieces, where `acc` has no more than a piece's.
        in_parts: whether sums are added up in parts that join at the end alone: of lanes, of
            matrices or of blocks. Other sums may begin with a bias.
    """

    def __init__(
        self, product: Product, shape: Shape, lanes: int | None = None, *, in_parts: bool = False
    ) -> None:
        """`lanes` is the number of lanes side by side, by default the vectors' columns."""
        self.product, self.shape, self.in_parts = product, shape, in_parts
        reduce = product.roles.reduce
        self.acc: Scratch = product.nest.builder.scratch(
            "acc", reduce.dtype, (shape.rows, shape.chunks, lanes or shape.width)
        )
        self.pieces: Scratch | None = None
        is_half = reduce.dtype is DType.F16 and not in_parts
        if is_half and not is_piece([n for _, n in reduce.axes]):
            self.pieces = product.scratch.get("pieces", DType.F32, self.acc.shape)


class Sums:
    """The sums of a register tile, rows by vectors of columns.

    Attributes:
        acc: the sums: [row, chunk, lane].
    """

    def __init__(self, nest: Nest, shape: Shape, acc: Scratch) -> None:
        self.nest, self.shape, self.acc = nest, shape, acc

    def each_row(self, body: Element, name: str = "r") -> list[Stmt]:
        """`body(row, chunk, lane)` for all sums of the tile, unrolled."""
        return self.nest.unrolled(
            self.shape.rows, lambda r: self.each_chunk(lambda u, lane: body(r, u, lane)), name
        )

    def each_chunk(self, body: Callable[[Expr, Expr], Stmt]) -> list[Stmt]:
        """`body(chunk, lane)` for the vectors of the columns."""
        return self.each_vector(lambda u, lane: [body(u, lane)])

    def each_vector(self, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """As `each_chunk`, for bodies of several statements."""
        return self.nest.unrolled(
            self.shape.chunks, lambda u: self.each_lane(lambda lane: body(u, lane))
        )

    def each_lane(self, body: Body) -> list[Stmt]:
        """`body(lane)` for the lanes of a vector."""
        return [self.nest.spread(self.shape.width, body)]

    def zeroed(self, sums: Scratch, name: str = "r") -> list[Stmt]:
        """Statements that set sums to zero."""
        zero = expr.const(0, sums.dtype)
        return self.each_row(lambda *at: Store(sums, at, zero), name)

    def copied(self, into: Scratch, source: Scratch, name: str = "r") -> list[Stmt]:
        """Statements that copy the tile's sums from `source` to `into`."""
        return self.each_row(lambda *at: Store(into, at, Load(source, at, source.dtype)), name)

    def outer_product(
        self,
        left: Callable[[Expr], Expr],
        right: Callable[[Expr, Expr], Expr],
        plus: Plus = plus_product,
        sums: Scratch | None = None,
    ) -> list[Stmt]:
        """Statements that add `left(row) * right(chunk, lane)` to all `sums`, by default those in
        registers."""
        nest, acc = self.nest, sums or self.acc

        def row(r: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            scalar = nest.let(left(r), stmts, "a")

            def one(u: Expr, lane: Expr) -> Stmt:
                old = Load(acc, (r, u, lane), acc.dtype)
                return Store(acc, (r, u, lane), plus(old, scalar, right(u, lane)))

            return stmts + self.each_chunk(one)

        return nest.unrolled(self.shape.rows, row, "r")


# Indices


def flat(digits: Sequence[tuple[Expr, Dim]]) -> Expr:
    """The flat index of (index, extent) pairs, the last one fastest."""
    number: Expr = expr.index(0)
    for at, extent in digits:
        number = expr.linear((number, extent), at)
    return number


def divided(number: Expr, size: Dim) -> tuple[Expr, Expr]:
    """(quotient, remainder) of an index by `size`."""
    by = expr.index(size)
    return expr.binary("floordiv", number, by), expr.binary("floormod", number, by)


# Loops that end within an extent


def where_whole(
    end: Expr, extent: Dim, whole: Sequence[Stmt], rest: Sequence[Stmt] = ()
) -> list[Stmt]:
    """`whole` if a part that ends before `end` lies within `extent`, else `rest`."""
    return [If(expr.binary("le", end, expr.index(extent)), tuple(whole), tuple(rest))]


def numbered(
    nest: Nest, first: Expr, count: int | Dim, extent: Dim, body: Body, name: str
) -> list[Stmt]:
    """`body(number)` for `count` numbers from `first`, a multiple of `count`, skipping those not
    below `extent`."""

    def one(n: Expr) -> list[Stmt]:
        number = expr.add(first, n)
        return where(within(number, extent, count), body(number))

    return nest.serial(count, one, name)


def each_part(
    nest: Nest, extent: int, size: int, part: Callable[[Expr, int], list[Stmt]], name: str
) -> list[Stmt]:
    """`part(number, count)` for parts of `size`, then for the tail of an extent."""
    whole, rest = divmod(extent, size)
    stmts = nest.serial(whole, lambda n: part(n, size), name)
    return stmts + (part(expr.index(whole), rest) if rest else [])


def along(
    nest: Nest,
    axes: Sequence[Axis],
    values: Values,
    body: Callable[[Values, Expr], list[Stmt]],
    number: Expr | None = None,
) -> list[Stmt]:
    """Loops over `axes`, outermost first, around `body(values, number)`, where `number` is the flat
    index."""
    number = expr.index(0) if number is None else number
    if not axes:
        return body(values, number)
    axis, *others = axes
    before = expr.linear((number, axis.extent))
    return nest.serial(
        axis.extent,
        lambda k: along(nest, others, {**values, axis.var: k}, body, expr.add(before, k)),
        "k",
    )


def panel_of(
    roles: ContractionAxes, panel: int, column: Expr, *, is_there: bool
) -> tuple[Expr, Expr]:
    """(panel, place within it) of a column, clamped to the last panel unless the column certainly
    exists."""
    number, within = divided(column, panel)
    return number if is_there else last_panel(roles, panel, number), within


def last_panel(roles: ContractionAxes, panel: int, number: Expr) -> Expr:
    """`number`, clamped to the last panel."""
    last = expr.index(dims.add(roles.columns.extent, -1))
    return expr.binary("min", number, expr.binary("floordiv", last, expr.index(panel)))
