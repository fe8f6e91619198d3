"""Contractions whose weights exceed the L2 cache: sums computed in pieces of their terms.

A workgroup adds up a piece of the terms for all of its tiles of rows before it comes to the next
piece, so that the weights of a piece are read from the cache by all tiles but the first. Sums wait
in scratch meanwhile; each is added up in the order that it is without pieces, to the same bits.
Owns the pieces and the loops over them; products.py has what happens in a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aot.analysis.cost.plan import are_far
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, LoopKind, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.product import Place, Product, Tile, along
from aot.kernels.rules.products.products import Placed
from aot.kernels.rules.products.sum_order import by_weight_step, has_far_terms
from aot.kernels.stage.tails import where, within

# bytes of sums that wait, and tiles of rows that they may belong to: each more reads weights for
# less, and needs more rows' terms in the cache beside them
MOST_BYTES, MOST_TILES = 65536, 32
SUM_BYTES = DType.F32.bytes
# terms of a piece, of which sums are loaded and stored once
LEAST_TERMS = 64


@dataclass(frozen=True)
class Pieces:
    """The division of a sum into pieces that are added up separately.

    Attributes:
        outer: the axes that pieces have one index of, outermost first.
        inner: the others.
        size: terms along the first of `inner` that a piece has, of which there are several.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    size: int

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes, columns: int) -> Pieces | None:
        """The pieces of a sum for tiles of `columns`; None where the cache holds all of a tile's
        weights, or extents are unknown."""
        axes = roles.summed
        axes = by_weight_step(roles.right, axes)
        terms, cache = dims.product([a.extent for a in axes]), nest.target.l2_bytes
        width = columns * roles.weight.dtype.bytes
        if not isinstance(terms, int) or roles.reduce.dtype is not DType.F32:
            return None
        if nest.is_gpu or nest.lanes == 1:
            return None
        if not are_far(terms * width, cache) or has_far_terms(roles.left, axes):
            return None
        most = max(LEAST_TERMS, cache // 4 // width)
        outer: list[Axis] = []
        left = terms
        while len(axes) > 1 and left > most:
            outer.append(axes.pop(0))
            left //= outer[-1].count
        extent = axes[0].count
        inside = left // extent
        # pieces of one size, so that there is one loop
        sizes = [n for n in range(1, extent + 1) if extent % n == 0 and n * inside >= LEAST_TERMS]
        fitting = [n for n in sizes if n * inside <= most]
        fitting = fitting or [n for n in sizes[:1] if not are_far(n * inside * width, cache)]
        return Pieces(tuple(outer), tuple(axes), fitting[-1]) if fitting else None

    def part_of(self, roles: ContractionAxes, at: Values, start: Expr) -> ContractionAxes:
        """The contraction of one piece: the outer axes at `at`, the first inner one from
        `start`."""
        first = self.inner[0]
        placed = partial(expr.substitute, values={**at, first.var: expr.add(start, first.var)})
        weight = placed(roles.weight)
        assert isinstance(weight, Load)
        sizes = {first.var: self.size}
        axes = tuple((v, sizes.get(v, n)) for v, n in roles.reduce.axes if v not in at)
        reduce = replace(roles.reduce, axes=axes, body=placed(roles.reduce.body))
        left, right = placed(roles.left), placed(roles.right)
        return replace(roles, reduce=reduce, left=left, right=right, weight=weight)


class _Part(Placed):
    """One of several tiles of a workgroup, with its sums in scratch between pieces."""

    def add(self, sums: Scratch, number: Expr) -> list[Stmt]:
        """Adds the products of its terms to the sums of tile `number`."""
        acc = self.acc
        stmts = self._loaded(sums, number) + self._sum()
        return stmts + self.each_row(
            lambda *at: Store(sums, (number, *at), Load(acc, at, acc.dtype)), "u"
        )

    def finish(self, sums: Scratch, number: Expr) -> list[Stmt]:
        """Statements that run the epilogue of tile `number` on its sums and store it."""
        return self._loaded(sums, number) + self._finish()

    def _loaded(self, sums: Scratch, number: Expr) -> list[Stmt]:
        acc = self.acc
        return self.each_row(lambda *at: Store(acc, at, Load(sums, (number, *at), sums.dtype)), "u")


class TilesInPieces:
    """The tiles of a contraction summed in pieces, and the loops around them; all extents are
    known, and there is a row axis."""

    def __init__(self, product: Product, pieces: Pieces, shape: Shape) -> None:
        nest, _, roles, _, _ = self.product = product
        self.nest, self.roles, self.pieces = nest, roles, pieces
        assert roles.rows is not None
        rows = roles.rows.extent
        self.row_tile = Axis(nest.builder.var("mt"), dims.ceil_divide(rows, shape.rows))
        self.axes = [*roles.outer, self.row_tile]
        has_all_rows = dims.modulo(rows, shape.rows) == 0
        has_all_columns = dims.modulo(roles.columns.extent, shape.columns) == 0
        self.shape = replace(shape, has_all_rows=has_all_rows, has_all_columns=has_all_columns)
        self.count = int(dims.product([a.extent for a in self.axes]))
        most = min(MOST_TILES, max(1, MOST_BYTES // (shape.rows * shape.columns * SUM_BYTES)))
        self.tiles = -(-self.count // -(-self.count // most))  # as many in each workgroup

    def build(self) -> tuple[Stmt, ...]:
        nest, shape = self.nest, self.shape
        sums = nest.builder.scratch(
            "sums",
            self.roles.reduce.dtype,
            (self.tiles, shape.rows, shape.chunks, shape.width),
            Space.WORKGROUP,
        )
        group, strip = nest.builder.var("g"), nest.builder.var("nt")
        stmts: list[Stmt] = []
        begin = nest.let(expr.linear((group, self.tiles)), stmts, "first")
        start = nest.let(expr.linear((strip, shape.chunks)), stmts, "start")
        each = partial(self._each_tile, begin, start)
        stmts += self._zeros(sums)
        stmts += self._each_piece(
            lambda roles: each(lambda t, place: self._placed(roles, place).add(sums, t))
        )
        stmts += each(lambda t, place: self._placed(self.roles, place).finish(sums, t))
        groups = dims.ceil_divide(self.count, self.tiles)
        across = dims.ceil_divide(self.roles.columns.extent, shape.columns)
        rows = For(group, groups, LoopKind.WORKGROUP, tuple(stmts), axis=1)
        return (For(strip, across, LoopKind.WORKGROUP, (rows,), axis=0),)

    def _placed(self, roles: ContractionAxes, place: Place) -> _Part:
        part = _Part(Tile(self.product._replace(roles=roles), self.shape), place)
        part.whole = self.roles
        return part

    def _zeros(self, sums: Scratch) -> list[Stmt]:
        nest, shape = self.nest, self.shape
        zero = expr.const(0, sums.dtype)

        def vector(t: Expr, r: Expr, u: Expr) -> list[Stmt]:
            return [nest.spread(shape.width, lambda lane: [Store(sums, (t, r, u, lane), zero)])]

        def row(t: Expr, r: Expr) -> list[Stmt]:
            return nest.unrolled(shape.chunks, lambda u: vector(t, r, u), "u")

        return nest.serial(
            self.tiles, lambda t: nest.serial(shape.rows, lambda r: row(t, r), "r"), "t"
        )

    def _each_piece(self, body: Callable[[ContractionAxes], list[Stmt]]) -> list[Stmt]:
        """`body(contraction of a piece)` for all pieces, in order."""
        nest, pieces = self.nest, self.pieces

        def inside(at: Values, _: Expr) -> list[Stmt]:
            def piece(n: Expr) -> list[Stmt]:
                return body(pieces.part_of(self.roles, at, expr.linear((n, pieces.size))))

            return nest.serial(dims.floor_divide(pieces.inner[0].extent, pieces.size), piece, "kb")

        return along(nest, pieces.outer, {}, inside)

    def _each_tile(
        self, begin: Expr, start: Expr, body: Callable[[Expr, Place], list[Stmt]]
    ) -> list[Stmt]:
        """`body(number in the workgroup, place)` for the existing tiles from `begin`, at columns
        `start`."""
        nest = self.nest

        def one(t: Expr) -> list[Stmt]:
            number = expr.add(begin, t)
            values: Values = {}
            stmts: list[Stmt] = []
            nest.decode(nest.let(number, stmts, "tile"), self.axes, values, stmts)
            first = expr.linear((values.pop(self.row_tile.var), self.shape.rows))
            stmts += body(t, Place(values, nest.let(first, stmts, "first"), start))
            return where(within(number, self.count, self.tiles), stmts)

        return nest.serial(self.tiles, one, "t")
