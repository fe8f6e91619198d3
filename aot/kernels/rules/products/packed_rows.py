"""Contractions with multiply-by-lane instructions, whose rows are packed first: a tile's rows are
interleaved.

For targets that multiply by a lane. A workgroup copies some tiles of rows into scratch, all terms
of them, transposed in registers; tiles of many columns then load the scalars of all of a tile's
rows by one instruction, and registers need not hold a vector of each row. Owns when that pays, the
copy and the loops; products.py has what else happens in a tile. Sums are added up in the order that
they are without, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, LoopKind, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    along,
    numbered,
)
from aot.kernels.rules.products.products import SummedTile
from aot.kernels.rules.products.row_vectors import are_in_line, by_rows
from aot.kernels.rules.products.sum_order import by_weight_step, has_far_terms
from aot.kernels.stage.tails import where, within

LANES = 4
# rows and columns of a tile: registers hold its sums and the operands of some steps
ROWS, COLUMNS = 8, 8
# steps that a loop has written out, if they divide the terms
STEPS = (8, 4)
# columns that share what is copied at least: it costs an instruction an element
LEAST_COLUMNS = 192
# rows of all tiles over those that there are
MOST_ROWS = 1.03
# bytes of packed rows, which the second level of cache holds beside weights
MOST_BYTES = 131072
# tiles of rows that a workgroup has at least, where there are as many: each weight comes from
# outside of the nearest caches once for all of them; and workgroups that there should be
LEAST_TILES, WORKGROUPS = 2, 8


@dataclass(frozen=True)
class Packed:
    """The tiling of a product whose left rows are packed in scratch first.

    Attributes:
        terms: the axes of the sums, the one along which scalars lie side by side last.
        tiles: of rows.
        together: how many of them a workgroup has.
        across: tiles of columns that a workgroup has.
        misfits: 0 where scratch holds the terms of a tile.
    """

    terms: tuple[Axis, ...]
    tiles: int
    together: Dim
    across: Dim
    misfits: Dim

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes) -> Packed | None:
        """The tiling of packed rows; None where packing does not pay or is not possible: few or
        unknown rows, or padding."""
        dtype = DType.F32
        is_float = roles.weight.dtype is roles.reduce.dtype is dtype
        if not nest.target.multiplies_by_lane or nest.lanes != LANES or not is_float:
            return None
        rows = None if roles.rows is None else roles.rows.extent
        columns = roles.columns.extent
        axes = by_weight_step(roles.right, roles.summed)
        if not isinstance(rows, int) or not isinstance(columns, int) or not axes:
            return None
        tiles, wide = -(-rows // ROWS), -(-columns // COLUMNS)
        is_small = columns < LEAST_COLUMNS or ROWS * tiles > MOST_ROWS * rows
        if is_small or has_far_terms(roles.left, axes):
            return None
        if dims.modulo(axes[-1].extent, STEPS[-1]) != 0:
            return None
        if not are_in_line(nest, roles.left, axes[-1], dtype):
            return None
        (load,) = expr.loads(roles.left)
        if load.guard is not None:
            return None
        terms = roles.terms
        most = MOST_BYTES // (ROWS * dtype.bytes)
        misfits = dims.floor_divide(terms, most + 1)
        if isinstance(misfits, int) and misfits:
            return None
        share = min(tiles, max(LEAST_TILES, -(-tiles // WORKGROUPS)))
        fitting = dims.floor_divide(most, dims.maximum(terms, 1))
        together = dims.minimum(dims.maximum(1, fitting), share)
        blocks = dims.ceil_divide(tiles, together)
        parts = dims.minimum(dims.ceil_divide(WORKGROUPS, blocks), columns // LEAST_COLUMNS)
        across = dims.ceil_divide(wide, parts)
        return Packed(tuple(axes), tiles, together, across, misfits)


class _PackedTile(SummedTile):
    """A register tile whose row scalars are contiguous in scratch, at `scalar(row, term)`."""

    def __init__(
        self,
        tile: Tile,
        place: Place,
        terms: tuple[Axis, ...],
        scalar: Callable[[Expr, Expr], Expr],
    ) -> None:
        super().__init__(tile, place)
        self.terms, self.scalar = terms, scalar

    def _sum(self) -> list[Stmt]:
        *outer, inner = self.terms
        steps = next(n for n in STEPS if dims.modulo(inner.extent, n) == 0)

        def products(values: Values, number: Expr) -> list[Stmt]:
            before = expr.linear((number, inner.extent))

            def step(k: Expr) -> list[Stmt]:
                here, term = {**values, inner.var: k}, expr.add(before, k)
                return by_rows(
                    *(self.nest, self.shape.rows, self.acc.dtype),
                    lambda r: self.scalar(r, term),
                    lambda of_row: self._product(
                        of_row, lambda u, lane: self._right(here, u, lane)
                    ),
                )

            return self._in_order(inner.extent, steps, step)

        return along(self.nest, outer, {**self.roles.origins, **self.values}, products)


class PackedTiles:
    """The tiles of a contraction with packed rows, and the loops around them.

    Args:
        may_repeat: whether a row may be stored twice.
    """

    def __init__(self, product: Product, packed: Packed, *, may_repeat: bool) -> None:
        nest, roles = product.nest, product.roles
        self.nest, self.roles, self.packed = nest, roles, packed
        assert roles.rows is not None
        self.rows = roles.rows
        self.count = dims.product([axis.extent for axis in packed.terms])
        self.is_repeated = may_repeat and dims.modulo(self.rows.extent, ROWS) != 0
        has_rows = self.is_repeated or dims.modulo(self.rows.extent, ROWS) == 0
        has_columns = dims.modulo(roles.columns.extent, COLUMNS) == 0
        shape = Shape(ROWS, 1, COLUMNS, has_rows, has_columns)
        self.tile = Tile(product, shape)
        size = dims.product([packed.together, self.count, ROWS])
        if not isinstance(size, int):
            size = MOST_BYTES // DType.F32.bytes
        self.scratch: Scratch = nest.builder.scratch("rows", DType.F32, (size,), Space.WORKGROUP)

    def build(self) -> tuple[Stmt, ...]:
        nest, packed = self.nest, self.packed
        blocks = Axis(nest.builder.var("mb"), dims.ceil_divide(packed.tiles, packed.together))
        wide = dims.ceil_divide(self.roles.columns.extent, COLUMNS)
        across = nest.builder.var("nb")

        def body(values: Values) -> list[Stmt]:
            block = expr.linear((values[blocks.var], packed.together))

            def columns(number: Expr) -> list[Stmt]:
                return self._each(
                    block, lambda i, first: self._tile(i, Place(values, first, number))
                )

            stmts = self._each(block, lambda i, first: self._pack(values, i, first))
            begin = expr.linear((across, packed.across))
            return stmts + numbered(nest, begin, packed.across, wide, columns, "nt")

        work = dims.product([packed.together, packed.across, self.count])
        stmts = nest.grid([*self.roles.outer, blocks], body, work, first=1)
        count = dims.ceil_divide(wide, packed.across)
        return (For(across, count, LoopKind.WORKGROUP, stmts, axis=0),)

    def _each(self, block: Expr, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """`body(its number in the block, its first row)` for the tiles of rows of a block."""
        nest, packed = self.nest, self.packed

        def one(i: Expr) -> list[Stmt]:
            number = expr.add(block, i)
            stmts: list[Stmt] = []
            first = expr.linear((number, ROWS))
            if self.is_repeated:
                last = expr.index(dims.add(self.rows.extent, -ROWS))
                first = nest.let(expr.binary("min", first, last), stmts, "first")
            return where(within(number, packed.tiles, packed.together), stmts + body(i, first))

        return nest.serial(packed.together, one, "mt")

    def _pack(self, values: Values, i: Expr, first: Expr) -> list[Stmt]:
        """Statements that copy all terms of a tile's rows to scratch; rows past the end get the
        last row's.
        """
        nest, shape = self.nest, self.tile.shape
        *outer, inner = self.packed.terms

        def store(values: Values, term: Expr) -> list[Stmt]:
            def row(r: Expr) -> list[Stmt]:
                at = shape.row_values(self.rows, first, r, is_clamped=True)
                value = expr.substitute(self.roles.left, {**values, **at})
                return [Store(self.scratch, (self._place(i, term, r),), value)]

            return [nest.spread(ROWS, row)]

        def terms(values: Values, number: Expr) -> list[Stmt]:
            before = expr.linear((number, inner.extent))

            def one(k: Expr) -> list[Stmt]:
                return store({**values, inner.var: k}, expr.add(before, k))

            return nest.serial(
                dims.floor_divide(inner.extent, LANES),
                lambda n: nest.unrolled(LANES, lambda j: one(expr.linear((n, LANES), j)), "j"),
                "k",
            )

        return along(nest, outer, {**values, **self.roles.origins}, terms)

    def _place(self, i: Expr, k: Expr, r: Expr) -> Expr:
        """The index of term `k` of row `r` in tile `i` of a packed block."""
        return expr.linear((expr.linear((i, self.count), k), ROWS), r)

    def _tile(self, i: Expr, place: Place) -> list[Stmt]:
        scratch = self.scratch

        def scalar(r: Expr, k: Expr) -> Expr:
            return Load(scratch, (self._place(i, k, r),), scratch.dtype)

        return _PackedTile(self.tile, place, self.packed.terms, scalar).build()
